//! A pool that is copied to a device with larger sectors, as `cp` does from ext4 to tmpfs.

use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::{content, defects, find, make, new_pool, open, read};

const FILE_BYTES: usize = 9_000;

fn device_of_sectors(image: &Image, sector_bytes: u32) -> Arc<SimDevice> {
    let options = SimOptions { sector_bytes, ..SimOptions::default() };
    SimDevice::open(image.clone(), options)
}

/// Makes and syncs files, so that the log has chunks, and leaves an orphan if asked.
fn use_pool(device: &Arc<SimDevice>, names: &[String], is_closed: bool) -> Image {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let pool = open(&shared).expect("it opens on any sectors");
    for (number, name) in (0..).zip(names) {
        let ino = make(&pool, name).expect("there is room");
        pool.write(&Caller::root(), ino, 0, &content(number, FILE_BYTES)).expect("there is room");
        pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
    }
    if is_closed {
        pool.close().expect("nothing fails");
    } else {
        let held = make(&pool, "held").expect("there is room");
        pool.lookup(&Caller::root(), pool.root(), b"held").expect("it was made");
        pool.unlink(&Caller::root(), pool.root(), b"held", None).expect("it is there");
        pool.fsync(&Caller::root(), held, false).expect("nothing fails");
    }
    device.durable_image()
}

/// Goal: a pool goes on wherever it is copied, closed or after a crash with an orphan. Method: it
/// is used on sectors of 512 bytes, then on sectors of 4 KiB, then on 512 again; the log is left at
/// many positions.
#[test]
fn a_pool_goes_on_where_sectors_are_larger() {
    for count in 1..12_u64 {
        for is_closed in [true, false] {
            let name = |life: u64, number: u64| format!("life {life} file {number}");
            let mut image = new_pool();
            for (life, sector_bytes) in (0..).zip([512, 4096, 512, 4096]) {
                let names: Vec<String> = (0..count).map(|number| name(life, number)).collect();
                let device = device_of_sectors(&image, sector_bytes);
                image = use_pool(&device, &names, is_closed);
            }
            let shared: SharedDevice = device_of_sectors(&image, 4096);
            let pool = open(&shared).expect("it opens");
            for life in 0..4 {
                for number in 0..count {
                    let name = name(life, number);
                    let found = read(&pool, &name).expect("it was synced");
                    assert!(found == content(number, FILE_BYTES), "{name}");
                }
            }
            assert!(find(&pool, "held").is_err(), "it was unlinked");
            pool.close().expect("nothing fails");
            assert_eq!(defects(&shared), None, "{count} files, closed: {is_closed}");
        }
    }
}
