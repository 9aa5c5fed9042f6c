//! Access lists: the kernel decides by them on a mount, the engine for every other caller. Goal:
//! the two never differ. Method: a pool in memory, mounted from this process, so that both can be
//! asked about the same files; lists, users and groups by chance.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode, SetAttr};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use front::fuse::{MountOptions, MountedSession, mount};
use runtime::clock::SystemClock;
use runtime::prng::Prng;
use rustix::fs::XattrFlags;
use storage::device::{MemoryDevice, SharedDevice};

use crate::calls::become_user;
use crate::can_mount;

const POOL_BYTES: u64 = 64 << 20;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// Users and groups that lists name; 5 and 7 also ask.
const IDS: [u32; 4] = [5, 6, 7, 8];
/// Who asks: user, group, further groups.
const USERS: [(u32, u32, &[u32]); 5] =
    [(5, 5, &[]), (5, 9, &[6]), (7, 8, &[]), (9, 9, &[7, 8]), (10, 10, &[])];
/// Lists tried.
const LISTS: u64 = 60;

struct Both {
    session: MountedSession,
    pool: Arc<Pool>,
    _directory: tempdir::Directory,
}

mod tempdir {
    /// A directory that goes with its value, unless something is mounted on it.
    pub(super) struct Directory(pub(super) std::path::PathBuf);

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir(&self.0);
        }
    }
}

impl Both {
    fn new(name: &str) -> Both {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let clock = Arc::new(SystemClock::new());
        let create = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
        Pool::create(&device, clock.as_ref(), &create).expect("a pool fits");
        let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("a new pool opens");
        let pool = Arc::new(pool);
        let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("the name is new");
        let directory = tempdir::Directory(path);
        let fs: Arc<dyn FileSystem> = pool.clone();
        let session = mount(fs, &directory.0, &MountOptions::new("memory"), None).expect("mounts");
        let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(session.directory(), open_to_all).expect("chmod");
        Both { session, pool, _directory: directory }
    }

    fn root(&self) -> &Path {
        self.session.directory()
    }
}

/// Returns a list by chance, as `linux/posix_acl_xattr.h` has it.
fn list(prng: &mut Prng) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    let mut entry = |tag: u16, bits: u64, id: u32| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(u16::try_from(bits).expect("3 bits").to_le_bytes());
        bytes.extend(id.to_le_bytes());
    };
    let none = u32::MAX;
    let mut has_named = false;
    entry(0x01, prng.below(8), none);
    for id in IDS.into_iter().filter(|_| prng.below(2) == 0).collect::<Vec<_>>() {
        entry(0x02, prng.below(8), id);
        has_named = true;
    }
    entry(0x04, prng.below(8), none);
    for id in IDS.into_iter().filter(|_| prng.below(2) == 0).collect::<Vec<_>>() {
        entry(0x08, prng.below(8), id);
        has_named = true;
    }
    if has_named {
        entry(0x10, prng.below(8), none);
    }
    entry(0x20, prng.below(8), none);
    bytes
}

/// Runs `ask` as a user of the kernel.
fn as_user<T: Send>(user: (u32, u32, &[u32]), ask: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let asked = scope.spawn(|| {
            become_user(user.0, user.1, user.2);
            ask()
        });
        asked.join().expect("the user's thread")
    })
}

fn number<T>(result: std::io::Result<T>) -> i32 {
    result.err().map_or(0, |error| error.raw_os_error().expect("the kernel says so"))
}

