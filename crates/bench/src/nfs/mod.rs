//! Load test of an NFSv3 server: response time against throughput.
//!
//! ```text
//!   mix (which call comes next) -> load (a client's files, and the call on one of them)
//!                                    -> client (records and XDR over TCP)
//!   run (unpaced, then at shares of that throughput) -> report -> table, picture
//! ```
//!
//! As in LADDIS (Wittle and Keith, 1993), clients with their own protocol code offer a mix of calls
//! at a rate, each with one call in flight. The first step is unpaced and finds the maximum
//! throughput. The other steps offer fractions of this maximum.
//!
//! # Invariants
//!
//! - BN1: No reply is trusted. If it is truncated, late, for another call, or has a fragment longer
//!   than [`client::RECORD_BYTES_MAX`], the benchmark fails with an error, never a panic.
//! - BN2: Overdue calls are made at once, except a backlog beyond one second, which is dropped. A
//!   step reports both the offered and the reached throughput.
//!
//! Not here: the server under test.

mod client;
mod load;
mod mix;
mod picture;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use self::client::BenchNfsClient;
use self::load::NfsLoad;
pub use self::mix::{Mix, Procedure};
use crate::number::{to_f64, to_u64, to_usize};

/// Maximum clients.
pub const CLIENTS_MAX: usize = 256;
/// Maximum seconds per step.
pub const SECONDS_MAX: u64 = 3600;
/// Maximum files per client.
pub const FILES_MAX: u64 = 10_000;

/// Offered loads in percent of the maximum throughput.
const LOADS: [u64; 6] = [10, 25, 50, 75, 90, 100];

/// Options of a run.
#[derive(Clone, Debug)]
pub struct NfsBenchOptions {
    /// Address of NFS and MOUNT.
    pub address: SocketAddr,
    /// Export path.
    pub export: String,
    /// Mix of calls.
    pub mix: Mix,
    /// Number of clients, each with a connection and one call in flight.
    pub clients: usize,
    /// Seconds per step.
    pub seconds: u64,
    /// Files per client.
    pub files: u64,
    /// Seed of random choices.
    pub seed: u64,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum NfsError {
    /// No connection: check the server and its export rules.
    #[error("{address}: {cause}: is it the server's address, and is it reached?")]
    Connection {
        /// Server address.
        address: SocketAddr,
        /// System error.
        cause: std::io::Error,
    },
    /// An invalid or late reply.
    #[error("{address}: {what}: it is no NFSv3 server, or one that has a bug")]
    Protocol {
        /// Server address.
        address: SocketAddr,
        /// Description.
        what: String,
    },
    /// A call failed.
    #[error("{procedure} {name}: status {status}: {}", step_to(*status))]
    Status {
        /// Procedure.
        procedure: &'static str,
        /// Name in the call.
        name: String,
        /// Status of RFC 1813.
        status: u32,
    },
    /// The run was interrupted.
    #[error("stopped: what it has made is removed as far as it was reached")]
    Stopped,
}

fn step_to(status: u32) -> &'static str {
    match status {
        1 | 13 => "the export must let this machine's superuser in (squash=none, insecure)",
        2 => "the export must be there",
        17 => "a run that was killed has left it: remove it",
        28 | 69 => "there must be room: give --files less",
        30 => "the export must be writable (rw)",
        _ => "see the server's log",
    }
}

/// Response times of one procedure in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcedureTimes {
    /// Name of RFC 1813.
    pub procedure: &'static str,
    /// Number of calls.
    pub calls: u64,
    /// Mean response time in milliseconds.
    pub mean_ms: f64,
}

/// One point of the curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NfsLoadStep {
    /// Calls a second offered. `None` if unpaced.
    pub offered: Option<f64>,
    /// Calls a second completed.
    pub throughput: f64,
    /// Mean response time in milliseconds.
    pub mean_ms: f64,
    /// Median response time in milliseconds.
    pub median_ms: f64,
    /// 99th percentile of the response time.
    pub p99_ms: f64,
    /// By procedure, in the order of RFC 1813.
    pub procedures: Vec<ProcedureTimes>,
}

/// Report of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NfsReport {
    /// Server address.
    pub address: String,
    /// Export path.
    pub export: String,
    /// Mix name.
    pub mix: &'static str,
    /// Source of the mix.
    pub source: &'static str,
    /// Number of clients.
    pub clients: usize,
    /// Seconds per step.
    pub seconds: u64,
    /// Files per client.
    pub files: u64,
    /// The unpaced step, then steps by rising load.
    pub steps: Vec<NfsLoadStep>,
}

