//! System calls as data: made on one side or the other, and what came of them as text.
#![allow(unsafe_code)]
#![allow(clippy::as_conversions, reason = "arguments of system calls are machine words")]

use std::ffi::CString;
use std::fmt::{self, Write as _};

use crc32c::crc32c;

/// Descriptors that a history may have open at once. The last two are the ends of a pipe.
pub(crate) const SLOTS: usize = 8;
/// Where a pipe is read, and where it is written.
pub(crate) const PIPE: (usize, usize) = (SLOTS - 2, SLOTS - 1);
/// Bytes of `struct statx`.
const STATX_BYTES: usize = 256;
/// Bytes of a handle with its head (`struct file_handle`).
const HANDLE_BYTES: usize = 8 + 128;

/// An argument of a system call.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    /// A number.
    Is(i64),
    /// A path, from the root of the side.
    Path(Vec<u8>),
    /// An open file.
    Slot(usize),
    /// The path of an open file in /proc.
    SlotPath(usize),
    /// Bytes that the call reads, and may change.
    Bytes(Vec<u8>),
    /// So many bytes, all alike: number and value.
    Fill(usize, u8),
    /// Room for so many bytes that the call writes.
    Room(usize),
    /// The handle that was asked for last.
    Handle,
    /// Pieces of memory (`struct iovec`): their lengths, and what is in them.
    Pieces(Vec<usize>, u8),
}

/// What is compared of a call that succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// What it returns.
    Number,
    /// An offset of a file: those of a directory are its file system's own affair.
    Offset,
    /// That it succeeds.
    Success,
    /// A descriptor, which goes into this slot.
    Opens(usize),
    /// How many bytes there are, and which.
    Bytes,
    /// What it has written into memory of its own (`struct flock`, an offset).
    Changed,
    /// `struct statx`.
    Stat,
    /// Names of attributes.
    Attributes,
    /// A handle, which is kept.
    Handle,
}

/// One system call, or several that are one: what is asked of both sides.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) number: i64,
    pub(crate) args: Vec<Arg>,
    pub(crate) told: Told,
}

impl Call {
    /// Whether the call may leave a whiteout.
    fn leaves_whiteout(&self) -> bool {
        let whiteout = i64::from(libc::RENAME_WHITEOUT);
        let flags = self.args.last();
        self.number == libc::SYS_renameat2
            && matches!(flags, Some(Arg::Is(flags)) if flags & whiteout != 0)
    }
}

/// One step of a history.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A system call.
    Call(Call),
    /// Closes what is in a slot.
    Close(usize),
    /// Lists a directory from its start, with buffers of so many bytes.
    List(usize, usize),
    /// Maps a page, shared or not, stores a byte there, and unmaps it.
    Map { slot: usize, offset: i64, is_shared: bool },
    /// Moves bytes from file to file by way of the pipe, which is empty before and after: it has
    /// pages of the file, and not copies.
    Splice { source: usize, target: usize, length: i64 },
    /// Goes on as another user.
    User(u32),
}

impl Step {
    /// Whether ext4 has changed times though it refused: it makes a whiteout before it looks into
    /// the directory to be replaced, and touches that of the old name when it takes it back.
    pub(crate) fn takes_whiteout_back(&self, answer: &str) -> bool {
        matches!(self, Step::Call(call) if call.leaves_whiteout())
            && answer == told(Err(libc::ENOTEMPTY))
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arg::Is(value) if *value > 0xffff => write!(f, "{value:#x}"),
            Arg::Is(value) => write!(f, "{value}"),
            Arg::Path(path) if path.len() > 60 => write!(f, "a name of {} bytes", path.len()),
            Arg::Path(path) => write!(f, "{:?}", String::from_utf8_lossy(path)),
            Arg::Slot(slot) => write!(f, "#{slot}"),
            Arg::SlotPath(slot) => write!(f, "/proc/self/fd/#{slot}"),
            Arg::Bytes(bytes) if bytes.len() > 60 => write!(f, "{} bytes", bytes.len()),
            Arg::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Arg::Fill(length, byte) => write!(f, "{length} x {byte:#x}"),
            Arg::Room(length) => write!(f, "room for {length}"),
            Arg::Handle => f.write_str("the handle"),
            Arg::Pieces(pieces, byte) => write!(f, "{pieces:?} x {byte:#x}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Call(made) => {
                let args: Vec<String> = made.args.iter().map(Arg::to_string).collect();
                write!(f, "{}({})", made.name.trim_start_matches("SYS_"), args.join(", "))?;
                if let Told::Opens(slot) = made.told { write!(f, " -> #{slot}") } else { Ok(()) }
            }
            Step::Close(slot) => write!(f, "close(#{slot})"),
            Step::List(slot, room) => write!(f, "list(#{slot}, by {room} bytes)"),
            Step::Map { slot, offset, is_shared } => {
                write!(
                    f,
                    "map(#{slot}, at {offset}, {})",
                    if *is_shared { "shared" } else { "private" }
                )
            }
            Step::Splice { source, target, length } => {
                write!(f, "splice(#{source}, #{target}, {length})")
            }
            Step::User(uid) => write!(f, "user {uid}"),
        }
    }
}