fn errno<T>(result: Result<T, FsError>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

#[test]
fn kernel_and_engine_give_the_same_answers() {
    if !can_mount("kernel_and_engine_give_the_same_answers") {
        return;
    }
    let both = Both::new("acl");
    let (file, directory) = (both.root().join("file"), both.root().join("directory"));
    let fs = both.pool.as_ref();
    let root = Caller::root();
    fs::write(&file, b"data").expect("write");
    fs::create_dir(&directory).expect("mkdir");
    fs::write(directory.join("there"), b"").expect("write");
    let ino = |name: &[u8]| fs.lookup(&root, fs.root(), name).expect("it is there").ino;
    let (file_ino, directory_ino) = (ino(b"file"), ino(b"directory"));
    let mut answers = [0_u32; 2];
    for seed in 0..LISTS {
        let mut prng = Prng::from_seed(seed);
        for path in [&file, &directory] {
            let owner = IDS[usize::try_from(prng.below(4)).expect("it is small")];
            let (uid, gid) = (rustix::fs::Uid::from_raw(owner), rustix::fs::Gid::from_raw(owner));
            rustix::fs::chown(path, Some(uid), Some(gid)).expect("chown");
            let value = list(&mut prng);
            rustix::fs::setxattr(path, ACCESS, &value, XattrFlags::empty()).expect("setxattr");
        }
        for (uid, gid, groups) in USERS {
            let context = format!("seed={seed} uid={uid} gid={gid} groups={groups:?}");
            let caller = Caller::checked(uid, gid, groups.to_vec());
            let (here, new) = (directory.join("there"), directory.join("new"));
            let kernel = as_user((uid, gid, groups), || {
                let truncated = number(File::options().write(true).truncate(true).open(&file));
                let found = number(fs::metadata(&here));
                let made = number(File::create_new(&new));
                (truncated, found, made)
            });
            let _ = fs::remove_file(&new);
            let change = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
            let truncated = errno(fs.setattr(&caller, file_ino, &change, None));
            let found = errno(fs.lookup(&caller, directory_ino, b"there"));
            let new = NewInode::new(FileKind::Regular, 0o600);
            let made = errno(fs.create(&caller, directory_ino, b"by-engine", new, None));
            let _ = fs.unlink(&root, directory_ino, b"by-engine", None);
            assert_eq!(kernel, (truncated, found, made), "(truncate, find, make) {context}");
            for answer in [truncated, found, made] {
                answers[usize::from(answer != 0)] += 1;
            }
        }
    }
    assert!(answers.iter().all(|count| *count > 100), "one-sided: {answers:?}");
}

/// Goal: what is made under a default list gets the same mode and the same lists on both ways,
/// and the umask counts only where there is none.
#[test]
fn what_is_made_inherits_the_same_on_both_ways() {
    if !can_mount("what_is_made_inherits_the_same_on_both_ways") {
        return;
    }
    let both = Both::new("inherit");
    let fs = both.pool.as_ref();
    let root = Caller::root();
    let status = fs::read_to_string("/proc/self/status").expect("there is one");
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:\t")).expect("it says so");
    let umask = u16::from_str_radix(umask, 8).expect("it is octal");
    for seed in 0..LISTS {
        let path = both.root().join(format!("d{seed}"));
        fs::create_dir(&path).expect("mkdir");
        if seed % 4 != 0 {
            let value = list(&mut Prng::from_seed(seed));
            rustix::fs::setxattr(&path, DEFAULT, &value, XattrFlags::empty()).expect("setxattr");
        }
        let parent = fs.lookup(&root, fs.root(), format!("d{seed}").as_bytes()).expect("there").ino;
        fs::write(path.join("file-k"), b"").expect("create");
        fs::create_dir(path.join("dir-k")).expect("mkdir");
        let make = |name: &[u8], kind, mode| {
            let new = NewInode { umask, ..NewInode::new(kind, mode) };
            fs.create(&root, parent, name, new, None).expect("it is new");
        };
        make(b"file-v", FileKind::Regular, 0o666);
        make(b"dir-v", FileKind::Directory, 0o777);
        let of = |name: &[u8]| {
            let attr = fs.lookup(&root, parent, name).expect("it is there");
            let lists = [ACCESS, DEFAULT].map(|list| {
                fs.getxattr(&root, attr.ino, list.as_bytes()).map_err(|error| error.errno())
            });
            (attr.mode, lists)
        };
        assert_eq!(of(b"file-k"), of(b"file-v"), "seed={seed}");
        assert_eq!(of(b"dir-k"), of(b"dir-v"), "seed={seed}");
    }
}
