//! What the kernel keeps of a file's attributes is what the server says of them.
//!
//! The kernel keeps attributes for as long as it is told, and asks again for those that it knows it
//! has changed. So after each operation of a random walk some files are looked at twice: as the
//! kernel has them, for one attribute or for all, and as the server has them
//! (`AT_STATX_FORCE_SYNC`). What was asked for must be the same. Only few are looked at, because a
//! look that is forced hides what was stale.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};
use std::{io, thread};

use runtime::prng::Prng;
use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, RenameFlags, Statx, StatxFlags, StatxTimestamp,
    XattrFlags,
};

use crate::calls::{Mapping, become_user};
use crate::{Mounted, can_mount};

/// Operations of a walk.
const STEPS: u32 = 4000;
/// Directories in which names come and go, beside the root.
const DIRECTORIES: u64 = 2;
/// Names in each of them.
const NAMES: u64 = 6;
/// Beside what an operation names, files that are looked at behind it.
const OTHERS: u64 = 2;

const MODES: [u32; 7] = [0o666, 0o777, 0o4777, 0o2777, 0o6777, 0o2767, 0o1666];
const LENGTHS: [u64; 9] = [1, 100, 256, 300, 4096, 5000, 16_384, 70_000, 300_000];
const OFFSETS: [u64; 9] = [0, 0, 1, 255, 4095, 8192, 16_000, 131_072, 200_000];

/// The attributes that are compared, and what each of them is.
type Field = (&'static str, StatxFlags, fn(&Statx) -> (i64, u32));

const FIELDS: [Field; 10] = [
    ("mode", StatxFlags::MODE, |told| (0, told.stx_mode.into())),
    ("nlink", StatxFlags::NLINK, |told| (0, told.stx_nlink)),
    ("uid", StatxFlags::UID, |told| (0, told.stx_uid)),
    ("gid", StatxFlags::GID, |told| (0, told.stx_gid)),
    ("size", StatxFlags::SIZE, |told| (signed(told.stx_size), 0)),
    ("blocks", StatxFlags::BLOCKS, |told| (signed(told.stx_blocks), 0)),
    ("atime", StatxFlags::ATIME, |told| time(&told.stx_atime)),
    ("mtime", StatxFlags::MTIME, |told| time(&told.stx_mtime)),
    ("ctime", StatxFlags::CTIME, |told| time(&told.stx_ctime)),
    ("btime", StatxFlags::BTIME, |told| time(&told.stx_btime)),
];

fn signed(value: u64) -> i64 {
    i64::try_from(value).expect("sizes are below 2^63")
}

fn time(time: &StatxTimestamp) -> (i64, u32) {
    (time.tv_sec, time.tv_nsec)
}

fn statx(path: &Path, flags: AtFlags, mask: StatxFlags) -> io::Result<Statx> {
    Ok(rustix::fs::statx(CWD, path, flags | AtFlags::SYMLINK_NOFOLLOW, mask)?)
}

/// Looks at `path` as the kernel has it, for `mask`, and as the server has it. Returns what
/// differs, but for what is `ignored`.
fn differences(path: &Path, mask: StatxFlags, ignored: StatxFlags) -> Vec<String> {
    // There is nothing of this name.
    let Ok(kept) = statx(path, AtFlags::empty(), mask) else { return Vec::new() };
    let all = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let told = statx(path, AtFlags::STATX_FORCE_SYNC, all).expect("it was there");
    let asked = FIELDS.iter().filter(|(_, flag, _)| mask.difference(ignored).contains(*flag));
    let compared = asked.map(|(name, _, value)| (name, value(&kept), value(&told)));
    let differs = compared.filter(|(_, kept, told)| kept != told);
    let text = |(name, kept, told)| format!("{name} of {}: {kept:?} {told:?}", path.display());
    differs.map(text).collect()
}

/// Runs the program at `path` as `user`, and returns as whom it ran.
fn ran_as(path: &Path, user: u32) -> String {
    loop {
        let ran = Command::new(path).arg("-u").uid(user).gid(user).output();
        match ran {
            // Another test's child holds it for writing until it has become another program.
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => thread::yield_now(),
            ran => {
                let output = ran.expect("it may be run");
                return String::from_utf8_lossy(&output.stdout).trim().to_owned();
            }
        }
    }
}

/// Goal: a program of the superuser's with setuid that another has changed runs as who runs it, and
/// its mode says so to who asks for nothing else.
#[test]
fn a_changed_program_does_not_run_as_its_owner() {
    if !can_mount("a_changed_program_does_not_run_as_its_owner") {
        return;
    }
    const USER: u32 = 1234;
    let mounted = Mounted::with(&["-o", "suid"]);
    let (path, other) = (mounted.path("program"), mounted.path("other"));
    fs::copy("/usr/bin/id", &path).expect("there is one");
    fs::copy("/usr/bin/id", &other).expect("there is one");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o666)).expect("chmod");
    let program = fs::read(&path).expect("read");
    let end = u64::try_from(program.len()).expect("it is short");
    let page = &program[..4096];
    let keep = FallocateFlags::KEEP_SIZE;
    let allocate =
        |mode| -> io::Result<()> { Ok(rustix::fs::fallocate(open(&path, false)?, mode, end, 1)?) };
    let changes: [(&str, &(dyn Fn() -> io::Result<()> + Sync)); 7] = [
        ("write", &|| write(&path, 0, page, false)),
        ("direct write", &|| write(&path, 0, page, true)),
        ("copy", &|| copy(&other, &path, 0, end)),
        ("truncate", &|| open(&path, false)?.set_len(end)),
        ("allocate", &|| allocate(keep)),
        ("punch", &|| allocate(keep | FallocateFlags::PUNCH_HOLE)),
        ("zero", &|| allocate(keep | FallocateFlags::ZERO_RANGE)),
    ];
    for (name, change) in changes {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).expect("chmod");
        assert_eq!(ran_as(&path, USER), "0", "the test needs a program that runs as its owner");
        thread::scope(|scope| {
            let user = scope.spawn(|| {
                become_user(USER, USER, &[]);
                change().expect(name);
            });
            user.join().expect("the user's thread");
        });
        assert_eq!(ran_as(&path, USER), USER.to_string(), "after {name}");
        let mode = statx(&path, AtFlags::empty(), StatxFlags::MODE).expect("stat").stx_mode;
        assert_eq!(mode & 0o7777, 0o777, "after {name}");
    }
    mounted.finish();
}

