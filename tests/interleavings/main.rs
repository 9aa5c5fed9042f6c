//! Threads at work on one pool, in one order of their locks after the other.
//!
//! Goal: whatever the order, what the threads are answered, and what is there in the end, is what
//! some order of whole calls gives, in which whatever was answered before something else was asked
//! comes first; nobody waits for ever; the check finds nothing.
//!
//! Method: short programs by seed on few names, so that they meet. [`threads`] chooses at every
//! lock who goes on; one more thread makes things durable meanwhile. The reference looks for the
//! order ([`order`]).
//!
//! `HOLDFAST_SOAK=N` runs N times as many programs, `HOLDFAST_SEED=S` begins at another.

mod call;
mod order;
#[cfg(not(feature = "shuttle"))]
mod sealing;
#[cfg_attr(feature = "shuttle", path = "explored.rs")]
mod threads;
#[cfg(not(feature = "shuttle"))]
mod together;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use engine::api::{FileKind, FileSystem, RenameMode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use testkit::canon::{Times, walk};
use testkit::model::Model;

use call::{Call, Focus, Held, Inode};
use order::{Answered, is_explained, told};
use threads::{Threads, Work};

const THREADS: u32 = 3;
const CALLS_MAX: u64 = 6;
const POOL_BYTES: u64 = 10 << 20;
const CACHE_BYTES: usize = 1 << 20;
/// How often the thread beside them makes things durable.
const CHECKPOINTS: usize = 2;

/// What threads do, and on what.
struct Program {
    is_deep: bool,
    threads: Vec<Vec<Call>>,
}

impl Program {
    fn random(random: &mut Prng) -> Program {
        let (is_deep, focus) = (random.one_in(2), Focus::random(random));
        let mut fill = 0;
        let mut call = |random: &mut Prng| {
            fill += 1;
            Call::random(random, focus, fill)
        };
        let mut thread = || (0..=random.below(CALLS_MAX)).map(|_| call(random)).collect();
        Program { is_deep, threads: (0..THREADS).map(|_| thread()).collect() }
    }
}

/// What was answered, by thread, and how many stamps were given out.
struct History {
    stamps: AtomicUsize,
    // Not a lock that is scheduled: it is held for no longer than a push.
    answered: Mutex<Vec<Vec<Answered>>>,
}

impl History {
    fn new(threads: usize) -> History {
        History { stamps: AtomicUsize::new(0), answered: Mutex::new(vec![Vec::new(); threads]) }
    }

    fn stamp(&self) -> usize {
        self.stamps.fetch_add(1, Ordering::SeqCst)
    }

