//! `holdfast torture`: crashes simulated pools and judges what is left.

use std::fmt::Write;

use serde_json::json;

use crate::args::TortureArgs;
use crate::backend::{Backend, FilesetCounts, TortureOf, TortureOptions, TortureReport};
use crate::exit::{self, UsageError};
use crate::output::Output;

pub(crate) fn run(
    args: &TortureArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    if args.seeds == 0 || args.seed.checked_add(args.seeds).is_none() {
        return Err(UsageError::new("--seeds must be at least 1, and --seed + --seeds fit").into());
    }
    let mut progress = output.progress_of_run();
    let of = match (args.filesets, args.clones) {
        (true, _) => TortureOf::Filesets,
        (false, true) => TortureOf::Clones,
        (false, false) => TortureOf::Clients,
    };
    let pools = args.pools.clone();
    let options = TortureOptions { seed_first: args.seed, seed_count: args.seeds, of, pools };
    let report =
        backend.torture(&options, &mut |what, done, total| progress.tell(what, done, total));
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
            "seed {}: {}\n  again: holdfast torture {option}--seeds 1 --seed {}",
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
    let FilesetCounts { done, clones, refused, full, crashes_amid, compared, moved } = counts;
    format!(
        "{seeds} seeds, {operations} operations on files, {done} on filesets and clones ({clones} \
         clones were taken), {refused} refused as they should be, {full} for want of space, \
         {crashes} crashes ({crashes_amid} amid an operation on filesets), {recovery_crashes} more \
         in recovery, {compared} trees compared, {moved} fragments moved: {} findings\n",
        findings.len()
    )
}
