//! What a program may ask of an open pool beside its files, and what it is told: one typed request,
//! one typed answer.
//!
//! A server gets them as lines of JSON on its status socket; without a server the same function,
//! [`crate::backend::OpenPool::control`], acts on the pool that the command has opened. A request
//! of another version, with a field or a word that is not known, or longer than [`LINE_BYTES_MAX`]
//! is refused with words.
//!
//! Long: what may be asked, and what is told, is one list that people read.
//!
//! A kind of thing that is changed (filesets, clones, jobs) has variants of its own in
//! [`Request`], an answer in [`Answer`] if it lists, and a command that sends them.
//!
//! # Invariants
//!
//! - CO1: Only administrators, root and the server's own user ([`may_change`]), send a server any
//!   of this; what others may ask for is in [`crate::roles`].

pub(crate) mod device;
mod export;
mod group;
mod quota;
pub(crate) mod watch;

use std::path::PathBuf;
use std::sync::OnceLock;

use format::fileset::{FilesetName, NamePart};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::placement::parse_placement;
use crate::backend::BackendError;
use crate::exit::UsageError;
use crate::size::ByteSize;

pub use crate::server::schedule::{Counts, Schedule};
pub use crate::server::scrubs::{ScrubEvery, ScrubSchedule};
pub(crate) use quota::ACCOUNTS_MAX;
pub use quota::{AccountFacts, Limits, OwnerKind, QuotaFacts, QuotaState};

pub use export::{ClientFacts, ExportFacts, ExportSource, ExportSpec, OperationFacts, SquashName};
pub use group::{GroupFacts, GrownFacts, NewGroup};
pub use watch::{PathFacts, PathsFacts, SlowFacts, SlowList};

/// What this program speaks. Raised by each change that an older one would take for something else.
pub const VERSION: u32 = 1;
/// Longest request: two names of filesets, which have no more than some dozen parts.
pub(crate) const LINE_BYTES_MAX: u64 = 64 << 10;
/// Most entries of one answer: whoever wants more asks again from there on.
pub(crate) const LIST_MAX: usize = 500;
/// Most exports of one answer: each may have 64 networks and two paths.
pub(crate) const EXPORTS_MAX: usize = 100;
/// Most clients of one answer.
pub(crate) const CLIENTS_MAX: usize = 4096;

