//! Metadata pages are moved out of allocation groups while the pool is in use: each who holds one
//! finds it where it is then, and nothing is left behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FilesetUuid, Ino, NewInode, SetAttr, XattrMode};
use engine::{PageMoveReport, Pool, PoolCreateOptions, PoolOpenOptions, Shortage};
use format::fileset::NamePart;
use runtime::clock::{Clock, ManualClock, SimClock};
use runtime::prng::Prng;
use runtime::sync::Mutex;
use runtime::sync::sim::Scheduler;
use storage::device::sim::{SimDevice, SimOptions, Strategy};
use storage::device::{MemoryDevice, SharedDevice};
use testkit::canon::{Times, Tree, differences, walk_below};
use testkit::crash::judge_cuts;

use super::{assert_clean, expect_clean, free_all, name, new_fileset, work};

const POOL_BYTES: u64 = 64 << 20;
const CRASH_POOL_BYTES: u64 = 20 << 20;
const GROUP_BYTES: u64 = 2 << 20;
/// Groups that keep what is moved.
const KEPT: u32 = 10;
const CRASH_KEPT: u32 = 5;
/// What the large directory has: it has split pages, and those tell where.
const NAMES: u32 = 900;
/// Offsets in the large file: its map is two levels high.
const OFFSETS: [u64; 6] = [0, 1 << 20, 20 << 20, 40 << 20, 900 << 20, 1 << 30];

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

/// A pool, and who says which groups give no pages.
struct Opened {
    pool: Pool,
    shortage: Arc<Shortage>,
}

impl Opened {
    fn at(device: &SharedDevice, clock: Arc<dyn Clock>) -> Opened {
        let shortage = Arc::new(Shortage::default());
        let options =
            PoolOpenOptions { shortage: Some(Arc::clone(&shortage)), ..PoolOpenOptions::default() };
        let pool = Pool::open(Arc::clone(device), clock, options).expect("the pool opens");
        Opened { pool, shortage }
    }

    fn groups(&self) -> u32 {
        self.pool.status().geometry.group_count
    }

    /// Lets a few groups give pages, by chance: so they lie all over the pool.
    fn scatter(&self, prng: &mut Prng) {
        let mut some = || prng.below(u64::from(self.groups()));
        let kept = [some(), some(), some()];
        self.shortage.bar((0..self.groups()).filter(|group| !kept.contains(&u64::from(*group))));
    }

    /// Moves all pages out of `group`, and lets no others come there or to a later one.
    fn empty(&self, group: u32) -> PageMoveReport {
        self.shortage.bar(group..self.groups());
        self.pool.move_pages(group).expect("nothing fails")
    }
}

fn open(device: &SharedDevice) -> Opened {
    Opened::at(device, Arc::new(ManualClock::new()))
}

fn create(device: &SharedDevice, bytes: u64) {
    let mut options = PoolCreateOptions::new(bytes, [3; 64]);
    options.geometry.segment_bytes = Some(128 << 10);
    options.geometry.group_bytes = Some(GROUP_BYTES);
    options.geometry.journal_bytes = Some(1 << 20);
    Pool::create(device, &ManualClock::new(), &options).expect("a pool fits");
}

fn new_file(pool: &Pool, directory: Ino, text: &str) -> Ino {
    let new = NewInode::new(FileKind::Regular, 0o644);
    pool.create(&Caller::root(), directory, text.as_bytes(), new, None).expect("room").ino
}

fn write(pool: &Pool, ino: Ino, offset: u64, length: usize, byte: u8) {
    pool.write(&Caller::root(), ino, offset, &vec![byte; length]).expect("there is room");
}

