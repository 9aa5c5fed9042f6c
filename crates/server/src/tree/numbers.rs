//! Numeric fields of tar headers, parsed as GNU tar does: octal digits among blanks and zeros, or a
//! big-endian binary number after a marker bit (base-256). Some writers leave a field empty.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TarNumber {
    Number(i128),
    Blank,
    Strange,
}

impl TarNumber {
    pub(crate) fn of(bytes: &[u8]) -> TarNumber {
        match bytes.first() {
            Some(&first @ (0x80 | 0xff)) => base_256(first == 0xff, bytes.get(1..).unwrap_or(&[])),
            // The other bits of the first byte belong to the number.
            Some(&first) if first & 0x80 != 0 => {
                let mut whole = vec![first & 0x3f];
                whole.extend(bytes.iter().skip(1));
                base_256(first & 0x40 != 0, &whole)
            }
            _ => octal(bytes),
        }
    }

    pub(crate) fn or_zero(self) -> Option<i128> {
        match self {
            TarNumber::Number(number) => Some(number),
            TarNumber::Blank => Some(0),
            TarNumber::Strange => None,
        }
    }
}

fn base_256(is_negative: bool, bytes: &[u8]) -> TarNumber {
    let mut number: i128 = if is_negative { -1 } else { 0 };
    for &byte in bytes {
        // No overflow: a field has at most 12 bytes, and `i128` has 16.
        number = number << 8 | i128::from(byte);
    }
    TarNumber::Number(number)
}

fn octal(bytes: &[u8]) -> TarNumber {
    let is_fill = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    let Some(start) = bytes.iter().position(|byte| !is_fill(byte)) else { return TarNumber::Blank };
    let digits = bytes.get(start..).unwrap_or_default();
    let length = digits.iter().take_while(|byte| (b'0'..=b'7').contains(byte)).count();
    let (digits, rest) = digits.split_at(length);
    if digits.is_empty() || !rest.first().is_none_or(is_fill) {
        return TarNumber::Strange;
    }
    TarNumber::Number(digits.iter().fold(0, |number, digit| number << 3 | i128::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_gnu_tar_reads_them() {
        for (bytes, field) in [
            (&b"0000644\0"[..], TarNumber::Number(0o644)),
            (b"    644 ", TarNumber::Number(0o644)),
            (b"00000644", TarNumber::Number(0o644)),
            (b"\0\0\0\0\0\0\0\0", TarNumber::Blank),
            (b"        ", TarNumber::Blank),
            (b"\x80\0\0\0\0\0\x01\x02", TarNumber::Number(0x102)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", TarNumber::Number(-2)),
            (b"-1\0\0\0\0\0\0", TarNumber::Strange),
            (b"0888\0\0\0\0", TarNumber::Strange),
            (b"12x\0\0\0\0\0", TarNumber::Strange),
        ] {
            assert_eq!(TarNumber::of(bytes), field, "{bytes:?}");
        }
    }
}
