//! Who has a pool open: what no lock sees, the heartbeat's page tells.
//!
//! A lock is known to one kernel, by the names of a device that it knows to be one. Another
//! machine, or a name that leads to the same bytes unseen, finds the heartbeat
//! (`format::heartbeat`). `docs/FORMAT.md#heartbeat` says how it is judged; what a machine knows of
//! itself and of its processes is passed in ([`Neighbours`]).
//!
//! # Invariants
//!
//! - HB1: Nothing is written to a pool that its superblock calls open before its heartbeat was
//!   judged and is ours.
//! - HB2: Who finds another's heartbeat in place of his own writes nothing more.
//! - HB3: None is written once it was stopped: before the pool is called closed, and when it takes
//!   no more changes.
//!
//! # Concurrency
//!
//! Whoever comes first writes it when it is due; nobody waits for him but who stops it.

use std::fmt::Write;
use std::sync::Arc;

use format::heartbeat::{HEARTBEAT_OFFSET, Heartbeat, Holder};
use format::ids::PoolId;
use format::page::PAGE_BYTES;

use crate::device::{AlignedBuffer, DeviceError, Purpose, SharedDevice};
use crate::pool::PoolError;
use crate::volume::Volume;
use runtime::clock::Clock;
use runtime::sync::Mutex;

/// From one heartbeat to the next: what a lost machine holds a pool up for is two of these, and an
/// idle pool writes no more than one page for each.
pub const INTERVAL_NS: u64 = 5_000_000_000;
/// The same in the heartbeat's own unit.
const INTERVAL_MS: u32 = 5_000;
/// Looks at the heartbeat of another machine, evenly over two of its intervals.
const LOOKS: u64 = 10;
/// How long a process that ends has for it: it may be killed, and not quite gone.
const ENDING_NS: u64 = 2_000_000_000;
/// How often it is looked for.
const ENDING_LOOK_NS: u64 = 20_000_000;

/// What a machine knows of itself and of its processes.
pub trait Neighbours: Send + Sync + std::fmt::Debug {
    /// Returns the machine and the process that ask.
    fn own(&self) -> Holder;
    /// Whether a process of this run of this machine is there; `None`: that cannot be seen.
    fn is_alive(&self, other: &Holder) -> Option<bool>;
    /// Waits.
    fn wait_ns(&self, nanoseconds: u64);
    /// A heartbeat has begun. It may be written from now on by whoever has a thread for it, beside
    /// the ticks of the pool: these may take long.
    fn begun(&self, _: &Arc<Pulse>) {}
}

/// One process on one machine, for which waiting takes no time: for what is in memory alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Neighbours for Alone {
    fn own(&self) -> Holder {
        Holder { boot_id: [1; 16], process: 1, ..Holder::NOBODY }
    }

    fn is_alive(&self, _: &Holder) -> Option<bool> {
        Some(false)
    }

    fn wait_ns(&self, _: u64) {}
}

/// What a heartbeat says to one who wants the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Whoever wrote it is gone.
    Gone,
    /// It is of a process that is there.
    Alive,
    /// Time must tell.
    Unknown,
}

/// *Lock, then process, then time.* Another run of a system: time. The same lock, which he who asks
/// has: gone. Else as the process is.
fn judge(found: Option<&Heartbeat>, own: &Holder, neighbours: &dyn Neighbours) -> Verdict {
    let Some(holder) = found.map(|found| &found.holder) else { return Verdict::Unknown };
    if holder.boot_id != own.boot_id {
        return Verdict::Unknown;
    }
    let has_lock = own.lock.is_some() && holder.lock == own.lock;
    if has_lock || holder.is_same_process(own) {
        return Verdict::Gone;
    }
    match neighbours.is_alive(holder) {
        Some(true) => Verdict::Alive,
        Some(false) => Verdict::Gone,
        None => Verdict::Unknown,
    }
}

