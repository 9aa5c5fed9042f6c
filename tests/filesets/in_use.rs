//! Moves of filesets that fronts use: they notice nothing but a pause, lose nothing, and keep the
//! numbers of their files; wherever power fails, the fileset is in exactly one pool.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use engine::api::{
    Caller, FileHandle, FileKind, FileSystem, FilesetUuid, FsError, NewInode, Stability,
};
use engine::{Fronts, Move, MoveError, MoveServices, MoveStep, Pool, PoolOpenOptions};
use front::relay::{Relay, StoppedRelay};
use runtime::clock::ManualClock;
use storage::device::sim::Strategy;
use storage::device::{MemoryDevice, SharedDevice};
use testkit::crash::judge_cuts;
use testkit::model::Model;
use testkit::ops::{Generator, LockstepOptions, Profile, run_lockstep};

use super::to_other_pool::{Both, InMemory, content, draw, filled};
use super::{assert_clean, free_all, name, new_fileset};

const POOL_BYTES: u64 = 64 << 20;
const STEPS: usize = 1200;
/// Steps between two moves.
const STEPS_APART: usize = 40;
const MOVES_UNDER_LOAD: usize = 12;
/// Moves, and moves that were given up, after which who works beside them is stuck.
const MOVES_MAX: usize = 400;
/// As long as a pause may be.
const PAUSE_NS: u64 = engine::PAUSE_NS_MAX;

fn pool(clock: &Arc<ManualClock>, seed: u8) -> (SharedDevice, Arc<Pool>) {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let create = engine::PoolCreateOptions::new(POOL_BYTES, [seed; 64]);
    Pool::create(&device, clock.as_ref(), &create).expect("a pool fits");
    let clock: Arc<ManualClock> = Arc::clone(clock);
    let pool = Pool::open(Arc::clone(&device), clock, PoolOpenOptions::default());
    (device, Arc::new(pool.expect("it opens")))
}

/// A fileset that is used, and moves between two pools.
struct Used {
    devices: [SharedDevice; 2],
    pools: [Arc<Pool>; 2],
    relay: Arc<Relay>,
    fileset: FilesetUuid,
    /// Which pool it is in.
    at: Cell<usize>,
    /// How often it has moved.
    moves: Cell<usize>,
}

/// Its fronts for one move.
struct RelayFronts<'r> {
    relay: &'r Relay,
    to: &'r Arc<Pool>,
    stopped: RefCell<Option<StoppedRelay<'r>>>,
}

impl Fronts for RelayFronts<'_> {
    fn fileset(&self) -> FilesetUuid {
        self.relay.main_fileset()
    }

    fn stop(&self) -> bool {
        *self.stopped.borrow_mut() = self.relay.stop();
        self.stopped.borrow().is_some()
    }

    fn give_back(&self) {
        self.stopped.borrow().iter().for_each(StoppedRelay::give_back);
    }

    fn go_on(&self) {
        self.stopped.borrow_mut().take();
        self.relay.go_on();
    }

    fn go_there(&self, slot: u32) {
        let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(self.to);
        let mut stopped = self.stopped.borrow_mut().take().or_else(|| self.relay.stop());
        stopped.as_mut().expect("no request takes long").move_to(fs, slot);
    }

    fn refuse(&self, _why: &str) {
        self.stopped.borrow_mut().take().expect("they are stopped").refuse();
    }
}

impl Used {
    fn new(clock: &Arc<ManualClock>) -> Used {
        let [one, two] = [pool(clock, 1), pool(clock, 2)];
        one.1.fileset_admin().create_fileset(&name("a"), &new_fileset(7)).expect("there is room");
        // Slots differ.
        for (text, random) in [("other", 8), ("secret", 9)] {
            two.1
                .fileset_admin()
                .create_fileset(&name(text), &new_fileset(random))
                .expect("there is room");
        }
        let fileset = one.1.fileset_admin().hold_fileset(&name("a")).expect("it is there");
        let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(&one.1);
        let relay = Relay::new(fs, fileset).expect("it is held");
        let (devices, pools) = ([one.0, two.0], [one.1, two.1]);
        Used { devices, pools, relay, fileset, at: Cell::new(0), moves: Cell::new(0) }
    }

