//! The inodes that a per-user mount may use. Its kernel side is untrusted.
//!
//! A user that mounts in a user namespace can write to the FUSE connection directly, so a request
//! may carry any inode number, even of a file outside the mount.
//!
//! # Invariants
//!
//! - GN1: Requests are served only for the root and for inodes that a reply has named and that
//!   still have a reference.
//! - GN2: The mount releases exactly the references it has taken. A further release would drop a
//!   reference of another front. References left when the mount ends are released then.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use engine::api::FileSystem;
use parking_lot::Mutex;

use super::protocol::{FuseRequest, NodeId, NodeNumbers, ROOT_NODE};

/// Most inodes in use by a mount: 150 MB of memory here, gigabytes in the mount's kernel.
const NODES_MAX: usize = if cfg!(test) { 8 } else { 1 << 22 };

pub(super) struct ReferencedInodes {
    fs: Arc<dyn FileSystem>,
    numbers: NodeNumbers,
    counts: Mutex<HashMap<u64, u64>>,
}

impl ReferencedInodes {
    pub(super) fn new(fs: &Arc<dyn FileSystem>, numbers: NodeNumbers) -> ReferencedInodes {
        ReferencedInodes { fs: Arc::clone(fs), numbers, counts: Mutex::default() }
    }

    /// Returns whether the mount may use an inode (GN1).
    pub(super) fn has(&self, node: NodeId) -> bool {
        node == ROOT_NODE || self.counts.lock().contains_key(&node.0)
    }

    pub(super) fn has_all_of(&self, request: &FuseRequest<'_>) -> bool {
        request.nodes().iter().flatten().all(|node| self.has(*node))
    }

    pub(super) fn is_full(&self) -> bool {
        self.counts.lock().len() >= NODES_MAX
    }

    /// Counts a reference. Called before the reply with the reference is sent.
    pub(super) fn add(&self, node: NodeId) {
        *self.counts.lock().entry(node.0).or_default() += 1;
    }

    /// Removes up to `count` references. Returns the number removed (GN2).
    pub(super) fn take(&self, node: NodeId, count: u64) -> u64 {
        let mut counts = self.counts.lock();
        let Entry::Occupied(mut held) = counts.entry(node.0) else { return 0 };
        let taken = count.min(*held.get());
        *held.get_mut() -= taken;
        if *held.get() == 0 {
            held.remove();
        }
        taken
    }
}

impl Drop for ReferencedInodes {
    fn drop(&mut self) {
        for (node, count) in std::mem::take(&mut *self.counts.lock()) {
            self.fs.forget(self.numbers.ino_of(NodeId(node)), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::api::{Caller, FileKind, NewInode};
    use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
    use runtime::clock::ManualClock;
    use storage::device::{MemoryDevice, SharedDevice};

    use super::super::protocol::{FuseNode, ListedName, Listing, Reply, Sender};
    use super::super::server::FuseServer;
    use super::*;

    struct CountingListing(usize);

    impl Listing for CountingListing {
        fn add(&mut self, _: ListedName<'_>, node: Option<&FuseNode>) -> bool {
            self.0 += usize::from(node.is_some());
            true
        }
    }

    /// Goal: without FORGET, memory stays bounded. Method: lookups and a listing beyond the bound,
    /// then one FORGET.
    #[test]
    fn a_mount_has_so_many_files_at_a_time() {
        const POOL_BYTES: u64 = 16 << 20;
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let pool = Pool::open(device, Arc::new(ManualClock::new()), PoolOpenOptions::default());
        let pool = Arc::new(pool.expect("it opens"));
        let names: Vec<String> = (0..=NODES_MAX).map(|number| number.to_string()).collect();
        for name in &names {
            let new = NewInode::new(FileKind::Regular, 0o644);
            let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None);
            made.expect("there is room");
        }
        let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(&pool);
        let server = FuseServer::new(fs).acting_as(7, 7, Vec::new());
        let sender = Sender { uid: 7, gid: 7, thread: 1 };
        let look = |name: &String| {
            let request = FuseRequest::Lookup { parent: ROOT_NODE, name: name.as_bytes() };
            let mut scratch = Vec::new();
            let reply = server.answer(sender, request, &mut scratch);
            let is_refused = reply == Reply::Error(rustix::io::Errno::NFILE);
            if let Reply::Entry(node) = reply { Ok(node.id) } else { Err(is_refused) }
        };
        let list = || {
            let mut listing = CountingListing(0);
            let (node, listing_of) = (ROOT_NODE, &mut listing);
            let (cookie, with_nodes, keeps_atime) = (0, true, false);
            let request =
                FuseRequest::ReadDir { node, cookie, with_nodes, keeps_atime, listing: listing_of };
            assert_eq!(server.answer(sender, request, &mut Vec::new()), Reply::Done);
            listing.0
        };
        let found: Vec<_> = names.iter().map(look).collect();
        let (last, rest) = found.split_last().expect("there are some");
        assert!(rest.iter().all(Result::is_ok));
        assert_eq!((last, list()), (&Err(true), 0));
        let node = *rest[0].as_ref().expect("it was found");
        let forgotten = FuseRequest::Forget { node, count: 1 };
        assert_eq!(server.answer(sender, forgotten, &mut Vec::new()), Reply::Silence);
        assert!(look(&names[NODES_MAX]).is_ok(), "there is room again");
        drop(server);
        pool.close().expect("memory does not fail");
    }
}
