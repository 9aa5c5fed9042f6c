//! Gives a new file its name: at creation if the name is free, else by one rename or link when the
//! file is complete.
//!
//! # Invariants
//!
//! - TP1: Until its content and attributes are complete, a file belongs to the superuser and has
//!   only the owner's bits. A file that gets setuid, setgid or capabilities has no name until then.
//! - TP2: An existing file keeps its name until the new file is complete and durable; then one
//!   operation replaces it. An error, a full pool or a kill before that leaves the old file. Its
//!   other names keep the old file. A directory with content is never replaced.
//! - TP3: A file that takes the place of an empty directory, and a directory that takes the place
//!   of a file, is made beside it and exchanged with it; then the old one is removed.
//!
//! # Crashes
//!
//! What is made beside, or was exchanged, may be left: the next import removes it ([`aside`]).

use engine::vnode::api::FileKind;

use super::copy::Unsynced;
use super::totals::count;
use super::{
    Attributes, CAPABILITY, HAS_CONTENT, Meta, Totals, Tree, TreeError, TreeResult, aside, rights,
};

/// Set-bits that give rights.
const RUNS_AS: u16 = 0o6000;

/// A file that is being made.
pub(crate) struct Making<N> {
    pub(crate) node: N,
    /// How it comes to its name.
    way: Way,
    /// What has the name.
    replaced: Option<FileKind>,
}

enum Way {
    /// It has it.
    Named,
    /// It has none.
    Unnamed,
    /// It has this one meanwhile.
    Beside(Vec<u8>),
}

/// Where a file comes to.
pub(crate) struct Spot<'s, N> {
    pub(crate) directory: &'s N,
    pub(crate) name: &'s [u8],
    /// From the root, for people.
    pub(crate) path: &'s [u8],
}

impl<N> Clone for Spot<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for Spot<'_, N> {}

/// Makes an empty file for what `meta` says, in the place of what is `there`.
pub(crate) fn begin<T: Tree>(
    tree: &T,
    spot: Spot<'_, T::Node>,
    (meta, target, wanted): (&Meta, &[u8], &Attributes),
    there: Option<&Meta>,
) -> TreeResult<Making<T::Node>> {
    if let Some(there) = there {
        check_replaceable(tree, (spot.directory, spot.name), there)?;
    }
    let replaced = there.map(|there| there.kind);
    let has_rights = meta.mode & RUNS_AS != 0 || wanted.iter().any(|(name, _)| name == CAPABILITY);
    let is_regular = meta.kind == FileKind::Regular;
    if replaced.is_none() && !(is_regular && has_rights) {
        let node = tree.make(spot.directory, spot.name, meta, target)?;
        return Ok(Making { node, way: Way::Named, replaced });
    }
    let takes_unnamed = is_regular && replaced != Some(FileKind::Directory);
    let unnamed = if takes_unnamed { tree.make_unnamed(spot.directory) } else { Ok(None) };
    let made = match unnamed {
        Ok(Some(node)) => Ok((node, Way::Unnamed)),
        Ok(None) => {
            let made = make_beside(tree, spot.directory, (meta, target));
            made.map(|(node, beside)| (node, Way::Beside(beside)))
        }
        Err(error) => Err(error),
    };
    let (node, way) = made.map_err(|error| kept(error, replaced.is_some()))?;
    Ok(Making { node, way, replaced })
}

/// Refuses to replace a directory with content.
fn check_replaceable<T: Tree>(
    tree: &T,
    (directory, name): (&T::Node, &[u8]),
    there: &Meta,
) -> TreeResult<()> {
    if there.kind == FileKind::Directory && !tree.is_empty(&tree.open(directory, name, there)?)? {
        return Err(TreeError::of_file(HAS_CONTENT));
    }
    Ok(())
}

/// Makes a file beside those of a directory. Returns it and its name.
fn make_beside<T: Tree>(
    tree: &T,
    directory: &T::Node,
    (meta, target): (&Meta, &[u8]),
) -> TreeResult<(T::Node, Vec<u8>)> {
    let beside = aside::name()?;
    let node = tree.make(directory, &beside, meta, target)?;
    Ok((node, beside))
}

/// Puts an empty directory in the place of a file (TP3). Returns it.
pub(crate) fn make_directory_over<T: Tree>(
    tree: &T,
    (directory, name): (&T::Node, &[u8]),
    (meta, there): (&Meta, &Meta),
    totals: &Totals,
) -> TreeResult<T::Node> {
    let made = make_beside(tree, directory, (meta, b""));
    let (node, beside) = made.map_err(|error| kept(error, true))?;
    let exchanged = exchange(tree, &node, (directory, &beside, name), there.kind);
    let node = exchanged.map_err(|error| {
        // Where that fails too it is empty, and the next import removes it.
        let _ = tree.remove_directory(directory, &beside);
        kept(error, true)
    })?;
    count(&totals.replaced);
    count(&totals.directories);
    Ok(node)
}