/// What is asked for. Names are `a/b`, without the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The filesets in this slot and the next ones, [`LIST_MAX`] at most.
    FilesetList {
        /// The first slot.
        from: u32,
    },
    /// Make a fileset. Its root directory belongs to whoever asks.
    FilesetCreate {
        /// Its name.
        name: String,
        /// What it is like; the rest is as the fileset above it.
        properties: Properties,
    },
    /// Change what a fileset is like.
    FilesetSet {
        /// Its name.
        name: String,
        /// What changes.
        properties: Properties,
    },
    /// Give a fileset another name.
    FilesetRename {
        /// Its name.
        name: String,
        /// The new one.
        to: String,
    },
    /// Delete a fileset. It is out of reach when this is answered; a job frees what it held.
    FilesetDelete {
        /// Its name.
        name: String,
    },
    /// Make a fileset that begins as a clone is.
    FilesetFork {
        /// The name of the fileset that the clone was taken of.
        fileset: String,
        /// The clone's own.
        clone: String,
        /// The new fileset's name.
        to: String,
    },
    /// Make a fileset what its clone is. The younger clones are told.
    FilesetRestore {
        /// The fileset's name.
        fileset: String,
        /// The clone's own.
        clone: String,
    },
    /// Give a fork the clones that it goes back to. Their new names are told.
    FilesetPromote {
        /// The fork's name.
        name: String,
    },
    /// Take a fileset that is on its way to another pool to be here, and one that has come from
    /// another to have left that: an operator knows, and that other pool is not asked.
    FilesetHere {
        /// Its name.
        name: String,
    },
    /// Give up what came of a stream to a fileset.
    ReceiveAbort {
        /// Its name.
        name: String,
    },
    /// Take a clone of a fileset: what it is like now.
    CloneCreate {
        /// The fileset's name.
        fileset: String,
        /// The clone's own.
        clone: String,
    },
    /// Take clones of a fileset and of all below it, at one moment. Their names are told.
    CloneCreateBelow {
        /// The fileset's name.
        fileset: String,
        /// Each clone's own.
        clone: String,
    },
    /// Keep a clone from being deleted, or no longer.
    CloneHold {
        /// The fileset's name.
        fileset: String,
        /// The clone's own.
        clone: String,
        /// By whom it is held.
        hold: String,
        /// Whether it is from now on.
        is_held: bool,
    },
    /// Delete a clone. It is out of reach when this is answered.
    CloneDelete {
        /// The fileset's name.
        fileset: String,
        /// The clone's own.
        clone: String,
        /// What identifies it, as 32 hexadecimal digits: another of that name is refused. None:
        /// whichever has the name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
    },
    /// How many bytes only this clone holds. Whoever changes its fileset waits for parts of that,
    /// so it is for those who may change it.
    CloneUnique {
        /// The fileset's name.
        fileset: String,
        /// The clone's own.
        clone: String,
    },
    /// The devices.
    DeviceList {},
    /// Leave a device behind.
    DeviceFail {
        /// Its path, slot or id.
        device: String,
    },
    /// Count the errors of a device anew, and forget those that failed and were replaced.
    DeviceClear {
        /// Its path, slot or id; none: of all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Put another device in the place of one. A job copies.
    DeviceReplace {
        /// Path, slot or id of the old one.
        old: String,
        /// Path of the new one, as the server finds it.
        new: PathBuf,
        /// Whether what is on the new one is overwritten.
        is_forced: bool,
    },
    /// Bring back a device that was away. A job makes anew what it missed.
    DeviceOnline {
        /// Its slot or id, or a path as the server finds it.
        device: String,
    },
    /// Make a device a spare.
    DeviceAdd {
        /// Its path, as the server finds it.
        device: PathBuf,
        /// Whether what is on it is overwritten.
        is_forced: bool,
    },
    /// Make a device a further copy of one, or spread a raid5 or stripe over it too: a job copies,
    /// or moves. Or a further one of a round-robin.
    DeviceAttach {
        /// Path, slot or id of the one whose disk group it joins.
        beside: String,
        /// Its path, as the server finds it.
        device: PathBuf,
        /// Bytes of a file that is not there yet; none: as many as it needs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size_bytes: Option<u64>,
        /// Whether what is on it is overwritten.
        is_forced: bool,
        /// Whether a raid5 or stripe is spread over it, and not a single or mirror copied to it.
        #[serde(default)]
        is_spread: bool,
        /// Whether it is one more of a round-robin, or of a single that becomes one.
        #[serde(default)]
        is_in_turn: bool,
    },
    /// Take a member out of a mirror; out of a raid5, stripe or round-robin a job does, from then
    /// on.
    DeviceDetach {
        /// Its path, slot or id.
        device: String,
        /// Whether each byte may be on one device alone then.
        accepts_no_redundancy: bool,
    },
    /// Make a spare one no longer.
    DeviceRemove {
        /// Its path or id.
        device: String,
    },
    /// Use all of devices that have become longer.
    DeviceGrow {
        /// Path, slot or id of each; none: all of the pool.
        devices: Vec<String>,
        /// Make files so long first.
        #[serde(default)]
        size_bytes: Option<u64>,
    },
    /// The disk groups.
    GroupList {},
    /// Add a disk group.
    GroupAdd(NewGroup),
    /// Begin to take a disk group out. A job moves what it holds.
    GroupRemove {
        /// Its number.
        group: u8,
    },
    /// Move the metadata to a disk group that has room for it: it is the main one then.
    GroupMetadata {
        /// Its number.
        group: u8,
    },
    /// Begin to hold all copies against each other; one that is under way goes on.
    Scrub {},
    /// What the last scrub has found.
    ScrubStatus {},
    /// Begin to discard all that is free; what is under way goes on.
    Trim {},
    /// What the last trim has done.
    TrimStatus {},
    /// The jobs that have an end.
    JobList {},
    /// Make a job pause, or go on.
    JobPause {
        /// Its number.
        job: u64,
        /// Whether it is to pause.
        is_paused: bool,
    },
    /// Set how much of the time a job works.
    JobPace {
        /// Its number.
        job: u64,
        /// Percent, 1 to 100; `None`: all while nobody uses the pool, half while somebody does.
        percent: Option<u8>,
    },
    /// What the server exports of this pool, by name, [`EXPORTS_MAX`] at most.
    ExportList {
        /// The first is behind this name; empty: the first of all.
        after: String,
    },
    /// Export something of this pool from now on, also when the server is started again.
    ExportAdd {
        /// It.
        export: ExportSpec,
    },
    /// Export it no more: its handles are stale from now on.
    ExportRemove {
        /// Its name.
        name: String,
    },
    /// Who is connected to the server, by address.
    ClientList {},
    /// How many operations there were, by kind, since the server began.
    OperationList {},
    /// What clients asked, by directory, since this look asked last. One that is not known begins.
    PathList {
        /// The number of the look: whoever looks draws one.
        look: u64,
        /// How many names directories are told apart by, from the root of a mount or an export on:
        /// 8 at most.
        depth: u8,
        /// How long requests are counted by directory if this look does not ask again, 600,000 at
        /// most; 0: no longer.
        lasts_ms: u64,
    },
    /// Requests that were slow, with numbers from `after` on.
    SlowList {
        /// The number of whoever wants to see them: one has one wish.
        wish: u64,
        /// The first number.
        after: u64,
        /// How long they took at least, in microseconds.
        from_us: u64,
        /// How long requests from there on are kept if this does not ask again, 600,000 at most;
        /// 0: no longer than those of 250 ms are, which always are.
        lasts_ms: u64,
    },
    /// Take clones of a fileset by schedule from now on, also when the server is started again.
    ScheduleSet {
        /// The fileset.
        fileset: String,
        /// How many of each kind are kept; none: there is no schedule any more.
        keep: Counts,
        /// Whether the schedules are meant of filesets that had this name and are gone. They can
        /// only be taken away.
        #[serde(default)]
        is_gone: bool,
    },
    /// The schedules of this pool.
    ScheduleList {},
    /// Scrub the pool so often from now on, also when the server is started again.
    ScrubScheduleSet {
        /// How often; none: as where nobody says anything.
        every: Option<ScrubEvery>,
    },
    /// How often the pool is scrubbed, and when next.
    ScrubSchedule {},
    /// Tell all that are to be told what happens a test. What came of it is told.
    NotifyTest {},
    /// Count what users, groups and projects have in a fileset, for some seconds: ask again until
    /// all is counted. Their limits hold then.
    QuotaOn {
        /// The fileset.
        fileset: String,
    },
    /// Count them no more; limits are kept.
    QuotaOff {
        /// The fileset.
        fileset: String,
    },
    /// Set limits.
    QuotaSet {
        /// The fileset.
        fileset: String,
        /// Of what kind the id is.
        kind: OwnerKind,
        /// Whose they are.
        id: u32,
        /// What changes.
        limits: Limits,
    },
    /// Say how long soft limits may be passed from now on.
    QuotaGrace {
        /// The fileset.
        fileset: String,
        /// Those of bytes.
        blocks_seconds: Option<u64>,
        /// Those of inodes.
        inodes_seconds: Option<u64>,
    },
    /// Give a file to a project; what is made in it has that too.
    QuotaProject {
        /// The fileset.
        fileset: String,
        /// Where it is in the fileset, with slashes; empty: its root directory.
        path: String,
        /// The project; 0: none.
        project: u32,
        /// Whether all that is below it gets it too.
        is_recursive: bool,
    },
    /// What users, groups or projects have, from this id on, [`ACCOUNTS_MAX`] at most.
    QuotaReport {
        /// The fileset.
        fileset: String,
        /// Which of them.
        kind: OwnerKind,
        /// The first id.
        from: u32,
    },
    /// Set which disk group new data of a file comes from; what is made in it has that too.
    PlacementSet {
        /// The fileset.
        fileset: String,
        /// Where it is in the fileset, with slashes; empty: its root directory.
        path: String,
        /// `any`, the number of a disk group, `round-robin` or `striped`.
        placement: String,
        /// Whether all that is below it gets it too.
        is_recursive: bool,
    },
    /// Which disk group new data of a file comes from.
    PlacementShow {
        /// The fileset.
        fileset: String,
        /// Where it is in the fileset, with slashes; empty: its root directory.
        path: String,
    },
    /// Read the configuration of the server again, and do what it says.
    Reload {},
}

