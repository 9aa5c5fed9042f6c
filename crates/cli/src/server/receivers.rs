//! Whom a server tells what happens to its pools: commands, addresses of HTTP, mail (decision
//! 0079).
//!
//! # Invariants
//!
//! - NO1: Nobody who has something to tell waits for a receiver: each has a queue of
//!   [`QUEUE_MAX`] notices and a thread of its own. What finds the queue full is dropped, counted,
//!   and the next one that is told says how many were.
//! - NO2: A receiver may take [`RECEIVER_TIME`] for one notice, and is ended then.
//!
//! Not here: what is told, and when (`notices.rs`).

mod web;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Queue, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::notices::Notice;
use crate::control::ToldFacts;
use crate::events::now_seconds;

/// Notices that wait for one receiver: more than a pool of 32 failing members makes at once.
pub(crate) const QUEUE_MAX: usize = 64;
/// How long one notice may take.
pub(crate) const RECEIVER_TIME: Duration = Duration::from_secs(30);
/// How often it is looked whether a program has ended.
const POLL_TIME: Duration = Duration::from_millis(50);
/// Who sends mail, where nothing else is said.
pub(crate) const SENDMAIL: &str = "/usr/sbin/sendmail";

/// How one receiver is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A program with its arguments; the notice is in its environment.
    Command(Vec<String>),
    /// A POST of JSON.
    Webhook(Address),
    /// A mail to these, by a program that reads it.
    Mail {
        /// Who gets it.
        to: Vec<String>,
        /// Who sends it.
        sendmail: String,
    },
}

/// An address of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Whether by TLS.
    is_tls: bool,
    /// Name or number, and port.
    host: String,
    port: u16,
    /// From its slash on.
    path: String,
}

/// A receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receiver {
    /// How it is told.
    pub(crate) way: Way,
    /// Of what; none: of everything.
    pub(crate) events: Vec<String>,
}

/// A notice on its way.
#[derive(Clone, Debug)]
struct Told {
    pool: String,
    notice: Notice,
    seconds: u64,
    /// Notices that were dropped before this one.
    dropped: u64,
    /// Who wants to know what came of it.
    asked: Option<Sender<Outcome>>,
}

/// What came of one notice: why it was not told.
type Outcome = Result<(), String>;

/// What came of notices.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    told: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    /// Returns them for `status`.
    pub(crate) fn facts(&self, receivers: usize) -> Value {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "receivers": receivers,
            "told": of(&self.told),
            "failed": of(&self.failed),
            "dropped": of(&self.dropped),
        })
    }
}

/// The receivers of a server, each with its queue and its thread. The threads end when this is
/// dropped, and nobody waits for them.
pub(crate) struct Receivers {
    all: Vec<(Receiver, SyncSender<Told>, AtomicU64)>,
    /// Shared with those that were retired: all of them end with the server.
    should_stop: Arc<AtomicBool>,
    is_retired: bool,
    counts: Arc<Counts>,
}

impl Drop for Receivers {
    fn drop(&mut self) {
        if !self.is_retired {
            self.should_stop.store(true, Ordering::Release);
        }
    }
}

