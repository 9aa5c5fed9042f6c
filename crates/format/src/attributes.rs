//! Extended attributes: a few short ones in the anode, the rest in pages of a container.
//!
//! # Layout
//!
//! ```text
//!   anode:       head | name | value | head | name | value | zeros               56 bytes
//!   entry page:  header (count, bytes in use, next) | head | name | value | ... | zeros
//!   value page:  header (bytes of the value in it)  | bytes of one value        | zeros
//! ```
//!
//! Page 0 of a container is an entry page; it names the next by number, and so on to the last. A
//! value that is too long for an entry lies in value pages of its own, with numbers that follow
//! each other; the entry names the first.
//!
//! # Invariants
//!
//! - X1: Entries follow each other from the start of the body, in `used` bytes; behind them are
//!   zeros.
//! - X2: No attribute is there twice.
//! - X3: Each page of a container is an entry page of its chain, or a value page of one entry.

mod container;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use self::container::ContainerPages;
use crate::bytes::is_zero;
use crate::defect::{DefectCode, FoundDefect};
use crate::page::{AUX_OFFSET, COUNT_OFFSET, PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageBytes};
use crate::page::{read_u32, read_u64, write_u32, write_u64};

/// Bytes of an anode for attributes.
pub const INLINE_ATTRIBUTES_BYTES: usize = 56;
/// Bytes of an attribute in an anode, in front of its name.
pub const INLINE_ATTRIBUTE_HEAD_BYTES: usize = 3;
/// Bytes of an attribute in an entry page, in front of its name.
pub const ATTRIBUTE_HEAD_BYTES: usize = 16;
/// Entries begin at multiples of this many bytes.
const UNIT_BYTES: usize = 8;
/// Longest name, prefix included, in bytes (Linux: `XATTR_NAME_MAX`).
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;
/// Longest value, in bytes (Linux: `XATTR_SIZE_MAX`).
pub const ATTRIBUTE_VALUE_BYTES_MAX: usize = 65_536;
/// Most bytes of all names of a file, each with a NUL behind it (Linux: `XATTR_LIST_MAX`).
pub const ATTRIBUTE_LIST_BYTES_MAX: usize = 65_536;
/// Longest value that an entry holds itself.
pub const ENTRY_VALUE_BYTES_MAX: usize = 960;
/// Bytes of a value that a value page holds.
pub const VALUE_PAGE_BYTES: usize = PAGE_BODY_BYTES;
/// Most entry pages of a container: more names than a list may have do not fit in so many.
pub const ENTRY_PAGES_MAX: usize = 4096;

/// Offset in the header of an entry page of the bytes in use.
const USED_OFFSET: usize = AUX_OFFSET;
/// Offset in the header of an entry page of the number of the next; 0: none.
const NEXT_OFFSET: usize = AUX_OFFSET + 8;
/// Offset in the header of 1 in a value page, 0 in an entry page.
const IS_VALUE_OFFSET: usize = AUX_OFFSET + 16;

/// What the beginning of a name says: who may use the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Namespace {
    /// Of whoever may read and write the file.
    User = 1,
    /// Of the superuser.
    Trusted = 2,
    /// Of security modules.
    Security = 3,
    /// The access list. Its name is all prefix.
    AccessAcl = 4,
    /// The default access list of a directory. Its name is all prefix.
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

    /// Returns the namespace that `code` stands for.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Namespace> {
        Namespace::ALL.into_iter().find(|namespace| namespace.code() == code)
    }

    /// Returns the byte that stands for it.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns what names in it begin with.
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

    /// Whether it is an access list: then the prefix is the whole name.
    #[must_use]
    pub fn is_acl(self) -> bool {
        matches!(self, Namespace::AccessAcl | Namespace::DefaultAcl)
    }
}

/// The name of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttributeName<'n> {
    /// Where it belongs.
    pub namespace: Namespace,
    /// The name behind the prefix: empty of an access list, and of no other.
    pub suffix: &'n [u8],
}

impl AttributeName<'_> {
    /// Returns the name as programs know it.
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

/// Byte for byte. Format: `docs/FORMAT.md#inline-attribute`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct InlineAttributeDisk {
    /// A [`Namespace`]; 0: no more attributes.
    namespace: u8,
    /// Bytes of the name, prefix apart.
    name_bytes: u8,
    /// Bytes of the value.
    value_bytes: u8,
}

