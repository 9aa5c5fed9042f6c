//! Access lists: from words, as tars have them, to the form of `linux/posix_acl_xattr.h`, and what
//! a mode is without one.

use std::io::BufRead;

/// First four bytes of a list: its version.
const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// Id of an entry that has none.
const NO_ID: u32 = u32::MAX;
/// Most entries of a list that is read: as many as an attribute holds.
const ENTRIES_MAX: usize = 8000;

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// A list that was read.
pub(crate) struct Words {
    /// As an attribute; `None`: a mode says all of it.
    pub(crate) list: Option<Vec<u8>>,
    /// As an attribute, whatever it says: of a default list also the bits count.
    pub(crate) whole: Vec<u8>,
    /// The permission bits of a file that has it: 9 bits.
    pub(crate) bits: u16,
}

/// Reads a list in words: `user::rw-`, `user:ann:r--:1000`, entries parted by commas or lines.
/// `None`: it makes no sense, or names an account that is not known here.
pub(crate) fn of_words(text: &[u8]) -> Option<Words> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']) {
        // getfacl(1) tells in a comment what the mask leaves.
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
        // As acl_from_text(3) with acl_calc_mask(3): nothing is masked.
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
    Some(Words { list, whole, bits })
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
    // star writes the number behind, for the name may be unknown elsewhere.
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

/// Returns the number of an account of this machine.
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

/// Returns `mode` for a file that cannot keep `list`: its group has what the list gives it, and
/// nothing of what others are named for.
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

    /// Goal: who is named keeps what he is given and nobody else gains; what is not understood is
    /// no list.
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
