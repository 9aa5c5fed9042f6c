//! XDR (RFC 4506) decoding and encoding.
//!
//! Announced lengths allocate no memory: opaque data is a slice of the message. A length beyond the
//! message or the reader's bound is [`XdrError`].

#![expect(clippy::big_endian_bytes, reason = "XDR is big-endian; nothing else in this crate is")]

/// A malformed message: too short, a length beyond its bound, or an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct XdrError;

fn padding(length: usize) -> usize {
    length.next_multiple_of(4) - length
}

#[derive(Clone, Debug)]
pub(super) struct XdrReader<'m> {
    rest: &'m [u8],
}

impl<'m> XdrReader<'m> {
    pub(super) fn new(message: &'m [u8]) -> XdrReader<'m> {
        XdrReader { rest: message }
    }

    pub(super) fn bytes(&mut self, count: usize) -> Result<&'m [u8], XdrError> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(XdrError)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, XdrError> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(XdrError)?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*word))
    }

    pub(super) fn u64(&mut self) -> Result<u64, XdrError> {
        let (word, rest) = self.rest.split_first_chunk().ok_or(XdrError)?;
        self.rest = rest;
        Ok(u64::from_be_bytes(*word))
    }

    pub(super) fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(XdrError),
        }
    }

    pub(super) fn opaque(&mut self, bytes_max: usize) -> Result<&'m [u8], XdrError> {
        let length = usize::try_from(self.u32()?).map_err(|_| XdrError)?;
        if length > bytes_max {
            return Err(XdrError);
        }
        let bytes = self.bytes(length)?;
        self.bytes(padding(length))?;
        Ok(bytes)
    }
}

#[derive(Debug, Default)]
pub(super) struct XdrWriter {
    bytes: Vec<u8>,
}

impl XdrWriter {
    pub(super) fn with_room(bytes: usize) -> XdrWriter {
        XdrWriter { bytes: Vec::with_capacity(bytes) }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    pub(super) fn u32(&mut self, word: u32) {
        self.bytes.extend_from_slice(&word.to_be_bytes());
    }

    pub(super) fn words(&mut self, words: &[u32]) {
        words.iter().for_each(|&word| self.u32(word));
    }

    pub(super) fn u64(&mut self, word: u64) {
        self.bytes.extend_from_slice(&word.to_be_bytes());
    }

    pub(super) fn bool(&mut self, is: bool) {
        self.u32(u32::from(is));
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn opaque(&mut self, bytes: &[u8]) {
        self.u32(count_of(bytes.len()));
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    pub(super) fn pad(&mut self) {
        let length = self.bytes.len();
        self.bytes.resize(length + padding(length), 0);
    }

    pub(super) fn set_u32(&mut self, at: usize, word: u32) {
        self.set_raw(at, &word.to_be_bytes());
    }

    pub(super) fn set_raw(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn inner(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(super) fn into_inner(self) -> Vec<u8> {
        self.bytes
    }
}

/// Returns a byte count as a word. No reply reaches 4 GiB.
pub(super) fn count_of(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("no answer has 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = XdrWriter::default();
        writer.u32(7);
        writer.u64(1 << 40);
        writer.bool(true);
        writer.opaque(b"hello");
        let bytes = writer.into_inner();
        assert_eq!(bytes.len(), 4 + 8 + 4 + 4 + 8);
        let mut reader = XdrReader::new(&bytes);
        assert_eq!(reader.u32(), Ok(7));
        assert_eq!(reader.u64(), Ok(1 << 40));
        assert_eq!(reader.bool(), Ok(true));
        assert_eq!(reader.opaque(5), Ok(&b"hello"[..]));
        assert_eq!(reader.u32(), Err(XdrError));
    }

    #[test]
    fn a_length_past_the_end_or_the_bound_is_garbage() {
        for bytes in [&[0, 0, 0, 9, 1, 2][..], &[255, 255, 255, 255], &[0, 0, 0, 1, 1], &[0, 0]] {
            assert_eq!(XdrReader::new(bytes).opaque(1 << 20), Err(XdrError), "{bytes:?}");
        }
        assert_eq!(XdrReader::new(&[0, 0, 0, 2, 1, 2, 0, 0]).opaque(1), Err(XdrError));
        assert_eq!(XdrReader::new(&[0, 0, 0, 2]).bool(), Err(XdrError));
    }
}
