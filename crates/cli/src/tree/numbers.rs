//! Numbers of a tar's head, as GNU tar reads them.
//!
//! A field is octal digits between blanks and zeros, or the number itself, most significant byte
//! first, behind a bit that says so (base-256). Some writers leave one empty.

/// A field of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// It says this.
    Number(i128),
    /// It says nothing.
    Blank,
    /// It makes no sense.
    Strange,
}

impl Field {
    /// Reads a field.
    pub(crate) fn of(bytes: &[u8]) -> Field {
        match bytes.first() {
            Some(&first @ (0x80 | 0xff)) => base_256(first == 0xff, bytes.get(1..).unwrap_or(&[])),
            // Other bits of the first byte count as well.
            Some(&first) if first & 0x80 != 0 => {
                let mut whole = vec![first & 0x3f];
                whole.extend(bytes.iter().skip(1));
                base_256(first & 0x40 != 0, &whole)
            }
            _ => octal(bytes),
        }
    }

    /// Returns what it says; nothing is 0. `None`: it makes no sense.
    pub(crate) fn or_zero(self) -> Option<i128> {
        match self {
            Field::Number(number) => Some(number),
            Field::Blank => Some(0),
            Field::Strange => None,
        }
    }
}

fn base_256(is_negative: bool, bytes: &[u8]) -> Field {
    let mut number: i128 = if is_negative { -1 } else { 0 };
    for &byte in bytes {
        // 12 bytes at most, of which 16 fit.
        number = number << 8 | i128::from(byte);
    }
    Field::Number(number)
}

fn octal(bytes: &[u8]) -> Field {
    let is_fill = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    let Some(start) = bytes.iter().position(|byte| !is_fill(byte)) else { return Field::Blank };
    let digits = bytes.get(start..).unwrap_or_default();
    let length = digits.iter().take_while(|byte| (b'0'..=b'7').contains(byte)).count();
    let (digits, rest) = digits.split_at(length);
    if digits.is_empty() || !rest.first().is_none_or(is_fill) {
        return Field::Strange;
    }
    Field::Number(digits.iter().fold(0, |number, digit| number << 3 | i128::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_gnu_tar_reads_them() {
        for (bytes, field) in [
            (&b"0000644\0"[..], Field::Number(0o644)),
            (b"    644 ", Field::Number(0o644)),
            (b"00000644", Field::Number(0o644)),
            (b"\0\0\0\0\0\0\0\0", Field::Blank),
            (b"        ", Field::Blank),
            (b"\x80\0\0\0\0\0\x01\x02", Field::Number(0x102)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Field::Number(-2)),
            (b"-1\0\0\0\0\0\0", Field::Strange),
            (b"0888\0\0\0\0", Field::Strange),
            (b"12x\0\0\0\0\0", Field::Strange),
        ] {
            assert_eq!(Field::of(bytes), field, "{bytes:?}");
        }
    }
}