impl NfsReport {
    /// Formats the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "NFSv3 at {}{}: mix {}, {} clients, {} s a step, {} files each\n\n\
             |   offered/s | answered/s | mean ms | median ms | 99 % ms |\n\
             |------------:|-----------:|--------:|----------:|--------:|\n",
            self.address, self.export, self.mix, self.clients, self.seconds, self.files
        );
        for step in &self.steps {
            let offered = step.offered.map_or("all".to_owned(), |offered| format!("{offered:.0}"));
            let NfsLoadStep { throughput, mean_ms, median_ms, p99_ms, .. } = step;
            text += &format!(
                "| {offered:>11} | {throughput:>10.0} | {mean_ms:>7.3} | {median_ms:>9.3} | \
                 {p99_ms:>7.3} |\n"
            );
        }
        text += "\n| procedure   | share of calls | mean ms, unpaced |\n\
                 |-------------|---------------:|-----------------:|\n";
        for answered in self.steps.first().into_iter().flat_map(|step| &step.procedures) {
            let all: u64 = self.steps[0].procedures.iter().map(|other| other.calls).sum();
            let share = 100.0 * to_f64(answered.calls) / to_f64(all.max(1));
            let ProcedureTimes { procedure, mean_ms, .. } = answered;
            text += &format!("| {procedure:<11} | {share:>12.1} % | {mean_ms:>16.3} |\n");
        }
        text + &format!("\nShares: {}\n", self.source)
    }

    /// Plots the curve as SVG.
    pub fn svg(&self) -> Result<String, String> {
        picture::svg_of(self)
    }
}

/// Procedure and response time in microseconds of each call of a client.
type CallTimes = Vec<(Procedure, u32)>;

/// Runs all steps. Removes all files, even after an error.
pub fn run(
    options: &NfsBenchOptions,
    stop: &AtomicBool,
    told: &mut dyn FnMut(&str, u64, u64),
) -> Result<NfsReport, NfsError> {
    let steps_count = to_u64(LOADS.len()) + 1;
    told("files", 0, steps_count + 1);
    let mut loads: Vec<NfsLoad> = Vec::new();
    let mut first = BenchNfsClient::connect(options.address)?;
    let root = first.mount(&options.export)?;
    let top = load::make_top(&mut first, &root)?;
    let done = make_and_measure(options, &top, (&mut loads, stop), told);
    // Attempt every removal before failing.
    let mut removed: Vec<_> = loads.iter_mut().map(NfsLoad::remove).collect();
    removed.push(load::remove_top(&mut first, &root));
    let removed = removed.into_iter().collect::<Result<(), _>>();
    let steps = done?;
    removed?;
    Ok(NfsReport {
        address: options.address.to_string(),
        export: options.export.clone(),
        mix: options.mix.name(),
        source: options.mix.source(),
        clients: options.clients,
        seconds: options.seconds,
        files: options.files,
        steps,
    })
}

fn make_and_measure(
    options: &NfsBenchOptions,
    top: &[u8],
    (loads, stop): (&mut Vec<NfsLoad>, &AtomicBool),
    told: &mut dyn FnMut(&str, u64, u64),
) -> Result<Vec<NfsLoadStep>, NfsError> {
    let count = to_u64(LOADS.len()) + 2;
    for number in 0..to_u64(options.clients) {
        let client = BenchNfsClient::connect(options.address)?;
        loads.push(NfsLoad::new(client, top, number, options.seed));
        let Some(load) = loads.last_mut() else { continue };
        load.make_files(options.files, stop)?;
    }
    let mut steps = Vec::new();
    told("as fast as it goes", 1, count);
    let all = step(options, loads, None, stop)?;
    let most = all.throughput;
    steps.push(all);
    for (number, percent) in (2..).zip(LOADS) {
        told("offered load", number, count);
        let offered = (most * to_f64(percent) / 100.0).max(1.0);
        steps.push(step(options, loads, Some(offered), stop)?);
    }
    Ok(steps)
}

