//! Limits of users, groups and projects in a fileset: what a step may be refused for, and what it
//! may not have taken.
//!
//! The model knows what was set; what each user has, the pool tells, and a scan of the files is
//! held against that ([`check_sums`]). So an answer is judged by these numbers:
//!
//! - NQ1: `EDQUOT` is for one who is checked, and only where one of those whom the step may count
//!   for has less left than it may need.
//! - NQ2: Who is checked gets no inode past a hard limit, nor past a soft one after its grace, and
//!   no more bytes than what maps take.
//! - NQ3: Who has another amount than before, and more than a soft limit, is in a grace that goes
//!   on, or ends no later than one that begins now; who has no more than that is in none.
//! - NQ4: What users and groups have is the sum of their files.

use std::collections::{BTreeMap, BTreeSet};

use engine::api::{Caller, FileSystem, Ino, Timestamp};
use engine::{Pool, QuotaAccount, QuotaLimitsChange, QuotaProgress};
use format::quota::QuotaKind;

use super::apply::{name, words};
use crate::number::u64_of;
use crate::ops::{COMMON_GID, Op, Outcome, Place, Session, Step, places_of};

/// Pages of maps that a write may need, or that what was accepted takes beyond a limit.
const MAP_BYTES: u64 = 128 << 10;
/// What else but data a step may take: pages of a directory that splits, and of attributes.
const PAGES_BYTES: u64 = 64 << 10;
/// Accounts that are asked for at once.
const ACCOUNTS_MAX: usize = 64;

/// Limits of a user or a group: bytes soft and hard, inodes soft and hard. 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limits(pub [u64; 4]);

impl Limits {
    pub(super) fn change(self) -> QuotaLimitsChange {
        let [bytes_soft, bytes_hard, inodes_soft, inodes_hard] = self.0.map(Some);
        QuotaLimitsChange { bytes_soft, bytes_hard, inodes_soft, inodes_hard }
    }
}

/// What the quotas of users and groups of a fileset are to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quotas {
    /// Whether they are switched on.
    pub is_on: bool,
    /// Seconds of each grace; `None`: nobody has set them.
    pub grace_seconds: Option<u64>,
    /// Who is limited.
    pub limits: BTreeMap<(QuotaKind, u32), Limits>,
}

impl Quotas {
    /// What a list tells of them: of those that are off nothing.
    pub(super) fn told(&self) -> Quotas {
        let mut told = if self.is_on { self.clone() } else { Quotas::default() };
        told.limits.retain(|_, limits| *limits != Limits::default());
        told
    }
}

/// What a user or a group has.
type Accounts = BTreeMap<(QuotaKind, u32), QuotaAccount>;

fn accounts(pool: &Pool, fileset: &str) -> Result<Accounts, String> {
    let mut all = Accounts::new();
    for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
        let told = pool.fileset_admin().quota_accounts(&name(fileset), (kind, 0), ACCOUNTS_MAX);
        all.extend(words(fileset, told)?.into_iter().map(|it| ((kind, it.id), it)));
    }
    Ok(all)
}

/// What the pool tells of the quotas of a fileset.
pub(super) fn listed(pool: &Pool, fileset: &str, known: &Quotas) -> Result<Quotas, String> {
    let info = words(fileset, pool.fileset_admin().quota_info(&name(fileset)))?;
    if info.progress == QuotaProgress::Off {
        return Ok(Quotas::default());
    }
    let limits = accounts(pool, fileset)?.into_iter().map(|(who, it)| {
        (who, Limits([it.bytes_soft, it.bytes_hard, it.inodes_soft, it.inodes_hard]))
    });
    let grace_seconds = known.grace_seconds.map(|_| info.bytes_grace_seconds);
    let quotas = Quotas { is_on: true, grace_seconds, limits: limits.collect() };
    Ok(quotas.told())
}

/// What is known just before a step.
pub(super) struct Before {
    accounts: Accounts,
    /// Whom the step may count for.
    whom: BTreeSet<(QuotaKind, u32)>,
    now_seconds: u64,
    grace_seconds: u64,
}

impl Before {
    /// Looks; `None` where no limits hold.
    pub(super) fn look(
        pool: &Pool,
        fileset: &str,
        session: &Session<'_>,
        (step, now): (&Step, Timestamp),
    ) -> Result<Option<Before>, String> {
        let info = words(fileset, pool.fileset_admin().quota_info(&name(fileset)))?;
        if info.progress != QuotaProgress::On {
            return Ok(None);
        }
        let mut before = Before {
            accounts: accounts(pool, fileset)?,
            whom: BTreeSet::new(),
            now_seconds: u64::try_from(now.seconds).unwrap_or(0),
            grace_seconds: info.bytes_grace_seconds,
        };
        before.add(step.uid, [step.uid, COMMON_GID], 0);
        for place in places_of(&step.op) {
            // A file that a name is of, and the directory that it is in.
            if let Some(attr) = session.probe(&place) {
                before.add(attr.uid, [attr.gid, attr.gid], attr.project);
            }
        }
        if let Op::SetOwner { uid, gid, .. } = &step.op {
            before.add(uid.unwrap_or(step.uid), [gid.unwrap_or(step.uid); 2], 0);
        }
        Ok(Some(before))
    }

    fn add(&mut self, uid: u32, gids: [u32; 2], project: u32) {
        self.whom.insert((QuotaKind::User, uid));
        self.whom.extend(gids.map(|gid| (QuotaKind::Group, gid)));
        self.whom.insert((QuotaKind::Project, project));
    }