/// Says whose a heartbeat is, for a message.
fn name_of(found: Option<&Heartbeat>, own: &Holder) -> String {
    let Some(holder) = found.map(|found| found.holder) else {
        return "by a server that cannot be told".to_owned();
    };
    let mut name = format!("by process {}", holder.process);
    if holder.boot_id == own.boot_id {
        name.push_str(" of this machine");
        return name;
    }
    let machine = holder.machine_name.split(|&byte| byte == 0).next().unwrap_or_default();
    let machine = String::from_utf8_lossy(machine);
    // What another machine has written is printed as one line, whatever it is.
    let machine: String = machine.chars().filter(|letter| !letter.is_control()).collect();
    let _ = write!(name, " of the machine {machine:?}");
    if holder.machine_id == own.machine_id {
        name.push_str(" (this one before it was started again, or a copy of it)");
    }
    name
}

fn write(volume: &Volume, heartbeat: &Heartbeat) -> Result<(), DeviceError> {
    let bytes = AlignedBuffer::copy_of(&heartbeat.encode());
    volume.write_fixed(Purpose::Superblock, HEARTBEAT_OFFSET, bytes)
}

/// Writes the heartbeat of a new pool, which nobody has opened: room for those to come.
///
/// # Errors
///
/// What the device said.
pub fn write_first(volume: &Volume, pool_id: PoolId) -> Result<(), DeviceError> {
    let holder = Holder::NOBODY;
    write(volume, &Heartbeat { pool_id, holder, counter: 0, interval_ms: INTERVAL_MS })
}

/// The page of a heartbeat, and who looks at it.
#[derive(Debug)]
struct Page {
    volume: Volume,
    pool_id: PoolId,
    own: Holder,
}

impl Page {
    fn of(volume: &Volume, pool_id: PoolId, neighbours: &dyn Neighbours) -> Page {
        let own = Holder { lock: volume.lock_identity(), ..neighbours.own() };
        Page { volume: volume.clone(), pool_id, own }
    }

    /// Returns what is there when whoever wrote it is gone.
    fn wait_until_gone(
        &self,
        neighbours: &dyn Neighbours,
        is_forced: bool,
    ) -> Result<Option<Heartbeat>, PoolError> {
        let mut waited_ns = 0;
        loop {
            let (bytes, found) = self.read()?;
            match judge(found.as_ref(), &self.own, neighbours) {
                Verdict::Gone => return Ok(found),
                Verdict::Unknown if is_forced => return Ok(found),
                Verdict::Unknown => return self.watch(neighbours, &bytes, found),
                Verdict::Alive if waited_ns >= ENDING_NS => return Err(self.in_use(found.as_ref())),
                Verdict::Alive => {
                    neighbours.wait_ns(ENDING_LOOK_NS);
                    waited_ns += ENDING_LOOK_NS;
                }
            }
        }
    }

    /// Waits for two intervals of him who wrote `bytes`: whoever lives has written by then.
    fn watch(
        &self,
        neighbours: &dyn Neighbours,
        bytes: &[u8],
        found: Option<Heartbeat>,
    ) -> Result<Option<Heartbeat>, PoolError> {
        let interval_ns =
            found.map_or(INTERVAL_NS, |found| u64::from(found.interval_ms) * 1_000_000);
        tracing::warn!(
            device = self.volume.name(),
            seconds = 2 * interval_ns / 1_000_000_000,
            "the pool was not closed, and was last open {}: is it there? (--force: it is not)",
            name_of(found.as_ref(), &self.own)
        );
        for _ in 0..LOOKS {
            neighbours.wait_ns(2 * interval_ns / LOOKS);
            let (now, moved) = self.read()?;
            if now[..] != *bytes {
                return Err(self.in_use(moved.as_ref()));
            }
        }
        Ok(found)
    }

    fn in_use(&self, found: Option<&Heartbeat>) -> PoolError {
        let device = self.volume.name().to_owned();
        PoolError::InUse { device, by: name_of(found, &self.own) }
    }

