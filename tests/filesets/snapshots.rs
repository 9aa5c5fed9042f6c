//! Snapshots: what a fileset was like stays so, whatever is done to it since and wherever a crash
//! cuts.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode, RenameMode, SetAttr};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use storage::device::{MemoryDevice, SharedDevice};
use testkit::canon::{Times, Tree, differences, walk};
use testkit::crash::judge_cuts;

use super::{assert_clean, free_all, name, used_bytes, work};

const POOL_BYTES: u64 = 128 << 20;
const CRASH_POOL_BYTES: u64 = 32 << 20;

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

fn new_pool(bytes: u64) -> SharedDevice {
    let device: SharedDevice = MemoryDevice::new("memory", bytes);
    let create = PoolCreateOptions::new(bytes, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    device
}

fn tree_of(pool: &Pool) -> Tree {
    walk(pool, Times::Changes).expect("it can be read")
}

fn take(pool: &Pool, number: usize) -> String {
    let text = format!("c{number}");
    let random = [u8::try_from(number).expect("few"); 16];
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part(&text), random)
        .expect("there is room");
    text
}

#[track_caller]
fn assert_same(found: &Tree, kept: &Tree, what: &str) {
    let differ = differences(kept, found);
    assert!(differ.is_empty(), "{what}: {:?}", differ.first());
}

/// Goal: each snapshot is what the fileset was like, after every later change, and the checker
/// finds that every fragment is held, once. Method: random histories with snapshots between them.
#[test]
fn snapshots_keep_what_their_fileset_was_like() {
    for seed in 0..6 {
        let device = new_pool(POOL_BYTES);
        let mut kept: Vec<(String, Tree)> = Vec::new();
        for number in 0..4 {
            let pool = open(&device, None);
            work(&pool, seed * 100 + number, 150);
            let before = tree_of(&pool);
            kept.push((take(&pool, kept.len()), before));
            work(&pool, seed * 100 + 50 + number, 100);
            pool.close().expect("nothing fails");
            drop(pool);
            assert_clean(&device);
            for (snapshot, tree) in &kept {
                let pool = open(&device, Some(snapshot));
                assert_same(&tree_of(&pool), tree, &format!("seed {seed}: {snapshot} of {number}"));
                pool.close().expect("nothing fails");
            }
        }
        assert_clean(&device);
    }
}

fn delete(pool: &Pool, snapshot: &str) {
    pool.fileset_admin().delete_snapshot(&name("root"), &part(snapshot)).expect("nobody holds it");
}

/// Goal: deleting snapshots in any order frees what nobody else holds, and nothing else. Method:
/// random histories with snapshots, deleted by chance; the checker holds what is in use against
/// what is held, in the middle too.
#[test]
fn a_deleted_snapshot_gives_back_what_it_alone_held() {
    for seed in 0..8 {
        let device = new_pool(POOL_BYTES);
        let mut prng = Prng::from_seed(seed);
        let mut kept: Vec<(String, Tree)> = Vec::new();
        for number in 0..10 {
            let pool = open(&device, None);
            pool.tick().expect("nothing fails");
            work(&pool, seed * 100 + number, 80);
            if prng.below(5) < 3 {
                let before = tree_of(&pool);
                kept.push((take(&pool, usize::try_from(number).expect("few")), before));
                work(&pool, seed * 100 + 50 + number, 60);
            } else if !kept.is_empty() {
                let chosen = usize::try_from(prng.below(kept.len().try_into().expect("few")));
                let (snapshot, _) = kept.remove(chosen.expect("few"));
                delete(&pool, &snapshot);
                if prng.one_in(2) {
                    work(&pool, seed * 100 + 70 + number, 40);
                    free_all(&pool);
                }
            }
            pool.close().expect("nothing fails");
            drop(pool);
            assert_clean(&device);
            for (snapshot, tree) in &kept {
                let pool = open(&device, Some(snapshot));
                assert_same(&tree_of(&pool), tree, &format!("seed {seed}: {snapshot} of {number}"));
                pool.close().expect("nothing fails");
            }
        }
        let pool = open(&device, None);
        free_all(&pool);
        kept.iter().for_each(|(snapshot, _)| {
            delete(&pool, snapshot);
            free_all(&pool);
        });
        pool.close().expect("nothing fails");
        assert_clean(&device);
    }
}

