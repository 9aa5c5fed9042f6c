//! From a history that fails to a short one that still does.
//!
//! Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input",
//! 2002): leave out runs of steps, halved in length again and again, as long as what is left
//! fails; then make the numbers of the steps that remain small.

use super::{Op, Step};

/// Most histories that are tried.
pub const SHRINK_TRIES_MAX: usize = 5_000;

/// Returns a short history for which `fails` says `true`, as it must for `history`.
///
/// # Panics
///
/// Where `history` itself does not fail: then the failure is not a function of the history.
pub fn shrink(history: &[Step], mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    assert!(fails(history), "the history fails when it is repeated");
    let mut kept = history.to_vec();
    let mut tries_left = SHRINK_TRIES_MAX;
    let mut attempt = |candidate: &[Step]| {
        tries_left = tries_left.saturating_sub(1);
        tries_left > 0 && fails(candidate)
    };
    loop {
        drop_runs(&mut kept, &mut attempt);
        // The superuser may do all of it anywhere.
        let by_superuser: Vec<Step> = kept.iter().map(|step| Step::root(step.op.clone())).collect();
        if attempt(&by_superuser) {
            kept = by_superuser;
        }
        if !cut_detours(&mut kept, &mut attempt) {
            break;
        }
    }
    for index in 0..kept.len() {
        while let Some(simpler) = simpler(&kept[index]).into_iter().find(|simpler| {
            let mut candidate = kept.clone();
            candidate[index] = simpler.clone();
            attempt(&candidate)
        }) {
            kept[index] = simpler;
        }
    }
    kept
}

/// Leaves out runs of steps, the longest first, as long as `attempt` says that what is left fails.
pub fn drop_runs<T: Clone>(kept: &mut Vec<T>, attempt: &mut impl FnMut(&[T]) -> bool) {
    let mut run = kept.len().div_ceil(2);
    while run > 0 {
        let before = kept.len();
        let mut at = 0;
        while at < kept.len() {
            let mut candidate = kept.clone();
            candidate.drain(at..(at + run).min(kept.len()));
            if attempt(&candidate) {
                *kept = candidate;
            } else {
                at += run;
            }
        }
        // At single steps go on as long as that gains something.
        run = if run == 1 && kept.len() < before { 1 } else { run / 2 };
    }
}

/// Leaves out a link, a rename or a directory, and takes the straight route from there on.
/// Returns whether one could be left out.
fn cut_detours(kept: &mut Vec<Step>, attempt: &mut impl FnMut(&[Step]) -> bool) -> bool {
    for index in 0..kept.len() {
        let Some((earlier, later)) = kept[index].op.as_detour() else { continue };
        let mut candidate = kept.clone();
        candidate.remove(index);
        for route in candidate[index..].iter_mut().flat_map(|step| step.op.routes_mut()) {
            if let Some(rest) = route.0.strip_prefix(later.0.as_slice()) {
                route.0 = [earlier.0.as_slice(), rest].concat();
            }
        }
        if attempt(&candidate) {
            *kept = candidate;
            return true;
        }
    }
    false
}

/// Steps with smaller numbers than `step`, the simplest first.
fn simpler(step: &Step) -> Vec<Step> {
    let mut simpler = Vec::new();
    let mut add = |op| simpler.push(Step { uid: step.uid, op });
    if let Op::Write { file, offset, length, fill } = &step.op {
        let (offset, length) = (*offset, *length);
        for (offset, length) in
            [(0, length), (offset / 2, length), (offset, 1), (offset, length / 2)]
        {
            add(Op::Write { file: file.clone(), offset, length, fill: *fill });
        }
    } else if let Op::Read { file, offset, length } = &step.op {
        for length in [length / 2, length.saturating_sub(1)] {
            add(Op::Read { file: file.clone(), offset: *offset, length });
        }
    } else if let Op::Truncate { file, size_bytes } = &step.op {
        for size_bytes in [0, size_bytes / 2] {
            add(Op::Truncate { file: file.clone(), size_bytes });
        }
    }
    if let Op::SetXattr { file, name, length, fill, mode } = &step.op {
        for length in [0, length / 2] {
            let (file, name) = (file.clone(), name.clone());
            simpler.push(Step {
                uid: step.uid,
                op: Op::SetXattr { file, name, length, fill: *fill, mode: *mode },
            });
        }
    }
    if step.uid != 0 {
        simpler.insert(0, Step::root(step.op.clone()));
    }
    simpler.retain(|candidate| candidate != step);
    simpler
}
