//! Full pools: whatever fills them, they can be emptied, and what `df` says is what fits.

mod ahead;
mod freeing;
mod promise;
mod shape;
mod short;
mod snapshots;
mod together;
mod whiteout;

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsResult, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

use self::shape::Shape;

/// A pool on a memory device.
struct Ground {
    device: SharedDevice,
    clock: Arc<ManualClock>,
    shape: Shape,
    pool: Pool,
}

impl Ground {
    fn new(shape: &Shape) -> Ground {
        Ground::with_groups(shape, None)
    }

    /// A pool of which each group has `group_bytes`.
    fn with_groups(shape: &Shape, group_bytes: Option<u64>) -> Ground {
        let device: SharedDevice = MemoryDevice::new("memory", shape.pool_bytes);
        let clock = Arc::new(ManualClock::new());
        let mut options = PoolCreateOptions::new(shape.pool_bytes, [5; 64]);
        options.geometry.fragment_bytes = shape.fragment_bytes;
        options.geometry.segment_bytes = Some(shape.segment_bytes);
        options.geometry.group_bytes = group_bytes;
        options.block_shift = shape.block_shift;
        Pool::create(&device, clock.as_ref(), &options).expect("the shape is possible");
        Ground::open(device, clock, shape)
    }

    fn open(device: SharedDevice, clock: Arc<ManualClock>, shape: &Shape) -> Ground {
        let options = PoolOpenOptions {
            active_log_bytes: shape.active_log_bytes,
            dirty_pages: shape.dirty_pages,
            cache_bytes: shape.cache_bytes,
            ..PoolOpenOptions::default()
        };
        let pool = Pool::open(Arc::clone(&device), clock.clone(), options).expect("a pool opens");
        Ground { device, clock, shape: *shape, pool }
    }

    /// Closes the pool and opens it again.
    fn reopened(self) -> Ground {
        self.pool.close().expect("a pool closes");
        let Ground { device, clock, shape, pool } = self;
        drop(pool);
        Ground::open(device, clock, &shape)
    }

    fn make(&self, parent: Ino, name: &str, kind: FileKind) -> FsResult<Ino> {
        let new = NewInode::new(kind, 0o755);
        let made = self.pool.create(&Caller::root(), parent, name.as_bytes(), new, None)?;
        self.pool.forget(made.ino, 1);
        Ok(made.ino)
    }

    /// What `df` says once nothing is under way any more.
    fn available(&self) -> u64 {
        self.pool.sync().expect("a sync needs no room");
        self.pool.checkpoint().expect("a checkpoint needs no room");
        self.pool.tick().expect("background work needs no room");
        self.pool
            .statfs(&Caller::root(), self.pool.main_fileset())
            .expect("it is in memory")
            .available_bytes
    }

    fn defects(&self) -> Option<String> {
        self.pool.close().expect("a pool closes");
        let device = Arc::clone(&self.device);
        let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
        (!report.is_clean()).then(|| report.to_text())
    }
}
