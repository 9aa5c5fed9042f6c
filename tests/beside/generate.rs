//! Steps by chance: calls of every kind on few names, with arguments that are odd.
#![allow(clippy::as_conversions, reason = "flags of the C library have many types")]

use runtime::prng::Prng;

use crate::calls::{Arg, Call, SLOTS, Step, Told};

/// Names that histories use: few, so that they meet.
pub(crate) const NAMES: [&str; 14] =
    ["f", "g", "h", "s", "d", "e", "d/f", "d/g", "d/s", "d/d", "d/d/f", "e/f", "e/d", "e/s"];
/// Ways to say them that are odd.
const ODD_NAMES: [&str; 17] = [
    "",
    ".",
    "..",
    "./f",
    "f/",
    "d/",
    "s/",
    "h/",
    "d/.",
    "d/..",
    "d/../f",
    "f/x",
    "missing/f",
    "d//f",
    "s/f",
    "d/d/../f",
    "d/./d/",
];
const OFFSETS: [i64; 20] = [
    0,
    1,
    100,
    256,
    257,
    4095,
    4096,
    4097,
    8192,
    12288,
    16383,
    16384,
    20000,
    65536,
    100_000,
    1 << 20,
    -1,
    -4096,
    -65_536,
    i64::MIN,
];
const LENGTHS: [i64; 14] =
    [0, 1, 2, 100, 255, 256, 257, 4095, 4096, 4097, 8192, 10_000, 16_384, 40_000];
/// Setgid only with group execution: of the groups without which Linux takes it away, the kernel
/// tells a FUSE file system nothing.
const MODES: [i64; 11] =
    [0, 0o777, 0o755, 0o644, 0o600, 0o640, 0o400, 0o4755, 0o2755, 0o6777, 0o1777];
const OWNERS: [i64; 6] = [-1, 0, 1001, 1002, 1003, 65_536];
const USERS: [u32; 6] = [0, 0, 0, 0, 1001, 1002];
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Makes steps.
pub(crate) struct Generator {
    prng: Prng,
    fill: u8,
    /// Who makes the next call.
    user: u32,
}

fn is(value: i32) -> Arg {
    Arg::Is(i64::from(value))
}

fn of(name: &'static str, number: i64, args: Vec<Arg>, told: Told) -> Step {
    Step::Call(Call { name, number, args, told })
}

