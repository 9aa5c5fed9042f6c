//! What people see of the difference of two nodes: which paths came, went, moved, and which files
//! hold something else.
//!
//! The names that two versions of a directory have are compared page by page, and a name that left
//! one place and came to another with the same file moved. A directory that moved takes what is in
//! it along without a word. What this keeps in memory grows with what differs, not with what is
//! there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};

use format::anode::{Anode, AnodeKind, ROOT_ANODE, StorageMode};
use format::directory::dirents;
use format::fileset::{Fileset as Entry, NamePart};
use format::ids::AnodeNo;
use format::page::PageKind;
use format::pointer::BlockPointer;

use super::Core;
use super::api::FileKind;
use super::kind_of;
use crate::container::{Versions, content_owner, is_one_file};
use crate::dir;
use crate::error::{FsError, FsResult};
use crate::fileset::diff::{ChangedAnode, NodeView};
use crate::fileset::table::Index;

/// Ranges of one file that are told apart; what lies behind the last is part of it.
pub const DIFF_RANGES_MAX: usize = 1024;
/// Directories one inside the other, at most, on the way to the root: more are a loop.
const DEPTH_MAX: usize = 4096;

/// What became of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Became {
    /// The later node has the name, the earlier one does not.
    Created,
    /// The earlier node has the name, the later one does not.
    Removed,
    /// The file had another name, this one.
    Renamed {
        /// The earlier name, as a path.
        from: Vec<u8>,
    },
    /// The file has the name in both, or got it from one of the others; something else changed.
    Modified {
        /// Bytes that the later node has elsewhere: of its first bytes as many as it has.
        ranges: Vec<Range<u64>>,
        /// Whether its attributes differ: mode, owner, times, extended attributes.
        has_attributes: bool,
        /// Its size before.
        size_before: u64,
        /// Its size now.
        size_after: u64,
    },
}

/// One path that two nodes have differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The path from the root of the fileset, without a slash in front.
    pub path: Vec<u8>,
    /// What sort of file it leads to.
    pub kind: FileKind,
    /// What became of it.
    pub became: Became,
}

/// A name that one of the nodes has and the other has not, or for another file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    target: (u64, u64),
    directory: u64,
    name: Vec<u8>,
    kind: AnodeKind,
}

/// Names of directories, as a node has them, as far as somebody asked.
struct Paths<'n> {
    core: &'n Core,
    node: &'n NodeView,
    directories: BTreeMap<u64, Vec<u8>>,
}

/// What two nodes were found to have differently.
#[derive(Default)]
struct Found {
    removed: Vec<Name>,
    added: Vec<Name>,
    /// Files of both: kind, and what changed.
    modified: BTreeMap<u64, (AnodeKind, Became)>,
    /// Files of which only a container of attributes was seen to change.
    touched: Vec<AnodeNo>,
}

/// Keeps a clone, or what a deletion would give back of it, while somebody reads its maps.
#[derive(Debug)]
pub(crate) struct Pinned<'c> {
    core: &'c Core,
    pub(crate) slot: u32,
    pub(crate) entry: Entry,
    pub(crate) node: NodeView,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        // The index was read when it was pinned.
        if let Ok(mut index) = self.core.filesets.table.lock(&self.core.store) {
            index.unpin(self.slot);
        }
    }
}

