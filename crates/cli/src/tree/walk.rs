//! A walk over a tree, in the order of an archive: the names of a directory as bytes rise, each
//! directory before what is in it.

use super::copy::below;
use super::{Tree, TreeResult};

/// A walk. It goes into those directories that it is told to ([`Walk::enter`]).
pub(crate) struct Walk<'w, T: Tree> {
    tree: &'w T,
    levels: Vec<Level<T::Node>>,
}

/// A directory that is walked.
struct Level<N> {
    node: N,
    path: Vec<u8>,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// A name that a walk comes to.
pub(crate) struct Step<N> {
    /// The directory that it is in.
    pub(crate) directory: N,
    pub(crate) name: Vec<u8>,
    /// From the root.
    pub(crate) path: Vec<u8>,
}

impl<'w, T: Tree> Walk<'w, T> {
    /// Begins with what is in the root of `tree`.
    pub(crate) fn new(tree: &'w T) -> TreeResult<Walk<'w, T>> {
        let mut walk = Walk { tree, levels: Vec::new() };
        walk.enter(tree.root(), Vec::new())?;
        Ok(walk)
    }

    /// What is in this directory comes next.
    pub(crate) fn enter(&mut self, node: T::Node, path: Vec<u8>) -> TreeResult<()> {
        let mut names = Vec::new();
        self.tree.list(&node, &mut |name| names.push(name))?;
        names.sort();
        self.levels.push(Level { node, path, names: names.into_iter() });
        Ok(())
    }

    /// Returns the next name; `None`: that was the last.
    pub(crate) fn next(&mut self) -> Option<Step<T::Node>> {
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.names.next() {
                let path = below(&level.path, &name);
                return Some(Step { directory: level.node.clone(), name, path });
            }
            self.levels.pop();
        }
        None
    }
}

/// Compares two paths as a walk comes to them.
pub(crate) fn order(one: &[u8], other: &[u8]) -> std::cmp::Ordering {
    let is_end = |&byte: &u8| byte == b'/';
    one.split(is_end).cmp(other.split(is_end))
}
