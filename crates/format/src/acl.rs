//! POSIX access lists: values of attributes in namespaces 4 and 5.
//!
//! # Layout
//!
//! ```text
//!   permissions (2 bytes) | entry (5 bytes) | entry | ...
//! ```
//!
//! An access list (namespace 4) has zeros for owner, others and mask: the anode's mode has those
//! bits, so chmod(2) changes the list. A list that adds nothing to the mode is not stored.
//!
//! # Invariants
//!
//! - AC1: Named users come before named groups; a list with named entries has a mask.
//! - AC2: An access list on disk has a mask.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::defect::{DefectCode, FoundDefect};

/// Bytes in front of the entries.
pub const ACL_HEAD_BYTES: usize = 2;
/// Bytes of an entry.
pub const ACL_ENTRY_BYTES: usize = 5;
/// Most named entries: the 64 KiB that setxattr(2) can pass, less the four unnamed entries.
pub const ACL_NAMED_MAX: usize = 8187;
/// The id of no user or group.
pub const NOBODY: u32 = u32::MAX;

const HAS_MASK: u16 = 1 << 12;
const IS_GROUP: u8 = 8;
const PERMISSIONS: u8 = 7;

/// Format: `docs/FORMAT.md#access-list`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AclDisk {
    /// Three bits each, from the lowest: others, group, owner, mask. Bit 12: the list has a mask.
    permissions: U16,
}

const _: () = assert!(size_of::<AclDisk>() == ACL_HEAD_BYTES);

/// Format: `docs/FORMAT.md#access-list-entry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct AclEntryDisk {
    /// Bits 0 to 2: permissions. Bit 3: `id` is a group.
    permissions: u8,
    id: U32,
}

const _: () = assert!(size_of::<AclEntryDisk>() == ACL_ENTRY_BYTES);

/// A named user or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whether `id` is a group.
    pub is_group: bool,
    /// User or group.
    pub id: u32,
    /// Read 4, write 2, execute or search 1.
    pub permissions: u8,
}

/// An access list, with permissions as in [`AclEntry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// Permissions of the owner.
    pub owner: u8,
    /// Permissions of the file's group.
    pub group: u8,
    /// Permissions of others.
    pub other: u8,
    /// Upper bound on the permissions of named entries and of the file's group.
    pub mask: Option<u8>,
    /// Named users, then named groups.
    pub named: Vec<AclEntry>,
}

/// Malformed access list: length of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {0} bytes are no access list", code = self.code())]
pub struct AclError(usize);

impl FoundDefect for AclError {
    fn code(&self) -> DefectCode {
        DefectCode::XA005
    }
}

impl Acl {
    /// Whether AC1 and the bounds of all fields hold.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let all = [self.owner, self.group, self.other, self.mask.unwrap_or(0)];
        let named = &self.named;
        all.iter().all(|bits| *bits <= PERMISSIONS)
            && named.iter().all(|entry| entry.permissions <= PERMISSIONS && entry.id != NOBODY)
            && named.is_sorted_by_key(|entry| entry.is_group)
            && named.len() <= ACL_NAMED_MAX
            && (self.mask.is_some() || named.is_empty())
    }

    /// Returns the bytes of the list.
    ///
    /// # Panics
    ///
    /// If the list is not sound.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.is_sound(), "a list that is not sound");
        let bits = |bits: u8, shift: u32| u16::from(bits) << shift;
        let mask = self.mask.map_or(0, |mask| HAS_MASK | bits(mask, 9));
        let permissions = bits(self.other, 0) | bits(self.group, 3) | bits(self.owner, 6) | mask;
        let mut bytes = AclDisk { permissions: U16::new(permissions) }.as_bytes().to_vec();
        for entry in &self.named {
            let permissions = entry.permissions | if entry.is_group { IS_GROUP } else { 0 };
            let entry = AclEntryDisk { permissions, id: U32::new(entry.id) };
            bytes.extend_from_slice(entry.as_bytes());
        }
        bytes
    }

    /// Decodes the value of an attribute.
    ///
    /// # Errors
    ///
    /// [`AclError`] if it is malformed.
    pub fn decode(bytes: &[u8]) -> Result<Acl, AclError> {
        AclView::read(bytes).map(|view| view.to_acl())
    }
}

