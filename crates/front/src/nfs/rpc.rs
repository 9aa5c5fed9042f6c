//! ONC RPC (RFC 5531) over TCP: records, call headers and reply headers.
//!
//! A record is one or more fragments, nearly always one. Both its length and its fragments are
//! bounded.

#![expect(clippy::big_endian_bytes, reason = "record marks are big-endian")]

use super::xdr::{XdrError, XdrReader, XdrWriter, count_of};

/// Longest record: a WRITE of 1 MiB, its handle, and the longest credentials.
pub(super) const RECORD_BYTES_MAX: usize = (1 << 20) + 4096;
/// Most fragments of a record. A client that sends a fragment per packet needs 800.
const FRAGMENTS_MAX: usize = 1024;
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
/// `accept_stat` of a successful call.
const SUCCESS: u32 = 0;
const DENIED: u32 = 1;
const AUTH_NONE: u32 = 0;
const AUTH_SYS: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordFront {
    /// An incomplete record.
    Partial {
        /// Least buffer length at which the record may be complete.
        wanted: usize,
    },
    /// A record of one fragment. Its content follows the mark.
    Whole { end: usize },
    /// A record of several fragments, see [`joined`].
    Fragments { end: usize },
    /// No record. The connection cannot continue.
    Garbage,
}

pub(super) fn front_of(buffer: &[u8]) -> RecordFront {
    let (mut at, mut total) = (0, 0_usize);
    for index in 0..FRAGMENTS_MAX {
        let Some(mark) = mark_at(buffer, at) else {
            return RecordFront::Partial { wanted: at + MARK_BYTES };
        };
        let length = length_of(mark);
        total = total.saturating_add(length);
        if total > RECORD_BYTES_MAX {
            return RecordFront::Garbage;
        }
        at += MARK_BYTES + length;
        if buffer.len() < at {
            return RecordFront::Partial { wanted: at };
        }
        if mark & LAST_FRAGMENT != 0 {
            return if index == 0 {
                RecordFront::Whole { end: at }
            } else {
                RecordFront::Fragments { end: at }
            };
        }
    }
    RecordFront::Garbage
}

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

/// Returns program and procedure of a call, unchecked: enough to estimate its duration.
pub(super) fn peek(record: &[u8]) -> Option<(u32, u32)> {
    let word = |index: usize| Some(u32::from_be_bytes(*record.get(index * 4..)?.first_chunk()?));
    Some((word(3)?, word(5)?))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    None,
    /// `AUTH_SYS`.
    Sys {
        uid: u32,
        gid: u32,
        groups: Vec<u32>,
    },
    /// Unsupported or malformed.
    Other,
}

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
    /// Reads the header and leaves the arguments in `reader`. Fails if the record is no call, since
    /// no reply is possible then.
    pub(super) fn read(reader: &mut XdrReader<'_>) -> Result<Call, XdrError> {
        let xid = reader.u32()?;
        if reader.u32()? != CALL {
            return Err(XdrError);
        }
        let (rpc_version, program) = (reader.u32()?, reader.u32()?);
        let (version, procedure) = (reader.u32()?, reader.u32()?);
        let flavor = reader.u32()?;
        let body = reader.opaque(AUTH_BYTES_MAX)?;
        let credentials = match flavor {
            AUTH_NONE => Credentials::None,
            AUTH_SYS => sys(&mut XdrReader::new(body)).unwrap_or(Credentials::Other),
            _ => Credentials::Other,
        };
        reader.u32()?;
        reader.opaque(AUTH_BYTES_MAX)?;
        Ok(Call { xid, rpc_version, program, version, procedure, credentials })
    }

    pub(super) fn is_known_version(&self) -> bool {
        self.rpc_version == RPC_VERSION
    }
}