impl Address {
    /// Returns the address that `text` says, or why it is none.
    pub(crate) fn parse(text: &str) -> Result<Address, String> {
        let wrong =
            |cause: &str| Err(format!("{text}: {cause}: write it as https://HOST:PORT/PATH"));
        let (is_tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return wrong("no address of HTTP"),
        };
        if rest.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
            return wrong("it has a character that no address has");
        }
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        if host.contains('@') {
            return wrong("a name and a password are not sent");
        }
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => match port.parse() {
                Ok(port) => (name, port),
                Err(_) => return wrong("it has no such port"),
            },
            _ => (host, if is_tls { 443 } else { 80 }),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        if name.is_empty() {
            return wrong("it names no host");
        }
        Ok(Address { is_tls, host: name.to_owned(), port, path: path.to_owned() })
    }

    /// Returns host and port, as a request names them.
    fn host_field(&self) -> String {
        let Address { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Returns it as logs and errors show it: what lies behind the host is a secret with many who
    /// offer webhooks.
    fn shown(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        let path = if self.path == "/" { "/" } else { "/..." };
        format!("{scheme}://{}{path}", self.host_field())
    }
}

impl Receiver {
    /// Returns how it is told, as people say it.
    pub(crate) fn words(&self) -> String {
        match &self.way {
            Way::Command(words) => format!("command {}", words.join(" ")),
            Way::Webhook(address) => format!("webhook {}", address.shown()),
            Way::Mail { to, .. } => format!("mail to {}", to.join(", ")),
        }
    }

    fn wants(&self, notice: &Notice) -> bool {
        // A test is for everybody.
        notice.kind == "test"
            || self.events.is_empty()
            || self.events.iter().any(|event| event == notice.kind)
    }
}

impl Receivers {
    /// Starts a thread for each of `all`, which take the place of `before`.
    pub(crate) fn start(
        all: &[Receiver],
        counts: &Arc<Counts>,
        before: Option<&Receivers>,
    ) -> std::io::Result<Receivers> {
        let should_stop = before.map(|it| Arc::clone(&it.should_stop)).unwrap_or_default();
        let mut started = Vec::new();
        for receiver in all {
            let (sender, queue) = sync_channel(QUEUE_MAX);
            let (way, stopped) = (receiver.way.clone(), Arc::clone(&should_stop));
            let counts = Arc::clone(counts);
            std::thread::Builder::new()
                .name("notify".to_owned())
                .spawn(move || serve(&way, &queue, &stopped, &counts))?;
            started.push((receiver.clone(), sender, AtomicU64::new(0)));
        }
        let counts = Arc::clone(counts);
        Ok(Receivers { all: started, should_stop, is_retired: false, counts })
    }

    /// Others have taken their place: each ends once it has told what waits for it.
    pub(crate) fn retire(mut self) {
        self.is_retired = true;
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Tells each that wants to know it; waits for none (NO1).
    pub(crate) fn tell(&self, pool: &str, notice: &Notice) {
        for (receiver, sender, dropped) in &self.all {
            if receiver.wants(notice) {
                self.give((sender, dropped), pool, notice, None);
            }
        }
    }

    /// Tells each a test; waits for none (NO1).
    pub(crate) fn test(&self, pool: &str, notice: &Notice) -> Tested {
        let give = |(receiver, sender, dropped): &(Receiver, SyncSender<Told>, AtomicU64)| {
            let (answer, answers) = channel();
            let is_given = self.give((sender, dropped), pool, notice, Some(answer));
            (receiver.words(), is_given, answers)
        };
        Tested { begun: Instant::now(), asked: self.all.iter().map(give).collect() }
    }

    fn give(
        &self,
        (sender, dropped): (&SyncSender<Told>, &AtomicU64),
        pool: &str,
        notice: &Notice,
        asked: Option<Sender<Outcome>>,
    ) -> bool {
        let before = dropped.swap(0, Ordering::AcqRel);
        let told = Told {
            pool: pool.to_owned(),
            notice: notice.clone(),
            seconds: now_seconds(),
            dropped: before,
            asked,
        };
        match sender.try_send(told) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                dropped.fetch_add(before + 1, Ordering::AcqRel);
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }
}

/// A test that each receiver was told.
pub(crate) struct Tested {
    begun: Instant,
    asked: Vec<(String, bool, Queue<Outcome>)>,
}

impl Tested {
    /// Returns what came of it within `time`.
    pub(crate) fn wait(self, time: Duration) -> Vec<ToldFacts> {
        let outcome = |(receiver, is_given, answers): (String, bool, Queue<Outcome>)| {
            let left = time.saturating_sub(self.begun.elapsed());
            let error = if is_given {
                let late = |_| Err(format!("it has not answered within {} s", time.as_secs()));
                answers.recv_timeout(left).unwrap_or_else(late).err()
            } else {
                Some(format!("{QUEUE_MAX} notices wait for it: it does not answer"))
            };
            ToldFacts { receiver, ok: error.is_none(), error }
        };
        self.asked.into_iter().map(outcome).collect()
    }
}

/// Tells what comes, until the server drops the other end.
fn serve(way: &Way, queue: &Queue<Told>, should_stop: &AtomicBool, counts: &Counts) {
    while let Ok(told) = queue.recv() {
        if should_stop.load(Ordering::Acquire) {
            return;
        }
        let done = match way {
            Way::Command(words) => run_command(words, &told, should_stop),
            Way::Webhook(address) => {
                let (body, trusted) = (told.json().to_string(), web::trusted());
                web::post(address, &body, trusted.as_deref(), RECEIVER_TIME)
            }
            Way::Mail { to, sendmail } => mail(to, sendmail, &told, should_stop),
        };
        let count = if done.is_ok() { &counts.told } else { &counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        if let Err(cause) = &done {
            let kind = told.notice.kind;
            tracing::error!(pool = told.pool, kind, "a notice is not told: {cause}");
        }
        if let Some(asked) = told.asked {
            // Who asked may have gone.
            let _ = asked.send(done);
        }
    }
}

impl Told {
    fn json(&self) -> Value {
        json!({
            "event": self.notice.kind,
            "pool": self.pool,
            "text": self.notice.text,
            "seconds": self.seconds,
            "dropped_before": self.dropped,
        })
    }
}

/// NO2: waits until a program has ended well.
fn end_of(
    mut child: std::process::Child,
    should_stop: &AtomicBool,
    time: Duration,
) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let cause = match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Err(error) => return Err(error.to_string()),
            Ok(None) if begun.elapsed() > time => {
                format!("it took more than {} s", time.as_secs())
            }
            Ok(None) if should_stop.load(Ordering::Acquire) => "the server ends".to_owned(),
            Ok(None) => {
                std::thread::park_timeout(POLL_TIME);
                continue;
            }
        };
        let _ = child.kill();
        let _ = child.wait();
        return Err(cause);
    }
}

