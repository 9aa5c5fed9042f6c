//! Measures how fast parity is computed, on one core.
//!
//! ```text
//! cargo run --release -p storage --example parity
//! ```

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::hint::black_box;
use std::time::Instant;

use storage::parity::xor_into;

const UNIT_BYTES: usize = 16 << 10;
const BYTES: usize = 4 << 30;

fn main() {
    for members in [3, 5, 9, 17] {
        let units: Vec<Vec<u8>> =
            (1..members).map(|unit| vec![u8::try_from(unit).expect("few"); UNIT_BYTES]).collect();
        let sources: Vec<&[u8]> = units.iter().map(Vec::as_slice).collect();
        let mut parity = vec![0; UNIT_BYTES];
        let rounds = BYTES / (UNIT_BYTES * (members - 1));
        let start = Instant::now();
        for _ in 0..rounds {
            xor_into(black_box(&mut parity), black_box(&sources));
        }
        let data = f64::from(u32::try_from(rounds * (members - 1)).expect("few"));
        let gigabytes = data * f64::from(u32::try_from(UNIT_BYTES).expect("small")) / 1e9;
        let rate = gigabytes / start.elapsed().as_secs_f64();
        println!("raid5 of {members}: {rate:.1} GB/s of data");
    }
}