const _: () = assert!(size_of::<InlineAttributeDisk>() == INLINE_ATTRIBUTE_HEAD_BYTES);

/// Byte for byte. Format: `docs/FORMAT.md#attribute-entry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AttributeDisk {
    /// A [`Namespace`].
    namespace: u8,
    /// Bytes of the name, prefix apart.
    name_bytes: u8,
    /// Zero.
    reserved: U16,
    /// Bytes of the value.
    value_bytes: U32,
    /// First value page; 0: the value is behind the name.
    value_page: U64,
}

const _: () = assert!(size_of::<AttributeDisk>() == ATTRIBUTE_HEAD_BYTES);

/// Why a page of attributes is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: attribute at {offset}: {what}", self.code())]
pub struct AttributeDefect {
    /// Of the entry in the page, or of the header's field.
    pub offset: usize,
    /// What can't be so.
    pub what: &'static str,
}

impl FoundDefect for AttributeDefect {
    fn code(&self) -> DefectCode {
        DefectCode::XA001
    }
}

/// Attributes that lie in an anode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineAttributes(pub [u8; INLINE_ATTRIBUTES_BYTES]);

impl InlineAttributes {
    /// No attribute.
    pub const NONE: InlineAttributes = InlineAttributes([0; INLINE_ATTRIBUTES_BYTES]);

    /// Whether there is none: what most files pay is this comparison.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0[0] == 0
    }

    /// Steps over the attributes: names and values.
    pub fn iter(&self) -> impl Iterator<Item = (AttributeName<'_>, &[u8])> {
        let mut offset = 0;
        std::iter::from_fn(move || {
            let (name, value, end) = self.at(offset)?;
            offset = end;
            Some((name, value))
        })
    }

    /// Returns the attribute at `offset`, and where it ends.
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

    /// Returns these attributes with `name` set to `value`; `None` if that does not fit.
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

    /// Checks that attributes are within bounds, none twice, with zeros behind them.
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

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueAt<'page> {
    /// In the entry.
    Here(&'page [u8]),
    /// In value pages from this one on.
    Pages(u64),
}

/// An attribute of an entry page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'page> {
    /// Of the entry in the page.
    pub offset: usize,
    /// Its name.
    pub name: AttributeName<'page>,
    /// Bytes of its value.
    pub value_bytes: usize,
    /// Where its value is.
    pub value: ValueAt<'page>,
    end: usize,
}

impl Entry<'_> {
    /// Returns the numbers of its value pages.
    #[must_use]
    pub fn value_pages(&self) -> std::ops::Range<u64> {
        match self.value {
            ValueAt::Here(_) => 0..0,
            ValueAt::Pages(first) => first..first.saturating_add(value_pages(self.value_bytes)),
        }
    }
}

/// Returns how many value pages a value of `bytes` takes.
#[must_use]
pub fn value_pages(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(VALUE_PAGE_BYTES)).expect("usize has at most 64 bits")
}

fn used(page: &PageBytes) -> usize {
    let used = usize::try_from(read_u64(page, USED_OFFSET)).unwrap_or(usize::MAX);
    used.min(PAGE_BODY_BYTES)
}

/// Returns the number of entries, as the header says it.
#[must_use]
pub fn count(page: &PageBytes) -> u32 {
    read_u32(page, COUNT_OFFSET)
}

/// Returns the number of the next entry page; 0: this is the last.
#[must_use]
pub fn next(page: &PageBytes) -> u64 {
    read_u64(page, NEXT_OFFSET)
}

/// Sets the number of the next entry page.
pub fn set_next(page: &mut PageBytes, next: u64) {
    write_u64(page, NEXT_OFFSET, next);
}

/// Whether the page holds bytes of a value, not entries.
#[must_use]
pub fn is_value_page(page: &PageBytes) -> bool {
    read_u64(page, IS_VALUE_OFFSET) != 0
}

/// Steps over the entries; ends at one that can't be so.
pub fn entries(page: &PageBytes) -> impl Iterator<Item = Entry<'_>> {
    let mut offset = PAGE_HEADER_BYTES;
    let end = if is_value_page(page) { 0 } else { PAGE_HEADER_BYTES + used(page) };
    std::iter::from_fn(move || {
        let entry = entry_at(page, offset, end)?;
        offset = entry.end;
        Some(entry)
    })
}

