//! The thread of an open pool that runs its background work a few times a second.
//!
//! # Invariants
//!
//! - JB1: Background work that fails by an error or a panic is retried at the next tick, and the
//!   pool's health reports the failure as long as it lasts. After [`BUGS_MAX`] panics the work
//!   stops, which the health reports too.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest pause between runs of the background work.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// Panics after which background work stops, because each may leave damaged state and fills the
/// log.
const BUGS_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct JobThread {
    should_stop: Arc<AtomicBool>,
    trouble: Arc<JobThreadFailure>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Why the background work fails or has stopped. `None` while it succeeds.
#[derive(Debug, Default)]
struct JobThreadFailure(Mutex<Option<String>>);

impl JobThreadFailure {
    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, trouble: Option<String>) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trouble) = trouble.as_ref().filter(|&trouble| last.as_ref() != Some(trouble)) {
            tracing::error!("{trouble}");
        }
        *last = trouble;
    }
}

impl JobThread {
    /// Starts a thread that calls `work` every `tick`, or sooner if `work` returns a shorter pause.
    pub(super) fn start(
        tick: Duration,
        work: impl FnMut() -> Result<Option<Duration>, String> + Send + 'static,
    ) -> JobThread {
        let (should_stop, trouble) =
            (Arc::new(AtomicBool::new(false)), Arc::<JobThreadFailure>::default());
        let thread = std::thread::Builder::new().name("jobs".to_owned()).spawn({
            let (should_stop, trouble) = (Arc::clone(&should_stop), Arc::clone(&trouble));
            move || run(tick, &should_stop, &trouble, work)
        });
        let thread = thread.inspect_err(|error| {
            trouble.set(Some(format!("there is no background work ({error}): unmount")));
        });
        JobThread { should_stop, trouble, thread: Mutex::new(thread.ok()) }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.get()
    }

    pub(super) fn wake(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.iter().for_each(|thread| thread.thread().unpark());
    }

    pub(super) fn stop(&self) {
        self.should_stop.store(true, Ordering::Release);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run(
    tick: Duration,
    should_stop: &AtomicBool,
    trouble: &JobThreadFailure,
    mut work: impl FnMut() -> Result<Option<Duration>, String>,
) {
    let (mut bug_count, mut rest) = (0, tick);
    while !should_stop.load(Ordering::Acquire) {
        if rest > Duration::ZERO {
            std::thread::park_timeout(rest);
        }
        // JB1: a panic does not end the thread.
        let done = catch_unwind(AssertUnwindSafe(&mut work));
        let wanted = done.as_ref().ok().and_then(|done| done.as_ref().ok()).copied().flatten();
        rest = wanted.map_or(tick, |wanted| wanted.min(tick));
        match done {
            Ok(done) => trouble.set(done.err().map(|error| format!("background work: {error}"))),
            Err(_) if bug_count < BUGS_MAX => {
                bug_count += 1;
                trouble.set(Some("background work failed by a bug: see the log".to_owned()));
            }
            Err(_) => {
                let advice = "unmount, run `holdfast check`, mount again";
                trouble.set(Some(format!("background work has stopped, by bugs: {advice}")));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Goal: background work continues after errors and panics, and reports them as long as they
    /// last. Method: work that returns what the test sends, and reports each of its runs.
    #[test]
    fn work_that_fails_is_tried_again_and_told() {
        let (tell, told) = mpsc::channel::<Option<Result<(), String>>>();
        let (begin, begun) = mpsc::channel();
        let jobs = JobThread::start(Duration::from_millis(1), move || {
            let _ = begin.send(());
            match told.recv() {
                Ok(Some(result)) => result.map(|()| None),
                Ok(None) => panic!("a bug that the test planted"),
                Err(_) => Ok(None),
            }
        });
        let expect = |what: Option<Result<(), String>>, words: &str| {
            begun.recv().expect("it runs");
            tell.send(what).expect("it listens");
            // The next run begins only after this result was stored.
            begun.recv().expect("it runs on");
            assert!(jobs.trouble().unwrap_or_default().contains(words), "{:?}", jobs.trouble());
            tell.send(Some(Ok(()))).expect("it listens");
        };
        expect(Some(Ok(())), "");
        expect(Some(Err("no memory".to_owned())), "no memory");
        for _ in 0..BUGS_MAX {
            expect(None, "a bug");
        }
        begun.recv().expect("it runs");
        tell.send(None).expect("it listens");
        begun.recv().expect_err("it has ended");
        assert!(jobs.trouble().unwrap_or_default().contains("has stopped"));
        jobs.stop();
    }

    /// Goal: work that returns a short pause is run again after that pause.
    #[test]
    fn work_that_has_more_to_do_is_called_at_once() {
        const CALLS: u32 = 100;
        let (tell, told) = mpsc::channel();
        let mut calls = 0;
        // The first run comes after a whole tick of a second. If the returned pause were ignored,
        // so would each later run.
        let jobs = JobThread::start(Duration::from_secs(1), move || {
            calls += 1;
            let _ = tell.send(calls);
            Ok((calls < CALLS).then_some(Duration::from_nanos(1)))
        });
        let soon = Duration::from_secs(20);
        for call in 1..=CALLS {
            assert_eq!(told.recv_timeout(soon), Ok(call), "a hundred seconds would be too long");
        }
        jobs.stop();
    }

    /// Goal: a woken thread does not wait for its next tick.
    #[test]
    fn work_that_somebody_waits_for_begins_at_once() {
        let (begun, seen) = mpsc::channel();
        let jobs = JobThread::start(Duration::from_secs(3600), move || {
            begun.send(()).map_err(|error| error.to_string())?;
            Ok(None)
        });
        for _ in 0..2 {
            jobs.wake();
            seen.recv_timeout(Duration::from_secs(60)).expect("it is done");
        }
        jobs.stop();
    }
}
