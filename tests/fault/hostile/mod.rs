//! Images that lie under good checksums: everything ends with a result or an error, never with a
//! panic, a hang or the end of memory.
//!
//! Each seed takes a pool (closed, or crashed with a log; fragments of 4 and of 1 KiB), writes
//! absurd numbers into fields of superblocks, pages, anodes, summaries or log records, makes the
//! checksums good again, and then opens, walks, reads, writes, renames, cuts, cleans, closes,
//! checks and opens again. A failure prints its seed; `HOLDFAST_HOSTILE=first..end` runs those
//! seeds.
//!
//! The pools are made once and shared: an image is a copy of pages that differ, so its cost is that
//! of using it. They are small for the same reason, and have one of everything that the format
//! knows.

mod bases;
mod lies;
mod using;

use std::panic::{AssertUnwindSafe, catch_unwind};

use storage::prng::Prng;
use whole_system::soak::{self, Soak, memory_bytes_peak};

use super::content;

/// Seeds of a run without the variable.
const SEEDS: u64 = 500;
/// Bytes of memory that no run of this program may pass.
const MEMORY_BYTES_MAX: u64 = 2 << 30;

fn index_below(prng: &mut Prng, end: usize) -> usize {
    usize::try_from(prng.below(u64::try_from(end).expect("small"))).expect("small")
}

#[test]
fn lies_under_good_checksums_end_in_errors() {
    let bases = bases::all();
    let (mut failed, mut opened, seeds) =
        (Vec::new(), 0_u64, soak::seeds("HOLDFAST_HOSTILE", SEEDS));
    let count = seeds.end - seeds.start;
    let mut soak = Soak::of("images");
    for seed in seeds {
        soak.begin(seed);
        let mut prng = Prng::from_seed(seed);
        let base = &bases[index_below(&mut prng, bases.len())];
        let image = base.lying(&mut prng);
        match catch_unwind(AssertUnwindSafe(|| using::examine(image, &mut prng))) {
            Ok(was_open) => opened += u64::from(was_open),
            Err(_) => {
                println!("seed {seed} panics");
                failed.push(seed);
            }
        }
        soak.add(1, || format!("{opened} opened, {} failed", failed.len()));
    }
    println!("{}", soak.line(&format!("{opened} opened, {} failed", failed.len())));
    assert!(failed.is_empty(), "{} seeds fail: {failed:?}", failed.len());
    assert!(
        count < 100 || opened > count / 4,
        "most lies are refused at the open: {opened} of {count}"
    );
    assert!(memory_bytes_peak() < MEMORY_BYTES_MAX, "{} bytes of memory", memory_bytes_peak());
}