impl Core {
    /// Returns a clone to be read from its entry on; it can't be deleted until this is dropped.
    pub(crate) fn pin_clone(&self, path: &[NamePart], clone: &NamePart) -> FsResult<Pinned<'_>> {
        let mut index = self.filesets.table.lock(&self.store)?;
        let slot = index.slot_of_node(path, Some(clone))?;
        self.pin_slot(&mut index, slot)
    }

    /// As [`Core::pin_clone`], of the one in `slot`.
    pub(super) fn pin_slot(&self, index: &mut Index, slot: u32) -> FsResult<Pinned<'_>> {
        let entry = index.read_entry(&self.store, slot)?;
        index.pin(slot);
        Ok(Pinned { core: self, slot, node: NodeView::of(&entry), entry })
    }

    /// Tells of each path that two nodes of one family have differently, by rising path.
    pub(crate) fn differences(
        &self,
        before: &NodeView,
        after: &NodeView,
        tell: &mut dyn FnMut(&Difference) -> ControlFlow<()>,
    ) -> FsResult<()> {
        if before.family != after.family {
            return Err(FsError::Invalid);
        }
        let mut found = Found::default();
        let _ = self.store.differing_anodes(Some(before), after, AnodeNo(0), &mut |changed| {
            self.note_changed(changed, &mut found)?;
            Ok(ControlFlow::Continue(()))
        })?;
        for owner in std::mem::take(&mut found.touched) {
            let files = (before.anode(&self.store, owner)?, after.anode(&self.store, owner)?);
            if let (Some(before), Some(after)) = files {
                self.note_modified(owner, (&before, &after), true, &mut found)?;
            }
        }
        let mut told = Vec::new();
        let mut paths = (Paths::new(self, before), Paths::new(self, after));
        moves(&mut paths, &mut found, &mut told)?;
        let (mut known, mut unknown) = (BTreeMap::new(), BTreeSet::new());
        for &number in found.modified.keys() {
            match paths.1.path_by_parents(AnodeNo(number))? {
                Some(path) => drop(known.insert(number, path)),
                None => drop(unknown.insert(number)),
            }
        }
        known.extend(paths.1.search(&unknown)?);
        for (number, (kind, became)) in found.modified {
            let path = known.remove(&number).unwrap_or_else(|| number_as_path(AnodeNo(number)));
            told.push(Difference { path, kind: kind_of(kind), became });
        }
        // What went before what came in its place.
        told.sort_by(|a, b| (&a.path, order(&a.became)).cmp(&(&b.path, order(&b.became))));
        for difference in &told {
            if tell(difference).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn note_changed(&self, changed: &ChangedAnode, found: &mut Found) -> FsResult<()> {
        let (before, after) = (changed.before.as_ref(), changed.after.as_ref());
        let is_one = match (before, after) {
            (Some(before), Some(after)) => is_one_file(before, after),
            _ => false,
        };
        let container = after.or(before).filter(|it| it.kind == AnodeKind::Internal);
        if let Some(container) = container {
            found.touched.push(container.parent);
            return Ok(());
        }
        if is_one {
            self.note_names((before, after), found)?;
        } else {
            self.note_names((before, None), found)?;
            self.note_names((None, after), found)?;
        }
        match (before, after) {
            (Some(before), Some(after)) if is_one => {
                self.note_modified(changed.number, (before, after), false, found)
            }
            _ => Ok(()),
        }
    }

    /// Notes the names that two versions of a directory do not share.
    fn note_names(
        &self,
        (before, after): (Option<&Anode>, Option<&Anode>),
        found: &mut Found,
    ) -> FsResult<()> {
        let is_directory = |anode: &&Anode| anode.kind == AnodeKind::Directory;
        let (before, after) = (before.filter(is_directory), after.filter(is_directory));
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let _ = self.store.differing_pages(Versions::new(before, after), 0, &mut |page| {
            self.names_in(before, page.index, page.before, &mut removed)?;
            self.names_in(after, page.index, page.after, &mut added)?;
            Ok(ControlFlow::Continue(()))
        })?;
        // A name may have gone from page to page as they split.
        removed.sort();
        added.sort();
        let is_in = |all: &[Name], name: &Name| all.binary_search(name).is_ok();
        found.removed.extend(removed.iter().filter(|name| !is_in(&added, name)).cloned());
        found.added.extend(added.into_iter().filter(|name| !is_in(&removed, name)));
        Ok(())
    }

    fn names_in(
        &self,
        directory: Option<&Anode>,
        index: u64,
        pointer: Option<BlockPointer>,
        names: &mut Vec<Name>,
    ) -> FsResult<()> {
        let (Some(anode), Some(pointer)) = (directory, pointer) else { return Ok(()) };
        let owner = content_owner(anode, index);
        let page = self.store.view(None, pointer.place, PageKind::Directory, owner)?;
        names.extend(dirents(&page[..]).map(|dirent| Name {
            target: (dirent.anode.0, dirent.generation.0),
            directory: anode.number.0,
            name: dirent.name.to_vec(),
            kind: dirent.kind,
        }));
        Ok(())
    }

    /// Notes what changed of a file that both have.
    fn note_modified(
        &self,
        number: AnodeNo,
        (before, after): (&Anode, &Anode),
        is_touched: bool,
        found: &mut Found,
    ) -> FsResult<()> {
        let ranges = self.ranges_of(before, after)?;
        let is_directory = after.kind == AnodeKind::Directory;
        let kept = |anode: &Anode| {
            let own = (anode.mode, anode.uid, anode.gid, anode.project, anode.rdev);
            let times = (!is_directory).then_some(anode.mtime);
            (own, times, anode.attributes, anode.xattr, anode.acl)
        };
        let has_attributes = is_touched || kept(before) != kept(after);
        let is_same_size = is_directory || before.size_bytes == after.size_bytes;
        if ranges.is_empty() && !has_attributes && is_same_size {
            return Ok(());
        }
        let (size_before, size_after) = (before.size_bytes, after.size_bytes);
        let became = Became::Modified { ranges, has_attributes, size_before, size_after };
        found.modified.insert(number.0, (after.kind, became));
        Ok(())
    }

    fn ranges_of(&self, before: &Anode, after: &Anode) -> FsResult<Vec<Range<u64>>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut add = |range: Range<u64>| match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        };
        if !matches!(after.kind, AnodeKind::Regular | AnodeKind::Symlink) {
            return Ok(ranges);
        }
        if after.storage == StorageMode::Inline {
            if after.size_bytes > 0 && (before.storage, before.root) != (after.storage, after.root)
            {
                add(0..after.size_bytes);
            }
            return Ok(ranges);
        }
        let _ = self.store.differing_ranges(
            Versions::new(Some(before), Some(after)),
            0,
            &mut |it| {
                add(it.bytes);
                Ok(ControlFlow::Continue(()))
            },
        )?;
        if let Some(end) = ranges.last().map(|last| last.end) {
            ranges.truncate(DIFF_RANGES_MAX);
            ranges.last_mut().into_iter().for_each(|last| last.end = end);
        }
        Ok(ranges)
    }
}