/// A walk over a few names, from a seed.
struct Walk {
    prng: Prng,
    root: PathBuf,
    /// Attributes that may change between two looks.
    ignored: StatxFlags,
}

impl Walk {
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let count = u64::try_from(of.len()).expect("a slice is short");
        of[usize::try_from(self.prng.below(count)).expect("it is below the length")]
    }

    fn directory(&mut self) -> PathBuf {
        self.root.join(format!("d{}", self.prng.below(DIRECTORIES)))
    }

    fn path(&mut self) -> PathBuf {
        let name = format!("n{}", self.prng.below(NAMES));
        self.directory().join(name)
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let byte = u8::try_from(self.prng.below(256)).expect("it is a byte");
        vec![byte; usize::try_from(length).expect("lengths are short")]
    }

    /// Does one operation, whatever comes of it. Returns what it was, and the paths it named.
    fn step(&mut self) -> (String, Vec<PathBuf>) {
        let (path, other) = (self.path(), self.path());
        let (offset, length) = (self.pick(&OFFSETS), self.pick(&LENGTHS));
        let is_direct = self.prng.one_in(3);
        let mode = self.pick(&MODES);
        let kind = self.prng.below(26);
        let bytes = self.bytes(length);
        let sub = self.prng.below(8);
        let what = format!("operation {kind}.{sub} at {offset} of {length}, direct {is_direct}");
        let by_user = self.prng.one_in(3);
        let result = thread::scope(|scope| {
            let asked = scope.spawn(|| {
                if by_user {
                    become_user(1234, 1234, &[]);
                }
                match kind {
                    0..5 => write(&path, offset, &bytes, is_direct),
                    5..8 => read(&path, offset, &bytes, is_direct, sub < 4),
                    8 => open(&path, false)?.set_len(offset),
                    9 => File::options().write(true).truncate(true).open(&path).map(drop),
                    10..12 => allocate(&path, offset, length, sub),
                    12..14 => copy(&path, &other, offset, length),
                    14 => map(&path, sub < 4),
                    15 => fs::set_permissions(&path, fs::Permissions::from_mode(mode)),
                    16 => std::os::unix::fs::chown(&path, Some(1234 + u32::from(sub < 4)), None),
                    17 => set_times(&path, sub),
                    18 => fs::hard_link(&path, &other),
                    19 => match sub {
                        0..4 => fs::remove_file(&path),
                        4..6 => fs::remove_dir(&path),
                        _ => fs::DirBuilder::new().mode(0o777).create(&path),
                    },
                    20 => rename(&path, &other, sub),
                    21 => match sub {
                        0..4 => std::os::unix::fs::symlink("target", &path),
                        _ => fs::read_link(&path).map(drop),
                    },
                    22 => fs::read_dir(path.parent().expect("it has one")).map(|all| {
                        all.for_each(drop);
                    }),
                    23 => attribute(&path, &bytes, sub),
                    _ => open(&path, false)?.sync_all(),
                }
            });
            asked.join().expect("the operation's thread")
        });
        let outcome = result.map_or_else(|error| error.to_string(), |()| "done".to_owned());
        let parents = [&path, &other].map(|path| path.parent().expect("it has one").to_path_buf());
        let named = [vec![path, other], parents.to_vec()].concat();
        (format!("{what}, by user {by_user}, on {named:?}: {outcome}"), named)
    }

    /// Looks at some of `paths` and at others; returns what differs.
    fn look(&mut self, mut paths: Vec<PathBuf>) -> Vec<String> {
        let mut found = Vec::new();
        for _ in 0..OTHERS {
            paths.push(self.path());
        }
        for path in paths {
            if self.prng.one_in(2) {
                continue;
            }
            let (_, one, _) = self.pick(&FIELDS);
            let mask = if self.prng.one_in(3) { StatxFlags::BASIC_STATS } else { one };
            found.extend(differences(&path, mask, self.ignored));
        }
        found
    }
}

