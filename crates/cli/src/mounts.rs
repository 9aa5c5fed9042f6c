//! The mounts of a pool that one server has open, each of another fileset.
//!
//! ```text
//!   holdfast mount POOL:b DIR --question--> status socket --> claims the fileset, says: ready
//!        mounts DIR, in its own namespace
//!        passes /dev/fuse ------------------------------->    serves it
//! ```
//!
//! # Concurrency
//!
//! A mount that another process hands over comes in a thread of its own. Whoever waits for the
//! server's end calls [`Mounts::reap`] now and then.

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
use engine::vnode::api::Ino;
use front::fuse::protocol::{NodeId, NodeNumbers};
use front::fuse::{
    Attached, CpuLatency, EndCause, MountError, MountOptions, MountedSession, POLL_TIME_DEFAULT,
    POLL_TIME_MAX, StopSignals, THREADS_MAX, TransportChoice, Unmounted,
};
use front::shared::{Shares, Told};
use front::watch::Watch;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use self::coming::{HAND_OVER_TIME, HandOver};
use self::counted::Counted;
pub(crate) use self::counted::sum;
pub(crate) use self::leaving::Closing;
pub(crate) use self::remount::RemountSpec;
use crate::backend::OpenPool;
use crate::control::{Peer, clone_of, name_of};
use crate::exit::UsageError;
use crate::status::{self, Answer};
use crate::transfer::{pass_descriptor, take_descriptor};
use crate::until::Until;
use crate::uses::{Claim, Use, Uses};

/// Most mounts of a pool: each has some threads.
const MOUNTS_MAX: usize = 64;
/// Most of those that one mounter has, those that he is handing over too: others have some left.
const MOUNTS_OF_MOUNTER_MAX: usize = 8;
/// Most of all mounters together: administrators have the rest.
const MOUNTS_OF_MOUNTERS_MAX: usize = MOUNTS_MAX / 2;
/// Most threads of a mount of a mounter: each may take two buffers of 1 MiB.
const THREADS_OF_MOUNTER_MAX: usize = 8;
/// Longest `major:minor`.
const DEVICE_CHARS_MAX: usize = 24;
/// Longest line that comes behind the descriptor.
const LINE_OF_PLACE_BYTES_MAX: u64 = 256;
/// Longest directory, as the kernel has it, and longest options and names, of a mounter: they are
/// in the log.
const DIRECTORY_BYTES_MAX: usize = 4096;
const WORDS_BYTES_MAX: usize = 1024;
/// Time between two lines of the log about what was refused to one mounter.
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);
/// How often the end of a mount is looked for.
const POLL_TIME: Duration = Duration::from_millis(50);
/// How long processes that hold files may go on after a signal. A service manager waits 90 s before
/// it kills; this leaves time for the last sync.
const DRAIN_TIME: Duration = Duration::from_secs(20);

/// A mount that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MountSpec {
    /// The fileset; `None`: the one that the pool was opened with.
    pub(crate) fileset: Option<String>,
    /// A clone of it.
    pub(crate) clone: Option<String>,
    /// Where, in the namespace of whoever asks: any bytes.
    pub(crate) directory: Vec<u8>,
    /// Options as mount(8) has them.
    pub(crate) options: String,
    pub(crate) threads: usize,
    pub(crate) poll_us: u64,
    pub(crate) has_writeback_cache: bool,
    /// `auto`, `uring` or `dev`.
    pub(crate) transport: String,
    /// Whether processors are kept from halting: `auto`, `on` or `off`.
    pub(crate) cpu_latency: String,
}

