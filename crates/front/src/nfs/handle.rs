//! Sealed handles: what clients of NFS hold, the same after every restart.
//!
//! # Layout
//! 48 bytes: version (1), 3 zeros, fileset (16), inode (8), generation (8), export (4), seal (8).
//! The seal is SipHash-2-4 (J.-P. Aumasson and D. J. Bernstein, 2012) of what is before it, by a
//! key that clients do not know. So a client has only handles that it was given: it can't make one
//! of a file outside of its export, nor turn a handle of one export into one of another.

use std::fmt;

use engine::vnode::api::{FilesetUuid, Handle, Ino, siphash24};

/// Length of a handle; the protocol allows 64.
pub(super) const HANDLE_BYTES: usize = 48;
const VERSION: u8 = 1;
const SEALED_BYTES: usize = HANDLE_BYTES - 8;

/// What seals handles: secret, and as old as the oldest handle that is to be understood.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HandleKey(pub [u8; 16]);

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey(..)")
    }
}

/// Number of an export in handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ExportId(pub(super) u32);

impl ExportId {
    /// Returns the number that stands in a handle, which may have been made up; `None` for bytes of
    /// another length.
    pub(super) fn named_in(bytes: &[u8]) -> Option<ExportId> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        Some(ExportId(u32::from_le_bytes(bytes[36..SEALED_BYTES].try_into().ok()?)))
    }
}

impl HandleKey {
    /// Returns the key that is made of a secret, which serves other ends too.
    #[must_use]
    pub fn derived(secret: [u8; 16]) -> HandleKey {
        let half = |label: &[u8]| HandleKey(secret).hash(label).to_le_bytes();
        let mut key = [0; 16];
        key[..8].copy_from_slice(&half(b"NFS handles, low"));
        key[8..].copy_from_slice(&half(b"NFS handles, high"));
        HandleKey(key)
    }

    /// Returns the sealed handle of `handle` in an export.
    pub(super) fn seal(&self, export: ExportId, handle: Handle) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[0] = VERSION;
        bytes[4..20].copy_from_slice(&handle.fileset.0.to_le_bytes());
        bytes[20..28].copy_from_slice(&handle.ino.0.to_le_bytes());
        bytes[28..36].copy_from_slice(&handle.generation.to_le_bytes());
        bytes[36..SEALED_BYTES].copy_from_slice(&export.0.to_le_bytes());
        let seal = self.hash(&bytes[..SEALED_BYTES]);
        bytes[SEALED_BYTES..].copy_from_slice(&seal.to_le_bytes());
        bytes
    }

    /// Returns what a handle names, and by which export it was given out; `None` for one that this
    /// key did not seal.
    pub(super) fn unseal(&self, bytes: &[u8]) -> Option<(ExportId, Handle)> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        let (sealed, seal) = bytes.split_first_chunk::<SEALED_BYTES>()?;
        // The difference of two words takes no longer where more of them is right.
        if self.hash(sealed) ^ u64::from_le_bytes(seal.try_into().ok()?) != 0 {
            return None;
        }
        if sealed[..4] != [VERSION, 0, 0, 0] {
            return None;
        }
        let fileset = FilesetUuid(u128::from_le_bytes(sealed[4..20].try_into().ok()?));
        let ino = Ino(u64::from_le_bytes(sealed[20..28].try_into().ok()?));
        let generation = u64::from_le_bytes(sealed[28..36].try_into().ok()?);
        let export = ExportId(u32::from_le_bytes(sealed[36..].try_into().ok()?));
        Some((export, Handle { fileset, ino, generation }))
    }

    /// Returns SipHash-2-4 of `bytes`.
    pub(super) fn hash(&self, bytes: &[u8]) -> u64 {
        let [low, high] = [self.0.first_chunk(), self.0.last_chunk()];
        let word = |half: Option<&[u8; 8]>| half.map_or(0, |half| u64::from_le_bytes(*half));
        siphash24([word(low), word(high)], bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> HandleKey {
        HandleKey(std::array::from_fn(|at| u8::try_from(at).expect("16 numbers")))
    }

    /// The vectors are those of the authors' program (`vectors_sip64`).
    #[test]
    fn siphash_is_that_of_its_authors() {
        let bytes: Vec<u8> = (0..64).collect();
        for (length, hash) in [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
        ] {
            assert_eq!(key().hash(&bytes[..length]), hash, "{length} bytes");
        }
    }

    #[test]
    fn a_handle_means_what_was_sealed_and_no_changed_byte_is_believed() {
        let handle = Handle { fileset: FilesetUuid(7 << 90), ino: Ino(1 << 40), generation: 99 };
        let sealed = key().seal(ExportId(5), handle);
        assert_eq!(key().unseal(&sealed), Some((ExportId(5), handle)));
        for at in 0..HANDLE_BYTES {
            for bit in 0..8 {
                let mut changed = sealed;
                changed[at] ^= 1 << bit;
                assert_eq!(key().unseal(&changed), None, "bit {bit} of byte {at}");
            }
        }
        assert_eq!(key().unseal(&sealed[..47]), None);
        assert_eq!(HandleKey([9; 16]).unseal(&sealed), None);
    }
}