impl Request {
    /// Returns the request in `value`, or why it is none.
    pub(crate) fn parse(version: u32, value: Value) -> Result<Request, String> {
        parse_as(version, value)
    }

    /// Whether it changes anything, makes others wait, or tells what is at a path that it names.
    pub(crate) fn is_change(&self) -> bool {
        !matches!(
            self,
            Request::FilesetList { .. }
                | Request::JobList {}
                | Request::ExportList { .. }
                | Request::ClientList {}
                | Request::DeviceList {}
                | Request::GroupList {}
                | Request::ScrubStatus {}
                | Request::TrimStatus {}
                | Request::OperationList {}
                | Request::PathList { .. }
                | Request::SlowList { .. }
                | Request::ScheduleList {}
                | Request::ScrubSchedule {}
                | Request::QuotaReport { .. }
        )
    }
}

/// Returns the request in `value`, one of a kind that is no [`Request`], or why it is none.
pub(crate) fn parse_as<T: serde::de::DeserializeOwned>(
    version: u32,
    value: Value,
) -> Result<T, String> {
    if version != VERSION {
        return Err(other_version(version));
    }
    serde_json::from_value(value).map_err(|error| format!("the request is refused: {error}"))
}

fn other_version(version: u32) -> String {
    format!(
        "the request has version {version} and the server knows {VERSION}: run the `holdfast` that \
         serves the pool, or mount it again with this one"
    )
}