/// Makes a large directory, files with high and split maps, attributes, and files without a name.
/// Returns those, which are open.
fn fill(opened: &Opened, root: Ino, prng: &mut Prng, names: u32) -> Vec<Ino> {
    let (pool, caller) = (&opened.pool, Caller::root());
    let new = NewInode::new(FileKind::Directory, 0o755);
    let directory = pool.create(&caller, root, b"large", new, None).expect("there is room").ino;
    for number in 0..names {
        let text = format!("{number:0>40}");
        let ino = new_file(pool, directory, &text);
        pool.forget(ino, 1);
        if number % 100 == 0 {
            opened.scatter(prng);
        }
    }
    let file = new_file(pool, root, "high");
    for offset in OFFSETS {
        write(pool, file, offset, 40_000, 1);
        pool.sync().expect("nothing fails");
        opened.scatter(prng);
    }
    let divided = new_file(pool, root, "divided");
    write(pool, divided, 0, 1 << 20, 2);
    pool.sync().expect("nothing fails");
    for block in 0..20 {
        write(pool, divided, block * 16_384 + 4096, 4096, 3);
    }
    pool.sync().expect("nothing fails");
    for ino in [file, divided, directory] {
        let value = vec![5; 3000];
        let mode = XattrMode::Set;
        pool.setxattr(&caller, ino, b"user.long", &value, mode, None).expect("it fits");
    }
    let nameless = (0..3).map(|number| {
        let text = format!("nameless{number}");
        let ino = new_file(pool, root, &text);
        write(pool, ino, 0, 300_000, 6);
        pool.unlink(&caller, root, text.as_bytes(), None).expect("it is there");
        ino
    });
    let nameless = nameless.collect();
    pool.sync().expect("nothing fails");
    nameless
}

/// Changes some of what [`fill`] made, and lets others give pages from then on.
fn change(opened: &Opened, root: Ino, prng: &mut Prng, names: u32) {
    change_some(&opened.pool, root, prng, names);
    opened.scatter(prng);
}

fn change_some(pool: &Pool, root: Ino, prng: &mut Prng, names: u32) {
    let caller = Caller::root();
    let look = |directory: Ino, text: &str| {
        let found = pool.lookup(&caller, directory, text.as_bytes());
        found.ok().inspect(|found| pool.forget(found.ino, 1)).map(|found| found.ino)
    };
    let directory = look(root, "large").expect("it is there");
    for _ in 0..40 {
        let text = format!("{:0>40}", prng.below(u64::from(names)));
        match look(directory, &text) {
            Some(_) => pool.unlink(&caller, directory, text.as_bytes(), None).expect("there"),
            None => pool.forget(new_file(pool, directory, &text), 1),
        }
    }
    let file = look(root, "high").expect("it is there");
    let offset = OFFSETS[usize::try_from(prng.below(6)).expect("small")];
    write(pool, file, offset + (prng.below(30_000) & !4095), 4096, 9);
    let divided = look(root, "divided").expect("it is there");
    write(pool, divided, prng.below(1 << 20) & !4095, 4096, 8);
    let mode = XattrMode::Set;
    pool.setxattr(&caller, file, b"user.more", &[7; 500], mode, None).expect("it fits");
    pool.sync().expect("nothing fails");
}

/// The nodes of a pool that are looked at, by name.
struct Nodes(Vec<(String, FilesetUuid)>);

impl Nodes {
    fn hold(pool: &Pool, nodes: &[&str]) -> Nodes {
        let hold = |node: &&str| {
            let uuid = match node.split_once('@') {
                Some((fileset, snapshot)) => {
                    pool.fileset_admin().hold_snapshot(&name(fileset), &part(snapshot))
                }
                None => pool.fileset_admin().hold_fileset(&name(node)),
            };
            ((*node).to_owned(), uuid.expect("it is there"))
        };
        Nodes(nodes.iter().map(hold).collect())
    }

    fn trees(&self, pool: &Pool) -> BTreeMap<String, Tree> {
        let nodes: Vec<&str> = self.0.iter().map(|(node, _)| node.as_str()).collect();
        self.trees_of(pool, &nodes)
    }

    fn trees_of(&self, pool: &Pool, nodes: &[&str]) -> BTreeMap<String, Tree> {
        let tree = |(node, uuid): &(String, FilesetUuid)| {
            let root = pool.root_of(*uuid).expect("it is held");
            let walked = walk_below(pool, root, Times::Ignored);
            (node.clone(), walked.unwrap_or_else(|error| panic!("{node}: {error}")))
        };
        let is_wanted = |(node, _): &&(String, FilesetUuid)| nodes.contains(&node.as_str());
        self.0.iter().filter(is_wanted).map(tree).collect()
    }
}

fn compare(
    before: &BTreeMap<String, Tree>,
    now: &BTreeMap<String, Tree>,
    when: &str,
) -> Result<(), String> {
    for (node, tree) in before {
        let found = now.get(node).ok_or_else(|| format!("{when}: no {node}"))?;
        let differences = differences(tree, found);
        if !differences.is_empty() {
            return Err(format!("{when}: {node}: {differences:?}"));
        }
    }
    Ok(())
}

/// The nodes of the pools under test.
const NODES: [&str; 7] = ["root", "root@a", "root@b", "root@c", "clone", "home", "home@d"];

