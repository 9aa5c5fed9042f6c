//! Keyed hashes: SipHash (Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012).
//!
//! SipHash-1-3 is the fast one, for names of a directory (an attacker can't choose colliding ones)
//! and summary seals. SipHash-2-4 is the strong one, for NFS handles and checks of received
//! streams.

/// Returns the 64-bit SipHash-1-3 of `bytes` under `key`.
#[must_use]
pub fn siphash13(key: [u64; 2], bytes: &[u8]) -> u64 {
    siphash::<1, 3>(key, bytes)
}

/// Returns the 64-bit SipHash-2-4 of `bytes` under `key`.
#[must_use]
pub fn siphash24(key: [u64; 2], bytes: &[u8]) -> u64 {
    siphash::<2, 4>(key, bytes)
}

fn siphash<const PER_WORD: usize, const AT_END: usize>(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        compress::<PER_WORD>(&mut state, u64::from_le_bytes(*word));
    }
    let mut last = [0_u8; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    last[7] = bytes.len().to_le_bytes()[0];
    compress::<PER_WORD>(&mut state, u64::from_le_bytes(last));
    state[2] ^= 0xff;
    for _ in 0..AT_END {
        round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn compress<const ROUNDS: usize>(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    for _ in 0..ROUNDS {
        round(state);
    }
    state[0] ^= word;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::siphash13;

    /// The standard library's hasher is SipHash-1-3 under a zero key.
    #[test]
    fn agrees_with_the_hasher_of_the_standard_library() {
        use std::hash::Hasher;
        let bytes: Vec<u8> = (0..70).collect();
        for length in 0..bytes.len() {
            let mut hasher = std::hash::DefaultHasher::new();
            hasher.write(&bytes[..length]);
            assert_eq!(siphash13([0, 0], &bytes[..length]), hasher.finish(), "{length} bytes");
        }
    }
}
