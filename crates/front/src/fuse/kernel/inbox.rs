//! The receive buffer for messages from the kernel.
//!
//! A message is read into two buffers: the first [`HEAD_BYTES`], which are all of a WRITE but its
//! data, and the rest, in pages. So the data of a WRITE is page-aligned for direct I/O and alone in
//! its buffer, which the file system may keep. The rest of other messages is short and is appended
//! to the head.

use std::io::IoSliceMut;
use std::sync::Arc;

use engine::api::{AlignedBuffer, SharedBytes};
use zerocopy::FromBytes;

use super::fuse_kernel::{InHeader, WriteIn, opcode};
use crate::fuse::server::REQUEST_BYTES_MAX;

/// Bytes of a WRITE before its data.
const HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// Bytes of the largest WRITE's data. With the head this is the longest message, and the smallest
/// buffer that the kernel accepts.
const PAGES_BYTES: usize = {
    assert!(REQUEST_BYTES_MAX == 1 << 20);
    1 << 20
};

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'m> {
    /// The whole message, but without separate data of a WRITE.
    pub head: &'m [u8],
    /// The data of a WRITE, if it is not in `head`.
    pub data: Option<MessageData<'m>>,
}

/// Data in a separate buffer.
#[derive(Clone, Copy, Debug)]
pub enum MessageData<'m> {
    /// The file system may keep the buffer.
    Shared(&'m SharedBytes),
    /// Valid until the reply, after which the buffer is reused.
    Lent(&'m [u8]),
}

impl MessageData<'_> {
    fn length_bytes(&self) -> usize {
        match self {
            MessageData::Shared(bytes) => bytes.len(),
            MessageData::Lent(bytes) => bytes.len(),
        }
    }
}

impl<'m> From<&'m [u8]> for Incoming<'m> {
    fn from(whole: &'m [u8]) -> Incoming<'m> {
        Incoming { head: whole, data: None }
    }
}

impl Incoming<'_> {
    pub(super) fn length_bytes(&self) -> usize {
        self.head.len() + self.data.map_or(0, |data| data.length_bytes())
    }
}

/// A buffer for one message. Untouched pages take no memory.
#[derive(Debug)]
pub(super) struct Inbox {
    head: Vec<u8>,
    pages: Arc<AlignedBuffer>,
    /// The part of `pages` with the data of the last message, if it was a WRITE.
    data: Option<SharedBytes>,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox { head: Vec::new(), pages: new_pages(), data: None }
    }

    pub(super) fn room(&mut self) -> [IoSliceMut<'_>; 2] {
        self.data = None;
        if Arc::get_mut(&mut self.pages).is_none() {
            self.pages = new_pages();
        }
        self.head.resize(HEAD_BYTES, 0);
        let pages = Arc::get_mut(&mut self.pages).expect("nobody else has new pages");
        [IoSliceMut::new(&mut self.head), IoSliceMut::new(pages)]
    }

    pub(super) fn message(&mut self, length: usize) -> Incoming<'_> {
        let in_pages = length.saturating_sub(HEAD_BYTES).min(PAGES_BYTES);
        self.head.truncate(length.min(HEAD_BYTES));
        if is_write(&self.head) && in_pages > 0 {
            self.data = Some(SharedBytes::new(Arc::clone(&self.pages), 0..in_pages));
        } else {
            self.head.extend_from_slice(&self.pages[..in_pages]);
        }
        Incoming { head: &self.head, data: self.data.as_ref().map(MessageData::Shared) }
    }
}

fn new_pages() -> Arc<AlignedBuffer> {
    Arc::new(AlignedBuffer::for_reading(PAGES_BYTES))
}

fn is_write(head: &[u8]) -> bool {
    InHeader::read_from_prefix(head).is_ok_and(|(header, _)| header.opcode == opcode::WRITE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn receive(inbox: &mut Inbox, opcode: u32, length: usize) -> Vec<u8> {
        let mut message: Vec<u8> = (0..=250).cycle().take(length).collect();
        let opcode = opcode.to_le_bytes();
        let at = std::mem::offset_of!(InHeader, opcode);
        message.iter_mut().skip(at).zip(opcode).for_each(|(byte, value)| *byte = value);
        let mut rest = &message[..];
        for mut part in inbox.room() {
            let (now, later) = rest.split_at(rest.len().min(part.len()));
            part[..now.len()].copy_from_slice(now);
            rest = later;
        }
        assert!(rest.is_empty(), "there is room for every message");
        message
    }

    fn data_of<'m>(message: Incoming<'m>) -> &'m [u8] {
        match message.data {
            Some(MessageData::Shared(data)) => data,
            Some(MessageData::Lent(data)) => data,
            None => &[],
        }
    }

    #[test]
    fn data_of_a_write_lies_at_a_page_and_all_else_in_one_piece() {
        let mut inbox = Inbox::new();
        let largest = HEAD_BYTES + PAGES_BYTES;
        for length in [0, 39, 40, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, 5000, largest] {
            for opcode in [opcode::WRITE, opcode::SETXATTR, opcode::BATCH_FORGET] {
                let sent = receive(&mut inbox, opcode, length);
                let got = inbox.message(length);
                assert_eq!(got.length_bytes(), length);
                let is_apart = opcode == opcode::WRITE && length > HEAD_BYTES;
                assert_eq!(got.data.is_some(), is_apart, "{opcode}, {length}");
                let data = data_of(got);
                assert!(data.as_ptr().addr().is_multiple_of(4096) || data.is_empty());
                assert!([got.head, data].concat() == sent, "{opcode}, {length}");
            }
        }
    }

    /// Goal: kept data survives later messages, and pages without a holder are reused.
    #[test]
    fn kept_data_stays_and_pages_that_nobody_keeps_are_used_again() {
        let mut inbox = Inbox::new();
        let first = receive(&mut inbox, opcode::WRITE, HEAD_BYTES + 8192);
        let Some(MessageData::Shared(kept)) = inbox.message(first.len()).data else {
            panic!("a write")
        };
        let kept = kept.clone();
        let second = receive(&mut inbox, opcode::WRITE, HEAD_BYTES + 4096);
        let other = data_of(inbox.message(second.len())).as_ptr();
        assert!(kept[..] == first[HEAD_BYTES..], "overwritten");
        assert_ne!(kept.as_ptr(), other);
        receive(&mut inbox, opcode::WRITE, HEAD_BYTES + 4096);
        let again = data_of(inbox.message(HEAD_BYTES + 4096)).as_ptr();
        assert_eq!(again, other);
    }

    #[test]
    fn heads_have_the_size_of_the_protocol() {
        assert_eq!(HEAD_BYTES, 80);
        assert_eq!(WriteIn::read_from_bytes(&[0; 40]).map(|sent| sent.as_bytes().len()), Ok(40));
    }
}
