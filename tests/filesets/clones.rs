//! Clones, restores and promotions: the tree of a family has several branches, and each node keeps
//! what it is, whatever is done to the others and wherever a crash cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::api::{Caller, Fallocate, FileKind, FileSystem, FsError, NewInode};
use engine::{NewFileset, Pool, PoolCreateOptions, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use storage::device::{MemoryDevice, SharedDevice};
use testkit::canon::{Times, Tree, differences, walk};
use testkit::crash::judge_cuts;

use super::{assert_clean, free_all, name, names, new_fileset, work};

const POOL_BYTES: u64 = 96 << 20;
const CRASH_POOL_BYTES: u64 = 32 << 20;

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

/// Opens a pool with the node of this name as what it serves.
fn open(device: &SharedDevice, node: &str) -> Pool {
    let (fileset, snapshot) = match node.split_once('@') {
        Some((fileset, snapshot)) => (fileset, Some(part(snapshot))),
        None => (node, None),
    };
    let options =
        PoolOpenOptions { fileset: Some(name(fileset)), snapshot, ..PoolOpenOptions::default() };
    let clock = Arc::new(ManualClock::new());
    Pool::open(Arc::clone(device), clock, options).expect("the pool opens")
}

fn new_pool(bytes: u64) -> SharedDevice {
    let device: SharedDevice = MemoryDevice::new("memory", bytes);
    let create = PoolCreateOptions::new(bytes, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    device
}

fn tree_of(pool: &Pool) -> Tree {
    walk(pool, Times::Changes).expect("it can be read")
}

fn split(node: &str) -> (String, NamePart) {
    let (fileset, snapshot) = node.split_once('@').expect("it is a snapshot");
    (fileset.to_owned(), part(snapshot))
}

/// The trees of all nodes of a pool, as they must be.
#[derive(Clone, Default)]
struct Nodes {
    trees: BTreeMap<String, Tree>,
    /// Of each node its parent in the family.
    parents: BTreeMap<String, Option<String>>,
    taken: u32,
}

impl Nodes {
    fn pick(&self, prng: &mut Prng, is_snapshot: bool) -> Option<String> {
        let of_kind = |node: &&String| node.contains('@') == is_snapshot && *node != "root";
        let all: Vec<&String> = self.trees.keys().filter(of_kind).collect();
        let chosen = usize::try_from(prng.next_u64()).expect("64 bits") % all.len().max(1);
        all.get(chosen).map(|node| (*node).clone())
    }

    fn children(&self, node: &str) -> Vec<String> {
        let is_child = |(_, parent): &(&String, &Option<String>)| parent.as_deref() == Some(node);
        self.parents.iter().filter(is_child).map(|(child, _)| child.clone()).collect()
    }

    fn remove(&mut self, node: &str) {
        self.trees.remove(node);
        let parent = self.parents.remove(node).flatten();
        for above in self.parents.values_mut() {
            if above.as_deref() == Some(node) {
                above.clone_from(&parent);
            }
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let tree = self.trees.remove(from).expect("it is there");
        self.trees.insert(to.to_owned(), tree);
        let parent = self.parents.remove(from).expect("it is there");
        self.parents.insert(to.to_owned(), parent);
        for above in self.parents.values_mut().filter(|above| above.as_deref() == Some(from)) {
            *above = Some(to.to_owned());
        }
    }

    /// Takes a snapshot of what `pool` serves.
    fn take(&mut self, pool: &Pool, fileset: &str) {
        self.taken += 1;
        let snapshot = format!("c{}", self.taken);
        let random = [self.taken.to_le_bytes()[0]; 16];
        pool.fileset_admin()
            .create_snapshot(&name(fileset), &part(&snapshot), random)
            .expect("there is room");
        let node = format!("{fileset}@{snapshot}");
        self.trees.insert(node.clone(), tree_of(pool));
        let parent = self.parents.insert(fileset.to_owned(), Some(node.clone())).flatten();
        self.parents.insert(node, parent);
    }

    fn make_clone(&mut self, pool: &Pool, snapshot: &str) -> String {
        self.taken += 1;
        let clone = format!("f{}", self.taken);
        let (fileset, own) = split(snapshot);
        let random = [self.taken.to_le_bytes()[0]; 16];
        pool.fileset_admin()
            .create_clone((&name(&fileset), &own), &name(&clone), random)
            .expect("there is room");
        self.trees.insert(clone.clone(), self.trees[snapshot].clone());
        self.parents.insert(clone.clone(), Some(snapshot.to_owned()));
        clone
    }

    fn restore(&mut self, pool: &Pool, snapshot: &str) -> Result<(), FsError> {
        let (fileset, own) = split(snapshot);
        pool.fileset_admin().restore_fileset(&name(&fileset), &own)?;
        self.trees.insert(fileset.clone(), self.trees[snapshot].clone());
        self.parents.insert(fileset, Some(snapshot.to_owned()));
        Ok(())
    }

    fn delete_snapshot(&mut self, pool: &Pool, node: &str) {
        let (fileset, own) = split(node);
        let children = self.children(node);
        let deleted = pool.fileset_admin().delete_snapshot(&name(&fileset), &own);
        if children.len() > 1 {
            let Err(FsError::FilesetInUse { by, .. }) = deleted else {
                panic!("{node} has {children:?} and was deleted: {deleted:?}");
            };
            assert!(children.iter().all(|child| by.contains(child)), "{children:?}: {by}");
        } else {
            deleted.unwrap_or_else(|error| panic!("{node}: {error}"));
            self.remove(node);
        }
    }

    fn delete_fileset(&mut self, pool: &Pool, fileset: &str) {
        let has_snapshots = self.trees.keys().any(|node| node.starts_with(&format!("{fileset}@")));
        let deleted = pool.fileset_admin().delete_fileset(&name(fileset));
        assert_eq!(deleted.is_ok(), !has_snapshots, "{fileset}: {deleted:?}");
        if deleted.is_ok() {
            self.remove(fileset);
        }
    }

    fn promote(&mut self, pool: &Pool, fileset: &str) {
        let (mut path, mut next) = (Vec::new(), self.parents[fileset].clone());
        while let Some(node) = next {
            next = self.parents[&node].clone();
            path.push(node);
        }
        path.retain(|node| !node.starts_with(&format!("{fileset}@")));
        path.reverse();
        let named = |node: &String| format!("{fileset}@{}", split(node).1.as_str());
        let renamed: Vec<String> = path.iter().map(named).collect();
        match pool.fileset_admin().promote_fileset(&name(fileset)) {
            Ok(names) => assert_eq!(names, renamed),
            Err(error) => assert!(path.is_empty(), "{fileset}: {error}: {path:?}"),
        }
        path.iter().zip(&renamed).for_each(|(from, to)| self.rename(from, to));
    }

    fn check(&self, device: &SharedDevice, what: &str) {
        assert_clean(device);
        for (node, tree) in &self.trees {
            let pool = open(device, node);
            let differ = differences(tree, &tree_of(&pool));
            assert!(differ.is_empty(), "{what}: {node}: {:?}", differ.first());
            pool.close().expect("nothing fails");
        }
        assert_clean(device);
    }
}

/// Changes what a fileset is and notes it.
fn change(nodes: &mut Nodes, device: &SharedDevice, fileset: &str, seed: u64, steps: usize) {
    let pool = open(device, fileset);
    pool.tick().expect("nothing fails");
    work(&pool, seed, steps);
    nodes.trees.insert(fileset.to_owned(), tree_of(&pool));
    pool.close().expect("nothing fails");
}

/// One change of the tree of nodes, by chance.
fn change_nodes(nodes: &mut Nodes, device: &SharedDevice, prng: &mut Prng) -> String {
    let pool = open(device, "root");
    pool.tick().expect("nothing fails");
    let snapshot = nodes.pick(prng, true);
    let fileset = nodes.pick(prng, false).expect("there is always one");
    let done = match (prng.below(8), snapshot) {
        (0 | 1, Some(snapshot)) => format!("{} of {snapshot}", nodes.make_clone(&pool, &snapshot)),
        (2 | 3, Some(snapshot)) => {
            let restored = nodes.restore(&pool, &snapshot);
            restored.unwrap_or_else(|error| panic!("{snapshot}: {error}"));
            format!("restore to {snapshot}")
        }
        (4, Some(snapshot)) => {
            nodes.delete_snapshot(&pool, &snapshot);
            format!("delete {snapshot}")
        }
        (5, _) if nodes.parents.keys().filter(|node| !node.contains('@')).count() > 2 => {
            nodes.delete_fileset(&pool, &fileset);
            format!("delete {fileset}")
        }
        (6, _) => {
            nodes.promote(&pool, &fileset);
            format!("promote {fileset}")
        }
        _ => "nothing".to_owned(),
    };
    if prng.one_in(2) {
        free_all(&pool);
    }
    pool.close().expect("nothing fails");
    done
}

/// Goal: each node of a family is what it was, and every fragment is held by whom it should be, in
/// trees with several branches. Method: random snapshots, clones, restores, promotions and
/// deletions between random histories; each node is compared with a copy of its tree, and the
/// checker asked, in the middle of freeing too.
#[test]
fn each_node_of_a_tree_of_clones_stays_what_it_was() {
    for seed in 0..6 {
        let device = new_pool(POOL_BYTES);
        let mut prng = Prng::from_seed(seed);
        let mut nodes = Nodes::default();
        let pool = open(&device, "root");
        pool.fileset_admin().create_fileset(&name("a"), &new_fileset(200)).expect("there is room");
        pool.close().expect("nothing fails");
        for node in ["a", "root"] {
            nodes.parents.insert(node.to_owned(), None);
            change(&mut nodes, &device, node, seed + 900, 60);
        }
        for step in 0..24 {
            let fileset = nodes.pick(&mut prng, false).expect("there is always one");
            change(&mut nodes, &device, &fileset, seed * 1000 + step, 25);
            if prng.one_in(2) {
                let pool = open(&device, &fileset);
                nodes.take(&pool, &fileset);
                pool.close().expect("nothing fails");
            }
            let done = change_nodes(&mut nodes, &device, &mut prng);
            nodes.check(&device, &format!("seed {seed} step {step} ({done})"));
        }
        free_everything(&mut nodes, &device);
    }
}

/// Deletes all nodes but one: what is left is as large as a pool that never had others.
fn free_everything(nodes: &mut Nodes, device: &SharedDevice) {
    let pool = open(device, "root");
    free_all(&pool);
    while nodes.trees.len() > 2 {
        let before = nodes.trees.len();
        for node in nodes.trees.keys().cloned().collect::<Vec<_>>() {
            if node.contains('@') {
                nodes.delete_snapshot(&pool, &node);
            } else if node != "root" && nodes.trees.len() > 2 {
                nodes.delete_fileset(&pool, &node);
            }
            free_all(&pool);
        }
        if nodes.trees.len() == before {
            let clones: Vec<_> =
                nodes.trees.keys().filter(|it| !it.contains('@')).cloned().collect();
            clones.iter().for_each(|clone| nodes.promote(&pool, clone));
        }
    }
    pool.close().expect("nothing fails");
    nodes.check(device, "after all is deleted");
}

/// Goal: room that files of a snapshot reserve is kept for each clone as well, and given back with
/// it.
#[test]
fn a_clone_takes_on_what_its_snapshot_reserves() {
    let device = new_pool(POOL_BYTES);
    let pool = open(&device, "root");
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(200)).expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(&device, "a");
    let new = NewInode::new(FileKind::Regular, 0o644);
    let file = pool.create(&Caller::root(), pool.root(), b"f", new, None).expect("there is room");
    let caller = Caller::root();
    let all = Fallocate::Allocate { keep_size: false };
    pool.fallocate(&caller, file.ino, 0, 20 << 20, all).expect("there is room");
    pool.write(&caller, file.ino, 0, &[7; 100_000]).expect("it is reserved");
    pool.forget(file.ino, 1);
    pool.fileset_admin().create_snapshot(&name("a"), &part("c"), [1; 16]).expect("there is room");
    let reserved = pool.status().space.reserved;
    pool.close().expect("nothing fails");
    let pool = open(&device, "root");
    let make_clone = |text: &str| {
        pool.fileset_admin().create_clone((&name("a"), &part("c")), &name(text), [9; 16])
    };
    make_clone("b").expect("there is room");
    assert!(reserved > 4_000 && pool.status().space.reserved == 2 * reserved);
    pool.fileset_admin().restore_fileset(&name("a"), &part("c")).expect("nobody uses it");
    let refused = (0..8).find_map(|number| make_clone(&format!("b{number}")).err());
    assert_eq!(refused, Some(FsError::NoSpace), "20 MiB each of 96");
    for made in names(&pool).iter().filter(|it| it.starts_with('b')) {
        pool.fileset_admin().delete_fileset(&name(made)).expect("it has no snapshots");
    }
    free_all(&pool);
    assert_eq!(pool.status().space.reserved, reserved, "what the restored one has");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: what can't be done is refused, with the names that are in the way.
#[test]
fn what_a_tree_of_clones_forbids_is_refused_with_names() {
    let device = new_pool(POOL_BYTES);
    let pool = open(&device, "root");
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(200)).expect("there is room");
    pool.fileset_admin().create_snapshot(&name("a"), &part("c"), [1; 16]).expect("there is room");
    let from = (&name("a"), &part("c"));
    pool.fileset_admin().create_clone(from, &name("b"), [2; 16]).expect("there is room");
    let taken = pool.fileset_admin().create_clone(from, &name("b"), [2; 16]).map(drop);
    assert_eq!(taken, Err(FsError::FilesetExists { name: "b".to_owned() }));
    let missing =
        pool.fileset_admin().create_clone((&name("a"), &part("d")), &name("e"), [2; 16]).map(drop);
    assert_eq!(missing, Err(FsError::NoFileset { name: "a@d".to_owned() }));
    let nowhere = pool.fileset_admin().create_clone(from, &name("x/y"), [2; 16]).map(drop);
    assert_eq!(nowhere, Err(FsError::NoFileset { name: "x".to_owned() }));
    let refused = |result: Result<(), FsError>, words: &[&str]| match result {
        Err(error @ FsError::FilesetInUse { .. }) => {
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        other => panic!("{words:?}: {other:?}"),
    };
    refused(pool.fileset_admin().delete_snapshot(&name("a"), &part("c")), &["a", "b"]);
    refused(pool.fileset_admin().delete_fileset(&name("a")), &["a@c"]);
    refused(pool.fileset_admin().promote_fileset(&name("a")).map(drop), &["no clone"]);
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("c"), [1; 16])
        .expect("there is room");
    refused(
        pool.fileset_admin().restore_fileset(&name("root"), &part("c")).map(drop),
        &["unmount"],
    );
    pool.fileset_admin().hold_fileset(&name("a")).expect("it is there");
    refused(pool.fileset_admin().restore_fileset(&name("a"), &part("c")).map(drop), &["served"]);
    pool.fileset_admin().create_snapshot(&name("b"), &part("c"), [1; 16]).expect("there is room");
    let promoted = pool.fileset_admin().promote_fileset(&name("b")).map(drop);
    assert_eq!(promoted, Err(FsError::FilesetExists { name: "b@c".to_owned() }));
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: who may not delete a snapshot is told all that goes back to it, clones of clones too, and
/// how much of that must go first.
#[test]
fn a_snapshot_that_branches_names_all_of_each_branch() {
    let device = new_pool(POOL_BYTES);
    let pool = open(&device, "root");
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(200)).expect("there is room");
    let take = |of: &str, snapshot: &str| {
        pool.fileset_admin()
            .create_snapshot(&name(of), &part(snapshot), [1; 16])
            .expect("there is room");
    };
    let make_clone = |of: &str, snapshot: &str, clone: &str| {
        pool.fileset_admin()
            .create_clone((&name(of), &part(snapshot)), &name(clone), [2; 16])
            .expect("there is room");
    };
    let told = || {
        pool.fileset_admin()
            .delete_snapshot(&name("a"), &part("x"))
            .expect_err("it branches")
            .to_string()
    };
    take("a", "x");
    make_clone("a", "x", "b");
    take("b", "p");
    make_clone("b", "p", "c");
    take("a", "y");
    let text = told();
    assert!(text.contains("2 branches go back to it"), "{text}");
    assert!(text.contains("[a@y, a]") && text.contains("delete all of one of them"), "{text}");
    let is_named = ["[b@p, b, c]", "[b@p, c, b]"].iter().any(|branch| text.contains(branch));
    assert!(is_named, "{text}");
    make_clone("a", "x", "d");
    for number in 0..10 {
        take("d", &format!("d{number}"));
    }
    let text = told();
    assert!(text.contains("3 branches") && text.contains("all of them but one"), "{text}");
    assert!(text.contains("d@d7 and 3 more]") && !text.contains("d@d8"), "{text}");
    for number in 0..10 {
        pool.fileset_admin()
            .delete_snapshot(&name("d"), &part(&format!("d{number}")))
            .expect("none goes back to it");
        free_all(&pool);
    }
    for fileset in ["d", "c"] {
        pool.fileset_admin().delete_fileset(&name(fileset)).expect("nobody uses it");
        free_all(&pool);
    }
    pool.fileset_admin().delete_snapshot(&name("b"), &part("p")).expect("b alone goes back to it");
    free_all(&pool);
    pool.fileset_admin().delete_fileset(&name("b")).expect("nobody uses it");
    free_all(&pool);
    pool.fileset_admin().delete_snapshot(&name("a"), &part("x")).expect("one branch is left");
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}

/// Goal: a fileset that was restored while its pool is open is what its snapshot was, is opened and
/// changed as any other, and restored again.
#[test]
fn a_fileset_is_restored_again_and_again_while_its_pool_is_open() {
    let device = new_pool(POOL_BYTES);
    let pool = open(&device, "root");
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(200)).expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(&device, "a");
    work(&pool, 5, 100);
    let tree = tree_of(&pool);
    pool.fileset_admin().create_snapshot(&name("a"), &part("c"), [1; 16]).expect("there is room");
    work(&pool, 6, 100);
    pool.fileset_admin()
        .create_snapshot(&name("a"), &part("later"), [2; 16])
        .expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(&device, "root");
    let before: Vec<_> = pool.fileset_admin().filesets().expect("they can be read");
    let slot_of = |all: &[engine::FilesetInfo]| {
        all.iter().find(|it| it.name == "a").map(|it| (it.slot, it.uuid)).expect("it is there")
    };
    for number in 0..5_u8 {
        let restored =
            pool.fileset_admin().restore_fileset(&name("a"), &part("c")).expect("nobody uses it");
        assert_eq!(restored.later[0], "a@later");
        // A snapshot of it opens it.
        pool.fileset_admin()
            .create_snapshot(&name("a"), &part(&format!("r{number}")), [3; 16])
            .expect("room");
        pool.tick().expect("nothing fails");
    }
    assert_eq!(
        slot_of(&pool.fileset_admin().filesets().expect("they can be read")),
        slot_of(&before)
    );
    free_all(&pool);
    pool.close().expect("nothing fails");
    for node in ["a", "a@c", "a@r0", "a@r4"] {
        let pool = open(&device, node);
        let differ = differences(&tree, &tree_of(&pool));
        assert!(differ.is_empty(), "{node}: {:?}", differ.first());
        pool.close().expect("nothing fails");
    }
    assert_clean(&device);
}

/// A state of the nodes, and the span of the recording in which it may be found.
struct State {
    trees: BTreeMap<String, Tree>,
    began: usize,
    ended: usize,
}

fn judge(image: &Image, allowed: &[&State]) -> Result<(), String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let checked = |when: &str| super::expect_clean(&shared, when);
    checked("before the open")?;
    let pool = open(&shared, "root");
    let found: BTreeSet<String> = names(&pool).into_iter().collect();
    pool.close().map_err(|error| error.to_string())?;
    drop(pool);
    checked("after the open")?;
    let mut trees = BTreeMap::new();
    for node in &found {
        let pool = open(&shared, node);
        trees.insert(node.clone(), tree_of(&pool));
        if !node.contains('@') {
            work(&pool, 77, 8);
        }
        pool.close().map_err(|error| error.to_string())?;
    }
    checked("after more work")?;
    let is_it = |state: &&&State| {
        let is_same = |(node, tree): (&String, &Tree)| {
            trees.get(node).is_some_and(|found| differences(tree, found).is_empty())
        };
        state.trees.len() == trees.len() && state.trees.iter().all(is_same)
    };
    if !allowed.iter().any(|state| is_it(&state)) {
        return Err(format!("found {found:?}, which is none of {} states", allowed.len()));
    }
    let pool = open(&shared, "root");
    free_all(&pool);
    pool.close().map_err(|error| error.to_string())?;
    drop(pool);
    checked("after all is freed")?;
    for node in found.iter().filter(|node| node.contains('@')) {
        let pool = open(&shared, node);
        let differ = differences(&trees[node], &tree_of(&pool));
        if !differ.is_empty() {
            return Err(format!("after all is freed: {node}: {:?}", differ.first()));
        }
    }
    Ok(())
}