fn order(became: &Became) -> u8 {
    match became {
        Became::Removed => 0,
        Became::Renamed { .. } => 1,
        Became::Created => 2,
        Became::Modified { .. } => 3,
    }
}

/// Makes of names that left and names that came the paths that went, moved and came.
fn moves(
    (before, after): &mut (Paths<'_>, Paths<'_>),
    found: &mut Found,
    told: &mut Vec<Difference>,
) -> FsResult<()> {
    let (mut removed, mut added) = (std::mem::take(&mut found.removed), Vec::new());
    std::mem::swap(&mut added, &mut found.added);
    removed.sort();
    added.sort();
    let mut removed = removed.into_iter().peekable();
    for name in added {
        while let Some(old) = removed.next_if(|old| old.target < name.target) {
            told.push(before.difference(&old, Became::Removed)?);
        }
        match removed.next_if(|old| old.target == name.target) {
            Some(old) => {
                let from = before.path_in(&old)?;
                told.push(after.difference(&name, Became::Renamed { from })?);
            }
            None => told.push(after.difference(&name, Became::Created)?),
        }
    }
    for old in removed {
        told.push(before.difference(&old, Became::Removed)?);
    }
    Ok(())
}

impl<'n> Paths<'n> {
    fn new(core: &'n Core, node: &'n NodeView) -> Paths<'n> {
        Paths { core, node, directories: BTreeMap::new() }
    }

    fn difference(&mut self, name: &Name, became: Became) -> FsResult<Difference> {
        Ok(Difference { path: self.path_in(name)?, kind: kind_of(name.kind), became })
    }

    fn path_in(&mut self, name: &Name) -> FsResult<Vec<u8>> {
        let directory = self.path_of(AnodeNo(name.directory))?;
        Ok(joined(directory, &name.name))
    }

    fn path_of(&mut self, directory: AnodeNo) -> FsResult<Vec<u8>> {
        let path = self.path_by_parents(directory)?;
        Ok(path.unwrap_or_else(|| number_as_path(directory)))
    }

    /// Returns the path that parents lead to. Of a file with many names the directory that it names
    /// as its parent may have lost its name: then there is none.
    fn path_by_parents(&mut self, number: AnodeNo) -> FsResult<Option<Vec<u8>>> {
        let (mut at, mut names) = (number, Vec::new());
        let mut path = loop {
            if at == ROOT_ANODE {
                break Vec::new();
            }
            if let Some(known) = self.directories.get(&at.0) {
                break known.clone();
            }
            let store = &self.core.store;
            let Some(anode) = self.node.anode(store, at)? else { return Ok(None) };
            let parent = self.node.anode(store, anode.parent)?;
            let parent = parent.filter(|it| it.kind == AnodeKind::Directory);
            let Some(parent) = parent else { return Ok(None) };
            let Some(name) = dir::name_of(store, &parent, at)? else { return Ok(None) };
            names.push((at, anode.kind, name));
            at = parent.number;
            if names.len() > DEPTH_MAX {
                return Ok(None);
            }
        };
        for (at, kind, name) in names.into_iter().rev() {
            path = joined(path, &name);
            if kind == AnodeKind::Directory {
                self.directories.insert(at.0, path.clone());
            }
        }
        Ok(Some(path))
    }

    /// Returns a path of each of `wanted`: looks through all directories, once for all.
    fn search(&mut self, wanted: &BTreeSet<u64>) -> FsResult<BTreeMap<u64, Vec<u8>>> {
        let mut names: BTreeMap<u64, Name> = BTreeMap::new();
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (core, node) = (self.core, self.node);
        let _ = core.store.differing_anodes(None, node, AnodeNo(0), &mut |changed| {
            let mut found = Found::default();
            core.note_names((None, changed.after.as_ref()), &mut found)?;
            let found = found.added.into_iter().filter(|name| wanted.contains(&name.target.0));
            names.extend(found.map(|name| (name.target.0, name)));
            let is_all = names.len() == wanted.len();
            Ok(if is_all { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        names.into_iter().map(|(number, name)| Ok((number, self.path_in(&name)?))).collect()
    }
}

fn number_as_path(number: AnodeNo) -> Vec<u8> {
    format!("(inode {})", number.0).into_bytes()
}

fn joined(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}