/// Gives a file one more name, in the place of what is `there`.
pub(crate) fn link<T: Tree>(
    tree: &T,
    node: &T::Node,
    (directory, name): (&T::Node, &[u8]),
    there: Option<&Meta>,
    totals: &Totals,
) -> TreeResult<()> {
    match there {
        None => tree.link(node, directory, name)?,
        Some(there) if there.kind == FileKind::Directory => {
            check_replaceable(tree, (directory, name), there)?;
            let beside = aside::name()?;
            tree.link(node, directory, &beside).map_err(|error| kept(error, true))?;
            let exchanged = exchange(tree, node, (directory, &beside, name), there.kind);
            exchanged.map_err(|error| {
                // Where that fails too, it is one more name of a file that is there.
                let _ = tree.remove(directory, &beside);
                kept(error, true)
            })?;
        }
        Some(_) => tree.link_over(node, directory, name).map_err(|error| kept(error, true))?,
    }
    there.is_some().then(|| count(&totals.replaced));
    count(&totals.links);
    Ok(())
}

/// Exchanges a file, which is named `beside`, with what has `name`, and removes that (TP3). Returns
/// the file.
fn exchange<T: Tree>(
    tree: &T,
    node: &T::Node,
    (directory, beside, name): (&T::Node, &[u8], &[u8]),
    replaced: FileKind,
) -> TreeResult<T::Node> {
    let node = tree.exchange(node, directory, (beside, name))?;
    let removed = match replaced {
        FileKind::Directory => tree.remove_directory(directory, beside),
        FileKind::Regular
        | FileKind::Symlink
        | FileKind::BlockDevice
        | FileKind::CharDevice
        | FileKind::Fifo
        | FileKind::Socket => tree.remove(directory, beside),
    };
    if let Err(error) = removed {
        // It may have been replaced, or got content, since the look.
        tree.exchange(&node, directory, (name, beside))?;
        return Err(error);
    }
    Ok(node)
}

/// The file has its content: it gets its rights, its times and its name. Returns it.
pub(crate) fn end<T: Tree>(
    tree: &T,
    making: Making<T::Node>,
    spot: Spot<'_, T::Node>,
    (meta, wanted): (&Meta, &Attributes),
    (unsynced, totals): (&Unsynced<T::Node>, &Totals),
) -> TreeResult<T::Node> {
    let done = finish(tree, &making, spot, (meta, wanted), (unsynced, totals));
    match done {
        Ok(node) => Ok(node),
        Err(error) => Err(give_up(tree, making, spot, error)),
    }
}

fn finish<T: Tree>(
    tree: &T,
    making: &Making<T::Node>,
    spot: Spot<'_, T::Node>,
    (meta, wanted): (&Meta, &Attributes),
    (unsynced, totals): (&Unsynced<T::Node>, &Totals),
) -> TreeResult<T::Node> {
    let node = &making.node;
    for error in rights::give(tree, node, meta, wanted)? {
        totals.fail(spot.path, &error);
    }
    let has_content = meta.kind == FileKind::Regular && meta.size_bytes > 0;
    if matches!(making.way, Way::Named) {
        if has_content {
            unsynced.add(tree, node, meta, totals)?;
        } else {
            tree.set_times(node, meta)?;
        }
        return Ok(node.clone());
    }
    if has_content {
        // CRASH: the name must not lead to a file whose content is not there yet.
        tree.make_durable(node)?;
    }
    tree.set_times(node, meta)?;
    let named = match (&making.way, making.replaced) {
        (Way::Beside(beside), Some(FileKind::Directory)) => {
            exchange(tree, node, (spot.directory, beside, spot.name), FileKind::Directory)?
        }
        (Way::Beside(beside), _) => tree.rename(node, spot.directory, (beside, spot.name))?,
        (Way::Named | Way::Unnamed, _) => {
            tree.link_over(node, spot.directory, spot.name)?;
            node.clone()
        }
    };
    if making.replaced.is_some() {
        count(&totals.replaced);
    }
    Ok(named)
}

/// Takes away what was begun. Returns `error` as it is to be told.
pub(crate) fn give_up<T: Tree>(
    tree: &T,
    making: Making<T::Node>,
    spot: Spot<'_, T::Node>,
    error: TreeError,
) -> TreeError {
    let name = match &making.way {
        Way::Named => Some(spot.name),
        Way::Beside(beside) => Some(&beside[..]),
        Way::Unnamed => None,
    };
    // Where that fails too, what is left is the superuser's, and the next import replaces it.
    let _ = name.map(|name| tree.remove(spot.directory, name));
    kept(error, making.replaced.is_some())
}

/// TP2: a lack of space for both files fails only the new one, and the copy goes on.
fn kept(error: TreeError, replaces: bool) -> TreeError {
    if !replaces {
        return error;
    }
    let cause = format!("{}: the existing file was kept", error.cause);
    let is_final = error.is_final && !error.is_room;
    TreeError { cause, is_final, ..error }
}
