//! One ring: entries that the kernel fills with requests, and takes back with their replies.
//!
//! An *entry* is two pieces of memory, one for headers and one for what is long. It is the kernel's
//! or ours, never both: ours is who has its [`Held`], and the ring has the `Held` of those that are
//! the kernel's.
//!
//! # Invariants
//!
//! - RG1: Memory of an entry is touched only through its [`Held`], which the ring gives out when
//!   the kernel has filled the entry, and takes before the kernel may touch it again.
//! - RG2: An entry has one command under way at most, so both of the ring's queues have room for
//!   all of them. Where calls fill the submission queue, who pushes submits them first.
//! - RG3: Memory of an entry that the kernel has is not freed with the ring, but left to the
//!   process.
//!
//! # Concurrency
//!
//! Any thread may push, submit and reap; a lock each, never held across a system call. Requests
//! come to the thread that submitted the entry last: the kernel copies them in its name.
//!
//! A *call* is a NOP that the caller submits: it is completed within that system call, by the
//! caller's own thread, and wakes all who wait. So nobody has to listen for it.
#![allow(unsafe_code)]

use std::io;
use std::mem::{forget, size_of};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::thread::yield_now;

use engine::vnode::api::AlignedBuffer;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::super::fuse_kernel::{UringCommand, UringHeader, uring_command};
use super::PAYLOAD_BYTES;

/// What a call is marked with; entries are marked with their numbers.
const CALL: u64 = u64::MAX;

/// Bytes that are set aside for headers: a page, as memory is aligned to that.
const HEADER_BYTES: usize = {
    assert!(size_of::<UringHeader>() <= 4096);
    4096
};

/// How often it is tried to submit what the kernel does not take yet, for want of memory.
const SUBMISSIONS_MAX: u32 = 1000;

/// `sqe->len` of a registration: headers and payload are two pieces.
const PIECES: u32 = 2;

/// Memory of an entry, and the right to touch it (RG1).
pub(super) struct Held {
    index: usize,
    header: NonNull<UringHeader>,
    payload: NonNull<u8>,
    /// What they point into.
    _memory: [AlignedBuffer; 2],
}

// SAFETY: it owns what it points to, as a `Box` does.
unsafe impl Send for Held {}

impl Held {
    pub(super) fn new(index: usize) -> Held {
        let mut first = AlignedBuffer::for_reading(HEADER_BYTES);
        let mut second = AlignedBuffer::for_reading(PAYLOAD_BYTES);
        let header = NonNull::from(&mut first[..]).cast();
        let payload = NonNull::from(&mut second[..]).cast();
        Held { index, header, payload, _memory: [first, second] }
    }

    /// Which of its ring.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Returns the headers.
    pub(super) fn header(&self) -> &UringHeader {
        // SAFETY: RG1: while `self` is out, the kernel does not touch the memory, and `&mut self`
        // is needed to change it. There are more bytes, aligned to a page; any bits are a value.
        unsafe { self.header.as_ref() }
    }

    /// Returns the headers, to be changed.
    pub(super) fn header_mut(&mut self) -> &mut UringHeader {
        // SAFETY: as above.
        unsafe { self.header.as_mut() }
    }

    /// Returns what is long.
    pub(super) fn payload(&self) -> &[u8] {
        // SAFETY: RG1; so many bytes were allocated, all of them initialised.
        unsafe { NonNull::slice_from_raw_parts(self.payload, PAYLOAD_BYTES).as_ref() }
    }

    /// Returns what is long, to be changed.
    pub(super) fn payload_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { NonNull::slice_from_raw_parts(self.payload, PAYLOAD_BYTES).as_mut() }
    }
}

/// What the ring has told.
pub(super) enum Told {
    /// A request is in the entry.
    Request(Held),
    /// The kernel has given up the entry, for good.
    Lost(Errno),
    /// Somebody has called.
    Call,
}

/// A ring, its entries and what calls whoever waits at it.
pub(super) struct Ring {
    io: IoUring<Entry128>,
    /// The connection to the kernel.
    connection: RawFd,
    queue: u16,
    /// Where the pieces of each entry are: the kernel reads it when it takes a registration.
    pieces: Vec<[(usize, usize); 2]>,
    pushing: Mutex<()>,
    /// What the kernel has, by number; also the lock of those who reap.
    given: Mutex<Vec<Option<Held>>>,
}