/// Makes filesets, snapshots of different times, and a clone of one; returns open files without a
/// name.
fn populate(opened: &Opened, prng: &mut Prng, names: u32) -> Vec<Ino> {
    let pool = &opened.pool;
    opened.scatter(prng);
    pool.fileset_admin().create_fileset(&name("home"), &new_fileset(7)).expect("there is room");
    // So many that their table has a map.
    for number in 0..70_u8 {
        let text = format!("home/f{number}");
        pool.fileset_admin()
            .create_fileset(&name(&text), &new_fileset(100 + number))
            .expect("there is room");
        if number % 7 == 0 {
            opened.scatter(prng);
        }
    }
    pool.fileset_admin().switch_quotas_on(&name("root")).expect("there is room");
    let mut nameless = fill(opened, pool.root(), prng, names);
    let take = |fileset: &str, snapshot: &str| {
        let random = [snapshot.as_bytes()[0]; 16];
        pool.fileset_admin()
            .create_snapshot(&name(fileset), &part(snapshot), random)
            .expect("there is room");
    };
    take("root", "a");
    change(opened, pool.root(), prng, names);
    take("root", "b");
    change(opened, pool.root(), prng, names);
    take("root", "c");
    let clone = (&name("root"), &part("b"));
    pool.fileset_admin().create_clone(clone, &name("clone"), [0x55; 16]).expect("there is room");
    let hold = |fileset: &str| {
        let uuid = pool.fileset_admin().hold_fileset(&name(fileset)).expect("it is there");
        pool.root_of(uuid).expect("it is held")
    };
    change(opened, hold("clone"), prng, names);
    change(opened, pool.root(), prng, names);
    nameless.extend(fill(opened, hold("home"), prng, names / 4));
    take("home", "d");
    change(opened, hold("home"), prng, names / 4);
    pool.sync().expect("nothing fails");
    nameless
}

fn read_nameless(pool: &Pool, nameless: &[Ino]) {
    for ino in nameless {
        let mut bytes = Vec::new();
        pool.read(&Caller::root(), *ino, 0, 300_000, &mut bytes).expect("it can be read");
        assert!(bytes == [6; 300_000]);
    }
}

/// Goal: whatever a page belongs to, all who hold it find it where it was moved, and nothing is
/// left in the group. Method: filesets, snapshots and a clone whose pages lie all over the pool;
/// each group is emptied in turn, the last one first, with all trees in memory, or none.
#[test]
fn whoever_holds_a_page_finds_it_where_it_was_moved() {
    for (seed, is_in_memory) in [(1, true), (2, false)] {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        create(&device, POOL_BYTES);
        let mut opened = open(&device);
        let mut prng = Prng::from_seed(seed);
        let mut nameless = populate(&opened, &mut prng, NAMES);
        let mut nodes = Nodes::hold(&opened.pool, &NODES);
        let before = nodes.trees(&opened.pool);
        if !is_in_memory {
            opened.pool.close().expect("nothing fails");
            drop(opened);
            opened = open(&device);
            nameless.clear();
        }
        let (mut moved, mut emptied) = (0, 0);
        for group in (KEPT..opened.groups()).rev() {
            let of_group = opened.empty(group);
            assert_eq!((of_group.busy, of_group.bad), (0, 0), "seed {seed}: group {group}");
            assert_eq!(
                opened.pool.move_pages(group),
                Ok(PageMoveReport::default()),
                "nothing is left"
            );
            moved += of_group.moved;
            emptied += u32::from(of_group.moved > 0);
            read_nameless(&opened.pool, &nameless);
        }
        assert!(moved > 200 && emptied > 5, "{moved} pages of {emptied} groups are too few");
        if !is_in_memory {
            nodes = Nodes::hold(&opened.pool, &NODES);
        }
        let same = |opened: &Opened, nodes: &Nodes, when: &str| {
            let found = compare(&before, &nodes.trees(&opened.pool), when);
            found.unwrap_or_else(|found| panic!("seed {seed}: {found}"));
        };
        same(&opened, &nodes, "at once");
        opened.pool.checkpoint().expect("nothing fails");
        assert_clean(&device);
        opened.pool.close().expect("nothing fails");
        drop(opened);
        assert_clean(&device);
        // All can be changed, and what was left is given out again.
        let opened = open(&device);
        let nodes = Nodes::hold(&opened.pool, &NODES);
        same(&opened, &nodes, "opened again");
        for _ in 0..10 {
            change(&opened, opened.pool.root(), &mut prng, NAMES);
        }
        opened.pool.close().expect("nothing fails");
        drop(opened);
        assert_clean(&device);
        let opened = open(&device);
        opened
            .pool
            .fileset_admin()
            .delete_snapshot(&name("root"), &part("a"))
            .expect("nobody holds it");
        free_all(&opened.pool);
        opened.pool.close().expect("nothing fails");
        assert_clean(&device);
    }
}

