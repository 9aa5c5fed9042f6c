//! The heartbeat of an open pool, which shows other machines that the pool is in use.
//!
//! A device lock covers one kernel, and only names that this kernel recognizes as one device. The
//! heartbeat page (`format::heartbeat`, `docs/FORMAT.md#heartbeat`) covers the rest. Facts about
//! the machine and its processes are passed in ([`HostProcesses`]).
//!
//! # Invariants
//!
//! - HB1: A pool marked open is not written before its heartbeat was judged and replaced by ours.
//! - HB2: A server that finds a foreign heartbeat in place of its own writes nothing more.
//! - HB3: No heartbeat is written after [`HeartbeatWriter::stop`]. The caller calls it after the
//!   last change of the pool, and before the pool is marked closed.
//!
//! # Concurrency
//!
//! The first thread that finds the heartbeat due writes it. Only [`HeartbeatWriter::stop`] waits
//! for that write.

use std::fmt::Write;
use std::sync::Arc;

use format::heartbeat::{HEARTBEAT_OFFSET, Heartbeat, PoolHolder};
use format::ids::PoolId;
use format::page::PAGE_BYTES;

use crate::device::{AlignedBuffer, DeviceError, IoPurpose, SharedDevice};
use crate::pool::PoolError;
use crate::volume::Volume;
use runtime::clock::Clock;
use runtime::sync::Mutex;

/// Time between heartbeats. A crashed machine delays the next mount by two of these. An idle pool
/// writes one page per interval.
pub const INTERVAL_NS: u64 = 5_000_000_000;
/// [`INTERVAL_NS`] in milliseconds.
const INTERVAL_MS: u32 = 5_000;
/// Reads of a foreign heartbeat, spread over two of its intervals.
const LOOKS: u64 = 10;
/// Grace for a process that is ending, for example killed and not yet reaped.
const ENDING_NS: u64 = 2_000_000_000;
/// Polling interval during [`ENDING_NS`].
const ENDING_LOOK_NS: u64 = 20_000_000;

/// This machine and its processes.
pub trait HostProcesses: Send + Sync + std::fmt::Debug {
    /// Returns the identity of this machine and process.
    fn own(&self) -> PoolHolder;
    /// Whether a process of this machine and boot is alive. `None` if undeterminable.
    fn is_alive(&self, other: &PoolHolder) -> Option<bool>;
    /// Sleeps.
    fn wait_ns(&self, nanoseconds: u64);
    /// Called once a heartbeat has begun. The host may let another thread write it too, because
    /// pool ticks can take longer than an interval.
    fn begun(&self, _: &Arc<HeartbeatWriter>) {}
}

/// A single process for which waiting takes no time. For pools in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleProcess;

impl HostProcesses for SingleProcess {
    fn own(&self) -> PoolHolder {
        PoolHolder { boot_id: [1; 16], process: 1, ..PoolHolder::NOBODY }
    }

    fn is_alive(&self, _: &PoolHolder) -> Option<bool> {
        Some(false)
    }