/// CO1: whether a process of user `uid` may change what a server of user `own` has.
pub(crate) fn may_change(uid: u32, own: u32) -> bool {
    uid == 0 || (uid == own && uid != u32::MAX && (!is_of_many(uid) || has_all_users()))
}

/// Whether this namespace has a number for each user, so that none stands for others.
fn has_all_users() -> bool {
    static ALL: OnceLock<bool> = OnceLock::new();
    *ALL.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    })
}

/// Whether the kernel says `uid` of each user whom this namespace has no number for: many users, of
/// which one may be anybody.
pub(crate) fn is_of_many(uid: u32) -> bool {
    /// Where the kernel says another.
    const USUAL: u32 = 65_534;
    static OVERFLOW: OnceLock<u32> = OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
    };
    uid == u32::MAX || uid == *OVERFLOW.get_or_init(read)
}

/// Does `work` for `who` asked for `request`; a change is a line of the log, with what came of it.
pub(crate) fn audited(
    who: &str,
    request: &Request,
    work: impl FnOnce() -> Result<Answer, BackendError>,
) -> Result<Answer, BackendError> {
    let done = work();
    if request.is_change() {
        let result = done.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        tracing::info!(target: "holdfast::audit", who, ?request, result, "change");
    }
    done
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Peer {
    /// Returns this process.
    pub(crate) fn own() -> Peer {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Peer { uid: uid.as_raw(), gid: gid.as_raw() }
    }
}

/// What of a fileset can be chosen. `None`: as it was, or as the fileset above it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Properties {
    /// Size of blocks of new files.
    pub block_bytes: Option<u64>,
    /// Whether nobody may change what is in it.
    pub is_read_only: Option<bool>,
    /// Most bytes that it may reference; 0: no limit.
    pub quota_bytes: Option<u64>,
    /// Bytes that are kept free for it, less what it references; 0: none.
    pub reservation_bytes: Option<u64>,
    /// Which disk group new data of what is made in it comes from: `any`, its number,
    /// `round-robin` or `striped`.
    pub placement: Option<String>,
}

impl Properties {
    /// Returns what `key=value` words say.
    pub(crate) fn of(words: &[String]) -> Result<Properties, UsageError> {
        const KNOWN: &str = "properties are block=SIZE, readonly=on|off, quota=SIZE|none, \
                             reservation=SIZE|none and placement=any|GROUP|round-robin|striped";
        let mut properties = Properties::default();
        for word in words {
            let refused = |cause: &str| UsageError::new(format!("`{word}`: {cause}: {KNOWN}"));
            let (key, value) = word.split_once('=').ok_or_else(|| refused("it is no KEY=VALUE"))?;
            let is_given_twice = match key {
                "block" => {
                    let size: ByteSize =
                        value.parse().map_err(|error| refused(&format!("{error}")))?;
                    properties.block_bytes.replace(size.0).is_some()
                }
                "readonly" => {
                    let is_on = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(refused("it is on or off")),
                    };
                    properties.is_read_only.replace(is_on).is_some()
                }
                "quota" => {
                    let bytes = limit_of(value).map_err(|cause| refused(&cause))?;
                    properties.quota_bytes.replace(bytes).is_some()
                }
                "reservation" => {
                    let bytes = limit_of(value).map_err(|cause| refused(&cause))?;
                    properties.reservation_bytes.replace(bytes).is_some()
                }
                "placement" => {
                    let placement = parse_placement(value).map_err(|cause| refused(&cause))?;
                    properties.placement.replace(placement.to_string()).is_some()
                }
                _ => return Err(refused("there is no such property")),
            };
            if is_given_twice {
                return Err(refused("it is given twice"));
            }
        }
        Ok(properties)
    }
}