/// Goal: what many nodes hold moves as well, though each has a page of its own that leads there.
/// Method: a directory of several pages, and snapshots between which another of them changed.
#[test]
fn pages_of_a_family_of_many_move() {
    const SNAPSHOTS: u8 = 30;
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    create(&device, POOL_BYTES);
    let opened = open(&device);
    let (pool, caller) = (&opened.pool, Caller::root());
    let new = NewInode::new(FileKind::Directory, 0o755);
    let directory = pool.create(&caller, pool.root(), b"large", new, None).expect("room").ino;
    // Where it begins the last groups give pages.
    opened.shortage.bar(0..KEPT);
    for number in 0..900 {
        let ino = new_file(pool, directory, &format!("{number:0>40}"));
        pool.forget(ino, 1);
    }
    let file = new_file(pool, pool.root(), "file");
    write(pool, file, 0, 1 << 20, 1);
    pool.sync().expect("nothing fails");
    let take_snapshot = |number: u8| part(&format!("c{number}"));
    for number in 0..SNAPSHOTS {
        pool.fileset_admin()
            .create_snapshot(&name("root"), &take_snapshot(number), [number; 16])
            .expect("there is room");
        let ino = new_file(pool, directory, &format!("another {number}"));
        pool.forget(ino, 1);
        write(pool, file, 1 << 20, 4096, number);
        pool.sync().expect("nothing fails");
    }
    let mut moved = 0;
    for group in (KEPT..opened.groups()).rev() {
        let of_group = opened.empty(group);
        assert_eq!((of_group.busy, of_group.bad), (0, 0), "group {group}");
        moved += of_group.moved;
    }
    assert!(moved > 30, "{moved}");
    opened.pool.checkpoint().expect("nothing fails");
    assert_clean(&device);
    for number in [0, SNAPSHOTS / 2, SNAPSHOTS - 1] {
        opened
            .pool
            .fileset_admin()
            .delete_snapshot(&name("root"), &take_snapshot(number))
            .expect("nobody holds it");
        free_all(&opened.pool);
    }
    opened.pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: files that are open while their pages move are read, written and freed as others are, and
/// a file that is written to before it is moved loses nothing. Method: writes wait in memory while
/// each group is emptied; after each, more is written, cut, named and removed.
#[test]
fn open_files_go_on_while_their_pages_move() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    create(&device, POOL_BYTES);
    let opened = open(&device);
    let mut prng = Prng::from_seed(5);
    let nameless = populate(&opened, &mut prng, NAMES);
    let (pool, caller) = (&opened.pool, Caller::root());
    let root = pool.root();
    let look = |text: &[u8]| pool.lookup(&caller, root, text).expect("it is there").ino;
    let (high, divided) = (look(b"high"), look(b"divided"));
    let mut expected = vec![0; 1 << 20];
    let mut read = Vec::new();
    pool.read(&caller, divided, 0, 1 << 20, &mut read).expect("it can be read");
    expected.copy_from_slice(&read);
    let mut moved = 0;
    for (round, group) in (KEPT..opened.groups()).rev().enumerate() {
        let byte = 100 + round.to_le_bytes()[0];
        let at = usize::try_from(prng.below(200)).expect("small") * 4096 + 100;
        write(pool, divided, u64::try_from(at).expect("small"), 6000, byte);
        expected[at..at + 6000].fill(byte);
        write(pool, high, OFFSETS[round % 6], 5000, byte);
        let ino = new_file(pool, root, &format!("new{round}"));
        write(pool, ino, 0, 50_000, byte);
        moved += opened.empty(group).moved;
        assert_eq!(pool.move_pages(group), Ok(PageMoveReport::default()), "nothing is left");
        let mut bytes = Vec::new();
        pool.read(&caller, divided, 0, 1 << 20, &mut bytes).expect("it can be read");
        assert!(bytes == expected, "round {round}");
        bytes.clear();
        pool.read(&caller, high, OFFSETS[round % 6], 5000, &mut bytes).expect("it can be read");
        assert!(bytes == vec![byte; 5000], "round {round}");
        pool.fsync(&caller, divided, false).expect("nothing fails");
        let size = SetAttr { size_bytes: Some(20_000), ..SetAttr::default() };
        pool.setattr(&caller, ino, &size, None).expect("nothing fails");
        let (from, to) = (format!("new{round}"), format!("old{round}"));
        let from = (root, from.as_bytes());
        pool.link(&caller, ino, root, to.as_bytes(), None).expect("there is room");
        pool.unlink(&caller, from.0, from.1, None).expect("it is there");
        read_nameless(pool, &nameless);
    }
    assert!(moved > 200, "{moved} pages are too few");
    for ino in nameless {
        pool.forget(ino, 1);
    }
    pool.tick().expect("nothing fails");
    pool.close().expect("nothing fails");
    drop(opened);
    assert_clean(&device);
}