    /// Moves it to the other pool, unless `on_step` ends that.
    fn move_on(&self, on_step: &mut dyn FnMut(MoveStep) -> bool) -> Result<(), MoveError> {
        let (from, to) = (self.at.get(), 1 - self.at.get());
        let a = name("a");
        let this = Move { source: (&self.pools[from], &a), target: (&self.pools[to], &a) };
        let stopped = RefCell::default();
        let fronts = RelayFronts { relay: &self.relay, to: &self.pools[to], stopped };
        let mut how = MoveServices {
            pipe: &InMemory { cut: Cell::new(None) },
            random: &mut draw,
            wait: &mut || self.pools.iter().all(|pool| pool.tick().is_ok()),
            fronts: Some(&fronts),
            on_step,
            progress: &mut |_, _| (),
        };
        this.run(&mut how)?;
        self.at.set(to);
        self.moves.set(self.moves.get() + 1);
        Ok(())
    }

    fn close(self) {
        for (pool, device) in self.pools.iter().zip(&self.devices) {
            free_all(pool);
            pool.close().expect("memory does not fail");
            assert_clean(device);
        }
    }
}

/// Goal: whoever uses a fileset that moves is answered as if it did not: names, content,
/// attributes, times, files that are open, with a name and without, listings that go on. Method:
/// random histories, side by side with the reference; between steps the fileset moves, there and
/// back.
#[test]
fn a_fileset_that_moves_answers_as_one_that_does_not() {
    for seed in 0..6 {
        let clock = Arc::new(ManualClock::new());
        let (used, model) = (Used::new(&clock), Model::new(clock.clone()));
        let step = Cell::new(0_usize);
        let background = || {
            step.set(step.get() + 1);
            if step.get().is_multiple_of(STEPS_APART) {
                let moved = used.move_on(&mut |_| true);
                moved.unwrap_or_else(|error| panic!("seed {seed}, step {}: {error}", step.get()));
            }
        };
        let history = Generator::history(seed, Profile::everyday(), STEPS);
        let options =
            LockstepOptions { clock: Some(&*clock), walk_every: 300, background: &background };
        let done = run_lockstep(&model, &*used.relay, &history, options);
        done.unwrap_or_else(|apart| panic!("seed {seed}: {apart}"));
        assert_eq!(used.moves.get(), STEPS / STEPS_APART);
        used.close();
    }
}

/// Goal: what was removed and is open goes along, of each kind and as large as it may be, with its
/// attributes; may still get a name if it never had one; and is freed when it is closed.
#[test]
fn a_file_that_was_removed_and_is_open_goes_along() {
    let clock = Arc::new(ManualClock::new());
    let used = Used::new(&clock);
    let (fs, caller, root) = (&*used.relay, Caller::root(), used.relay.root());
    let new = |kind| NewInode::new(kind, 0o750);
    let make = |name: &[u8], kind| fs.create(&caller, root, name, new(kind), None).expect("room");
    let file = make(b"file", FileKind::Regular).ino;
    fs.write(&caller, file, 0, &[8; 300_000]).expect("there is room");
    fs.write(&caller, file, 1 << 30, b"end").expect("there is room");
    let mode = engine::api::XattrMode::Set;
    fs.setxattr(&caller, file, b"user.long", &[4; 9000], mode, None).expect("there is room");
    let directory = make(b"directory", FileKind::Directory).ino;
    let link = fs.symlink(&caller, root, b"link", &[b'x'; 3000], NewInode::SYMLINK, None);
    let link = link.expect("there is room").ino;
    let unlinkable = fs.tmpfile(&caller, root, new(FileKind::Regular)).expect("room").ino;
    fs.write(&caller, unlinkable, 0, b"not yet").expect("there is room");
    let facts = |ino| fs.getattr(&caller, ino).expect("it is open");
    // One is removed before its copy is made, the others after it.
    fs.unlink(&caller, root, b"file", None).expect("it is there");
    let is_removed = Cell::new(false);
    let move_on = || {
        used.move_on(&mut |step| {
            if step == MoveStep::Followed && !is_removed.replace(true) {
                fs.rmdir(&caller, root, b"directory", None).expect("it is empty");
                fs.unlink(&caller, root, b"link", None).expect("it is there");
            }
            true
        })
    };
    for _ in 0..3 {
        move_on().expect("nothing is in its way");
        let mut read = Vec::new();
        assert_eq!(fs.read(&caller, file, 299_000, 2000, &mut read), Ok(2000));
        assert!(read[..1000] == [8; 1000] && read[1000..] == [0; 1000]);
        read.clear();
        assert_eq!(fs.read(&caller, file, 1 << 30, 9, &mut read), Ok(3));
        assert_eq!(fs.getxattr(&caller, file, b"user.long"), Ok(vec![4; 9000]));
        assert_eq!(fs.readlink(&caller, link), Ok(vec![b'x'; 3000]));
        assert_eq!([file, directory, link, unlinkable].map(|ino| facts(ino).nlink), [0; 4]);
        fs.write(&caller, file, 298_000, &[8; 10]).expect("it is open");
        fs.sync().expect("nothing fails");
    }
    fs.link(&caller, unlinkable, root, b"named", None).expect("it never had a name");
    used.move_on(&mut |_| true).expect("nothing is in its way");
    let named = fs.lookup(&caller, root, b"named").expect("it has one");
    assert_eq!((named.ino, named.nlink), (unlinkable, 1));
    for (ino, count) in [(file, 1), (directory, 1), (link, 1), (unlinkable, 3)] {
        fs.forget(ino, count);
    }
    for ino in [file, directory, link] {
        assert_eq!(fs.getattr(&caller, ino).map(drop), Err(FsError::Stale), "it is freed");
    }
    used.close();
}

