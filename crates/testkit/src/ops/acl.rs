//! Access lists in steps: `u:7,u7:6,g:5,g100:4,m:7,o:0`.

use std::fmt;
use std::str::FromStr;

/// Letters of entries without and with a number, and the kernel's tags for them.
const TAGS: [(char, Option<u16>, Option<u16>); 4] = [
    ('u', Some(0x01), Some(0x02)),
    ('g', Some(0x04), Some(0x08)),
    ('m', Some(0x10), None),
    ('o', Some(0x20), None),
];

/// One entry, that may be out of place in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// `u`, `g`, `m` or `o`.
    pub who: char,
    /// Number of a user or group; `None`: the owner, the owning group, the mask, the others.
    pub id: Option<u32>,
    /// Read 4, write 2, execute 1.
    pub permissions: u16,
}

/// A list of entries as a step has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclText(pub Vec<AclEntry>);

impl AclText {
    /// Returns the value that setxattr(2) takes.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for entry in &self.0 {
            let known = TAGS.iter().find(|(who, ..)| *who == entry.who);
            let tag = known.and_then(|(_, own, named)| entry.id.map_or(*own, |_| *named));
            value.extend(tag.unwrap_or(0x40).to_le_bytes());
            value.extend(entry.permissions.to_le_bytes());
            value.extend(entry.id.unwrap_or(u32::MAX).to_le_bytes());
        }
        value
    }
}

impl fmt::Display for AclText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let id = entry.id.map_or(String::new(), |id| id.to_string());
            write!(f, "{comma}{}{id}:{:o}", entry.who, entry.permissions)?;
        }
        if self.0.is_empty() { f.write_str("-") } else { Ok(()) }
    }
}

impl FromStr for AclText {
    type Err = ();

    fn from_str(text: &str) -> Result<AclText, ()> {
        if text == "-" {
            return Ok(AclText::default());
        }
        text.split(',').map(entry).collect::<Option<Vec<_>>>().map(AclText).ok_or(())
    }
}

fn entry(text: &str) -> Option<AclEntry> {
    let (who, permissions) = text.split_once(':')?;
    let mut letters = who.chars();
    let letter = letters.next().filter(|who| TAGS.iter().any(|(known, ..)| known == who))?;
    let id = match letters.as_str() {
        "" => None,
        number => Some(number.parse().ok()?),
    };
    let permissions = u16::from_str_radix(permissions, 8).ok()?;
    Some(AclEntry { who: letter, id, permissions })
}