    fn wait_ns(&self, _: u64) {}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderStatus {
    /// The process of the heartbeat has ended.
    Gone,
    /// The process of the heartbeat is alive.
    Alive,
    /// Undecided: the caller must watch whether the heartbeat changes.
    Unknown,
}

/// Judges whether the writer of the heartbeat is alive. In another boot it can only be watched. If
/// this process holds its device lock, the writer has released it. Otherwise its process decides.
fn judge(
    found: Option<&Heartbeat>,
    own: &PoolHolder,
    neighbours: &dyn HostProcesses,
) -> HolderStatus {
    let Some(holder) = found.map(|found| &found.holder) else { return HolderStatus::Unknown };
    if holder.boot_id != own.boot_id {
        return HolderStatus::Unknown;
    }
    let has_lock = own.lock.is_some() && holder.lock == own.lock;
    if has_lock || holder.is_same_process(own) {
        return HolderStatus::Gone;
    }
    match neighbours.is_alive(holder) {
        Some(true) => HolderStatus::Alive,
        Some(false) => HolderStatus::Gone,
        None => HolderStatus::Unknown,
    }
}

fn name_of(found: Option<&Heartbeat>, own: &PoolHolder) -> String {
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
    // Foreign text is untrusted: strip control characters.
    let machine: String = machine.chars().filter(|letter| !letter.is_control()).collect();
    let _ = write!(name, " of the machine {machine:?}");
    if holder.machine_id == own.machine_id {
        name.push_str(" (this one before it was started again, or a copy of it)");
    }
    name
}

fn write(volume: &Volume, heartbeat: &Heartbeat) -> Result<(), DeviceError> {
    let bytes = AlignedBuffer::copy_of(&heartbeat.encode());
    volume.write_fixed(IoPurpose::Superblock, HEARTBEAT_OFFSET, bytes)
}

/// Writes the unowned heartbeat page of a new pool.
///
/// # Errors
///
/// The device's error.
pub fn write_first(volume: &Volume, pool_id: PoolId) -> Result<(), DeviceError> {
    let holder = PoolHolder::NOBODY;
    write(volume, &Heartbeat { pool_id, holder, counter: 0, interval_ms: INTERVAL_MS })
}

#[derive(Debug)]
struct HeartbeatPage {
    volume: Volume,
    pool_id: PoolId,
    own: PoolHolder,
}

impl HeartbeatPage {
    fn of(volume: &Volume, pool_id: PoolId, neighbours: &dyn HostProcesses) -> HeartbeatPage {
        let own = PoolHolder { lock: volume.lock_identity(), ..neighbours.own() };
        HeartbeatPage { volume: volume.clone(), pool_id, own }
    }

    /// Waits until the owner has ended. Returns the last heartbeat.
    fn wait_until_gone(
        &self,
        neighbours: &dyn HostProcesses,
        is_forced: bool,
    ) -> Result<Option<Heartbeat>, PoolError> {
        let mut waited_ns = 0;
        loop {
            let (bytes, found) = self.read()?;
            match judge(found.as_ref(), &self.own, neighbours) {
                HolderStatus::Gone => return Ok(found),
                HolderStatus::Unknown if is_forced => return Ok(found),
                HolderStatus::Unknown => return self.watch(neighbours, &bytes, found),
                HolderStatus::Alive if waited_ns >= ENDING_NS => {
                    return Err(self.in_use(found.as_ref()));
                }
                HolderStatus::Alive => {
                    neighbours.wait_ns(ENDING_LOOK_NS);
                    waited_ns += ENDING_LOOK_NS;
                }
            }
        }
    }

    /// Watches the page, last read as `bytes`, for two intervals of its owner: a live owner writes
    /// in that time.
    fn watch(
        &self,
        neighbours: &dyn HostProcesses,
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
        let bytes = self.volume.read_fixed(IoPurpose::Superblock, HEARTBEAT_OFFSET, PAGE_BYTES)?;
        let found = Heartbeat::decode(&bytes, self.pool_id);
        Ok((bytes, found))
    }

