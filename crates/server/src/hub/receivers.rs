//! Receivers of notices: commands and webhooks (decision 0079).
//!
//! # Invariants
//!
//! - NO1: Sending a notice never waits for a receiver. Each receiver has a thread and a queue of
//!   [`QUEUE_MAX`] notices. A notice is dropped if the queue is full. The next one delivered has
//!   the number of those dropped.
//! - NO2: A receiver has [`RECEIVER_TIME`] for each notice. After it, its program is killed or its
//!   connection closed.
//!
//! Not here: when a notice is sent, and its text (`notices.rs`).

mod web;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Queue, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use ureq::http::Uri;

use super::notices::Notice;
use crate::events::now_seconds;
use control::NoticeTestFacts;

/// Length of a receiver's queue: more than the notices of a pool whose 32 members fail at once.
pub(crate) const QUEUE_MAX: usize = 64;
pub(crate) const RECEIVER_TIME: Duration = Duration::from_secs(30);
const POLL_TIME: Duration = Duration::from_millis(50);
/// Mails a notice: what `mail` and `sendmail` of earlier configurations did.
const MAIL_SCRIPT: &str = concat!(
    r#"printf 'Subject: holdfast: %s\n\n%s: %s\n' "$HOLDFAST_EVENT" "$HOLDFAST_POOL" "#,
    r#""$HOLDFAST_TEXT" | "$0" -i "$@""#,
);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryMethod {
    /// Program and arguments, run with the notice in its environment.
    Command(Vec<String>),
    Webhook(WebhookUrl),
}

/// An address of HTTP or HTTPS. Its path may be a secret, and is left out of logs and errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookUrl(Uri);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoticeReceiver {
    pub(crate) way: DeliveryMethod,
    /// Kinds of notices. Empty for all.
    pub(crate) events: Vec<String>,
}

#[derive(Clone, Debug)]
struct QueuedNotice {
    pool: String,
    notice: Notice,
    seconds: u64,
    dropped: u64,
    /// Where to send the result, for a test notice.
    asked: Option<Sender<DeliveryResult>>,
}

type DeliveryResult = Result<(), String>;

#[derive(Debug, Default)]
pub(super) struct NoticeCounts {
    told: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl NoticeCounts {
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

/// The receivers of a server, each with a queue and a thread. Drop makes the threads end, and does
/// not wait for that.
pub(crate) struct NoticeReceivers {
    all: Vec<(NoticeReceiver, SyncSender<QueuedNotice>, AtomicU64)>,
    /// Shared with retired receivers ([`NoticeReceivers::retire`]), so that all threads end with
    /// the server.
    should_stop: Arc<AtomicBool>,
    is_retired: bool,
    counts: Arc<NoticeCounts>,
}

impl Drop for NoticeReceivers {
    fn drop(&mut self) {
        if !self.is_retired {
            self.should_stop.store(true, Ordering::Release);
        }
    }
}

impl WebhookUrl {
    pub(crate) fn parse(text: &str) -> Result<WebhookUrl, String> {
        // The path and the user may be secrets.
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        let wrong = |cause: &str| {
            Err(format!("{scheme}://{host}/...: {cause}: write it as https://HOST:PORT/PATH"))
        };
        let uri: Uri = match text.parse() {
            Ok(uri) => uri,
            Err(error) => return wrong(&format!("{error}")),
        };
        let Some(authority) = uri.authority() else { return wrong("it names no host") };
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return wrong("no address of HTTP");
        }
        if authority.as_str().contains('@') {
            return wrong("a name and a password are not sent");
        }
        if authority.port().is_none() && authority.as_str() != authority.host() {
            return wrong("it has no such port");
        }
        Ok(WebhookUrl(uri))
    }

    fn shown(&self) -> String {
        let path = if self.0.path_and_query().is_none_or(|it| it == "/") { "/" } else { "/..." };
        let authority = self.0.authority().map_or("", |it| it.as_str());
        format!("{}://{authority}{path}", self.0.scheme_str().unwrap_or_default())
    }
}

/// Returns the line of `holdfast.toml` that mails notices by a command.
pub(crate) fn mail_line(to: &[String], sendmail: Option<&str>) -> String {
    let sendmail = sendmail.unwrap_or("/usr/sbin/sendmail");
    let words = [sendmail].into_iter().chain(to.iter().map(String::as_str));
    let words: Vec<_> = words.map(|word| toml::Value::from(word).to_string()).collect();
    format!("command = [\"/bin/sh\", \"-c\", '''{MAIL_SCRIPT}''', {}]", words.join(", "))
}

impl NoticeReceiver {
    pub(crate) fn words(&self) -> String {
        match &self.way {
            DeliveryMethod::Command(words) => format!("command {}", words.join(" ")),
            DeliveryMethod::Webhook(address) => format!("webhook {}", address.shown()),
        }
    }

