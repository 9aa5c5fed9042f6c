//! `holdfast-lab bench nfs`: measures an NFSv3 server under a mix of calls.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use bench::nfs::{self, CLIENTS_MAX, FILES_MAX, Mix, NfsBenchOptions, NfsError, SECONDS_MAX};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::program::nfs_args::{BenchNfsArgs, MixName};
use cli::exit;
use cli::output::Output;
use control::UsageError;

pub(super) fn run(args: &BenchNfsArgs, output: &Output) -> anyhow::Result<u8> {
    let within = |name: &str, value: u64, most: u64| {
        let message = format!("{name} must be from 1 to {most}");
        if (1..=most).contains(&value) { Ok(()) } else { Err(UsageError::new(message)) }
    };
    let clients_max = u64::try_from(CLIENTS_MAX).unwrap_or(u64::MAX);
    within("--clients", u64::try_from(args.clients).unwrap_or(0), clients_max)?;
    within("--seconds", args.seconds, SECONDS_MAX)?;
    within("--files", args.files, FILES_MAX)?;
    if let Some(out) = &args.out {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let options = NfsBenchOptions {
        address: args.address,
        export: args.export.clone(),
        mix: match args.mix {
            MixName::Laddis => Mix::Laddis,
            MixName::Sfs97 => Mix::Sfs97,
        },
        clients: args.clients,
        seconds: args.seconds,
        files: args.files,
        seed: args.seed,
    };
    let mut progress = output.progress_of_run();
    let run = nfs::run(&options, &stop, &mut |what, done, of| progress.tell(what, done, of));
    progress.finish();
    let report = match run {
        Ok(report) => report,
        Err(NfsError::Stopped) => {
            output.remark(&NfsError::Stopped.to_string());
            return Ok(exit::FAILED);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(out) = &args.out {
        let json = serde_json::to_string_pretty(&report).context("a report is plain data")?;
        let svg = report.svg().map_err(anyhow::Error::msg)?;
        for (name, text) in
            [("bench-nfs.json", json), ("bench-nfs.md", report.text()), ("bench-nfs.svg", svg)]
        {
            let path = out.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    output.fact(&report.text(), &json!({ "bench_nfs": report }));
    Ok(exit::DONE)
}
