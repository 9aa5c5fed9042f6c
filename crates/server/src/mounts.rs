//! Mounts of a pool that is open in one server, each of another fileset.
//!
//! ```text
//!   holdfast mount POOL:b DIR --request--> status socket --> claims the fileset, sends: ready
//!        mounts DIR, in its own namespace
//!        passes /dev/fuse ------------------------------->  serves it
//! ```
//!
//! # Concurrency
//!
//! Each hand-over of a mount has a thread of its own. The main thread, which waits for the end of
//! the server, calls [`PoolMounts::reap`] periodically.

mod coming;
mod counted;
mod leaving;
mod remount;
mod watched;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use engine::api::Ino;
use front::fuse::protocol::{NodeId, NodeNumbers};
use front::fuse::{
    AttachedMount, CpuLatency, EndCause, FuseTransportChoice, MountError, MountOptions,
    MountedSession, POLL_TIME_DEFAULT, POLL_TIME_MAX, StopSignals, THREADS_MAX, UnmountOutcome,
};
use front::shared::{SharedFilesets, ViewerCounts};
use front::watch::Watch;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::coming::{HAND_OVER_TIME, HandOver};
use self::counted::MountRequestCounts;
pub(crate) use self::counted::sum;
pub use self::leaving::PoolClosingError;
pub use self::remount::RemountSpec;
use crate::backend::OpenPool;
use crate::messages::{self, pass_descriptor, take_descriptor};
pub use crate::mount_spec::MountSpec;
use crate::peer::Peer;
use crate::until::DeadlineReader;
use crate::uses::{FilesetUse, FilesetUseGuard, FilesetUses};
use control::wire::WireAnswer;
use control::{UsageError, name_of, snapshot_of};

/// Most mounts of a pool. Each mount has some threads.
const MOUNTS_MAX: usize = 64;
const MOUNTS_OF_MOUNTER_MAX: usize = 8;
/// Most mounts of all mounters together. The others are for administrators.
const MOUNTS_OF_MOUNTERS_MAX: usize = MOUNTS_MAX / 2;
/// Most threads of a mounter's mount. Each thread may take two buffers of 1 MiB.
const THREADS_OF_MOUNTER_MAX: usize = 8;
const DEVICE_CHARS_MAX: usize = 24;
const LINE_OF_PLACE_BYTES_MAX: u64 = 256;
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);
const POLL_TIME: Duration = Duration::from_millis(50);
/// How long to wait after a signal for processes that have files open. A service manager kills
/// after 90 s, which leaves time for the last sync.
const DRAIN_TIME: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountCreator {
    /// Root or the server's user. The requests through the mount have the users that the kernel
    /// reports.
    Administrator(Peer),
    /// A user with the role of a mounter, as whom all requests through the mount run (RO2).
    Mounter(Peer),
}

impl MountCreator {
    fn peer(self) -> Peer {
        let (MountCreator::Administrator(peer) | MountCreator::Mounter(peer)) = self;
        peer
    }