    fn wants(&self, notice: &Notice) -> bool {
        notice.kind == "test"
            || self.events.is_empty()
            || self.events.iter().any(|event| event == notice.kind)
    }
}

impl NoticeReceivers {
    /// Starts a thread for each receiver in `all`. `before` are the receivers that they replace.
    pub(crate) fn start(
        all: &[NoticeReceiver],
        counts: &Arc<NoticeCounts>,
        before: Option<&NoticeReceivers>,
    ) -> std::io::Result<NoticeReceivers> {
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
        Ok(NoticeReceivers { all: started, should_stop, is_retired: false, counts })
    }

    /// Makes each thread end after it has delivered what is in its queue.
    pub(crate) fn retire(mut self) {
        self.is_retired = true;
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn tell(&self, pool: &str, notice: &Notice) {
        for (receiver, sender, dropped) in &self.all {
            if receiver.wants(notice) {
                self.give((sender, dropped), pool, notice, None);
            }
        }
    }

    pub(crate) fn test(&self, pool: &str, notice: &Notice) -> ReceiverTest {
        let give = |(receiver, sender, dropped): &(
            NoticeReceiver,
            SyncSender<QueuedNotice>,
            AtomicU64,
        )| {
            let (answer, answers) = channel();
            let is_given = self.give((sender, dropped), pool, notice, Some(answer));
            (receiver.words(), is_given, answers)
        };
        ReceiverTest { begun: Instant::now(), asked: self.all.iter().map(give).collect() }
    }

    fn give(
        &self,
        (sender, dropped): (&SyncSender<QueuedNotice>, &AtomicU64),
        pool: &str,
        notice: &Notice,
        asked: Option<Sender<DeliveryResult>>,
    ) -> bool {
        let before = dropped.swap(0, Ordering::AcqRel);
        let told = QueuedNotice {
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

pub(crate) struct ReceiverTest {
    begun: Instant,
    asked: Vec<(String, bool, Queue<DeliveryResult>)>,
}

impl ReceiverTest {
    /// Returns the results. A result that does not arrive within `time` is a failure.
    pub(crate) fn wait(self, time: Duration) -> Vec<NoticeTestFacts> {
        let outcome = |(receiver, is_given, answers): (String, bool, Queue<DeliveryResult>)| {
            let left = time.saturating_sub(self.begun.elapsed());
            let error = if is_given {
                let late = |_| Err(format!("it has not answered within {} s", time.as_secs()));
                answers.recv_timeout(left).unwrap_or_else(late).err()
            } else {
                Some(format!("{QUEUE_MAX} notices wait for it: it does not answer"))
            };
            NoticeTestFacts { receiver, ok: error.is_none(), error }
        };
        self.asked.into_iter().map(outcome).collect()
    }
}

/// Delivers notices until the sending end of the queue is dropped or `should_stop` is set.
fn serve(
    way: &DeliveryMethod,
    queue: &Queue<QueuedNotice>,
    should_stop: &AtomicBool,
    counts: &NoticeCounts,
) {
    while let Ok(told) = queue.recv() {
        if should_stop.load(Ordering::Acquire) {
            return;
        }
        let done = match way {
            DeliveryMethod::Command(words) => run_command(words, &told, should_stop),
            DeliveryMethod::Webhook(address) => {
                let (body, trusted) = (told.json().to_string(), web::trusted());
                web::post(address, &body, trusted.as_deref(), RECEIVER_TIME)
            }
        };
        let count = if done.is_ok() { &counts.told } else { &counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        if let Err(cause) = &done {
            let kind = told.notice.kind;
            tracing::error!(pool = told.pool, kind, "a notice is not told: {cause}");
        }
        if let Some(asked) = told.asked {
            let _ = asked.send(done);
        }
    }
}

impl QueuedNotice {
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

/// Waits until a program succeeds or fails. Kills it at the time limit (NO2).
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
        // With all that it has started: a shell is not all of a command.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.kill();
        let _ = child.wait();
        return Err(cause);
    }
}

fn run_command(
    words: &[String],
    told: &QueuedNotice,
    should_stop: &AtomicBool,
) -> Result<(), String> {
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let child = Command::new(program)
        .args(arguments)
        .env("HOLDFAST_POOL", &told.pool)
        .env("HOLDFAST_EVENT", told.notice.kind)
        .env("HOLDFAST_TEXT", &told.notice.text)
        .env("HOLDFAST_DROPPED", told.dropped.to_string())
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .process_group(0)
        .spawn();
    end_of(child.map_err(|error| format!("{program}: {error}"))?, should_stop, RECEIVER_TIME)
}

#[cfg(test)]
mod tests;
