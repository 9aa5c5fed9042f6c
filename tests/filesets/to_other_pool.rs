//! Moves of filesets to another pool: the same files there, and in exactly one pool wherever power
//! fails or somebody ends the move.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode};
use engine::{
    FilesetChange, FilesetInfo, Fronts, Move, MoveError, MoveServices, MoveStep, Pipe, Pool,
    PoolCreateOptions, PoolOpenOptions, ReceiveFailure, Received, SendError,
};
use format::stream::StreamTotals;
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use testkit::crash::judge_cuts;

use super::send::{Known, assert_same, known, part};
use super::{expect_clean, free_all, name, new_fileset, work};

const POOL_BYTES: u64 = 24 << 20;
const OPERATIONS: usize = 120;

/// How many random bits were drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// Keeps a whole stream in memory; of the first ones only some bytes come.
pub(super) struct InMemory {
    pub(super) cut: std::cell::Cell<Option<usize>>,
}

/// Returns random bits, others in each move, as outside of tests: no move takes another's snapshots
/// for its own.
pub(super) fn draw() -> [u8; 32] {
    let drawn = DRAWN.fetch_add(1, Ordering::Relaxed);
    let mut bits = [7; 32];
    for half in bits.chunks_mut(16) {
        half[8..].copy_from_slice(&drawn.to_le_bytes());
    }
    bits
}

type Send<'p> =
    &'p mut (dyn FnMut(&mut dyn Write) -> Result<StreamTotals, SendError> + std::marker::Send);
type Receive<'p> =
    &'p mut (dyn FnMut(&mut dyn Read) -> Result<Received, ReceiveFailure> + std::marker::Send);

impl Pipe for InMemory {
    fn carry(&self, send: Send<'_>, receive: Receive<'_>) -> Result<Received, MoveError> {
        let mut bytes = Vec::new();
        send(&mut bytes)?;
        let end = self.cut.take().map_or(bytes.len(), |end| end.min(bytes.len()));
        receive(&mut &bytes[..end]).map_err(|failure| MoveError::Receive(failure.error))
    }
}

/// Both pools of a move.
pub(super) struct Both {
    pub(super) devices: [Arc<SimDevice>; 2],
    pub(super) pools: [Pool; 2],
    /// Of both.
    pub(super) clock: Arc<ManualClock>,
}

pub(super) fn open(device: &Arc<SimDevice>, fileset: Option<&str>) -> Result<Pool, String> {
    open_by(device, fileset, &Arc::new(ManualClock::new()))
}

fn open_by(
    device: &Arc<SimDevice>,
    fileset: Option<&str>,
    clock: &Arc<ManualClock>,
) -> Result<Pool, String> {
    let clock: Arc<ManualClock> = Arc::clone(clock);
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let files = engine::FilesOptions { no_atime: true, ..engine::FilesOptions::default() };
    let options =
        PoolOpenOptions { fileset: fileset.map(name), files, ..PoolOpenOptions::default() };
    Pool::open(shared, clock, options).map_err(|error| error.to_string())
}

impl Both {
    pub(super) fn open(images: [&Image; 2], is_recorded: bool) -> Result<Both, String> {
        let options = SimOptions { is_recorded, ..SimOptions::default() };
        let devices = images.map(|image| SimDevice::open(image.clone(), options.clone()));
        let clock = Arc::new(ManualClock::new());
        let pools = [open_by(&devices[0], None, &clock)?, open_by(&devices[1], None, &clock)?];
        Ok(Both { devices, pools, clock })
    }

    /// Does something of a move of `a` to `b`; `on_step` is told of each step.
    pub(super) fn with<T>(
        &self,
        cut: Option<usize>,
        on_step: &mut dyn FnMut(MoveStep) -> bool,
        work: impl FnOnce(&Move<'_>, &mut MoveServices<'_>) -> T,
    ) -> T {
        self.with_named("a", cut, on_step, work)
    }

    /// Moves `a`, which `fronts` use.
    pub(super) fn run_used(
        &self,
        fronts: &dyn Fronts,
        on_step: &mut dyn FnMut(MoveStep) -> bool,
    ) -> Result<(), MoveError> {
        self.with(None, on_step, |this, how| {
            let how = &mut MoveServices {
                pipe: how.pipe,
                random: &mut *how.random,
                wait: &mut *how.wait,
                fronts: Some(fronts),
                on_step: &mut *how.on_step,
                progress: &mut *how.progress,
            };
            this.run(how)
        })
    }

