//! The thread that runs a server's schedules, retries unserved exports, and sends notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Hub;
use super::notices::{PoolObservation, PreviousPoolState};
use super::schedule::PASSES_MAX;
use crate::bugs;
use crate::events::{self, now_seconds};

/// Time between two runs. A snapshot is at most this late.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Pause between passes, in which the pool frees deleted snapshots.
const PASS_TIME: Duration = Duration::from_millis(250);
/// Quotas are read in one of this many runs, because a pool may have many filesets.
const QUOTA_LOOKS: u64 = 6;

/// The thread, which drop ends.
pub struct ScheduleThread {
    should_stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ScheduleThread {
    /// Starts the thread.
    pub fn start(hub: &Arc<Hub>) -> anyhow::Result<ScheduleThread> {
        let should_stop = Arc::new(AtomicBool::new(false));
        let (hub, stopped) = (Arc::clone(hub), Arc::clone(&should_stop));
        let thread = std::thread::Builder::new().name("schedules".to_owned()).spawn(move || {
            let mut seen: Vec<PreviousPoolState> =
                hub.pools.iter().map(|_| PreviousPoolState::default()).collect();
            let mut looks = 0;
            while !stopped.load(Ordering::Acquire) {
                let mut failed = bugs::spared("a look at schedules", || keep(&hub, &stopped));
                failed.extend(bugs::spared("a look at scrubs", || hub.keep_scrubs(now_seconds())));
                bugs::spared("a look at exports", || hub.serve_unserved());
                look(&hub, &mut seen, failed, looks % QUOTA_LOOKS == 0);
                looks += 1;
                std::thread::park_timeout(LOOK_EVERY);
            }
        })?;
        Ok(ScheduleThread { should_stop, thread: Some(thread) })
    }
}

/// Runs the snapshot schedules in up to [`PASSES_MAX`] passes. Returns the failures of the last
/// pass, with the index of the pool.
pub(super) fn keep(hub: &Hub, stopped: &AtomicBool) -> Vec<(usize, String)> {
    let mut kept = hub.keep_schedules(now_seconds());
    for _ in 1..PASSES_MAX {
        if !kept.has_more || stopped.load(Ordering::Acquire) {
            break;
        }
        std::thread::park_timeout(PASS_TIME);
        kept = hub.keep_schedules(now_seconds());
    }
    kept.failed
}

/// Observes each pool and sends notices. `failed` are the failures of schedules, by pool index.
fn look(
    hub: &Hub,
    seen: &mut [PreviousPoolState],
    failed: Vec<(usize, String)>,
    looks_at_quotas: bool,
) {
    // Messages about damage do not name their pool, so the first pool's notices report them.
    let mut damage = events::take_damage();
    for (index, (served, seen)) in hub.pools.iter().zip(seen).enumerate() {
        let own = failed.iter().filter(|(pool, _)| *pool == index);
        let schedules = own.map(|(_, text)| text.clone()).collect();
        let damage = damage.take();
        bugs::spared("a look at a pool", || {
            let mut status = served.pool.status();
            bugs::add_briefly_to(&mut status);
            let sight = PoolObservation {
                status,
                jobs: hub.jobs_of(index),
                filesets: looks_at_quotas.then(|| hub.limited_filesets(index)),
                schedules,
                damage,
            };
            for notice in seen.look(&sight) {
                let path = served.path.display().to_string();
                // Defects are in the log already.
                if notice.kind != "defect" {
                    tracing::warn!(pool = path, kind = notice.kind, "{}", notice.text);
                }
                hub.tell(&path, &notice);
            }
        });
    }
}

impl Drop for ScheduleThread {
    fn drop(&mut self) {
        self.should_stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
