//! Creates files and gives them their names: at once if the name is free, or by one rename or link
//! when the file is complete.
//!
//! # Invariants
//!
//! - TP1: Until its content and attributes are complete, a file belongs to root and only its owner
//!   has access. A regular file with setuid, setgid or capabilities has not even its name until
//!   then.
//! - TP2: An existing file keeps its name until the new file is complete and durable. One operation
//!   then replaces it. After an error, a full pool or a kill before that, the name still has the
//!   old file. Other hard links keep the old file in any case. A directory with content is never
//!   replaced.
//! - TP3: If a directory replaces a file, or another file an empty directory, the new one gets a
//!   temporary name, is exchanged with the old one, and the old one is removed.
//!
//! # Crashes
//!
//! A temporary file may be left, or the old file under the temporary name after an exchange. The
//! next copy-in removes it ([`aside`]).

use engine::api::FileKind;

use super::copy::UnsyncedFiles;
use super::totals::count;
use super::{
    CAPABILITY, ExtendedAttributes, FileMetadata, FileTree, HAS_CONTENT, TreeCopyTotals, TreeError,
    TreeResult, aside, rights,
};

const RUNS_AS: u16 = 0o6000;

pub(crate) struct FileCreation<N> {
    pub(crate) node: N,
    way: CreationNaming,
    replaced: Option<FileKind>,
}

enum CreationNaming {
    Named,
    /// It was created without a name, and is linked when complete.
    Unnamed,
    /// It was created under this temporary name, and is renamed when complete.
    Beside(Vec<u8>),
}

pub(crate) struct TreeLocation<'s, N> {
    pub(crate) directory: &'s N,
    pub(crate) name: &'s [u8],
    pub(crate) path: &'s [u8],
}

impl<N> Clone for TreeLocation<'_, N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for TreeLocation<'_, N> {}

/// Creates an empty file for `meta`, which is to replace the file `there`.
pub(crate) fn begin<T: FileTree>(
    tree: &T,
    spot: TreeLocation<'_, T::Node>,
    (meta, target, wanted): (&FileMetadata, &[u8], &ExtendedAttributes),
    there: Option<&FileMetadata>,
) -> TreeResult<FileCreation<T::Node>> {
    if let Some(there) = there {
        check_replaceable(tree, (spot.directory, spot.name), there)?;
    }
    let replaced = there.map(|there| there.kind);
    let has_rights = meta.mode & RUNS_AS != 0 || wanted.iter().any(|(name, _)| name == CAPABILITY);
    let is_regular = meta.kind == FileKind::Regular;
    if replaced.is_none() && !(is_regular && has_rights) {
        let node = tree.make(spot.directory, spot.name, meta, target)?;
        return Ok(FileCreation { node, way: CreationNaming::Named, replaced });
    }
    let takes_unnamed = is_regular && replaced != Some(FileKind::Directory);
    let unnamed = if takes_unnamed { tree.make_unnamed(spot.directory) } else { Ok(None) };
    let made = match unnamed {
        Ok(Some(node)) => Ok((node, CreationNaming::Unnamed)),
        Ok(None) => {
            let made = make_beside(tree, spot.directory, (meta, target));
            made.map(|(node, beside)| (node, CreationNaming::Beside(beside)))
        }
        Err(error) => Err(error),
    };
    let (node, way) = made.map_err(|error| kept(error, replaced.is_some()))?;
    Ok(FileCreation { node, way, replaced })
}

fn check_replaceable<T: FileTree>(
    tree: &T,
    (directory, name): (&T::Node, &[u8]),
    there: &FileMetadata,
) -> TreeResult<()> {
    if there.kind == FileKind::Directory && !tree.is_empty(&tree.open(directory, name, there)?)? {
        return Err(TreeError::of_file(HAS_CONTENT));
    }
    Ok(())
}

fn make_beside<T: FileTree>(
    tree: &T,
    directory: &T::Node,
    (meta, target): (&FileMetadata, &[u8]),
) -> TreeResult<(T::Node, Vec<u8>)> {
    let beside = aside::name()?;
    let node = tree.make(directory, &beside, meta, target)?;
    Ok((node, beside))
}

/// Replaces a file by an empty directory, and returns that (TP3).
pub(crate) fn make_directory_over<T: FileTree>(
    tree: &T,
    (directory, name): (&T::Node, &[u8]),
    (meta, there): (&FileMetadata, &FileMetadata),
    totals: &TreeCopyTotals,
) -> TreeResult<T::Node> {
    let made = make_beside(tree, directory, (meta, b""));
    let (node, beside) = made.map_err(|error| kept(error, true))?;
    let exchanged = exchange(tree, &node, (directory, &beside, name), there.kind);
    let node = exchanged.map_err(|error| {
        // If this fails too, the next copy-in removes the directory.
        let _ = tree.remove_directory(directory, &beside);
        kept(error, true)
    })?;
    count(&totals.replaced);
    count(&totals.directories);
    Ok(node)
}

