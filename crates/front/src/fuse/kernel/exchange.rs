//! One message in, one reply out: what happens between a read from the kernel and a write to it.
//!
//! Public, because it is tested with bytes of any sort, without a kernel.
//!
//! # Invariants
//!
//! - X1: A message that has a reply gets exactly one, whatever it says and whatever happens: a
//!   panic in the file system, or here, costs this request (`EIO`) and nothing else.
//! - X2: Memory is bounded: data of one request, a listing, and a head.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::decode::{self, Dialect, Envelope, Message};
use super::encode::{DirentBuffer, Encoder, error_reply};
use super::fuse_kernel::OutHeader;
use super::inbox::Incoming;
use crate::fuse::Server;
use crate::fuse::protocol::{Reply, Request};

/// Most bytes of one listing: what the kernel asks for is usually a page, or what a program's
/// buffer holds.
const LISTING_BYTES_MAX: u32 = 128 << 10;

/// The unit that stat(2) reports where the file system does not say.
const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Answers messages, one at a time.
#[derive(Debug)]
pub struct Exchange {
    server: Arc<Server>,
    dialect: Dialect,
    encoder: Encoder,
    /// Data read, or names listed. Grows to the largest reply and stays.
    scratch: Vec<u8>,
    panic_count: u64,
}

/// The two parts of a reply, to be written at once.
#[derive(Debug)]
pub struct ReplyParts<'r> {
    /// Header and what has a fixed size.
    pub head: &'r [u8],
    /// Data.
    pub data: &'r [u8],
}

impl Exchange {
    /// Returns an exchange with `server` in which messages look as they do without anything
    /// negotiated.
    #[must_use]
    pub fn new(server: Arc<Server>) -> Exchange {
        Exchange::with_dialect(server, Dialect::default())
    }

    pub(super) fn with_dialect(server: Arc<Server>, dialect: Dialect) -> Exchange {
        let told = server.stat_fs().map_or(BLOCK_BYTES_DEFAULT, |told| told.block_bytes);
        Exchange {
            server,
            dialect,
            encoder: Encoder::new(told),
            scratch: Vec::new(),
            panic_count: 0,
        }
    }

    /// Answers `message`, as long as the kernel sent it. `None`: it has no reply.
    pub fn answer(&mut self, message: Incoming<'_>) -> Option<ReplyParts<'_>> {
        let Some(envelope) = Envelope::of(message.head) else {
            tracing::error!(bytes = message.length_bytes(), "a message from the kernel is cut off");
            return None;
        };
        let Exchange { server, dialect, encoder, scratch, panic_count } = self;
        let (dialect, head_maker) = (*dialect, &*encoder);
        let asked = move || {
            let scratch = scratch;
            let decoded = decode::decode(&envelope, message, dialect);
            ask(server, head_maker, &envelope, decoded, scratch)
        };
        let reply = match catch_unwind(AssertUnwindSafe(asked)) {
            Ok(reply) => reply,
            Err(_) => {
                *panic_count += 1;
                let opcode = envelope.opcode;
                tracing::error!(opcode, "a request failed by a bug; it got EIO");
                if envelope.is_silent() { Reply::Silence } else { Reply::Error(Errno::IO) }
            }
        };
        let (head, data) = encoder.encode(envelope.unique, &reply)?;
        Some(ReplyParts { head, data })
    }

    /// Returns how many requests failed by a bug.
    #[must_use]
    pub fn panic_count(&self) -> u64 {
        self.panic_count
    }
}

/// Returns the number of the request that a reply belongs to.
pub(super) fn unique_of(head: &[u8]) -> u64 {
    OutHeader::read_from_prefix(head).map_or(0, |(header, _)| header.unique)
}

/// Returns the bytes of an error's reply to the request `unique`.
pub(super) fn refusal(unique: u64, errno: Errno) -> Vec<u8> {
    error_reply(unique, errno).as_bytes().to_vec()
}

fn ask<'s>(
    server: &Server,
    encoder: &Encoder,
    envelope: &Envelope,
    message: Message<'_>,
    scratch: &'s mut Vec<u8>,
) -> Reply<'s> {
    match message {
        Message::Ask(request) => server.answer(envelope.sender, request, scratch),
        Message::List { node, cookie, with_nodes, size_bytes } => {
            let bytes_max = usize::try_from(size_bytes.min(LISTING_BYTES_MAX))
                .expect("LISTING_BYTES_MAX fits in a usize");
            let mut listing = DirentBuffer::new(scratch, bytes_max, with_nodes, encoder);
            let request = Request::ReadDir { node, cookie, with_nodes, listing: &mut listing };
            if let Reply::Error(error) = server.answer(envelope.sender, request, &mut Vec::new()) {
                return Reply::Error(error);
            }
            Reply::Data(scratch)
        }
        Message::Forget(forgets) => {
            for (node, count) in forgets {
                let request = Request::Forget { node, count };
                server.answer(envelope.sender, request, &mut Vec::new());
            }
            Reply::Silence
        }
        Message::Ignore => Reply::Silence,
        Message::Nothing => Reply::Done,
        Message::Refuse(error) => Reply::Error(error),
    }
}
