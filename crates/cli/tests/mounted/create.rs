//! What `create` does to what is there already. Needs no mount.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::HOLDFAST;

const MIB: u64 = 1 << 20;

/// A directory of a test's own.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("holdfast-create-{}-{number}", std::process::id());
        let path = fs::canonicalize(std::env::temp_dir()).expect("there is one").join(name);
        fs::create_dir_all(&path).expect("the name is new");
        Place(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(HOLDFAST)
            .args(arguments)
            .current_dir(&self.0)
            .env("HOLDFAST_RUN_DIR", &self.0)
            // Disks of other tests may be in /dev.
            .env("HOLDFAST_SCAN", ".")
            .output()
            .expect("the program can be started")
    }

    /// Runs a command that exits with `code`; returns what it says.
    #[track_caller]
    pub(crate) fn told(&self, arguments: &[&str], code: i32) -> String {
        let output = self.run(arguments);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        text
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Everything of a file that a refusal must leave as it was.
#[derive(PartialEq, Eq)]
struct State(Vec<u8>, u64, u32, u32, u32, u64);

impl State {
    fn of(path: &Path) -> State {
        let stat = fs::metadata(path).expect("it is there");
        let bytes = fs::read(path).expect("it can be read");
        State(bytes, stat.ino(), stat.mode(), stat.uid(), stat.gid(), stat.nlink())
    }
}

/// Goal: whatever is wrong with what is asked of `create --force`, the pool that is there stays as
/// it is. Method: sizes that no pool can have, by way of a link and directly.
#[test]
fn a_refused_create_leaves_everything_as_it_was() {
    let place = Place::new();
    place.told(&["create", "pool.hf", "--size", "16M", "--name", "precious"], 0);
    std::os::unix::fs::symlink("pool.hf", place.path("link")).expect("the name is new");
    let before = State::of(&place.path("pool.hf"));
    for (options, code) in [
        (&["--size", "1M"][..], 2),
        (&["--size", "999P"], 2),
        (&["--size", "15E"], 2),
        (&["--size", "0"], 2),
        (&["--allocation-group-size", "1K"], 2),
        (&["--size", "64M", "--allocation-group-size", "1K"], 2),
        (&["--size", "64M", "--journal-size", "1"], 2),
        (&["--size", "64M", "--journal-size", "1E"], 2),
        (&["--size", "64M", "--block", "1M"], 2),
    ] {
        for name in ["pool.hf", "link"] {
            let told = place.told(&[&["create", name, "--force"], options].concat(), code);
            assert!(told.contains("--"), "it names the option: {told}");
            assert!(State::of(&place.path("pool.hf")) == before, "{options:?} changed the pool");
            assert!(place.path("link").is_symlink(), "{options:?} replaced the link");
        }
        let new = [&["create", "new.hf"], options].concat();
        if options.contains(&"--size") {
            place.told(&new, code);
        }
        assert!(!place.path("new.hf").exists(), "{options:?} left a file");
    }
    place.told(&["create", "pool.hf", "--size", "16M"], 1);
    place.told(&["create", "pool.hf", "--size", "32M"], 1);
    assert!(State::of(&place.path("pool.hf")) == before, "a pool is overwritten by --force alone");
}

/// Goal: the same where several disk groups are asked for that cannot be together: no file is cut
/// before that is known. Method: fragments that stripes cannot have.
#[test]
fn a_refused_create_of_several_groups_cuts_no_file() {
    let place = Place::new();
    place.told(&["create", "a", "--size", "96M", "--name", "precious"], 0);
    let before = State::of(&place.path("a"));
    let groups = ["mirror:a,b=metadata,journal", "raid5:c,d,e=data", "raid5:f,g,h,i=data"];
    let mut arguments = vec!["create", "--force", "--size", "64M", "--fragment", "1K"];
    arguments.extend(groups.iter().flat_map(|group| ["--group", *group]));
    let told = place.told(&arguments, 2);
    assert!(told.contains("stripes"), "it says why: {told}");
    assert!(State::of(&place.path("a")) == before, "the refusal cut a file");
    assert!(!place.path("c").exists(), "the refusal left a file");
}

/// Goal: who gives devices of different sizes is told what is not used of them, and a device in two
/// places is refused. Method: a mirror of which one is longer, beside one that is not.
#[test]
fn what_is_not_used_of_longer_devices_is_told() {
    let place = Place::new();
    for (name, mib) in [("a", 64), ("b", 96), ("c", 64), ("d", 64)] {
        let file = File::create(place.path(name)).expect("the name is new");
        file.set_len(mib * MIB).expect("there is room");
    }
    let twice = ["create", "--group", "mirror:a,b", "--group", "mirror:c,a=data"];
    let refusal = place.told(&twice, 2);
    assert!(refusal.contains("a is named twice"), "{refusal}");
    let made = place.told(&["create", "--group", "mirror:a,b"], 0);
    let unused =
        "b: 32M of 96M are not used: each device of a mirror is used as far as the shortest";
    assert!(made.contains(unused) && made.contains("a (64M)"), "{made}");
    let made = place.told(&["create", "--group", "mirror:c,d"], 0);
    assert!(!made.contains("not used"), "{made}");
}

/// Goal: a check takes as much memory as it may, and says what to do where that is too little.
#[test]
fn a_check_that_needs_more_memory_says_so() {
    let place = Place::new();
    place.told(&["create", "pool.hf", "--size", "64M"], 0);
    let told = place.told(&["check", "pool.hf", "--memory", "64"], 8);
    assert!(told.contains("64 bytes of memory") && told.contains("--memory"), "{told}");
    assert!(told.contains("NOT CHECKED TO ITS END"), "{told}");
    place.told(&["check", "pool.hf", "--memory", "1G"], 0);
}

/// Goal: a file that is overwritten is the same file: its names, links, mode and owner stay, and
/// nothing of the old pool is left. Method: larger, smaller and of the same size.
#[test]
fn a_forced_create_overwrites_in_place() {
    let place = Place::new();
    place.told(&["create", "pool.hf", "--size", "64M"], 0);
    let pool = place.path("pool.hf");
    let made = fs::metadata(&pool).expect("stat");
    assert_eq!(made.mode() & 0o7777, 0o600, "nobody else reads the files of all");
    fs::hard_link(&pool, place.path("second")).expect("the name is new");
    std::os::unix::fs::symlink("pool.hf", place.path("link")).expect("the name is new");
    fs::set_permissions(&pool, fs::Permissions::from_mode(0o640)).expect("it is ours");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&pool, Some(1), Some(2)).expect("root may");
    }
    let before = fs::metadata(&pool).expect("stat");
    for (name, size_bytes) in [("link", 128), ("second", 32), ("pool.hf", 32)] {
        let file = File::options().write(true).open(&pool).expect("it is ours");
        let marked = before.size().min(20 * MIB);
        file.write_all_at(b"an old secret", marked).expect("it is ours");
        place.told(&["create", name, "--force", "--size", &format!("{size_bytes}M")], 0);
        let after = fs::metadata(&pool).expect("stat");
        assert_eq!(after.size(), size_bytes * MIB);
        let kept = |stat: &fs::Metadata| (stat.ino(), stat.mode(), stat.uid(), stat.nlink());
        assert_eq!(kept(&after), kept(&before), "{name}");
        assert!(place.path("link").is_symlink());
        place.told(&["check", "pool.hf"], 0);
        let bytes = fs::read(&pool).expect("it is ours");
        assert!(!bytes.windows(13).any(|window| window == b"an old secret"), "{name}");
    }
}

