//! Random numbers, always passed in. A seed gives the same numbers for ever.

/// A small deterministic generator (SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom
/// Number Generators", 2014). Not for secrets.
#[derive(Clone, Debug)]
pub struct Prng {
    state: u64,
}

impl Prng {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub fn from_seed(seed: u64) -> Prng {
        Prng { state: seed }
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of 128 bits")
    }

    /// Returns a number below a random power of two, with an exponent below `powers` (at most 64):
    /// small numbers are as frequent as large ones.
    pub fn below_power(&mut self, powers: u64) -> u64 {
        let power = self.below(powers);
        self.below(1 << power)
    }

    /// Returns `true` once in `count` times on average.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns an independent generator.
    pub fn fork(&mut self) -> Prng {
        Prng::from_seed(self.next_u64())
    }
}