    /// NQ1: whether an `EDQUOT` is right.
    pub(super) fn may_refuse(&self, step: &Step, file_bytes: u64) -> bool {
        let moved = if let Op::Write { length, .. } = &step.op {
            u64_of(*length)
        } else if let Op::Fallocate { length, .. } | Op::Copy { length, .. } = &step.op {
            *length
        } else if let Op::SetOwner { .. } = &step.op {
            file_bytes
        } else {
            0
        };
        let need = moved + MAP_BYTES + PAGES_BYTES;
        let is_tight = |it: &QuotaAccount| {
            let bytes = is_past(it.bytes + need, (it.bytes_soft, it.bytes_hard));
            let inodes = is_past(it.inodes + 1, (it.inodes_soft, it.inodes_hard));
            let is_over = |end: u64| end > 0 && end <= self.now_seconds;
            bytes.1
                || inodes.1
                || bytes.0 && is_over(it.bytes_grace_end)
                || inodes.0 && is_over(it.inodes_grace_end)
        };
        step.uid != 0
            && self
                .whom
                .iter()
                .filter(|who| who.1 != 0)
                .any(|who| self.accounts.get(who).is_some_and(is_tight))
    }

    /// NQ2 and NQ3, of a step that was done.
    pub(super) fn check(
        &self,
        pool: &Pool,
        fileset: &str,
        (step, outcome): (&Step, &Outcome),
    ) -> Result<(), String> {
        if !outcome.is_done() {
            return Ok(());
        }
        for (who, after) in accounts(pool, fileset)? {
            let none = (0, 0, 0, 0);
            let before = self
                .accounts
                .get(&who)
                .map_or(none, |it| (it.bytes, it.inodes, it.bytes_grace_end, it.inodes_grace_end));
            let says = |what: &str| {
                let (kind, id) = who;
                format!("{fileset}: {step}: {what}: {kind:?} {id} had {before:?}, has {after:?}")
            };
            if (after.bytes, after.inodes) == (before.0, before.1) {
                continue;
            }
            let is_held = step.uid != 0 && who.1 != 0;
            let is_over = |end: u64| end > 0 && end <= self.now_seconds;
            let (soft, hard) = is_past(after.inodes, (after.inodes_soft, after.inodes_hard));
            if is_held && after.inodes > before.1 && (hard || soft && is_over(before.3)) {
                return Err(says("past a limit of inodes"));
            }
            let limits = (after.bytes_soft, after.bytes_hard);
            let (soft, hard) = is_past(after.bytes.saturating_sub(MAP_BYTES), limits);
            let is_growing = after.bytes > before.0 + MAP_BYTES;
            if is_held && is_growing && (hard || soft && is_over(before.2)) {
                return Err(says("past a limit of bytes"));
            }
            for (has, soft, end, began) in [
                (after.bytes, after.bytes_soft, after.bytes_grace_end, before.2),
                (after.inodes, after.inodes_soft, after.inodes_grace_end, before.3),
            ] {
                let is_in_grace = soft > 0 && has > soft;
                // One that has begun ends as it did, whatever graces are since.
                let is_late = end != began && end > self.now_seconds + self.grace_seconds;
                if is_in_grace != (end > 0) || is_late {
                    return Err(says("a grace that is not"));
                }
            }
        }
        Ok(())
    }
}

/// Whether the soft limit is passed, and the hard one.
fn is_past(has: u64, (soft, hard): (u64, u64)) -> (bool, bool) {
    (soft > 0 && has > soft, hard > 0 && has > hard)
}

/// NQ4, with what waits. `is_all`: nobody holds files without a name, which count too.
pub(super) fn check_sums(
    pool: &Pool,
    fileset: &str,
    (root, is_all): (Ino, bool),
) -> Result<(), String> {
    let info = words(fileset, pool.fileset_admin().quota_info(&name(fileset)))?;
    if info.progress != QuotaProgress::On {
        return Ok(());
    }
    let mut found: BTreeMap<(QuotaKind, u32), (u64, u64)> = BTreeMap::new();
    let (mut seen, mut left) = (BTreeSet::new(), vec![root]);
    while let Some(ino) = left.pop() {
        if !seen.insert(ino) {
            continue;
        }
        let caller = Caller::root();
        let attr = words(fileset, pool.getattr(&caller, ino))?;
        let owners = [
            (QuotaKind::User, attr.uid),
            (QuotaKind::Group, attr.gid),
            (QuotaKind::Project, attr.project),
        ];
        for who in owners {
            let sum = found.entry(who).or_default();
            // What waits may be told as more than it takes in the end: a block that was cut.
            let bytes = if attr.blocks_may_change { 0 } else { attr.blocks_512 * 512 };
            (sum.0, sum.1) = (sum.0 + bytes, sum.1 + 1);
        }
        if attr.kind == engine::api::FileKind::Directory {
            let listed = pool.readdir(&caller, ino, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    left.push(entry.ino);
                }
                true
            });
            words(fileset, listed)?;
        }
    }
    let told = accounts(pool, fileset)?.into_iter();
    let told = told.map(|(who, it)| (who, (it.bytes, it.inodes)));
    let told: BTreeMap<_, _> = told.filter(|(_, it)| *it != (0, 0)).collect();
    let is_counted = |(who, sum): (&(QuotaKind, u32), &(u64, u64))| {
        told.get(who).is_some_and(|told| told.0 >= sum.0 && told.1 >= sum.1)
    };
    if told == found || !is_all && found.iter().all(is_counted) {
        return Ok(());
    }
    Err(format!("{fileset}: users have {found:?}, and {told:?} is counted"))
}

/// The bytes of what a step is about.
pub(super) fn bytes_of(session: &Session<'_>, op: &Op) -> u64 {
    let places: Vec<Place> = places_of(op);
    let bytes = places.iter().filter_map(|place| session.probe(place));
    bytes.map(|attr| attr.blocks_512 * 512).max().unwrap_or(0)
}
