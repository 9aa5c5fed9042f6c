//! Sets owner, mode, access lists and extended attributes of a file, in an order in which no user
//! has more rights at any time than at the end.
//!
//! 1. Remove attributes that the source's file lacks, such as inherited ones.
//! 2. Set attributes that grant no rights.
//! 3. Set owner and group. If an access list follows, of the permission bits only the owner's.
//! 4. Set the access list, which sets the other permission bits in the same change.
//! 5. Set setuid, setgid and sticky.
//! 6. Set the default access list and `security.capability`. A change of owner would clear the
//!    latter.
//!
//! Attributes that the tree cannot store are reported. If that is the access list, the group bits
//! are reduced to the rights of the owning group.

use super::{
    ACCESS_ACL, CAPABILITY, DEFAULT_ACL, ExtendedAttributes, FileMetadata, FileTree,
    TreeCopyTotals, TreeError, TreeResult, has_same_owner_and_mode,
};
use control::TreeCopyRules;

const SET_BITS: u16 = 0o7000;

/// Returns the attributes that `tree` can store and `rules` permit. Reports the others if `path` is
/// given.
pub(crate) fn fitting<T: FileTree>(
    tree: &T,
    attributes: ExtendedAttributes,
    rules: TreeCopyRules,
    path: Option<(&[u8], &TreeCopyTotals)>,
) -> ExtendedAttributes {
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

pub(crate) fn has_rights<T: FileTree>(
    tree: &T,
    (node, there): (&T::Node, &FileMetadata),
    meta: &FileMetadata,
    wanted: &ExtendedAttributes,
) -> TreeResult<bool> {
    Ok(has_same_owner_and_mode(meta, there) && tree.attributes(node)? == *wanted)
}

/// Sets owner, mode and attributes. Returns the errors that do not end the copy.
pub(crate) fn give<T: FileTree>(
    tree: &T,
    node: &T::Node,
    meta: &FileMetadata,
    wanted: &ExtendedAttributes,
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

fn give_with_list<T: FileTree>(
    tree: &T,
    node: &T::Node,
    (meta, list): (&FileMetadata, &[u8]),
    told: &mut Vec<TreeError>,
) -> TreeResult<()> {
    let private = FileMetadata { mode: meta.mode & 0o700, ..meta.clone() };
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
    // If the owner cannot be set, the first call has reported that.
    tree.set_owner_and_mode(node, &FileMetadata { mode, ..meta.clone() }).map(drop)
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
