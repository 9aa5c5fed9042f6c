//! Exhaustive small scope: every workload of few operations, every power cut, every state that it
//! may leave.
//!
//! A workload of [`workload`] runs on the engine over a recording device, with the background work
//! and a close at its end. Each crash point of the recording gives images: of up to ten unflushed
//! writes every subset, beyond that all prefixes, each one lost, each one alone, pairs lost and
//! subsets by seed; each also torn. Each image is opened, judged ([`crate::crash`]) and checked,
//! and so is one that a second cut in its recovery leaves. The same bytes with the same history
//! are judged once, and the same bytes that recoveries leave are checked once.
//!
//! Or instead of the power each request and each need of space fails: see [`failure`].
//!
//! Workloads that the engine refuses an operation of are explored without it, and counted.

mod explore;
mod export;
mod failure;
mod run;
#[cfg(test)]
mod tests;
pub mod workload;

pub use export::export;

use std::collections::BTreeMap;

use runtime::prng::Prng;
use storage::device::sim::Strategy;

use self::explore::Explorer;
use self::workload::{
    Action, Workload, alphabet, alphabet_of_kinds, alphabet_with_snapshots, core_alphabet, count,
    workloads_of_one,
};

/// Most operations of a workload.
pub const BOUND_MAX: u32 = 3;

/// Which workloads of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All.
    All,
    /// So many, by chance.
    Sample(u64),
    /// Those whose number leaves `index` when it is divided by `count`: all parts together are the
    /// set.
    Part {
        /// Below `count`.
        index: u64,
        /// At least 1.
        count: u64,
    },
    /// The one of this number.
    Only(u64),
}

/// Which operations workloads are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// All 76 of bounded black-box crash testing.
    All,
    /// 19: each kind once.
    Kinds,
    /// 8: of three of them all workloads can be tried.
    Core,
    /// 10: these, and a snapshot that is taken or deleted.
    Snapshots,
}

/// What to prove.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Operations of a workload: 1 to [`BOUND_MAX`].
    pub bound: u32,
    /// Of which.
    pub alphabet: Alphabet,
    /// Which of them.
    pub choice: Choice,
    /// Whether each request and each need of space fails in turn, instead of the power.
    pub failures: bool,
    /// Of what is left to chance.
    pub seed: u64,
}

/// What was found at one state of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) position: usize,
    pub(crate) image: usize,
    pub(crate) message: String,
}

/// A workload that left what was not promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its number in the set.
    pub workload: u64,
    /// Its text, the crash point, and what is wrong.
    pub message: String,
}

/// What was proved.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Workloads that ran.
    pub workloads: u64,
    /// Workloads of the whole set.
    pub workloads_of_set: u64,
    /// Hash of the texts of those that ran, in order.
    pub set_hash: u64,
    /// Moments at which the power could have been cut.
    pub points: u64,
    /// Runs in which a request failed, or a need of space was not met.
    pub failures: u64,
    /// States that the cuts or failures may leave.
    pub states: u64,
    /// States that a second cut, during the recovery, may leave.
    pub second_states: u64,
    /// Distinct images among all of them.
    pub images: u64,
    /// States judged: image and history differ.
    pub judged: u64,
    /// Distinct images that their recoveries left: each was checked.
    pub checked: u64,
    /// Workloads of which the engine does not have an operation.
    pub incomplete: u64,
    /// How many workloads, by what it does not have.
    pub unsupported: BTreeMap<&'static str, u64>,
    /// What was found, one for each workload at most.
    pub findings: Vec<Finding>,
}

impl Alphabet {
    fn operations(self) -> Vec<Action> {
        match self {
            Alphabet::All => alphabet(),
            Alphabet::Kinds => alphabet_of_kinds(),
            Alphabet::Core => core_alphabet(),
            Alphabet::Snapshots => alphabet_with_snapshots(),
        }
    }
}

/// The workloads of a bound.
#[derive(Clone, Debug)]
pub struct Set {
    bound: u32,
    alphabet: Vec<Action>,
    /// Those of one operation, each once.
    of_one: Vec<Workload>,
}

impl Set {
    /// Returns the workloads of `bound` operations of an alphabet.
    #[must_use]
    pub fn new(bound: u32, alphabet: Alphabet) -> Set {
        let of_one = if bound == 1 { workloads_of_one(&alphabet.operations()) } else { Vec::new() };
        Set { bound, alphabet: alphabet.operations(), of_one }
    }

    /// Returns how many there are; of more than one operation, with those that come out alike.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self.bound {
            1 => crate::number::u64_of(self.of_one.len()),
            bound => count(&self.alphabet, bound),
        }
    }

    /// Returns one of them.
    ///
    /// # Panics
    ///
    /// If `index` is not below [`Set::count`].
    #[must_use]
    pub fn get(&self, index: u64) -> Workload {
        match self.bound {
            1 => self.of_one[crate::number::usize_of(index)].clone(),
            bound => workload::workload(&self.alphabet, bound, index),
        }
    }
}

/// Returns the numbers of the workloads that the options choose.
fn chosen(set: &Set, options: &Options) -> Vec<u64> {
    let mut prng = Prng::from_seed(options.seed);
    match options.choice {
        Choice::All => (0..set.count()).collect(),
        Choice::Sample(count) => (0..count).map(|_| prng.below(set.count())).collect(),
        Choice::Part { index, count } => {
            (0..set.count()).filter(|number| number % count == index).collect()
        }
        Choice::Only(index) => vec![index],
    }
}

/// Explores the workloads, and tells `progress` how many are done, and of how many.
///
/// # Errors
///
/// No pool could be made to begin with.
pub fn prove(options: &Options, mut progress: impl FnMut(u64, u64)) -> Result<Report, String> {
    let set = Set::new(options.bound, options.alphabet);
    let chosen = chosen(&set, options);
    let strategy = if options.bound == 1 {
        Strategy { seed: options.seed, ..Strategy::default() }
    } else {
        Strategy {
            exhaustive_writes_max: 2,
            random_subsets: 0,
            torn_variants: 1,
            seed: options.seed,
        }
    };
    let mut explorer = Explorer::new(strategy)?;
    let total = crate::number::u64_of(chosen.len());
    let mut texts = 0;
    for (done, index) in (1..).zip(chosen) {
        let workload = set.get(index);
        let text = workload.to_string();
        texts = fnv1a(u64::to_le_bytes(texts).into_iter().chain(text.bytes()));
        let proved = if options.failures {
            explorer.fail_each(&workload)
        } else {
            explorer.explore(&workload)
        };
        if let Err(found) = proved {
            let Found { position, image, message } = found;
            let what = if options.failures { "failure" } else { "cut at" };
            let message =
                format!("workload {index}, {what} {position}, image {image}: {message}\n{text}");
            explorer.report.findings.push(Finding { workload: index, message });
        }
        progress(done, total);
    }
    explorer.report.workloads_of_set = set.count();
    explorer.report.set_hash = texts;
    Ok(explorer.report)
}

/// Returns the FNV-1a hash of `bytes`.
#[must_use]
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}
