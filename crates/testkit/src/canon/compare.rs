//! Two trees side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use engine::api::FileSystem;

use super::{CanonAttr, Data, Page, Path, Times, Tree, WalkError, walk};

/// Most differences that are told.
pub const DIFFERENCES_MAX: usize = 20;

/// Which of two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    Left,
    /// The second.
    Right,
}

/// How two trees differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A tree could not be walked.
    Walk {
        /// Which.
        side: Side,
        /// Why.
        error: WalkError,
    },
    /// A name is in one tree only.
    OnlyIn {
        /// Which.
        side: Side,
        /// The name.
        path: Path,
    },
    /// Attributes differ.
    Attr {
        /// A name of the inode.
        path: Path,
        /// On the left.
        left: Box<CanonAttr>,
        /// On the right.
        right: Box<CanonAttr>,
    },
    /// The same names are not names of one inode on both sides.
    Links {
        /// A name of such an inode.
        path: Path,
    },
    /// Content differs.
    Page {
        /// A name of the file.
        path: Path,
        /// First page of 4 KiB that differs.
        page: u64,
    },
    /// An extended attribute differs, or is there on one side only.
    Attribute {
        /// A name of the inode.
        path: Path,
        /// First name of an attribute that differs.
        name: Vec<u8>,
    },
    /// Targets of a symbolic link differ.
    Target {
        /// The link.
        path: Path,
        /// On the left.
        left: Vec<u8>,
        /// On the right.
        right: Vec<u8>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Walk { side, error } => write!(f, "{side:?} cannot be walked: {error}"),
            Difference::OnlyIn { side, path } => write!(f, "{path}: only in {side:?}"),
            Difference::Attr { path, left, right } => {
                write!(f, "{path}: {left:?} and {right:?}")
            }
            Difference::Links { path } => write!(f, "{path}: linked differently"),
            Difference::Attribute { path, name } => {
                write!(f, "{path}: attribute {} differs", name.escape_ascii())
            }
            Difference::Page { path, page } => write!(f, "{path}: page {page} differs"),
            Difference::Target { path, left, right } => {
                write!(f, "{path}: -> {} and {}", left.escape_ascii(), right.escape_ascii())
            }
        }
    }
}

/// Walks both and returns how they differ: at most [`DIFFERENCES_MAX`], none where they are alike.
#[must_use]
pub fn compare_trees(
    left: &dyn FileSystem,
    right: &dyn FileSystem,
    times: Times,
) -> Vec<Difference> {
    let walked = |fs, side| walk(fs, times).map_err(|error| Difference::Walk { side, error });
    match (walked(left, Side::Left), walked(right, Side::Right)) {
        (Ok(left), Ok(right)) => differences(&left, &right),
        (left, right) => [left.err(), right.err()].into_iter().flatten().collect(),
    }
}

/// Returns how two trees differ: at most [`DIFFERENCES_MAX`], none where they are equal.
#[must_use]
pub fn differences(left: &Tree, right: &Tree) -> Vec<Difference> {
    let mut found = Vec::new();
    let paths: BTreeSet<&Path> = left.names.keys().chain(right.names.keys()).collect();
    let mut pairs: BTreeMap<usize, usize> = BTreeMap::new();
    for path in paths {
        if found.len() == DIFFERENCES_MAX {
            break;
        }
        let only_in = |side| Difference::OnlyIn { side, path: path.clone() };
        match (left.names.get(path), right.names.get(path)) {
            (Some(&l), Some(&r)) => match pairs.get(&l) {
                Some(&known) if known == r => {}
                Some(_) => found.push(Difference::Links { path: path.clone() }),
                None if pairs.values().any(|&known| known == r) => {
                    found.push(Difference::Links { path: path.clone() });
                }
                None => {
                    pairs.insert(l, r);
                    found.extend(inode_difference(path, left, right));
                }
            },
            (Some(_), None) => found.push(only_in(Side::Left)),
            (None, Some(_)) => found.push(only_in(Side::Right)),
            (None, None) => unreachable!("the path came from one of the trees"),
        }
    }
    assert_eq!(found.is_empty(), left == right, "the comparison tells every difference");
    found
}

fn inode_difference(path: &Path, left: &Tree, right: &Tree) -> Option<Difference> {
    let (l, r) = (left.get(path)?, right.get(path)?);
    let path = path.clone();
    if l.attr != r.attr {
        return Some(Difference::Attr {
            path,
            left: Box::new(l.attr.clone()),
            right: Box::new(r.attr.clone()),
        });
    }
    if l.attributes != r.attributes {
        let mut names = l.attributes.keys().chain(r.attributes.keys());
        let name = names.find(|&name| l.attributes.get(name) != r.attributes.get(name));
        return name.map(|name| Difference::Attribute { path, name: name.clone() });
    }
    match (&l.data, &r.data) {
        (Data::Pages(l), Data::Pages(r)) => {
            first_page(l, r).map(|page| Difference::Page { path, page })
        }
        (Data::Target(l), Data::Target(r)) if l != r => {
            Some(Difference::Target { path, left: l.clone(), right: r.clone() })
        }
        // Equal kinds hold equal sorts of data.
        (Data::Pages(_) | Data::Target(_) | Data::Nothing, _) => None,
    }
}

fn first_page(left: &BTreeMap<u64, Page>, right: &BTreeMap<u64, Page>) -> Option<u64> {
    let mut numbers: Vec<u64> = left.keys().chain(right.keys()).copied().collect();
    numbers.sort_unstable();
    numbers.into_iter().find(|number| left.get(number) != right.get(number))
}