/// Goal: no request is lost, done twice or done in the wrong pool, whatever is under way when
/// requests are stopped. Method: threads write files of their own, sync some, and read all back;
/// they remove and make names, and resolve handles that they have kept; meanwhile the fileset
/// moves.
#[test]
fn nothing_is_lost_of_what_threads_do_while_a_fileset_moves() {
    let clock = Arc::new(ManualClock::new());
    let used = Used::new(&clock);
    let is_over = AtomicBool::new(false);
    let (relay, fileset) = (&*used.relay, used.fileset);
    let rounds = [const { AtomicUsize::new(0) }; 3];
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(&rounds)
            .map(|(worker, rounds)| {
                let is_over = &is_over;
                scope.spawn(move || work(relay, fileset, (worker, rounds), is_over))
            })
            .collect();
        let over = Over(&is_over);
        let mut busy = 0;
        // Each works beside as many moves at least, however slow the machine.
        let is_slow = || rounds.iter().any(|it| it.load(Ordering::Relaxed) <= MOVES_UNDER_LOAD);
        while used.moves.get() < MOVES_UNDER_LOAD || is_slow() {
            assert!(used.moves.get() < MOVES_MAX, "{rounds:?}");
            assert!(!workers.iter().any(|it| it.is_finished()), "a worker has ended");
            match used.move_on(&mut |_| true) {
                Ok(()) => {}
                Err(MoveError::Busy(why)) => {
                    busy += 1;
                    assert!(busy < MOVES_MAX, "it never moves: {why}");
                }
                Err(error) => panic!("move {}: {error}", used.moves.get()),
            }
        }
        drop(over);
        for worker in workers {
            worker.join().expect("what was written is there");
        }
    });
    used.close();
}

