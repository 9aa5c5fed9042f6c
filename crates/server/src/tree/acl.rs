//! POSIX access lists: the text form in tars, the binary form of `linux/posix_acl_xattr.h`, and the
//! mode that stands for a list where lists are not supported.

use std::io::BufRead;

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;
/// Most entries of a list, so that it fits in an attribute.
const ENTRIES_MAX: usize = 8000;

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

pub(crate) struct ParsedAcl {
    /// The list as an attribute. `None` if the mode expresses the whole list.
    pub(crate) list: Option<Vec<u8>>,
    /// The list as an attribute in any case, for a default list: no mode could stand for it.
    pub(crate) whole: Vec<u8>,
    /// Permission bits of a file with this list, 9 bits.
    pub(crate) bits: u16,
}

/// Parses a list in text form, such as `user::rw-` or `user:ann:r--:1000`, with entries separated
/// by commas or newlines. `None` if the list is malformed or names an unknown account.
pub(crate) fn of_words(text: &[u8]) -> Option<ParsedAcl> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']) {
        // Drops the effective rights, which getfacl(1) writes as a comment.
        let entry = entry.split('#').next().unwrap_or_default().trim();
        if !entry.is_empty() {
            entries.push(entry_of(entry)?);
        }
    }
    entries.sort_unstable();
    let one = |tag| {
        let mut found = entries.iter().filter(|it| it.0 == tag);
        found.next().filter(|_| found.next().is_none()).map(|it| it.2)
    };
    let (user, group, other) = (one(USER_OBJ)?, one(GROUP_OBJ)?, one(OTHER)?);
    let is_named = entries.iter().any(|it| it.0 == USER || it.0 == GROUP);
    let has_mask = entries.iter().any(|it| it.0 == MASK);
    if entries.len() > ENTRIES_MAX {
        return None;
    }
    let mut class = group;
    if is_named && !has_mask {
        // A missing mask becomes one that hides no right, as by acl_from_text(3) and
        // acl_calc_mask(3).
        let given = entries.iter().filter(|it| ![USER_OBJ, OTHER].contains(&it.0));
        class = given.fold(0, |sum, it| sum | it.2);
        entries.push((MASK, NO_ID, class));
        entries.sort_unstable();
    } else if has_mask {
        class = one(MASK)?;
    }
    let bits = user << 6 | class << 3 | other;
    let whole = encoded(&entries);
    let list = (is_named || has_mask).then(|| whole.clone());
    Some(ParsedAcl { list, whole, bits })
}

fn encoded(entries: &[(u16, u32, u16)]) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn entry_of(entry: &str) -> Option<(u16, u32, u16)> {
    let mut parts = entry.split(':').map(str::trim);
    let (tag, name) = (parts.next()?, parts.next()?);
    let permissions = permissions_of(parts.next()?)?;
    // star(1) appends the numeric id, in case the name is unknown on this machine.
    let number = parts.next().map(str::parse::<u32>).transpose().ok()?;
    let id = |accounts: &str| {
        let known = || name.parse().ok().or_else(|| id_in(accounts, name));
        number.or_else(known).filter(|id| *id != NO_ID)
    };
    let (tag, id) = match (tag, name.is_empty()) {
        ("user" | "u", true) => (USER_OBJ, NO_ID),
        ("user" | "u", false) => (USER, id("/etc/passwd")?),
        ("group" | "g", true) => (GROUP_OBJ, NO_ID),
        ("group" | "g", false) => (GROUP, id("/etc/group")?),
        ("mask" | "m", true) => (MASK, NO_ID),
        ("other" | "o", true) => (OTHER, NO_ID),
        _ => return None,
    };
    Some((tag, id, permissions))
}

fn permissions_of(text: &str) -> Option<u16> {
    let mut bits = 0;
    for letter in text.chars() {
        bits |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return None,
        };
    }
    Some(bits)
}

fn id_in(accounts: &str, name: &str) -> Option<u32> {
    let file = std::fs::File::open(accounts).ok()?;
    let lines = std::io::BufReader::new(file).lines().map_while(Result::ok);
    let of = |line: String| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        fields.nth(1).filter(|_| is_it).and_then(|id| id.parse().ok())
    };
    lines.into_iter().find_map(of)
}

/// Returns `mode` for a file whose `list` cannot be stored. The group bits become the rights of the
/// owning group alone, because with a list they are the mask of all named users and groups.
pub(crate) fn mode_without(list: &[u8], mode: u16) -> u16 {
    let entries = list.get(4..).unwrap_or_default().chunks_exact(ENTRY_BYTES);
    let of = |wanted: u16| {
        let mut found = entries.clone().filter(|it| it[..2] == wanted.to_le_bytes());
        found.next().map(|it| u16::from_le_bytes([it[2], it[3]]) & 7)
    };
    let group = of(GROUP_OBJ).unwrap_or(0) & of(MASK).unwrap_or(7);
    mode & !0o070 | mode & group << 3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each named account gets its rights, and no other account gains any. A malformed list
    /// is refused.
    #[test]
    fn a_list_in_words_is_the_list_of_the_kernel() {
        let words = of_words(b"user::rw-,user:1001:rw-,group::---,mask::rw-,other::---");
        let words = words.expect("it is a list");
        assert_eq!(words.bits, 0o660);
        let list = words.list.expect("one is named");
        let entry = |tag: u8, bits: u8, id: u32| {
            let mut bytes = vec![tag, 0, bits, 0];
            bytes.extend(id.to_le_bytes());
            bytes
        };
        let entries = [
            vec![2, 0, 0, 0],
            entry(1, 6, NO_ID),
            entry(2, 6, 1001),
            entry(4, 0, NO_ID),
            entry(16, 6, NO_ID),
            entry(32, 0, NO_ID),
        ];
        assert_eq!(list, entries.concat());
        assert_eq!(mode_without(&list, 0o660), 0o600);
        let star = of_words(
            b"user::rwx\nuser:nobody-knows:r-x:77 #effective:r--\ngroup::r-x\n\
                              mask::r--\nother::---\n",
        );
        assert_eq!(star.expect("it has a number").bits, 0o740);
        let masked = of_words(b"u::rw-,g:0:r--,g::---,o::---").expect("short words");
        assert_eq!(masked.bits, 0o640);
        let plain = of_words(b"user::rw-,group::r--,other::---").expect("it is a list");
        assert_eq!((plain.list, plain.bits), (None, 0o640));
        for wrong in [
            &b"user::rw-"[..],
            b"user::rw-,user:no-such-account:rw-,group::---,other::---",
            b"\xff",
        ] {
            assert!(of_words(wrong).is_none(), "{wrong:?}");
        }
    }
}