/// Runs one step, with `offered` calls a second over all clients.
fn step(
    options: &NfsBenchOptions,
    loads: &mut [NfsLoad],
    offered: Option<f64>,
    stop: &AtomicBool,
) -> Result<NfsLoadStep, NfsError> {
    let clients = to_f64(to_u64(loads.len().max(1)));
    let every = offered.map(|offered| Duration::from_secs_f64(clients / offered));
    let (begun, time) = (Instant::now(), Duration::from_secs(options.seconds));
    let seen: Vec<Result<CallTimes, NfsError>> = std::thread::scope(|scope| {
        let ask = |load| scope.spawn(move || one_client(load, options.mix, (every, time), stop));
        let asking: Vec<_> = loads.iter_mut().map(ask).collect();
        asking.into_iter().map(|client| client.join().unwrap_or(Err(NfsError::Stopped))).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let mut all: CallTimes = Vec::new();
    for seen in seen {
        all.extend(seen?);
    }
    Ok(step_of(offered, seconds, all))
}

#[expect(clippy::disallowed_methods, reason = "a client waits for the time of its next call")]
fn one_client(
    load: &mut NfsLoad,
    mix: Mix,
    (every, time): (Option<Duration>, Duration),
    stop: &AtomicBool,
) -> Result<CallTimes, NfsError> {
    let (begun, mut seen) = (Instant::now(), Vec::new());
    // Stagger the clients.
    let mut due = every.map(|every| begun + every.mul_f64(load.share()));
    while begun.elapsed() < time {
        if stop.load(Ordering::Relaxed) {
            return Err(NfsError::Stopped);
        }
        if let (Some(due), Some(every)) = (&mut due, every) {
            let now = Instant::now();
            // BN2: drops a backlog beyond one second.
            *due = (*due).max(now.checked_sub(Duration::from_secs(1)).unwrap_or(now));
            if *due >= begun + time {
                std::thread::sleep((begun + time).saturating_duration_since(now));
                break;
            }
            std::thread::sleep(due.saturating_duration_since(now));
            *due += every;
        }
        let asked = Instant::now();
        let procedure = load.ask(mix)?;
        let micros = asked.elapsed().as_micros();
        seen.push((procedure, u32::try_from(micros).unwrap_or(u32::MAX)));
    }
    Ok(seen)
}

fn step_of(offered: Option<f64>, seconds: f64, seen: CallTimes) -> NfsLoadStep {
    let mean = |times: &[u32]| {
        let sum: u64 = times.iter().copied().map(u64::from).sum();
        to_f64(sum) / to_f64(to_u64(times.len().max(1))) / 1000.0
    };
    let of = |procedure: Procedure| -> Vec<u32> {
        seen.iter().filter(|(it, _)| *it == procedure).map(|(_, time)| *time).collect()
    };
    let procedures = Procedure::ALL.iter().map(|procedure| (procedure.name(), of(*procedure)));
    let procedures = procedures.filter(|(_, times)| !times.is_empty());
    let procedures = procedures.map(|(procedure, times)| ProcedureTimes {
        procedure,
        calls: to_u64(times.len()),
        mean_ms: mean(&times),
    });
    let procedures = procedures.collect();
    let mut times: Vec<u32> = seen.into_iter().map(|(_, time)| time).collect();
    times.sort_unstable();
    let at = |percent: u64| {
        let rank = to_u64(times.len()) * percent / 100;
        let last = times.len().saturating_sub(1);
        times.get(to_usize(rank).min(last)).map_or(0.0, |time| f64::from(*time) / 1000.0)
    };
    NfsLoadStep {
        offered,
        throughput: to_f64(to_u64(times.len())) / seconds,
        mean_ms: mean(&times),
        median_ms: at(50),
        p99_ms: at(99),
        procedures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_tells_what_its_calls_took() {
        let mut seen: CallTimes = (1..=100).map(|time| (Procedure::Lookup, time * 1000)).collect();
        seen.push((Procedure::Read, 200_000));
        let step = step_of(Some(50.0), 2.0, seen);
        assert_eq!((step.throughput, step.median_ms, step.p99_ms), (50.5, 51.0, 100.0));
        let told: Vec<_> = step.procedures.iter().map(|it| (it.procedure, it.calls)).collect();
        assert_eq!(told, [("LOOKUP", 100), ("READ", 1)]);
        let nothing = step_of(None, 1.0, Vec::new());
        assert_eq!((nothing.throughput, nothing.mean_ms, nothing.p99_ms), (0.0, 0.0, 0.0));
    }

    #[test]
    fn a_report_is_a_table_and_a_picture() {
        let seen = vec![(Procedure::Lookup, 1000), (Procedure::Write, 3000)];
        let steps = vec![step_of(None, 1.0, seen.clone()), step_of(Some(1.0), 2.0, seen)];
        let (mix, source) = (Mix::Laddis.name(), Mix::Laddis.source());
        let (address, export) = ("127.0.0.1:2049".to_owned(), "/a".to_owned());
        let mut report =
            NfsReport { address, export, mix, source, clients: 2, seconds: 1, files: 10, steps };
        let text = report.text();
        assert!(text.contains("|         all |          2 |   2.000 |"), "{text}");
        assert!(text.contains("| WRITE       |         50.0 % |"), "{text}");
        let svg = report.svg().expect("it can be drawn");
        assert!(svg.starts_with("<svg") && svg.matches("<circle").count() == 2, "{svg}");
        report.steps.clear();
        assert!(report.svg().is_ok() && report.text().contains("laddis"));
    }
}
