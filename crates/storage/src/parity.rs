//! Parity: the exclusive or of the units of a row.
//!
//! Plain loops over fixed arrays, which the compiler turns into the widest instructions that the
//! target has. `examples/parity.rs` measures them.

/// Bytes that are taken at once: four registers of 128 bits, or one of 512.
const STEP_BYTES: usize = 64;
/// Sources that are taken at once: each pass reads and writes the target, so fewer passes.
const SOURCES_AT_ONCE: usize = 4;

/// Makes `target` the exclusive or of itself and `sources`, each as long as it.
///
/// # Panics
///
/// If a source has another length: a bug in the caller.
pub fn xor_into(target: &mut [u8], sources: &[&[u8]]) {
    for source in sources {
        assert_eq!(source.len(), target.len(), "units of a row are of one length");
    }
    let mut groups = sources.chunks_exact(SOURCES_AT_ONCE);
    for group in groups.by_ref() {
        if let [first, second, third, fourth] = group {
            xor_four(target, first, second, third, fourth);
        }
    }
    for source in groups.remainder() {
        xor_one(target, source);
    }
}

fn xor_one(target: &mut [u8], source: &[u8]) {
    let (whole, rest) = target.as_chunks_mut::<STEP_BYTES>();
    let (from, from_rest) = source.as_chunks::<STEP_BYTES>();
    for (target, source) in whole.iter_mut().zip(from) {
        for (byte, other) in target.iter_mut().zip(source) {
            *byte ^= other;
        }
    }
    for (byte, other) in rest.iter_mut().zip(from_rest) {
        *byte ^= other;
    }
}

fn xor_four(target: &mut [u8], first: &[u8], second: &[u8], third: &[u8], fourth: &[u8]) {
    let (whole, _) = target.as_chunks_mut::<STEP_BYTES>();
    let done = whole.len() * STEP_BYTES;
    let halves = first.as_chunks::<STEP_BYTES>().0.iter().zip(second.as_chunks::<STEP_BYTES>().0);
    let others = third.as_chunks::<STEP_BYTES>().0.iter().zip(fourth.as_chunks::<STEP_BYTES>().0);
    for (target, ((first, second), (third, fourth))) in whole.iter_mut().zip(halves.zip(others)) {
        for at in 0..STEP_BYTES {
            target[at] ^= first[at] ^ second[at] ^ third[at] ^ fourth[at];
        }
    }
    for source in [first, second, third, fourth] {
        xor_one(&mut target[done..], &source[done..]);
    }
}

#[cfg(test)]
mod tests {
    use runtime::prng::Prng;

    use super::*;

    fn random(prng: &mut Prng, length: usize) -> Vec<u8> {
        (0..length).map(|_| prng.next_u64().to_le_bytes()[0]).collect()
    }

    /// Goal: parity is the sum of all, byte for byte, and any unit is what is missing from the sum
    /// of the others.
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