    fn write(&self, counter: u64) -> Result<(), DeviceError> {
        let (pool_id, holder) = (self.pool_id, self.own);
        write(&self.volume, &Heartbeat { pool_id, holder, counter, interval_ms: INTERVAL_MS })
    }

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

/// Waits until no process has the pool on `device`, if any, open. For callers about to overwrite
/// it.
///
/// # Errors
///
/// [`PoolError::InUse`], or the device's error.
pub fn wait_until_free(
    device: &SharedDevice,
    neighbours: &dyn HostProcesses,
) -> Result<(), PoolError> {
    match Volume::open(Arc::clone(device)) {
        Ok((volume, superblock)) if superblock.is_open => {
            HeartbeatPage::of(&volume, superblock.pool_id, neighbours)
                .wait_until_gone(neighbours, false)
                .map(drop)
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The heartbeat of a pool that this process has open.
#[derive(Debug)]
pub struct HeartbeatWriter {
    page: HeartbeatPage,
    clock: Arc<dyn Clock>,
    state: Mutex<HeartbeatState>,
}

#[derive(Debug)]
struct HeartbeatState {
    counter: u64,
    due_ns: u64,
    is_stopped: bool,
    failure: Option<DeviceError>,
}

impl HeartbeatState {
    fn write(&mut self, page: &HeartbeatPage, clock: &dyn Clock) -> Result<(), DeviceError> {
        self.due_ns = clock.monotonic_ns().saturating_add(INTERVAL_NS);
        // Wraparound is harmless: successive counters still differ.
        self.counter = self.counter.wrapping_add(1);
        page.write(self.counter)
    }
}

/// Conditions under which a pool is taken.
#[derive(Clone, Copy, Debug)]
pub struct TakeoverConditions {
    /// Whether the superblock marks the pool open. If not, no process has it open.
    pub is_open: bool,
    /// Whether the user vouches that no other machine has it open.
    pub is_forced: bool,
}

impl HeartbeatWriter {
    /// Takes the pool on `volume` unless it is in use (HB1).
    ///
    /// # Errors
    ///
    /// [`PoolError::InUse`], or the device's error.
    pub fn take(
        volume: &Volume,
        pool_id: PoolId,
        clock: &Arc<dyn Clock>,
        neighbours: &dyn HostProcesses,
        taking: TakeoverConditions,
    ) -> Result<Arc<HeartbeatWriter>, PoolError> {
        let page = HeartbeatPage::of(volume, pool_id, neighbours);
        let found = if taking.is_open {
            page.wait_until_gone(neighbours, taking.is_forced)?
        } else {
            page.read()?.1
        };
        let counter = found.map_or(0, |found| found.counter);
        let mut state = HeartbeatState { counter, due_ns: 0, is_stopped: false, failure: None };
        state.write(&page, clock.as_ref())?;
        page.verify()?;
        let pulse = HeartbeatWriter { page, clock: Arc::clone(clock), state: Mutex::new(state) };
        let pulse = Arc::new(pulse);
        neighbours.begun(&pulse);
        Ok(pulse)
    }

    /// Checks that the heartbeat is ours (HB2). A page that does not verify passes.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Taken`] if it is foreign, or the read error.
    pub fn verify(&self) -> Result<(), DeviceError> {
        self.page.verify()
    }

    /// Writes the heartbeat if it is due, and if the device can be read.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Taken`], or the write error: the pool must stop writing, because other
    /// servers will consider it unused. Later calls return the same error.
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

    /// Stops the heartbeat, after a write in flight (HB3).
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

    /// A host that reports others as alive, dead, or unknown. While it waits, `beside` may write
    /// its heartbeat.
    #[derive(Debug)]
    struct TestProcess {
        own: PoolHolder,
        sees: Option<bool>,
        waited_ns: AtomicU64,
        beside: Option<Arc<HeartbeatWriter>>,
        clock: Arc<ManualClock>,
    }

    impl HostProcesses for TestProcess {
        fn own(&self) -> PoolHolder {
            self.own
        }

        fn is_alive(&self, _: &PoolHolder) -> Option<bool> {
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

    struct HeartbeatFixture {
        volume: Volume,
        clock: Arc<ManualClock>,
    }

    impl HeartbeatFixture {
        fn new() -> HeartbeatFixture {
            let geometry = Geometry::plan(&GeometryOptions {
                device_bytes: 16 << 20,
                fragment_bytes: 4096,
                segment_bytes: None,
                group_bytes: None,
                journal_bytes: None,
            });
            let device = MemoryDevice::new("memory", 16 << 20);
            let volume = Volume::new(device, geometry.expect("16 MiB are enough"));
            HeartbeatFixture { volume, clock: Arc::new(ManualClock::new()) }
        }

        fn one(&self, boot: u8, process: u32, sees: Option<bool>) -> TestProcess {
            let own = PoolHolder { boot_id: [boot; 16], process, ..PoolHolder::NOBODY };
            let (waited_ns, beside) = (AtomicU64::new(0), None);
            TestProcess { own, sees, waited_ns, beside, clock: Arc::clone(&self.clock) }
        }

        fn take(
            &self,
            who: &TestProcess,
            is_forced: bool,
        ) -> Result<Arc<HeartbeatWriter>, PoolError> {
            let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&self.clock);
            let taking = TakeoverConditions { is_open: true, is_forced };
            HeartbeatWriter::take(&self.volume, POOL, &clock, who, taking)
        }
    }

    fn is_in_use(taken: Result<Arc<HeartbeatWriter>, PoolError>) -> bool {
        matches!(taken, Err(PoolError::InUse { .. }))
    }

    /// Goal: on one machine, a takeover from a crashed process waits for nothing, and one from a
    /// live process for the grace time.
    #[test]
    fn on_one_machine_the_process_decides_without_waiting() {
        for (sees, is_refused) in [(Some(false), false), (Some(true), true)] {
            let ground = HeartbeatFixture::new();
            ground.take(&ground.one(1, 10, None), true).expect("nobody has it");
            let second = ground.one(1, 11, sees);
            assert_eq!(is_in_use(ground.take(&second, false)), is_refused);
            let waited_ns = second.waited_ns.load(Ordering::Relaxed);
            assert_eq!(waited_ns, if is_refused { ENDING_NS } else { 0 });
            // Force vouches for other machines only.
            assert_eq!(is_in_use(ground.take(&second, true)), is_refused);
        }
    }

    /// Goal: a pool of another machine or invisible process is taken only if its heartbeat stands
    /// still for two intervals.
    #[test]
    fn elsewhere_the_counter_decides_after_two_intervals() {
        for boot in [1, 2] {
            let ground = HeartbeatFixture::new();
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

    /// Goal: a damaged or blank page is watched, in case an owner exists.
    #[test]
    fn what_does_not_verify_is_watched() {
        let ground = HeartbeatFixture::new();
        let mut who = ground.one(1, 10, Some(false));
        ground.take(&who, false).expect("it does not move");
        assert_eq!(*who.waited_ns.get_mut(), 2 * INTERVAL_NS);
    }

    /// Goal: a server that has lost the pool gets an error at its next heartbeat and at all later
    /// ones.
    #[test]
    fn whoever_finds_another_beats_no_more() {
        let ground = HeartbeatFixture::new();
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

    /// Goal: an idle pool costs one write per interval, and none once closed (HB3).
    #[test]
    fn it_is_written_when_it_is_due_and_not_after_its_end() {
        let ground = HeartbeatFixture::new();
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
        let ground = HeartbeatFixture::new();
        let neighbour = ground.one(1, 11, Some(true));
        let holder = PoolHolder { lock: Some([8, 9]), ..ground.one(1, 10, None).own };
        let found = Heartbeat { pool_id: POOL, holder, counter: 1, interval_ms: INTERVAL_MS };
        let own = PoolHolder { lock: Some([8, 9]), ..neighbour.own };
        assert_eq!(judge(Some(&found), &own, &neighbour), HolderStatus::Gone);
        let own = PoolHolder { lock: Some([8, 10]), ..neighbour.own };
        assert_eq!(judge(Some(&found), &own, &neighbour), HolderStatus::Alive);
        let own = PoolHolder { boot_id: [2; 16], lock: Some([8, 9]), ..neighbour.own };
        assert_eq!(judge(Some(&found), &own, &neighbour), HolderStatus::Unknown);
    }

    #[test]
    fn a_message_names_the_machine_on_one_line() {
        let ground = HeartbeatFixture::new();
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