    fn read(&self) -> Result<(AlignedBuffer, Option<Heartbeat>), DeviceError> {
        let bytes = self.volume.read_fixed(Purpose::Superblock, HEARTBEAT_OFFSET, PAGE_BYTES)?;
        let found = Heartbeat::decode(&bytes, self.pool_id);
        Ok((bytes, found))
    }

    fn write(&self, counter: u64) -> Result<(), DeviceError> {
        let (pool_id, holder) = (self.pool_id, self.own);
        write(&self.volume, &Heartbeat { pool_id, holder, counter, interval_ms: INTERVAL_MS })
    }

    /// HB2: looks whether the heartbeat there is still ours. One that does not verify is nobody's.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Taken`]; or what the device said.
    fn verify(&self) -> Result<(), DeviceError> {
        match self.read()?.1 {
            Some(found) if found.holder != self.own => Err(DeviceError::Taken {
                device: self.volume.name().to_owned(),
                by: name_of(Some(&found), &self.own),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

/// Waits until nobody has the pool on `device`, if there is one: for who is to overwrite it.
///
/// # Errors
///
/// [`PoolError::InUse`]; or what the device said.
pub fn wait_until_free(
    device: &SharedDevice,
    neighbours: &dyn Neighbours,
) -> Result<(), PoolError> {
    match Volume::open(Arc::clone(device)) {
        Ok((volume, superblock)) if superblock.is_open => {
            Page::of(&volume, superblock.pool_id, neighbours)
                .wait_until_gone(neighbours, false)
                .map(drop)
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The heartbeat of a pool that this process has open.
#[derive(Debug)]
pub struct Pulse {
    page: Page,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    counter: u64,
    due_ns: u64,
    is_stopped: bool,
    failure: Option<DeviceError>,
}

impl State {
    fn write(&mut self, page: &Page, clock: &dyn Clock) -> Result<(), DeviceError> {
        self.due_ns = clock.monotonic_ns().saturating_add(INTERVAL_NS);
        // It would take longer than a disk lasts; two that follow each other differ all the same.
        self.counter = self.counter.wrapping_add(1);
        page.write(self.counter)
    }
}

/// How a pool is taken.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    /// Whether its superblock calls it open: else nobody has it.
    pub is_open: bool,
    /// Whether the user says that no other machine has it.
    pub is_forced: bool,
}

impl Pulse {
    /// Takes the pool on `volume`, if nobody has it (HB1).
    ///
    /// # Errors
    ///
    /// [`PoolError::InUse`]; or what the device said.
    pub fn take(
        volume: &Volume,
        pool_id: PoolId,
        clock: &Arc<dyn Clock>,
        neighbours: &dyn Neighbours,
        taking: Taking,
    ) -> Result<Arc<Pulse>, PoolError> {
        let page = Page::of(volume, pool_id, neighbours);
        let found = if taking.is_open {
            page.wait_until_gone(neighbours, taking.is_forced)?
        } else {
            page.read()?.1
        };
        let counter = found.map_or(0, |found| found.counter);
        let mut state = State { counter, due_ns: 0, is_stopped: false, failure: None };
        state.write(&page, clock.as_ref())?;
        page.verify()?;
        let pulse = Pulse { page, clock: Arc::clone(clock), state: Mutex::new(state) };
        let pulse = Arc::new(pulse);
        neighbours.begun(&pulse);
        Ok(pulse)
    }

    /// HB2: looks whether the heartbeat there is still ours. One that does not verify is nobody's.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Taken`]; or what the device said.
    pub fn verify(&self) -> Result<(), DeviceError> {
        self.page.verify()
    }

    /// Writes it if it is due. A device that does not answer a read is not written to.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Taken`], or that it cannot be written: the pool must stop writing, for others
    /// take it for gone.
    pub fn beat(&self) -> Result<(), DeviceError> {
        let Some(mut state) = self.state.try_lock() else { return Ok(()) };
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let now_ns = self.clock.monotonic_ns();
        if state.is_stopped || now_ns < state.due_ns {
            return Ok(());
        }
        let done = match self.page.verify() {
            Ok(()) => state.write(&self.page, self.clock.as_ref()),
            Err(error @ DeviceError::Taken { .. }) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the heartbeat cannot be read");
                state.due_ns = now_ns.saturating_add(INTERVAL_NS);
                Ok(())
            }
        };
        if let Err(error) = &done {
            state.failure = Some(error.clone());
        }
        done
    }

    /// HB3: ends it; a write that is under way is waited for.
    pub fn stop(&self) {
        self.state.lock().is_stopped = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use format::geometry::{Geometry, GeometryOptions};

    use super::*;
    use crate::device::MemoryDevice;
    use runtime::clock::ManualClock;

    const POOL: PoolId = PoolId([7; 16]);

    /// A process of a machine, to which other processes are there, are not, or cannot be seen;
    /// while it waits, another may write its heartbeat.
    #[derive(Debug)]
    struct One {
        own: Holder,
        sees: Option<bool>,
        waited_ns: AtomicU64,
        beside: Option<Arc<Pulse>>,
        clock: Arc<ManualClock>,
    }

    impl Neighbours for One {
        fn own(&self) -> Holder {
            self.own
        }

        fn is_alive(&self, _: &Holder) -> Option<bool> {
            self.sees
        }

        fn wait_ns(&self, nanoseconds: u64) {
            self.waited_ns.fetch_add(nanoseconds, Ordering::Relaxed);
            self.clock.advance_ns(nanoseconds);
            if let Some(beside) = &self.beside {
                beside.beat().expect("memory takes it");
            }
        }
    }

    struct Ground {
        volume: Volume,
        clock: Arc<ManualClock>,
    }

    impl Ground {
        fn new() -> Ground {
            let geometry = Geometry::plan(&GeometryOptions {
                device_bytes: 16 << 20,
                fragment_bytes: 4096,
                segment_bytes: None,
                group_bytes: None,
                journal_bytes: None,
            });
            let device = MemoryDevice::new("memory", 16 << 20);
            let volume = Volume::new(device, geometry.expect("16 MiB are enough"));
            Ground { volume, clock: Arc::new(ManualClock::new()) }
        }

        fn one(&self, boot: u8, process: u32, sees: Option<bool>) -> One {
            let own = Holder { boot_id: [boot; 16], process, ..Holder::NOBODY };
            let (waited_ns, beside) = (AtomicU64::new(0), None);
            One { own, sees, waited_ns, beside, clock: Arc::clone(&self.clock) }
        }

        fn take(&self, who: &One, is_forced: bool) -> Result<Arc<Pulse>, PoolError> {
            let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&self.clock);
            let taking = Taking { is_open: true, is_forced };
            Pulse::take(&self.volume, POOL, &clock, who, taking)
        }
    }

    fn is_in_use(taken: Result<Arc<Pulse>, PoolError>) -> bool {
        matches!(taken, Err(PoolError::InUse { .. }))
    }

    /// Goal: after a crash on the same machine nobody waits; while the process is there it is
    /// waited for to end, and no longer.
    #[test]
    fn on_one_machine_the_process_decides_without_waiting() {
        for (sees, is_refused) in [(Some(false), false), (Some(true), true)] {
            let ground = Ground::new();
            ground.take(&ground.one(1, 10, None), true).expect("nobody has it");
            let second = ground.one(1, 11, sees);
            assert_eq!(is_in_use(ground.take(&second, false)), is_refused);
            let waited_ns = second.waited_ns.load(Ordering::Relaxed);
            assert_eq!(waited_ns, if is_refused { ENDING_NS } else { 0 });
            // To force it is to say something of other machines.
            assert_eq!(is_in_use(ground.take(&second, true)), is_refused);
        }
    }

    /// Goal: the pool of another machine is taken when that has not moved for two intervals, and is
    /// not when it has. So is one that a process has which cannot be seen.
    #[test]
    fn elsewhere_the_counter_decides_after_two_intervals() {
        for boot in [1, 2] {
            let ground = Ground::new();
            let first = ground.take(&ground.one(1, 10, None), true).expect("nobody has it");
            let mut second = ground.one(boot, 11, None);
            second.beside = Some(Arc::clone(&first));
            assert!(is_in_use(ground.take(&second, false)), "it beats");
            let mut second = ground.one(boot, 11, None);
            ground.take(&second, false).expect("it beats no more");
            assert_eq!(*second.waited_ns.get_mut(), 2 * INTERVAL_NS);
            let mut third = ground.one(3, 12, None);
            ground.take(&third, true).expect("it is forced");
            assert_eq!(*third.waited_ns.get_mut(), 0);
        }
    }

    /// Goal: damage and blanks are nobody, and time is given to whoever may be there.
    #[test]
    fn what_does_not_verify_is_watched() {
        let ground = Ground::new();
        let mut who = ground.one(1, 10, Some(false));
        ground.take(&who, false).expect("it does not move");
        assert_eq!(*who.waited_ns.get_mut(), 2 * INTERVAL_NS);
    }

    /// Goal: who lost the pool to another learns of it at his next heartbeat, and for good.
    #[test]
    fn whoever_finds_another_beats_no_more() {
        let ground = Ground::new();
        let first = ground.take(&ground.one(1, 10, None), true).expect("nobody has it");
        first.beat().expect("not due");
        let second = ground.take(&ground.one(2, 20, None), true).expect("forced");
        ground.clock.advance_ns(INTERVAL_NS);
        for _ in 0..2 {
            let error = first.beat().expect_err("it is another's");
            assert!(error.to_string().contains("process 20"), "{error}");
        }
        second.beat().expect("it has it");
        first.verify().expect_err("it is another's");
    }

    /// Goal: an idle pool costs one write for each interval, and none once it is closed (HB3).
    #[test]
    fn it_is_written_when_it_is_due_and_not_after_its_end() {
        let ground = Ground::new();
        let pulse = ground.take(&ground.one(1, 10, None), true).expect("nobody has it");
        let counter = || pulse.page.read().expect("memory").1.expect("it is there").counter;
        let mut seen = Vec::new();
        for _ in 0..9 {
            ground.clock.advance_ns(INTERVAL_NS / 4);
            pulse.beat().expect("memory takes it");
            seen.push(counter());
        }
        assert_eq!(seen, [1, 1, 1, 2, 2, 2, 2, 3, 3]);
        pulse.stop();
        ground.clock.advance_ns(INTERVAL_NS);
        pulse.beat().expect("nothing is done");
        assert_eq!(counter(), 3);
    }

    #[test]
    fn the_lock_that_he_has_who_asks_was_let_go() {
        let ground = Ground::new();
        let neighbour = ground.one(1, 11, Some(true));
        let holder = Holder { lock: Some([8, 9]), ..ground.one(1, 10, None).own };
        let found = Heartbeat { pool_id: POOL, holder, counter: 1, interval_ms: INTERVAL_MS };
        let own = Holder { lock: Some([8, 9]), ..neighbour.own };
        assert_eq!(judge(Some(&found), &own, &neighbour), Verdict::Gone);
        let own = Holder { lock: Some([8, 10]), ..neighbour.own };
        assert_eq!(judge(Some(&found), &own, &neighbour), Verdict::Alive);
        let own = Holder { boot_id: [2; 16], lock: Some([8, 9]), ..neighbour.own };
        assert_eq!(judge(Some(&found), &own, &neighbour), Verdict::Unknown);
    }

    #[test]
    fn a_message_names_the_machine_on_one_line() {
        let ground = Ground::new();
        let own = ground.one(1, 11, None).own;
        let mut holder = ground.one(2, 10, None).own;
        holder.machine_name[..8].copy_from_slice(b"al\x1b\npha\0");
        let found = Heartbeat { pool_id: POOL, holder, counter: 1, interval_ms: INTERVAL_MS };
        let name = name_of(Some(&found), &own);
        assert!(
            name.starts_with("by process 10 of the machine \"alpha\" (this one before"),
            "{name}"
        );
    }
}
