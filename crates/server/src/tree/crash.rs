//! Crash tests of copy-in: after a power cut at any point, every file that the next copy-in would
//! skip is complete (TE2), and the next copy-in completes the tree.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use testkit::crash::judge_cuts;

use super::copy::{self, CopyPurpose};
use super::host::HostTree;
use super::pool::PoolTree;
use super::{FileTree, TreeCopyTotals, is_same};

const POOL_BYTES: u64 = 24 << 20;
const DIRECTORIES: usize = 3;
const FILES: usize = 8;

fn open(device: &Arc<SimDevice>) -> Arc<Pool> {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let pool = Pool::open(shared, Arc::new(ManualClock::new()), PoolOpenOptions::default());
    Arc::new(pool.expect("the pool opens"))
}

fn tree_of(pool: &Arc<Pool>, path: &str) -> PoolTree {
    let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(pool);
    PoolTree::below(&fs, pool.root(), path.as_bytes(), true).expect("it can be made")
}

fn host(path: &Path) -> HostTree {
    HostTree::new(File::open(path).expect("it is there"))
}

fn run(source: &HostTree, target: &PoolTree, purpose: CopyPurpose) -> Result<(), String> {
    let totals = TreeCopyTotals::default();
    copy::run((source, target), purpose, 2, &totals, &mut |_| true);
    let facts = totals.facts();
    match totals.last_word() {
        Some(word) => Err(word),
        None if facts["failed"] != 0 => Err(facts["errors"].to_string()),
        None => Ok(()),
    }
}

fn skipped_are_whole(source: &HostTree, target: &PoolTree) -> Result<(), String> {
    let (from, to) = (source.root(), target.root());
    let mut names = Vec::new();
    target.list(&to, &mut |name| names.push(name)).map_err(|error| error.to_string())?;
    for name in names {
        let there = target.find(&to, &name).map_err(|error| error.to_string())?;
        let meta = source.find(&from, &name).map_err(|error| error.to_string())?;
        let (Some(there), Some(meta)) = (there, meta) else { continue };
        if !is_same(&meta, &there) {
            continue;
        }
        let (mut one, mut other) = (Vec::new(), Vec::new());
        let length = usize::try_from(meta.size_bytes).expect("small");
        let node = source.open(&from, &name, &meta).expect("it is there");
        source.read(&node, 0, length, &mut one).expect("it is there");
        let node = target.open(&to, &name, &there).map_err(|error| error.to_string())?;
        target.read(&node, 0, length, &mut other).map_err(|error| error.to_string())?;
        if one != other {
            return Err(format!("{} would be skipped", super::shown(&name)));
        }
    }
    Ok(())
}

fn judge(image: &Image, from: &Path) -> Result<(), String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let pool = open(&device);
    for number in 0..DIRECTORIES {
        let source = host(&from.join(number.to_string()));
        let target = tree_of(&pool, &format!("/{number}"));
        skipped_are_whole(&source, &target)?;
        run(&source, &target, CopyPurpose::Copy)?;
        run(&source, &target, CopyPurpose::Verify)?;
    }
    pool.close().map_err(|error| error.to_string())?;
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let report = check::run(shared, check::CheckOptions::default(), &mut |_| ());
    if report.is_clean() { Ok(()) } else { Err(report.to_text()) }
}

/// Goal: after a power cut at any write of a copy-in, the next copy-in skips no incomplete file and
/// completes the tree. Method: several copy-ins, each followed by a checkpoint, are recorded. After
/// each cut of the recording, every byte is compared.
#[test]
fn a_copy_in_that_a_crash_ends_goes_on() {
    let from = std::env::temp_dir().join(format!("holdfast-tree-crash-{}", std::process::id()));
    for directory in 0..DIRECTORIES {
        let path = from.join(directory.to_string());
        fs::create_dir_all(&path).expect("it can be made");
        for number in 0..FILES {
            let bytes = vec![u8::try_from(number + 1).expect("few"); 5000 * number + 300];
            fs::write(path.join(number.to_string()), bytes).expect("it can be made");
        }
    }
    let base = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&base);
    let create = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::open(base.durable_image(), options);
    let pool = open(&device);
    for directory in 0..DIRECTORIES {
        let target = tree_of(&pool, &format!("/{directory}"));
        let source = host(&from.join(directory.to_string()));
        run(&source, &target, CopyPurpose::Copy).expect("nothing fails");
        pool.checkpoint().expect("nothing fails");
    }
    let strategy =
        Strategy { exhaustive_writes_max: 3, random_subsets: 2, torn_variants: 1, seed: 1 };
    let recording = device.recording();
    let judged =
        judge_cuts("a copy-in", &recording, &strategy, |_| (), |cut| judge(&cut.image, &from));
    pool.close().expect("nothing fails");
    fs::remove_dir_all(&from).expect("it is ours");
    assert!(judged > 50, "{judged} images mean little");
}