/// An errno, or what came.
pub(crate) type Answer = Result<i64, i32>;

/// Makes a system call.
pub(crate) fn call(number: i64, args: &[i64]) -> Answer {
    let at = |index: usize| args.get(index).copied().unwrap_or(0);
    // SAFETY: each caller gives pointers to memory of its own that is as long as it says, which
    // lives until the call returns; no call here keeps one.
    let result = unsafe { libc::syscall(number, at(0), at(1), at(2), at(3), at(4), at(5)) };
    if result < 0 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        Ok(result)
    }
}

/// What `struct statx` says that both sides must agree on, and what tells changes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) mode: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) rdev: (u32, u32),
    pub(crate) ino: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
}

impl Stat {
    fn decode(bytes: &[u8]) -> Stat {
        let u16_at = |at: usize| u16::from_le_bytes(take(bytes, at));
        let u32_at = |at: usize| u32::from_le_bytes(take(bytes, at));
        let u64_at = |at: usize| u64::from_le_bytes(take(bytes, at));
        let time_at = |at: usize| (i64::from_le_bytes(take(bytes, at)), u32_at(at + 8));
        Stat {
            nlink: u32_at(16),
            uid: u32_at(20),
            gid: u32_at(24),
            mode: u16_at(28),
            ino: u64_at(32),
            size: u64_at(40),
            ctime: time_at(96),
            mtime: time_at(112),
            rdev: (u32_at(128), u32_at(132)),
        }
    }

    pub(crate) fn kind(&self) -> u32 {
        u32::from(self.mode) & libc::S_IFMT
    }

    /// What both sides must say.
    pub(crate) fn text(&self) -> String {
        let Stat { mode, nlink, uid, gid, rdev, .. } = self;
        let mut text = format!("{mode:o} {nlink} links {uid}:{gid}");
        match self.kind() {
            libc::S_IFREG | libc::S_IFLNK => {
                let _ = write!(text, " {} bytes", self.size);
            }
            libc::S_IFCHR | libc::S_IFBLK => {
                let _ = write!(text, " {}:{}", rdev.0, rdev.1);
            }
            _ => {}
        }
        text
    }
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

/// One of the two directories, and what is open there.
pub(crate) struct Side {
    root: i64,
    slots: [i64; SLOTS],
    handle: Vec<u8>,
}

impl Side {
    /// Starts in `root`, an absolute path.
    pub(crate) fn new(root: &str) -> Result<Side, i32> {
        let path = CString::new(root).map_err(|_| libc::EINVAL)?;
        let root = call(
            libc::SYS_open,
            &[path.as_ptr() as i64, i64::from(libc::O_DIRECTORY | libc::O_CLOEXEC)],
        )?;
        let mut ends = [0_i32; 2];
        call(libc::SYS_pipe2, &[ends.as_mut_ptr() as i64, i64::from(libc::O_NONBLOCK)])?;
        let mut slots = [-1; SLOTS];
        slots[PIPE.0] = i64::from(ends[0]);
        slots[PIPE.1] = i64::from(ends[1]);
        Ok(Side { root, slots, handle: vec![0; HANDLE_BYTES] })
    }

    /// Makes relative paths begin here.
    pub(crate) fn enter(&self) {
        let _ = call(libc::SYS_fchdir, &[self.root]);
    }

    fn put(&mut self, slot: usize, fd: i64) {
        let old = std::mem::replace(&mut self.slots[slot], fd);
        if old >= 0 {
            let _ = call(libc::SYS_close, &[old]);
        }
    }

    /// Does a step and says what came of it.
    pub(crate) fn run(&mut self, step: &Step) -> String {
        self.enter();
        match step {
            Step::Call(made) => self.call(made),
            Step::Close(slot) if *slot >= PIPE.0 => String::new(),
            Step::Close(slot) => {
                let old = std::mem::replace(&mut self.slots[*slot], -1);
                told(call(libc::SYS_close, &[old]))
            }
            Step::List(slot, room) => self.list(*slot, *room),
            Step::Map { slot, offset, is_shared } => self.map(*slot, *offset, *is_shared),
            Step::Splice { source, target, length } => self.splice(*source, *target, *length),
            Step::User(_) => String::new(),
        }
    }