/// Goal: a crash beside moves leaves every node what it was. Method: cut at every write while all
/// groups but some are emptied.
#[test]
fn a_crash_beside_moves_of_pages_leaves_every_node_what_it_was() {
    let mut judged = 0;
    for seed in [0] {
        let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        create(&shared, CRASH_POOL_BYTES);
        let opened = open(&shared);
        let mut prng = Prng::from_seed(seed);
        for ino in populate(&opened, &mut prng, 60) {
            opened.pool.forget(ino, 1);
        }
        let before = Nodes::hold(&opened.pool, &NODES).trees(&opened.pool);
        opened.pool.close().expect("nothing fails");
        drop(opened);
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device = SimDevice::open(device.durable_image(), options);
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let opened = open(&shared);
        let mut moved = 0;
        for group in (CRASH_KEPT..opened.groups()).rev() {
            // As much as makes a thousand images.
            if moved < 80 {
                moved += opened.empty(group).moved;
            }
        }
        assert!(moved > 20, "{moved} pages are too few");
        opened.pool.sync().expect("nothing fails");
        opened.pool.checkpoint().expect("nothing fails");
        drop(opened);
        let strategy =
            Strategy { exhaustive_writes_max: 1, random_subsets: 1, torn_variants: 0, seed };
        let recording = device.recording();
        judged += judge_cuts(
            &format!("seed {seed}"),
            &recording,
            &strategy,
            |_| (),
            |cut| {
                let device: SharedDevice =
                    SimDevice::open(cut.image.clone(), SimOptions::default());
                expect_clean(&device, "before the open")?;
                let opened = open(&device);
                let nodes = Nodes::hold(&opened.pool, &NODES);
                compare(&before, &nodes.trees(&opened.pool), "after the open")?;
                if !cut.number.is_multiple_of(4) {
                    return Ok(());
                }
                for group in (CRASH_KEPT..opened.groups()).rev() {
                    opened.empty(group);
                }
                compare(&before, &nodes.trees(&opened.pool), "moved again")?;
                opened.pool.close().map_err(|error| error.to_string())?;
                expect_clean(&device, "moved again")
            },
        );
    }
    assert!(judged > 50, "{judged} images mean little");
}