fn sys(reader: &mut XdrReader<'_>) -> Result<Credentials, XdrError> {
    reader.u32()?;
    reader.opaque(MACHINE_BYTES_MAX)?;
    let (uid, gid) = (reader.u32()?, reader.u32()?);
    let count = usize::try_from(reader.u32()?).map_err(|_| XdrError)?;
    if count > GROUPS_MAX {
        return Err(XdrError);
    }
    let groups = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
    Ok(Credentials::Sys { uid, gid, groups })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RpcError {
    Program,
    /// Unknown version, with the supported range.
    Version(u32, u32),
    Procedure,
    Arguments,
    Rpc,
    Credentials,
}

pub(super) fn begin_answer(xid: u32, room_bytes: usize) -> XdrWriter {
    let mut out = XdrWriter::with_room(room_bytes);
    begin_accepted(&mut out, xid, SUCCESS);
    out
}

fn begin(out: &mut XdrWriter, xid: u32, verdict: u32) {
    out.words(&[0, xid, REPLY, verdict]);
}

fn begin_accepted(out: &mut XdrWriter, xid: u32, status: u32) {
    begin(out, xid, ACCEPTED);
    out.words(&[AUTH_NONE, 0, status]);
}

pub(super) fn end_answer(mut out: XdrWriter) -> Vec<u8> {
    let length = out.len() - MARK_BYTES;
    out.set_u32(0, LAST_FRAGMENT | count_of(length));
    out.into_inner()
}

pub(super) fn refusal(xid: u32, why: RpcError) -> Vec<u8> {
    let mut out = XdrWriter::default();
    match why {
        RpcError::Rpc => {
            begin(&mut out, xid, DENIED);
            out.words(&[0, RPC_VERSION, RPC_VERSION]);
        }
        RpcError::Credentials => {
            begin(&mut out, xid, DENIED);
            // AUTH_ERROR, AUTH_REJECTEDCRED.
            out.words(&[1, 2]);
        }
        RpcError::Program => begin_accepted(&mut out, xid, 1),
        RpcError::Version(low, high) => {
            begin_accepted(&mut out, xid, 2);
            out.words(&[low, high]);
        }
        RpcError::Procedure => begin_accepted(&mut out, xid, 3),
        RpcError::Arguments => begin_accepted(&mut out, xid, 4),
    }
    end_answer(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_make_a_record() {
        let one = [0x80, 0, 0, 2, 1, 2];
        assert_eq!(front_of(&one), RecordFront::Whole { end: 6 });
        assert_eq!(front_of(&one[..5]), RecordFront::Partial { wanted: 6 });
        assert_eq!(front_of(&one[..3]), RecordFront::Partial { wanted: 4 });
        let two = [0, 0, 0, 1, 7, 0, 0, 0, 0, 0x80, 0, 0, 2, 8, 9, 99];
        assert_eq!(front_of(&two), RecordFront::Fragments { end: 15 });
        assert_eq!(joined(&two), [7, 8, 9]);
        assert_eq!(front_of(&[0x7f, 255, 255, 255]), RecordFront::Garbage);
        let endless = vec![0; FRAGMENTS_MAX * MARK_BYTES];
        assert_eq!(front_of(&endless), RecordFront::Garbage);
    }

    #[test]
    fn a_call_has_a_head_and_bad_credentials_are_told_from_none() {
        let head = |auth: &[u32]| {
            let mut out = XdrWriter::default();
            [5, CALL, 2, 100_003, 3, 1].iter().chain(auth).for_each(|&word| out.u32(word));
            [0, 0].into_iter().for_each(|word| out.u32(word));
            out.into_inner()
        };
        let read = |bytes: &[u8]| Call::read(&mut XdrReader::new(bytes));
        let call = read(&head(&[AUTH_SYS, 24, 0, 0, 10, 20, 1, 30])).expect("it is sound");
        let groups = vec![30];
        assert_eq!(call.credentials, Credentials::Sys { uid: 10, gid: 20, groups });
        let call = read(&head(&[AUTH_SYS, 24, 0, 0, 10, 20, 17, 30])).expect("it is a call");
        assert_eq!(call.credentials, Credentials::Other);
        assert_eq!(read(&head(&[AUTH_NONE, 404])), Err(XdrError));
        let whole = head(&[AUTH_NONE, 0]);
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Err(XdrError), "{end} bytes");
        }
    }
}
