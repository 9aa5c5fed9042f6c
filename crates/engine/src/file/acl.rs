//! POSIX access lists: encodings, permission checks and inheritance.
//!
//! The rules are those of acl(5) and Linux (POSIX.1e, draft 17). A list equivalent to the
//! permission bits is not stored. Otherwise the permissions of owner, others and mask *are* the
//! permission bits of the anode, so the two can't contradict each other.
//!
//! Not here: permission to set a list, and where it is stored (`xattr.rs`).

use crate::file::Xattrs;
use format::acl::{ACL_NAMED_MAX, Acl, AclEntry, AclView, NOBODY};
use format::anode::{Anode, AnodeKind};
use format::attributes::{AttributeName, Namespace};
use format::ids::AnodeNo;
use runtime::planted;

use crate::api::Caller;
use crate::buffer::corrupt;
use crate::error::{FsError, FsResult};
use crate::file::access::is_in_group;

/// Version of the kernel's form (`linux/posix_acl_xattr.h`).
const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const TAG_USER_OBJ: u16 = 0x01;
const TAG_USER: u16 = 0x02;
const TAG_GROUP_OBJ: u16 = 0x04;
const TAG_GROUP: u16 = 0x08;
const TAG_MASK: u16 = 0x10;
const TAG_OTHER: u16 = 0x20;
const ACCESS_BITS: u16 = 0o777;
const GROUP_BITS: u16 = 0o070;

pub(crate) const ACCESS: AttributeName<'static> =
    AttributeName { namespace: Namespace::AccessAcl, suffix: b"" };
pub(crate) const DEFAULT: AttributeName<'static> =
    AttributeName { namespace: Namespace::DefaultAcl, suffix: b"" };

struct RawAclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// Decodes a list in the kernel's form; `None` if it is empty, which requests its removal.
///
/// # Errors
///
/// [`FsError::Invalid`] if malformed, [`FsError::NotSupported`] for another version.
pub(crate) fn from_kernel(value: &[u8]) -> FsResult<Option<Vec<AclPart>>> {
    if value.is_empty() {
        return Ok(None);
    }
    let (head, rest) = value.split_first_chunk::<HEAD_BYTES>().ok_or(FsError::Invalid)?;
    if u32::from_le_bytes(*head) != VERSION {
        return Err(FsError::NotSupported);
    }
    let (entries, []) = rest.as_chunks::<ENTRY_BYTES>() else { return Err(FsError::Invalid) };
    let parts = entries.iter().map(|entry| part_of(&raw(entry))).collect::<FsResult<Vec<_>>>()?;
    Ok(Some(parts).filter(|parts| !parts.is_empty()))
}

