//! Filesets and snapshots by random steps: does each answer and hold what whole trees say?

use std::panic::{AssertUnwindSafe, catch_unwind};

use testkit::ops::{Profile, drop_runs};
use whole_system::nodes::{Event, history, run, to_text};

use super::setting;

/// Events of one history, and histories of a run in CI.
const EVENTS: u64 = 400;
const SEEDS: u64 = 12;
/// Shorter histories that are tried.
const TRIES_MAX: usize = 400;

fn caught(seed: u64, events: &[Event]) -> Result<(), (usize, String)> {
    catch_unwind(AssertUnwindSafe(|| run(seed, events))).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        Err((events.len(), text.unwrap_or_else(|| "a panic, see above".to_owned())))
    })
}

/// Small content, so that no pool is full, and users who are checked.
fn profile() -> Profile {
    let sizes = Profile::crash();
    Profile {
        near_bytes_max: sizes.near_bytes_max,
        io_bytes_max: sizes.io_bytes_max,
        projects: vec![0, 5, 6],
        ..Profile::everyday()
    }
}

/// Goal: snapshots never change, clones and restores begin with what a snapshot holds, and nobody
/// sees what is done to another, whatever was done before, over closes and power cuts. Method: see
/// [`whole_system::nodes`].
#[test]
fn filesets_and_snapshots_answer_as_whole_trees_do() {
    let count = usize::try_from(setting("HOLDFAST_STEPS").unwrap_or(EVENTS)).expect("it fits");
    let first = setting("HOLDFAST_SEED").unwrap_or(8000);
    for seed in first..first + SEEDS * setting("HOLDFAST_SOAK").unwrap_or(1) {
        let events = history(seed, &profile(), count);
        let Err((done, text)) = caught(seed, &events) else { continue };
        eprintln!("seed {seed}, after {done} events: {text}\nmaking it short...");
        let mut kept = events[..done.min(events.len())].to_vec();
        let mut tries_left = TRIES_MAX;
        drop_runs(&mut kept, &mut |shorter: &[Event]| {
            tries_left = tries_left.saturating_sub(1);
            tries_left > 0 && caught(seed, shorter).is_err()
        });
        let text = caught(seed, &kept).err().map_or(text, |(_, text)| text);
        panic!("seed {seed}: {text}\nhistory:\n{}", to_text(&kept));
    }
}