/// Goal: moves of pages beside operations change nothing of what those do. Method: two pools get
/// the same operations; in one of them each group is emptied meanwhile, in the order of a seed, and
/// snapshots are read.
#[test]
fn operations_beside_moves_of_pages_do_what_they_do_without() {
    let mut moved = 0;
    for seed in 0..6 {
        let mut trees = Vec::new();
        for is_moving in [false, true] {
            let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
            create(&device, POOL_BYTES);
            let scheduler = Scheduler::new(seed);
            let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
            let ready = Mutex::new(None);
            let prepare = || {
                let opened = Opened::at(&device, clock);
                let mut prng = Prng::from_seed(seed);
                work(&opened.pool, seed, 60);
                for ino in populate(&opened, &mut prng, 150) {
                    opened.pool.forget(ino, 1);
                }
                *ready.lock() = Some(opened);
            };
            scheduler.run(vec![("open".to_owned(), Box::new(prepare))]);
            let opened = ready.into_inner().expect("the pool opens");
            let pool = &opened.pool;
            let nodes = Nodes::hold(pool, &NODES);
            let count = Mutex::new(0);
            let empty = || {
                for group in (KEPT..opened.groups()).rev().filter(|_| is_moving) {
                    *count.lock() += opened.empty(group).moved;
                }
            };
            let operate = || {
                let mut prng = Prng::from_seed(seed);
                let clone = pool.root_of(nodes.0[4].1).expect("it is held");
                for round in 0..6_u8 {
                    for root in [pool.root(), clone] {
                        let text = format!("beside{round}");
                        let ino = new_file(pool, root, &text);
                        write(pool, ino, 0, 20_000, round);
                        pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
                        pool.forget(ino, 1);
                    }
                    change_some(pool, pool.root(), &mut prng, 150);
                    change_some(pool, clone, &mut prng, 150);
                    let snapshot = format!("z{round}");
                    pool.fileset_admin()
                        .create_snapshot(&name("root"), &part(&snapshot), [round; 16])
                        .expect("room");
                }
            };
            let look = || {
                for _ in 0..2 {
                    nodes.trees_of(pool, &["root@a", "root@c", "home@d"]);
                }
            };
            scheduler.run(vec![
                ("empty".to_owned(), Box::new(empty)),
                ("operate".to_owned(), Box::new(operate)),
                ("look".to_owned(), Box::new(look)),
            ]);
            moved += count.into_inner();
            let mut all = nodes.trees(pool);
            for round in 0..6 {
                let snapshot = format!("root@z{round}");
                all.extend(Nodes::hold(pool, &[&snapshot]).trees(pool));
            }
            pool.close().expect("nothing fails");
            drop(opened);
            assert_clean(&device);
            trees.push(all);
        }
        let found = compare(&trees[0], &trees[1], "beside moves");
        found.unwrap_or_else(|found| panic!("seed {seed}: {found}"));
    }
    assert!(moved > 200, "{moved} pages are too few");
}

/// Goal: pages stay while there is no room elsewhere, or a node of their family is read from a copy
/// of its entry, or is being freed, and move then. Method: all groups are tried in the midst of
/// a stream and of a deletion.
#[test]
fn pages_of_a_family_stay_while_a_node_of_it_is_sent_or_freed() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    create(&device, POOL_BYTES);
    let opened = open(&device);
    let mut prng = Prng::from_seed(9);
    for ino in populate(&opened, &mut prng, 200) {
        opened.pool.forget(ino, 1);
    }
    let empty_all = || {
        let all = (KEPT..opened.groups()).rev().map(|group| opened.empty(group));
        all.fold(PageMoveReport::default(), |sum, it| PageMoveReport {
            moved: sum.moved + it.moved,
            busy: sum.busy + it.busy,
            no_room: sum.no_room + it.no_room,
            bad: sum.bad + it.bad,
        })
    };
    let send = |progress: &mut dyn FnMut(u64, u64)| {
        let (snapshot, mut out) = (part("b"), Vec::new());
        let sent = opened.pool.fileset_admin().send(
            (&name("root"), &snapshot),
            None,
            None,
            &mut out,
            progress,
        );
        sent.expect("it can be read");
        out
    };
    let before = send(&mut |_, _| ());
    // Nobody gives any.
    opened.shortage.bar(0..opened.groups());
    let moved = (KEPT..opened.groups()).map(|group| opened.pool.move_pages(group));
    let moved: Vec<PageMoveReport> = moved.map(|moved| moved.expect("nothing fails")).collect();
    assert!(moved.iter().all(|it| it.moved == 0 && it.bad == 0), "{moved:?}");
    assert!(moved.iter().any(|it| it.no_room > 0), "{moved:?}");
    let mut beside = None;
    let during = send(&mut |_, _| {
        beside.get_or_insert_with(empty_all);
    });
    let beside = beside.expect("something is sent");
    assert!(beside.moved > 0 && beside.busy > 0, "others move, and this does not: {beside:?}");
    assert!(before == during, "the stream is what it was");
    opened
        .pool
        .fileset_admin()
        .delete_snapshot(&name("root"), &part("a"))
        .expect("nobody holds it");
    assert!(opened.pool.fileset_admin().is_freeing().expect("the table can be read"));
    let beside = empty_all();
    assert!(beside.moved == 0 && beside.busy > 0, "{beside:?}");
    free_all(&opened.pool);
    let at_last = empty_all();
    assert!(at_last.moved > 0 && at_last.busy == 0 && at_last.bad == 0, "{at_last:?}");
    assert_eq!(empty_all(), PageMoveReport::default(), "nothing is left");
    assert!(send(&mut |_, _| ()) == before, "the stream is what it was");
    opened.pool.close().expect("nothing fails");
    drop(opened);
    assert_clean(&device);
}