    fn with_named<T>(
        &self,
        from: &str,
        cut: Option<usize>,
        on_step: &mut dyn FnMut(MoveStep) -> bool,
        work: impl FnOnce(&Move<'_>, &mut MoveServices<'_>) -> T,
    ) -> T {
        let (from, to) = (name(from), name("b"));
        let this = Move { source: (&self.pools[0], &from), target: (&self.pools[1], &to) };
        let mut wait = || self.pools.iter().all(|pool| pool.tick().is_ok());
        let pipe = InMemory { cut: std::cell::Cell::new(cut) };
        let mut how = MoveServices {
            pipe: &pipe,
            random: &mut draw,
            wait: &mut wait,
            on_step,
            fronts: None,
            progress: &mut |_, _| (),
        };
        work(&this, &mut how)
    }

    pub(super) fn run(&self) -> Result<(), MoveError> {
        self.with(None, &mut |_| true, |this, how| this.run(how))
    }

    /// Runs a move that is ended when it has told this step.
    fn run_until(&self, last: MoveStep) {
        let ended = self.with(None, &mut |step| step != last, |this, how| this.run(how));
        assert!(matches!(ended, Err(MoveError::Ended)), "{last:?}: {ended:?}");
    }

    /// Where both recordings stand.
    pub(super) fn positions(&self) -> [usize; 2] {
        self.devices.each_ref().map(|device| device.position())
    }

    /// In which of both pools the fileset can be used.
    pub(super) fn usable(&self) -> [bool; 2] {
        let is_usable = |pool: &Pool, text: &str| {
            let held = pool.fileset_admin().hold_fileset(&name(text));
            held.map(|fileset| pool.fileset_admin().release_fileset(fileset)).is_ok()
        };
        [is_usable(&self.pools[0], "a"), is_usable(&self.pools[1], "b")]
    }

    /// Closes both, and verifies them.
    pub(super) fn close(self) -> Result<[Image; 2], String> {
        let Both { devices, pools, .. } = self;
        for (pool, device) in pools.into_iter().zip(&devices) {
            free_all(&pool);
            pool.close().map_err(|error| error.to_string())?;
            let shared: SharedDevice = Arc::<SimDevice>::clone(device);
            expect_clean(&shared, "after the move")?;
        }
        Ok(devices.map(|device| device.durable_image()))
    }
}

pub(super) fn info(pool: &Pool, text: &str) -> Option<FilesetInfo> {
    let all = pool.fileset_admin().filesets().expect("it can be read");
    all.into_iter().find(|info| info.name == text && info.freed_permille.is_none())
}

/// Two pools, one of them with a fileset `a` that has a history; and what that is.
pub(super) fn filled() -> ([Image; 2], Known) {
    let devices = [1_u8, 2].map(|seed| {
        let device = SimDevice::new(POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let create = PoolCreateOptions::new(POOL_BYTES, [seed; 64]);
        Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
        device
    });
    let pool = open(&devices[0], None).expect("it opens");
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(7)).expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(&devices[0], Some("a")).expect("it opens");
    work(&pool, 3, OPERATIONS);
    let (caller, root) = (Caller::root(), pool.root());
    let new = NewInode::new(FileKind::Regular, 0o640);
    let file = pool.create(&caller, root, b"long", new, None).expect("there is room").ino;
    pool.write(&caller, file, 0, &[7; 200_000]).expect("there is room");
    pool.link(&caller, file, root, b"long too", None).expect("it fits");
    pool.sync().expect("nothing fails");
    let kept = known(&pool);
    pool.close().expect("nothing fails");
    (devices.map(|device| device.durable_image()), kept)
}

/// Reads what a fileset has, in an image that is not used otherwise.
pub(super) fn content(image: &Image, fileset: &str) -> Known {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    known(&open(&device, Some(fileset)).expect("it opens"))
}

