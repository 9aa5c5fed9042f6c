//! Extended attributes: short ones in the anode, others in pages of a container.
//!
//! # Layout
//!
//! ```text
//!   anode:       head | name | value | head | name | value | zeros               56 bytes
//!   entry page:  header (count, bytes in use, next) | head | name | value | ... | zeros
//!   value page:  header (bytes of the value in it)  | bytes of one value        | zeros
//! ```
//!
//! Entry pages form a chain of page numbers from page 0. A value too long for its entry takes
//! consecutive value pages; the entry holds the number of the first.
//!
//! # Invariants
//!
//! - X1: Entries fill the first `used` bytes of the body; zeros follow.
//! - X2: Attribute names are unique.
//! - X3: Each page of a container is an entry page of its chain, or a value page of one entry.

mod container;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::container::ContainerPages;
use crate::bytes::is_zero;
use crate::defect::{DefectCode, FoundDefect};
use crate::page::{
    AUX_OFFSET, COUNT_OFFSET, PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageBytes, read_u32, read_u64,
    write_u32, write_u64,
};

/// Bytes of an anode for attributes.
pub const INLINE_ATTRIBUTES_BYTES: usize = 56;
/// Bytes of an inline attribute in front of its name.
pub const INLINE_ATTRIBUTE_HEAD_BYTES: usize = 3;
/// Bytes of an entry in front of its name.
pub const ATTRIBUTE_HEAD_BYTES: usize = 16;
/// Alignment of entries.
const UNIT_BYTES: usize = 8;
/// Longest name with its prefix (Linux: `XATTR_NAME_MAX`).
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;
/// Longest value (Linux: `XATTR_SIZE_MAX`).
pub const ATTRIBUTE_VALUE_BYTES_MAX: usize = 65_536;
/// Most bytes of all names, each with a NUL (Linux: `XATTR_LIST_MAX`).
pub const ATTRIBUTE_LIST_BYTES_MAX: usize = 65_536;
/// Longest value stored in the entry itself.
pub const ENTRY_VALUE_BYTES_MAX: usize = 960;
/// Bytes of a value in one value page.
pub const VALUE_PAGE_BYTES: usize = PAGE_BODY_BYTES;
/// Most entry pages of a container: room for more than [`ATTRIBUTE_LIST_BYTES_MAX`].
pub const ENTRY_PAGES_MAX: usize = 4096;

const USED_OFFSET: usize = AUX_OFFSET;
/// 0 in the last entry page.
const NEXT_OFFSET: usize = AUX_OFFSET + 8;
/// 1 in a value page, 0 in an entry page.
const IS_VALUE_OFFSET: usize = AUX_OFFSET + 16;

/// Prefix of a name. Decides the access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Namespace {
    /// Under the file's own permissions.
    User = 1,
    /// For the superuser.
    Trusted = 2,
    /// For security modules.
    Security = 3,
    /// The access list.
    AccessAcl = 4,
    /// The default access list of a directory.
    DefaultAcl = 5,
}

impl Namespace {
    /// Every namespace.
    pub const ALL: [Namespace; 5] = [
        Namespace::User,
        Namespace::Trusted,
        Namespace::Security,
        Namespace::AccessAcl,
        Namespace::DefaultAcl,
    ];

    /// Returns the namespace for a code on disk.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Namespace> {
        Namespace::ALL.into_iter().find(|namespace| namespace.code() == code)
    }

    /// Returns the code on disk.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the prefix of its names.
    #[must_use]
    pub fn prefix(self) -> &'static [u8] {
        match self {
            Namespace::User => b"user.",
            Namespace::Trusted => b"trusted.",
            Namespace::Security => b"security.",
            Namespace::AccessAcl => b"system.posix_acl_access",
            Namespace::DefaultAcl => b"system.posix_acl_default",
        }
    }

    /// Whether it is an access list. The prefix is then the whole name.
    #[must_use]
    pub fn is_acl(self) -> bool {
        matches!(self, Namespace::AccessAcl | Namespace::DefaultAcl)
    }
}

/// The name of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttributeName<'n> {
    /// Namespace, encoded as the prefix.
    pub namespace: Namespace,
    /// Name behind the prefix: empty only for access lists.
    pub suffix: &'n [u8],
}

