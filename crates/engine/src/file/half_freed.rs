//! Filesets with a deleted snapshot that can't be freed, because a page is unreadable. They are
//! read-only: the walk that frees the snapshot compares it with the fileset, and is repeated at the
//! next open of the pool.

use std::sync::atomic::Ordering;

use crate::error::{FsError, FsResult};
use crate::file::OpenFileset;

impl OpenFileset {
    pub(crate) fn note_half_freed(&self) {
        self.is_half_freed.store(true, Ordering::Release);
    }

    pub(crate) fn is_half_freed(&self) -> bool {
        self.is_half_freed.load(Ordering::Acquire)
    }
}

/// Turns damage in a deleted snapshot into a warning, so that the fileset can be opened.
pub(crate) fn tolerate(finished: FsResult<()>) -> FsResult<()> {
    match finished {
        Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
            tracing::warn!(%error, "a deleted snapshot is not freed: its fileset is read-only");
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use format::fileset::FilesetName;
    use format::page::PAGE_BYTES;
    use runtime::clock::ManualClock;
    use storage::device::{AlignedBuffer, IoPurpose, MemoryDevice, SharedDevice};

    use crate::api::{Caller, FileKind, FileSystem, FsError, NewInode};
    use crate::transfer::leave::tests::part;
    use crate::{FilesetChange, Pool, PoolCreateOptions, PoolOpenOptions};

    const POOL_BYTES: u64 = 64 << 20;

    /// Goal: the pool opens, and the fileset is readable but read-only whatever its settings.
    #[test]
    fn a_damaged_snapshot_keeps_no_pool_closed() {
        let device: SharedDevice = MemoryDevice::new("pool", POOL_BYTES);
        let create = PoolCreateOptions::new(POOL_BYTES, [1; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let open = || {
            let clock = Arc::new(ManualClock::new());
            Pool::open(Arc::clone(&device), clock, PoolOpenOptions::default()).expect("it opens")
        };
        let (root, caller) = ("root".parse::<FilesetName>().expect("a name"), Caller::root());
        let make = |pool: &Pool, name: &[u8]| {
            let new = NewInode::new(FileKind::Regular, 0o644);
            pool.create(&caller, pool.root(), name, new, None).map(drop)
        };
        let pool = open();
        make(&pool, b"before").expect("there is room");
        pool.fileset_admin().create_snapshot(&root, &part("c"), [2; 16]).expect("there is room");
        make(&pool, b"after").expect("there is room");
        let place = {
            let index = pool.core().filesets.table.lock(&pool.core().store).expect("it is there");
            let slot = index.slot_of_node(root.parts(), Some(&part("c"))).expect("it is there");
            let entry = index.read_entry(&pool.core().store, slot).expect("it can be read");
            entry.table_anode().root_pointer(0).expect("the table has a page").place
        };
        let at = pool.core().store.geometry().device_offset(place, 1).expect("it is in the pool");
        pool.close().expect("nothing fails");
        drop(pool);
        let junk = AlignedBuffer::zeroed(PAGE_BYTES);
        device.write(IoPurpose::Home, at, junk).expect("it is memory");
        let pool = open();
        pool.fileset_admin()
            .delete_snapshot(&root, &part("c"))
            .expect_err("its table can't be read");
        let still = |pool: &Pool| {
            pool.lookup(&caller, pool.root(), b"after").expect("it can be read");
            let refused = make(pool, b"more");
            assert!(matches!(refused, Err(FsError::ReadOnly { .. })), "{refused:?}");
            let set = FilesetChange { quota_bytes: Some(1 << 30), ..FilesetChange::default() };
            pool.fileset_admin()
                .change_fileset(&root, &set)
                .expect("that is no change of its files");
            let refused = make(pool, b"more");
            assert!(matches!(refused, Err(FsError::ReadOnly { .. })), "{refused:?}");
            pool.close().expect("nothing fails");
        };
        still(&pool);
        drop(pool);
        still(&open());
    }
}