/// Goal: a move takes everything along that names a file or says what it is like, leaves nothing
/// behind, and can be done again, back too.
#[test]
fn a_fileset_moves_to_another_pool_with_all_that_it_is() {
    let (images, kept) = filled();
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    let set = FilesetChange {
        is_read_only: Some(true),
        quota_bytes: Some(16 << 20),
        ..FilesetChange::default()
    };
    both.pools[0].fileset_admin().change_fileset(&name("a"), &set).expect("there is room");
    let before = info(&both.pools[0], "a").expect("it is there");
    both.run().expect("nothing fails");
    assert_eq!(both.usable(), [false, true]);
    assert_eq!(info(&both.pools[0], "a"), None);
    let after = info(&both.pools[1], "b").expect("it is there");
    let facts = |it: &FilesetInfo| (it.uuid, it.is_read_only, it.quota_bytes, it.inodes, it.moving);
    assert_eq!(facts(&after), facts(&before));
    let snapshots = both.pools[1].fileset_admin().filesets().expect("it can be read");
    assert!(
        snapshots.iter().all(|it| !it.is_snapshot || it.freed_permille.is_some()),
        "{snapshots:?}"
    );
    let moved = both.close().expect("both are clean");
    assert_same(&content(&moved[1], "b"), &kept, "moved c0");

    let back = Both::open([&moved[1], &moved[0]], false).expect("they open");
    back.pools[0]
        .fileset_admin()
        .change_fileset(
            &name("b"),
            &FilesetChange { name: Some(name("a")), ..FilesetChange::default() },
        )
        .expect("the name is free");
    back.run().expect("nothing fails");
    let images = back.close().expect("both are clean");
    assert_same(&content(&images[1], "b"), &kept, "moved back c0");
}

/// What is known of a move when it is cut: which images the other device may have.
type Others = Vec<usize>;

struct Recorded {
    both: Both,
    /// Where both recordings stood at each step, and what was durable.
    positions: Vec<[usize; 2]>,
    images: Vec<[Image; 2]>,
}

fn recorded(images: &[Image; 2]) -> Recorded {
    let both = Both::open([&images[0], &images[1]], true).expect("they open");
    let now = || {
        let of = |device: &Arc<SimDevice>| (device.position(), device.durable_image());
        let [one, two] = [of(&both.devices[0]), of(&both.devices[1])];
        ([one.0, two.0], [one.1, two.1])
    };
    let mut all = vec![now()];
    both.with(
        None,
        &mut |_| {
            all.push(now());
            true
        },
        |this, how| this.run(how),
    )
    .expect("nothing fails");
    all.push(now());
    let (positions, images) = all.into_iter().unzip();
    Recorded { both, positions, images }
}

/// Opens both pools as a crash has left them: the fileset is used in one at most; once they have
/// asked each other, in exactly one, whole; and the move goes on to its end. Returns both then.
pub(super) fn judge_move(images: [&Image; 2], kept: &Known) -> Result<[Image; 2], String> {
    let both = Both::open(images, false)?;
    let usable = both.usable();
    if usable == [true, true] {
        return Err("it is used in both pools".to_owned());
    }
    let settled = both.with(None, &mut |_| true, |this, _| this.settle());
    settled.map_err(|error| error.to_string())?;
    let usable = both.usable();
    if usable[0] == usable[1] {
        return Err(format!("once they have asked each other it is used in {usable:?}"));
    }
    // Once all is done nothing is left to go on with.
    if info(&both.pools[1], "b").is_none_or(|it| it.moving.is_some()) {
        both.run().map_err(|error| format!("it does not go on: {error}"))?;
    }
    if both.usable() != [false, true] {
        return Err(format!("at the end it is used in {:?}", both.usable()));
    }
    let images = both.close()?;
    let found = content(&images[1], "b");
    if format!("{found:?}") == format!("{kept:?}") {
        Ok(images)
    } else {
        Err("it is not what it was".to_owned())
    }
}

fn judge(images: [&Image; 2], kept: &Known) -> Result<(), String> {
    judge_move(images, kept).map(drop)
}

/// Goal: power fails at any write of a move, in either pool: the fileset is in exactly one, whole.
/// Method: both pools are recorded; each point of the one is cut, beside what was durable on the
/// other before and after that step.
#[test]
fn a_fileset_that_a_crash_stops_on_its_way_is_in_exactly_one_pool() {
    let (images, kept) = filled();
    let judged = judge_cuts_of_a_move(&images, &|both| judge(both, &kept));
    assert!(judged > 30, "{judged} images mean little");
}

