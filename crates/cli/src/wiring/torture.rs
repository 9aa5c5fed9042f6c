//! Torture, as the command asks for it: clients at work on one fileset, or filesets and clones.

use testkit::families;
use testkit::torture::{Options, PoolGround, Pools};

use crate::backend::{
    BackendError, FilesetCounts, OnProgress, TortureFinding, TortureOf, TortureOptions,
    TortureReport,
};

/// Runs seeds.
pub(super) fn run(
    options: &TortureOptions,
    progress: OnProgress<'_>,
) -> Result<TortureReport, BackendError> {
    if options.of == TortureOf::Filesets {
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
    let has_clones = options.of == TortureOf::Clones;
    let options =
        Options { first_seed: seed_first, seeds: seed_count, has_clones, ..Options::default() };
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

/// Returns a finding as a report has it: the command says how to run it again.
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
            clones: counts.clones,
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