impl AttributeName<'_> {
    /// Returns the name as in getxattr(2).
    #[must_use]
    pub fn full(&self) -> Vec<u8> {
        [self.namespace.prefix(), self.suffix].concat()
    }

    /// Whether lengths are within bounds.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let bytes = self.namespace.prefix().len() + self.suffix.len();
        self.suffix.is_empty() == self.namespace.is_acl() && bytes <= ATTRIBUTE_NAME_BYTES_MAX
    }
}

/// Format: `docs/FORMAT.md#inline-attribute`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct InlineAttributeDisk {
    /// 0: no more attributes.
    namespace: u8,
    /// Without the prefix.
    name_bytes: u8,
    value_bytes: u8,
}

const _: () = assert!(size_of::<InlineAttributeDisk>() == INLINE_ATTRIBUTE_HEAD_BYTES);

/// Format: `docs/FORMAT.md#attribute-entry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AttributeDisk {
    namespace: u8,
    /// Without the prefix.
    name_bytes: u8,
    reserved: U16,
    value_bytes: U32,
    /// 0: the value follows the name.
    value_page: U64,
}

const _: () = assert!(size_of::<AttributeDisk>() == ATTRIBUTE_HEAD_BYTES);

/// Damage in a page of attributes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: attribute at {offset}: {what}", self.code())]
pub struct AttributeDefect {
    /// Offset of the entry or header field.
    pub offset: usize,
    /// Description of the damage.
    pub what: &'static str,
}

impl FoundDefect for AttributeDefect {
    fn code(&self) -> DefectCode {
        DefectCode::XA001
    }
}

/// The attributes in an anode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineAttributes(pub [u8; INLINE_ATTRIBUTES_BYTES]);

impl InlineAttributes {
    /// No attribute.
    pub const NONE: InlineAttributes = InlineAttributes([0; INLINE_ATTRIBUTES_BYTES]);

    /// Whether there is no attribute: in most files a lookup ends here.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0[0] == 0
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (AttributeName<'_>, &[u8])> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let (name, value, end) = self.at(offset)?;
            offset = end;
            Some((name, value))
        })
    }

    fn at(&self, offset: usize) -> Option<(AttributeName<'_>, &[u8], usize)> {
        let (head, rest) = InlineAttributeDisk::read_from_prefix(self.0.get(offset..)?).ok()?;
        let namespace = Namespace::from_code(head.namespace)?;
        let (name_bytes, value_bytes) = (usize::from(head.name_bytes), head.value_bytes.into());
        let suffix = rest.get(..name_bytes)?;
        let value = rest.get(name_bytes..)?.get(..value_bytes)?;
        let end = offset + INLINE_ATTRIBUTE_HEAD_BYTES + name_bytes + value_bytes;
        let name = AttributeName { namespace, suffix };
        name.is_sound().then_some((name, value, end))
    }

    /// Returns the value of `name`.
    #[must_use]
    pub fn get(&self, name: AttributeName<'_>) -> Option<&[u8]> {
        self.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// Returns these attributes without `name`.
    #[must_use]
    pub fn without(&self, name: AttributeName<'_>) -> InlineAttributes {
        let mut kept = InlineAttributes::NONE;
        let mut end = 0;
        for (other, value) in self.iter().filter(|(other, _)| *other != name) {
            end = kept.put(end, other, value).expect("a part of what fitted fits");
        }
        kept
    }

    /// Returns these attributes with `name` set to `value`; `None` if they do not fit.
    #[must_use]
    pub fn with(&self, name: AttributeName<'_>, value: &[u8]) -> Option<InlineAttributes> {
        let mut set = self.without(name);
        let mut end = 0;
        while let Some((_, _, next)) = set.at(end) {
            end = next;
        }
        set.put(end, name, value)?;
        Some(set)
    }

    fn put(&mut self, offset: usize, name: AttributeName<'_>, value: &[u8]) -> Option<usize> {
        let head = InlineAttributeDisk {
            namespace: name.namespace.code(),
            name_bytes: u8::try_from(name.suffix.len()).ok()?,
            value_bytes: u8::try_from(value.len()).ok()?,
        };
        let entry = [head.as_bytes(), name.suffix, value].concat();
        let end = offset + entry.len();
        self.0.get_mut(offset..end)?.copy_from_slice(&entry);
        Some(end)
    }

    /// Checks that attributes are in bounds and unique, and that zeros follow them.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let mut end = 0;
        let mut names = Vec::new();
        while let Some((name, _, next)) = self.at(end) {
            if names.contains(&name) {
                return false;
            }
            names.push(name);
            end = next;
        }
        is_zero(self.0.get(end..).unwrap_or(&[]))
    }
}