/// Goal: nobody changes a snapshot, and what can't be done with snapshots is refused with words.
#[test]
fn a_snapshot_is_read_only_and_has_a_name_of_its_own() {
    let device = new_pool(POOL_BYTES);
    let pool = open(&device, None);
    work(&pool, 1, 60);
    take(&pool, 0);
    let again = pool.fileset_admin().create_snapshot(&name("root"), &part("c0"), [9; 16]);
    assert_eq!(again.map(drop), Err(FsError::FilesetExists { name: "root@c0".to_owned() }));
    let missing = pool.fileset_admin().hold_snapshot(&name("root"), &part("c1"));
    assert_eq!(missing.map(drop), Err(FsError::NoFileset { name: "root@c1".to_owned() }));
    let of_none = pool.fileset_admin().create_snapshot(&name("none"), &part("c1"), [9; 16]);
    assert_eq!(of_none.map(drop), Err(FsError::NoFileset { name: "none".to_owned() }));
    pool.close().expect("nothing fails");
    drop(pool);
    let snapshot = open(&device, Some("c0"));
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = snapshot.create(&Caller::root(), snapshot.root(), b"new", new, None);
    assert_eq!(made.map(drop), Err(FsError::ReadOnlySnapshot));
    snapshot.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: a snapshot writes no data and no more than the log, whatever the fileset holds. Method:
/// count the writes of the device while a snapshot is taken of a fileset that was synced.
#[test]
fn a_snapshot_costs_the_same_whatever_the_fileset_holds() {
    let mut costs = Vec::new();
    for files in [10_u32, 3_000] {
        let device = SimDevice::new(POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
        Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
        let pool = open(&shared, None);
        for number in 0..files {
            let new = NewInode::new(FileKind::Regular, 0o644);
            let name = format!("f{number}");
            let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None);
            let ino = made.expect("there is room").ino;
            pool.write(&Caller::root(), ino, 0, &[7; 6_000]).expect("there is room");
            pool.forget(ino, 1);
        }
        pool.sync().expect("nothing fails");
        pool.checkpoint().expect("nothing fails");
        let before = device.position();
        take(&pool, 0);
        costs.push(device.position() - before);
        pool.close().expect("nothing fails");
    }
    assert!(costs[1] <= costs[0] + 1, "writes and flushes of 10 and of 3,000 files: {costs:?}");
}

/// What must be there at a cut: each snapshot, from the position at which it was answered on to the
/// one at which somebody began to delete it.
struct Taken {
    snapshot: String,
    tree: Tree,
    answered: usize,
    deleted: usize,
}

fn judge(image: &Image, taken: &[Taken], at: usize) -> Result<(), String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let checked = |when: &str| super::expect_clean(&shared, when);
    checked("before the open")?;
    let same = |when: &str| {
        for Taken { snapshot, tree, answered, deleted } in taken {
            if (*answered..*deleted).contains(&at) {
                let pool = open(&shared, Some(snapshot));
                if let Some(differ) = differences(tree, &tree_of(&pool)).first() {
                    return Err(format!("{when}: {snapshot}: {differ:?}"));
                }
                pool.close().map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    };
    let pool = open(&shared, None);
    work(&pool, 77, 30);
    pool.close().map_err(|error| error.to_string())?;
    drop(pool);
    checked("after more work")?;
    same("after more work")?;
    let pool = open(&shared, None);
    free_all(&pool);
    pool.close().map_err(|error| error.to_string())?;
    drop(pool);
    checked("after all is freed")?;
    same("after all is freed")
}

/// Goal: no crash loses a snapshot that was answered, changes one, or leaves a fragment that nobody
/// holds. Method: cut at every write of a history with snapshots; what is found goes on.
#[test]
fn a_crash_leaves_snapshots_as_they_were() {
    let mut judged = 0;
    for seed in 0..3 {
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let create = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
        Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
        let pool = open(&shared, None);
        work(&pool, seed, 60);
        pool.close().expect("nothing fails");
        drop(pool);
        let device = SimDevice::open(device.durable_image(), options);
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let pool = open(&shared, None);
        let mut taken = Vec::new();
        pool.tick().expect("nothing fails");
        for number in 0..3 {
            work(&pool, seed * 10 + u64::try_from(number).expect("few"), 12);
            let tree = tree_of(&pool);
            let snapshot = take(&pool, number);
            taken.push(Taken { snapshot, tree, answered: device.position(), deleted: usize::MAX });
            if number == 1 {
                pool.checkpoint().expect("nothing fails");
            }
        }
        work(&pool, seed + 40, 12);
        // In the middle: a job frees it; then the newest, and the oldest.
        for chosen in [1, 2, 0] {
            taken[chosen].deleted = device.position();
            delete(&pool, &taken[chosen].snapshot);
            work(&pool, seed + 60, 5);
            free_all(&pool);
            work(&pool, seed + 70, 5);
        }
        pool.sync().expect("nothing fails");
        pool.checkpoint().expect("nothing fails");
        drop(pool);
        let strategy =
            Strategy { exhaustive_writes_max: 2, random_subsets: 1, torn_variants: 1, seed };
        let there_at = |at: usize| {
            let is_there = |it: &Taken| (it.answered..it.deleted).contains(&at);
            taken.iter().map(is_there).collect::<Vec<bool>>()
        };
        let recording = device.recording();
        judged += judge_cuts(&format!("seed {seed}"), &recording, &strategy, there_at, |cut| {
            judge(&cut.image, &taken, cut.at)
        });
    }
    assert!(judged > 100, "{judged} images mean little");
}

/// Something that is done to what a pool serves.
type Change<'a> = &'a dyn Fn(&Pool);

/// Goal: a snapshot that was answered has what was changed last before it, though nobody synced.
/// Method: what takes no space changes no page that the snapshot changes too, so it is of another
/// class; each image from the answer on.
#[test]
fn a_snapshot_that_was_answered_has_the_last_change_before_it() {
    let caller = Caller::root();
    let changes: [(&str, Change<'_>); 3] = [
        ("mode", &|pool| {
            let found = pool.lookup(&caller, pool.root(), b"f").expect("it is there");
            let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            pool.setattr(&caller, found.ino, &set, None).expect("nothing fails");
        }),
        ("name", &|pool| {
            let (from, to) = ((pool.root(), &b"f"[..]), (pool.root(), &b"g"[..]));
            pool.rename(&caller, from, to, RenameMode::Replace, None).expect("nothing fails");
        }),
        ("file", &|pool| {
            let new = NewInode::new(FileKind::Regular, 0o644);
            pool.create(&caller, pool.root(), b"h", new, None).expect("there is room");
        }),
    ];
    for (what, change) in changes {
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device = SimDevice::new(CRASH_POOL_BYTES, options);
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let create = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
        Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
        let pool = open(&shared, None);
        let new = NewInode::new(FileKind::Regular, 0o644);
        pool.create(&caller, pool.root(), b"f", new, None).expect("there is room");
        pool.sync().expect("nothing fails");
        change(&pool);
        let tree = tree_of(&pool);
        let snapshot = take(&pool, 0);
        let answered = device.position();
        drop(pool);
        let strategy =
            Strategy { exhaustive_writes_max: 2, random_subsets: 1, torn_variants: 1, seed: 1 };
        let recording = device.recording();
        for point in recording.points().filter(|it| it.position() >= answered) {
            for image in point.images(&strategy) {
                let device: SharedDevice = SimDevice::open(image.image, SimOptions::default());
                let pool = open(&device, Some(&snapshot));
                assert_same(&tree_of(&pool), &tree, what);
            }
        }
    }
}

/// Goal: what a snapshot alone holds is what its deletion gives back. Method: random histories with
/// snapshots, deleted in any order; what each is said to hold against what the pool uses then.
#[test]
fn what_a_snapshot_alone_holds_is_what_its_deletion_gives_back() {
    let mut most = 0;
    for seed in 0..4 {
        let device = new_pool(POOL_BYTES);
        let pool = open(&device, None);
        pool.tick().expect("nothing fails");
        let mut prng = Prng::from_seed(seed);
        let mut left: Vec<String> = Vec::new();
        for number in 0..6 {
            work(&pool, seed * 100 + number, 80);
            left.push(take(&pool, usize::try_from(number).expect("few")));
        }
        work(&pool, seed * 100 + 50, 80);
        while !left.is_empty() {
            let chosen = usize::try_from(prng.below(left.len().try_into().expect("few")));
            let snapshot = left.remove(chosen.expect("few"));
            pool.sync().expect("nothing fails");
            let told = pool
                .fileset_admin()
                .unique_bytes(&name("root"), &part(&snapshot))
                .expect("it is there");
            let before = used_bytes(&pool);
            delete(&pool, &snapshot);
            free_all(&pool);
            assert_eq!(before - used_bytes(&pool), told, "seed {seed}: {snapshot}");
            most = most.max(told);
        }
        pool.close().expect("nothing fails");
        assert_clean(&device);
    }
    assert!(most > 100_000, "{most} bytes at most mean little");
}

/// Goal: whoever deletes a snapshot that he has seen deletes that one, and not another that has
/// been taken by its name since.
#[test]
fn a_snapshot_that_was_taken_anew_is_not_deleted() {
    let device = new_pool(POOL_BYTES);
    let pool = open(&device, None);
    let (root, snapshot) = (name("root"), part("c0"));
    let uuid = || {
        let all = pool.fileset_admin().filesets().expect("they can be listed");
        all.into_iter().find(|it| it.name == "root@c0").map(|it| it.uuid)
    };
    pool.fileset_admin().create_snapshot(&root, &snapshot, [1; 16]).expect("there is room");
    let seen = uuid().expect("it is there");
    pool.fileset_admin().delete_snapshot(&root, &snapshot).expect("nothing needs it");
    let gone = pool.fileset_admin().delete_this_snapshot(&root, &snapshot, seen);
    assert!(matches!(gone, Err(FsError::NoFileset { .. })), "{gone:?}");
    pool.fileset_admin().create_snapshot(&root, &snapshot, [2; 16]).expect("there is room");
    let refused = pool
        .fileset_admin()
        .delete_this_snapshot(&root, &snapshot, seen)
        .expect_err("it is another");
    assert!(refused.to_string().contains("it is another snapshot"), "{refused}");
    let now = uuid().expect("it has stayed");
    assert_ne!(now, seen);
    pool.fileset_admin().delete_this_snapshot(&root, &snapshot, now).expect("nothing needs it");
    assert_eq!(uuid(), None);
    pool.close().expect("memory does not fail");
    assert_clean(&device);
}
