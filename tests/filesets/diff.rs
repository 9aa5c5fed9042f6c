//! What `diff` tells of two nodes, against a comparison of their whole trees.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use engine::api::FileKind;
use engine::{Difference, DifferenceKind, Pool, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use testkit::canon::{Data, Inode, PAGE_BYTES, Path, Times, walk_identified};

use super::{assert_clean, name, new_pool, work};

/// Number and generation, without the slot of the fileset.
type Identity = (u64, u64);

/// A tree by what diff compares.
struct Known {
    names: BTreeMap<Path, Identity>,
    inodes: BTreeMap<Identity, Inode>,
}

/// Directory, name, and what it leads to.
type Named = (Identity, Identity, Vec<u8>);

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

fn open(device: &SharedDevice, snapshot: Option<&str>) -> Pool {
    let fileset = Some(name("root"));
    let options =
        PoolOpenOptions { fileset, snapshot: snapshot.map(part), ..PoolOpenOptions::default() };
    let clock = Arc::new(ManualClock::new());
    Pool::open(Arc::clone(device), clock, options).expect("the pool opens")
}

impl Known {
    fn of(pool: &Pool) -> Known {
        let (tree, identities) = walk_identified(pool, Times::Changes).expect("it can be read");
        let number = |at: usize| (identities[at].ino.0 & 0xff_ffff_ffff, identities[at].generation);
        let names = tree.names.iter().map(|(path, &at)| (path.clone(), number(at))).collect();
        let inodes =
            tree.inodes.iter().enumerate().map(|(at, it)| (number(at), it.clone())).collect();
        Known { names, inodes }
    }

    fn named(&self) -> BTreeMap<Named, Vec<u8>> {
        let named = self.names.iter().filter_map(|(path, &target)| {
            let (directory, last) = path.split()?;
            Some(((target, self.names[&directory], last.to_vec()), path.0.clone()))
        });
        named.collect()
    }
}

fn pages(inode: &Inode) -> BTreeSet<(u64, Vec<u8>)> {
    match &inode.data {
        Data::Pages(pages) => pages.iter().map(|(&at, page)| (at, page.to_vec())).collect(),
        Data::Target(_) | Data::Nothing => BTreeSet::new(),
    }
}

/// Holds what was told against both trees: all paths that came and went, and all bytes.
fn judge(before: &Known, after: &Known, told: &[Difference]) -> Result<(), String> {
    let (old, new) = (before.named(), after.named());
    let mut removed: Vec<_> = old.iter().filter(|(it, _)| !new.contains_key(it)).collect();
    let mut expected = BTreeSet::new();
    for (named, path) in new.iter().filter(|(it, _)| !old.contains_key(it)) {
        let from = removed.iter().position(|(it, _)| it.0 == named.0);
        let from = from.map(|at| removed.remove(at).1.clone());
        expected.insert((path.clone(), from.map_or(Some(None), |from| Some(Some(from)))));
    }
    expected.extend(removed.into_iter().map(|(_, path)| (path.clone(), None)));
    let names = told.iter().filter_map(|it| match &it.became {
        DifferenceKind::Created => Some((it.path.clone(), Some(None))),
        DifferenceKind::Renamed { from } => Some((it.path.clone(), Some(Some(from.clone())))),
        DifferenceKind::Removed => Some((it.path.clone(), None)),
        DifferenceKind::Modified { .. } => None,
    });
    let names: BTreeSet<_> = names.collect();
    if names != expected {
        let missed: Vec<_> = expected.difference(&names).take(3).collect();
        let wrong: Vec<_> = names.difference(&expected).take(3).collect();
        return Err(format!("missed {missed:?}, told {wrong:?}"));
    }
    let modified: BTreeMap<Identity, &DifferenceKind> = told
        .iter()
        .filter(|it| matches!(it.became, DifferenceKind::Modified { .. }))
        .map(|it| (after.names[&Path(it.path.clone())], &it.became))
        .collect();
    for (identity, now) in &after.inodes {
        let Some(was) = before.inodes.get(identity) else { continue };
        bytes_are_told(was, now, modified.get(identity).copied())
            .map_err(|what| format!("inode {identity:?}: {what}"))?;
    }
    Ok(())
}

fn bytes_are_told(was: &Inode, now: &Inode, told: Option<&DifferenceKind>) -> Result<(), String> {
    let mut ranges: &[Range<u64>] = &[];
    let mut sizes = (was.attr.size_bytes, now.attr.size_bytes);
    let mut told_attributes = false;
    if let Some(DifferenceKind::Modified {
        ranges: told,
        has_attributes,
        size_before,
        size_after,
    }) = told
    {
        (ranges, told_attributes) = (told, *has_attributes);
        if now.attr.kind != FileKind::Directory {
            sizes = (*size_before, *size_after);
        }
    } else if sizes.0 != sizes.1 {
        return Err("its size changed, and nothing was told".to_owned());
    }
    if sizes != (was.attr.size_bytes, now.attr.size_bytes) {
        return Err(format!("sizes {sizes:?}"));
    }
    for (at, _) in pages(now).symmetric_difference(&pages(was)) {
        let start = at * u64::try_from(PAGE_BYTES).expect("small");
        let is_cut = start >= now.attr.size_bytes;
        // The last page may differ only behind what is left of it.
        let is_last = start + 4096 > now.attr.size_bytes.min(was.attr.size_bytes);
        if !is_cut && !is_last && !ranges.iter().any(|range| range.contains(&start)) {
            return Err(format!("page {at} differs, told {ranges:?}"));
        }
    }
    let own = |it: &Inode| (it.attr.mode, it.attr.uid, it.attr.gid, it.attributes.clone());
    if own(was) != own(now) && !told_attributes {
        return Err("its attributes differ, and nothing was told".to_owned());
    }
    Ok(())
}

/// Goal: diff tells every path that came, went or moved and every byte that differs, and no other
/// path; of any two snapshots in either order, and of the fileset itself. Method: random histories,
/// each node's whole tree compared with the others'.
#[test]
fn diff_tells_what_whole_trees_show() {
    let (mut judged, mut renamed) = (0, 0);
    for seed in 0..16 {
        let device = new_pool();
        let pool = open(&device, None);
        for number in 0..4 {
            work(&pool, seed * 100 + number, if number == 0 { 250 } else { 40 });
            if number < 3 {
                let snapshot = part(&format!("c{number}"));
                let random = [u8::try_from(number).expect("few"); 16];
                pool.fileset_admin()
                    .create_snapshot(&name("root"), &snapshot, random)
                    .expect("there is room");
            }
        }
        let live = Known::of(&pool);
        let mut told = BTreeMap::new();
        for (from, to) in [(0, 1), (1, 2), (0, 2), (2, 0), (0, 3), (2, 3)] {
            let snapshots = (part(&format!("c{from}")), part(&format!("c{to}")));
            let mut all: Vec<Difference> = Vec::new();
            let root = name("root");
            let to_snapshot = (to < 3).then_some(&snapshots.1);
            pool.fileset_admin()
                .diff((&root, &snapshots.0), (&root, to_snapshot), [77; 16], &mut |difference| {
                    all.push(difference.clone());
                    ControlFlow::Continue(())
                })
                .expect("both can be read");
            told.insert((from, to), all);
        }
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&device);
        let mut known: Vec<Known> = Vec::new();
        for number in 0..3 {
            let pool = open(&device, Some(&format!("c{number}")));
            known.push(Known::of(&pool));
            pool.close().expect("nothing fails");
        }
        known.push(live);
        for ((from, to), all) in told {
            judge(&known[from], &known[to], &all)
                .unwrap_or_else(|what| panic!("seed {seed}, c{from} to c{to}: {what}"));
            judged += all.len();
            renamed +=
                all.iter().filter(|it| matches!(it.became, DifferenceKind::Renamed { .. })).count();
        }
    }
    assert!(judged > 500 && renamed > 5, "{judged} differences, {renamed} renames");
}