impl MountSpec {
    /// Refuses what is longer than anybody needs.
    pub(crate) fn check_lengths(&self) -> Result<(), String> {
        let names = [self.fileset.as_deref(), self.clone.as_deref(), Some(&self.options)];
        let is_long = names.into_iter().flatten().any(|words| words.len() > WORDS_BYTES_MAX);
        if is_long || self.directory.len() > DIRECTORY_BYTES_MAX {
            return Err("the names and options of a mount are too long".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
impl MountSpec {
    /// Returns a mount of a fileset, or of the one that the pool was opened with.
    pub(crate) fn plain(fileset: Option<&str>, directory: &Path) -> MountSpec {
        MountSpec {
            fileset: fileset.map(str::to_owned),
            clone: None,
            directory: directory.as_os_str().as_bytes().to_vec(),
            options: String::new(),
            threads: 1,
            poll_us: 0,
            has_writeback_cache: false,
            transport: "dev".to_owned(),
            cpu_latency: "off".to_owned(),
        }
    }
}

/// Who hands a mount over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// Root, or the user who runs the server: the kernel says as whom each request is, and has
    /// checked it.
    Administrator(Peer),
    /// A mounter: each request is his (RO2).
    Mounter(Peer),
}

impl Maker {
    fn peer(self) -> Peer {
        let (Maker::Administrator(peer) | Maker::Mounter(peer)) = self;
        peer
    }

    /// Returns the user, if he is a mounter.
    fn mounter(self) -> Option<u32> {
        match self {
            Maker::Administrator(_) => None,
            Maker::Mounter(peer) => Some(peer.uid),
        }
    }
}

/// What comes behind the descriptor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    /// Device number of what is mounted, as `major:minor`.
    device: Option<String>,
}

/// The mounts of a pool.
pub(crate) struct Mounts {
    path: PathBuf,
    pool: Arc<dyn OpenPool>,
    /// Who uses which fileset.
    pub(crate) uses: Arc<Uses>,
    list: Mutex<List>,
    counted: Mutex<Counted>,
    /// Sees what they ask. Of a server all its pools have one.
    watch: OnceLock<Arc<Watch>>,
    /// Whether nobody but this tells who asks what: there is no server beside the mounts.
    answers_alone: AtomicBool,
    /// When the log was last told of a refusal, by mounter.
    refused: Mutex<BTreeMap<u32, Instant>>,
}

#[derive(Default)]
struct List {
    mounted: Vec<Mounted>,
    /// Mounts that are being handed over.
    coming: Vec<HandOver>,
    is_closing: bool,
    /// Mounts that have ended and whose writes are being made durable.
    leaving: usize,
    /// What went wrong with one that has ended.
    failure: Option<MountError>,
}

impl List {
    /// Whether a mount is served, being handed over, or being made durable.
    fn is_any(&self) -> bool {
        !self.mounted.is_empty() || !self.coming.is_empty() || self.leaving > 0
    }
}

/// In the order in which they go: nobody asks any more when the claim does.
struct Mounted {
    /// No other mount of the process has the same.
    number: u64,
    session: MountedSession,
    claim: Claim,
    /// Which mounter has handed it over.
    mounter: Option<u32>,
}

/// Returns a number that no mount of this process has had.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Mounted {
    /// Returns what the `status` of the server of the pool at `server` tells of it.
    fn facts(&self, server: &Path) -> Value {
        let directory = self.session.directory();
        let transport = self.session.transport();
        let (pool, fileset) = self.claim.place();
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
            })),
        })
    }
}

