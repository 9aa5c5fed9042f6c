//! Fast scans of byte slices for zeros.

use crate::page::PAGE_BYTES;

const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
/// Step of the scan for trailing zeros.
const STLOG_DATA_BYTES: usize = 64;

/// Whether all of `bytes` are zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // Most inputs are not zero, and differ in the first byte.
    bytes.first().is_none_or(|&first| first == 0) && are_all_zero(bytes)
}

fn are_all_zero(bytes: &[u8]) -> bool {
    bytes.chunks(PAGE_BYTES).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

/// Returns the length of `bytes` without trailing zeros.
#[must_use]
pub fn length_without_zeros(bytes: &[u8]) -> usize {
    let behind = bytes.rchunks(STLOG_DATA_BYTES).take_while(|chunk| is_zero(chunk));
    let kept = bytes.len() - behind.map(<[u8]>::len).sum::<usize>();
    bytes[..kept].iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_that_is_not_zero_is_found_wherever_it_is() {
        for length in [0, 1, 63, 64, 65, 130, PAGE_BYTES, 2 * PAGE_BYTES + 1] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes), "{length} zeros");
            assert_eq!(length_without_zeros(&bytes), 0, "{length} zeros");
            for last in (0..length).step_by(61) {
                bytes.fill(0);
                bytes[last] = 1;
                assert!(!is_zero(&bytes), "a one at {last} of {length}");
                assert_eq!(length_without_zeros(&bytes), last + 1, "of {length}");
            }
        }
    }
}
