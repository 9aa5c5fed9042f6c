//! `holdfast-lab torture`: crashes simulated pools and checks the results.

use std::fmt::Write;

use cli::exit;
use cli::output::Output;
use control::UsageError;
use serde::Serialize;
use serde_json::json;
use server::backend::{BackendError, OnProgress};
use testkit::families;
use testkit::torture::{Options, PoolGround, Pools};

use super::args::TortureArgs;

#[derive(Clone, Debug)]
pub(super) struct TortureOptions {
    pub(super) seed_first: u64,
    pub(super) seed_count: u64,
    pub(super) of: TorturePools,
    pub(super) pools: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TorturePools {
    /// One fileset under clients.
    #[default]
    Clients,
    /// One fileset under clients, with snapshots taken and deleted.
    Snapshots,
    /// Several filesets with snapshots, clones and restores.
    Filesets,
}

impl TorturePools {
    pub(super) fn option(self) -> &'static str {
        match self {
            TorturePools::Clients => "",
            TorturePools::Snapshots => "--snapshots ",
            TorturePools::Filesets => "--filesets ",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct FilesetCounts {
    pub(super) done: u64,
    pub(super) snapshots: u64,
    pub(super) refused: u64,
    /// Answers that the pool or a quota is full.
    pub(super) full: u64,
    /// Crashes during an operation.
    pub(super) crashes_amid: u64,
    /// Trees compared with the model.
    pub(super) compared: u64,
    /// Fragments moved by the cleaner.
    pub(super) moved: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct TortureReport {
    pub(super) seeds: u64,
    pub(super) crashes: u64,
    /// Crashes with at least two operations in flight.
    pub(super) concurrent_crashes: u64,
    pub(super) recovery_crashes: u64,
    /// Seeds without such concurrent crashes, which prove little.
    pub(super) seeds_apart: u64,
    /// Planned failures of device requests.
    pub(super) device_errors: u64,
    /// Times that clients filled a pool.
    pub(super) full_pools: u64,
    /// Lost or misdirected writes and corrupted bytes.
    pub(super) lies: u64,
    /// Answers that reported device errors or damage to clients.
    pub(super) errors_told: u64,
    pub(super) operations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) filesets: Option<FilesetCounts>,
    pub(super) findings: Vec<TortureFinding>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct TortureFinding {
    pub(super) seed: u64,
    pub(super) message: String,
}

pub(crate) fn run(args: &TortureArgs, output: &Output) -> anyhow::Result<u8> {
    if args.seeds == 0 || args.seed.checked_add(args.seeds).is_none() {
        return Err(UsageError::new("--seeds must be at least 1, and --seed + --seeds fit").into());
    }
    let mut progress = output.progress_of_run();
    let of = match (args.filesets, args.snapshots) {
        (true, _) => TorturePools::Filesets,
        (false, true) => TorturePools::Snapshots,
        (false, false) => TorturePools::Clients,
    };
    let pools = args.pools.clone();
    let options = TortureOptions { seed_first: args.seed, seed_count: args.seeds, of, pools };
    let report = run_seeds(&options, &mut |what, done, total| progress.tell(what, done, total));
    progress.finish();
    let report = report?;
    output.fact(&text_of(&report, &options), &json!({ "torture": report }));
    Ok(if report.findings.is_empty() { exit::DONE } else { exit::FAILED })
}

fn text_of(report: &TortureReport, options: &TortureOptions) -> String {
    let mut text = String::new();
    let mut option = options.of.option().to_owned();
    if options.pools != "single" {
        option += &format!("--pools {} ", options.pools);
    }
    for finding in &report.findings {
        let _ = writeln!(
            text,
            "seed {}: {}\n  again: holdfast-lab torture {option}--seeds 1 --seed {}",
            finding.seed, finding.message, finding.seed
        );
    }
    if let Some(counts) = &report.filesets {
        text.push_str(&text_of_filesets(report, counts));
        return text;
    }
    let TortureReport { seeds, crashes, concurrent_crashes, recovery_crashes, .. } = report;
    let TortureReport { seeds_apart, operations, findings, .. } = report;
    let TortureReport { device_errors, full_pools, lies, errors_told, .. } = report;
    let count = findings.len();
    let _ = writeln!(
        text,
        "{seeds} seeds, {operations} operations, {crashes} crashes ({concurrent_crashes} with \
         several operations in flight, {seeds_apart} seeds with none such), {recovery_crashes} \
         more in recovery, {device_errors} device errors, {lies} lies of devices, {errors_told} \
         answers that tell of them, {full_pools} full pools: {count} findings"
    );
    text
}

fn text_of_filesets(report: &TortureReport, counts: &FilesetCounts) -> String {
    let TortureReport { seeds, crashes, recovery_crashes, operations, findings, .. } = report;
    let FilesetCounts { done, snapshots, refused, full, crashes_amid, compared, moved } = counts;
    format!(
        "{seeds} seeds, {operations} operations on files, {done} on filesets and snapshots \
         ({snapshots} snapshots were taken), {refused} refused as they should be, {full} for want \
         of space, {crashes} crashes ({crashes_amid} amid an operation on filesets), \
         {recovery_crashes} more in recovery, {compared} trees compared, {moved} fragments moved: \
         {} findings\n",
        findings.len()
    )
}

fn run_seeds(
    options: &TortureOptions,
    progress: OnProgress<'_>,
) -> Result<TortureReport, BackendError> {
    if options.of == TorturePools::Filesets {
        return Ok(of_filesets(options, progress));
    }
    let pools: Pools = options
        .pools
        .parse()
        .map_err(|reason| BackendError::Option { option: "--pools", reason })?;
    Ok(of_clients(options, pools, progress))
}

fn of_clients(options: &TortureOptions, pools: Pools, progress: OnProgress<'_>) -> TortureReport {
    let TortureOptions { seed_first, seed_count, .. } = *options;
    let has_snapshots = options.of == TorturePools::Snapshots;
    let options =
        Options { first_seed: seed_first, seeds: seed_count, has_snapshots, ..Options::default() };
    let mut done = 0;
    progress("seeds", done, seed_count);
    let report = testkit::torture::run(&PoolGround { pools }, &options, |_| {
        done += 1;
        progress("seeds", done, seed_count);
    });
    let findings = report.findings.iter().map(|finding| told(finding.seed, &finding.to_string()));
    TortureReport {
        seeds: report.seeds,
        crashes: report.crashes,
        concurrent_crashes: report.concurrent_crashes,
        recovery_crashes: report.recovery_cuts,
        seeds_apart: report.seeds_apart,
        device_errors: report.device_errors,
        full_pools: report.full_pools,
        lies: report.lies,
        errors_told: report.errors_told,
        operations: report.operations,
        filesets: None,
        findings: findings.collect(),
    }
}

/// Returns a finding without its replay line, because the report adds the command.
fn told(seed: u64, text: &str) -> TortureFinding {
    let message = text.rsplit_once("\nreplay:").map_or(text, |(text, _)| text);
    TortureFinding { seed, message: message.to_owned() }
}

fn of_filesets(options: &TortureOptions, progress: OnProgress<'_>) -> TortureReport {
    let TortureOptions { seed_first, seed_count, .. } = *options;
    let options =
        families::Options { first_seed: seed_first, seeds: seed_count, ..Default::default() };
    let mut done = 0;
    progress("seeds", done, seed_count);
    let report = families::run(&options, |_| {
        done += 1;
        progress("seeds", done, seed_count);
    });
    let counts = report.counts;
    let findings = report.findings.iter().map(|finding| told(finding.seed, &finding.to_string()));
    TortureReport {
        seeds: report.seeds,
        crashes: counts.crashes,
        recovery_crashes: counts.recovery_cuts,
        operations: counts.operations,
        filesets: Some(FilesetCounts {
            done: counts.node_operations,
            snapshots: counts.snapshots,
            refused: counts.refusals,
            full: counts.full,
            crashes_amid: counts.crashes_in_node_operations,
            compared: counts.compared,
            moved: counts.moved_fragments,
        }),
        findings: findings.collect(),
        ..TortureReport::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a finding names its seed and the command that runs it again.
    #[test]
    fn a_finding_names_the_seed_and_how_to_run_it_again() {
        let finding = TortureFinding { seed: 13, message: "lost a file".to_owned() };
        let report = TortureReport { findings: vec![finding], ..TortureReport::default() };
        let options = TortureOptions {
            seed_first: 5,
            seed_count: 10,
            of: TorturePools::Snapshots,
            pools: "raid5-4".to_owned(),
        };
        let text = text_of(&report, &options);
        let again = "holdfast-lab torture --snapshots --pools raid5-4 --seeds 1 --seed 13";
        assert!(text.contains("seed 13: lost a file") && text.contains(again), "{text}");
    }
}