impl Ring {
    /// Makes a ring of `entries` for the queue number `queue` of the connection `connection`, which
    /// must stay open as long as the ring.
    pub(super) fn new(connection: RawFd, queue: u16, entries: u16) -> io::Result<Ring> {
        // One more is for a call.
        let io = IoUring::<Entry128>::builder().dontfork().build(u32::from(entries) + 1)?;
        let given: Vec<Held> = (0..usize::from(entries)).map(Held::new).collect();
        let pieces_of = |held: &Held| {
            let (header, payload) = (held.header.as_ptr(), held.payload.as_ptr());
            [
                (header.expose_provenance(), size_of::<UringHeader>()),
                (payload.expose_provenance(), PAYLOAD_BYTES),
            ]
        };
        let pieces = given.iter().map(pieces_of).collect();
        let given = Mutex::new(given.into_iter().map(Some).collect());
        Ok(Ring { io, connection, queue, pieces, pushing: Mutex::new(()), given })
    }

    /// Offers all entries to the kernel.
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

    /// Gives an entry back with the reply that is in it to the request `unique`; for whoever
    /// submits or waits next.
    pub(super) fn commit(&self, held: Held, unique: u64) -> io::Result<()> {
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
                // SAFETY: under this lock there is no other submission queue. What the entry points
                // to: memory of entries outlives the ring (RG3), and `pieces` lives as long; a NOP
                // points to nothing.
                if unsafe { self.io.submission_shared().push(entry) }.is_ok() {
                    return Ok(());
                }
            }
            self.submit()?;
        }
    }

    /// Submits what was pushed, all of it: nobody else may come by.
    pub(super) fn submit(&self) -> io::Result<()> {
        for _ in 0..SUBMISSIONS_MAX {
            self.enter(0)?;
            let is_empty = {
                let _pushing = self.pushing.lock();
                // SAFETY: as in `push`.
                unsafe { self.io.submission_shared() }.is_empty()
            };
            if is_empty {
                return Ok(());
            }
            yield_now();
        }
        Err(Errno::AGAIN.into())
    }

    /// Submits what was pushed, and waits until something is told; perhaps in vain.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.enter(1)
    }

    fn enter(&self, awaited: usize) -> io::Result<()> {
        match self.io.submitter().submit_and_wait(awaited) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // What was not taken is submitted the next time.
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Takes what the ring has told by now.
    pub(super) fn reap(&self, told: &mut Vec<Told>) {
        let mut given = self.given.lock();
        // SAFETY: under this lock there is no other completion queue.
        for done in unsafe { self.io.completion_shared() } {
            if done.user_data() == CALL {
                told.push(Told::Call);
                continue;
            }
            let index = usize::try_from(done.user_data()).unwrap_or(usize::MAX);
            let Some(held) = given.get_mut(index).and_then(Option::take) else { continue };
            told.push(match done.result() {
                0 => Told::Request(held),
                error => Told::Lost(Errno::from_raw_os_error(-error)),
            });
        }
    }

    /// Returns whether the kernel has any entry.
    pub(super) fn has_entries(&self) -> bool {
        self.given.lock().iter().any(Option::is_some)
    }

    /// Calls all who wait at the ring, or the next who will.
    pub(super) fn call(&self) -> io::Result<()> {
        self.push(&Entry128::from(opcode::Nop::new().build().user_data(CALL)))?;
        self.submit()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // RG3: the kernel ends commands some time after the ring is closed.
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
    /// Where `struct io_uring_sqe` of `include/uapi/linux/io_uring.h` has `len`.
    const AT: usize = 24;
    // SAFETY: `Entry128` is the kernel's struct of 128 bytes, in C's layout, plain numbers without
    // padding; the size is checked by the compiler. So any bytes are one.
    unsafe {
        let mut bytes = std::mem::transmute::<Entry128, [u8; 128]>(entry);
        bytes[AT..AT + size_of::<u32>()].copy_from_slice(length.as_bytes());
        std::mem::transmute::<[u8; 128], Entry128>(bytes)
    }
}