/// Goal: without `--force` nothing that holds data is overwritten, wherever it lies. Method: a pool
/// without its first 128 KiB, and files with a single page of data, small and huge; each is as it
/// was afterwards. Files of zeros, with and without holes, are taken.
#[test]
fn create_finds_what_is_there_wherever_it_lies() {
    let place = Place::new();
    place.told(&["create", "pool.hf", "--size", "16M"], 0);
    let pool = place.path("pool.hf");
    let file = File::options().write(true).open(&pool).expect("it is ours");
    for (zeroed, from) in [(128 << 10, 0), (128 << 10, 16 * MIB - (128 << 10))] {
        place.told(&["create", "pool.hf", "--force"], 0);
        file.write_all_at(&vec![0; zeroed], from).expect("it is ours");
        let before = State::of(&pool);
        for options in [&[][..], &["--size", "16M"], &["--size", "32M"], &["--size", "8M"]] {
            let told = place.told(&[&["create", "pool.hf"], options].concat(), 1);
            assert!(told.contains("a Holdfast pool"), "{told}");
        }
        assert!(State::of(&pool) == before, "a refused creation changed it");
    }
    for (size_bytes, offset) in [
        (16 * MIB, 128 << 10),
        (16 * MIB, 5_000_001),
        (16 * MIB, 16 * MIB - 1),
        (16 * MIB + 1234, 16 * MIB - 1),
        (16 * MIB + 1234, 16 * MIB + 1233),
        (1 << 40, 700_000_000_001),
    ] {
        let file = File::create(place.path("data")).expect("it is ours");
        file.set_len(size_bytes).expect("it is sparse");
        file.write_all_at(b"x", offset).expect("it is ours");
        for options in [&[][..], &["--size", "32M"]] {
            let told = place.told(&[&["create", "data"], options].concat(), 1);
            let words = if offset < size_bytes - size_bytes % 4096 {
                format!("at byte {offset}")
            } else {
                "data at its end".to_owned()
            };
            assert!(told.contains(&words), "{told}");
        }
        let stat = fs::metadata(place.path("data")).expect("stat");
        assert_eq!(stat.size(), size_bytes);
        let mut byte = [0];
        let read = File::open(place.path("data")).expect("it is there");
        read.read_exact_at(&mut byte, offset).expect("it is long enough");
        assert_eq!(byte, *b"x");
    }
    fs::write(place.path("zeros"), vec![0; 100 << 20]).expect("there is room");
    File::create(place.path("hole")).and_then(|file| file.set_len(16 * MIB)).expect("sparse");
    for name in ["zeros", "hole"] {
        let told = place.told(&["create", name, "--size", "8M"], 2);
        assert!(told.contains("give --force to cut it"), "{told}");
        place.told(&["create", name, "--size", "128M"], 0);
        assert_eq!(fs::metadata(place.path(name)).expect("stat").len(), 128 * MIB);
        place.told(&["check", name], 0);
    }
}