    fn call(&mut self, made: &Call) -> String {
        let mut memory: Vec<Vec<u64>> = Vec::new();
        let mut lengths = Vec::new();
        let mut add = |bytes: &[u8], length: usize| {
            let mut words = vec![0_u64; length.div_ceil(8) + 1];
            for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
                let mut whole = [0; 8];
                whole[..part.len()].copy_from_slice(part);
                *word = u64::from_le_bytes(whole);
            }
            memory.push(words);
            lengths.push(length);
            memory.last_mut().map_or(0, |words| words.as_mut_ptr() as i64)
        };
        let mut values = Vec::with_capacity(made.args.len());
        for arg in &made.args {
            values.push(match arg {
                Arg::Is(value) => *value,
                Arg::Path(path) => add(path, path.len() + 1),
                Arg::Slot(slot) => self.slots[*slot],
                Arg::SlotPath(slot) => {
                    let path = format!("/proc/self/fd/{}", self.slots[*slot]);
                    add(path.as_bytes(), path.len() + 1)
                }
                Arg::Bytes(bytes) => add(bytes, bytes.len()),
                Arg::Fill(length, byte) => add(&vec![*byte; *length], *length),
                Arg::Room(length) => add(&[], *length),
                Arg::Handle => {
                    let handle = self.handle.clone();
                    add(&handle, handle.len())
                }
                Arg::Pieces(pieces, byte) => {
                    let mut vector = Vec::new();
                    for &length in pieces {
                        let start = add(&vec![*byte; length], length);
                        vector.extend_from_slice(&start.to_le_bytes());
                        vector.extend_from_slice(&(length as u64).to_le_bytes());
                    }
                    add(&vector, vector.len())
                }
            });
        }
        if let (Told::Offset, Some(Arg::Slot(slot))) = (made.told, made.args.first())
            && self.stat_of(*slot).is_some_and(|stat| stat.kind() == libc::S_IFDIR)
        {
            return "of a directory".to_owned();
        }
        let answer = call(made.number, &values);
        let bytes_of = |index: usize| -> Vec<u8> {
            let words = memory.get(index).map(Vec::as_slice).unwrap_or_default();
            let length = lengths.get(index).copied().unwrap_or(0);
            words.iter().flat_map(|word| word.to_le_bytes()).take(length).collect()
        };
        let last = bytes_of(memory.len().wrapping_sub(1));
        let Ok(number) = answer else { return told(answer) };
        match made.told {
            Told::Number | Told::Offset => told(answer),
            Told::Success => "done".to_owned(),
            Told::Opens(slot) => {
                self.put(slot, number);
                "open".to_owned()
            }
            Told::Bytes => {
                let count = usize::try_from(number).unwrap_or(0).min(last.len());
                format!("{number} bytes {:08x}", crc32c(&last[..count]))
            }
            Told::Changed => format!("{number} {last:?}"),
            Told::Stat => Stat::decode(&last).text(),
            Told::Attributes => attributes(number, &last),
            Told::Handle => {
                // Behind the path, and before the number of the mount.
                self.handle = bytes_of(1);
                "a handle".to_owned()
            }
        }
    }

    fn list(&mut self, slot: usize, room: usize) -> String {
        let fd = self.slots[slot];
        if let Err(errno) = call(libc::SYS_lseek, &[fd, 0, 0]) {
            return told(Err(errno));
        }
        let names = read_names(fd, room);
        // Where a list ends is its file system's own affair.
        let _ = call(libc::SYS_lseek, &[fd, 0, 0]);
        match names {
            Ok(names) => names.join(" "),
            Err(errno) => told(Err(errno)),
        }
    }

    fn splice(&mut self, source: usize, target: usize, length: i64) -> String {
        let move_bytes = |from: usize, to: usize| {
            let flags = i64::from(libc::SPLICE_F_NONBLOCK);
            call(libc::SYS_splice, &[self.slots[from], 0, self.slots[to], 0, length, flags])
        };
        let taken = move_bytes(source, PIPE.1);
        let given = move_bytes(PIPE.0, target);
        let mut rest = vec![0_u64; 1 << 13];
        let pointer = rest.as_mut_ptr() as i64;
        while call(libc::SYS_read, &[self.slots[PIPE.0], pointer, 1 << 16]).is_ok_and(|n| n > 0) {}
        format!("{} {}", told(taken), told(given))
    }