fn entry_at(page: &PageBytes, offset: usize, page_end: usize) -> Option<Entry<'_>> {
    let body = page.get(offset..page_end)?;
    let (head, rest) = AttributeDisk::read_from_prefix(body).ok()?;
    let name_bytes = usize::from(head.name_bytes);
    let value_bytes = usize::try_from(head.value_bytes.get()).ok()?;
    let suffix = rest.get(..name_bytes)?;
    let name = AttributeName { namespace: Namespace::from_code(head.namespace)?, suffix };
    let first = head.value_page.get();
    let here = if first == 0 { value_bytes } else { 0 };
    let value = match first {
        0 => ValueAt::Here(rest.get(name_bytes..)?.get(..value_bytes)?),
        _ => ValueAt::Pages(first),
    };
    let is_short = value_bytes <= ENTRY_VALUE_BYTES_MAX;
    let end = offset + entry_bytes(name_bytes, here);
    let is_sound = name.is_sound()
        && value_bytes <= ATTRIBUTE_VALUE_BYTES_MAX
        && is_short == (first == 0)
        && end <= page_end;
    is_sound.then_some(Entry { offset, name, value_bytes, value, end })
}

/// Returns the bytes of an entry, padding included.
fn entry_bytes(name_bytes: usize, value_bytes: usize) -> usize {
    (ATTRIBUTE_HEAD_BYTES + name_bytes + value_bytes).next_multiple_of(UNIT_BYTES)
}

/// Returns the entry of `name`.
#[must_use]
pub fn find<'page>(page: &'page PageBytes, name: AttributeName<'_>) -> Option<Entry<'page>> {
    entries(page).find(|entry| entry.name == name)
}

/// Adds an entry whose name is not there. Returns whether it fits.
#[must_use]
pub fn insert(
    page: &mut PageBytes,
    name: AttributeName<'_>,
    value_bytes: usize,
    value: ValueAt<'_>,
) -> bool {
    let (here, value_page) = match value {
        ValueAt::Here(here) => (here, 0),
        ValueAt::Pages(first) => (&[][..], first),
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

/// Takes out the entry of `name`. Returns whether it was there.
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

/// Makes a new page a value page that holds `bytes`: at most [`VALUE_PAGE_BYTES`].
pub fn put_value(page: &mut PageBytes, bytes: &[u8]) {
    write_u64(page, IS_VALUE_OFFSET, 1);
    write_u32(page, COUNT_OFFSET, u32::try_from(bytes.len()).expect("at most a page"));
    page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + bytes.len()].copy_from_slice(bytes);
}

/// Returns the bytes of a value page; `None` if it is none, or can't be so.
#[must_use]
pub fn value(page: &PageBytes) -> Option<&[u8]> {
    let bytes = usize::try_from(count(page)).ok()?;
    page.get(PAGE_HEADER_BYTES..)?.get(..bytes).filter(|_| is_value_page(page))
}

/// Checks X1, X2 and every field of one page.
///
/// # Errors
///
/// The first entry or field that can't be so.
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
            .map(|name| insert(&mut page, user(name), value.len(), ValueAt::Here(&value)))
            .collect();
        assert_eq!(fits, [true, true, true, false, false, false]);
        assert!(insert(&mut page, user(b"long"), 65_536, ValueAt::Pages(3)));
        assert_eq!(verify(&page), Ok(()));
        let long = find(&page, user(b"long")).expect("it was added");
        assert_eq!(long.value_pages(), 3..20);
        assert!(remove(&mut page, user(&names[1])));
        assert!(!remove(&mut page, user(&names[1])));
        assert_eq!(verify(&page), Ok(()));
        assert_eq!(entries(&page).count(), 3);
        assert!(insert(&mut page, user(&names[3]), value.len(), ValueAt::Here(&value)));
        for name in [&names[0][..], &names[2], &names[3], b"long"] {
            assert!(remove(&mut page, user(name)));
        }
        assert!(page.iter().all(|&byte| byte == 0), "nothing is left behind");
    }

    #[test]
    fn a_damaged_entry_page_is_told() {
        let mut page = [0; PAGE_BYTES];
        assert!(insert(&mut page, user(b"a"), 1, ValueAt::Here(b"v")));
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
