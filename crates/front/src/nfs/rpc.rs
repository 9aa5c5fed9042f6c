//! ONC RPC (RFC 5531) over TCP: records, the head of a call, the head of an answer.
//!
//! A record comes as fragments; nearly always as one. A record has a bound, and so has the number
//! of its fragments, so that a peer can't make us wait for the end of something endless.

#![expect(clippy::big_endian_bytes, reason = "record marks are big-endian")]

use super::xdr::{Garbage, Reader, Writer, count_of};

/// Longest record: a WRITE of 1 MiB, its handle, and the longest credentials.
pub(super) const RECORD_BYTES_MAX: usize = (1 << 20) + 4096;
/// Most fragments of a record: a client that writes a record in pieces of a packet needs 800.
const FRAGMENTS_MAX: usize = 1024;
/// Bytes of a record mark.
pub(super) const MARK_BYTES: usize = 4;
const LAST_FRAGMENT: u32 = 1 << 31;
/// Longest credentials and verifiers (RFC 5531, 8.2).
const AUTH_BYTES_MAX: usize = 400;
const MACHINE_BYTES_MAX: usize = 255;
const GROUPS_MAX: usize = 16;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const ACCEPTED: u32 = 0;
/// How an accepted call came out: well.
const SUCCESS: u32 = 0;
const DENIED: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

/// What is at the front of a buffer that a connection fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// A record that is not all there; with so many bytes, at least, it may be.
    Partial {
        /// Bytes that the buffer must have.
        wanted: usize,
    },
    /// A record of one fragment: its content is behind the mark, and the record ends at `end`.
    Whole {
        /// Where the next record begins.
        end: usize,
    },
    /// A record of several fragments that ends at `end`; [`joined`] puts it together.
    Fragments {
        /// Where the next record begins.
        end: usize,
    },
    /// Nothing that can be a record: the connection is of no use any more.
    Garbage,
}

/// Returns what is at the front of `buffer`.
pub(super) fn front_of(buffer: &[u8]) -> Front {
    let (mut at, mut total) = (0, 0_usize);
    for index in 0..FRAGMENTS_MAX {
        let Some(mark) = mark_at(buffer, at) else {
            return Front::Partial { wanted: at + MARK_BYTES };
        };
        let length = length_of(mark);
        total = total.saturating_add(length);
        if total > RECORD_BYTES_MAX {
            return Front::Garbage;
        }
        at += MARK_BYTES + length;
        if buffer.len() < at {
            return Front::Partial { wanted: at };
        }
        if mark & LAST_FRAGMENT != 0 {
            return if index == 0 {
                Front::Whole { end: at }
            } else {
                Front::Fragments { end: at }
            };
        }
    }
    Front::Garbage
}

/// Returns the content of the record of several fragments at the front of `buffer`.
pub(super) fn joined(buffer: &[u8]) -> Vec<u8> {
    let (mut record, mut at) = (Vec::new(), 0);
    while let Some(mark) = mark_at(buffer, at) {
        let end = at + MARK_BYTES + length_of(mark);
        record.extend_from_slice(buffer.get(at + MARK_BYTES..end).unwrap_or_default());
        at = end;
        if mark & LAST_FRAGMENT != 0 {
            break;
        }
    }
    record
}

fn mark_at(buffer: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*buffer.get(at..)?.first_chunk()?))
}

fn length_of(mark: u32) -> usize {
    usize::try_from(mark & !LAST_FRAGMENT).unwrap_or(usize::MAX)
}

/// Returns program and procedure of the call in a record, as far as they are there: enough to know
/// how long it may take, and not checked.
pub(super) fn peek(record: &[u8]) -> Option<(u32, u32)> {
    let word = |index: usize| Some(u32::from_be_bytes(*record.get(index * 4..)?.first_chunk()?));
    Some((word(3)?, word(5)?))
}

/// Who calls, as the caller says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// Nobody in particular.
    None,
    /// A user and its groups (`AUTH_SYS`).
    Sys {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Supplementary groups.
        groups: Vec<u32>,
    },
    /// Something that we do not understand, or that makes no sense.
    Other,
}

/// The head of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) xid: u32,
    pub(super) rpc_version: u32,
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
    pub(super) credentials: Credentials,
}

impl Call {
    /// Returns the head of the call in `record`; what is left in `reader` are its arguments. A
    /// record that is no call can't be answered.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Call, Garbage> {
        let xid = reader.u32()?;
        if reader.u32()? != CALL {
            return Err(Garbage);
        }
        let (rpc_version, program) = (reader.u32()?, reader.u32()?);
        let (version, procedure) = (reader.u32()?, reader.u32()?);
        let flavor = reader.u32()?;
        let body = reader.opaque(AUTH_BYTES_MAX)?;
        let credentials = match flavor {
            AUTH_NONE => Credentials::None,
            AUTH_SYS => sys(&mut Reader::new(body)).unwrap_or(Credentials::Other),
            _ => Credentials::Other,
        };
        reader.u32()?;
        reader.opaque(AUTH_BYTES_MAX)?;
        Ok(Call { xid, rpc_version, program, version, procedure, credentials })
    }

    /// Whether the call speaks a version of RPC that we know.
    pub(super) fn is_known_version(&self) -> bool {
        self.rpc_version == RPC_VERSION
    }
}