    fn map(&mut self, slot: usize, offset: i64, is_shared: bool) -> String {
        let kind = i64::from(if is_shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE });
        let access = i64::from(libc::PROT_READ | libc::PROT_WRITE);
        let args = [0, 4096, access, kind, self.slots[slot], offset & !4095];
        let start = match call(libc::SYS_mmap, &args) {
            Ok(start) => start,
            Err(errno) => return told(Err(errno)),
        };
        let size = self.stat_of(slot).map_or(0, |stat| stat.size);
        // A store past the last page of the file would be the end of us.
        let is_there = u64::try_from(offset & !4095).is_ok_and(|page| page < size);
        let within = usize::try_from(offset & 4095).unwrap_or(0);
        let is_inside = u64::try_from(offset).is_ok_and(|offset| offset < size);
        if is_there && is_inside {
            let byte = (start as usize + within) as *mut u8;
            // SAFETY: inside of the mapping and of the file, which nobody cuts meanwhile.
            unsafe { byte.write_volatile(0xee) };
        }
        let synced = call(libc::SYS_msync, &[start, 4096, i64::from(libc::MS_SYNC)]);
        let _ = call(libc::SYS_munmap, &[start, 4096]);
        format!("mapped {is_there} {is_inside} {}", told(synced))
    }

    /// What statx(2) says of a slot.
    pub(crate) fn stat_of(&self, slot: usize) -> Option<Stat> {
        stat(self.slots[slot], b"", libc::AT_EMPTY_PATH).ok()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        for fd in self.slots.into_iter().chain([self.root]).filter(|&fd| fd >= 0) {
            let _ = call(libc::SYS_close, &[fd]);
        }
    }
}

/// What statx(2) says of a path.
pub(crate) fn stat(at: i64, path: &[u8], flags: i32) -> Result<Stat, i32> {
    let path = CString::new(path).map_err(|_| libc::EINVAL)?;
    let mut room = vec![0_u64; STATX_BYTES / 8];
    let flags = i64::from(flags | libc::AT_SYMLINK_NOFOLLOW);
    let all = i64::from(libc::STATX_BASIC_STATS);
    let pointers = (path.as_ptr() as i64, room.as_mut_ptr() as i64);
    call(libc::SYS_statx, &[at, pointers.0, flags, all, pointers.1])?;
    let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok(Stat::decode(&bytes))
}

/// The number of an error as people know it, or what was returned.
pub(crate) fn told(answer: Answer) -> String {
    match answer {
        Ok(number) => number.to_string(),
        Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

/// Returns names and kinds from here to the end of a directory, sorted.
fn read_names(fd: i64, room: usize) -> Result<Vec<String>, i32> {
    let mut names = Vec::new();
    let mut memory = vec![0_u64; room.div_ceil(8) + 1];
    loop {
        let pointer = memory.as_mut_ptr() as i64;
        let count = call(libc::SYS_getdents64, &[fd, pointer, room as i64])?;
        if count == 0 {
            names.sort_unstable();
            return Ok(names);
        }
        let bytes = memory.iter().flat_map(|word| word.to_le_bytes());
        let bytes: Vec<u8> = bytes.take(usize::try_from(count).unwrap_or(0)).collect();
        names.extend(entries(&bytes));
    }
}

/// Names and kinds in what getdents64(2) wrote.
fn entries(mut bytes: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while bytes.len() > 19 {
        let length = usize::from(u16::from_le_bytes(take(bytes, 16)));
        let name: Vec<u8> =
            bytes[19..length].iter().copied().take_while(|&byte| byte != 0).collect();
        names.push(format!("{}={}", String::from_utf8_lossy(&name), bytes[18]));
        bytes = &bytes[length..];
    }
    names
}

fn attributes(number: i64, bytes: &[u8]) -> String {
    let count = usize::try_from(number).unwrap_or(0).min(bytes.len());
    let mut names: Vec<_> = bytes[..count].split(|&byte| byte == 0).collect();
    names.sort_unstable();
    let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
    format!("{number} {}", names.join(" "))
}

/// Makes this process, which has one thread, another user; user 0 is the superuser again.
pub(crate) fn become_user(user: u32, groups: &[u32]) {
    let keep = -1;
    let _ = call(libc::SYS_setresuid, &[keep, 0, keep]);
    let _ = call(libc::SYS_setresgid, &[keep, 0, keep]);
    let _ = call(libc::SYS_setgroups, &[groups.len() as i64, groups.as_ptr() as i64]);
    if user != 0 {
        let _ = call(libc::SYS_setresgid, &[keep, i64::from(user), keep]);
        let _ = call(libc::SYS_setresuid, &[keep, i64::from(user), keep]);
    }
}

/// Sets the umask of this process.
pub(crate) fn set_umask(mask: i64) {
    let _ = call(libc::SYS_umask, &[mask]);
}