/// Tells workers that it is over, also where something has failed.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes files, and compares them with what they should be; counts the rounds that it has made.
fn work(
    fs: &dyn FileSystem,
    fileset: FilesetUuid,
    (worker, rounds): (u8, &AtomicUsize),
    is_over: &AtomicBool,
) {
    let caller = Caller::root();
    let mut kept: BTreeMap<Vec<u8>, (FileHandle, Vec<u8>)> = BTreeMap::new();
    let mut round = 0_usize;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let file = format!("{worker}-{}", round % 7).into_bytes();
        if let Some((handle, _)) = kept.remove(&file) {
            fs.unlink(&caller, fs.root(), &file, None).expect("it is there");
            assert_eq!(fs.resolve(&caller, handle).map(drop), Err(FsError::Stale), "it is gone");
        }
        let new = NewInode::new(FileKind::Regular, 0o640);
        let made = fs.create(&caller, fs.root(), &file, new, None).expect("there is room");
        let length = 100 + round * 977 % 30_000;
        let bytes = vec![u8::try_from(round % 251).expect("small") ^ worker; length];
        let stability =
            if round.is_multiple_of(5) { Stability::Durable } else { Stability::Unstable };
        let data = engine::api::WriteData::Lent(&bytes);
        let written = fs.write_some(&caller, made.ino, 0, &data, stability, None);
        assert_eq!(written, Ok(length));
        fs.forget(made.ino, 1);
        kept.insert(file, (made.handle(fileset), bytes));
        for (file, (handle, bytes)) in &kept {
            let found = fs.resolve(&caller, *handle).expect("it is there");
            assert_eq!(found.handle(fileset), *handle, "its number stays");
            let named = fs.lookup(&caller, fs.root(), file).expect("it has its name");
            assert_eq!(named.ino, found.ino);
            let mut read = Vec::new();
            fs.read(&caller, found.ino, 0, bytes.len() + 1, &mut read).expect("it can be read");
            assert!(read == *bytes, "{} of {} bytes", read.len(), bytes.len());
            fs.forget(found.ino, 2);
        }
        rounds.store(round, Ordering::Relaxed);
    }
}

/// Goal: requests that come while nobody knows where the fileset is are refused, and go on when the
/// move does; a move that can't finish leaves them where they were.
#[test]
fn requests_go_on_when_a_move_that_was_ended_does() {
    use MoveStep::{Arrived, Copied, Followed, LastSnapshot, Leaves, Stopped};
    for last in [Copied, Followed, Stopped, Leaves, LastSnapshot, Arrived] {
        let clock = Arc::new(ManualClock::new());
        let used = Used::new(&clock);
        let (caller, root) = (Caller::root(), used.relay.root());
        let new = NewInode::new(FileKind::Regular, 0o640);
        let file = used.relay.create(&caller, root, b"file", new, None).expect("there is room");
        used.relay.write(&caller, file.ino, 0, &[5; 9000]).expect("there is room");
        let before = used.relay.getattr(&caller, file.ino);
        let ended = used.move_on(&mut |step| step != last);
        assert!(matches!(ended, Err(MoveError::Ended)), "{last:?}: {ended:?}");
        let is_refused = used.relay.getattr(&caller, file.ino) == Err(FsError::TryLater);
        let is_stopped = !matches!(last, Copied | Followed);
        assert_eq!(is_refused, is_stopped, "{last:?}");
        used.move_on(&mut |_| true).unwrap_or_else(|error| panic!("{last:?}: {error}"));
        assert_eq!(used.relay.getattr(&caller, file.ino), before, "{last:?}");
        used.relay.write(&caller, file.ino, 9000, &[6; 10]).expect("there is room");
        let is_here = |pool: &Pool| {
            let held = pool.fileset_admin().hold_fileset(&name("a"));
            held.map(|uuid| pool.fileset_admin().release_fileset(uuid)).is_ok()
        };
        assert_eq!([0, 1].map(|at: usize| is_here(&used.pools[at])), [false, true], "{last:?}");
        used.close();
    }
}

/// Goal: a fileset in use that gets another name while it moves goes on in the other pool, and its
/// fronts with it.
#[test]
fn a_fileset_in_use_that_is_renamed_while_it_moves_goes_on() {
    use MoveStep::{Copied, Followed, SnapshotTaken, Stopped};
    for at in [SnapshotTaken, Copied, Followed, Stopped] {
        let clock = Arc::new(ManualClock::new());
        let used = Used::new(&clock);
        let caller = Caller::root();
        let new = NewInode::new(FileKind::Regular, 0o640);
        used.relay.create(&caller, used.relay.root(), b"file", new, None).expect("room");
        let to = engine::FilesetChange { name: Some(name("z")), ..Default::default() };
        let renaming = &mut |step| {
            if step == at {
                used.pools[0]
                    .fileset_admin()
                    .change_fileset(&name("a"), &to)
                    .expect("it is not gone yet");
            }
            true
        };
        used.move_on(renaming).unwrap_or_else(|error| panic!("{at:?}: {error}"));
        assert!(used.relay.lookup(&caller, used.relay.root(), b"file").is_ok(), "{at:?}");
        assert_eq!(used.pools[0].fileset_admin().moves(), Ok(vec![]), "{at:?}");
        let left = used.pools[0].fileset_admin().filesets().expect("it can be read");
        assert!(left.iter().all(|it| it.name != "z" || it.freed_permille.is_some()), "{left:?}");
        used.close();
    }
}

