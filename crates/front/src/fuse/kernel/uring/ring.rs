//! One ring: entries that the kernel fills with requests and takes back with replies.
//!
//! An *entry* is two blocks of memory: headers and payload. It belongs either to the kernel or to
//! this process. An [`OwnedEntry`] is ownership by the process. The ring stores the `OwnedEntry` of
//! the kernel's entries.
//!
//! # Invariants
//!
//! - RG1: The memory of an entry is accessed only through its [`OwnedEntry`]. The ring hands it out
//!   when the kernel has filled the entry, and takes it before the kernel may access the entry
//!   again.
//! - RG2: An entry has at most one command in progress, so the submission and completion queues
//!   have room for all entries. If calls fill the submission queue, a push submits them first.
//! - RG3: Memory of an entry that the kernel still has is leaked when the ring is dropped.
//!
//! # Concurrency
//!
//! Any thread may push, submit and reap, each under its own lock, never held across a system call.
//! A request arrives in the context of the thread that last submitted the entry, where the kernel
//! copies it.
//!
//! A *call* is a NOP that wakes all threads waiting at the ring. It completes when submitted,
//! whether any thread waits or not.
#![allow(unsafe_code)]

use std::io;
use std::mem::{forget, size_of};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::thread::yield_now;

use engine::api::AlignedBuffer;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::super::fuse_kernel::{UringCommand, UringHeader, uring_command};
use super::PAYLOAD_BYTES;

/// User data of a call. An entry has its index.
const CALL: u64 = u64::MAX;

/// Memory for headers: a page, because the memory is page-aligned.
const HEADER_BYTES: usize = {
    assert!(size_of::<UringHeader>() <= 4096);
    4096
};

/// Most tries of a submission if the kernel lacks memory.
const SUBMISSIONS_MAX: u32 = 1000;

/// `sqe->len` of a registration: two blocks of memory, headers and payload.
const PIECES: u32 = 2;

/// The memory of an entry, and the right to access it (RG1).
pub(super) struct OwnedEntry {
    index: usize,
    header: NonNull<UringHeader>,
    payload: NonNull<u8>,
    _memory: [AlignedBuffer; 2],
}

// SAFETY: it owns the memory it points to, as a `Box` does.
unsafe impl Send for OwnedEntry {}

impl OwnedEntry {
    pub(super) fn new(index: usize) -> OwnedEntry {
        let mut first = AlignedBuffer::for_reading(HEADER_BYTES);
        let mut second = AlignedBuffer::for_reading(PAYLOAD_BYTES);
        let header = NonNull::from(&mut first[..]).cast();
        let payload = NonNull::from(&mut second[..]).cast();
        OwnedEntry { index, header, payload, _memory: [first, second] }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn header(&self) -> &UringHeader {
        // SAFETY: RG1: the kernel does not access the memory while `self` exists, and a change
        // needs `&mut self`. The memory is page-aligned and larger than the header. Any bits are
        // valid.
        unsafe { self.header.as_ref() }
    }

    pub(super) fn header_mut(&mut self) -> &mut UringHeader {
        // SAFETY: RG1, as in `header`. `&mut self` makes the access exclusive.
        unsafe { self.header.as_mut() }
    }

    pub(super) fn payload(&self) -> &[u8] {
        // SAFETY: RG1. This many bytes were allocated, all initialised.
        unsafe { NonNull::slice_from_raw_parts(self.payload, PAYLOAD_BYTES).as_ref() }
    }

    pub(super) fn payload_mut(&mut self) -> &mut [u8] {
        // SAFETY: RG1, as in `payload`. `&mut self` makes the access exclusive.
        unsafe { NonNull::slice_from_raw_parts(self.payload, PAYLOAD_BYTES).as_mut() }
    }
}

pub(super) enum RingEvent {
    Request(OwnedEntry),
    /// The kernel has given up the entry for good.
    Lost(Errno),
    Call,
}

pub(super) struct FuseRing {
    io: IoUring<Entry128>,
    connection: RawFd,
    queue: u16,
    /// Address and length of each entry's headers and payload. The kernel reads them at
    /// registration.
    pieces: Vec<[(usize, usize); 2]>,
    pushing: Mutex<()>,
    /// The kernel's entries by index. This lock also serializes reaping.
    given: Mutex<Vec<Option<OwnedEntry>>>,
}

impl FuseRing {
    /// Makes a ring of `entries` for queue number `queue`. `connection` must stay open as long as
    /// the ring.
    pub(super) fn new(connection: RawFd, queue: u16, entries: u16) -> io::Result<FuseRing> {
        // One more place, for a call.
        let io = IoUring::<Entry128>::builder().dontfork().build(u32::from(entries) + 1)?;
        let given: Vec<OwnedEntry> = (0..usize::from(entries)).map(OwnedEntry::new).collect();
        let pieces_of = |held: &OwnedEntry| {
            let (header, payload) = (held.header.as_ptr(), held.payload.as_ptr());
            [
                (header.expose_provenance(), size_of::<UringHeader>()),
                (payload.expose_provenance(), PAYLOAD_BYTES),
            ]
        };
        let pieces = given.iter().map(pieces_of).collect();
        let given = Mutex::new(given.into_iter().map(Some).collect());
        Ok(FuseRing { io, connection, queue, pieces, pushing: Mutex::new(()), given })
    }