fn sys(reader: &mut Reader<'_>) -> Result<Credentials, Garbage> {
    reader.u32()?;
    reader.opaque(MACHINE_BYTES_MAX)?;
    let (uid, gid) = (reader.u32()?, reader.u32()?);
    let count = usize::try_from(reader.u32()?).map_err(|_| Garbage)?;
    if count > GROUPS_MAX {
        return Err(Garbage);
    }
    let groups = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
    Ok(Credentials::Sys { uid, gid, groups })
}

/// Why a call was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unserved {
    /// No such program.
    Program,
    /// Another version of it: ours are from the first to the second.
    Version(u32, u32),
    /// No such procedure.
    Procedure,
    /// Arguments that make no sense.
    Arguments,
    /// Another version of RPC.
    Rpc,
    /// Credentials that are not understood.
    Credentials,
}

/// Begins the answer to a call that is carried out: the results follow.
pub(super) fn begin_answer(xid: u32, room_bytes: usize) -> Writer {
    let mut out = Writer::with_room(room_bytes);
    begin_accepted(&mut out, xid, SUCCESS);
    out
}

/// Begins an answer, with room for the mark of its record.
fn begin(out: &mut Writer, xid: u32, verdict: u32) {
    out.words(&[0, xid, REPLY, verdict]);
}

/// Begins the answer to a call that was understood, and came out as `status` says.
fn begin_accepted(out: &mut Writer, xid: u32, status: u32) {
    begin(out, xid, ACCEPTED);
    out.words(&[AUTH_NONE, 0, status]);
}

/// Ends an answer: it becomes a record.
pub(super) fn end_answer(mut out: Writer) -> Vec<u8> {
    let length = out.len() - MARK_BYTES;
    out.set_u32(0, LAST_FRAGMENT | count_of(length));
    out.into_inner()
}

/// Returns the answer to a call that is not carried out.
pub(super) fn refusal(xid: u32, why: Unserved) -> Vec<u8> {
    let mut out = Writer::default();
    match why {
        Unserved::Rpc => {
            begin(&mut out, xid, DENIED);
            out.words(&[0, RPC_VERSION, RPC_VERSION]);
        }
        Unserved::Credentials => {
            begin(&mut out, xid, DENIED);
            // AUTH_ERROR, AUTH_REJECTEDCRED.
            out.words(&[1, 2]);
        }
        Unserved::Program => begin_accepted(&mut out, xid, 1),
        Unserved::Version(low, high) => {
            begin_accepted(&mut out, xid, 2);
            out.words(&[low, high]);
        }
        Unserved::Procedure => begin_accepted(&mut out, xid, 3),
        Unserved::Arguments => begin_accepted(&mut out, xid, 4),
    }
    end_answer(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_make_a_record() {
        let one = [0x80, 0, 0, 2, 1, 2];
        assert_eq!(front_of(&one), Front::Whole { end: 6 });
        assert_eq!(front_of(&one[..5]), Front::Partial { wanted: 6 });
        assert_eq!(front_of(&one[..3]), Front::Partial { wanted: 4 });
        let two = [0, 0, 0, 1, 7, 0, 0, 0, 0, 0x80, 0, 0, 2, 8, 9, 99];
        assert_eq!(front_of(&two), Front::Fragments { end: 15 });
        assert_eq!(joined(&two), [7, 8, 9]);
        assert_eq!(front_of(&[0x7f, 255, 255, 255]), Front::Garbage);
        let endless = vec![0; FRAGMENTS_MAX * MARK_BYTES];
        assert_eq!(front_of(&endless), Front::Garbage);
    }

    #[test]
    fn a_call_has_a_head_and_bad_credentials_are_told_from_none() {
        let head = |auth: &[u32]| {
            let mut out = Writer::default();
            [5, CALL, 2, 100_003, 3, 1].iter().chain(auth).for_each(|&word| out.u32(word));
            [0, 0].into_iter().for_each(|word| out.u32(word));
            out.into_inner()
        };
        let read = |bytes: &[u8]| Call::read(&mut Reader::new(bytes));
        let call = read(&head(&[AUTH_SYS, 24, 0, 0, 10, 20, 1, 30])).expect("it is sound");
        let groups = vec![30];
        assert_eq!(call.credentials, Credentials::Sys { uid: 10, gid: 20, groups });
        let call = read(&head(&[AUTH_SYS, 24, 0, 0, 10, 20, 17, 30])).expect("it is a call");
        assert_eq!(call.credentials, Credentials::Other);
        assert_eq!(read(&head(&[AUTH_NONE, 404])), Err(Garbage));
        let whole = head(&[AUTH_NONE, 0]);
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Err(Garbage), "{end} bytes");
        }
    }
}
