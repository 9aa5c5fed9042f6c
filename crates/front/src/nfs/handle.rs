//! Sealed NFS file handles, valid across restarts.
//!
//! # Layout
//! 48 bytes: version (1), 3 zeros, fileset (16), inode (8), generation (8), export (4), seal (8).
//! The seal is SipHash-2-4 (J.-P. Aumasson and D. J. Bernstein, 2012) of the preceding bytes with a
//! secret key. So clients cannot forge a handle of a file outside their export, nor convert one to
//! another export.

use std::fmt;

use engine::api::{FileHandle, FilesetUuid, Ino, siphash24};

pub(super) const HANDLE_BYTES: usize = 48;
const VERSION: u8 = 1;
const SEALED_BYTES: usize = HANDLE_BYTES - 8;

/// Secret key that seals handles. A changed key makes all older handles invalid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HandleKey(pub [u8; 16]);

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey(..)")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ExportId(pub(super) u32);

impl ExportId {
    /// Returns the unverified export number of a handle, or `None` for a wrong length.
    pub(super) fn named_in(bytes: &[u8]) -> Option<ExportId> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        Some(ExportId(u32::from_le_bytes(bytes[36..SEALED_BYTES].try_into().ok()?)))
    }
}

impl HandleKey {
    /// Derives the key from a secret that has other uses too.
    #[must_use]
    pub fn derived(secret: [u8; 16]) -> HandleKey {
        let half = |label: &[u8]| HandleKey(secret).hash(label).to_le_bytes();
        let mut key = [0; 16];
        key[..8].copy_from_slice(&half(b"NFS handles, low"));
        key[8..].copy_from_slice(&half(b"NFS handles, high"));
        HandleKey(key)
    }

    pub(super) fn seal(&self, export: ExportId, handle: FileHandle) -> [u8; HANDLE_BYTES] {
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

    /// Returns the export and contents of a handle, or `None` if this key did not seal it.
    pub(super) fn unseal(&self, bytes: &[u8]) -> Option<(ExportId, FileHandle)> {
        let bytes: &[u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        let (sealed, seal) = bytes.split_first_chunk::<SEALED_BYTES>()?;
        // Comparison in constant time.
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
        Some((export, FileHandle { fileset, ino, generation }))
    }

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

    /// Vectors of the authors' program (`vectors_sip64`).
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
        let handle =
            FileHandle { fileset: FilesetUuid(7 << 90), ino: Ino(1 << 40), generation: 99 };
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