/// Location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeValueLocation<'page> {
    /// In the entry.
    Here(&'page [u8]),
    /// In value pages from this number on.
    Pages(u64),
}

/// An attribute of an entry page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeEntry<'page> {
    /// Offset in the page.
    pub offset: usize,
    /// Name of the attribute.
    pub name: AttributeName<'page>,
    /// Bytes of the value.
    pub value_bytes: usize,
    /// Location of the value.
    pub value: AttributeValueLocation<'page>,
    end: usize,
}

impl AttributeEntry<'_> {
    /// Returns the numbers of the value pages.
    #[must_use]
    pub fn value_pages(&self) -> std::ops::Range<u64> {
        match self.value {
            AttributeValueLocation::Here(_) => 0..0,
            AttributeValueLocation::Pages(first) => {
                first..first.saturating_add(value_pages(self.value_bytes))
            }
        }
    }
}

/// Returns the number of value pages for `bytes`.
#[must_use]
pub fn value_pages(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(VALUE_PAGE_BYTES)).expect("usize has at most 64 bits")
}

fn used(page: &PageBytes) -> usize {
    let used = usize::try_from(read_u64(page, USED_OFFSET)).unwrap_or(usize::MAX);
    used.min(PAGE_BODY_BYTES)
}

/// Returns the number of entries by the header.
#[must_use]
pub fn count(page: &PageBytes) -> u32 {
    read_u32(page, COUNT_OFFSET)
}

/// Returns the number of the next entry page; 0 in the last.
#[must_use]
pub fn next(page: &PageBytes) -> u64 {
    read_u64(page, NEXT_OFFSET)
}

/// Sets the number of the next entry page.
pub fn set_next(page: &mut PageBytes, next: u64) {
    write_u64(page, NEXT_OFFSET, next);
}

/// Whether the page is a value page.
#[must_use]
pub fn is_value_page(page: &PageBytes) -> bool {
    read_u64(page, IS_VALUE_OFFSET) != 0
}

/// Iterates over the entries, up to the first malformed one.
pub fn entries(page: &PageBytes) -> impl Iterator<Item = AttributeEntry<'_>> {
    let mut offset = PAGE_HEADER_BYTES;
    let end = if is_value_page(page) { 0 } else { PAGE_HEADER_BYTES + used(page) };
    std::iter::from_fn(move || {
        let entry = entry_at(page, offset, end)?;
        offset = entry.end;
        Some(entry)
    })
}

fn entry_at(page: &PageBytes, offset: usize, page_end: usize) -> Option<AttributeEntry<'_>> {
    let body = page.get(offset..page_end)?;
    let (head, rest) = AttributeDisk::read_from_prefix(body).ok()?;
    let name_bytes = usize::from(head.name_bytes);
    let value_bytes = usize::try_from(head.value_bytes.get()).ok()?;
    let suffix = rest.get(..name_bytes)?;
    let name = AttributeName { namespace: Namespace::from_code(head.namespace)?, suffix };
    let first = head.value_page.get();
    let here = if first == 0 { value_bytes } else { 0 };
    let value = match first {
        0 => AttributeValueLocation::Here(rest.get(name_bytes..)?.get(..value_bytes)?),
        _ => AttributeValueLocation::Pages(first),
    };
    let is_short = value_bytes <= ENTRY_VALUE_BYTES_MAX;
    let end = offset + entry_bytes(name_bytes, here);
    let is_sound = name.is_sound()
        && value_bytes <= ATTRIBUTE_VALUE_BYTES_MAX
        && is_short == (first == 0)
        && end <= page_end;
    is_sound.then_some(AttributeEntry { offset, name, value_bytes, value, end })
}

