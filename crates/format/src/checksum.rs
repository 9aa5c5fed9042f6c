//! Checksums: CRC-32C (Castagnoli; RFC 3720, appendix B.4) of everything on disk.

/// Returns the CRC-32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}