/// Goal: no crash halves a clone, a restore or a promotion. Method: cut at every write of a history
/// of them; what is found is a state from before or after the one under way, and goes on.
#[test]
fn a_crash_leaves_each_clone_restore_and_promotion_whole_or_undone() {
    let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let pool = open(&shared, "root");
    // The checker holds the pool's count of what is reserved against the entries.
    let new = NewFileset { reservation_bytes: 1 << 20, ..new_fileset(200) };
    pool.fileset_admin().create_fileset(&name("a"), &new).expect("there is room");
    pool.close().expect("nothing fails");
    let mut nodes = Nodes::default();
    for node in ["a", "root"] {
        nodes.parents.insert(node.to_owned(), None);
        change(&mut nodes, &shared, node, 3, 20);
    }
    let pool = open(&shared, "a");
    nodes.take(&pool, "a");
    work(&pool, 4, 20);
    nodes.take(&pool, "a");
    work(&pool, 5, 20);
    nodes.trees.insert("a".to_owned(), tree_of(&pool));
    pool.close().expect("nothing fails");
    drop(pool);
    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::open(device.durable_image(), options);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared, "root");
    pool.tick().expect("nothing fails");
    let mut states = vec![State { trees: nodes.trees.clone(), began: 0, ended: usize::MAX }];
    for step in 0..7 {
        let began = device.position();
        match step {
            0 => drop(nodes.make_clone(&pool, "a@c1")),
            1 | 3 => nodes.restore(&pool, "a@c1").expect("nobody uses it"),
            2 => pool.checkpoint().expect("nothing fails"),
            4 => nodes.promote(&pool, "f3"),
            5 => {
                free_all(&pool);
                nodes.delete_snapshot(&pool, "a@c2");
            }
            _ => free_all(&pool),
        }
        states.last_mut().expect("there is one").ended = device.position();
        states.push(State { trees: nodes.trees.clone(), began, ended: usize::MAX });
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let strategy =
        Strategy { exhaustive_writes_max: 2, random_subsets: 2, torn_variants: 1, seed: 5 };
    let may_be = |at: usize| {
        let is_one = |state: &State| state.began < at.max(1) && at <= state.ended;
        (0..states.len()).filter(|&nth| is_one(&states[nth])).collect::<Vec<usize>>()
    };
    let judged = judge_cuts("clones", &device.recording(), &strategy, may_be, |cut| {
        let allowed: Vec<&State> = cut.known.iter().map(|&nth| &states[nth]).collect();
        judge(&cut.image, &allowed)
    });
    assert!(judged > 60, "{judged} images mean little");
}