/// Returns the limit that `text` says; 0: none.
pub(crate) fn limit_of(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 == 0 {
        Err("a limit of nothing: write none for no limit".to_owned())
    } else {
        Ok(size.0)
    }
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It is done, and durable.
    Done,
    /// So many files were changed.
    Count(u64),
    /// Which disk group new data comes from: `any`, its number, `round-robin` or `striped`.
    Placement(String),
    /// What the quotas of a fileset are like.
    Quota(QuotaFacts),
    /// What users, groups or projects have; the next id, if there are more.
    QuotaAccounts {
        /// What the quotas are like.
        quota: QuotaFacts,
        /// By rising id.
        list: Vec<AccountFacts>,
        /// Where to go on.
        next: Option<u32>,
    },
    /// Some filesets, by slot.
    Filesets {
        /// They.
        list: Vec<FilesetFacts>,
        /// Where to ask for more; `None`: these were the last.
        next: Option<u32>,
    },
    /// Jobs, oldest first.
    Jobs(Vec<JobFacts>),
    /// Some exports, by name.
    Exports {
        /// They.
        list: Vec<ExportFacts>,
        /// Whether there are more behind the last.
        has_more: bool,
    },
    /// Clients, by address.
    Clients(Vec<ClientFacts>),
    /// Operations, by kind.
    Operations(Vec<OperationFacts>),
    /// What clients asked, by directory.
    Paths(PathsFacts),
    /// Requests that were slow.
    Slow(SlowList),
    /// Schedules, by fileset.
    Schedules(Vec<Schedule>),
    /// How often the pool is scrubbed, and when next.
    ScrubSchedule(ScrubSchedule),
    /// It is done, and durable; these are the names that it concerns.
    Names(Vec<String>),
    /// Who was told a test, and what came of it.
    Told(Vec<ToldFacts>),
    /// How many bytes.
    Bytes(u64),
    /// Devices, by slot.
    Devices(Vec<DeviceFacts>),
    /// Disk groups, by number.
    Groups(Vec<GroupFacts>),
    /// What disk groups have gained, by number.
    Grown(Vec<GrownFacts>),
    /// What the last scrub has found; `None`: there was none since the pool was opened.
    Scrub(Option<ScrubFacts>),
    /// What the last trim has done; `None`: there was none since the pool was opened.
    Trim(Option<TrimFacts>),
}

/// What a trim has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrimFacts {
    /// Bytes of free segments that were discarded.
    pub discarded_bytes: u64,
    /// Bytes of free segments on devices that do not discard.
    pub refused_bytes: u64,
    /// Bytes of the pool in stripes, which are not discarded.
    pub striped_bytes: u64,
    /// Discards that failed.
    pub failed: u64,
    /// Whether it has come to the end.
    pub is_done: bool,
}

/// What came of a test that a receiver was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToldFacts {
    /// How it is told: `command /usr/bin/logger`, `webhook http://...`, `mail to ...`.
    pub receiver: String,
    /// Whether it was told.
    pub ok: bool,
    /// Why not.
    pub error: Option<String>,
}

/// What a scrub has found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubFacts {
    /// Bytes of the pool that were compared.
    pub read_bytes: u64,
    /// How many of these before the pool was mounted this time: what was found there is in the log
    /// of the server of that time.
    #[serde(default)]
    pub read_before: u64,
    /// Pages of 4 KiB that were not the same on all devices.
    pub differing: u64,
    /// Pages and blocks that were written again.
    pub repaired: u64,
    /// Pages and blocks of which no copy verifies.
    pub lost: u64,
    /// Those of which no copy verifies that could be read, and one could not be: it may be there
    /// when the device answers.
    #[serde(default)]
    pub unread: u64,
    /// Those that are bad on a device and whole on others, and could not be written again.
    #[serde(default)]
    pub unwritten: u64,
    /// Differing pages that nothing uses.
    pub unused: u64,
    /// Runs of rows whose parity was written again.
    #[serde(default)]
    pub parities: u64,
    /// Bytes that were verified by their checksums alone: a device of their raid5 was away, and
    /// with it their parity or their other copies.
    #[serde(default)]
    pub uncompared_bytes: u64,
    /// Which devices that were.
    #[serde(default)]
    pub away: Vec<String>,
    /// Which are lost, or could not be read or written: the first of them, files by their paths.
    #[serde(default)]
    pub names: Vec<String>,
    /// Whether it has come to the end.
    pub is_done: bool,
    /// Why it waits: it goes on by itself once that is no more.
    #[serde(default)]
    pub waits: Option<String>,
}