/// Moves `a`, and judges what power cuts at any write of it have left of both pools; returns how
/// many that were.
pub(super) fn judge_cuts_of_a_move(
    images: &[Image; 2],
    judge: &(dyn Fn([&Image; 2]) -> Result<(), String> + Sync),
) -> u64 {
    let recorded = recorded(images);
    let strategy =
        Strategy { exhaustive_writes_max: 2, random_subsets: 1, torn_variants: 1, seed: 5 };
    let mut judged = 0;
    for cut_pool in 0..2 {
        let may_be = |at: usize| -> Others {
            let steps = 0..recorded.positions.len() - 1;
            let is_at = |step: &usize| {
                let (from, to) = (recorded.positions[*step], recorded.positions[step + 1]);
                (from[cut_pool]..=to[cut_pool]).contains(&at)
            };
            let mut all: Others = steps.filter(is_at).flat_map(|step| [step, step + 1]).collect();
            all.dedup();
            all
        };
        let recording = recorded.both.devices[cut_pool].recording();
        let what = format!("pool {cut_pool}");
        judged += judge_cuts(&what, &recording, &strategy, may_be, |cut| {
            for other in &cut.known {
                let other = &recorded.images[*other][1 - cut_pool];
                let both = if cut_pool == 0 { [&cut.image, other] } else { [other, &cut.image] };
                judge(both)?;
            }
            Ok(())
        });
    }
    judged
}

/// Goal: whoever ends a move at one of its steps, or within a stream, finds the fileset in exactly
/// one pool, and the same command goes on.
#[test]
fn a_move_that_is_ended_at_any_step_goes_on() {
    let (images, kept) = filled();
    use MoveStep::{Arrived, Copied, Deleted, LastSnapshot, Leaves, Settled, SnapshotTaken};
    for last in [SnapshotTaken, Copied, Leaves, LastSnapshot, Arrived, Deleted, Settled] {
        let both = Both::open([&images[0], &images[1]], false).expect("they open");
        let ended = both.with(None, &mut |step| step != last, |this, how| this.run(how));
        assert!(matches!(ended, Err(MoveError::Ended)), "{last:?}: {ended:?}");
        let devices = both.devices.clone();
        let durable = devices.map(|device| device.durable_image());
        judge([&durable[0], &durable[1]], &kept).unwrap_or_else(|why| panic!("{last:?}: {why}"));
        if last != Settled {
            both.run().unwrap_or_else(|error| panic!("{last:?}: {error}"));
        }
        assert_eq!(both.usable(), [false, true], "{last:?}");
    }
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    let broken = both.with(Some(100_000), &mut |_| true, |this, how| this.run(how));
    assert!(matches!(broken, Err(MoveError::Receive(_))), "{broken:?}");
    assert_eq!(both.usable(), [true, false]);
    both.run().expect("it goes on");
    assert_same(&content(&both.close().expect("clean")[1], "b"), &kept, "broken c0");
}

