//! Differences between two nodes of a family, by path.
//!
//! Directories are compared page by page. If a file loses a name in one place and gets one in
//! another, that is a rename; the content of a renamed directory is not listed. Memory is
//! proportional to the differences.

use crate::file::Transfers;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};

use format::anode::{Anode, AnodeKind, ROOT_ANODE, StorageMode};
use format::directory::dirents;
use format::ids::AnodeNo;
use format::page::PageKind;
use format::pointer::BlockPointer;

use crate::api::FileKind;
use crate::container::{ContainerVersions, content_owner, is_one_file};
use crate::dir;
use crate::error::{FsError, FsResult};
use crate::file::{Core, kind_of};
use crate::fileset_table::diff::{ChangedAnode, NodeView};

/// Most ranges reported for one file; the last one covers all further changes.
pub const DIFF_RANGES_MAX: usize = 1024;
/// Deepest nesting of directories; beyond it the parents form a loop.
const DEPTH_MAX: usize = 4096;

/// Kind of difference at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Only the later node has the name.
    Created,
    /// Only the earlier node has the name.
    Removed,
    /// The file was renamed.
    Renamed {
        /// Path in the earlier node.
        from: Vec<u8>,
    },
    /// Both nodes have the file, perhaps under different names.
    Modified {
        /// Changed bytes in the later node, up to [`DIFF_RANGES_MAX`] ranges.
        ranges: Vec<Range<u64>>,
        /// Whether mode, owner, times or extended attributes differ.
        has_attributes: bool,
        /// Size in the earlier node.
        size_before: u64,
        /// Size in the later node.
        size_after: u64,
    },
}

/// One path that differs between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Path from the root of the fileset, without a leading slash.
    pub path: Vec<u8>,
    /// Kind of the file.
    pub kind: FileKind,
    /// Kind of difference.
    pub became: DifferenceKind,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ComparedName {
    target: (u64, u64),
    directory: u64,
    name: Vec<u8>,
    kind: AnodeKind,
}

struct DirectoryPaths<'n> {
    core: &'n Core,
    node: &'n NodeView,
    directories: BTreeMap<u64, Vec<u8>>,
}

#[derive(Default)]
struct NodeDifferences {
    removed: Vec<ComparedName>,
    added: Vec<ComparedName>,
    modified: BTreeMap<u64, (AnodeKind, DifferenceKind)>,
    /// Files of which only the attribute container has changed.
    touched: Vec<AnodeNo>,
}

