//! Pools to lie in: small, with one of everything, closed or crashed.

use std::sync::Arc;

use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{SimDevice, SimOptions};
use whole_system::Ground;

use super::lies::Base;

const POOL_BYTES: u64 = 16 << 20;
/// Files with names so long that their directory has several pages.
const FILES: u64 = 32;
/// How many of them have content.
const WRITTEN: u64 = 8;

/// What lies behind the last checkpoint; `%{78*9}` is nine times the letter x.
const SETTLED: &str = "create /sparse file 644
    write /sparse 1 4 1
    write /sparse 32768 4 1
    write /sparse 1048576 4 2
    write /sparse 1073741824 4 3
    write /sparse 1099511627776 4 4
    create /big file 644
    write /big 0 150000 5
    sync
    write /big 20000 3000 6
    punch /big 60000 20000
    create /ahead file 600
    allocate /ahead 0 200000
    write /ahead 50000 9000 7
    symlink /long =%{78*1000}
    symlink /short =directory
    create /fifo fifo 600
    create /char char 600
    link /big /directory/linked
    create /attributes file 600
    setxattr /attributes user.small 20 1 set
    setxattr /attributes user.large 3000 2 set
    setxattr /attributes trusted.more 9000 3 set
    create /lists directory 755
    setacl /lists default u:7,u7:5,g:5,m:7,o:0
    create /lists/child file 640
    setacl /lists/child access u:6,u8:7,g:0,m:7,o:0
    create /a directory 755
    create /a/b directory 755
    create /a/b/c directory 755
    create /a/b/c/deep file 600
    write /a/b/c/deep 0 100 1
    sync";

/// What only the log has, if the pool is not closed: names that move and go, a file that is cut,
/// one without a name, attributes, and whole new pages.
const LOGGED: &str = "rename /directory/5%{78*150} /a/moved replace
    unlink /directory/6%{78*150}
    fsync /a
    truncate /big 70000
    fsync /big
    write /sparse 5000000000 9000 2
    fsync /sparse
    setxattr /attributes user.late 2500 4 set
    removexattr /attributes user.small
    fsync /attributes
    nameless @0 / 600
    write @0 0 20000 3
    fsync @0
    create /a/b/late directory 755
    rename /a/b/c /a/b/late/c replace
    unlink /fifo
    sync
    write /0 100 5000 9
    fsync /0
    write /big 30000 2000 1
    fsync /big";

pub(super) fn open_on(device: &SharedDevice) -> Result<Pool, engine::PoolOpenError> {
    Pool::open(Arc::clone(device), Arc::new(ManualClock::new()), PoolOpenOptions::default())
}

/// Returns every base.
pub(super) fn all() -> [Base; 4] {
    [base(4096, 14, true), base(4096, 14, false), base(1024, 12, true), base(1024, 14, false)]
}

fn base(fragment_bytes: u32, block_shift: u8, is_closed: bool) -> Base {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    options.geometry.fragment_bytes = fragment_bytes;
    options.block_shift = block_shift;
    Pool::create(&shared, &ManualClock::new(), &options).expect("a pool fits");
    let pool = open_on(&shared).expect("a new pool opens");
    let pass_time = || ();
    let mut at = Ground::new(&pool, &pass_time);
    at.does("create /directory directory 755");
    for number in 0..FILES {
        let name = match number % 4 {
            0 => format!("/{number}"),
            _ => format!("/directory/{number}%{{78*150}}"),
        };
        at.does(&format!("create {name} file 755"));
        if number < WRITTEN {
            let (offset, length) = (number % 3 * 5000, 3000 * (1 + number));
            at.does(&format!("write {name} {offset} {length} {number}"));
        }
    }
    at.does(SETTLED);
    pool.checkpoint().expect("nothing fails");
    at.does(LOGGED);
    if is_closed {
        at.close_all();
        pool.close().expect("nothing fails");
    }
    Base::of(device.durable_image())
}