macro_rules! call {
    ($name:ident, $told:expr, $($arg:expr),* $(,)?) => {
        of(stringify!($name), libc::$name, vec![$($arg),*], $told)
    };
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Generator {
        Generator { prng: Prng::from_seed(seed), fill: 0, user: 0 }
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        let index = self.prng.below(of.len() as u64) as usize;
        of[index]
    }

    fn chance(&mut self, count: u64) -> bool {
        self.prng.one_in(count)
    }

    /// Each flag by chance, one in `rarity`.
    fn some_of(&mut self, flags: &[i32], rarity: u64) -> i32 {
        flags.iter().fold(0, |all, flag| if self.chance(rarity) { all | flag } else { all })
    }

    fn fill(&mut self) -> u8 {
        self.fill = self.fill.wrapping_add(1);
        self.fill
    }

    fn path(&mut self) -> Arg {
        let path = match self.prng.below(40) {
            0 => vec![b'n'; 255],
            1 => vec![b'n'; 256],
            2 => [b"d/".as_slice(), &[b'n'; 255]].concat(),
            3..=5 => self.one(&ODD_NAMES).as_bytes().to_vec(),
            _ => self.one(&NAMES).as_bytes().to_vec(),
        };
        Arg::Path(path)
    }

    fn slot(&mut self) -> usize {
        let bound = if self.chance(20) { SLOTS - 2 } else { SLOTS - 3 };
        self.prng.below(bound as u64) as usize
    }

    fn file(&mut self) -> Arg {
        Arg::Slot(self.slot())
    }

    fn offset(&mut self) -> Arg {
        let offset = if self.chance(3) {
            self.prng.below(70_000) as i64
        } else if self.chance(4) {
            self.one(&OFFSETS)
        } else {
            self.one(&OFFSETS[..15])
        };
        Arg::Is(offset)
    }

    /// An offset that may lie behind what the other file system has room for.
    fn far_offset(&mut self) -> Arg {
        if self.chance(15) {
            Arg::Is(self.one(&[i64::MAX, i64::MAX - 4095]))
        } else {
            self.offset()
        }
    }

    fn length(&mut self) -> i64 {
        if self.chance(3) { self.prng.below(20_000) as i64 } else { self.one(&LENGTHS) }
    }

    fn mode(&mut self) -> Arg {
        Arg::Is(self.one(&MODES))
    }

    /// Returns the steps that a history begins with: something to work on.
    pub(crate) fn first_steps(&mut self) -> Vec<Step> {
        let path = |name: &str| Arg::Path(name.as_bytes().to_vec());
        let mut steps = Vec::new();
        for name in ["d", "e", "d/d"] {
            steps.push(call!(SYS_mkdir, Told::Number, path(name), is(0o777)));
        }
        for (target, name) in [("f", "s"), ("../e", "d/s"), ("../d", "e/s")] {
            steps.push(call!(SYS_symlink, Told::Number, path(target), path(name)));
        }
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
        for (slot, name) in ["f", "g", "d/f", "d/d/f"].into_iter().enumerate() {
            let mode = self.one(&[0o666, 0o644, 0o600, 0o6777]);
            let (at, told) = (is(libc::AT_FDCWD), Told::Opens(slot));
            steps.push(call!(SYS_openat, told, at, path(name), is(flags), Arg::Is(mode)));
            let (length, fill) = (self.length(), self.fill());
            let data = Arg::Fill(length as usize, fill);
            steps.push(call!(SYS_write, Told::Number, Arg::Slot(slot), data, Arg::Is(length)));
        }
        let (at, told) = (is(libc::AT_FDCWD), Told::Opens(4));
        let name = self.one(&["d", "e", "."]);
        let flags = is(libc::O_RDONLY | libc::O_DIRECTORY);
        steps.push(call!(SYS_openat, told, at, path(name), flags, is(0)));
        steps
    }

    /// Returns the next step.
    pub(crate) fn step(&mut self) -> Step {
        match self.prng.below(100) {
            0..=11 => self.open(),
            12 => Step::Close(self.slot()),
            13..=24 => self.content(),
            25..=29 => self.size(),
            30..=39 => self.make(),
            40..=49 => self.rename(),
            50..=55 => self.link(),
            56..=62 => self.remove(),
            63..=72 => self.attributes(),
            73..=77 => self.look(),
            78..=85 => self.extended(),
            86..=89 => self.copy(),
            90..=92 => self.lock(),
            93..=94 => self.descriptor(),
            95 => Step::Map {
                slot: self.slot(),
                offset: self.prng.below(40_000) as i64,
                is_shared: !self.chance(3),
            },
            96 => Step::List(self.slot(), self.one(&[10, 100, 300, 4096])),
            _ => {
                self.user = self.one(&USERS);
                Step::User(self.user)
            }
        }
    }

    fn open(&mut self) -> Step {
        let access = self.one(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR, 3]);
        let usual = self.one(&[0, 0, libc::O_CREAT, libc::O_CREAT, libc::O_CREAT | libc::O_EXCL]);
        let rare = self.some_of(
            &[
                libc::O_TRUNC,
                libc::O_APPEND,
                libc::O_DIRECTORY,
                libc::O_NOFOLLOW,
                libc::O_PATH,
                libc::O_TMPFILE,
                libc::O_SYNC,
                libc::O_DSYNC,
                libc::O_NOATIME,
                libc::O_EXCL,
            ],
            20,
        );
        let flags = access | usual | rare | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
        let at = if self.chance(15) { self.file() } else { is(libc::AT_FDCWD) };
        let slot = self.prng.below((SLOTS - 3) as u64) as usize;
        call!(SYS_openat, Told::Opens(slot), at, self.path(), is(flags), self.mode())
    }

    fn content(&mut self) -> Step {
        let (file, length) = (self.file(), self.length());
        let fill = self.fill();
        let data = Arg::Fill(length as usize, fill);
        let room = Arg::Room(length as usize);
        let pieces = [self.length() as usize % 5000, 0, self.length() as usize];
        match self.prng.below(12) {
            0 => call!(SYS_read, Told::Bytes, file, room, Arg::Is(length)),
            1 | 2 => call!(SYS_write, Told::Number, file, data, Arg::Is(length)),
            3 | 4 => {
                call!(SYS_pread64, Told::Bytes, file, room, Arg::Is(length), self.far_offset())
            }
            5..=7 => call!(SYS_pwrite64, Told::Number, file, data, Arg::Is(length), self.offset()),
            8 => call!(SYS_writev, Told::Number, file, Arg::Pieces(pieces.to_vec(), fill), is(3)),
            9 => {
                let flags = self.one(&[0, 0, libc::RWF_APPEND, libc::RWF_DSYNC, libc::RWF_NOWAIT]);
                let pieces = Arg::Pieces(pieces.to_vec(), fill);
                call!(
                    SYS_pwritev2,
                    Told::Number,
                    file,
                    pieces,
                    is(3),
                    self.offset(),
                    is(0),
                    is(flags)
                )
            }
            10 => {
                let whence = self.one(&[libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, 5, -1]);
                call!(SYS_lseek, Told::Offset, file, self.offset(), is(whence))
            }
            _ => match self.prng.below(5) {
                0 => call!(SYS_fsync, Told::Number, file),
                1 => call!(SYS_fdatasync, Told::Number, file),
                2 => call!(
                    SYS_sync_file_range,
                    Told::Number,
                    file,
                    self.far_offset(),
                    Arg::Is(length),
                    is(7)
                ),
                3 => call!(
                    SYS_fadvise64,
                    Told::Number,
                    file,
                    self.far_offset(),
                    Arg::Is(length),
                    is(4)
                ),
                _ => call!(SYS_readahead, Told::Number, file, self.far_offset(), Arg::Is(length)),
            },
        }
    }

    fn size(&mut self) -> Step {
        match self.prng.below(7) {
            0 => call!(SYS_truncate, Told::Number, self.path(), self.offset()),
            1 | 2 => call!(SYS_ftruncate, Told::Number, self.file(), self.offset()),
            _ => {
                let keep = libc::FALLOC_FL_KEEP_SIZE;
                let mode = self.one(&[
                    0,
                    0,
                    keep,
                    keep | libc::FALLOC_FL_PUNCH_HOLE,
                    keep | libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_ZERO_RANGE,
                    keep | libc::FALLOC_FL_ZERO_RANGE,
                    libc::FALLOC_FL_PUNCH_HOLE,
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE,
                    keep | libc::FALLOC_FL_COLLAPSE_RANGE,
                    keep | libc::FALLOC_FL_INSERT_RANGE,
                    0x100,
                    -1,
                ]);
                let (offset, length) = (self.offset(), self.offset());
                call!(SYS_fallocate, Told::Number, self.file(), is(mode), offset, length)
            }
        }
    }

    fn make(&mut self) -> Step {
        let path = self.path();
        match self.prng.below(10) {
            0..=3 => call!(SYS_mkdir, Told::Number, path, self.mode()),
            4..=6 => {
                let targets = [
                    "f", "g", "d", "../d", "s", "d/s", "missing", ".", "..", "e/", "e/", "d/f", "",
                    "../f", "d/d",
                ];
                let target = match self.prng.below(20) {
                    0 => vec![b't'; 4095],
                    1 => vec![b't'; 4096],
                    2 => vec![b't'; 300],
                    _ => self.one(&targets).as_bytes().to_vec(),
                };
                call!(SYS_symlink, Told::Number, Arg::Path(target), path)
            }
            _ => {
                let kinds = [
                    libc::S_IFREG,
                    libc::S_IFREG,
                    libc::S_IFCHR,
                    libc::S_IFBLK,
                    libc::S_IFIFO,
                    libc::S_IFSOCK,
                    libc::S_IFDIR,
                    libc::S_IFLNK,
                    0,
                    0o170_000,
                    0o030_000,
                ];
                let mode = i64::from(self.one(&kinds)) | self.one(&MODES);
                // The null device, a whiteout, one that nobody serves, and large numbers.
                let dev = self.one(&[0x103, 0, 0xf001, 0xf_fe12, 0x7fff_ffff]);
                call!(SYS_mknod, Told::Number, path, Arg::Is(mode), Arg::Is(dev))
            }
        }
    }

    fn rename(&mut self) -> Step {
        // Among them whiteouts alone (4), with a target that stays (5), and what is refused.
        let flags = self.one(&[0, 0, 0, 0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 8]);
        let (source, target) = (self.path(), self.path());
        let here = || is(libc::AT_FDCWD);
        call!(SYS_renameat2, Told::Number, here(), source, here(), target, is(flags))
    }

    fn link(&mut self) -> Step {
        let here = || is(libc::AT_FDCWD);
        let (source, target) = (self.path(), self.path());
        match self.prng.below(8) {
            0 => {
                let empty = Arg::Path(Vec::new());
                let flags = is(libc::AT_EMPTY_PATH);
                call!(SYS_linkat, Told::Number, self.file(), empty, here(), target, flags)
            }
            1 | 2 => {
                let source = Arg::SlotPath(self.slot());
                let flags = is(libc::AT_SYMLINK_FOLLOW);
                call!(SYS_linkat, Told::Number, here(), source, here(), target, flags)
            }
            3 => {
                let flags = is(self.one(&[libc::AT_SYMLINK_FOLLOW, 1]));
                call!(SYS_linkat, Told::Number, here(), source, here(), target, flags)
            }
            _ => call!(SYS_link, Told::Number, source, target),
        }
    }

    fn remove(&mut self) -> Step {
        let path = self.path();
        match self.prng.below(8) {
            0..=3 => call!(SYS_unlink, Told::Number, path),
            4 | 5 => call!(SYS_rmdir, Told::Number, path),
            _ => {
                let flags = self.one(&[0, libc::AT_REMOVEDIR, 1]);
                call!(SYS_unlinkat, Told::Number, is(libc::AT_FDCWD), path, is(flags))
            }
        }
    }

    /// Returns an owner and a group. Of nobody and nobody, asked by a user who is not the owner,
    /// Linux tells a FUSE file system nothing.
    fn owners(&mut self) -> (i64, i64) {
        let (uid, gid) = (self.one(&OWNERS), self.one(&OWNERS));
        if self.user == 0 { (uid, gid) } else { (uid.max(0), gid) }
    }

    fn time(&mut self) -> (i64, i64) {
        let seconds = self.one(&[
            0,
            1,
            -1,
            1_000_000_000,
            -2_000_000_000,
            4_294_967_296,
            15_000_000_000,
            123_456_789,
        ]);
        let nanoseconds = self.one(&[
            0,
            1,
            999_999_999,
            1_000_000_000,
            -1,
            libc::UTIME_NOW,
            libc::UTIME_NOW,
            libc::UTIME_OMIT,
            500_000_000,
        ]);
        (seconds, nanoseconds)
    }

    fn attributes(&mut self) -> Step {
        let here = || is(libc::AT_FDCWD);
        let path = self.path();
        match self.prng.below(10) {
            0..=2 => call!(SYS_chmod, Told::Number, path, self.mode()),
            3 => call!(SYS_fchmod, Told::Number, self.file(), self.mode()),
            4 | 5 => {
                let (uid, gid) = self.owners();
                let flags = self.one(&[0, libc::AT_SYMLINK_NOFOLLOW]);
                call!(
                    SYS_fchownat,
                    Told::Number,
                    here(),
                    path,
                    Arg::Is(uid),
                    Arg::Is(gid),
                    is(flags)
                )
            }
            6 => {
                let (uid, gid) = self.owners();
                call!(SYS_fchown, Told::Number, self.file(), Arg::Is(uid), Arg::Is(gid))
            }
            kind => {
                let (access, change) = (self.time(), self.time());
                let numbers = [access.0, access.1, change.0, change.1];
                let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                let times = if self.chance(5) { is(0) } else { Arg::Bytes(bytes) };
                if kind == 7 {
                    call!(SYS_utimensat, Told::Number, self.file(), is(0), times, is(0))
                } else {
                    let flags = self.one(&[0, 0, libc::AT_SYMLINK_NOFOLLOW, 0x8000]);
                    call!(SYS_utimensat, Told::Number, here(), path, times, is(flags))
                }
            }
        }
    }

    fn look(&mut self) -> Step {
        let here = || is(libc::AT_FDCWD);
        let path = self.path();
        match self.prng.below(10) {
            9 => {
                let slot = self.prng.below((SLOTS - 3) as u64) as usize;
                let flags = is(self.one(&[libc::O_RDONLY, libc::O_RDWR]) | libc::O_NONBLOCK);
                call!(SYS_open_by_handle_at, Told::Opens(slot), here(), Arg::Handle, flags)
            }
            0 | 1 => {
                let flags = self.one(&[0, libc::AT_SYMLINK_NOFOLLOW, libc::AT_EMPTY_PATH, 0x1]);
                call!(SYS_statx, Told::Stat, here(), path, is(flags), is(0x7ff), Arg::Room(256))
            }
            2 => {
                let empty = Arg::Path(Vec::new());
                let flags = is(libc::AT_EMPTY_PATH);
                call!(SYS_statx, Told::Stat, self.file(), empty, flags, is(0x7ff), Arg::Room(256))
            }
            3 => {
                let size = self.one(&[0, 1, 3, 100, 5000]);
                call!(SYS_readlink, Told::Bytes, path, Arg::Room(size), Arg::Is(size as i64))
            }
            4 => {
                let mode = self.one(&[0, 1, 2, 4, 6, 7, 8]);
                let flags =
                    self.one(&[libc::AT_EACCESS, libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW]);
                call!(SYS_faccessat2, Told::Number, here(), path, is(mode), is(flags))
            }
            5 => call!(SYS_statfs, Told::Success, path, Arg::Room(256)),
            6 => {
                let mut head = vec![0; 136];
                head[0] = 128;
                let flags = self.one(&[0, libc::AT_SYMLINK_FOLLOW, libc::AT_EMPTY_PATH]);
                // The mount's number goes before the handle, which is the last that is written.
                let args = vec![here(), path, Arg::Bytes(head), Arg::Room(8), is(flags)];
                of("SYS_name_to_handle_at", libc::SYS_name_to_handle_at, args, Told::Handle)
            }
            7 => call!(SYS_newfstatat, Told::Success, here(), path, Arg::Room(256), is(0x100)),
            _ => {
                let whence = self.one(&[libc::SEEK_DATA, libc::SEEK_HOLE]);
                let far = self.one(&[1 << 20, 1 << 21, i64::MAX, -1]);
                call!(SYS_lseek, Told::Offset, self.file(), Arg::Is(far), is(whence))
            }
        }
    }

    fn attribute_name(&mut self) -> Arg {
        let long = |prefix: &str, length: usize| {
            [prefix.as_bytes(), &vec![b'n'; length - prefix.len()]].concat()
        };
        Arg::Path(match self.prng.below(20) {
            0 => long("user.", 255),
            1 => long("user.", 256),
            2 => long("trusted.", 255),
            3 => self
                .one(&["", "user", "user.", "trusted.", "security.", "other.a", "system.a"])
                .as_bytes()
                .to_vec(),
            4 | 5 => b"trusted.a".to_vec(),
            6 => b"security.a".to_vec(),
            7..=9 => ACCESS.to_vec(),
            10 | 11 => DEFAULT.to_vec(),
            12..=15 => b"user.b".to_vec(),
            _ => b"user.a".to_vec(),
        })
    }

    fn extended(&mut self) -> Step {
        let path = self.path();
        let name = self.attribute_name();
        let is_list = matches!(&name, Arg::Path(name) if name.starts_with(b"system.posix"));
        match self.prng.below(10) {
            0..=4 => {
                let value = if is_list && !self.chance(6) {
                    self.acl()
                } else {
                    // What ext4 has room for.
                    let length = self.one(&[0, 1, 50, 300, 1000, 65_537]);
                    vec![self.fill(); length]
                };
                let length = Arg::Is(value.len() as i64);
                // A value that is there already sets no ctime on ext4; only empty ones come twice.
                let flags = is(if value.is_empty() { 1 } else { self.one(&[0, 0, 0, 1, 2, 3, 4]) });
                let value = Arg::Bytes(value);
                match self.prng.below(4) {
                    0 => call!(SYS_lsetxattr, Told::Number, path, name, value, length, flags),
                    1 => {
                        call!(SYS_fsetxattr, Told::Number, self.file(), name, value, length, flags)
                    }
                    _ => call!(SYS_setxattr, Told::Number, path, name, value, length, flags),
                }
            }
            5 | 6 => {
                let room = self.one(&[0, 1, 40, 4000, 65_536]);
                let (value, length) = (Arg::Room(room), Arg::Is(room as i64));
                if self.chance(3) {
                    call!(SYS_fgetxattr, Told::Bytes, self.file(), name, value, length)
                } else {
                    call!(SYS_lgetxattr, Told::Bytes, path, name, value, length)
                }
            }
            7 => {
                let room = self.one(&[0, 1, 10, 4000]);
                let (names, length) = (Arg::Room(room), Arg::Is(room as i64));
                call!(SYS_llistxattr, Told::Attributes, path, names, length)
            }
            8 => call!(SYS_removexattr, Told::Number, path, name),
            _ => call!(SYS_lremovexattr, Told::Number, path, name),
        }
    }

    /// An access list as `linux/posix_acl_xattr.h` has it, some of them wrong.
    fn acl(&mut self) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        if self.chance(15) {
            bytes[0] = 1;
        }
        let mut entries: Vec<(u16, u32)> = vec![(1, u32::MAX), (4, u32::MAX), (0x20, u32::MAX)];
        let mut is_named = false;
        for (tag, ids) in [(2, [1001, 1002]), (8, [1001, 1003])] {
            for id in ids {
                if self.chance(3) {
                    entries.push((tag, id));
                    is_named = true;
                }
            }
        }
        if is_named || self.chance(4) {
            entries.push((0x10, u32::MAX));
        }
        if self.chance(20) {
            entries.pop();
        }
        entries.sort_unstable();
        for (tag, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            let permissions = self.one(&[0_u16, 1, 2, 4, 5, 6, 7]);
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    fn copy(&mut self) -> Step {
        let (source, target) = (self.file(), self.file());
        let length = Arg::Is(self.length());
        let at = |generator: &mut Generator| {
            let Arg::Is(offset) = generator.offset() else { return is(0) };
            Arg::Bytes(offset.to_le_bytes().to_vec())
        };
        match self.prng.below(6) {
            0..=2 => {
                let from = if self.chance(3) { is(0) } else { at(self) };
                let to = if self.chance(3) { is(0) } else { at(self) };
                let flags = is(i32::from(self.chance(20)));
                call!(SYS_copy_file_range, Told::Number, source, from, target, to, length, flags)
            }
            3 => call!(SYS_sendfile, Told::Number, target, source, is(0), length),
            _ => {
                let (source, target) = (self.slot(), self.slot());
                Step::Splice { source, target, length: self.length() }
            }
        }
    }

    fn lock(&mut self) -> Step {
        if self.chance(2) {
            let kind = self.one(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN, 16]);
            return call!(SYS_flock, Told::Number, self.file(), is(kind | libc::LOCK_NB));
        }
        let kind = self.one(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK, 7]);
        let whence = self.one(&[0_i32, 0, 0, 1, 9]);
        let (start, length) = (self.one(&OFFSETS), self.one(&[0, 1, 100, -1, i64::MAX]));
        let mut lock = Vec::new();
        lock.extend_from_slice(&(kind as i16).to_le_bytes());
        lock.extend_from_slice(&(whence as i16).to_le_bytes());
        lock.extend_from_slice(&[0; 4]);
        lock.extend_from_slice(&start.to_le_bytes());
        lock.extend_from_slice(&length.to_le_bytes());
        lock.extend_from_slice(&[0; 8]);
        let command = self.one(&[
            libc::F_SETLK,
            libc::F_GETLK,
            libc::F_OFD_SETLK,
            libc::F_OFD_SETLK,
            libc::F_OFD_GETLK,
        ]);
        call!(SYS_fcntl, Told::Changed, self.file(), is(command), Arg::Bytes(lock))
    }

    fn descriptor(&mut self) -> Step {
        let file = self.file();
        match self.prng.below(3) {
            0 => {
                let flags = self.some_of(&[libc::O_APPEND, libc::O_NOATIME], 2) | libc::O_NONBLOCK;
                call!(SYS_fcntl, Told::Number, file, is(libc::F_SETFL), is(flags))
            }
            1 => call!(SYS_fcntl, Told::Number, file, is(libc::F_GETFL)),
            _ => call!(SYS_dup, Told::Opens(self.prng.below(5) as usize), file),
        }
    }
}