/// Goal: a snapshot that is held is not deleted, by whoever holds it; holds are listed, bounded and
/// outlive a restart.
#[test]
fn a_snapshot_that_is_held_stays() {
    let device = new_pool(POOL_BYTES);
    let pool = open(&device, "root");
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("c"), [1; 16])
        .expect("there is room");
    let root = name("root");
    let hold = |pool: &Pool, text: &str, is_held| {
        pool.fileset_admin().set_hold((&root, &part("c")), &part(text), is_held)
    };
    hold(&pool, "backup", true).expect("it is the first");
    hold(&pool, "send", true).expect("there is room");
    let again = hold(&pool, "backup", true);
    assert_eq!(again, Err(FsError::FilesetExists { name: "root@c held by backup".to_owned() }));
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
    let pool = open(&device, "root");
    let holds = |pool: &Pool| {
        let all = pool.fileset_admin().filesets().expect("they can be read");
        all.into_iter().find(|it| it.name == "root@c").map(|it| it.holds).unwrap_or_default()
    };
    assert_eq!(holds(&pool), ["backup", "send"]);
    let Err(FsError::FilesetInUse { by, .. }) =
        pool.fileset_admin().delete_snapshot(&root, &part("c"))
    else {
        panic!("it was deleted")
    };
    assert!(by.contains("backup, send"), "{by}");
    let more = (0..16).find_map(|number| hold(&pool, &format!("h{number}"), true).err());
    assert!(matches!(more, Some(FsError::FilesetInUse { .. })), "{more:?}");
    for text in holds(&pool) {
        hold(&pool, &text, false).expect("it is there");
    }
    let missing = hold(&pool, "send", false);
    assert_eq!(missing, Err(FsError::NoFileset { name: "root@c held by send".to_owned() }));
    pool.fileset_admin().delete_snapshot(&root, &part("c")).expect("nobody holds it");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: snapshots of a fileset and of those below it are of one moment: all or none. Method: a