pub(crate) fn link<T: FileTree>(
    tree: &T,
    node: &T::Node,
    (directory, name): (&T::Node, &[u8]),
    there: Option<&FileMetadata>,
    totals: &TreeCopyTotals,
) -> TreeResult<()> {
    match there {
        None => tree.link(node, directory, name)?,
        Some(there) if there.kind == FileKind::Directory => {
            check_replaceable(tree, (directory, name), there)?;
            let beside = aside::name()?;
            tree.link(node, directory, &beside).map_err(|error| kept(error, true))?;
            let exchanged = exchange(tree, node, (directory, &beside, name), there.kind);
            exchanged.map_err(|error| {
                // If this fails too, only a superfluous hard link remains.
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

/// Exchanges the file named `beside` with the one at `name`, and removes the old one (TP3). Returns
/// the new file.
fn exchange<T: FileTree>(
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
        // The old directory has got content since it was checked, so it is kept.
        tree.exchange(&node, directory, (name, beside))?;
        return Err(error);
    }
    Ok(node)
}

/// Gives a file, whose content is written, its rights, times and name. Returns the file.
pub(crate) fn end<T: FileTree>(
    tree: &T,
    making: FileCreation<T::Node>,
    spot: TreeLocation<'_, T::Node>,
    (meta, wanted): (&FileMetadata, &ExtendedAttributes),
    (unsynced, totals): (&UnsyncedFiles<T::Node>, &TreeCopyTotals),
) -> TreeResult<T::Node> {
    let done = finish(tree, &making, spot, (meta, wanted), (unsynced, totals));
    match done {
        Ok(node) => Ok(node),
        Err(error) => Err(give_up(tree, making, spot, error)),
    }
}

fn finish<T: FileTree>(
    tree: &T,
    making: &FileCreation<T::Node>,
    spot: TreeLocation<'_, T::Node>,
    (meta, wanted): (&FileMetadata, &ExtendedAttributes),
    (unsynced, totals): (&UnsyncedFiles<T::Node>, &TreeCopyTotals),
) -> TreeResult<T::Node> {
    let node = &making.node;
    for error in rights::give(tree, node, meta, wanted)? {
        totals.fail(spot.path, &error);
    }
    let has_content = meta.kind == FileKind::Regular && meta.size_bytes > 0;
    if matches!(making.way, CreationNaming::Named) {
        if has_content {
            unsynced.add(tree, node, meta, totals)?;
        } else {
            tree.set_times(node, meta)?;
        }
        return Ok(node.clone());
    }
    if has_content {
        // CRASH: the content must be durable before the name leads to it.
        tree.make_durable(node)?;
    }
    tree.set_times(node, meta)?;
    let named = match (&making.way, making.replaced) {
        (CreationNaming::Beside(beside), Some(FileKind::Directory)) => {
            exchange(tree, node, (spot.directory, beside, spot.name), FileKind::Directory)?
        }
        (CreationNaming::Beside(beside), _) => {
            tree.rename(node, spot.directory, (beside, spot.name))?
        }
        (CreationNaming::Named | CreationNaming::Unnamed, _) => {
            tree.link_over(node, spot.directory, spot.name)?;
            node.clone()
        }
    };
    if making.replaced.is_some() {
        count(&totals.replaced);
    }
    Ok(named)
}

pub(crate) fn give_up<T: FileTree>(
    tree: &T,
    making: FileCreation<T::Node>,
    spot: TreeLocation<'_, T::Node>,
    error: TreeError,
) -> TreeError {
    let name = match &making.way {
        CreationNaming::Named => Some(spot.name),
        CreationNaming::Beside(beside) => Some(&beside[..]),
        CreationNaming::Unnamed => None,
    };
    // If this fails too, the incomplete file belongs to root, and the next copy-in replaces it.
    let _ = name.map(|name| tree.remove(spot.directory, name));
    kept(error, making.replaced.is_some())
}

/// Makes a lack of space for both files an error of the new file only, so that the copy goes on
/// (TP2).
fn kept(error: TreeError, replaces: bool) -> TreeError {
    if !replaces {
        return error;
    }
    let cause = format!("{}: the existing file was kept", error.cause);
    let is_final = error.is_final && !error.is_room;
    TreeError { cause, is_final, ..error }
}