/// What a pool tells of a device. Counts are since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceFacts {
    /// Its slot; of a spare its number behind the slots.
    pub slot: u64,
    /// The disk group that it is a member of; of a spare 0.
    #[serde(default)]
    pub group: u64,
    /// Its identity, as 32 hexadecimal digits.
    pub id: String,
    /// Where it was opened last; empty: nobody knows.
    pub path: String,
    /// `online`, `missing`, `failed` or `joining`; `spare`, or `spare away` if that is not there.
    pub state: String,
    /// Its size when it became a member, or when the pool has grown since.
    pub size_bytes: u64,
    /// What the pool uses of it.
    pub pool_bytes: u64,
    /// How much of that was made anew, or needs not be, while it is joining.
    pub copied_bytes: u64,
    /// How much of that lies in parts of the pool that were written while it was away: these it
    /// gets when it comes back, and the fixed regions.
    #[serde(default)]
    pub missed_bytes: u64,
    /// Blocks and pages that no other device gave when it was rebuilt, since the pool was opened.
    #[serde(default)]
    pub lost: u64,
    /// Which: the first of them, files by their paths.
    #[serde(default)]
    pub lost_names: Vec<String>,
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Ranges that did not verify.
    pub checksum_errors: u64,
    /// Ranges that were written again with what another device had.
    pub repaired: u64,
}

/// What a pool tells of a fileset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilesetFacts {
    /// Its name.
    pub name: String,
    /// Its slot: the upper bits of its inode numbers.
    pub slot: u32,
    /// What handles name it by, as 32 hexadecimal digits.
    pub uuid: String,
    /// Size of blocks of new files.
    pub block_bytes: u64,
    /// Whether it is a clone; its name is `a/b@monday` then.
    #[serde(default)]
    pub is_clone: bool,
    /// Of a clone: by whom it is held; it can't be deleted then.
    #[serde(default)]
    pub holds: Vec<String>,
    /// Of a clone: what needs it, so that it can't be deleted, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed_by: Option<String>,
    /// Whether one of its family is being freed: its clones can't be deleted until that is done.
    #[serde(default)]
    pub is_family_freed: bool,
    /// How many clones it may have at most, forks of them among these; 0: not known.
    #[serde(default)]
    pub clones_max: u64,
    /// How many more of them there may be.
    #[serde(default)]
    pub clones_left: u64,
    /// Whether a stream to it broke off, or comes: nobody finds it.
    #[serde(default)]
    pub is_receiving: bool,
    /// `leaving` for another pool, `arriving` from one, or `arrived` from one that may not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<String>,
    /// The clone that it goes back to: its own last one, or the one that it was forked from.
    #[serde(default)]
    pub origin: Option<String>,
    /// Of a clone, where that was asked for: bytes that it alone holds, which its deletion gives
    /// back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_bytes: Option<u64>,
    /// Whether nobody may change what is in it.
    pub is_read_only: bool,
    /// When it was made: seconds since 1970.
    pub created_seconds: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Bytes that it references: those of its files and of its metadata.
    #[serde(default)]
    pub referenced_bytes: u64,
    /// Most that it may reference. `None`: no limit.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Kept free for it, less what it references. `None`: nothing.
    #[serde(default)]
    pub reservation_bytes: Option<u64>,
    /// Which disk group new data of what is made in it comes from: that of its root directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Whether the server that answers has it mounted.
    pub is_mounted: bool,
    /// What the server that answers uses it for.
    #[serde(default)]
    pub used_by: Vec<UseFacts>,
    /// Of a deleted one: how much of it is freed, in parts of 1,000. `None`: it is in use.
    pub freed_permille: Option<u64>,
}

/// What a server uses a fileset for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UseFacts {
    /// `mount`, `export`, or `import` of a tree.
    pub kind: String,
    /// The directory, or the name of the export; of an import empty.
    pub at: String,
}

impl UseFacts {
    /// Returns it as it is said of a fileset.
    pub(crate) fn words(&self) -> String {
        match self.kind.as_str() {
            "mount" => format!("mounted on {}", self.at),
            "export" => format!("exported as {}", self.at),
            _ => "being imported into".to_owned(),
        }
    }

    /// Returns how this use of a fileset of `pool` ends.
    pub(crate) fn advice(&self, pool: &str) -> String {
        match self.kind.as_str() {
            "mount" => format!("`holdfast unmount {}` first", self.at),
            "export" => format!("`holdfast export remove {pool} {}` first", self.at),
            _ => "wait until that has ended".to_owned(),
        }
    }
}