/// Goal: requests are not stopped while differences take longer than a pause may; the move is given
/// up, and goes on when that is over.
#[test]
fn a_fileset_whose_differences_take_long_is_not_stopped() {
    let clock = Arc::new(ManualClock::new());
    let used = Used::new(&clock);
    let mut steps = Vec::new();
    let slow = used.move_on(&mut |step| {
        if step == MoveStep::Followed {
            clock.advance_ns(PAUSE_NS);
        }
        steps.push(step);
        true
    });
    assert!(matches!(slow, Err(MoveError::Busy(_))), "{slow:?}");
    assert!(!steps.contains(&MoveStep::Stopped), "{steps:?}");
    assert!(used.relay.getattr(&Caller::root(), used.relay.root()).is_ok());
    used.move_on(&mut |_| true).expect("nothing is slow");
    used.close();
}

/// Tells where both devices stood each time that requests went on where they were.
struct Backs<'b> {
    fileset: FilesetUuid,
    both: &'b Both,
    at: RefCell<Vec<[usize; 2]>>,
}

impl Fronts for Backs<'_> {
    fn fileset(&self) -> FilesetUuid {
        self.fileset
    }

    fn stop(&self) -> bool {
        true
    }

    fn give_back(&self) {}

    fn go_on(&self) {
        self.at.borrow_mut().push(self.both.positions());
    }

    fn go_there(&self, _slot: u32) {}

    fn refuse(&self, why: &str) {
        panic!("they are refused: {why}");
    }
}

/// Goal: a switch that takes too long is given up at the next look at the time, and requests go on
/// before anything is written for that, in either pool. Method: one step takes long, the first
/// time.
#[test]
fn a_switch_that_takes_long_is_given_up_without_a_wait() {
    use MoveStep::{LastSnapshot, Leaves, Stopped};
    for slow in [Stopped, Leaves, LastSnapshot] {
        let (images, _) = filled();
        let both = Both::open([&images[0], &images[1]], false).expect("they open");
        let fileset = both.pools[0].fileset_admin().hold_fileset(&name("a")).expect("it is there");
        let fronts = Backs { fileset, both: &both, at: RefCell::default() };
        let (mut steps, mut late_at) = (Vec::new(), None);
        let moved = both.run_used(&fronts, &mut |step| {
            if step == slow && late_at.is_none() {
                both.clock.advance_ns(PAUSE_NS);
                late_at = Some(both.positions());
            }
            steps.push(step);
            true
        });
        moved.unwrap_or_else(|error| panic!("{slow:?}: {error}"));
        let at = steps.iter().position(|step| *step == slow).expect("it was told");
        assert_eq!(steps[at + 1], MoveStep::Followed, "{slow:?}: {steps:?}");
        let late_at = late_at.expect("it was slow once");
        assert!(fronts.at.borrow().contains(&late_at), "{slow:?}: it waits for a device");
        assert_eq!(both.usable(), [false, true], "{slow:?}");
    }
}