impl<'c> Transfers<'c> {
    pub(crate) fn differences(
        &self,
        before: &NodeView,
        after: &NodeView,
        tell: &mut dyn FnMut(&Difference) -> ControlFlow<()>,
    ) -> FsResult<()> {
        if before.family != after.family {
            return Err(FsError::Invalid);
        }
        let mut found = NodeDifferences::default();
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
        let mut paths = (DirectoryPaths::new(self, before), DirectoryPaths::new(self, after));
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
        // At one path, a removal precedes the replacement.
        told.sort_by(|a, b| (&a.path, order(&a.became)).cmp(&(&b.path, order(&b.became))));
        for difference in &told {
            if tell(difference).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn note_changed(&self, changed: &ChangedAnode, found: &mut NodeDifferences) -> FsResult<()> {
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

    /// Notes the names that only one of the two versions of a directory has.
    fn note_names(
        &self,
        (before, after): (Option<&Anode>, Option<&Anode>),
        found: &mut NodeDifferences,
    ) -> FsResult<()> {
        let is_directory = |anode: &&Anode| anode.kind == AnodeKind::Directory;
        let (before, after) = (before.filter(is_directory), after.filter(is_directory));
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let _ =
            self.store.differing_pages(ContainerVersions::new(before, after), 0, &mut |page| {
                self.names_in(before, page.index, page.before, &mut removed)?;
                self.names_in(after, page.index, page.after, &mut added)?;
                Ok(ControlFlow::Continue(()))
            })?;
        // Names that a page split moved are in both lists, and cancel out.
        removed.sort();
        added.sort();
        let is_in = |all: &[ComparedName], name: &ComparedName| all.binary_search(name).is_ok();
        found.removed.extend(removed.iter().filter(|name| !is_in(&added, name)).cloned());
        found.added.extend(added.into_iter().filter(|name| !is_in(&removed, name)));
        Ok(())
    }

    fn names_in(
        &self,
        directory: Option<&Anode>,
        index: u64,
        pointer: Option<BlockPointer>,
        names: &mut Vec<ComparedName>,
    ) -> FsResult<()> {
        let (Some(anode), Some(pointer)) = (directory, pointer) else { return Ok(()) };
        let owner = content_owner(anode, index);
        let page = self.store.view(None, pointer.place, PageKind::Directory, owner)?;
        names.extend(dirents(&page[..]).map(|dirent| ComparedName {
            target: (dirent.anode.0, dirent.generation.0),
            directory: anode.number.0,
            name: dirent.name.to_vec(),
            kind: dirent.kind,
        }));
        Ok(())
    }

    fn note_modified(
        &self,
        number: AnodeNo,
        (before, after): (&Anode, &Anode),
        is_touched: bool,
        found: &mut NodeDifferences,
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
        let became = DifferenceKind::Modified { ranges, has_attributes, size_before, size_after };
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
            ContainerVersions::new(Some(before), Some(after)),
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

fn order(became: &DifferenceKind) -> u8 {
    match became {
        DifferenceKind::Removed => 0,
        DifferenceKind::Renamed { .. } => 1,
        DifferenceKind::Created => 2,
        DifferenceKind::Modified { .. } => 3,
    }
}

fn moves(
    (before, after): &mut (DirectoryPaths<'_>, DirectoryPaths<'_>),
    found: &mut NodeDifferences,
    told: &mut Vec<Difference>,
) -> FsResult<()> {
    let (mut removed, mut added) = (std::mem::take(&mut found.removed), Vec::new());
    std::mem::swap(&mut added, &mut found.added);
    removed.sort();
    added.sort();
    let mut removed = removed.into_iter().peekable();
    for name in added {
        while let Some(old) = removed.next_if(|old| old.target < name.target) {
            told.push(before.difference(&old, DifferenceKind::Removed)?);
        }
        match removed.next_if(|old| old.target == name.target) {
            Some(old) => {
                let from = before.path_in(&old)?;
                told.push(after.difference(&name, DifferenceKind::Renamed { from })?);
            }
            None => told.push(after.difference(&name, DifferenceKind::Created)?),
        }
    }
    for old in removed {
        told.push(before.difference(&old, DifferenceKind::Removed)?);
    }
    Ok(())
}

impl<'n> DirectoryPaths<'n> {
    fn new(core: &'n Core, node: &'n NodeView) -> DirectoryPaths<'n> {
        DirectoryPaths { core, node, directories: BTreeMap::new() }
    }

    fn difference(&mut self, name: &ComparedName, became: DifferenceKind) -> FsResult<Difference> {
        Ok(Difference { path: self.path_in(name)?, kind: kind_of(name.kind), became })
    }

    fn path_in(&mut self, name: &ComparedName) -> FsResult<Vec<u8>> {
        let directory = self.path_of(AnodeNo(name.directory))?;
        Ok(joined(directory, &name.name))
    }

    fn path_of(&mut self, directory: AnodeNo) -> FsResult<Vec<u8>> {
        let path = self.path_by_parents(directory)?;
        Ok(path.unwrap_or_else(|| number_as_path(directory)))
    }

    /// Returns the path along the parents in anodes. `None` if the parent no longer has the name,
    /// which can happen to a file with several names.
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

    fn search(&mut self, wanted: &BTreeSet<u64>) -> FsResult<BTreeMap<u64, Vec<u8>>> {
        let mut names: BTreeMap<u64, ComparedName> = BTreeMap::new();
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (core, node) = (self.core, self.node);
        let _ = core.store.differing_anodes(None, node, AnodeNo(0), &mut |changed| {
            let mut found = NodeDifferences::default();
            core.transfers().note_names((None, changed.after.as_ref()), &mut found)?;
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