/// Goal: while a fileset is on its way nobody uses it, by its name or otherwise; a move that is
/// given up leaves nothing in the other pool; what can't move is refused in words.
#[test]
fn a_fileset_on_its_way_is_used_by_nobody_and_a_move_can_be_given_up() {
    let (images, _) = filled();
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    let until = |last: MoveStep| {
        let ended = both.with(None, &mut |step| step != last, |this, how| this.run(how));
        assert!(matches!(ended, Err(MoveError::Ended)), "{ended:?}");
    };
    let [source, target] = &both.pools;
    let refused = |done: Result<(), FsError>| {
        let error = done.expect_err("it is on its way").to_string();
        assert!(error.contains("on its way to another pool"), "{error}");
    };
    until(MoveStep::Leaves);
    refused(source.fileset_admin().delete_fileset(&name("a")));
    refused(source.fileset_admin().create_snapshot(&name("a"), &part("mine"), [3; 16]).map(drop));
    refused(source.fileset_admin().create_fileset(&name("a/below"), &new_fileset(9)).map(drop));
    refused(source.fileset_admin().change_fileset(&name("a"), &FilesetChange::default()));
    refused(target.fileset_admin().hold_fileset(&name("b")).map(drop));
    assert!(open(&both.devices[0], Some("a")).is_err());
    both.with(None, &mut |_| true, |this, how| this.give_up(how)).expect("it has not arrived");
    assert_eq!((both.usable(), info(target, "b")), ([true, false], None));
    let snapshots = source.fileset_admin().filesets().expect("it can be read");
    assert!(
        snapshots.iter().all(|it| !it.is_snapshot || it.freed_permille.is_some()),
        "{snapshots:?}"
    );

    // One that has arrived keeps that until the other pool knows, whoever would delete it.
    until(MoveStep::Arrived);
    let error =
        target.fileset_admin().delete_fileset(&name("b")).expect_err("the other does not know");
    assert!(error.to_string().contains("does not know yet"), "{error}");
    let given_up = both.with(None, &mut |_| true, |this, how| this.give_up(how));
    assert!(matches!(given_up, Err(MoveError::Refused(_))), "{given_up:?}");
    both.run().expect("it goes on");
    target.fileset_admin().delete_fileset(&name("b")).expect("nobody uses it");
    free_all(target);

    let why = |done: Result<(), MoveError>| done.expect_err("it can't move").to_string();
    assert!(why(both.run()).contains("no fileset a"), "it is gone");
    source.fileset_admin().create_fileset(&name("a"), &new_fileset(8)).expect("there is room");
    source
        .fileset_admin()
        .create_snapshot(&name("a"), &part("mine"), [4; 16])
        .expect("there is room");
    assert!(why(both.run()).contains("a@mine"), "it has a snapshot");
    source.fileset_admin().delete_snapshot(&name("a"), &part("mine")).expect("nobody holds it");
    free_all(source);
    let held = source.fileset_admin().hold_fileset(&name("a")).expect("it is there");
    assert!(why(both.run()).contains("mounted or exported"), "it is used");
    source.fileset_admin().release_fileset(held);
    target.fileset_admin().create_fileset(&name("b"), &new_fileset(6)).expect("there is room");
    assert!(why(both.run()).contains("there is a fileset b already"), "its name is taken");
}

/// Goal: what a failed move has left at the source stops none that begins anew, also where it is
/// finished; a snapshot of a user does, whenever he takes it and whatever he calls it.
#[test]
fn a_move_deletes_what_another_has_left_and_no_snapshot_of_a_user() {
    let (images, kept) = filled();
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    let [source, target] = &both.pools;
    both.run_until(MoveStep::SnapshotTaken);
    both.run_until(MoveStep::SnapshotTaken);
    both.run_until(MoveStep::Leaves);
    both.with(None, &mut |_| true, |this, _| this.settle()).expect("it has not arrived");
    // An operator has given the copy up at the other pool alone.
    target.fileset_admin().delete_fileset(&name("b")).expect("it has not arrived");
    assert_eq!(both.usable(), [true, false]);

    let refused = |snapshot: &str| {
        let taken = || {
            source.fileset_admin().create_snapshot(&name("a"), &part(snapshot), [5; 16]).map(drop)
        };
        taken().expect("there is room");
        let before = both.run().expect_err("it has a snapshot").to_string();
        source
            .fileset_admin()
            .delete_snapshot(&name("a"), &part(snapshot))
            .expect("nobody holds it");
        free_all(source);
        let on_step = &mut |step| step != MoveStep::Copied || taken().is_ok();
        let meanwhile = both.with(None, on_step, |this, how| this.run(how));
        let meanwhile = meanwhile.expect_err("it has a snapshot").to_string();
        assert_eq!(both.usable(), [true, false], "{snapshot}");
        source
            .fileset_admin()
            .delete_snapshot(&name("a"), &part(snapshot))
            .expect("nobody holds it");
        free_all(source);
        [before, meanwhile]
    };
    for why in refused("move-before-upgrade") {
        assert!(why.contains("a@move-before-upgrade"), "{why}");
    }
    let other = format!("move-{}-1", "ab".repeat(16));
    source
        .fileset_admin()
        .create_snapshot(&name("a"), &part(&other), [6; 16])
        .expect("there is room");
    let why = both.run().expect_err("it is not of the move that has begun").to_string();
    assert!(why.contains(&other), "{why}");
    target.fileset_admin().delete_fileset(&name("b")).expect("it has not arrived");
    free_all(target);

    both.run().expect("nothing is in its way");
    assert_eq!((both.usable(), info(source, "a")), ([false, true], None));
    assert_same(&content(&both.close().expect("clean")[1], "b"), &kept, "moved c0");
}