/// Goal: a move that could not end behind the switch goes on when it is given again, and its fronts
/// stay as they are. Method: nobody frees what the move deletes, so that it does not end.
#[test]
fn a_move_that_could_not_end_goes_on_beside_its_fronts() {
    let clock = Arc::new(ManualClock::new());
    let used = Used::new(&clock);
    let (caller, root) = (Caller::root(), used.relay.root());
    let new = NewInode::new(FileKind::Regular, 0o640);
    let file = used.relay.create(&caller, root, b"file", new, None).expect("room").ino;
    used.relay.unlink(&caller, root, b"file", None).expect("it is there");
    let a = name("a");
    let this = Move { source: (&used.pools[0], &a), target: (&used.pools[1], &a) };
    let fronts =
        RelayFronts { relay: &used.relay, to: &used.pools[1], stopped: RefCell::default() };
    for waits in [false, false, true] {
        let mut how = MoveServices {
            pipe: &InMemory { cut: Cell::new(None) },
            random: &mut draw,
            wait: &mut || waits && used.pools.iter().all(|pool| pool.tick().is_ok()),
            fronts: Some(&fronts),
            on_step: &mut |_| true,
            progress: &mut |_, _| (),
        };
        let done = this.run(&mut how);
        let is_in_the_way = matches!(done, Err(MoveError::Target(FsError::FilesetInUse { .. })));
        assert_eq!((done.is_ok(), is_in_the_way), (waits, !waits), "{done:?}");
        assert!(used.relay.getattr(&caller, file).is_ok(), "it is open");
    }
    drop(fronts);
    used.at.set(1);
    // It is held once, so it may move again.
    used.move_on(&mut |_| true).expect("nothing is in its way");
    used.relay.forget(file, 1);
    assert_eq!(used.relay.getattr(&caller, file).map(drop), Err(FsError::Stale), "it is freed");
    used.close();
}

/// Goal: what a client has kept of a fileset means the same behind a move when the server is
/// started again: its numbers are those of no pool.
#[test]
fn what_was_kept_of_a_fileset_means_the_same_after_a_move_and_a_restart() {
    let clock = Arc::new(ManualClock::new());
    let used = Used::new(&clock);
    let (caller, root) = (Caller::root(), used.relay.root());
    let new = NewInode::new(FileKind::Regular, 0o640);
    let made = used.relay.create(&caller, root, b"file", new, None).expect("there is room");
    let kept = made.handle(used.fileset);
    used.move_on(&mut |_| true).expect("nothing is in its way");
    let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(&used.pools[1]);
    let next = Relay::new(fs, used.fileset).expect("it is held");
    assert_eq!((next.root(), next.root_of(used.fileset)), (root, Ok(root)));
    assert_eq!(next.resolve(&caller, kept).map(|attr| attr.handle(used.fileset)), Ok(kept));
    let there = used.pools[1].root_of(used.fileset).expect("it is held");
    assert_eq!(next.getattr(&caller, there).map(drop), Err(FsError::Stale), "it was never shown");
    next.forget(kept.ino, 1);
    used.close();
}

/// Goal: what is seen of a fileset's snapshots before a move leads nowhere after it, for its slot
/// is another's in the other pool; what is seen after it leads there.
#[test]
fn what_was_seen_of_a_snapshot_before_a_move_leads_nowhere_after_it() {
    let clock = Arc::new(ManualClock::new());
    let used = Used::new(&clock);
    let (caller, root) = (Caller::root(), used.relay.root());
    let secret = used.pools[1].fileset_admin().hold_fileset(&name("secret")).expect("it is there");
    let secret = used.pools[1].root_of(secret).expect("it is held");
    let there = root.in_slot(secret.slot());
    assert_ne!(there, root);
    assert!(used.pools[1].getattr(&caller, secret).is_ok());
    used.move_on(&mut |_| true).expect("nothing is in its way");
    assert_eq!(used.relay.getattr(&caller, there).map(drop), Err(FsError::Stale));
    let snapshot = super::send::part("since");
    used.pools[1]
        .fileset_admin()
        .create_snapshot(&name("a"), &snapshot, [4; 16])
        .expect("there is room");
    let snapshots = used.relay.lookup(&caller, root, b".snapshots").expect("it is there");
    let seen = used.relay.lookup(&caller, snapshots.ino, b"since").expect("it is taken");
    assert_ne!(seen.ino.slot(), root.slot());
    assert!(used.relay.getattr(&caller, seen.ino).is_ok());
    let refused = used.move_on(&mut |_| true).expect_err("it has a snapshot").to_string();
    assert!(refused.contains("a@since"), "{refused}");
}

/// Holds the fileset once, as fronts do, and sees nothing else.
struct Silent(FilesetUuid);

