//! `holdfast-lab bench`: measures Holdfast and other file systems in alternation.

mod kill;
mod nfs;
mod pools;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use bench::access::{KernelAccess, TargetReopener};
use bench::claim::BenchDirectory;
use bench::noise::Noise;
use bench::plan::{BenchPlan, ROUNDS_MAX, SCALE_MAX, SCALE_MIN, THREADS_MAX};
use bench::report::BenchReport;
use bench::run::{BenchOptions, RunError, ServerProcess, SystemUnderTest, TargetKind};
use bench::{plot, table};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::program::args::{BenchArgs, BenchTarget};
use crate::program::nfs_args::BenchCommand;
use cli::daemon::Relaunch;
use cli::exit;
use cli::output::Output;
use control::UsageError;
use pools::Pools;
use server::backend::Backend;

pub(crate) fn run(
    args: &BenchArgs,
    backend: &dyn Backend,
    relaunch: &Relaunch,
    output: &Output,
) -> anyhow::Result<u8> {
    match &args.command {
        Some(BenchCommand::Nfs(args)) => return nfs::run(args, output),
        Some(BenchCommand::Kill(args)) => return kill::run(args, (backend, relaunch), output),
        None => {}
    }
    if args.list {
        let text = table::list();
        output.fact(&text, &json!({ "measures": text }));
        return Ok(exit::DONE);
    }
    let options = options_of(args)?;
    server::status::check_way(&args.place)?;
    if let Some(out) = &args.out {
        // Fails here, not after an hour of measurements.
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }

    let claims = claim_given(args)?;
    let mut pools = Pools::new(&args.place, args)?;
    let mut targets = pools.open(args, &options, (backend, relaunch))?;
    for (claim, (name, directory)) in claims.iter().zip(&args.against) {
        targets.push(given(claim, name, Path::new(directory), args)?);
    }
    unique(&targets)?;
    let noise_file = pools.directory().join("noise");
    let mut noise = Noise::start(&noise_file).context("cannot calibrate")?;
    let mut progress = output.progress_of_run();
    let outcome = bench::run::run(&targets, &options, &mut noise, &stop, &mut |what, done, of| {
        progress.tell(what, done, of);
    });
    progress.finish();
    let outcome = outcome.map_err(usage)?;
    let report = BenchReport::new(&targets, &options, &outcome, noise.report());
    drop(targets);
    drop(pools);
    drop(claims);

    if let Some(out) = &args.out {
        write(&report, out)?;
    }
    output.fact(&table::text_of(&report), &json!({ "bench": report }));
    let is_whole = !report.was_stopped && report.failures.is_empty();
    Ok(if is_whole { exit::DONE } else { exit::FAILED })
}

fn usage(error: RunError) -> anyhow::Error {
    match error {
        RunError::Unknown { .. } => UsageError::new(error.to_string()).into(),
        RunError::NoSpace { .. } | RunError::Failed { .. } => error.into(),
    }
}

fn options_of(args: &BenchArgs) -> anyhow::Result<BenchOptions> {
    let refuse = |message: String| Err(UsageError::new(message).into());
    if !(1..=ROUNDS_MAX).contains(&args.rounds) {
        return refuse(format!("--rounds must be from 1 to {ROUNDS_MAX}"));
    }
    if !(SCALE_MIN..=SCALE_MAX).contains(&args.scale) {
        return refuse(format!("--scale must be from {SCALE_MIN} to {SCALE_MAX}"));
    }
    let mut threads = args.threads.clone();
    threads.dedup();
    if threads.is_empty() || threads.iter().any(|count| !(1..=THREADS_MAX).contains(count)) {
        return refuse(format!("--threads must be from 1 to {THREADS_MAX}"));
    }
    let is_alone = args.targets.contains(&BenchTarget::None);
    if is_alone && args.targets.len() > 1 {
        return refuse("--targets none stands alone".to_owned());
    }
    if is_alone && args.against.is_empty() && args.mounted.is_empty() {
        return refuse("nothing to measure: give --targets, or --against NAME=DIR".to_owned());
    }
    let is_against = |name: &str| args.against.iter().any(|(against, _)| against == name);
    if let Some((name, _)) = args.server.iter().find(|(name, _)| !is_against(name)) {
        return refuse(format!("--server {name}: no --against has that name"));
    }
    let plan = BenchPlan::new(args.scale);
    let options = BenchOptions { rounds: args.rounds, plan, threads, only: args.only.clone() };
    // Unknown names fail before any pool is made.
    options.needed_bytes().map_err(usage)?;
    Ok(options)
}

fn claim_given(args: &BenchArgs) -> anyhow::Result<Vec<BenchDirectory>> {
    let claims = args
        .against
        .iter()
        .map(|(_, directory)| Ok(BenchDirectory::new(Path::new(directory), true, &|_| {})?));
    claims.collect()
}

fn given(
    claim: &BenchDirectory,
    name: &str,
    directory: &Path,
    args: &BenchArgs,
) -> anyhow::Result<SystemUnderTest> {
    let server = ServerProcess::default();
    server.set(args.server.iter().find(|(of, _)| of == name).map(|(_, pid)| *pid));
    let offline: Option<Arc<dyn TargetReopener>> = match rustix::process::geteuid().is_root() {
        true => Some(Arc::new(pools::KernelCaches)),
        false => None,
    };
    Ok(SystemUnderTest {
        name: name.to_owned(),
        what: format!("{}, {}", kind_of(claim.directory()), directory.display()),
        kind: TargetKind::Given,
        access: Box::new(KernelAccess::new(claim.directory(), offline)?),
        server,
    })
}

/// Returns the type of the file system of `directory` by the mount table.
fn kind_of(directory: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    let below = fields.filter_map(|fields| {
        let (point, kind) = (*fields.get(1)?, *fields.get(2)?);
        directory.starts_with(point).then_some((point.len(), kind.to_owned()))
    });
    // Of several mounts on one mount point, the last is on top.
    below.max_by_key(|(length, _)| *length).map_or_else(|| "unknown".to_owned(), |(_, kind)| kind)
}

fn unique(targets: &[SystemUnderTest]) -> anyhow::Result<()> {
    for (index, target) in targets.iter().enumerate() {
        if targets.iter().take(index).any(|other| other.name == target.name) {
            let message = format!("two targets are called {}: give another name", target.name);
            return Err(UsageError::new(message).into());
        }
    }
    Ok(())
}

fn write(report: &BenchReport, out: &Path) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report).context("a report is plain data")?;
    let svg = plot::svg_of(report).map_err(anyhow::Error::msg)?;
    for (name, text) in
        [("bench.json", json), ("bench.md", table::text_of(report)), ("bench.svg", svg)]
    {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
