//! How a file comes to its name: at once, where nothing has that, and in one step when all of it is
//! there, where something has.
//!
//! # Invariants
//!
//! - TP1: Until a file has all of its content and its rights, its owner is the superuser and only
//!   the owner's bits are set; one that is to have setuid, setgid or capabilities has no name.
//! - TP2: What has the name keeps it until the new file is whole and durable: then one change gives
//!   the name to that. What comes between, an error, a full pool or a kill, leaves what was there.
//!   Other names of the old file keep it. A directory with content is never replaced.

use std::sync::atomic::{AtomicU64, Ordering};

use engine::vnode::api::FileKind;

use super::copy::Unsynced;
use super::totals::count;
use super::{Attributes, CAPABILITY, Meta, Totals, Tree, TreeError, TreeResult, rights};

/// Set-bits that give rights.
const RUNS_AS: u16 = 0o6000;

/// Tells apart the names that files have while they are made beside another.
static ASIDE: AtomicU64 = AtomicU64::new(0);

/// A file that is being made.
pub(crate) struct Making<N> {
    pub(crate) node: N,
    /// How it comes to its name.
    way: Way,
    /// Whether something has the name.
    replaces: bool,
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

/// Returns a name that nothing has.
pub(crate) fn name_beside() -> Vec<u8> {
    let number = ASIDE.fetch_add(1, Ordering::Relaxed);
    format!(".holdfast-{}-{number}", std::process::id()).into_bytes()
}

/// Makes an empty file for what `meta` says, in the place of what is `there`.
pub(crate) fn begin<T: Tree>(
    tree: &T,
    spot: Spot<'_, T::Node>,
    (meta, target, wanted): (&Meta, &[u8], &Attributes),
    there: Option<&Meta>,
) -> TreeResult<Making<T::Node>> {
    let mut replaces = there.is_some();
    if there.is_some_and(|there| there.kind == FileKind::Directory) {
        tree.remove_directory(spot.directory, spot.name)?;
        replaces = false;
    }
    let has_rights = meta.mode & RUNS_AS != 0 || wanted.iter().any(|(name, _)| name == CAPABILITY);
    let is_regular = meta.kind == FileKind::Regular;
    if !(replaces || is_regular && has_rights) {
        let node = tree.make(spot.directory, spot.name, meta, target)?;
        return Ok(Making { node, way: Way::Named, replaces });
    }
    let unnamed = if is_regular { tree.make_unnamed(spot.directory) } else { Ok(None) };
    let made = match unnamed {
        Ok(Some(node)) => Ok((node, Way::Unnamed)),
        Ok(None) => {
            let beside = name_beside();
            let made = tree.make(spot.directory, &beside, meta, target);
            made.map(|node| (node, Way::Beside(beside)))
        }
        Err(error) => Err(error),
    };
    let (node, way) = made.map_err(|error| kept(error, replaces))?;
    Ok(Making { node, way, replaces })
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
    let named = match &making.way {
        Way::Beside(beside) => tree.rename(node, spot.directory, (beside, spot.name))?,
        Way::Named | Way::Unnamed => {
            tree.link_over(node, spot.directory, spot.name)?;
            node.clone()
        }
    };
    if making.replaces {
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
    kept(error, making.replaces)
}

/// TP2: that there is no room for both costs the new one alone.
fn kept(error: TreeError, replaces: bool) -> TreeError {
    if !replaces {
        return error;
    }
    let cause = format!("{}: what was there before stays", error.cause);
    let is_final = error.is_final && !error.is_room;
    TreeError { cause, is_final, ..error }
}