    pub(super) fn register(&self) -> io::Result<()> {
        for (index, pieces) in self.pieces.iter().enumerate() {
            self.push(&self.registration(index, pieces))?;
        }
        self.submit()
    }

    fn registration(&self, index: usize, pieces: &[(usize, usize); 2]) -> Entry128 {
        let command = UringCommand { flags: 0, commit_id: 0, queue: self.queue, padding: [0; 3] };
        let at = pieces.as_ptr().expose_provenance();
        let entry = opcode::UringCmd80::new(types::Fd(self.connection), uring_command::REGISTER)
            .cmd(command.as_room())
            .addr(Some(u64::try_from(at).expect("addresses have 64 bits")))
            .build();
        let entry = with_length(entry, PIECES);
        with_mark(entry, mark_of(index))
    }

    /// Queues an entry with its reply to request `unique`, for the next submit or wait.
    pub(super) fn commit(&self, held: OwnedEntry, unique: u64) -> io::Result<()> {
        let command =
            UringCommand { flags: 0, commit_id: unique, queue: self.queue, padding: [0; 3] };
        let connection = types::Fd(self.connection);
        let entry = opcode::UringCmd80::new(connection, uring_command::COMMIT_AND_FETCH)
            .cmd(command.as_room())
            .build();
        let index = held.index;
        if let Some(place) = self.given.lock().get_mut(index) {
            *place = Some(held);
        }
        self.push(&with_mark(entry, mark_of(index)))
    }

    fn push(&self, entry: &Entry128) -> io::Result<()> {
        loop {
            {
                let _pushing = self.pushing.lock();
                // SAFETY: this lock excludes other submission queues. The memory of entries
                // outlives the ring (RG3), `pieces` lives as long as the ring, and a NOP points to
                // nothing.
                if unsafe { self.io.submission_shared().push(entry) }.is_ok() {
                    return Ok(());
                }
            }
            self.submit()?;
        }
    }

    /// Submits everything pushed. Retries, as no other thread may come to do it.
    pub(super) fn submit(&self) -> io::Result<()> {
        for _ in 0..SUBMISSIONS_MAX {
            self.enter(0)?;
            let is_empty = {
                let _pushing = self.pushing.lock();
                // SAFETY: `pushing` is locked, so there is no other submission queue.
                unsafe { self.io.submission_shared() }.is_empty()
            };
            if is_empty {
                return Ok(());
            }
            yield_now();
        }
        Err(Errno::AGAIN.into())
    }

    /// Submits, and waits for a completion. May return without one.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.enter(1)
    }

    fn enter(&self, awaited: usize) -> io::Result<()> {
        match self.io.submitter().submit_and_wait(awaited) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // The next call submits what is left.
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    pub(super) fn reap(&self, told: &mut Vec<RingEvent>) {
        let mut given = self.given.lock();
        // SAFETY: this lock excludes other completion queues.
        for done in unsafe { self.io.completion_shared() } {
            if done.user_data() == CALL {
                told.push(RingEvent::Call);
                continue;
            }
            let index = usize::try_from(done.user_data()).unwrap_or(usize::MAX);
            let Some(held) = given.get_mut(index).and_then(Option::take) else { continue };
            told.push(match done.result() {
                0 => RingEvent::Request(held),
                error => RingEvent::Lost(Errno::from_raw_os_error(-error)),
            });
        }
    }

    pub(super) fn has_entries(&self) -> bool {
        self.given.lock().iter().any(Option::is_some)
    }

    pub(super) fn call(&self) -> io::Result<()> {
        self.push(&Entry128::from(opcode::Nop::new().build().user_data(CALL)))?;
        self.submit()
    }
}

impl Drop for FuseRing {
    fn drop(&mut self) {
        // RG3: the kernel may use the entries for some time after the ring is closed.
        self.given.lock().drain(..).flatten().for_each(forget);
    }
}

fn mark_of(index: usize) -> u64 {
    u64::try_from(index).expect("there are few entries")
}

fn with_mark(mut entry: Entry128, mark: u64) -> Entry128 {
    io_uring::squeue::EntryMarker::set_user_data(&mut entry, mark);
    entry
}

/// Returns `entry` with `length` in `sqe->len`, for which the crate has no setter.
fn with_length(entry: Entry128, length: u32) -> Entry128 {
    /// Offset of `len` in `struct io_uring_sqe` of `include/uapi/linux/io_uring.h`.
    const AT: usize = 24;
    // SAFETY: `Entry128` is the kernel's struct of 128 bytes in C layout, plain numbers without
    // padding. The compiler checks the size. Any bytes are a value.
    unsafe {
        let mut bytes = std::mem::transmute::<Entry128, [u8; 128]>(entry);
        bytes[AT..AT + size_of::<u32>()].copy_from_slice(length.as_bytes());
        std::mem::transmute::<[u8; 128], Entry128>(bytes)
    }
}