/// Goal: nobody waits for a snapshot of a move to go that somebody holds: it is refused at once, by
/// the snapshot and the hold; wherever the move is.
#[test]
fn a_snapshot_of_a_move_that_is_held_is_named_and_not_waited_for() {
    let (images, kept) = filled();
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    let snapshot_of = |pool: &Pool, of: &str| {
        let all = pool.fileset_admin().filesets().expect("it can be read").into_iter();
        let mut snapshots = all.filter(|it| it.is_snapshot && it.freed_permille.is_none());
        let text = snapshots.find_map(|it| it.name.strip_prefix(of).map(str::to_owned));
        part(&text.expect("a move has taken one"))
    };
    let refused = |(pool, of): (&Pool, &str), gives_up: bool| {
        let snapshot = snapshot_of(pool, &format!("{of}@"));
        pool.fileset_admin()
            .set_hold((&name(of), &snapshot), &part("backup"), true)
            .expect("it is there");
        let mut waits = 0;
        let told = both.with(None, &mut |_| true, |this, how| {
            let mut wait = || {
                waits += 1;
                true
            };
            let how = &mut MoveServices {
                pipe: how.pipe,
                random: &mut *how.random,
                wait: &mut wait,
                on_step: &mut *how.on_step,
                fronts: None,
                progress: &mut *how.progress,
            };
            if gives_up { this.give_up(how) } else { this.run(how) }
        });
        let told = told.expect_err("a snapshot is held").to_string();
        assert!(told.contains(snapshot.as_str()) && told.contains("held by backup"), "{told}");
        assert_eq!(waits, 0, "{told}");
        pool.fileset_admin()
            .set_hold((&name(of), &snapshot), &part("backup"), false)
            .expect("it is held");
    };
    let [source, target] = &both.pools;
    both.run_until(MoveStep::SnapshotTaken);
    refused((source, "a"), false);
    both.run_until(MoveStep::Copied);
    refused((source, "a"), false);
    refused((source, "a"), true);
    assert_eq!(both.usable(), [true, false]);
    both.run_until(MoveStep::Deleted);
    refused((target, "b"), false);
    both.run().expect("nothing is in its way");
    assert_eq!((both.usable(), info(source, "a")), ([false, true], None));
    assert_same(&content(&both.close().expect("clean")[1], "b"), &kept, "moved c0");
}

/// Goal: a move is of the fileset that its token names: whoever names another finishes none, gives
/// none up, and makes no pool forget what the other has to ask for.
#[test]
fn a_source_of_another_name_is_not_taken_for_one_that_is_deleted() {
    let (images, kept) = filled();
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    let [source, target] = &both.pools;
    let told = |from: &str, gives_up: bool| {
        let work = |this: &Move<'_>, how: &mut MoveServices<'_>| {
            if gives_up { this.give_up(how) } else { this.run(how) }
        };
        both.with_named(from, None, &mut |_| true, work).expect_err("it is another").to_string()
    };
    source.fileset_admin().create_fileset(&name("other"), &new_fileset(5)).expect("there is room");
    both.run_until(MoveStep::Copied);
    for (from, gives_up) in [("other", false), ("other", true), ("none", true)] {
        let why = told(from, gives_up);
        assert!(why.contains("is not of"), "{from}: {why}");
    }
    both.run_until(MoveStep::Arrived);
    for (from, gives_up) in [("other", false), ("none", false), ("other", true), ("none", true)] {
        let why = told(from, gives_up);
        assert!(why.contains("b has come from a"), "{from}: {why}");
        assert!(info(target, "b").is_some_and(|it| it.moving.is_some()), "{from}: it forgets");
    }
    // A server goes by what the entries say, and finishes the move of the fileset itself.
    let token = info(target, "b").and_then(|it| it.moving).expect("it has arrived").token();
    let finished = both.with_named("none", None, &mut |_| true, |it, how| it.finish(token, how));
    finished.expect("nothing fails");
    assert_eq!((both.usable(), info(source, "a")), ([false, true], None));
    assert!(info(target, "b").is_some_and(|it| it.moving.is_none()), "all is done");
    assert_same(&content(&both.close().expect("clean")[1], "b"), &kept, "moved c0");
}