/// Goal: two filesets of different families are not compared, and nobody deletes what is read.
#[test]
fn what_cannot_be_compared_is_refused() {
    let device = new_pool();
    let pool = open(&device, None);
    pool.fileset_admin()
        .create_fileset(&name("other"), &super::new_fileset(9))
        .expect("there is room");
    for text in ["root", "other"] {
        pool.fileset_admin()
            .create_snapshot(&name(text), &part("c"), [1; 16])
            .expect("there is room");
    }
    let (root, other, c) = (name("root"), name("other"), part("c"));
    let mut nothing = |_: &Difference| ControlFlow::Continue(());
    let refused = pool.fileset_admin().diff((&root, &c), (&other, Some(&c)), [0; 16], &mut nothing);
    assert_eq!(refused, Err(engine::api::FsError::Invalid));
    work(&pool, 1, 30);
    let mut tried = None;
    pool.fileset_admin()
        .diff((&root, &c), (&root, None), [0; 16], &mut |_| {
            tried.get_or_insert_with(|| pool.fileset_admin().delete_snapshot(&root, &c));
            ControlFlow::Continue(())
        })
        .expect("both can be read");
    let refused = tried.expect("something differs").expect_err("it is being read").to_string();
    assert!(refused.contains("it is being read"), "{refused}");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}
