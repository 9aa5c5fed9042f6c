//! A fileset whose newest clone was deleted and could not be freed: a page of it can't be read.
//! Nothing may change what the walk compares, so the fileset is read-only until the walk has come
//! to its end, at an open that can read all; but it is opened, and its files can be read.

use std::sync::atomic::Ordering;

use super::Fileset;
use crate::error::{FsError, FsResult};
use runtime::planted::{self, Planted};

impl Fileset {
    /// Refuses changes from now on, until the pool is opened again.
    pub(super) fn note_half_freed(&self) {
        self.is_half_freed.store(true, Ordering::Release);
    }

    /// Whether what a clone of it alone held could not be freed.
    pub(super) fn is_half_freed(&self) -> bool {
        self.is_half_freed.load(Ordering::Acquire)
    }
}

/// One damaged clone keeps no fileset from being opened.
pub(super) fn tolerate(finished: FsResult<()>) -> FsResult<()> {
    match finished {
        Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. }))
            if !planted::is(Planted::DamagedCloneKeepsClosed) =>
        {
            tracing::warn!(%error, "a deleted clone is not freed: its fileset is read-only");
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
    use storage::device::{AlignedBuffer, MemoryDevice, Purpose, SharedDevice};

    use crate::vnode::api::{Caller, FileKind, FileSystem, FsError, NewInode};
    use crate::vnode::leave::tests::part;
    use crate::{CreateOptions, FilesetChange, OpenOptions, Pool};

    const POOL_BYTES: u64 = 64 << 20;

    /// Goal: a page of a deleted clone that can't be read keeps no pool closed: what is in the
    /// fileset is read, and nothing changes it, whatever is set.
    #[test]
    fn a_damaged_clone_keeps_no_pool_closed() {
        let device: SharedDevice = MemoryDevice::new("pool", POOL_BYTES);
        let create = CreateOptions::new(POOL_BYTES, [1; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let open = || {
            let clock = Arc::new(ManualClock::new());
            Pool::open(Arc::clone(&device), clock, OpenOptions::default()).expect("it opens")
        };
        let (root, caller) = ("root".parse::<FilesetName>().expect("a name"), Caller::root());
        let make = |pool: &Pool, name: &[u8]| {
            let new = NewInode::new(FileKind::Regular, 0o644);
            pool.create(&caller, pool.root(), name, new, None).map(drop)
        };
        let pool = open();
        make(&pool, b"before").expect("there is room");
        pool.create_clone(&root, &part("c"), [2; 16]).expect("there is room");
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
        device.write(Purpose::Home, at, junk).expect("it is memory");
        let pool = open();
        pool.delete_clone(&root, &part("c")).expect_err("its table can't be read");
        let still = |pool: &Pool| {
            pool.lookup(&caller, pool.root(), b"after").expect("it can be read");
            let refused = make(pool, b"more");
            assert!(matches!(refused, Err(FsError::ReadOnly { .. })), "{refused:?}");
            let set = FilesetChange { quota_bytes: Some(1 << 30), ..FilesetChange::default() };
            pool.change_fileset(&root, &set).expect("that is no change of its files");
            let refused = make(pool, b"more");
            assert!(matches!(refused, Err(FsError::ReadOnly { .. })), "{refused:?}");
            pool.close().expect("nothing fails");
        };
        still(&pool);
        drop(pool);
        still(&open());
    }
}
