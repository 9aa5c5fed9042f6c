//! A fileset is held still: all that was accepted is in its maps, and nobody changes it.
//!
//! That is the moment at which a clone takes it. The writers of the fileset wait meanwhile, so
//! little is left to do then: what was accepted before is installed first, and what came in
//! between, with room that was reserved for it, once the gate is closed (decision 0047).

use format::fileset::NamePart;

use super::flush::Changes;
use super::{Core, Fileset};
use crate::error::{FsError, FsResult};
use crate::gate::Closed;
use crate::store::Pot;

/// Large changes that may be needed while the gate is closed: each enters up to 32 small files.
const POT_CHANGES: usize = 4;
/// Times that a fileset is flushed to be held still, before the answer is that it is too busy.
const TRIES: usize = 8;

/// A fileset that is held still until this is dropped.
#[derive(Debug)]
pub struct Still<'c> {
    /// Room for what its holder does; given back after the gate is open.
    _pot: Pot<'c>,
    _closed: Closed<'c>,
}

impl Core {
    /// As [`Core::hold_still`], of the fileset of this name.
    pub(crate) fn hold_still_named(&self, path: &[NamePart]) -> FsResult<Still<'_>> {
        self.check_writable()?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.hold_still(self.open_fileset(slot)?)
    }

    /// Puts all that was accepted of a fileset in its maps and keeps everybody out who would change
    /// it. Called with no lock held.
    pub(crate) fn hold_still<'c>(&'c self, fileset: &'c Fileset) -> FsResult<Still<'c>> {
        let slot = fileset.anodes.slot;
        for _ in 0..TRIES {
            self.segments.seal();
            self.install_waiting()?;
            self.install_dirty(slot, &mut Changes::Waiting)?;
            let mut pot = self.store.fill_pot(POT_CHANGES)?;
            let closed = fileset.gate.close();
            self.segments.seal();
            if self.install_dirty(slot, &mut Changes::Pot(&mut pot))? {
                return Ok(Still { _pot: pot, _closed: closed });
            }
        }
        let name = self.filesets.table.lock(&self.store)?.path_of(slot);
        let by = "it changes faster than it can be written: try again when it is quieter";
        Err(FsError::FilesetInUse { name, by: by.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use runtime::clock::ManualClock;
    use runtime::prng::Prng;
    use storage::device::{Device, MemoryDevice, Operation, Purpose, SharedDevice};

    use crate::convert::index_wide;
    use crate::vnode::FilesOptions;
    use crate::vnode::api::{Caller, FileKind, FileSystem, Ino, NewInode, RenameMode, SetAttr};
    use crate::{CreateOptions, OpenOptions, Pool};

    const POOL_BYTES: u64 = 64 << 20;
    const NAMES: u64 = 40;

    type Tree = BTreeMap<Vec<u8>, (u64, u16, Vec<u8>)>;

    fn open(device: SharedDevice) -> Pool {
        let files = FilesOptions { no_atime: true, ..FilesOptions::default() };
        let options = OpenOptions { files, ..OpenOptions::default() };
        Pool::open(device, Arc::new(ManualClock::new()), options).expect("it opens")
    }

    /// One operation on a few names; most that can go wrong do, and it does not matter.
    fn change_something(pool: &Pool, prng: &mut Prng) {
        let caller = Caller::root();
        let name = |number: u64| format!("f{number}").into_bytes();
        let (one, other) = (name(prng.below(NAMES)), name(prng.below(NAMES)));
        let root = pool.root();
        let found = pool.lookup(&caller, root, &one);
        match (prng.below(8), found) {
            (0, Ok(_)) => drop(pool.unlink(&caller, root, &one, None)),
            (1, Ok(_)) => {
                drop(pool.rename(&caller, (root, &one), (root, &other), RenameMode::Replace, None));
            }
            (2, Ok(file)) => {
                let set = SetAttr { size_bytes: Some(prng.below(30_000)), ..SetAttr::default() };
                drop(pool.setattr(&caller, file.ino, &set, None));
            }
            (3, Ok(file)) => drop(pool.fsync(&caller, file.ino, false)),
            (_, Ok(file)) => {
                let length = if prng.below(2) == 0 { 90 } else { prng.below(20_000) };
                let data = vec![prng.next_u64().to_le_bytes()[0]; index_wide(length)];
                drop(pool.write(&caller, file.ino, prng.below(40_000) * (length / 100), &data));
            }
            _ => {
                let new = NewInode::new(FileKind::Regular, 0o644);
                drop(pool.create(&caller, root, &one, new, None));
            }
        }
    }

    fn tree_of(pool: &Pool) -> Tree {
        let caller = Caller::root();
        let mut names = Vec::new();
        let each = &mut |entry: &crate::vnode::api::DirEntry| {
            names.push((entry.name.clone(), entry.ino));
            true
        };
        pool.readdir(&caller, pool.root(), 0, each).expect("the root is there");
        let is_file = |(name, _): &(Vec<u8>, Ino)| !name.starts_with(b".");
        let content = |(name, ino): (Vec<u8>, Ino)| {
            let attr = pool.getattr(&caller, ino).expect("it is there");
            let mut bytes = Vec::new();
            pool.read(&caller, ino, 0, 1 << 20, &mut bytes).expect("it can be read");
            (name, (attr.size_bytes, attr.mode, bytes))
        };
        names.into_iter().filter(is_file).map(content).collect()
    }

    fn copy_of(device: &dyn Device) -> SharedDevice {
        let copy = MemoryDevice::new("copy", POOL_BYTES);
        for offset in (0..POOL_BYTES).step_by(1 << 20) {
            let bytes = device.read(Purpose::Check, offset, 1 << 20).expect("memory does not fail");
            let write = Operation::Write { offset, data: vec![bytes.into()] };
            copy.submit(Purpose::Check, write).wait().expect("memory does not fail");
        }
        copy
    }

    /// Goal: what is in the maps when a fileset is held still is all that was accepted. Method:
    /// three threads change files; now and then the fileset is held still and what its classes have
    /// logged is committed; the device as it is then, opened as after a crash, has the tree that
    /// programs see at that moment.
    #[test]
    fn a_fileset_that_is_held_still_has_all_that_was_accepted_in_its_maps() {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let options = CreateOptions::new(POOL_BYTES, [7; 64]);
        Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
        let pool = open(Arc::clone(&device));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (pool, is_over) = (&pool, &is_over);
                scope.spawn(move || {
                    let mut prng = Prng::from_seed(seed);
                    while !is_over.load(Ordering::Relaxed) {
                        change_something(pool, &mut prng);
                    }
                });
            }
            for _ in 0..20 {
                let core = pool.core();
                let still = core.hold_still(&core.filesets.main).expect("a few files");
                let slot = core.filesets.main_slot();
                let dirty = core.table.dirty_of(slot);
                let tree = tree_of(&pool);
                core.store.journal.commit_all().expect("memory does not fail");
                let copy = copy_of(device.as_ref());
                drop(still);
                let found = tree_of(&open(copy));
                if !dirty.is_empty() || found != tree {
                    is_over.store(true, Ordering::Relaxed);
                    let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
                    assert_eq!(names(&found), names(&tree), "after a crash, and as it was");
                    let differ = tree.iter().find(|(name, file)| found.get(*name) != Some(file));
                    panic!("{} dirty; {:?}", dirty.len(), differ.map(|(name, _)| name));
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
