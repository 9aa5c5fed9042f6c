//! Parity: the exclusive or of the units of a row.
//!
//! The loops are plain and left to the compiler's vectorizer, for AVX-512, AVX2 and SSE2. The
//! version is selected at run time. `examples/parity.rs` measures them.
#![allow(unsafe_code)]

/// Bytes per iteration: four 128-bit registers, or one of 512 bits.
const STEP_BYTES: usize = 64;
/// Sources per pass. Each pass reads and writes the target, so fewer passes are faster.
const SOURCES_AT_ONCE: usize = 4;

/// Adds (exclusive or) `sources` to `target`.
///
/// # Panics
///
/// If a source and `target` differ in length.
pub fn xor_into(target: &mut [u8], sources: &[&[u8]]) {
    for source in sources {
        assert_eq!(source.len(), target.len(), "units of a row are of one length");
    }
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F, as detected above.
            return unsafe { xor_512(target, sources) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, as detected above.
            return unsafe { xor_256(target, sources) };
        }
    }
    xor_all(target, sources);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn xor_512(target: &mut [u8], sources: &[&[u8]]) {
    xor_all(target, sources);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn xor_256(target: &mut [u8], sources: &[&[u8]]) {
    xor_all(target, sources);
}

/// Inlined, so that each caller's target features apply.
#[inline(always)]
fn xor_all(target: &mut [u8], sources: &[&[u8]]) {
    let (groups, rest) = sources.as_chunks::<SOURCES_AT_ONCE>();
    for group in groups {
        xor_some(target, *group);
    }
    match *rest {
        [one] => xor_some(target, [one]),
        [one, two] => xor_some(target, [one, two]),
        [one, two, three] => xor_some(target, [one, two, three]),
        _ => {}
    }
}

#[inline(always)]
fn xor_some<const COUNT: usize>(target: &mut [u8], sources: [&[u8]; COUNT]) {
    let (whole, rest) = target.as_chunks_mut::<STEP_BYTES>();
    let pieces = sources.map(<[u8]>::as_chunks::<STEP_BYTES>);
    for (index, target) in whole.iter_mut().enumerate() {
        let of_all = pieces.map(|(pieces, _)| &pieces[index]);
        for at in 0..STEP_BYTES {
            target[at] ^= of_all.iter().fold(0, |sum, piece| sum ^ piece[at]);
        }
    }
    for (index, byte) in rest.iter_mut().enumerate() {
        *byte ^= pieces.iter().fold(0, |sum, (_, rest)| sum ^ rest[index]);
    }
}

#[cfg(test)]
mod tests {
    use runtime::prng::Prng;

    use super::*;

    fn random(prng: &mut Prng, length: usize) -> Vec<u8> {
        (0..length).map(|_| prng.next_u64().to_le_bytes()[0]).collect()
    }

    /// Goal: every instruction set yields the same parity.
    #[test]
    fn all_kinds_of_instructions_say_the_same() {
        let mut prng = Prng::from_seed(6);
        for count in 1..=9 {
            for length in [0, 1, 63, 64, 65, 300, 4096] {
                let units: Vec<Vec<u8>> = (0..count).map(|_| random(&mut prng, length)).collect();
                let sources: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
                let (mut chosen, mut plain) = (vec![3; length], vec![3; length]);
                xor_into(&mut chosen, &sources);
                xor_all(&mut plain, &sources);
                assert!(chosen == plain, "{count} of {length}");
            }
        }
    }

    /// Goal: parity is the exclusive or of all units, and restores any lost unit.
    #[test]
    fn any_unit_comes_back_from_the_others() {
        let mut prng = Prng::from_seed(5);
        for count in 1..=31 {
            for length in [0, 1, 63, 64, 65, 4096] {
                let units: Vec<Vec<u8>> = (0..count).map(|_| random(&mut prng, length)).collect();
                let mut parity = vec![0; length];
                let all: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
                xor_into(&mut parity, &all);
                for (at, byte) in parity.iter().enumerate() {
                    let plain = units.iter().fold(0, |sum, unit| sum ^ unit[at]);
                    assert_eq!(*byte, plain, "{count} of {length}");
                }
                for lost in 0..count {
                    let mut rebuilt = parity.clone();
                    let others: Vec<&[u8]> = (0..count)
                        .filter(|unit| *unit != lost)
                        .map(|unit| units[unit].as_slice())
                        .collect();
                    xor_into(&mut rebuilt, &others);
                    assert_eq!(rebuilt, units[lost], "{lost} of {count}");
                }
            }
        }
    }
}