fn raw(entry: &[u8; ENTRY_BYTES]) -> RawAclEntry {
    let [tag_low, tag_high, low, high, id @ ..] = *entry;
    RawAclEntry {
        tag: u16::from_le_bytes([tag_low, tag_high]),
        permissions: u16::from_le_bytes([low, high]),
        id: u32::from_le_bytes(id),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AclPart {
    who: AclSubject,
    permissions: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AclSubject {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    Mask,
    Other,
}

fn part_of(entry: &RawAclEntry) -> FsResult<AclPart> {
    let who = match entry.tag {
        TAG_USER_OBJ => AclSubject::Owner,
        TAG_USER => AclSubject::User(entry.id),
        TAG_GROUP_OBJ => AclSubject::OwningGroup,
        TAG_GROUP => AclSubject::Group(entry.id),
        TAG_MASK => AclSubject::Mask,
        TAG_OTHER => AclSubject::Other,
        _ => return Err(FsError::Invalid),
    };
    Ok(AclPart { who, permissions: entry.permissions })
}

/// Builds a list. Requires the kernel's order, the three mandatory entries once, and a mask if
/// there are named entries.
pub(crate) fn assembled(parts: &[AclPart]) -> FsResult<Acl> {
    let mut parts = parts.iter().copied().peekable();
    let bits = |part: AclPart| {
        u8::try_from(part.permissions).ok().filter(|bits| *bits <= 7).ok_or(FsError::Invalid)
    };
    let single = |parts: &mut std::iter::Peekable<_>, who: AclSubject| -> FsResult<Option<u8>> {
        let found: Option<AclPart> = parts.next_if(|part: &AclPart| part.who == who);
        found.map(bits).transpose()
    };
    let owner = single(&mut parts, AclSubject::Owner)?.ok_or(FsError::Invalid)?;
    let mut named = Vec::new();
    while let Some(part) = parts.next_if(|part| matches!(part.who, AclSubject::User(_))) {
        let AclSubject::User(id) = part.who else { continue };
        named.push(AclEntry { is_group: false, id, permissions: bits(part)? });
    }
    let group = single(&mut parts, AclSubject::OwningGroup)?.ok_or(FsError::Invalid)?;
    while let Some(part) = parts.next_if(|part| matches!(part.who, AclSubject::Group(_))) {
        let AclSubject::Group(id) = part.who else { continue };
        named.push(AclEntry { is_group: true, id, permissions: bits(part)? });
    }
    let mask = single(&mut parts, AclSubject::Mask)?;
    let other = single(&mut parts, AclSubject::Other)?.ok_or(FsError::Invalid)?;
    let acl = Acl { owner, group, other, mask, named };
    let is_whole = parts.next().is_none() && acl.named.len() <= ACL_NAMED_MAX;
    if is_whole && acl.is_sound() { Ok(acl) } else { Err(FsError::Invalid) }
}

pub(crate) fn to_kernel(acl: &Acl) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    let mut put = |tag: u16, permissions: u8, id: u32| {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&u16::from(permissions).to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    };
    put(TAG_USER_OBJ, acl.owner, NOBODY);
    for entry in acl.named.iter().filter(|entry| !entry.is_group) {
        put(TAG_USER, entry.permissions, entry.id);
    }
    put(TAG_GROUP_OBJ, acl.group, NOBODY);
    for entry in acl.named.iter().filter(|entry| entry.is_group) {
        put(TAG_GROUP, entry.permissions, entry.id);
    }
    if let Some(mask) = acl.mask {
        put(TAG_MASK, mask, NOBODY);
    }
    put(TAG_OTHER, acl.other, NOBODY);
    value
}

pub(crate) fn is_mode(acl: &Acl) -> bool {
    acl.mask.is_none()
}

/// Returns the permission bits of a file with this list; the mask supplies the group bits.
pub(crate) fn mode_of(acl: &Acl) -> u16 {
    let group = acl.mask.unwrap_or(acl.group);
    u16::from(acl.owner) << 6 | u16::from(group) << 3 | u16::from(acl.other)
}

/// Encodes a list without the parts that the permission bits hold.
pub(crate) fn stored(acl: &Acl) -> Vec<u8> {
    let rest = Acl { owner: 0, other: 0, mask: Some(0), ..acl.clone() };
    rest.encode()
}

fn bits_at(mode: u16, shift: u32) -> u8 {
    u8::try_from(mode >> shift & 7).expect("three bits")
}

struct AclRules<I> {
    group: u8,
    mask: u8,
    other: u8,
    /// Named users, then named groups.
    named: I,
}

impl<I: Iterator<Item = AclEntry>> AclRules<I> {
    /// Whether acl(5) grants `wanted` to a caller other than the owner.
    fn grant(self, caller: &Caller, gid: u32, wanted: u16) -> bool {
        let has = |permissions: u8| u16::from(permissions) & wanted == wanted;
        let masked = |permissions: u8| has(permissions & self.mask);
        let mut is_member = is_in_group(caller, gid);
        let mut is_granted = is_member && masked(self.group);
        for entry in self.named {
            if !entry.is_group && entry.id == caller.uid {
                // Users come before groups, so no group entry has matched yet.
                return masked(entry.permissions);
            }
            if entry.is_group && is_in_group(caller, entry.id) {
                is_member = true;
                is_granted |= masked(entry.permissions);
            }
        }
        if is_member { is_granted } else { has(self.other) }
    }
}

pub(crate) struct InheritedAccess {
    pub(crate) mode: u16,
    pub(crate) access: Option<Vec<u8>>,
    pub(crate) default: Option<Vec<u8>>,
}

/// Returns mode and lists of a new file: what both `mode` and the default list grant, or `mode &
/// !umask` without a list.
pub(crate) fn handed_down(
    default: Option<&Acl>,
    kind: AnodeKind,
    mode: u16,
    umask: u16,
) -> InheritedAccess {
    let plain = |mode| InheritedAccess { mode, access: None, default: None };
    let default = match default.filter(|_| !planted!(AclNotInherited)) {
        _ if kind == AnodeKind::Symlink => return plain(mode),
        None => return plain(mode & !(umask & ACCESS_BITS)),
        Some(default) => default,
    };
    let mut acl = default.clone();
    acl.owner &= bits_at(mode, 6);
    acl.other &= bits_at(mode, 0);
    match acl.mask.as_mut() {
        Some(mask) => *mask &= bits_at(mode, 3),
        None => acl.group &= bits_at(mode, 3),
    }
    InheritedAccess {
        mode: mode & !ACCESS_BITS | mode_of(&acl),
        access: (!is_mode(&acl)).then(|| stored(&acl)),
        default: (kind == AnodeKind::Directory).then(|| default.encode()),
    }
}

impl Xattrs<'_> {
    /// Returns the access list; `None` if only permission bits apply.
    pub(crate) fn access_acl(&self, anode: &Anode) -> FsResult<Option<Acl>> {
        let Some(mut acl) = self.stored_acl(anode, ACCESS)? else { return Ok(None) };
        acl.owner = bits_at(anode.mode, 6);
        acl.mask = Some(bits_at(anode.mode, 3));
        acl.other = bits_at(anode.mode, 0);
        Ok(Some(acl))
    }

    pub(crate) fn default_acl(&self, anode: &Anode) -> FsResult<Option<Acl>> {
        self.stored_acl(anode, DEFAULT)
    }

    fn stored_acl(&self, anode: &Anode, name: AttributeName<'_>) -> FsResult<Option<Acl>> {
        self.with_stored_acl(anode, name, |list| list.to_acl())
    }

    /// Passes a stored list to `work`. Costs two comparisons for a file without attributes, and no
    /// copy for a list inside the anode.
    fn with_stored_acl<T>(
        &self,
        anode: &Anode,
        name: AttributeName<'_>,
        work: impl FnOnce(AclView<'_>) -> T,
    ) -> FsResult<Option<T>> {
        if anode.attributes.is_none() && anode.acl == AnodeNo(0) {
            return Ok(None);
        }
        if let Some(value) = anode.attributes.get(name) {
            return AclView::read(value).map(|list| Some(work(list))).map_err(corrupt);
        }
        let Some(value) = self.value_of(anode, name)? else { return Ok(None) };
        AclView::read(&value).map(|list| Some(work(list))).map_err(corrupt)
    }

    /// Whether the access list grants `wanted` to a caller other than the owner; `None` if the
    /// permission bits decide. As on Linux, a list with an empty mask is ignored.
    pub(crate) fn acl_grants(
        &self,
        caller: &Caller,
        anode: &Anode,
        wanted: u16,
    ) -> FsResult<Option<bool>> {
        if anode.mode & GROUP_BITS == 0 {
            return Ok(None);
        }
        self.with_stored_acl(anode, ACCESS, |list| {
            let (mask, other) = (bits_at(anode.mode, 3), bits_at(anode.mode, 0));
            let rules = AclRules { group: list.group(), mask, other, named: list.named() };
            rules.grant(caller, anode.gid, wanted)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u16 = 4;
    const WRITE: u16 = 2;
    const SEARCH: u16 = 1;

    const GID: u32 = 5;

    fn grants(acl: &Acl, caller: &Caller, wanted: u16) -> bool {
        let (mask, named) = (acl.mask.unwrap_or(7), acl.named.iter().copied());
        let rules = AclRules { group: acl.group, mask, other: acl.other, named };
        rules.grant(caller, GID, wanted)
    }

    fn user(id: u32, permissions: u8) -> AclEntry {
        AclEntry { is_group: false, id, permissions }
    }

    fn group(id: u32, permissions: u8) -> AclEntry {
        AclEntry { is_group: true, id, permissions }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller::checked(uid, gid, groups.to_vec())
    }

    /// Method: a table of callers with permissions derived by hand from the manual.
    #[test]
    fn decisions_are_those_of_the_manual() {
        let acl = Acl {
            owner: 7,
            group: 4,
            other: 1,
            mask: Some(6),
            named: vec![user(10, 7), user(11, 0), group(20, 2), group(21, 5), group(22, 0)],
        };
        let cases: [(&str, Caller, u16); 13] = [
            ("a named user, masked", caller(10, 99, &[]), READ | WRITE),
            ("a named user with nothing, whose groups have more", caller(11, GID, &[20, 21]), 0),
            ("the owning group", caller(30, GID, &[]), READ),
            ("the owning group, supplementary", caller(30, 99, &[GID]), READ),
            ("a named group", caller(30, 20, &[]), WRITE),
            ("a named group, masked", caller(30, 21, &[]), READ),
            ("a named group with nothing, not the others", caller(30, 22, &[]), 0),
            ("nobody's", caller(30, 99, &[98]), SEARCH),
            ("a group that has the number of a user", caller(30, 10, &[]), SEARCH),
            ("a user who has the number of a group", caller(20, 99, &[]), SEARCH),
            ("a supplementary named group", caller(30, 99, &[98, 20]), WRITE),
            ("a group with nothing beside one with something", caller(30, 22, &[21]), READ),
            ("the superuser's number means nothing here", caller(0, 99, &[]), SEARCH),
        ];
        for (what, caller, expected) in cases {
            for wanted in [READ, WRITE, SEARCH] {
                let granted = grants(&acl, &caller, wanted);
                assert_eq!(granted, expected & wanted != 0, "{what}: {wanted}");
            }
        }
        // No single group grants both, and grants of groups do not add up.
        let both = caller(30, GID, &[20]);
        assert!(grants(&acl, &both, READ) && grants(&acl, &both, WRITE));
        assert!(!grants(&acl, &both, READ | WRITE));
    }

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn read(value: &[u8]) -> FsResult<Option<Acl>> {
        from_kernel(value)?.map(|parts| assembled(&parts)).transpose()
    }

    #[test]
    fn what_the_kernel_takes_is_taken_and_comes_back() {
        let minimal = value(&[(1, 6, NOBODY), (4, 4, NOBODY), (0x20, 0, NOBODY)]);
        let acl = read(&minimal).expect("a list").expect("not empty");
        assert!(is_mode(&acl));
        assert_eq!((mode_of(&acl), to_kernel(&acl)), (0o640, minimal));
        let full = value(&[
            (1, 7, NOBODY),
            (2, 4, 9),
            (2, 5, 8),
            (4, 4, NOBODY),
            (8, 6, 7),
            (0x10, 5, NOBODY),
            (0x20, 1, NOBODY),
        ]);
        let acl = read(&full).expect("a list").expect("not empty");
        assert_eq!((mode_of(&acl), to_kernel(&acl)), (0o751, full));
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&value(&[])), Ok(None));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let (u, g, m, o) = ((1, 6, NOBODY), (4, 4, NOBODY), (0x10, 7, NOBODY), (0x20, 0, NOBODY));
        let cases: [&[(u16, u16, u32)]; 13] = [
            &[u],
            &[u, g],
            &[g, u, o],
            &[u, g, o, o],
            &[u, u, g, o],
            &[u, g, m, m, o],
            &[u, g, o, m],
            &[u, (2, 4, 7), g, o],
            &[u, g, (8, 4, 7), o],
            &[u, g, (2, 4, 7), m, o],
            &[u, (2, 4, NOBODY), g, m, o],
            &[(1, 8, NOBODY), g, o],
            &[u, g, (0x40, 4, 7), m, o],
        ];
        for case in cases {
            assert_eq!(read(&value(case)), Err(FsError::Invalid), "{case:?}");
        }
        assert_eq!(read(&value(&[u, g, o])[..27]), Err(FsError::Invalid));
        assert_eq!(read(&[2, 0, 0]), Err(FsError::Invalid));
        assert_eq!(read(&[3, 0, 0, 0]), Err(FsError::NotSupported));
    }

    #[test]
    fn a_default_list_and_the_mode_both_limit_what_is_handed_down() {
        let named = vec![user(10, 7)];
        let default = Acl { owner: 7, group: 5, other: 4, mask: Some(7), named: named.clone() };
        let given = handed_down(Some(&default), AnodeKind::Regular, 0o2660, 0o077);
        assert_eq!((given.mode, given.default), (0o2660, None));
        assert_eq!(given.access, Some(stored(&Acl { group: 5, ..default.clone() })));
        let given = handed_down(Some(&default), AnodeKind::Directory, 0o755, 0o777);
        assert_eq!((given.mode, given.default), (0o754, Some(default.encode())));
        let plain = Acl { mask: None, named: Vec::new(), ..default.clone() };
        let given = handed_down(Some(&plain), AnodeKind::Fifo, 0o666, 0o777);
        assert_eq!((given.mode, given.access, given.default), (0o644, None, None));
        assert_eq!(handed_down(None, AnodeKind::Regular, 0o4777, 0o022).mode, 0o4755);
        assert_eq!(handed_down(Some(&default), AnodeKind::Symlink, 0o777, 0o022).mode, 0o777);
    }
}
