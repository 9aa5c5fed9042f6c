//! Long runs over seeds: which ones, how far they have come, and what they cost.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two lines.
const EVERY: Duration = Duration::from_secs(10);
/// Time after which a seed counts as hanging: a slow machine is no hang.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Stands for no seed: nothing is being done.
const NONE: u64 = u64::MAX;

/// Returns the seeds that the environment asks for in `variable`, as `first..end`, or those below
/// `usual`.
///
/// # Panics
///
/// If the variable holds something else.
#[must_use]
pub fn seeds(variable: &str, usual: u64) -> Range<u64> {
    let Ok(text) = std::env::var(variable) else { return 0..usual };
    let number = |text: &str| text.trim().parse().ok();
    let range = text.split_once("..").and_then(|(first, end)| Some(number(first)?..number(end)?));
    range.unwrap_or_else(|| panic!("{variable}=first..end, and not {text}"))
}

/// A long run, as one reads of it. Ends the program if a seed takes too long.
#[derive(Debug)]
pub struct Soak {
    what: &'static str,
    begun: Instant,
    told: Instant,
    done: u64,
    /// What is being done; the thread that watches it ends with the soak.
    seed: Arc<AtomicU64>,
}

impl Soak {
    /// Begins a run over `what`, in the plural.
    #[must_use]
    pub fn of(what: &'static str) -> Soak {
        let now = Instant::now();
        let seed = Arc::new(AtomicU64::new(NONE));
        watch(&seed);
        Soak { what, begun: now, told: now, done: 0, seed }
    }

    /// Says that `seed` is next.
    pub fn begin(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
    }

    /// Says that for now nothing is done that may not take long.
    pub fn pause(&self) {
        self.begin(NONE);
    }

    /// Counts `count` more that are done, and prints a line, with what `note` adds, when it is
    /// time.
    pub fn add(&mut self, count: u64, note: impl FnOnce() -> String) {
        self.done += count;
        if self.told.elapsed() >= EVERY {
            self.told = Instant::now();
            println!("{}", self.line(&note()));
        }
    }

    /// Returns what came of the run.
    #[must_use]
    pub fn line(&self, note: &str) -> String {
        let (what, done, elapsed) = (self.what, self.done, self.begun.elapsed());
        let per_second = u128::from(done) * 1000 / elapsed.as_millis().max(1);
        let (seconds, mib) = (elapsed.as_secs(), memory_bytes_peak() >> 20);
        format!("{done} {what} in {seconds} s, {per_second}/s: {note}, a peak of {mib} MiB")
    }
}

/// Examines an image for each seed that `variable` asks for, or below `usual`: `make` makes the
/// image of a seed, and what it returns says whether a pool could be opened in it.
///
/// # Panics
///
/// If one panics; if hardly any opens; if the program has had `memory_bytes_max` of memory.
pub fn examine_images<E: FnOnce() -> bool>(
    variable: &str,
    usual: u64,
    memory_bytes_max: u64,
    mut make: impl FnMut(u64) -> E,
) {
    let (mut soak, mut opened, mut failed) = (Soak::of("images"), 0_u64, Vec::new());
    let seeds = seeds(variable, usual);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        soak.begin(seed);
        match catch_unwind(AssertUnwindSafe(make(seed))) {
            Ok(was_open) => opened += u64::from(was_open),
            Err(_) => {
                println!("seed {seed} panics");
                failed.push(seed);
            }
        }
        soak.add(1, || format!("{opened} opened, {} failed", failed.len()));
    }
    println!("{}", soak.line(&format!("{opened} opened, {} failed", failed.len())));
    assert!(failed.is_empty(), "{} seeds fail: {failed:?}", failed.len());
    assert!(count < 100 || opened > count / 4, "most are refused: {opened} of {count} opened");
    assert!(memory_bytes_peak() < memory_bytes_max, "{} bytes", memory_bytes_peak());
}

/// Stops the program if one seed takes too long.
#[expect(clippy::disallowed_methods, reason = "a test of hangs measures real time")]
fn watch(seed: &Arc<AtomicU64>) {
    let seed = Arc::downgrade(seed);
    std::thread::spawn(move || {
        let mut last = (NONE, Instant::now());
        while let Some(now) = seed.upgrade().map(|seed| seed.load(Ordering::Relaxed)) {
            if last.0 != now || now == NONE {
                last = (now, Instant::now());
            }
            if last.1.elapsed() > HANGS_AFTER {
                println!("seed {now} hangs");
                std::process::abort();
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    });
}

/// Returns the most memory that this program has had; 0 where the system does not tell.
#[must_use]
pub fn memory_bytes_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
