//! Owner, mode, access lists and extended attributes of a file, in the order in which nobody gains
//! a right on the way.
//!
//! 1. What the file has and the other tree's has not goes: it may have been handed down by the
//!    directory.
//! 2. Attributes that give no right.
//! 3. Owner and group, and the owner's bits alone where an access list follows.
//! 4. The access list, which sets the other bits in the same change.
//! 5. Setuid, setgid and sticky.
//! 6. `security.capability`, which a change of owner takes away.
//!
//! What a tree cannot keep is told and costs no content: where an access list cannot be kept, the
//! bits of the group are cut to what the list gives the group.

use super::{
    ACCESS_ACL, Attributes, CAPABILITY, DEFAULT_ACL, Meta, Rules, Totals, Tree, TreeError,
    TreeResult, has_same_owner_and_mode,
};

/// Set-bits of a mode: setuid, setgid, sticky.
const SET_BITS: u16 = 0o7000;

/// Returns those attributes that are to be given to a file of `tree`; what is left out is told
/// where `path` says of which file.
pub(crate) fn fitting<T: Tree>(
    tree: &T,
    attributes: Attributes,
    rules: Rules,
    path: Option<(&[u8], &Totals)>,
) -> Attributes {
    let keeps = |name: &[u8]| {
        let why = if rules.no_setuid && name == CAPABILITY {
            "left out (--no-setuid)"
        } else if tree.keeps_attribute(name) {
            return true;
        } else {
            "the target does not store attributes of this kind"
        };
        if let Some((path, totals)) = path {
            totals.leave_out(path, &format!("its attribute {}: {why}", super::shown(name)));
        }
        false
    };
    attributes.into_iter().filter(|(name, _)| keeps(name)).collect()
}

/// Whether a file has owner, mode and attributes as they are wanted.
pub(crate) fn has_rights<T: Tree>(
    tree: &T,
    (node, there): (&T::Node, &Meta),
    meta: &Meta,
    wanted: &Attributes,
) -> TreeResult<bool> {
    Ok(has_same_owner_and_mode(meta, there) && tree.attributes(node)? == *wanted)
}

/// Gives a file its owner, mode and attributes. Returns what could not be kept.
pub(crate) fn give<T: Tree>(
    tree: &T,
    node: &T::Node,
    meta: &Meta,
    wanted: &Attributes,
) -> TreeResult<Vec<TreeError>> {
    let mut told = Vec::new();
    let found = tree.attributes(node)?;
    let is_wanted = |name: &[u8]| wanted.iter().any(|(it, _)| it == name);
    for (name, _) in found.iter().filter(|(name, _)| !is_wanted(name)) {
        keep(&mut told, tree.set_attribute(node, name, None))?;
    }
    let is_right = |name: &[u8]| [ACCESS_ACL, DEFAULT_ACL, CAPABILITY].contains(&name);
    for (name, value) in wanted.iter().filter(|it| !is_right(&it.0) && !found.contains(it)) {
        keep(&mut told, tree.set_attribute(node, name, Some(value)))?;
    }
    let value_of = |name: &[u8]| wanted.iter().find(|(it, _)| it == name).map(|(_, value)| value);
    match value_of(ACCESS_ACL) {
        None => told.extend(tree.set_owner_and_mode(node, meta)?),
        Some(list) => give_with_list(tree, node, (meta, list), &mut told)?,
    }
    for name in [DEFAULT_ACL, CAPABILITY] {
        if let Some(value) = value_of(name) {
            keep(&mut told, tree.set_attribute(node, name, Some(value)))?;
        }
    }
    Ok(told)
}

fn give_with_list<T: Tree>(
    tree: &T,
    node: &T::Node,
    (meta, list): (&Meta, &[u8]),
    told: &mut Vec<TreeError>,
) -> TreeResult<()> {
    let private = Meta { mode: meta.mode & 0o700, ..meta.clone() };
    told.extend(tree.set_owner_and_mode(node, &private)?);
    let before = told.len();
    keep(told, tree.set_attribute(node, ACCESS_ACL, Some(list)))?;
    let mode = if told.len() > before {
        super::acl::mode_without(list, meta.mode)
    } else if meta.mode & SET_BITS == 0 {
        return Ok(());
    } else {
        tree.meta(node)?.mode & !SET_BITS | meta.mode & SET_BITS
    };
    // That the owner is another is told already.
    tree.set_owner_and_mode(node, &Meta { mode, ..meta.clone() }).map(drop)
}

fn keep(told: &mut Vec<TreeError>, done: TreeResult<()>) -> TreeResult<()> {
    match done {
        Err(error) if error.is_final => Err(error),
        Err(error) => {
            told.push(error);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