impl Mounts {
    /// Returns the mounts of `pool`, which was opened at `path`: none.
    pub(crate) fn new(path: &Path, pool: &Arc<dyn OpenPool>) -> Arc<Mounts> {
        Arc::new(Mounts {
            path: path.to_owned(),
            pool: Arc::clone(pool),
            uses: Uses::new(path, pool),
            list: Mutex::default(),
            counted: Mutex::default(),
            watch: OnceLock::new(),
            answers_alone: AtomicBool::new(false),
            refused: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a mount that this process has made.
    pub(crate) fn add(&self, session: MountedSession, claim: Claim) {
        self.count(&session, &claim);
        self.lock().mounted.push(Mounted { number: next_number(), session, claim, mounter: None });
    }

    /// Returns each mount for `status`, in the order in which they came.
    pub(crate) fn facts(&self) -> Vec<Value> {
        self.facts_where(|_| true)
    }

    /// Returns those that the mounter `uid` has handed over.
    pub(crate) fn facts_of(&self, uid: u32) -> Vec<Value> {
        self.facts_where(|mounted| mounted.mounter == Some(uid))
    }

    fn facts_where(&self, is_asked: impl Fn(&Mounted) -> bool) -> Vec<Value> {
        self.lock()
            .mounted
            .iter()
            .filter(|it| is_asked(it))
            .map(|it| it.facts(&self.path))
            .collect()
    }

    /// Returns what the kernel of each shared mount was told, with the device number of the mount.
    pub(crate) fn told(&self) -> Vec<(String, Told)> {
        let list = self.lock();
        let told = |mounted: &Mounted| {
            let device = mounted.session.device().unwrap_or_default();
            Some((device.to_owned(), mounted.session.told()?))
        };
        list.mounted.iter().filter_map(told).collect()
    }

    /// Returns the pool that a node of the mount of number `index` is in, and its number there.
    pub(crate) fn inode_of(&self, index: usize, node: NodeId) -> Option<(Arc<dyn OpenPool>, Ino)> {
        let list = self.lock();
        let claim = &list.mounted.get(index)?.claim;
        let root = claim.file_system().root_of(claim.fileset()).ok()?;
        claim.inode(NodeNumbers::new(root).ino_of(node)).ok()
    }

    /// Lets go of mounts that have ended, and makes durable what was written to them. Returns
    /// whether any is left or coming; if none is and `closes`, no more come.
    pub(crate) fn reap(&self, closes: bool) -> bool {
        let ended: Vec<Mounted> = {
            let mut list = self.lock();
            let (ended, left) = std::mem::take(&mut list.mounted)
                .into_iter()
                .partition(|mounted| mounted.session.is_ended());
            list.mounted = left;
            // Whoever asks meanwhile must not be told that all is over.
            list.leaving += ended.len();
            ended
        };
        for Mounted { session, claim, .. } in ended {
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

    /// Serves until the last mount has gone, or one of `signals` comes.
    pub(crate) fn run(&self, signals: &StopSignals) -> Result<EndCause, MountError> {
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

    /// Takes every mount away, or detaches it where somebody uses it. One that can't be is no
    /// reason to leave the others: returns what was wrong with the first such.
    fn detach_all(&self, signal: i32) -> Result<(), MountError> {
        let mut list = self.lock();
        list.is_closing = true;
        let mut done = Ok(());
        for Mounted { session, .. } in &list.mounted {
            let directory = session.directory();
            tracing::info!(signal, ?directory, "unmounting");
            match session.unmount() {
                Ok(Unmounted::Detached) => {
                    let seconds = DRAIN_TIME.as_secs();
                    tracing::warn!(seconds, ?directory, "files are still in use");
                }
                Ok(Unmounted::Clean) => {}
                Err(error) => {
                    tracing::error!(?directory, %error, "it stays mounted");
                    done = done.and(Err(error));
                }
            }
        }
        done
    }

    /// Ends mounts that somebody uses: their users get errors when the process ends.
    fn cut(&self) -> Result<(), MountError> {
        let left = std::mem::take(&mut self.lock().mounted);
        let synced = left.first().map_or(Ok(()), |mounted| mounted.session.sync());
        for Mounted { session, claim, .. } in left {
            drop(session);
            // Its requests go on until the process ends: the fileset stays held.
            std::mem::forget(claim);
        }
        synced
    }

    /// Takes over the mount that the client of `stream`, who may do so, asks for.
    pub(crate) fn take_over(
        &self,
        stream: &UnixStream,
        spec: &MountSpec,
        maker: Maker,
    ) -> anyhow::Result<Value> {
        let _coming = self.come(stream, spec, maker)?;
        let shown = self.path.display();
        let wrong = |cause: String| anyhow::anyhow!("{shown}: {cause}");
        let name = spec.fileset.as_deref().map(name_of).transpose().map_err(wrong)?;
        let clone = spec.clone.as_deref().map(clone_of).transpose().map_err(wrong)?;
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
        let claim = self.claim(name.as_ref(), clone.as_ref(), &how);
        let claim = claim.map_err(|error| match maker {
            Maker::Administrator(_) => anyhow::Error::from(error),
            // It names what others have mounted and exported.
            Maker::Mounter(_) => {
                let name = spec.fileset.as_deref().unwrap_or_default();
                anyhow::anyhow!(
                    "{name} cannot be mounted now, it may be in use: ask an administrator"
                )
            }
        })?;
        // From here on the other side mounts.
        status::send(stream, &Answer::Ready)?;
        let mut until = Until::new(stream, HAND_OVER_TIME);
        let connection: OwnedFd = take_descriptor(&until)?.into();
        let place: Place = status::receive_until(&mut until, LINE_OF_PLACE_BYTES_MAX)
            .context("the place of the mount did not come")?;
        // It is a label of metrics.
        let is_number = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == ':');
        let device = place.device.filter(|it| it.len() < DEVICE_CHARS_MAX && is_number(it));
        let attached = Attached { directory, device, connection, has_replaced_dead: false };
        let fs = claim.file_system();
        let shares = shares_of(&options, &claim);
        let session = front::fuse::serve_attached(fs, claim.fileset(), attached, &options, shares)?;
        tracing::info!(directory = ?session.directory(), "mounted");
        self.count(&session, &claim);
        let (number, mounter) = (next_number(), maker.mounter());
        let mounted = Mounted { number, session, claim, mounter };
        // Of this one: others come and go.
        let facts = mounted.facts(&self.path);
        self.lock().mounted.push(mounted);
        Ok(facts)
    }

    /// Writes a line of the log: who has asked for which mount, and why it was refused, if it was.
    /// Of the refusals of a mounter one a second: he may ask as often as he likes.
    pub(crate) fn audit(&self, spec: &MountSpec, maker: Maker, refusal: Option<String>) {
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
        let MountSpec { fileset, clone, options, .. } = spec;
        tracing::info!(
            target: "holdfast::audit", who, ?directory, ?fileset, ?clone, ?options, result, "mount"
        );
    }

    /// Does so in a thread of its own. Returns why not.
    pub(crate) fn begin(
        self: &Arc<Mounts>,
        stream: &UnixStream,
        spec: MountSpec,
        maker: Maker,
    ) -> anyhow::Result<()> {
        let (stream, mounts) = (stream.try_clone()?, Arc::clone(self));
        std::thread::Builder::new().name("hand-over".to_owned()).spawn(move || {
            let done = mounts.take_over(&stream, &spec, maker);
            mounts.audit(&spec, maker, done.as_ref().err().map(|error| format!("{error:#}")));
            let answer = match done {
                Ok(value) => Answer::Mounted(value),
                Err(error) if error.is::<Closing>() => Answer::Closing,
                Err(error) => Answer::Error(format!("{error:#}")),
            };
            if let Err(error) = status::send(&stream, &answer) {
                tracing::debug!(%error, "the client of a mount has gone");
            }
        })?;
        Ok(())
    }
}

/// Sets what `spec` asks for beside the options of mount(8), as far as `maker` may have it.
fn set_as_asked(options: &mut MountOptions, spec: &MountSpec, maker: Maker, groups: Vec<u32>) {
    // What no command asks for, for its own sake: a process of a mounter may ask for anything.
    options.thread_count = spec.threads.clamp(1, THREADS_MAX);
    options.poll_time = Duration::from_micros(spec.poll_us).min(POLL_TIME_MAX);
    options.has_writeback_cache = spec.has_writeback_cache;
    options.transport = match spec.transport.as_str() {
        "auto" => TransportChoice::Auto,
        "uring" => TransportChoice::Uring,
        _ => TransportChoice::Dev,
    };
    options.cpu_latency = match spec.cpu_latency.as_str() {
        "on" => CpuLatency::On,
        "off" => CpuLatency::Off,
        _ => CpuLatency::Auto,
    };
    if let Maker::Mounter(peer) = maker {
        // RO2.
        options.acts_as = Some((peer.uid, peer.gid, groups));
        // Processors are everybody's, and memory is.
        options.cpu_latency = CpuLatency::Off;
        options.thread_count = options.thread_count.min(THREADS_OF_MOUNTER_MAX);
        options.poll_time = options.poll_time.min(POLL_TIME_DEFAULT);
    }
}

/// Takes every mount of these pools away, and waits a while for those who use them: of all pools at
/// once, so that the end of a server takes no longer for many than for one.
pub(crate) fn unmount_all(
    all: &[&Mounts],
    signals: &StopSignals,
    signal: i32,
) -> Result<EndCause, MountError> {
    let detached = all.iter().map(|mounts| mounts.detach_all(signal)).fold(Ok(()), Result::and);
    let begun = Instant::now();
    // Each is looked at: what has ended is made durable.
    while all.iter().map(|mounts| mounts.reap(true)).fold(false, |any, is_left| any | is_left) {
        if signals.wait_within(POLL_TIME).is_some() || begun.elapsed() >= DRAIN_TIME {
            let cut = all.iter().map(|mounts| mounts.cut()).fold(Ok(()), Result::and);
            return detached.and(cut).map(|()| EndCause::Cut(signal));
        }
    }
    detached.map(|()| EndCause::Signal(signal))
}

/// Returns what a fileset is used for that is mounted on `directory`.
pub(crate) fn use_of(options: &MountOptions, directory: &Path) -> Use {
    let directory = directory.to_owned();
    if options.is_shared { Use::SharedMount(directory) } else { Use::Mount(directory) }
}

/// Returns who is told of changes by a mount of `options`, and of whose it is told; `None`: the
/// mount is alone.
pub(crate) fn shares_of<'c>(options: &MountOptions, claim: &'c Claim) -> Option<&'c Arc<Shares>> {
    options.is_shared.then(|| claim.shares())
}

/// Refuses a kernel that keeps what is written where others are to see it.
pub(crate) fn check_shared(options: &MountOptions) -> Result<(), UsageError> {
    if options.is_shared && options.has_writeback_cache {
        let message = "--writeback-cache keeps what is written from those that --shared shows it \
                       to: give one of them";
        return Err(UsageError::new(message));
    }
    Ok(())
}

/// Mounts `directory` and hands it to the server behind `stream`, which has the request already.
#[allow(clippy::wildcard_enum_match_arm, reason = "all that is no answer to it is nonsense")]
pub(crate) fn hand_over(
    stream: &UnixStream,
    directory: &Path,
    options: &MountOptions,
) -> anyhow::Result<(Value, bool)> {
    let gone = "the server has gone away: mount again";
    // Nothing is mounted yet, so what ends here may be begun again.
    match status::receive_answer::<Answer>(stream) {
        Ok(Answer::Ready) => {}
        Ok(Answer::Error(error)) => return Err(anyhow::Error::msg(error)),
        Ok(Answer::Closing) | Err(_) => {
            return Err(Closing::of(Path::new(&options.fs_name)).into());
        }
        Ok(other) => return Err(nonsense(&other)),
    }
    let attached = front::fuse::attach(directory, options)?;
    let at = attached.directory.clone();
    let has_replaced_dead = attached.has_replaced_dead;
    let served = give(stream, attached).and_then(|()| {
        match status::receive_answer::<Answer>(stream).context(gone)? {
            Answer::Mounted(value) => Ok((value, has_replaced_dead)),
            Answer::Error(error) => Err(anyhow::Error::msg(error)),
            other => Err(nonsense(&other)),
        }
    });
    if served.is_err() {
        // What nobody serves must not stay in the way.
        let _ = front::fuse::mountpoint::detach(&at);
    }
    served
}

fn nonsense(answer: &Answer) -> anyhow::Error {
    tracing::debug!(?answer, "no answer to a mount");
    anyhow::anyhow!("the server answered nonsense: is it a `holdfast` of another version?")
}

/// Gives the connection away: this process has none when it returns.
fn give(stream: &UnixStream, attached: Attached) -> anyhow::Result<()> {
    let place = Place { device: attached.device };
    pass_descriptor(stream, &attached.connection.into())?;
    status::send(stream, &place)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use format::fileset::NamePart;

    use super::*;
    use crate::backend::Backend;
    use crate::control::Request;
    use crate::wiring::EngineBackend;

    const MAKER: Maker = Maker::Administrator(Peer { uid: 0, gid: 0 });

    fn spec(fileset: Option<&str>) -> MountSpec {
        MountSpec::plain(fileset, Path::new("/nowhere"))
    }

    /// Goal: what is handed over and is no mounted /dev/fuse is refused with words, and the fileset
    /// is free again. Method: another device, a device that nobody has mounted, and nothing at all.
    #[test]
    fn a_descriptor_that_is_no_mount_is_refused() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let mounts = Mounts::new(Path::new("pool"), &pool);
        for (device, words) in [
            (Some("/dev/null"), "no /dev/fuse"),
            (Some("/dev/fuse"), "mounted nowhere"),
            (None, "no descriptor"),
        ] {
            let opened = device.map(|path| File::options().read(true).write(true).open(path));
            // Not every machine has it.
            if opened.as_ref().is_some_and(Result::is_err) {
                continue;
            }
            let (here, there) = UnixStream::pair().expect("a pair");
            let (mounts, spec) = (&mounts, spec(None));
            let refused = std::thread::scope(|scope| {
                let asked = scope.spawn(move || mounts.take_over(&there, &spec, MAKER));
                let ready: Answer = status::receive_answer(&here).expect("it answers");
                assert!(matches!(ready, Answer::Ready), "{ready:?}");
                if let Some(Ok(file)) = opened {
                    pass_descriptor(&here, &file).expect("there is room");
                    status::send(&here, &Place { device: None }).expect("it reads");
                }
                drop(here);
                asked.join().expect("no bug").expect_err("it is no mount")
            });
            assert!(format!("{refused:#}").contains(words), "{refused:#}");
        }
        assert!(mounts.facts().is_empty() && !mounts.reap(false));
        pool.close().expect("memory does not fail");
    }

    /// Goal: a mount acts as the mounter whose it is, and has no more than the command line gives
    /// (RO2).
    #[test]
    fn what_a_mounter_mounts_is_done_as_him() {
        let asked = MountSpec {
            threads: 1 << 20,
            poll_us: u64::MAX,
            cpu_latency: "on".to_owned(),
            ..spec(None)
        };
        let set = |maker: Maker| {
            let mut options = MountOptions::new("pool");
            set_as_asked(&mut options, &asked, maker, vec![70, 71]);
            let bounds = (options.thread_count, options.poll_time);
            (options.acts_as, options.cpu_latency, bounds)
        };
        let mounter = Maker::Mounter(Peer { uid: 7, gid: 8 });
        let bounds = (THREADS_OF_MOUNTER_MAX, POLL_TIME_DEFAULT);
        assert_eq!(set(mounter), (Some((7, 8, vec![70, 71])), CpuLatency::Off, bounds));
        assert_eq!(set(MAKER), (None, CpuLatency::On, (THREADS_MAX, POLL_TIME_MAX)));
    }

    /// Goal: a fileset is used by one mount, or by exports and imports, and by nobody else until
    /// they have gone (UF1, UF2); a name that is none, and a pool that closes, are told.
    #[test]
    fn a_fileset_has_one_mount_or_others() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let mounts = Mounts::new(Path::new("pool"), &pool);
        let (here, there) = UnixStream::pair().expect("a pair");
        let refused = |how: Use, words: &str| {
            let claim = mounts.uses.claim(None, None, how);
            let error = claim.err().expect("it is in use").to_string();
            assert!(error.contains(words), "{error}");
        };
        let export = || Use::Export("/x".to_owned());
        let mount = || Use::Mount(PathBuf::from("/mnt"));
        let claim = mounts.uses.claim(None, None, mount()).expect("it is free");
        refused(export(), "unmount /mnt");
        refused(Use::Import, "mounted on /mnt");
        let again = mounts.take_over(&there, &spec(Some("root")), MAKER).expect_err("one mount");
        assert!(again.to_string().contains("fileset root: it is mounted on /mnt"), "{again}");
        drop(claim);
        let both = [export(), Use::Import, export()].map(|how| mounts.uses.claim(None, None, how));
        refused(mount(), "exported as /x");
        drop(both);
        let shared = || Use::SharedMount(PathBuf::from("/shared"));
        let all = [shared(), export(), Use::Import, shared()];
        let both = all.map(|how| mounts.uses.claim(None, None, how));
        assert!(both.iter().all(Result::is_ok), "they tell each other");
        refused(mount(), "mount it with --shared here too");
        drop(both);
        let import = mounts.uses.claim(None, None, Use::Import).expect("it is free");
        refused(mount(), "a tree is being imported");
        drop(import);
        drop(mounts.uses.claim(None, None, mount()).expect("it is free again"));
        let ask = |request: Request| {
            let checked = mounts.uses.check(&request);
            checked.and_then(|()| pool.control(&request, Peer::own()))
        };
        let (fileset, clone) = ("root".to_owned(), "c".to_owned());
        let (of, own) = (fileset.clone(), clone.clone());
        let delete = Request::CloneDelete { fileset: of, clone: own, uuid: None };
        ask(Request::CloneCreate { fileset, clone }).expect("there is room");
        let (name, own) = ("root".parse().expect("a name"), NamePart::new("c").expect("a name"));
        let claim = mounts.uses.claim(Some(&name), Some(&own), mount()).expect("it is free");
        let told = ask(delete.clone()).expect_err("it is mounted").to_string();
        assert!(told.contains("clone root@c: it is mounted on /mnt: `holdfast unmount"), "{told}");
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
