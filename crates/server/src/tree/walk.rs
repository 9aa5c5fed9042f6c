//! A walk over a tree in the order of an archive: the names of a directory in byte order, and a
//! directory before its contents.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::api::FileKind;

use super::copy::below;
use super::{FileTree, TreeResult};

pub(crate) struct TreeWalk<'w, T: FileTree> {
    tree: &'w T,
    levels: Vec<TreeWalkLevel<T::Node>>,
}

struct TreeWalkLevel<N> {
    node: N,
    path: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
}

pub(crate) struct TreeWalkEntry<N> {
    pub(crate) directory: N,
    pub(crate) name: Vec<u8>,
    pub(crate) path: Vec<u8>,
}

impl<'w, T: FileTree> TreeWalk<'w, T> {
    pub(crate) fn new(tree: &'w T) -> TreeResult<TreeWalk<'w, T>> {
        let mut walk = TreeWalk { tree, levels: Vec::new() };
        walk.enter(tree.root(), Vec::new())?;
        Ok(walk)
    }

    /// Makes the walk go on with the contents of the directory `node`.
    pub(crate) fn enter(&mut self, node: T::Node, path: Vec<u8>) -> TreeResult<()> {
        let mut names = Vec::new();
        self.tree.list(&node, &mut |name| names.push(name))?;
        names.sort();
        self.levels.push(TreeWalkLevel { node, path, names: names.into_iter() });
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Option<TreeWalkEntry<T::Node>> {
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.names.next() {
                let path = below(&level.path, &name);
                return Some(TreeWalkEntry { directory: level.node.clone(), name, path });
            }
            self.levels.pop();
        }
        None
    }
}

/// Files and bytes of a tree, counted beside its copy. The total is 0 until all are counted.
#[derive(Debug, Default)]
pub(crate) struct TreeWork {
    files: AtomicU64,
    bytes: AtomicU64,
    is_counted: AtomicBool,
    is_over: AtomicBool,
}

pub(crate) struct TreeWorkGuard<'w>(&'w TreeWork);

impl Drop for TreeWorkGuard<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl TreeWork {
    /// Counts the files of `tree` until the copy is over.
    pub(crate) fn count<T: FileTree>(&self, tree: &T) -> TreeResult<()> {
        let device = tree.meta(&tree.root())?.id.0;
        let mut walk = TreeWalk::new(tree)?;
        while let Some(TreeWalkEntry { directory, name, path }) = walk.next() {
            if self.is_over.load(Ordering::Relaxed) {
                return Ok(());
            }
            // What cannot be read is reported by the copy.
            let Ok(Some(meta)) = tree.find(&directory, &name) else { continue };
            if meta.id.0 != device {
                continue;
            }
            if meta.kind == FileKind::Directory {
                let opened = tree.open(&directory, &name, &meta);
                let _ = opened.and_then(|node| walk.enter(node, path));
                continue;
            }
            self.files.fetch_add(1, Ordering::Relaxed);
            let is_regular = meta.kind == FileKind::Regular;
            // A file with several names is copied once.
            let bytes = if is_regular { meta.size_bytes / meta.links.max(1) } else { 0 };
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        self.is_counted.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the counting when the guard is dropped.
    pub(crate) fn while_copying(&self) -> TreeWorkGuard<'_> {
        TreeWorkGuard(self)
    }

    /// Returns the total of `passes` over the tree: bytes and files. Zeros until it is known.
    pub(crate) fn total(&self, passes: u64) -> (u64, u64) {
        let passes = if self.is_counted.load(Ordering::Acquire) { passes } else { 0 };
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed).saturating_mul(passes);
        (of(&self.bytes), of(&self.files))
    }
}

pub(crate) fn order(one: &[u8], other: &[u8]) -> std::cmp::Ordering {
    let is_end = |&byte: &u8| byte == b'/';
    one.split(is_end).cmp(other.split(is_end))
}
