//! `holdfast prove`: every power cut, or every failure, of every small workload.

use std::fmt::Write;

use clap::ValueEnum;
use serde_json::json;

use crate::args::{self, ProveArgs};
use crate::backend::{Backend, ProveAlphabet, ProveChoice, ProveOptions, ProveReport};
use crate::exit::{self, UsageError};
use crate::output::Output;

pub(crate) fn run(args: &ProveArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
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
    let report = backend.prove(&options, &mut |what, done, total| progress.tell(what, done, total));
    progress.finish();
    let report = report?;
    output.fact(&text_of(&report, args), &json!({ "prove": report }));
    Ok(if report.findings.is_empty() { exit::DONE } else { exit::FAILED })
}

/// Bound above which there are too many workloads of all operations.
const BOUND_OF_ALL_MAX: u32 = 2;

fn alphabet_of(args: &ProveArgs) -> ProveAlphabet {
    match args.alphabet {
        Some(args::ProveAlphabet::All) => ProveAlphabet::All,
        Some(args::ProveAlphabet::Kinds) => ProveAlphabet::Kinds,
        Some(args::ProveAlphabet::Core) => ProveAlphabet::Core,
        Some(args::ProveAlphabet::Clones) => ProveAlphabet::Clones,
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
            "{}\n  again: holdfast prove{mode} --bound {}{alphabet} --seed {} --only {}",
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
