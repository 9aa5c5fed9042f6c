//! Bitmap pages: fragments in use, busy fragments, anodes in use. Set bit: in use.

use crate::page::{PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageBytes};

/// Bits of a page.
pub const BITS_PER_PAGE: u32 = 31_744;

const _: () = assert!(PAGE_BODY_BYTES * 8 == 31_744);

/// Returns the byte offset and mask of `bit`.
#[must_use]
pub fn position(bit: u32) -> (usize, u8) {
    let byte = usize::try_from(bit / 8).expect("a page is small");
    (PAGE_HEADER_BYTES + byte, 1 << (bit % 8))
}

/// Whether `bit` is set. Bits past the end count as set.
#[must_use]
pub fn is_set(bytes: &PageBytes, bit: u32) -> bool {
    let (byte, mask) = position(bit);
    bytes.get(byte).is_none_or(|byte| byte & mask != 0)
}

/// Sets or clears `bit`.
///
/// # Panics
///
/// If `bit` is past the end.
pub fn set(bytes: &mut [u8], bit: u32, is_set: bool) {
    let (byte, mask) = position(bit);
    if is_set {
        bytes[byte] |= mask;
    } else {
        bytes[byte] &= !mask;
    }
}

/// Returns the first clear bit at or after `from` and below `end`.
#[must_use]
pub fn first_clear(bytes: &PageBytes, from: u32, end: u32) -> Option<u32> {
    let mut bit = from;
    while bit < end.min(BITS_PER_PAGE) {
        let (byte, _) = position(bit);
        if bit.is_multiple_of(8) && bytes[byte] == 0xff {
            bit += 8;
            continue;
        }
        if !is_set(bytes, bit) {
            return Some(bit);
        }
        bit += 1;
    }
    None
}

/// Returns the number of set bits in `range`.
#[must_use]
pub fn count_set_in(bytes: &PageBytes, range: std::ops::Range<u32>) -> u32 {
    let mut count = 0;
    let mut bit = range.start;
    while bit < range.end {
        if bit.is_multiple_of(8) && bit + 8 <= range.end {
            count += bytes.get(position(bit).0).map_or(0, |byte| byte.count_ones());
            bit += 8;
        } else {
            count += u32::from(is_set(bytes, bit));
            bit += 1;
        }
    }
    count
}

/// Returns the number of set bits.
#[must_use]
pub fn count_set(bytes: &PageBytes) -> u32 {
    bytes[PAGE_HEADER_BYTES..].iter().map(|byte| byte.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_BYTES;

    #[test]
    fn first_clear_finds_what_is_clear() {
        let mut bytes = [0xff_u8; PAGE_BYTES];
        assert_eq!(first_clear(&bytes, 0, BITS_PER_PAGE), None);
        set(&mut bytes, 20_001, false);
        assert_eq!(first_clear(&bytes, 0, BITS_PER_PAGE), Some(20_001));
        assert_eq!(first_clear(&bytes, 20_002, BITS_PER_PAGE), None);
        assert_eq!(first_clear(&bytes, 0, 20_001), None);
        assert_eq!(count_set(&bytes), BITS_PER_PAGE - 1);
        assert_eq!(count_set_in(&bytes, 3..20_003), 19_999);
        assert_eq!(count_set_in(&bytes, 20_001..20_002), 0);
        assert!(is_set(&bytes, BITS_PER_PAGE));
    }
}
