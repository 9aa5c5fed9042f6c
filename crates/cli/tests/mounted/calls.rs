//! System calls that no crate offers safely.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{io, ptr};

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A mapping of the first bytes of a file.
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` of `file`: shared, or as a private copy.
    pub(crate) fn new(file: &File, bytes: usize, is_shared: bool) -> Mapping {
        let kind = if is_shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel finds room touches no memory of ours.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Mapping { start: start.cast(), bytes }
    }

    pub(crate) fn get(&self, at: usize) -> u8 {
        assert!(at < self.bytes);
        // SAFETY: inside of the mapping, which lives as long as `self`.
        unsafe { self.start.add(at).read_volatile() }
    }

    pub(crate) fn set(&mut self, at: usize, byte: u8) {
        assert!(at < self.bytes);
        // SAFETY: as in `get`; the mapping is writable.
        unsafe { self.start.add(at).write_volatile(byte) }
    }

    /// Makes what was written through the mapping durable.
    pub(crate) fn sync(&self) {
        // SAFETY: the range is the mapping.
        let result = unsafe { libc::msync(self.start.cast(), self.bytes, libc::MS_SYNC) };
        checked(result).expect("msync");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// Takes or tests a lock on bytes as `command` says: of the process (`F_SETLK`) or of the open
/// file (`F_OFD_SETLK`).
pub(crate) fn lock_bytes(
    file: &File,
    command: libc::c_int,
    kind: libc::c_int,
    range: std::ops::Range<i64>,
) -> io::Result<()> {
    let lock = libc::flock {
        l_type: i16::try_from(kind).expect("kinds are small"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("it is small"),
        l_start: range.start,
        l_len: range.end - range.start,
        l_pid: 0,
    };
    // SAFETY: the commands named above read one `flock` and write none.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) }).map(drop)
}

/// A file as name_to_handle_at(2) names it.
#[derive(Clone)]
pub(crate) struct Handle(Vec<u32>);

/// Bytes of handles that are made room for; the kernel's maximum.
const HANDLE_BYTES: u32 = 128;

/// Returns a handle of the file at `path`.
pub(crate) fn handle_of(path: &Path) -> io::Result<Handle> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut handle = vec![0_u32; 34];
    handle[0] = HANDLE_BYTES;
    let mut mount = 0;
    // SAFETY: `handle` has room for its two numbers and HANDLE_BYTES bytes.
    let result = unsafe {
        let handle = handle.as_mut_ptr().cast();
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), handle, &raw mut mount, 0)
    };
    checked(result)?;
    Ok(Handle(handle))
}

/// Opens what a handle names, on the file system of `mount`.
pub(crate) fn open_handle(mount: &File, handle: &Handle, flags: libc::c_int) -> io::Result<File> {
    let mut handle = handle.0.clone();
    // SAFETY: the kernel reads what `handle_of` got from it, and the descriptor is new and ours.
    unsafe {
        let handle = handle.as_mut_ptr().cast();
        let opened = checked(libc::open_by_handle_at(mount.as_raw_fd(), handle, flags))?;
        Ok(File::from_raw_fd(opened))
    }
}

/// Makes this thread, and no other, a user without privileges, for what it does with files.
pub(crate) fn become_user(uid: u32, gid: u32, groups: &[u32]) {
    // SAFETY: plain system calls on this thread; the library's functions would change all threads.
    unsafe {
        let count = groups.len();
        assert_eq!(libc::syscall(libc::SYS_setgroups, count, groups.as_ptr()), 0);
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        let now = libc::syscall(libc::SYS_setfsuid, u32::MAX);
        assert_eq!(now, i64::from(uid));
    }
}

/// A request of linux/aio_abi.h; only what a write needs is not zero.
#[repr(C)]
#[derive(Default)]
struct AsyncRequest {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_file: u32,
}

/// What came of a request.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AsyncResult {
    data: u64,
    request: u64,
    result: i64,
    second: i64,
}

/// `IOCB_CMD_PWRITE` of linux/aio_abi.h.
const ASYNC_WRITE: u16 = 1;

/// Writes `pieces` at their offsets, all of them asked for before any is waited for.
pub(crate) fn write_async(file: &File, pieces: &[(i64, Vec<u8>)]) {
    let mut context: libc::c_ulong = 0;
    let descriptor = u32::try_from(file.as_raw_fd()).expect("it is open");
    let wide = |value: usize| u64::try_from(value).expect("64 bits hold it");
    let mut requests: Vec<_> = pieces
        .iter()
        .map(|(offset, bytes)| AsyncRequest {
            opcode: ASYNC_WRITE,
            file: descriptor,
            buffer: wide(bytes.as_ptr().addr()),
            bytes: wide(bytes.len()),
            offset: *offset,
            ..AsyncRequest::default()
        })
        .collect();
    let pointers: Vec<_> = requests.iter_mut().map(ptr::from_mut).collect();
    let mut results = vec![AsyncResult::default(); pieces.len()];
    let count = pieces.len();
    // SAFETY: requests, what they write and room for the results live until all have ended.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, count, &raw mut context), 0);
        let asked = libc::syscall(libc::SYS_io_submit, context, count, pointers.as_ptr());
        assert_eq!(usize::try_from(asked), Ok(count), "{}", io::Error::last_os_error());
        let (room, forever) = (results.as_mut_ptr(), ptr::null::<libc::timespec>());
        let ended = libc::syscall(libc::SYS_io_getevents, context, count, count, room, forever);
        assert_eq!(usize::try_from(ended), Ok(count));
        libc::syscall(libc::SYS_io_destroy, context);
    }
    for AsyncResult { result, .. } in results {
        assert!(result > 0, "{result}");
    }
}