/// file is made in one after the other, and snapshots are taken between; cuts at every write.
#[test]
fn snapshots_of_filesets_below_are_of_one_moment() {
    let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let pool = open(&shared, "root");
    let all = ["a", "a/b", "a/b/c", "a/d", "a/e", "a/f", "a/g", "a/h"];
    for (number, text) in (10..).zip(all) {
        pool.fileset_admin()
            .create_fileset(&name(text), &new_fileset(number))
            .expect("there is room");
    }
    pool.close().expect("nothing fails");
    let mut trees = BTreeMap::new();
    for (seed, text) in (0..).zip(all) {
        let pool = open(&shared, text);
        work(&pool, seed, 15);
        trees.insert(format!("{text}@m"), tree_of(&pool));
        pool.close().expect("nothing fails");
    }
    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::open(device.durable_image(), options);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared, "root");
    let mut random = 0;
    let mut bits = || {
        random += 1;
        [random; 16]
    };
    let made = pool
        .fileset_admin()
        .create_snapshots_below(&name("a"), &part("m"), &mut bits)
        .expect("room");
    let answered = device.position();
    assert_eq!(made.iter().collect::<BTreeSet<_>>(), trees.keys().collect());
    pool.checkpoint().expect("nothing fails");
    let again = pool.fileset_admin().create_snapshots_below(&name("a"), &part("m"), &mut bits);
    assert!(matches!(again, Err(FsError::FilesetExists { .. })), "{again:?}");
    let taken = pool.fileset_admin().create_snapshot(&name("a/d"), &part("n"), [7; 16]);
    taken.expect("there is room");
    let refused = pool.fileset_admin().create_snapshots_below(&name("a"), &part("n"), &mut bits);
    assert!(matches!(refused, Err(FsError::FilesetExists { .. })), "{refused:?}");
    assert_eq!(names(&pool).iter().filter(|it| it.ends_with("@n")).count(), 1, "all or none");
    pool.close().expect("nothing fails");
    drop(pool);
    let strategy =
        Strategy { exhaustive_writes_max: 3, random_subsets: 3, torn_variants: 1, seed: 5 };
    let mut counts = BTreeSet::new();
    for point in device.recording().points() {
        for image in point.images(&strategy) {
            let device = SimDevice::open(image.image, SimOptions::default());
            let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
            assert_clean(&shared);
            let pool = open(&shared, "root");
            let found: Vec<_> = names(&pool).into_iter().filter(|it| it.ends_with("@m")).collect();
            pool.close().expect("nothing fails");
            assert!(found.is_empty() || found.len() == all.len(), "all or none: {found:?}");
            assert!(!found.is_empty() || point.position() < answered, "it was answered");
            if counts.insert((found.len(), point.position())) {
                found.iter().for_each(|snapshot| {
                    let pool = open(&shared, snapshot);
                    let differ = differences(&trees[snapshot], &tree_of(&pool));
                    assert!(differ.is_empty(), "{snapshot}: {:?}", differ.first());
                    pool.close().expect("nothing fails");
                });
            }
        }
    }
    for number in 0..16 {
        let pool = open(&shared, "root");
        let text = format!("a/x{number}");
        pool.fileset_admin()
            .create_fileset(&name(&text), &new_fileset(100 + number))
            .expect("there is room");
        pool.close().expect("nothing fails");
    }
    let pool = open(&shared, "root");
    let many = pool.fileset_admin().create_snapshots_below(&name("a"), &part("many"), &mut bits);
    assert!(matches!(many, Err(FsError::FilesetInUse { .. })), "{many:?}");
    pool.close().expect("nothing fails");
    assert_clean(&shared);
}

/// Goal: a promotion gives a clone the snapshots that lie before one that is being freed, too.
#[test]
fn a_promotion_goes_past_what_is_being_freed() {
    let device = new_pool(CRASH_POOL_BYTES);
    let pool = open(&device, "root");
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(1)).expect("there is room");
    for snapshot in ["c0", "c1", "c2"] {
        pool.fileset_admin()
            .create_snapshot(&name("a"), &part(snapshot), [5; 16])
            .expect("there is room");
    }
    pool.fileset_admin()
        .create_clone((&name("a"), &part("c2")), &name("b"), [6; 16])
        .expect("there is room");
    // Nobody ticks: it is freed later.
    pool.fileset_admin().delete_snapshot(&name("a"), &part("c1")).expect("nobody holds it");
    let promoted = pool.fileset_admin().promote_fileset(&name("b")).expect("it is a clone");
    assert_eq!(promoted, ["b@c0", "b@c2"]);
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}