/// Names whose files are of another kind before the copy-in, or links with another target.
const REPLACED: [&str; 3] = ["dir", "file", "link"];

/// Checks that each name leads to the old or to the new file, complete. Renames leftovers as if the
/// process that made them had ended.
fn is_old_or_new(target: &PoolTree) -> Result<(), String> {
    let told = |error: super::TreeError| error.to_string();
    let at = target.root();
    let mut names = Vec::new();
    target.list(&at, &mut |name| names.push(name)).map_err(told)?;
    for name in REPLACED {
        let there = target.find(&at, name.as_bytes()).map_err(told)?;
        let there = there.ok_or_else(|| format!("{name} leads nowhere"))?;
        let node = target.open(&at, name.as_bytes(), &there).map_err(told)?;
        let is_one = match (name, there.kind) {
            ("dir" | "file", FileKind::Directory) => true,
            ("dir", FileKind::Regular) => there.size_bytes == 3,
            ("file", FileKind::Regular) => there.size_bytes == 9000,
            ("link", FileKind::Symlink) => {
                [&b"old"[..], b"new"].contains(&&target.target(&node).map_err(told)?[..])
            }
            _ => false,
        };
        if !is_one {
            return Err(format!("{name} is neither the old one nor the new one: {there:?}"));
        }
    }
    for (number, name) in (0..).zip(names) {
        if REPLACED.map(str::as_bytes).contains(&&name[..]) {
            continue;
        }
        let there = target.find(&at, &name).map_err(told)?.ok_or("it is gone")?;
        let node = target.open(&at, &name, &there).map_err(told)?;
        let dead = super::aside::tests::name_of_the_dead(number);
        target.rename(&node, &at, (&name, &dead)).map_err(told)?;
    }
    Ok(())
}

/// Goal: after a power cut at any write, a name whose file is replaced by another kind is the old
/// or the new one, and the next copy-in leaves no other names. Method: a file replaced by a
/// directory, a directory by a file, and a link by a link, with a cut at each point of the
/// recording.
#[test]
fn a_crash_leaves_the_old_or_the_new_one() {
    let from = std::env::temp_dir().join(format!("holdfast-tree-kinds-{}", std::process::id()));
    fs::create_dir_all(from.join("dir/below")).expect("it can be made");
    fs::write(from.join("file"), vec![7; 9000]).expect("it can be made");
    std::os::unix::fs::symlink("new", from.join("link")).expect("it can be made");
    let base = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&base);
    let create = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let pool = open(&base);
    let root = Caller::root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let old = pool.create(&root, pool.root(), b"dir", new, None).expect("there is room");
    pool.write(&root, old.ino, 0, b"old").expect("there is room");
    let new = NewInode::new(FileKind::Directory, 0o755);
    pool.create(&root, pool.root(), b"file", new, None).expect("there is room");
    let link = NewInode::SYMLINK;
    pool.symlink(&root, pool.root(), b"link", b"old", link, None).expect("there is room");
    pool.close().expect("nothing fails");

    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::open(base.durable_image(), options);
    let pool = open(&device);
    run(&host(&from), &tree_of(&pool, "/"), CopyPurpose::Copy).expect("nothing fails");
    pool.checkpoint().expect("nothing fails");
    let strategy =
        Strategy { exhaustive_writes_max: 3, random_subsets: 2, torn_variants: 1, seed: 1 };
    let judge = |image: &Image| {
        let pool = open(&SimDevice::open(image.clone(), SimOptions::default()));
        let target = tree_of(&pool, "/");
        is_old_or_new(&target)?;
        run(&host(&from), &target, CopyPurpose::Copy)?;
        run(&host(&from), &target, CopyPurpose::Verify)?;
        let mut names = Vec::new();
        let listed = target.list(&target.root(), &mut |name| names.push(name));
        listed.map_err(|error| error.to_string())?;
        drop(target);
        pool.close().map_err(|error| error.to_string())?;
        let is_clear = names.len() == REPLACED.len();
        if is_clear { Ok(()) } else { Err(format!("names are left: {names:?}")) }
    };
    let recording = device.recording();
    let judged = judge_cuts("a copy-in", &recording, &strategy, |_| (), |cut| judge(&cut.image));
    pool.close().expect("nothing fails");
    fs::remove_dir_all(&from).expect("it is ours");
    assert!(judged > 20, "{judged} images mean little");
}