/// What a pool tells of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobFacts {
    /// Its number since the mount.
    pub id: u64,
    /// What people call it.
    pub name: String,
    /// Done so far, in units of its own.
    pub done: u64,
    /// What will have been done at its end; 0: nobody knows.
    pub total: u64,
    /// When it ends if it goes on as it has; `None`: nobody knows.
    pub ends_in_seconds: Option<u64>,
    /// Whether somebody has told it to pause.
    pub is_paused: bool,
    /// How much of the time it works, in percent; `None`: as [`Request::JobPace`] has it.
    pub pace_percent: Option<u8>,
    /// Why it has stopped, if it has.
    pub failure: Option<String>,
}

/// Returns `text` as a clone's own name, or why it is none.
pub(crate) fn clone_of(text: &str) -> Result<NamePart, String> {
    NamePart::new(text).map_err(|error| format!("{text}: {error}: name a clone as a/b@monday"))
}

/// Returns `text` as a fileset's name, or why it is none.
pub(crate) fn name_of(text: &str) -> Result<FilesetName, String> {
    text.parse().map_err(|error| format!("{text}: {error}: name a fileset as a/b"))
}

#[cfg(test)]
mod tests {
    use runtime::prng::Prng;
    use serde_json::json;

    use super::*;

    /// Requests of a run without `HOLDFAST_FUZZ`.
    const REQUESTS: u64 = 20_000;

    fn good() -> Vec<Request> {
        let name = || "a/b".to_owned();
        let properties = Properties {
            block_bytes: Some(4096),
            is_read_only: Some(true),
            quota_bytes: Some(1 << 30),
            reservation_bytes: Some(1 << 20),
            placement: Some("striped".to_owned()),
        };
        let keep = Counts::default();
        let export = ExportSpec::of(&front::nfs::ExportRules::new("/a"), Some(name()));
        vec![
            Request::FilesetList { from: 7 },
            Request::FilesetCreate { name: name(), properties },
            Request::FilesetSet { name: name(), properties: Properties::default() },
            Request::FilesetRename { name: name(), to: "c".to_owned() },
            Request::FilesetDelete { name: name() },
            Request::FilesetFork { fileset: name(), clone: name(), to: name() },
            Request::FilesetRestore { fileset: name(), clone: name() },
            Request::FilesetPromote { name: name() },
            Request::FilesetHere { name: name() },
            Request::CloneCreateBelow { fileset: name(), clone: name() },
            Request::CloneHold { fileset: name(), clone: name(), hold: name(), is_held: true },
            Request::CloneUnique { fileset: name(), clone: name() },
            Request::DeviceList {},
            Request::DeviceFail { device: "0".to_owned() },
            Request::DeviceClear { device: Some("0".to_owned()) },
            Request::DeviceReplace { old: "1".to_owned(), new: "/d".into(), is_forced: true },
            Request::DeviceAttach {
                beside: "0".to_owned(),
                device: "/d".into(),
                size_bytes: Some(1 << 30),
                is_forced: false,
                is_spread: true,
                is_in_turn: false,
            },
            Request::DeviceDetach { device: "0".to_owned(), accepts_no_redundancy: true },
            Request::DeviceGrow { devices: vec!["0".to_owned()], size_bytes: Some(1 << 30) },
            Request::GroupList {},
            Request::GroupAdd(NewGroup {
                kind: "single".to_owned(),
                devices: vec!["/d".into()],
                size_bytes: Some(1 << 30),
                is_forced: false,
                roles: vec!["journal".to_owned()],
            }),
            Request::GroupRemove { group: 1 },
            Request::GroupMetadata { group: 1 },
            Request::PlacementSet {
                fileset: name(),
                path: "/a".to_owned(),
                placement: "striped".to_owned(),
                is_recursive: true,
            },
            Request::PlacementShow { fileset: name(), path: String::new() },
            Request::Scrub {},
            Request::ScrubStatus {},
            Request::Trim {},
            Request::TrimStatus {},
            Request::JobList {},
            Request::JobPause { job: 3, is_paused: false },
            Request::JobPace { job: 3, percent: Some(20) },
            Request::ExportList { after: String::new() },
            Request::ExportAdd { export },
            Request::ExportRemove { name: "/a".to_owned() },
            Request::ClientList {},
            Request::OperationList {},
            Request::PathList { look: 7, depth: 2, lasts_ms: 9000 },
            Request::SlowList { wish: 7, after: 3, from_us: 50_000, lasts_ms: 0 },
            Request::ScheduleSet {
                fileset: name(),
                keep: Counts { hourly: 24, ..keep },
                is_gone: false,
            },
            Request::ScheduleList {},
            Request::ScrubScheduleSet { every: Some(ScrubEvery::Weekly) },
            Request::ScrubScheduleSet { every: None },
            Request::ScrubSchedule {},
            Request::NotifyTest {},
            Request::Reload {},
        ]
    }

