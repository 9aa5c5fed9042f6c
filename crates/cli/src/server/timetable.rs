//! The thread that looks at a server's schedules, and at what is to be told of its pools, for as
//! long as it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Hub;
use super::notices::{Seen, Sight};
use super::schedule::PASSES_MAX;
use crate::bugs;
use crate::events::{self, now_seconds};

/// How often schedules are looked at: a clone is so late at most.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long a pass waits for the one before it: the pool goes on with what it frees so often.
const PASS_TIME: Duration = Duration::from_millis(250);
/// Looks from one at filesets and their quotas to the next: a pool may have many.
const QUOTA_LOOKS: u64 = 6;

/// The thread. It ends when this is dropped.
pub(crate) struct Timetable {
    should_stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Timetable {
    /// Keeps what was read and what is set from now on.
    pub(crate) fn start(hub: &Arc<Hub>) -> anyhow::Result<Timetable> {
        let should_stop = Arc::new(AtomicBool::new(false));
        let (hub, stopped) = (Arc::clone(hub), Arc::clone(&should_stop));
        let thread = std::thread::Builder::new().name("schedules".to_owned()).spawn(move || {
            let mut seen: Vec<Seen> = hub.pools.iter().map(|_| Seen::default()).collect();
            let mut looks = 0;
            while !stopped.load(Ordering::Acquire) {
                // Whatever one of them meets, the others and the next look are as ever.
                let mut failed = bugs::spared("a look at schedules", || keep(&hub, &stopped));
                failed.extend(bugs::spared("a look at scrubs", || hub.keep_scrubs(now_seconds())));
                bugs::spared("a look at exports", || hub.serve_unserved());
                look(&hub, &mut seen, failed, looks % QUOTA_LOOKS == 0);
                looks += 1;
                std::thread::park_timeout(LOOK_EVERY);
            }
        })?;
        Ok(Timetable { should_stop, thread: Some(thread) })
    }
}

/// Does what schedules want, in as many passes as one look has. Returns what they could not do in
/// the end, by pool.
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

/// Tells what has happened to pools since the last look. `failed` is what their schedules could
/// not do, by pool.
fn look(hub: &Hub, seen: &mut [Seen], failed: Vec<(usize, String)>, looks_at_quotas: bool) {
    // The log does not say of which pool it tells: the first stands for all.
    let mut damage = events::take_damage();
    for (index, (served, seen)) in hub.pools.iter().zip(seen).enumerate() {
        let own = failed.iter().filter(|(pool, _)| *pool == index);
        let schedules = own.map(|(_, text)| text.clone()).collect();
        let damage = damage.take();
        bugs::spared("a look at a pool", || {
            let mut status = served.pool.status();
            bugs::add_briefly_to(&mut status);
            let sight = Sight {
                status,
                jobs: hub.jobs_of(index),
                filesets: looks_at_quotas.then(|| hub.limited_filesets(index)),
                schedules,
                damage,
            };
            for notice in seen.look(&sight) {
                let path = served.path.display().to_string();
                // What the log tells of is in it already.
                if notice.kind != "defect" {
                    tracing::warn!(pool = path, kind = notice.kind, "{}", notice.text);
                }
                hub.tell(&path, &notice);
            }
        });
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