    /// Makes `calls` one after the other, and notes the answers as those of `thread`.
    fn perform(&self, fs: &dyn FileSystem, held: &Held, thread: usize, calls: &[Call]) {
        for call in calls {
            let begun = self.stamp();
            let answer = call.on(fs, held);
            let ended = self.stamp();
            let reference = answer.reference(fs);
            let call = call.clone();
            let answered = Answered { call, answer, begun, ended };
            self.answered.lock().expect("nobody panics while he holds it")[thread].push(answered);
            if let Some(ino) = reference {
                fs.forget(ino, 1);
            }
        }
    }
}

/// Returns a device with an empty pool of small segments: seven blocks fill one.
fn new_pool(threads: &Threads, clock: &ManualClock) -> SharedDevice {
    let device = threads.device(POOL_BYTES);
    let mut create = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    create.geometry.journal_bytes = Some(1 << 20);
    create.geometry.segment_bytes = Some(128 << 10);
    create.geometry.group_bytes = Some(2 << 20);
    Pool::create(&device, clock, &create).expect("a pool fits");
    device
}

/// Runs `program` on a pool once, in the order that `threads` chooses, and judges it.
fn judge(threads: &Threads, program: &Program, context: &str) {
    let clock = Arc::new(ManualClock::new());
    let device = new_pool(threads, &clock);
    let options = PoolOpenOptions { cache_bytes: CACHE_BYTES, ..PoolOpenOptions::default() };
    let pool = Pool::open(Arc::clone(&device), clock.clone(), options).expect("it was just made");
    let pool = Arc::new(pool);
    let model = Model::new(clock);
    let prepare = |fs| Held::prepare(fs, program.is_deep);
    let (model_held, pool_held) = (prepare(&model), prepare(&*pool));

    let surveyor = program.threads.len();
    let history = Arc::new(History::new(surveyor + 1));
    threads.run(works(&pool, pool_held, &history, &program.threads));
    history.perform(&*pool, &pool_held, surveyor, &Call::survey());

    let answered = history.answered.lock().expect("nobody panics while he holds it");
    assert!(
        is_explained(model, (&model_held, &pool_held), &answered),
        "no order explains this, {context}:\n{}",
        told(&answered)
    );
    if let Err(error) = walk(&*pool, Times::Ignored) {
        panic!("{error}, {context}:\n{}", told(&answered));
    }
    for held in pool_held.all().iter().filter(|held| held.ino != pool.root()) {
        pool.forget(held.ino, 1);
    }
    pool.close().expect("the device does not fail");
    let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{context}:\n{}{}", told(&answered), report.to_text());
}

/// Returns what each of `threads` does, and the one that makes things durable.
fn works(pool: &Arc<Pool>, held: Held, history: &Arc<History>, threads: &[Vec<Call>]) -> Vec<Work> {
    let mut works: Vec<Work> = Vec::new();
    for (thread, calls) in threads.iter().enumerate() {
        let (pool, history, calls) = (Arc::clone(pool), Arc::clone(history), calls.clone());
        works.push(Box::new(move || history.perform(&*pool, &held, thread, &calls)));
    }
    let pool = Arc::clone(pool);
    works.push(Box::new(move || {
        for _ in 0..CHECKPOINTS {
            pool.tick().expect("the device does not fail");
            pool.checkpoint().expect("the device does not fail");
        }
    }));
    works
}

/// Judges many orders of one program.
fn judge_orders(program: Program) {
    let program = Arc::new(program);
    for seed in 0..threads::programs() {
        let (program, context) = (Arc::clone(&program), format!("order {seed}"));
        threads::explore(seed, move |threads| judge(threads, &program, &context));
    }
}

/// Goal: a rename that must not replace is refused only at a moment at which both its names are
/// there. Method: another thread takes the old name away before it gives the new one, which is in
/// `directory`.
fn rename_beside_removal_and_create(directory: Inode) {
    let (old, new) = ((Inode::Root, "a"), (directory, "c"));
    let threads = vec![
        vec![Call::Rename(old, new, RenameMode::NoReplace)],
        vec![Call::Unlink(old), Call::Create(new, FileKind::Regular)],
    ];
    judge_orders(Program { is_deep: true, threads });
}

#[test]
fn a_rename_sees_both_its_names_at_one_moment() {
    rename_beside_removal_and_create(Inode::Root);
}

#[test]
fn a_rename_to_another_directory_sees_both_its_names_at_one_moment() {
    rename_beside_removal_and_create(Inode::D);
}

/// Goal: a name that a whiteout takes over is there at every moment. Method: another thread makes
/// and removes it meanwhile.
#[test]
fn a_name_that_a_whiteout_takes_over_is_never_free() {
    let (old, new) = ((Inode::Root, "a"), (Inode::D, "c"));
    let threads = vec![
        vec![Call::Rename(old, new, RenameMode::Whiteout)],
        vec![Call::Create(old, FileKind::Regular), Call::Unlink(old), Call::Lookup(old)],
    ];
    judge_orders(Program { is_deep: true, threads });
}

/// Goal: what is written behind a hole while it is punched stays. Method: the hole ends in the last
/// block of the file, behind its end, and another thread writes into that block behind the hole.
#[test]
fn a_punch_takes_nothing_that_is_written_behind_it() {
    let file = Inode::F;
    let threads = vec![
        vec![Call::Write(file, 0, 5000, 1), Call::Punch(file, 0, 6000)],
        vec![Call::Write(file, 7000, 2000, 2)],
    ];
    judge_orders(Program { is_deep: false, threads });
}

#[test]
fn answers_are_those_of_some_order_of_whole_calls() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = setting("HOLDFAST_SEED").unwrap_or(0);
    let count = threads::programs() * setting("HOLDFAST_SOAK").unwrap_or(1);
    for seed in first..first + count {
        let program = Arc::new(Program::random(&mut Prng::from_seed(seed)));
        let context = format!("HOLDFAST_SEED={seed}");
        threads::explore(seed, move |threads| judge(threads, &program, &context));
    }
}
