//! Send streams of snapshots, as records: written to a sink of bytes, and read from a source.
//!
//! Not here: the format of records (`format`), and what they do to a fileset (`vnode`).

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::str::FromStr;

use format::stream::{
    RECORD_HEAD_BYTES, StreamError, StreamRecord, StreamRecordHead, StreamTotals, data_front,
};

use crate::convert::wide;
use crate::error::FsError;

/// The reason for the failure of a send.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The pool failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The sink failed.
    #[error("the stream can't be written: {0}")]
    Write(std::io::Error),
    /// The token belongs to another stream.
    #[error("the token is of another stream: give the same two snapshots as when it broke off")]
    ForeignToken,
    /// The snapshot to send is not later than the base.
    #[error(
        "{what}: a stream goes forward in time, and one that goes back would undo what whoever \
         receives it has: name the later snapshot first, and the earlier one with --from"
    )]
    Backward {
        /// Which of both is the earlier one.
        what: String,
    },
}

/// The reason for the failure of a receive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The pool failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// The stream is damaged: send it again.
    #[error("the stream is damaged: {0}: send it again")]
    Bad(#[from] StreamError),
    /// The stream is intact and inconsistent.
    #[error("the stream is refused: {what}")]
    Senseless {
        /// The inconsistency.
        what: String,
    },
    /// The stream ends early.
    #[error("the stream ends early, behind record {records}")]
    Truncated {
        /// Records received.
        records: u64,
    },
    /// The source failed.
    #[error("the stream can't be read: {0}")]
    Read(std::io::Error),
    /// The fileset is not in the state that the stream starts from.
    #[error("{what}")]
    Target {
        /// The reason, and a remedy.
        what: String,
    },
}

impl ReceiveError {
    /// Returns whether the received part is valid, and the rest may follow.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        matches!(self, ReceiveError::Truncated { .. } | ReceiveError::Read(_))
    }
}

/// Where a stream broke off, so that the sender can send the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeToken {
    pub(crate) from: [u8; 16],
    pub(crate) to: [u8; 16],
    pub(crate) at: (u64, u64),
}

/// The text is not a [`ResumeToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no token: `receive` tells it when a stream breaks off")]
pub struct TokenError;

impl fmt::Display for ResumeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (u128::from_le_bytes(self.from), u128::from_le_bytes(self.to));
        write!(f, "{from:x}-{to:x}-{:x}-{:x}", self.at.0, self.at.1)
    }
}

impl FromStr for ResumeToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<ResumeToken, TokenError> {
        let mut parts = text.split('-');
        let mut wide = || u128::from_str_radix(parts.next()?, 16).ok();
        let (from, to) = (wide().ok_or(TokenError)?, wide().ok_or(TokenError)?);
        let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
        let at = (number().ok_or(TokenError)?, number().ok_or(TokenError)?);
        if parts.next().is_some() {
            return Err(TokenError);
        }
        Ok(ResumeToken { from: from.to_le_bytes(), to: to.to_le_bytes(), at })
    }
}

/// Writes records.
pub(crate) struct StreamWriter<'w> {
    out: &'w mut dyn Write,
    stream: u64,
    totals: StreamTotals,
}

impl<'w> StreamWriter<'w> {
    pub(crate) fn new(out: &'w mut dyn Write, stream: u64) -> StreamWriter<'w> {
        StreamWriter { out, stream, totals: StreamTotals::default() }
    }

    pub(crate) fn write(&mut self, record: &StreamRecord) -> Result<(), SendError> {
        let bytes = record.encode(self.totals.records, self.stream);
        self.out.write_all(&bytes).map_err(SendError::Write)?;
        count(&mut self.totals, record);
        Ok(())
    }

    /// Writes bytes of a file, given as consecutive `parts`, without copying them.
    pub(crate) fn write_data(&mut self, offset: u64, parts: &[&[u8]]) -> Result<(), SendError> {
        let front = data_front(offset, parts, self.totals.records, self.stream);
        self.out.write_all(&front).map_err(SendError::Write)?;
        self.totals.records = self.totals.records.saturating_add(1);
        for part in parts {
            self.out.write_all(part).map_err(SendError::Write)?;
            count_data(&mut self.totals, part);
        }
        Ok(())
    }

    /// Writes the last record, which has the totals of the other records. Returns these totals.
    pub(crate) fn end(mut self) -> Result<StreamTotals, SendError> {
        let totals = self.totals;
        self.write(&StreamRecord::End(totals))?;
        self.out.flush().map_err(SendError::Write)?;
        Ok(totals)
    }
}

fn count(totals: &mut StreamTotals, record: &StreamRecord) {
    totals.records = totals.records.saturating_add(1);
    match record {
        StreamRecord::Anode(..) => totals.anodes = totals.anodes.saturating_add(1),
        StreamRecord::Remove(..) => totals.removed = totals.removed.saturating_add(1),
        StreamRecord::Data(_, data) => count_data(totals, data),
        StreamRecord::Begin(_)
        | StreamRecord::Hole(..)
        | StreamRecord::Page(_)
        | StreamRecord::NoPage(_)
        | StreamRecord::AnodeEnd
        | StreamRecord::End(_) => {}
    }
}

fn count_data(totals: &mut StreamTotals, data: &[u8]) {
    totals.data_bytes = totals.data_bytes.saturating_add(wide(data.len()));
}

/// Reads and verifies records.
pub(crate) struct StreamReader<'r> {
    input: &'r mut dyn Read,
    stream: Option<u64>,
    /// Totals of the records received.
    pub(crate) totals: StreamTotals,
    body: Vec<u8>,
}

impl<'r> StreamReader<'r> {
    pub(crate) fn new(input: &'r mut dyn Read) -> StreamReader<'r> {
        StreamReader { input, stream: None, totals: StreamTotals::default(), body: Vec::new() }
    }

    /// Returns the next record. Compares the last record with the totals.
    pub(crate) fn next_record(&mut self) -> Result<StreamRecord, ReceiveError> {
        let sequence = self.totals.records;
        let mut head = [0; RECORD_HEAD_BYTES];
        read_all(self.input, &mut head, sequence)?;
        let head = StreamRecordHead::decode(head, sequence)?;
        self.body.resize(head.body_bytes, 0);
        read_all(self.input, &mut self.body, sequence)?;
        let record = head.record(&self.body, sequence, self.stream)?;
        if let StreamRecord::Begin(begin) = &record {
            self.stream = Some(begin.stream());
        }
        if let StreamRecord::End(totals) = &record
            && *totals != self.totals
        {
            let what = "its last record counts other records than came".to_owned();
            return Err(ReceiveError::Senseless { what });
        }
        count(&mut self.totals, &record);
        Ok(record)
    }
}

fn read_all(input: &mut dyn Read, bytes: &mut [u8], records: u64) -> Result<(), ReceiveError> {
    input.read_exact(bytes).map_err(|error| {
        let is_end = error.kind() == ErrorKind::UnexpectedEof;
        if is_end { ReceiveError::Truncated { records } } else { ReceiveError::Read(error) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_other_texts_are_none() {
        let token = ResumeToken { from: [0; 16], to: [9; 16], at: (77, u64::MAX) };
        assert_eq!(token.to_string().parse(), Ok(token));
        for text in ["", "1-2-3", "1-2-3-4-5", "x-2-3-4", "1-2-3-"] {
            assert_eq!(text.parse::<ResumeToken>(), Err(TokenError), "{text}");
        }
    }
}
