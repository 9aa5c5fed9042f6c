//! The thread that looks at a server's schedules, and at what is to be told of its pools, for as
//! long as it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Hub;
use super::notices::{self, Seen};
use crate::events::now_seconds;

/// How often schedules are looked at: a clone is so late at most.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The thread. It ends when this is dropped.
pub(crate) struct Timetable {
    should_stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Timetable {
    /// Reads what was set, and keeps it from now on.
    pub(crate) fn start(hub: &Arc<Hub>) -> anyhow::Result<Timetable> {
        hub.read_schedules()?;
        let should_stop = Arc::new(AtomicBool::new(false));
        let (hub, stopped) = (Arc::clone(hub), Arc::clone(&should_stop));
        let thread = std::thread::Builder::new().name("schedules".to_owned()).spawn(move || {
            let mut seen: Vec<Seen> = hub.pools.iter().map(|_| Seen::default()).collect();
            while !stopped.load(Ordering::Acquire) {
                hub.keep_schedules(now_seconds());
                look(&hub, &mut seen);
                std::thread::park_timeout(LOOK_EVERY);
            }
        })?;
        Ok(Timetable { should_stop, thread: Some(thread) })
    }
}

/// Tells what has happened to pools since the last look.
fn look(hub: &Hub, seen: &mut [Seen]) {
    let commands = hub.notify_commands();
    for (served, seen) in hub.pools.iter().zip(seen) {
        for notice in seen.look(&served.pool.status()) {
            let path = served.path.display().to_string();
            tracing::warn!(pool = path, kind = notice.kind, "{}", notice.text);
            commands.iter().for_each(|command| notices::tell(command, &path, &notice));
        }
    }
}

impl Drop for Timetable {
    fn drop(&mut self) {
        self.should_stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // What it was doing is done.
            let _ = thread.join();
        }
    }
}