fn entry_bytes(name_bytes: usize, value_bytes: usize) -> usize {
    (ATTRIBUTE_HEAD_BYTES + name_bytes + value_bytes).next_multiple_of(UNIT_BYTES)
}

/// Returns the entry of `name`.
#[must_use]
pub fn find<'page>(
    page: &'page PageBytes,
    name: AttributeName<'_>,
) -> Option<AttributeEntry<'page>> {
    entries(page).find(|entry| entry.name == name)
}

/// Adds an entry for an absent name. Returns whether it fits.
#[must_use]
pub fn insert(
    page: &mut PageBytes,
    name: AttributeName<'_>,
    value_bytes: usize,
    value: AttributeValueLocation<'_>,
) -> bool {
    let (here, value_page) = match value {
        AttributeValueLocation::Here(here) => (here, 0),
        AttributeValueLocation::Pages(first) => (&[][..], first),
    };
    let (used, length) = (used(page), entry_bytes(name.suffix.len(), here.len()));
    let start = PAGE_HEADER_BYTES + used;
    if used + length > PAGE_BODY_BYTES {
        return false;
    }
    let head = AttributeDisk {
        namespace: name.namespace.code(),
        name_bytes: u8::try_from(name.suffix.len()).expect("names are bounded"),
        reserved: U16::new(0),
        value_bytes: U32::new(u32::try_from(value_bytes).expect("values are bounded")),
        value_page: U64::new(value_page),
    };
    let entry = [head.as_bytes(), name.suffix, here].concat();
    page[start..start + entry.len()].copy_from_slice(&entry);
    set_used(page, used + length);
    let count = count(page) + 1;
    write_u32(page, COUNT_OFFSET, count);
    true
}

/// Removes the entry of `name`. Returns whether it was present.
pub fn remove(page: &mut PageBytes, name: AttributeName<'_>) -> bool {
    let Some((offset, end)) = find(page, name).map(|entry| (entry.offset, entry.end)) else {
        return false;
    };
    let page_end = PAGE_HEADER_BYTES + used(page);
    page.copy_within(end..page_end, offset);
    page[page_end - (end - offset)..page_end].fill(0);
    set_used(page, page_end - (end - offset) - PAGE_HEADER_BYTES);
    let count = count(page).saturating_sub(1);
    write_u32(page, COUNT_OFFSET, count);
    true
}

fn set_used(page: &mut PageBytes, used: usize) {
    write_u64(page, USED_OFFSET, u64::try_from(used).expect("usize has at most 64 bits"));
}

/// Turns an empty page into a value page of at most [`VALUE_PAGE_BYTES`].
pub fn put_value(page: &mut PageBytes, bytes: &[u8]) {
    write_u64(page, IS_VALUE_OFFSET, 1);
    write_u32(page, COUNT_OFFSET, u32::try_from(bytes.len()).expect("at most a page"));
    page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + bytes.len()].copy_from_slice(bytes);
}

/// Returns the contents of a value page; `None` if it is malformed.
#[must_use]
pub fn value(page: &PageBytes) -> Option<&[u8]> {
    let bytes = usize::try_from(count(page)).ok()?;
    page.get(PAGE_HEADER_BYTES..)?.get(..bytes).filter(|_| is_value_page(page))
}