/// An access list read in place: permission checks must not pay for a copy.
#[derive(Clone, Copy, Debug)]
pub struct AclView<'a> {
    permissions: u16,
    entries: &'a [AclEntryDisk],
}

impl<'a> AclView<'a> {
    /// Verifies the value of an attribute.
    ///
    /// # Errors
    ///
    /// [`AclError`] if it is malformed.
    pub fn read(bytes: &'a [u8]) -> Result<AclView<'a>, AclError> {
        let error = AclError(bytes.len());
        let (head, rest) = AclDisk::read_from_prefix(bytes).map_err(|_| error)?;
        let entries = <[AclEntryDisk]>::ref_from_bytes(rest).map_err(|_| error)?;
        let view = AclView { permissions: head.permissions.get(), entries };
        if view.is_sound() { Ok(view) } else { Err(error) }
    }

    /// Checks AC1 and unused bits, so that encoding returns the same bytes.
    fn is_sound(&self) -> bool {
        let spare = self.permissions >> if self.has_mask() { 13 } else { 9 };
        let mut groups_began = false;
        let are_entries_sound = self.entries.iter().all(|entry| {
            let is_group = entry.permissions & IS_GROUP != 0;
            let is_in_order = is_group || !groups_began;
            groups_began = is_group;
            entry.permissions <= IS_GROUP | PERMISSIONS && entry.id.get() != NOBODY && is_in_order
        });
        spare == 0
            && are_entries_sound
            && self.entries.len() <= ACL_NAMED_MAX
            && (self.has_mask() || self.entries.is_empty())
    }

    fn bits(&self, shift: u32) -> u8 {
        u8::try_from(self.permissions >> shift & 7).expect("three bits")
    }

    fn has_mask(&self) -> bool {
        self.permissions & HAS_MASK != 0
    }

    /// Returns an owned copy.
    #[must_use]
    pub fn to_acl(&self) -> Acl {
        let (owner, group, other) = (self.bits(6), self.group(), self.bits(0));
        let mask = self.has_mask().then(|| self.bits(9));
        Acl { owner, group, other, mask, named: self.named().collect() }
    }

    /// Returns the permissions of the file's group.
    #[must_use]
    pub fn group(&self) -> u8 {
        self.bits(3)
    }

    /// Iterates over named users, then named groups.
    pub fn named(&self) -> impl Iterator<Item = AclEntry> + Clone + use<'a> {
        self.entries.iter().map(|entry| AclEntry {
            is_group: entry.permissions & IS_GROUP != 0,
            id: entry.id.get(),
            permissions: entry.permissions & PERMISSIONS,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Acl {
        let user = AclEntry { is_group: false, id: 1000, permissions: 7 };
        let group = AclEntry { is_group: true, id: 100, permissions: 4 };
        Acl { owner: 7, group: 5, other: 0, mask: Some(6), named: vec![user, user, group] }
    }

    #[test]
    fn encode_then_decode_returns_the_list() {
        let plain = Acl { named: Vec::new(), mask: None, ..sample() };
        for acl in [sample(), plain] {
            let bytes = acl.encode();
            assert_eq!(bytes.len(), ACL_HEAD_BYTES + acl.named.len() * ACL_ENTRY_BYTES);
            assert_eq!(Acl::decode(&bytes), Ok(acl));
        }
    }

    #[test]
    fn bytes_that_are_no_list_are_refused() {
        let bytes = sample().encode();
        for length in [0, 1, 3, bytes.len() - 1] {
            assert!(Acl::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        // Unused bits, named entries without a mask, groups before users.
        for (at, flip) in [(1, 0x80), (1, 0x20), (1, 0x10), (2, 0x10), (2, 0x08)] {
            let mut bad = bytes.clone();
            bad[at] ^= flip;
            assert!(Acl::decode(&bad).is_err(), "byte {at}");
        }
        let plain = Acl { named: Vec::new(), mask: None, ..sample() }.encode();
        for flip in [0x02, 0x08, 0x20] {
            assert!(Acl::decode(&[plain[0], plain[1] ^ flip]).is_err(), "{flip:#x}");
        }
        let mut nobody = bytes;
        nobody[3..7].fill(0xff);
        assert!(Acl::decode(&nobody).is_err());
    }
}