    fn mounter(self) -> Option<u32> {
        match self {
            MountCreator::Administrator(_) => None,
            MountCreator::Mounter(peer) => Some(peer.uid),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MountDeviceReply {
    device: Option<String>,
}

/// Mounts of a pool.
pub struct PoolMounts {
    path: PathBuf,
    pool: Arc<dyn OpenPool>,
    /// Uses of each fileset.
    pub uses: Arc<FilesetUses>,
    list: Mutex<MountList>,
    counted: Mutex<MountRequestCounts>,
    /// Observers of requests, shared by all pools of a server.
    watch: OnceLock<Arc<Watch>>,
    /// Whether [`PoolMounts::control`] answers statistics requests, because no network server runs
    /// beside the mounts.
    answers_alone: AtomicBool,
    refused: Mutex<BTreeMap<u32, Instant>>,
}

#[derive(Default)]
struct MountList {
    mounted: Vec<ActiveMount>,
    coming: Vec<HandOver>,
    is_closing: bool,
    /// Number of ended mounts whose writes are being made durable.
    leaving: usize,
    failure: Option<MountError>,
}

impl MountList {
    fn is_any(&self) -> bool {
        !self.mounted.is_empty() || !self.coming.is_empty() || self.leaving > 0
    }
}

/// A served mount. The claim is declared after the session, and so is dropped after all requests of
/// the session have ended.
struct ActiveMount {
    number: u64,
    session: MountedSession,
    claim: FilesetUseGuard,
    mounter: Option<u32>,
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl ActiveMount {
    fn facts(&self, server: &Path) -> Value {
        let directory = self.session.directory();
        let transport = self.session.transport();
        let (pool, fileset) = self.claim.place();
        let locks = self.session.lock_counts();
        json!({
            "directory": directory.to_string_lossy(),
            "directory_bytes": directory.as_os_str().as_bytes(),
            "device": self.session.device(),
            "fileset": fileset,
            "mounter": self.mounter,
            "has_gone": self.session.has_gone(),
            "moved_to": (pool != server).then_some(pool),
            "transport": { "name": transport.name(), "reason": transport.reason() },
            "shared": self.session.told().map(|told| json!({
                "notices": told.notices,
                "waiting": told.waiting,
                "delay_ns": told.delay_ns,
                "overflows": told.overflows,
                "opens_again": told.opens_again,
                "locks": locks.map(|(held, _)| held),
                "locks_waiting": locks.map(|(_, waiting)| waiting),
            })),
        })
    }
}

impl PoolMounts {
    /// Returns an empty list for `pool`, opened at `path`.
    pub fn new(path: &Path, pool: &Arc<dyn OpenPool>) -> Arc<PoolMounts> {
        Arc::new(PoolMounts {
            path: path.to_owned(),
            pool: Arc::clone(pool),
            uses: FilesetUses::new(path, pool),
            list: Mutex::default(),
            counted: Mutex::default(),
            watch: OnceLock::new(),
            answers_alone: AtomicBool::new(false),
            refused: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, MountList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a mount made by this process.
    pub fn add(&self, session: MountedSession, claim: FilesetUseGuard) {
        self.count(&session, &claim);
        self.lock().mounted.push(ActiveMount {
            number: next_number(),
            session,
            claim,
            mounter: None,
        });
    }

    pub(crate) fn facts(&self) -> Vec<Value> {
        self.facts_where(|_| true)
    }

    pub(crate) fn facts_of(&self, uid: u32) -> Vec<Value> {
        self.facts_where(|mounted| mounted.mounter == Some(uid))
    }

    fn facts_where(&self, is_asked: impl Fn(&ActiveMount) -> bool) -> Vec<Value> {
        self.lock()
            .mounted
            .iter()
            .filter(|it| is_asked(it))
            .map(|it| it.facts(&self.path))
            .collect()
    }

    pub(crate) fn told(&self) -> Vec<(String, ViewerCounts, (usize, usize))> {
        let list = self.lock();
        let told = |mounted: &ActiveMount| {
            let device = mounted.session.device().unwrap_or_default();
            let locks = mounted.session.lock_counts().unwrap_or_default();
            Some((device.to_owned(), mounted.session.told()?, locks))
        };
        list.mounted.iter().filter_map(told).collect()
    }

    /// Returns the pool and the inode number of a node in the mount at `index`.
    pub(crate) fn inode_of(&self, index: usize, node: NodeId) -> Option<(Arc<dyn OpenPool>, Ino)> {
        let list = self.lock();
        let claim = &list.mounted.get(index)?.claim;
        let root = claim.file_system().root_of(claim.fileset()).ok()?;
        claim.inode(NodeNumbers::new(root).ino_of(node)).ok()
    }

    /// Makes ended mounts durable and releases them. Returns whether any mount or hand-over is
    /// left. If none is left and `closes` is set, later mounts are refused.
    pub fn reap(&self, closes: bool) -> bool {
        let ended: Vec<ActiveMount> = {
            let mut list = self.lock();
            let (ended, left) = std::mem::take(&mut list.mounted)
                .into_iter()
                .partition(|mounted| mounted.session.is_ended());
            list.mounted = left;
            // Counted in `leaving` until released, so that the pool does not seem to have no
            // mounts.
            list.leaving += ended.len();
            ended
        };
        for ActiveMount { session, claim, .. } in ended {
            let directory = session.directory().to_owned();
            let done = session.wait();
            tracing::info!(?directory, "unmounted");
            drop(claim);
            let mut list = self.lock();
            list.leaving -= 1;
            if let Err(error) = done {
                tracing::error!(?directory, %error, "a mount has failed");
                list.failure.get_or_insert(error);
            }
        }
        let mut list = self.lock();
        let is_left = list.is_any();
        list.is_closing |= closes && !is_left;
        is_left
    }

    /// Serves until the last mount has ended, or until a signal.
    pub fn run(&self, signals: &StopSignals) -> Result<EndCause, MountError> {
        let signal = loop {
            if let Some(signal) = signals.wait_within(POLL_TIME) {
                break Some(signal);
            }
            if !self.reap(true) {
                break None;
            }
        };
        let end = match signal {
            Some(signal) => unmount_all(&[self], signals, signal)?,
            None => EndCause::Unmounted,
        };
        match self.lock().failure.take() {
            Some(failure) => Err(failure),
            None => Ok(end),
        }
    }

    /// Unmounts every mount, lazily if files are in use. Continues after a failure, and returns the
    /// first.
    fn detach_all(&self, signal: i32) -> Result<(), MountError> {
        let mut list = self.lock();
        list.is_closing = true;
        let mut done = Ok(());
        for ActiveMount { session, .. } in &list.mounted {
            let directory = session.directory();
            tracing::info!(signal, ?directory, "unmounting");
            match session.unmount() {
                Ok(UnmountOutcome::Detached) => {
                    let seconds = DRAIN_TIME.as_secs();
                    tracing::warn!(seconds, ?directory, "files are still in use");
                }
                Ok(UnmountOutcome::Clean) => {}
                Err(error) => {
                    tracing::error!(?directory, %error, "it stays mounted");
                    done = done.and(Err(error));
                }
            }
        }
        done
    }

    /// Syncs, and ends the mounts that are still in use. Their users get errors once this process
    /// ends.
    fn cut(&self) -> Result<(), MountError> {
        let left = std::mem::take(&mut self.lock().mounted);
        let synced = left.first().map_or(Ok(()), |mounted| mounted.session.sync());
        for ActiveMount { session, claim, .. } in left {
            drop(session);
            // Requests go on until the process ends, so the claim must not release the fileset.
            std::mem::forget(claim);
        }
        synced
    }

    /// Takes over the mount of the client on `stream`. The caller has checked the client's right.
    pub(crate) fn take_over(
        &self,
        stream: &UnixStream,
        spec: &MountSpec,
        maker: MountCreator,
    ) -> anyhow::Result<Value> {
        let _coming = self.come(stream, spec, maker)?;
        let shown = self.path.display();
        let wrong = |cause: String| anyhow::anyhow!("{shown}: {cause}");
        let name = spec.fileset.as_deref().map(name_of).transpose().map_err(wrong)?;
        let snapshot = spec.snapshot.as_deref().map(snapshot_of).transpose().map_err(wrong)?;
        let mut options = MountOptions::new(&self.path.to_string_lossy());
        options.apply(&spec.options)?;
        let is_read_only = self.pool.status()["is_read_only"] == true;
        anyhow::ensure!(
            options.is_read_only || !is_read_only,
            "{shown}: the pool is open to be read only: give -o ro"
        );
        let groups = front::peer::groups(stream).context("the kernel tells no groups")?;
        set_as_asked(&mut options, spec, maker, groups);
        let directory = PathBuf::from(OsString::from_vec(spec.directory.clone()));
        check_shared(&options)?;
        let how = use_of(&options, &directory);
        let claim = self.claim(name.as_ref(), snapshot.as_ref(), &how);
        let claim = claim.map_err(|error| match maker {
            MountCreator::Administrator(_) => anyhow::Error::from(error),
            // The engine's error names other users' mounts and exports, so a mounter gets a general
            // one.
            MountCreator::Mounter(_) => {
                let name = spec.fileset.as_deref().unwrap_or_default();
                anyhow::anyhow!(
                    "{name} cannot be mounted now, it may be in use: ask an administrator"
                )
            }
        })?;
        messages::send(stream, &WireAnswer::Ready)?;
        let mut until = DeadlineReader::new(stream, HAND_OVER_TIME);
        let connection: OwnedFd = take_descriptor(&until)?.into();
        let place: MountDeviceReply = messages::receive_until(&mut until, LINE_OF_PLACE_BYTES_MAX)
            .context("the place of the mount did not come")?;
        // The device number becomes a label in metrics, so its text is restricted.
        let is_number = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == ':');
        let device = place.device.filter(|it| it.len() < DEVICE_CHARS_MAX && is_number(it));
        let attached = AttachedMount { directory, device, connection, has_replaced_dead: false };
        let fs = claim.file_system();
        let shares = shares_of(&options, &claim);
        let session = front::fuse::serve_attached(fs, claim.fileset(), attached, &options, shares)?;
        tracing::info!(directory = ?session.directory(), "mounted");
        self.count(&session, &claim);
        let (number, mounter) = (next_number(), maker.mounter());
        let mounted = ActiveMount { number, session, claim, mounter };
        // Read before the mount is listed, because it may end and be removed at any time after
        // that.
        let facts = mounted.facts(&self.path);
        self.lock().mounted.push(mounted);
        Ok(facts)
    }

    /// Logs a mount request, with the refusal if there is one. Refusals of a mounter are logged at
    /// most once a second, because its client may repeat them.
    pub(crate) fn audit(&self, spec: &MountSpec, maker: MountCreator, refusal: Option<String>) {
        if let (Some(uid), Some(_)) = (maker.mounter(), &refusal) {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = |since: &Instant| since.elapsed() >= REFUSAL_PAUSE;
            if !refused.get(&uid).is_none_or(is_due) {
                return;
            }
            refused.insert(uid, Instant::now());
        }
        let directory = OsString::from_vec(spec.directory.clone());
        let (who, result) =
            (format!("user {}", maker.peer().uid), refusal.unwrap_or_else(|| "done".to_owned()));
        let MountSpec { fileset, snapshot, options, .. } = spec;
        tracing::info!(
            target: "holdfast::audit",
            who, ?directory, ?fileset, ?snapshot, ?options, result, "mount"
        );
    }

    pub(crate) fn begin(
        self: &Arc<PoolMounts>,
        stream: &UnixStream,
        spec: MountSpec,
        maker: MountCreator,
    ) -> anyhow::Result<()> {
        let (stream, mounts) = (stream.try_clone()?, Arc::clone(self));
        std::thread::Builder::new().name("hand-over".to_owned()).spawn(move || {
            let done = mounts.take_over(&stream, &spec, maker);
            mounts.audit(&spec, maker, done.as_ref().err().map(|error| format!("{error:#}")));
            let answer = match done {
                Ok(value) => WireAnswer::Mounted(value),
                Err(error) if error.is::<PoolClosingError>() => WireAnswer::Closing,
                Err(error) => WireAnswer::Error(format!("{error:#}")),
            };
            if let Err(error) = messages::send(&stream, &answer) {
                tracing::debug!(%error, "the client of a mount has gone");
            }
        })?;
        Ok(())
    }
}

/// Sets the requested options that are not in the text of mount(8), within the limits of `maker`.
fn set_as_asked(
    options: &mut MountOptions,
    spec: &MountSpec,
    maker: MountCreator,
    groups: Vec<u32>,
) {
    // The command checks these limits too, but a mounter's client may be any program.
    options.thread_count = spec.threads.clamp(1, THREADS_MAX);
    options.poll_time = Duration::from_micros(spec.poll_us).min(POLL_TIME_MAX);
    options.has_writeback_cache = spec.has_writeback_cache;
    options.transport = match spec.transport.as_str() {
        "auto" => FuseTransportChoice::Auto,
        "uring" => FuseTransportChoice::Uring,
        _ => FuseTransportChoice::Dev,
    };
    options.cpu_latency = match spec.cpu_latency.as_str() {
        "on" => CpuLatency::On,
        "off" => CpuLatency::Off,
        _ => CpuLatency::Auto,
    };
    if let MountCreator::Mounter(peer) = maker {
        // RO2: requests run with the mounter's user and groups.
        options.acts_as = Some((peer.uid, peer.gid, groups));
        // CPUs and memory are shared by all users.
        options.cpu_latency = CpuLatency::Off;
        options.thread_count = options.thread_count.min(THREADS_OF_MOUNTER_MAX);
        options.poll_time = options.poll_time.min(POLL_TIME_DEFAULT);
    }
}

/// Unmounts every mount of the pools and waits up to [`DRAIN_TIME`] for their users, for all pools
/// at once.
pub fn unmount_all(
    all: &[&PoolMounts],
    signals: &StopSignals,
    signal: i32,
) -> Result<EndCause, MountError> {
    let detached = all.iter().map(|mounts| mounts.detach_all(signal)).fold(Ok(()), Result::and);
    let begun = Instant::now();
    // Every pool is reaped each time, even if another has mounts left.
    while all.iter().map(|mounts| mounts.reap(true)).fold(false, |any, is_left| any | is_left) {
        if signals.wait_within(POLL_TIME).is_some() || begun.elapsed() >= DRAIN_TIME {
            let cut = all.iter().map(|mounts| mounts.cut()).fold(Ok(()), Result::and);
            return detached.and(cut).map(|()| EndCause::Cut(signal));
        }
    }
    detached.map(|()| EndCause::Signal(signal))
}

/// Returns how a mount on `directory` with these options uses its fileset.
pub fn use_of(options: &MountOptions, directory: &Path) -> FilesetUse {
    let directory = directory.to_owned();
    if options.is_shared {
        FilesetUse::SharedMount(directory)
    } else {
        FilesetUse::Mount(directory)
    }
}

/// Returns the registry through which shared mounts are notified of changes, `None` if the mount is
/// not shared.
pub fn shares_of<'c>(
    options: &MountOptions,
    claim: &'c FilesetUseGuard,
) -> Option<&'c Arc<SharedFilesets>> {
    options.is_shared.then(|| claim.shares())
}

/// Refuses write-back caching on a shared mount: it would hide writes from other clients.
pub fn check_shared(options: &MountOptions) -> Result<(), UsageError> {
    if options.is_shared && options.has_writeback_cache {
        let message = "--writeback-cache keeps what is written from those that --shared shows it \
                       to: give one of them";
        return Err(UsageError::new(message));
    }
    Ok(())
}

/// Mounts `directory` and hands the mount to the server on `stream`, which has the request already.
#[allow(clippy::wildcard_enum_match_arm, reason = "all that is no answer to it is nonsense")]
pub(crate) fn hand_over(
    stream: &UnixStream,
    directory: &Path,
    options: &MountOptions,
) -> anyhow::Result<(Value, bool)> {
    let gone = "the server has gone away: mount again";
    // Nothing is mounted yet, so after an error the caller may retry.
    match messages::receive_answer::<WireAnswer>(stream) {
        Ok(WireAnswer::Ready) => {}
        Ok(WireAnswer::Error(error)) => return Err(anyhow::Error::msg(error)),
        Ok(WireAnswer::Closing) | Err(_) => {
            return Err(PoolClosingError::of(Path::new(&options.fs_name)).into());
        }
        Ok(other) => return Err(nonsense(&other)),
    }
    let attached = front::fuse::attach(directory, options)?;
    let at = attached.directory.clone();
    let has_replaced_dead = attached.has_replaced_dead;
    let served =
        give(stream, attached).and_then(|()| {
            match messages::receive_answer::<WireAnswer>(stream).context(gone)? {
                WireAnswer::Mounted(value) => Ok((value, has_replaced_dead)),
                WireAnswer::Error(error) => Err(anyhow::Error::msg(error)),
                other => Err(nonsense(&other)),
            }
        });
    if served.is_err() {
        let _ = front::fuse::mountpoint::detach(&at);
    }
    served
}

fn nonsense(answer: &WireAnswer) -> anyhow::Error {
    tracing::debug!(?answer, "no answer to a mount");
    anyhow::anyhow!("the server answered nonsense: is it a `holdfast` of another version?")
}

/// Passes the descriptor of the FUSE connection, and closes this process's copy.
fn give(stream: &UnixStream, attached: AttachedMount) -> anyhow::Result<()> {
    let place = MountDeviceReply { device: attached.device };
    pass_descriptor(stream, &attached.connection.into())?;
    messages::send(stream, &place)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use format::fileset::NamePart;

    use super::*;
    use crate::backend::Backend;
    use crate::wiring::EngineBackend;
    use control::Request;

    const MAKER: MountCreator = MountCreator::Administrator(Peer { uid: 0, gid: 0 });

    fn spec(fileset: Option<&str>) -> MountSpec {
        MountSpec::plain(fileset, Path::new("/nowhere"))
    }

    /// Goal: a descriptor that is not a mounted /dev/fuse is refused, and the fileset is free
    /// again.
    #[test]
    fn a_descriptor_that_is_no_mount_is_refused() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let mounts = PoolMounts::new(Path::new("pool"), &pool);
        for (device, words) in [
            (Some("/dev/null"), "no /dev/fuse"),
            (Some("/dev/fuse"), "mounted nowhere"),
            (None, "no descriptor"),
        ] {
            let opened = device.map(|path| File::options().read(true).write(true).open(path));
            // Not every machine has the device.
            if opened.as_ref().is_some_and(Result::is_err) {
                continue;
            }
            let (here, there) = UnixStream::pair().expect("a pair");
            let (mounts, spec) = (&mounts, spec(None));
            let refused = std::thread::scope(|scope| {
                let asked = scope.spawn(move || mounts.take_over(&there, &spec, MAKER));
                let ready: WireAnswer = messages::receive_answer(&here).expect("it answers");
                assert!(matches!(ready, WireAnswer::Ready), "{ready:?}");
                if let Some(Ok(file)) = opened {
                    pass_descriptor(&here, &file).expect("there is room");
                    messages::send(&here, &MountDeviceReply { device: None }).expect("it reads");
                }
                drop(here);
                asked.join().expect("no bug").expect_err("it is no mount")
            });
            assert!(format!("{refused:#}").contains(words), "{refused:#}");
        }
        assert!(mounts.facts().is_empty() && !mounts.reap(false));
        pool.close().expect("memory does not fail");
    }

    /// Goal: requests through a mounter's mount run as that user, within the limits of the command
    /// line (RO2).
    #[test]
    fn what_a_mounter_mounts_is_done_as_him() {
        let asked = MountSpec {
            threads: 1 << 20,
            poll_us: u64::MAX,
            cpu_latency: "on".to_owned(),
            ..spec(None)
        };
        let set = |maker: MountCreator| {
            let mut options = MountOptions::new("pool");
            set_as_asked(&mut options, &asked, maker, vec![70, 71]);
            let bounds = (options.thread_count, options.poll_time);
            (options.acts_as, options.cpu_latency, bounds)
        };
        let mounter = MountCreator::Mounter(Peer { uid: 7, gid: 8 });
        let bounds = (THREADS_OF_MOUNTER_MAX, POLL_TIME_DEFAULT);
        assert_eq!(set(mounter), (Some((7, 8, vec![70, 71])), CpuLatency::Off, bounds));
        assert_eq!(set(MAKER), (None, CpuLatency::On, (THREADS_MAX, POLL_TIME_MAX)));
    }

    /// Goal: a fileset has either one mount alone, or exports and copy-ins (UF1, UF2). A missing
    /// name and a closing pool are reported.
    #[test]
    fn a_fileset_has_one_mount_or_others() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let mounts = PoolMounts::new(Path::new("pool"), &pool);
        let (here, there) = UnixStream::pair().expect("a pair");
        let refused = |how: FilesetUse, words: &str| {
            let claim = mounts.uses.claim(None, None, how);
            let error = claim.err().expect("it is in use").to_string();
            assert!(error.contains(words), "{error}");
        };
        let export = || FilesetUse::Export("/x".to_owned());
        let mount = || FilesetUse::Mount(PathBuf::from("/mnt"));
        let claim = mounts.uses.claim(None, None, mount()).expect("it is free");
        refused(export(), "unmount /mnt");
        refused(FilesetUse::CopyIn, "mounted on /mnt");
        let again = mounts.take_over(&there, &spec(Some("root")), MAKER).expect_err("one mount");
        assert!(again.to_string().contains("fileset root: it is mounted on /mnt"), "{again}");
        drop(claim);
        let both =
            [export(), FilesetUse::CopyIn, export()].map(|how| mounts.uses.claim(None, None, how));
        refused(mount(), "exported as /x");
        drop(both);
        let shared = || FilesetUse::SharedMount(PathBuf::from("/shared"));
        let all = [shared(), export(), FilesetUse::CopyIn, shared()];
        let both = all.map(|how| mounts.uses.claim(None, None, how));
        assert!(both.iter().all(Result::is_ok), "they tell each other");
        refused(mount(), "mount it with --shared here too");
        drop(both);
        let copying = mounts.uses.claim(None, None, FilesetUse::CopyIn).expect("it is free");
        refused(mount(), "a tree is being copied into it");
        drop(copying);
        drop(mounts.uses.claim(None, None, mount()).expect("it is free again"));
        let ask = |request: Request| {
            let checked = mounts.uses.check(&request);
            checked.and_then(|()| pool.control(&request, Peer::own()))
        };
        let (fileset, snapshot) = ("root".to_owned(), "c".to_owned());
        let (of, own) = (fileset.clone(), snapshot.clone());
        let delete = Request::SnapshotDelete { fileset: of, snapshot: own, uuid: None };
        ask(Request::SnapshotCreate { fileset, snapshot }).expect("there is room");
        let (name, own) = ("root".parse().expect("a name"), NamePart::new("c").expect("a name"));
        let claim = mounts.uses.claim(Some(&name), Some(&own), mount()).expect("it is free");
        let told = ask(delete.clone()).expect_err("it is mounted").to_string();
        assert!(
            told.contains("snapshot root@c: it is mounted on /mnt: `holdfast unmount"),
            "{told}"
        );
        drop(claim);
        ask(delete).expect("nobody uses it");
        let missing = mounts.take_over(&there, &spec(Some("b")), MAKER).expect_err("there is none");
        assert!(missing.to_string().contains("there is no fileset b"), "{missing}");
        mounts.reap(true);
        let closing = mounts.take_over(&there, &spec(None), MAKER).expect_err("it closes");
        assert!(closing.to_string().contains("being closed"), "{closing}");
        drop(here);
        pool.close().expect("memory does not fail");
    }
}