/// Checks the entries (X1), the uniqueness of names (X2), and every field.
///
/// # Errors
///
/// The first malformed entry or field.
pub fn verify(page: &PageBytes) -> Result<(), AttributeDefect> {
    let bad = |offset, what| Err(AttributeDefect { offset, what });
    if is_value_page(page) {
        let is_sound = read_u64(page, IS_VALUE_OFFSET) == 1 && value(page).is_some();
        return if is_sound { Ok(()) } else { bad(COUNT_OFFSET, "a value page of no such length") };
    }
    let mut names = Vec::new();
    let mut end = PAGE_HEADER_BYTES;
    for entry in entries(page) {
        if names.contains(&entry.name) {
            return bad(entry.offset, "there twice");
        }
        names.push(entry.name);
        end = entry.end;
    }
    if read_u64(page, USED_OFFSET) != u64::try_from(end - PAGE_HEADER_BYTES).expect("in a page") {
        return bad(end, "entries do not fill the bytes in use");
    }
    if usize::try_from(count(page)) != Ok(names.len()) {
        return bad(COUNT_OFFSET, "another count of entries");
    }
    if page[end..].iter().any(|&byte| byte != 0) {
        return bad(end, "bytes behind the last entry");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_BYTES;

    fn user(suffix: &[u8]) -> AttributeName<'_> {
        AttributeName { namespace: Namespace::User, suffix }
    }

    #[test]
    fn inline_attributes_come_and_go_and_fit_exactly() {
        let label = AttributeName { namespace: Namespace::Security, suffix: b"selinux" };
        let one = InlineAttributes::NONE.with(label, b"unconfined_u:object_r:user_home_t:s0");
        let one = one.expect("46 bytes");
        let full = one.with(user(b"abc"), b"1234").expect("10 bytes more");
        assert_eq!(full.with(user(b"abc"), b"12345"), None);
        assert!(full.is_sound());
        assert_eq!(full.get(user(b"abc")), Some(&b"1234"[..]));
        assert_eq!(full.with(user(b"abc"), b"12"), one.with(user(b"abc"), b"12"));
        assert_eq!(full.without(user(b"abc")), one);
        assert_eq!(full.without(label).without(user(b"abc")), InlineAttributes::NONE);
    }

    #[test]
    fn inline_bytes_that_cannot_be_so_are_not_sound() {
        let sound = InlineAttributes::NONE.with(user(b"a"), b"v").expect("it fits");
        for (at, byte) in [(0, 9), (1, 0), (1, 99), (2, 99), (40, 1)] {
            let mut bad = sound;
            bad.0[at] = byte;
            assert!(!bad.is_sound(), "byte {at}");
        }
        let mut twice = sound;
        twice.0.copy_within(0..5, 5);
        assert!(!twice.is_sound());
    }

    #[test]
    fn entries_come_and_go_and_the_page_verifies() {
        let mut page = [0; PAGE_BYTES];
        let value = vec![7; ENTRY_VALUE_BYTES_MAX];
        let names: Vec<Vec<u8>> = (0..6_u8).map(|n| vec![b'a' + n; 20]).collect();
        let fits: Vec<bool> = names
            .iter()
            .map(|name| {
                insert(&mut page, user(name), value.len(), AttributeValueLocation::Here(&value))
            })
            .collect();
        assert_eq!(fits, [true, true, true, false, false, false]);
        assert!(insert(&mut page, user(b"long"), 65_536, AttributeValueLocation::Pages(3)));
        assert_eq!(verify(&page), Ok(()));
        let long = find(&page, user(b"long")).expect("it was added");
        assert_eq!(long.value_pages(), 3..20);
        assert!(remove(&mut page, user(&names[1])));
        assert!(!remove(&mut page, user(&names[1])));
        assert_eq!(verify(&page), Ok(()));
        assert_eq!(entries(&page).count(), 3);
        assert!(insert(
            &mut page,
            user(&names[3]),
            value.len(),
            AttributeValueLocation::Here(&value)
        ));
        for name in [&names[0][..], &names[2], &names[3], b"long"] {
            assert!(remove(&mut page, user(name)));
        }
        assert!(page.iter().all(|&byte| byte == 0), "nothing is left behind");
    }

    #[test]
    fn a_damaged_entry_page_is_told() {
        let mut page = [0; PAGE_BYTES];
        assert!(insert(&mut page, user(b"a"), 1, AttributeValueLocation::Here(b"v")));
        for (at, byte) in [(128, 0), (129, 0), (132, 200), (136, 1), (2000, 1), (84, 2), (96, 32)] {
            let mut bad = page;
            bad[at] = byte;
            assert!(verify(&bad).is_err(), "byte {at}");
        }
        let mut value_page = [0; PAGE_BYTES];
        put_value(&mut value_page, &[1; VALUE_PAGE_BYTES]);
        assert_eq!((verify(&value_page), entries(&value_page).count()), (Ok(()), 0));
        write_u32(&mut value_page, COUNT_OFFSET, 4000);
        assert!(verify(&value_page).is_err());
    }
}