    #[test]
    fn a_request_survives_its_line_and_what_is_not_known_is_refused() {
        for request in good() {
            let mut value = serde_json::to_value(&request).expect("it is plain");
            assert_eq!(Request::parse(VERSION, value.clone()), Ok(request));
            let older = Request::parse(0, value.clone()).expect_err("another version");
            assert!(older.contains("version 0"), "{older}");
            value["more"] = json!(1);
            let refused = Request::parse(VERSION, value).expect_err("an unknown field");
            assert!(refused.contains("more"), "{refused}");
        }
        let refused = Request::parse(VERSION, json!({ "do": "burn" })).expect_err("no such thing");
        assert!(refused.contains("burn"), "{refused}");
    }

    /// Goal: no bytes end the parser. Method: lines of good requests with bytes changed, by seed.
    #[test]
    fn any_change_of_a_request_is_answered() {
        let count = std::env::var("HOLDFAST_FUZZ").ok().and_then(|text| text.parse().ok());
        let lines: Vec<Vec<u8>> =
            good().iter().map(|it| serde_json::to_vec(it).expect("it is plain")).collect();
        let mut understood = 0;
        for seed in 0..count.unwrap_or(REQUESTS) {
            let mut prng = Prng::from_seed(seed);
            let mut below = |end: usize| usize::try_from(prng.next_u64()).expect("64 bits") % end;
            let mut line = lines[below(lines.len())].clone();
            for _ in 0..=below(3) {
                let (at, other) = (below(line.len()), below(lines.len()));
                match below(3) {
                    0 => line[at] = u8::try_from(below(256)).expect("a byte"),
                    1 => line.truncate(at + 1),
                    _ => line = [&line[..at], &lines[other]].concat(),
                }
            }
            let Ok(value) = serde_json::from_slice(&line) else { continue };
            match Request::parse(VERSION, value) {
                Ok(_) => understood += 1,
                Err(words) => assert!(words.contains("refused"), "{words}"),
            }
        }
        assert!(understood > 0, "no request was understood");
    }

    #[test]
    fn only_root_and_the_servers_own_user_change_anything() {
        assert!(may_change(0, 1000) && may_change(1000, 1000) && may_change(0, 0));
        assert!(!may_change(1000, 0) && !may_change(1000, 1001));
        let looks: Vec<Request> = good().into_iter().filter(|it| !it.is_change()).collect();
        let after = String::new();
        let lists = [
            Request::FilesetList { from: 7 },
            Request::DeviceList {},
            Request::GroupList {},
            Request::ScrubStatus {},
            Request::TrimStatus {},
            Request::JobList {},
            Request::ExportList { after },
            Request::ClientList {},
            Request::OperationList {},
            Request::PathList { look: 7, depth: 2, lasts_ms: 9000 },
            Request::SlowList { wish: 7, after: 3, from_us: 50_000, lasts_ms: 0 },
            Request::ScheduleList {},
            Request::ScrubSchedule {},
        ];
        assert_eq!(looks, lists);
    }

    #[test]
    fn properties_are_words_and_others_are_refused() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            Properties::of(&words).map_err(|error| error.to_string())
        };
        let all = Properties {
            block_bytes: Some(65_536),
            is_read_only: Some(true),
            quota_bytes: Some(10 << 30),
            reservation_bytes: Some(1 << 30),
            placement: Some("1".to_owned()),
        };
        let words = ["block=64K", "readonly=on", "quota=10G", "reservation=1G", "placement=1"];
        assert_eq!(of(&words), Ok(all));
        assert_eq!(of(&["quota=none"]).map(|it| it.quota_bytes), Ok(Some(0)));
        assert_eq!(of(&[]), Ok(Properties::default()));
        for word in [
            "block",
            "block=x",
            "readonly=maybe",
            "colour=red",
            "=",
            "",
            "quota=",
            "quota=0",
            "placement=8",
            "placement=",
        ] {
            let refused = of(&[word]).expect_err("no property");
            assert!(refused.contains("block=SIZE, readonly"), "{refused}");
        }
        assert!(of(&["block=4K", "block=4K"]).is_err_and(|words| words.contains("twice")));
    }
}