impl Fronts for Silent {
    fn fileset(&self) -> FilesetUuid {
        self.0
    }

    fn stop(&self) -> bool {
        true
    }

    fn give_back(&self) {}

    fn go_on(&self) {}

    fn go_there(&self, _slot: u32) {}

    fn refuse(&self, _why: &str) {}
}

/// Goal: power fails at any write of the move of a fileset in use, in either pool: it is in exactly
/// one, whole; if that is the other, with all that was accepted before requests were stopped.
/// Method: as for one that nobody uses; while it moves, files are written and made durable.
#[test]
fn a_fileset_in_use_that_a_crash_stops_is_in_exactly_one_pool() {
    let (images, first) = filled();
    let both = Both::open([&images[0], &images[1]], true).expect("they open");
    let held = both.pools[0].fileset_admin().hold_fileset(&name("a")).expect("it is there");
    let root = both.pools[0].root_of(held).expect("it is held");
    let now = || both.devices.each_ref().map(|device| (device.position(), device.durable_image()));
    let (mut steps, is_given_up) = (vec![now()], Cell::new(false));
    let mut versions = vec![first];
    both.run_used(&Silent(held), &mut |step| {
        // The first switch is given up.
        if step == MoveStep::LastSnapshot && !is_given_up.replace(true) {
            both.clock.advance_ns(PAUSE_NS);
        }
        if step == MoveStep::Followed {
            let (caller, file) = (Caller::root(), format!("since {}", steps.len()).into_bytes());
            let new = NewInode::new(FileKind::Regular, 0o640);
            let made = both.pools[0].create(&caller, root, &file, new, None).expect("room");
            both.pools[0].write(&caller, made.ino, 0, &[9; 50_000]).expect("there is room");
            both.pools[0].forget(made.ino, 1);
            both.pools[0].fsync(&caller, made.ino, false).expect("nothing fails");
            versions.push(content(&both.devices[0].durable_image(), "a"));
        }
        steps.push(now());
        true
    })
    .expect("nothing fails");
    steps.push(now());
    assert!(versions.len() > 2, "nothing has followed, or only once");
    let versions: Vec<String> = versions.iter().map(|it| format!("{it:?}")).collect();
    let strategy =
        Strategy { exhaustive_writes_max: 1, random_subsets: 1, torn_variants: 1, seed: 6 };
    let mut judged = 0;
    for cut_pool in 0..2 {
        let may_be = |at: usize| -> Vec<usize> {
            let is_at = |step: &usize| {
                let [from, to] = [*step, step + 1].map(|step| steps[step][cut_pool].0);
                (from..=to).contains(&at)
            };
            let within = (0..steps.len() - 1).filter(is_at);
            let mut all: Vec<usize> = within.flat_map(|step| [step, step + 1]).collect();
            all.dedup();
            all
        };
        let recording = both.devices[cut_pool].recording();
        judged += judge_cuts(&format!("pool {cut_pool}"), &recording, &strategy, may_be, |cut| {
            for other in &cut.known {
                let other = &steps[*other][1 - cut_pool].1;
                let images = if cut_pool == 0 { [&cut.image, other] } else { [other, &cut.image] };
                judge(images, &versions)?;
            }
            Ok(())
        });
    }
    assert!(judged > 30, "{judged} images mean little");
}

fn judge(images: [&storage::device::sim::Image; 2], versions: &[String]) -> Result<(), String> {
    let both = Both::open(images, false)?;
    if both.usable() == [true, true] {
        return Err("it is used in both pools".to_owned());
    }
    let settled = both.with(None, &mut |_| true, |this, _| this.settle());
    settled.map_err(|error| error.to_string())?;
    let is_there = match both.usable() {
        [true, false] => 0,
        [false, true] => 1,
        usable => return Err(format!("once they have asked each other it is used in {usable:?}")),
    };
    let fileset = ["a", "b"][is_there];
    let images = both.close()?;
    let found = format!("{:?}", content(&images[is_there], fileset));
    let allowed = if is_there == 0 { versions } else { &versions[versions.len() - 1..] };
    if allowed.contains(&found) { Ok(()) } else { Err(format!("{fileset} is not what it was")) }
}