fn open(path: &Path, is_direct: bool) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o666);
    options.custom_flags(if is_direct { libc::O_DIRECT } else { 0 }).open(path)
}

fn write(path: &Path, offset: u64, bytes: &[u8], is_direct: bool) -> io::Result<()> {
    open(path, is_direct)?.write_all_at(bytes, offset)
}

fn read(path: &Path, offset: u64, bytes: &[u8], is_direct: bool, drops: bool) -> io::Result<()> {
    let file = open(path, is_direct)?;
    // Nothing ahead, which would be read, and change the access time, behind the answer.
    rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
    if drops {
        // So that the server is asked.
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    file.read_at(&mut bytes.to_vec(), offset).map(drop)
}

fn allocate(path: &Path, offset: u64, length: u64, sub: u64) -> io::Result<()> {
    let mode = match sub {
        0..2 => FallocateFlags::empty(),
        2..4 => FallocateFlags::KEEP_SIZE,
        4..6 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        6 => FallocateFlags::ZERO_RANGE,
        _ => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    };
    Ok(rustix::fs::fallocate(open(path, false)?, mode, offset, length)?)
}

fn copy(from: &Path, to: &Path, offset: u64, length: u64) -> io::Result<()> {
    let (from, to) = (open(from, false)?, open(to, false)?);
    let length = usize::try_from(length).expect("lengths are short");
    let (mut from_at, mut to_at) = (0, offset);
    rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), length)?;
    Ok(())
}

fn map(path: &Path, writes: bool) -> io::Result<()> {
    let file = open(path, false)?;
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    let mut mapping = Mapping::new(&file, 1, true);
    let byte = mapping.get(0);
    if writes {
        mapping.set(0, byte.wrapping_add(1));
        mapping.sync();
    }
    Ok(())
}

fn set_times(path: &Path, sub: u64) -> io::Result<()> {
    let time = UNIX_EPOCH + Duration::from_secs(1000 + sub);
    let times = fs::FileTimes::new();
    let times = if sub < 4 { times.set_accessed(time) } else { times.set_modified(time) };
    open(path, false)?.set_times(times)
}

fn rename(from: &Path, to: &Path, sub: u64) -> io::Result<()> {
    let flags = match sub {
        0..4 => RenameFlags::empty(),
        4..6 => RenameFlags::EXCHANGE,
        6 => RenameFlags::NOREPLACE,
        _ => RenameFlags::WHITEOUT,
    };
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
}

fn attribute(path: &Path, bytes: &[u8], sub: u64) -> io::Result<()> {
    // Owner, user 1235, owning group, mask, others: linux/posix_acl_xattr.h.
    let entry = |tag: u16, permissions: u16, id: u32| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [(1, 7, none), (2, 6, 1235), (4, 7, none), (16, 7, none), (32, 6, none)];
    let entries = entries.map(|(tag, permissions, id)| entry(tag, permissions, id));
    let list = [2_u32.to_le_bytes().to_vec(), entries.concat()].concat();
    let acl = c"system.posix_acl_access";
    let set = |name, value: &[u8]| rustix::fs::lsetxattr(path, name, value, XattrFlags::empty());
    match sub {
        0..3 => set(c"user.a", bytes)?,
        3..5 => rustix::fs::lremovexattr(path, c"user.a")?,
        5..7 => set(acl, &list)?,
        _ => rustix::fs::lremovexattr(path, acl)?,
    }
    Ok(())
}

/// Goal: whatever was done, what the kernel has of a file's attributes is what the server says.
///
/// With several threads, one may enter blocks in the map of a large file, for which that grows by a
/// page, between the two looks. With one, it does so before it looks for the next request.
#[test]
fn what_the_kernel_keeps_of_attributes_is_what_the_server_says() {
    if !can_mount("what_the_kernel_keeps_of_attributes_is_what_the_server_says") {
        return;
    }
    let walks = [(1, "4", StatxFlags::BLOCKS), (2, "1", StatxFlags::empty())];
    for (seed, threads, ignored) in walks {
        let mounted = Mounted::with(&["--threads", threads, "--commit-interval", "60m"]);
        let mut walk = Walk { prng: Prng::from_seed(seed), root: mounted.root(), ignored };
        for number in 0..DIRECTORIES {
            let directory = mounted.path(&format!("d{number}"));
            fs::create_dir(&directory).expect("mkdir");
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("chmod");
        }
        let mut found = Vec::new();
        for step in 0..STEPS / 2 {
            let (what, named) = walk.step();
            let differs = walk.look(named).into_iter();
            found.extend(differs.map(|text| format!("seed {seed}, step {step}: {what}: {text}")));
        }
        let first = found.iter().take(8).map(String::as_str).collect::<Vec<_>>().join("\n");
        assert!(found.is_empty(), "{} attributes are stale:\n{first}", found.len());
        mounted.finish();
    }
}
