//! How an NFSv3 server answers a mix of calls: response time against throughput.
//!
//! ```text
//!   mix (which call comes next) -> load (a client's files, and the call on one of them)
//!                                    -> client (records and XDR over TCP)
//!   run (unpaced, then at shares of that throughput) -> report -> table, picture
//! ```
//!
//! As LADDIS and its successors do (Wittle and Keith, 1993): clients with a protocol of their own
//! offer a mix of calls at a rate, each has one call on its way, and the response time of every
//! call is told. The first step is not paced; what it reaches is taken to be all that the server
//! can do, and the other steps offer shares of that.
//!
//! # Invariants
//!
//! - BN1: A reply is believed in nothing: what is short, late, of another call or longer than
//!   [`client::RECORD_BYTES_MAX`] ends the bench with an error, and never with a panic.
//! - BN2: A client is late at most by the call that it has on its way: what it could not offer in
//!   time it offers at once, and the step tells what was reached beside what was offered.
//!
//! Not here: the server under test, which may be any.

mod client;
mod load;
mod mix;
mod picture;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use self::client::Client;
use self::load::Load;
pub use self::mix::{Mix, Procedure};
use crate::number::{to_f64, to_u64, to_usize};

/// Most clients.
pub const CLIENTS_MAX: usize = 256;
/// Most seconds of a step.
pub const SECONDS_MAX: u64 = 3600;
/// Most files of a client.
pub const FILES_MAX: u64 = 10_000;

/// Shares of the throughput of the first step that the others offer, in percent.
const LOADS: [u64; 6] = [10, 25, 50, 75, 90, 100];

/// What is asked of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where NFS and MOUNT answer.
    pub address: SocketAddr,
    /// What of it is used.
    pub export: String,
    /// Which calls.
    pub mix: Mix,
    /// How many clients, each with a connection and one call on its way.
    pub clients: usize,
    /// How long a step takes.
    pub seconds: u64,
    /// Files of each client.
    pub files: u64,
    /// What tells one run's choices from another's.
    pub seed: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum NfsError {
    /// Is there a server, and does it let this machine in?
    #[error("{address}: {cause}: is it the server's address, and is it reached?")]
    Connection {
        /// The server.
        address: SocketAddr,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A reply that is none, or too late.
    #[error("{address}: {what}: it is no NFSv3 server, or one that has a bug")]
    Protocol {
        /// The server.
        address: SocketAddr,
        /// What is wrong with it.
        what: String,
    },
    /// The server has refused a call.
    #[error("{procedure} {name}: status {status}: {}", step_to(*status))]
    Status {
        /// The call.
        procedure: &'static str,
        /// What it was about.
        name: String,
        /// Its status (RFC 1813).
        status: u32,
    },
    /// Somebody has stopped it.
    #[error("stopped: what it has made is removed as far as it was reached")]
    Stopped,
}

/// Returns what to do about a status.
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

/// What was seen of one procedure in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answered {
    /// Its name (RFC 1813).
    pub procedure: &'static str,
    /// Calls.
    pub calls: u64,
    /// Mean response time in milliseconds.
    pub mean_ms: f64,
}

/// One point of the curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Calls a second that were to be made; `None`: as many as could be.
    pub offered: Option<f64>,
    /// Calls a second that were answered.
    pub throughput: f64,
    /// Mean response time in milliseconds.
    pub mean_ms: f64,
    /// What half of the calls took at most, in milliseconds.
    pub median_ms: f64,
    /// What 99 of 100 took at most.
    pub p99_ms: f64,
    /// By procedure, in the order of RFC 1813.
    pub procedures: Vec<Answered>,
}

/// What a run says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NfsReport {
    /// The server.
    pub address: String,
    /// What of it was used.
    pub export: String,
    /// The mix.
    pub mix: &'static str,
    /// Where its shares are from.
    pub source: &'static str,
    /// Clients.
    pub clients: usize,
    /// Seconds of a step.
    pub seconds: u64,
    /// Files of each client.
    pub files: u64,
    /// The unpaced step first, then by rising load.
    pub steps: Vec<Step>,
}