fn run_command(words: &[String], told: &Told, should_stop: &AtomicBool) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let child = Command::new(program)
        .args(arguments)
        .env("HOLDFAST_POOL", &told.pool)
        .env("HOLDFAST_EVENT", told.notice.kind)
        .env("HOLDFAST_TEXT", &told.notice.text)
        .env("HOLDFAST_DROPPED", told.dropped.to_string())
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .spawn();
    end_of(child.map_err(|error| format!("{program}: {error}"))?, should_stop, RECEIVER_TIME)
}

/// Returns text that is one line of a head: without what would begin another.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn mail(
    to: &[String],
    sendmail: &str,
    told: &Told,
    should_stop: &AtomicBool,
) -> Result<(), String> {
    let Told { pool, notice, dropped, .. } = told;
    let mut text = format!(
        "To: {}\nSubject: holdfast: {} {}\nAuto-Submitted: auto-generated\nContent-Type: \
         text/plain; charset=utf-8\n\n{pool}: {}\n",
        one_line(&to.join(", ")),
        notice.kind,
        one_line(pool),
        notice.text
    );
    if *dropped > 0 {
        text += &format!("{dropped} notices before this one were dropped.\n");
    }
    let child = Command::new(sendmail)
        .args(["-t", "-i"])
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| format!("{sendmail}: {error}"))?;
    // A pipe has room for it: a notice has 4 KiB at most.
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
    end_of(child, should_stop, RECEIVER_TIME)?;
    written.map_err(|error| format!("{sendmail}: {error}"))
}

#[cfg(test)]
mod tests;