/// Goal: what has begun to arrive can be deleted where it is, without the pool that it comes from.
#[test]
fn what_arrives_can_be_deleted_where_it_is() {
    let (images, kept) = filled();
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    both.run_until(MoveStep::LastSnapshot);
    let durable = both.devices.clone().map(|device| device.durable_image());
    drop(both);
    let device = SimDevice::open(durable[1].clone(), SimOptions::default());
    let target = open(&device, None).expect("it opens");
    target.fileset_admin().delete_fileset(&name("b")).expect("it has not arrived");
    free_all(&target);
    let left: Vec<_> = target.fileset_admin().filesets().expect("it can be read");
    assert!(left.iter().all(|it| !it.name.starts_with('b')), "{left:?}");
    target.close().expect("nothing fails");
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    expect_clean(&shared, "what arrived is deleted").expect("it is clean");

    // The source has it still, asks, and moves it anew.
    let both = Both::open([&durable[0], &device.durable_image()], false).expect("they open");
    both.run().expect("it is where it was");
    assert_same(&content(&both.close().expect("clean")[1], "b"), &kept, "moved c0");
}

/// Goal: an operator may say where a fileset is, and nobody asks the other pool.
#[test]
fn an_operator_says_where_a_fileset_is() {
    let (images, _) = filled();
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    let ended = both.with(None, &mut |step| step != MoveStep::Leaves, |this, how| this.run(how));
    assert!(matches!(ended, Err(MoveError::Ended)), "{ended:?}");
    assert_eq!(both.usable(), [false, false]);
    both.pools[0].fileset_admin().take_as_here(&name("a")).expect("it leaves");
    assert_eq!(both.usable(), [true, false]);
    assert!(
        both.pools[0].fileset_admin().take_as_here(&name("a")).is_err(),
        "there is nothing to say"
    );
    assert!(
        both.pools[1].fileset_admin().take_as_here(&name("b")).is_err(),
        "what arrives is not whole"
    );
}

/// Goal: an operator's word at the pool that a fileset has arrived in makes no second one: the one
/// that it came from stays closed, and the move is refused by what is there. Method: the move is
/// ended behind "arrived".
#[test]
fn a_word_at_the_target_makes_no_second_fileset() {
    let (images, _) = filled();
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    both.run_until(MoveStep::Arrived);
    both.pools[1].fileset_admin().take_as_here(&name("b")).expect("it has arrived");
    let rename = FilesetChange { name: Some(name("c")), ..FilesetChange::default() };
    both.pools[1].fileset_admin().change_fileset(&name("b"), &rename).expect("it is in use");
    for _ in 0..2 {
        let refused = both.run().expect_err("it is there").to_string();
        assert!(refused.contains("c in the other pool is the same fileset"), "{refused}");
        assert_eq!(both.usable(), [false, false], "it is called c there");
    }
    // An operator's word here too: then there are two, and neither moves over the other.
    both.pools[0].fileset_admin().take_as_here(&name("a")).expect("it leaves");
    let refused = both.run().expect_err("it is in both").to_string();
    assert!(refused.contains("c in the other pool is the same fileset"), "{refused}");
    assert_eq!(both.usable(), [true, false]);
    both.close().expect("both are clean");
}

/// Goal: a fileset that gets another name while it moves arrives: the move goes by what it is.
#[test]
fn a_fileset_that_is_renamed_while_it_moves_arrives() {
    for at in [MoveStep::SnapshotTaken, MoveStep::Copied] {
        let (images, kept) = filled();
        let both = Both::open([&images[0], &images[1]], false).expect("they open");
        let rename = FilesetChange { name: Some(name("z")), ..FilesetChange::default() };
        let renaming = &mut |step| {
            if step == at {
                both.pools[0]
                    .fileset_admin()
                    .change_fileset(&name("a"), &rename)
                    .expect("it is not gone yet");
            }
            true
        };
        let moved = both.with(None, renaming, |this, how| this.run(how));
        moved.unwrap_or_else(|error| panic!("{at:?}: {error}"));
        assert_eq!(both.usable(), [false, true], "{at:?}");
        assert!(info(&both.pools[0], "z").is_none(), "{at:?}: something is left");
        let images = both.close().expect("both are clean");
        assert_same(&content(&images[1], "b"), &kept, "moved c0");
    }
}
