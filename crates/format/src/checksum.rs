//! CRC-32C (RFC 3720, appendix B.4), the checksum of everything on disk.

/// Returns the CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the CRC-32C of the concatenation of `parts`.
#[must_use]
pub fn crc32c_of<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.into_iter().for_each(|part| digest.update(part));
    let sum = digest.finalize().to_le_bytes();
    u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: agreement with the standard on every code path. Method: the examples of RFC 3720, B.4,
    /// and the polynomial bit by bit.
    #[test]
    fn sums_are_those_of_the_standard() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&rising), 0x46dd_794e);
        assert_eq!(crc32c(&falling), 0x113f_db5c);
        let bytes: Vec<u8> = (0..3000_u32).map(|at| ((at * at) >> 3).to_le_bytes()[0]).collect();
        for length in (0..700).chain([1023, 1024, 1025, 2047, 2999]) {
            let part = &bytes[bytes.len() - length..];
            assert_eq!(crc32c(part), bit_by_bit(part), "{length} bytes");
            let (front, rest) = part.split_at(length / 3);
            assert_eq!(crc32c_of([front, &[], rest]), bit_by_bit(part), "{length} bytes, parted");
        }
    }

    fn bit_by_bit(bytes: &[u8]) -> u32 {
        let mut sum = !0_u32;
        for byte in bytes {
            sum ^= u32::from(*byte);
            for _ in 0..8 {
                sum = (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
            }
        }
        !sum
    }
}
