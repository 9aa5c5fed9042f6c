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

use runtime::prng::Prng;
use whole_system::soak;

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
    soak::examine_images("HOLDFAST_HOSTILE", SEEDS, MEMORY_BYTES_MAX, |seed| {
        let mut prng = Prng::from_seed(seed);
        let base = &bases[index_below(&mut prng, bases.len())];
        let image = base.lying(&mut prng);
        move || using::examine(image, &mut prng)
    });
}
