//! What a mount was given, if the kernel behind it is not believed.
//!
//! Who mounts in a user namespace may read the connection himself, and say any number in his
//! kernel's place, also that of a file to which no path leads him.
//!
//! # Invariants
//!
//! - GN1: No file is asked about but the root and those that a reply has named, and that have a
//!   reference still.
//! - GN2: The mount gives back as many references as it has taken: no more, for others hold some on
//!   the same files, and no fewer, for the last go when it has ended.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use engine::vnode::api::FileSystem;
use parking_lot::Mutex;

use super::protocol::{NodeId, NodeNumbers, ROOT_NODE, Request};

/// Most files that a mount has at a time: 150 MB of memory here, gigabytes in its kernel.
const NODES_MAX: usize = if cfg!(test) { 8 } else { 1 << 22 };

/// How many references a mount has on which file.
pub(super) struct Given {
    fs: Arc<dyn FileSystem>,
    numbers: NodeNumbers,
    counts: Mutex<HashMap<u64, u64>>,
}

impl Given {
    /// Returns none, of `fs`.
    pub(super) fn new(fs: &Arc<dyn FileSystem>, numbers: NodeNumbers) -> Given {
        Given { fs: Arc::clone(fs), numbers, counts: Mutex::default() }
    }

    /// Whether the mount may ask about a file (GN1).
    pub(super) fn has(&self, node: NodeId) -> bool {
        node == ROOT_NODE || self.counts.lock().contains_key(&node.0)
    }

    /// Whether it may ask about all that `request` does.
    pub(super) fn has_all_of(&self, request: &Request<'_>) -> bool {
        request.nodes().iter().flatten().all(|node| self.has(*node))
    }

    /// Whether it has so many that it gets no more.
    pub(super) fn is_full(&self) -> bool {
        self.counts.lock().len() >= NODES_MAX
    }

    /// Counts a reference, before the reply goes out that has it.
    pub(super) fn add(&self, node: NodeId) {
        *self.counts.lock().entry(node.0).or_default() += 1;
    }

    /// Takes `count` references back; returns how many of them there were (GN2).
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

impl Drop for Given {
    fn drop(&mut self) {
        for (node, count) in std::mem::take(&mut *self.counts.lock()) {
            self.fs.forget(self.numbers.ino_of(NodeId(node)), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::vnode::api::{Caller, FileKind, NewInode};
    use engine::{CreateOptions, OpenOptions, Pool};
    use runtime::clock::ManualClock;
    use storage::device::{MemoryDevice, SharedDevice};

    use super::super::protocol::{ListedName, Listing, Node, Reply, Sender};
    use super::super::server::Server;
    use super::*;

    /// Counts the names that come with a reference.
    struct Counted(usize);

    impl Listing for Counted {
        fn add(&mut self, _: ListedName<'_>, node: Option<&Node>) -> bool {
            self.0 += usize::from(node.is_some());
            true
        }
    }

    /// Goal: a kernel that forgets nothing takes a bounded memory. Method: more files than that, by
    /// lookups and by a listing; then one is forgotten.
    #[test]
    fn a_mount_has_so_many_files_at_a_time() {
        const POOL_BYTES: u64 = 16 << 20;
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let create = CreateOptions::new(POOL_BYTES, [3; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let pool = Pool::open(device, Arc::new(ManualClock::new()), OpenOptions::default());
        let pool = Arc::new(pool.expect("it opens"));
        let names: Vec<String> = (0..=NODES_MAX).map(|number| number.to_string()).collect();
        for name in &names {
            let new = NewInode::new(FileKind::Regular, 0o644);
            let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None);
            made.expect("there is room");
        }
        let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(&pool);
        let server = Server::new(fs).acting_as(7, 7, Vec::new());
        let sender = Sender { uid: 7, gid: 7, thread: 1 };
        let look = |name: &String| {
            let request = Request::Lookup { parent: ROOT_NODE, name: name.as_bytes() };
            let mut scratch = Vec::new();
            let reply = server.answer(sender, request, &mut scratch);
            let is_refused = reply == Reply::Error(rustix::io::Errno::NFILE);
            if let Reply::Entry(node) = reply { Ok(node.id) } else { Err(is_refused) }
        };
        let list = || {
            let mut listing = Counted(0);
            let (node, listing_of) = (ROOT_NODE, &mut listing);
            let (cookie, with_nodes, keeps_atime) = (0, true, false);
            let request =
                Request::ReadDir { node, cookie, with_nodes, keeps_atime, listing: listing_of };
            assert_eq!(server.answer(sender, request, &mut Vec::new()), Reply::Done);
            listing.0
        };
        let found: Vec<_> = names.iter().map(look).collect();
        let (last, rest) = found.split_last().expect("there are some");
        assert!(rest.iter().all(Result::is_ok));
        assert_eq!((last, list()), (&Err(true), 0));
        let node = *rest[0].as_ref().expect("it was found");
        let forgotten = Request::Forget { node, count: 1 };
        assert_eq!(server.answer(sender, forgotten, &mut Vec::new()), Reply::Silence);
        assert!(look(&names[NODES_MAX]).is_ok(), "there is room again");
        drop(server);
        pool.close().expect("memory does not fail");
    }
}
