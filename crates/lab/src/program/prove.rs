//! `holdfast-lab prove`: tries every power cut, or every failure, of every small workload.

use std::fmt::Write;
use std::path::PathBuf;

use clap::ValueEnum;
use cli::exit;
use cli::output::Output;
use control::UsageError;
use serde::Serialize;
use serde_json::json;
use server::backend::{BackendError, OnProgress};
use testkit::prove;

use super::args::{self, ProveArgs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProveChoice {
    All,
    /// A random sample of this size.
    Sample(u64),
    /// Part `index`, from 0, of `count` parts.
    Part {
        index: u64,
        count: u64,
    },
    Only(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProveAlphabet {
    /// All operations of bounded black-box crash testing.
    All,
    Kinds,
    /// Few enough to try all workloads of three operations.
    Core,
    /// [`ProveAlphabet::Core`], with snapshots.
    Snapshots,
}

#[derive(Clone, Debug)]
pub(super) struct ProveOptions {
    /// Operations per workload, 1 to 3.
    pub(super) bound: u32,
    pub(super) alphabet: ProveAlphabet,
    pub(super) seed: u64,
    pub(super) choice: ProveChoice,
    /// Whether device requests and space reservations fail, one per run, instead of a power cut.
    pub(super) failures: bool,
    /// Directory for the workloads as base images and logs.
    pub(super) export: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ProveReport {
    pub(super) bound: u32,
    pub(super) workloads: u64,
    pub(super) workloads_of_set: u64,
    /// Hash of the texts of the workloads that ran, in hexadecimal.
    pub(super) set_hash: String,
    /// Possible moments of a power cut.
    pub(super) points: u64,
    /// Runs with a failed request or reservation.
    pub(super) failures: u64,
    /// Possible states after the cuts or failures.
    pub(super) states: u64,
    /// Possible states after a second cut, during recovery.
    pub(super) second_states: u64,
    pub(super) images: u64,
    /// States judged, each with a different image or history.
    pub(super) judged: u64,
    /// Distinct images after recovery, each of which was checked.
    pub(super) checked: u64,
    /// Workloads that ran without an unsupported operation, by the operation's name.
    pub(super) unsupported: std::collections::BTreeMap<String, u64>,
    pub(super) milliseconds: u64,
    pub(super) findings: Vec<ProveFinding>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ProveFinding {
    pub(super) workload: u64,
    pub(super) message: String,
}

pub(crate) fn run(args: &ProveArgs, output: &Output) -> anyhow::Result<u8> {
    let choice = match (args.sample, args.part, args.only) {
        (Some(0), ..) => return Err(UsageError::new("--sample must be at least 1").into()),
        (Some(count), ..) => ProveChoice::Sample(count),
        (_, Some((part, count)), _) => ProveChoice::Part { index: part - 1, count },
        (.., Some(index)) => ProveChoice::Only(index),
        (None, None, None) => ProveChoice::All,
    };
    let options = ProveOptions {
        bound: args.bound,
        alphabet: alphabet_of(args),
        seed: args.seed,
        choice,
        failures: args.failures,
        export: args.export_log.clone(),
    };
    let mut progress = output.progress_of_run();
    let report = prove_all(&options, &mut |what, done, total| progress.tell(what, done, total));
    progress.finish();
    let report = report?;
    output.fact(&text_of(&report, args), &json!({ "prove": report }));
    Ok(if report.findings.is_empty() { exit::DONE } else { exit::FAILED })
}

/// Largest bound with a manageable number of workloads of all operations.
const BOUND_OF_ALL_MAX: u32 = 2;

fn alphabet_of(args: &ProveArgs) -> ProveAlphabet {
    match args.alphabet {
        Some(args::ProveAlphabetName::All) => ProveAlphabet::All,
        Some(args::ProveAlphabetName::Kinds) => ProveAlphabet::Kinds,
        Some(args::ProveAlphabetName::Core) => ProveAlphabet::Core,
        Some(args::ProveAlphabetName::Snapshots) => ProveAlphabet::Snapshots,
        None if args.bound <= BOUND_OF_ALL_MAX => ProveAlphabet::All,
        None => ProveAlphabet::Core,
    }
}

fn text_of(report: &ProveReport, args: &ProveArgs) -> String {
    let mut text = String::new();
    let mode = if args.failures { " --failures" } else { "" };
    let alphabet = match args.alphabet.and_then(|alphabet| alphabet.to_possible_value()) {
        Some(named) => format!(" --alphabet {}", named.get_name()),
        None => String::new(),
    };
    for finding in &report.findings {
        let _ = writeln!(
            text,
            "{}\n  again: holdfast-lab prove{mode} --bound {}{alphabet} --seed {} --only {}",
            finding.message, args.bound, args.seed, finding.workload
        );
    }
    for (what, count) in &report.unsupported {
        let _ = writeln!(text, "{count} workloads without their {what}, which is not there yet");
    }
    let ProveReport { workloads, workloads_of_set, set_hash, points, states, .. } = report;
    let ProveReport { second_states, images, judged, checked, milliseconds, findings, .. } = report;
    let (bound, count) = (args.bound, findings.len());
    let what = match args.failures {
        true => format!("{} failures", report.failures),
        false => format!("{points} crash points"),
    };
    let _ = writeln!(
        text,
        "bound {bound}: {workloads} of {workloads_of_set} workloads (hash {set_hash}), {what}, \
         {states} states and {second_states} of a second cut, {images} distinct \
         images, {judged} judged, {checked} checked, {milliseconds} ms: {count} findings"
    );
    text
}

fn prove_all(
    options: &ProveOptions,
    progress: OnProgress<'_>,
) -> Result<ProveReport, BackendError> {
    let begun = std::time::Instant::now();
    let ProveOptions { bound, alphabet, seed, choice, failures, export } = options;
    let alphabet = match alphabet {
        ProveAlphabet::All => prove::Alphabet::All,
        ProveAlphabet::Kinds => prove::Alphabet::Kinds,
        ProveAlphabet::Core => prove::Alphabet::Core,
        ProveAlphabet::Snapshots => prove::Alphabet::Snapshots,
    };
    let set_count = prove::Set::new(*bound, alphabet).count();
    let choice = match *choice {
        ProveChoice::All => prove::Choice::All,
        ProveChoice::Sample(count) => prove::Choice::Sample(count),
        ProveChoice::Part { index, count } => prove::Choice::Part { index, count },
        ProveChoice::Only(index) if index < set_count => prove::Choice::Only(index),
        ProveChoice::Only(_) => {
            let reason = format!("there are {set_count} workloads, counted from 0");
            return Err(BackendError::Option { option: "--only", reason });
        }
    };
    let (bound, seed, failures) = (*bound, *seed, *failures);
    let chosen = prove::Options { bound, alphabet, choice, failures, seed };
    if let Some(directory) = export {
        prove::export(&chosen, directory)
            .map_err(|cause| BackendError::Failed { device: directory.clone(), cause })?;
    }
    let report = prove::prove(&chosen, |done, total| progress("workloads", done, total));
    let report = report.map_err(|cause| BackendError::Failed { device: "memory".into(), cause })?;
    let findings = report
        .findings
        .into_iter()
        .map(|finding| ProveFinding { workload: finding.workload, message: finding.message });
    let unsupported = report.unsupported.into_iter().map(|(what, count)| (what.to_owned(), count));
    Ok(ProveReport {
        bound,
        workloads: report.workloads,
        workloads_of_set: report.workloads_of_set,
        set_hash: format!("{:016x}", report.set_hash),
        points: report.points,
        failures: report.failures,
        states: report.states,
        second_states: report.second_states,
        images: report.images,
        judged: report.judged,
        checked: report.checked,
        unsupported: unsupported.collect(),
        milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        findings: findings.collect(),
    })
}