impl NfsReport {
    /// Returns the report for people.
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
            let Step { throughput, mean_ms, median_ms, p99_ms, .. } = step;
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
            let Answered { procedure, mean_ms, .. } = answered;
            text += &format!("| {procedure:<11} | {share:>12.1} % | {mean_ms:>16.3} |\n");
        }
        text + &format!("\nShares: {}\n", self.source)
    }

    /// Returns the curve as SVG.
    pub fn svg(&self) -> Result<String, String> {
        picture::svg_of(self)
    }
}

/// What one client has seen: the procedure and the response time in microseconds of each call.
type Seen = Vec<(Procedure, u32)>;

/// Runs all steps. What was made is removed at the end, whatever comes.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    told: &mut dyn FnMut(&str, u64, u64),
) -> Result<NfsReport, NfsError> {
    let steps_count = to_u64(LOADS.len()) + 1;
    told("files", 0, steps_count + 1);
    let mut loads: Vec<Load> = Vec::new();
    let mut first = Client::connect(options.address)?;
    let root = first.mount(&options.export)?;
    let top = load::make_top(&mut first, &root)?;
    let done = make_and_measure(options, &top, (&mut loads, stop), told);
    // One that fails keeps the others from nothing.
    let mut removed: Vec<_> = loads.iter_mut().map(Load::remove).collect();
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
    options: &Options,
    top: &[u8],
    (loads, stop): (&mut Vec<Load>, &AtomicBool),
    told: &mut dyn FnMut(&str, u64, u64),
) -> Result<Vec<Step>, NfsError> {
    let count = to_u64(LOADS.len()) + 2;
    for number in 0..to_u64(options.clients) {
        let client = Client::connect(options.address)?;
        loads.push(Load::new(client, top, number, options.seed));
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

/// Runs one step; `offered` is what all clients together are to ask in a second.
fn step(
    options: &Options,
    loads: &mut [Load],
    offered: Option<f64>,
    stop: &AtomicBool,
) -> Result<Step, NfsError> {
    let clients = to_f64(to_u64(loads.len().max(1)));
    let every = offered.map(|offered| Duration::from_secs_f64(clients / offered));
    let (begun, time) = (Instant::now(), Duration::from_secs(options.seconds));
    let seen: Vec<Result<Seen, NfsError>> = std::thread::scope(|scope| {
        let ask = |load| scope.spawn(move || one_client(load, options.mix, (every, time), stop));
        let asking: Vec<_> = loads.iter_mut().map(ask).collect();
        asking.into_iter().map(|client| client.join().unwrap_or(Err(NfsError::Stopped))).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let mut all: Seen = Vec::new();
    for seen in seen {
        all.extend(seen?);
    }
    Ok(step_of(offered, seconds, all))
}

/// Asks until the time is over.
#[expect(clippy::disallowed_methods, reason = "a client waits for the time of its next call")]
fn one_client(
    load: &mut Load,
    mix: Mix,
    (every, time): (Option<Duration>, Duration),
    stop: &AtomicBool,
) -> Result<Seen, NfsError> {
    let (begun, mut seen) = (Instant::now(), Vec::new());
    // Clients do not all ask at the same moment.
    let mut due = every.map(|every| begun + every.mul_f64(load.share()));
    while begun.elapsed() < time {
        if stop.load(Ordering::Relaxed) {
            return Err(NfsError::Stopped);
        }
        if let (Some(due), Some(every)) = (&mut due, every) {
            let now = Instant::now();
            // BN2. What cannot be reached is not owed for ever.
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

fn step_of(offered: Option<f64>, seconds: f64, seen: Seen) -> Step {
    let mean = |times: &[u32]| {
        let sum: u64 = times.iter().copied().map(u64::from).sum();
        to_f64(sum) / to_f64(to_u64(times.len().max(1))) / 1000.0
    };
    let of = |procedure: Procedure| -> Vec<u32> {
        seen.iter().filter(|(it, _)| *it == procedure).map(|(_, time)| *time).collect()
    };
    let procedures = Procedure::ALL.iter().map(|procedure| (procedure.name(), of(*procedure)));
    let procedures = procedures.filter(|(_, times)| !times.is_empty());
    let procedures = procedures.map(|(procedure, times)| Answered {
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
    Step {
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
        let mut seen: Seen = (1..=100).map(|time| (Procedure::Lookup, time * 1000)).collect();
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
