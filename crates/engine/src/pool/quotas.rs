//! Quotas of users, groups and projects in a pool's filesets: switching, limits, reports, and walks
//! that assign a tree of files to a project.

use super::PoolFilesets;
use format::fileset::{FilesetName, MoveState};
use format::ids::FRAGMENTS_MAX;
use format::quota::{QuotaKind, QuotaState};

use crate::api::{Caller, FileKind, FileSystem, FilesetUuid, Ino, SetAttr};
use crate::error::{FsError, FsResult};
use crate::fileset_table::quota::QuotaChange;

/// Most steps of counting per call: some seconds.
const STEPS_PER_CALL: usize = 256;

/// State of a fileset's quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaProgress {
    /// Usage is not counted.
    Off,
    /// Usage is partly counted, in thousandths. Limits are not enforced yet.
    Counting(u64),
    /// Usage is counted, and limits are enforced.
    On,
}

/// Quota settings of a fileset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaInfo {
    /// State of the quotas.
    pub progress: QuotaProgress,
    /// Grace in seconds past a soft limit of bytes.
    pub bytes_grace_seconds: u64,
    /// Grace in seconds past a soft limit of inodes.
    pub inodes_grace_seconds: u64,
}

/// Usage and limits of a user, a group or a project. A limit of 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaAccount {
    /// User, group or project.
    pub kind: QuotaKind,
    /// Number of the user, group or project.
    pub id: u32,
    /// Bytes used by its files, dirty data included.
    pub bytes: u64,
    /// Count of its files.
    pub inodes: u64,
    /// Soft limit of bytes, past which the grace begins.
    pub bytes_soft: u64,
    /// Hard limit of bytes.
    pub bytes_hard: u64,
    /// Soft limit of inodes, past which the grace begins.
    pub inodes_soft: u64,
    /// Hard limit of inodes.
    pub inodes_hard: u64,
    /// End of the grace for bytes, in seconds since 1970. 0 below the soft limit.
    pub bytes_grace_end: u64,
    /// End of the grace for inodes, in seconds since 1970. 0 below the soft limit.
    pub inodes_grace_end: u64,
}

/// Change of limits. `None` keeps a limit, and 0 removes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimitsChange {
    /// Soft limit of bytes.
    pub bytes_soft: Option<u64>,
    /// Hard limit of bytes.
    pub bytes_hard: Option<u64>,
    /// Soft limit of inodes.
    pub inodes_soft: Option<u64>,
    /// Hard limit of inodes.
    pub inodes_hard: Option<u64>,
}

/// Quota settings and limits of a fileset, for its move to another pool.
pub(super) struct QuotaSettings {
    is_on: bool,
    graces: [u64; 2],
    accounts: Vec<(QuotaKind, u32, QuotaChange)>,
    /// Binary logarithm of the fragment size used in `accounts`.
    fragment_shift: u8,
}

impl PoolFilesets<'_> {
    /// Returns quota settings and limits of the fileset in `slot`. `None` without any.
    pub(super) fn allowed_in(&self, slot: u32) -> FsResult<Option<QuotaSettings>> {
        let fileset = self.core.open_fileset(slot)?;
        let quotas = &fileset.anodes.quotas;
        let mut accounts = Vec::new();
        for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
            for it in quotas.accounts(kind, 0, usize::MAX) {
                let change = QuotaChange {
                    fragments_soft: Some(it.limits.fragments_soft),
                    fragments_hard: Some(it.limits.fragments_hard),
                    inodes_soft: Some(it.limits.inodes_soft),
                    inodes_hard: Some(it.limits.inodes_hard),
                };
                let is_limited = !matches!(
                    change,
                    QuotaChange {
                        fragments_soft: Some(0),
                        fragments_hard: Some(0),
                        inodes_soft: Some(0),
                        inodes_hard: Some(0),
                    }
                );
                if is_limited {
                    accounts.push((kind, it.id, change));
                }
            }
        }
        let is_on = quotas.state() != QuotaState::Off;
        let fragment_shift = self.core.store.geometry().fragment_shift;
        let allowed = QuotaSettings { is_on, graces: quotas.graces(), accounts, fragment_shift };
        Ok((is_on || !allowed.accounts.is_empty()).then_some(allowed))
    }

    /// Applies quota settings and limits to the fileset in `slot`, durably and idempotently.
    /// `Pool::tick` counts the usage.
    pub(super) fn allow_in(&self, slot: u32, allowed: &QuotaSettings) -> FsResult<()> {
        let fileset = self.core.open_fileset(slot)?;
        let shift = self.core.store.geometry().fragment_shift;
        let fragments = |count: Option<u64>| {
            count.map(|count| (count << allowed.fragment_shift).div_ceil(1 << shift))
        };
        if fileset.anodes.quotas.state() == QuotaState::Off {
            self.core.quotas().switch_quotas_of(fileset, true)?;
        }
        self.core.quotas().set_quota_graces_of(fileset, allowed.graces.map(Some))?;
        for (kind, id, change) in &allowed.accounts {
            let change = QuotaChange {
                fragments_soft: fragments(change.fragments_soft),
                fragments_hard: fragments(change.fragments_hard),
                ..*change
            };
            self.core.quotas().set_quota_of(fileset, (*kind, *id), change)?;
        }
        if allowed.is_on { Ok(()) } else { self.core.quotas().switch_quotas_of(fileset, false) }
    }

    /// Refuses changes of limits until the fileset's move is finished (FM6), because a resumed move
    /// would overwrite them.
    fn check_limits_have_come(&self, name: &FilesetName) -> FsResult<()> {
        let moving =
            self.core.transfers().find_moving(name.parts())?.and_then(|found| found.moving);
        if !matches!(moving, Some(MoveState::Arrived { .. })) {
            return Ok(());
        }
        let by = "it has come from another pool by a move that is not finished, and takes limits \
                  of users from there: give the `holdfast fileset move` again, and then this; if \
                  that pool is lost, `holdfast fileset move POOL:a --here` comes first";
        Err(FsError::FilesetInUse { name: name.to_string(), by: by.to_owned() })
    }

    /// Switches quotas on, and counts usage for some seconds.
    /// [`Pool::tick`](crate::pool::Pool::tick) and further calls count the rest. Limits are
    /// enforced once everything is counted.
    ///
    /// # Errors
    ///
    /// [`FsError::NoFileset`]. [`FsError::FilesetInUse`] if it changes faster than it can be
    /// written, or has come by an unfinished move. [`FsError::NoSpace`] if there is no room for the
    /// records.
    pub fn switch_quotas_on(&self, name: &FilesetName) -> FsResult<QuotaProgress> {
        self.check_limits_have_come(name)?;
        self.core.quotas().switch_quotas(name.parts(), true)?;
        for _ in 0..STEPS_PER_CALL {
            if !self.count_quotas(name)? {
                break;
            }
        }
        let progress = self.quota_info(name)?.progress;
        if progress == QuotaProgress::On {
            self.core.store.journal.commit_all()?;
        }
        Ok(progress)
    }

    /// Switches the quotas of a fileset on, and leaves the counting to
    /// [`Pool::tick`](crate::pool::Pool::tick).
    ///
    /// # Errors
    ///
    /// As [`PoolFilesets::switch_quotas_on`](crate::pool::PoolFilesets::switch_quotas_on).
    pub fn begin_quotas(&self, name: &FilesetName) -> FsResult<()> {
        self.check_limits_have_come(name)?;
        self.core.quotas().switch_quotas(name.parts(), true)
    }

    /// Counts some hundred uncounted files. Returns whether there are more.
    ///
    /// # Errors
    ///
    /// As [`PoolFilesets::switch_quotas_on`](crate::pool::PoolFilesets::switch_quotas_on).
    pub fn count_quotas(&self, name: &FilesetName) -> FsResult<bool> {
        self.core.quotas().count_quotas_named(name.parts())
    }

    /// Assigns the file at `path` to a project, and with `is_recursive` everything below, durably.
    /// Files created there inherit it. Returns the count of files.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotDirectory`] for no such path; [`FsError::ReadOnly`].
    pub fn set_project(
        &self,
        name: &FilesetName,
        path: &[&[u8]],
        (project, is_recursive): (u32, bool),
    ) -> FsResult<u64> {
        let root = Caller::root();
        let mut count = 0;
        self.each_below(name, path, is_recursive, |ino| {
            if self.getattr(&root, ino)?.project != project {
                let given = SetAttr { project: Some(project), ..SetAttr::default() };
                self.setattr(&root, ino, &given, None)?;
            }
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    /// Ends recursive assignments and [`PoolFilesets::unique_bytes`] before a close. They fail with
    /// [`FsError::TryLater`], and their changes so far stay.
    pub fn end_walks(&self) {
        self.core.end_walks();
    }

    /// Applies `work` to the file at `path`, and with `is_recursive` to everything below, durably.
    pub(super) fn each_below(
        &self,
        name: &FilesetName,
        path: &[&[u8]],
        is_recursive: bool,
        mut work: impl FnMut(Ino) -> FsResult<()>,
    ) -> FsResult<()> {
        self.within(name, path, |first| {
            let mut each = |ino: Ino, waiting: &mut Vec<Ino>| {
                work(ino)?;
                if is_recursive && self.getattr(&Caller::root(), ino)?.kind == FileKind::Directory {
                    self.children(ino, waiting)?;
                }
                Ok(())
            };
            let mut waiting = vec![first];
            let mut done = Ok(());
            while let Some(ino) = waiting.pop().filter(|_| done.is_ok()) {
                done = match self.core.check_walk().and_then(|()| each(ino, &mut waiting)) {
                    // The file was removed since its directory was read.
                    Err(FsError::Stale | FsError::NotFound) if ino != first => Ok(()),
                    other => other,
                };
            }
            // Synced even after a failure, since the changes so far stay.
            self.sync().and(done)
        })
    }

    pub(super) fn within<T>(
        &self,
        name: &FilesetName,
        path: &[&[u8]],
        work: impl FnOnce(Ino) -> FsResult<T>,
    ) -> FsResult<T> {
        let fileset = self.hold_fileset(name)?;
        let done = self.ino_at(fileset, path).and_then(work);
        self.release_fileset(fileset);
        done
    }

    fn ino_at(&self, fileset: FilesetUuid, path: &[&[u8]]) -> FsResult<Ino> {
        let mut ino = self.root_of(fileset)?;
        for part in path {
            let found = self.lookup(&Caller::root(), ino, part)?.ino;
            self.forget(found, 1);
            ino = found;
        }
        Ok(ino)
    }

    fn children(&self, directory: Ino, found: &mut Vec<Ino>) -> FsResult<()> {
        self.readdir(&Caller::root(), directory, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                found.push(entry.ino);
            }
            true
        })
    }

    /// Switches quotas off. Limits are kept, but not enforced.
    ///
    /// # Errors
    ///
    /// As [`PoolFilesets::switch_quotas_on`](crate::pool::PoolFilesets::switch_quotas_on).
    pub fn switch_quotas_off(&self, name: &FilesetName) -> FsResult<()> {
        self.check_limits_have_come(name)?;
        self.core.quotas().switch_quotas(name.parts(), false)
    }

    /// Returns the quota settings of a fileset.
    ///
    /// # Errors
    ///
    /// [`FsError::NoFileset`].
    pub fn quota_info(&self, name: &FilesetName) -> FsResult<QuotaInfo> {
        let status = self.core.quotas().quota_status(name.parts())?;
        let progress = match status.state {
            QuotaState::Off => QuotaProgress::Off,
            QuotaState::Clearing(_) => QuotaProgress::Counting(0),
            QuotaState::Counting(cursor) => {
                let permille = cursor.saturating_mul(1000) / status.anodes_end.max(1);
                QuotaProgress::Counting(permille.min(1000))
            }
            QuotaState::On => QuotaProgress::On,
        };
        let [bytes_grace_seconds, inodes_grace_seconds] = status.graces;
        Ok(QuotaInfo { progress, bytes_grace_seconds, inodes_grace_seconds })
    }

    /// Returns up to `count` accounts of users, groups or projects, by number, from `from` on.
    ///
    /// # Errors
    ///
    /// [`FsError::NoFileset`].
    pub fn quota_accounts(
        &self,
        name: &FilesetName,
        (kind, from): (QuotaKind, u32),
        count: usize,
    ) -> FsResult<Vec<QuotaAccount>> {
        let shift = self.core.store.geometry().fragment_shift;
        let accounts = self.core.quotas().quota_accounts(name.parts(), (kind, from), count)?;
        let told = accounts.into_iter().map(|it| QuotaAccount {
            kind: it.kind,
            id: it.id,
            bytes: it.fragments << shift,
            inodes: it.inodes,
            bytes_soft: it.limits.fragments_soft << shift,
            bytes_hard: it.limits.fragments_hard << shift,
            inodes_soft: it.limits.inodes_soft.into(),
            inodes_hard: it.limits.inodes_hard.into(),
            bytes_grace_end: it.limits.fragments_grace_end,
            inodes_grace_end: it.limits.inodes_grace_end,
        });
        Ok(told.collect())
    }

    /// Changes the limits of a user, a group or a project, durably.
    ///
    /// # Errors
    ///
    /// [`FsError::FilesetInUse`] if the fileset's quotas are off, or it has come by an unfinished
    /// move. [`FsError::Invalid`] for id 0, which is never limited, for a soft limit above the hard
    /// one, and for a limit larger than any pool.
    pub fn set_quota(
        &self,
        name: &FilesetName,
        (kind, id): (QuotaKind, u32),
        change: &QuotaLimitsChange,
    ) -> FsResult<()> {
        let shift = self.core.store.geometry().fragment_shift;
        let fragments = |bytes: u64| {
            let fragments = bytes.div_ceil(1 << shift);
            if fragments <= FRAGMENTS_MAX { Ok(fragments) } else { Err(FsError::Invalid) }
        };
        let inodes = |count: u64| u32::try_from(count).map_err(|_| FsError::Invalid);
        let change = QuotaChange {
            fragments_soft: change.bytes_soft.map(fragments).transpose()?,
            fragments_hard: change.bytes_hard.map(fragments).transpose()?,
            inodes_soft: change.inodes_soft.map(inodes).transpose()?,
            inodes_hard: change.inodes_hard.map(inodes).transpose()?,
        };
        if id == 0 {
            return Err(FsError::Invalid);
        }
        self.check_limits_have_come(name)?;
        self.core.quotas().set_quota(name.parts(), (kind, id), change)
    }

    /// Changes the graces of soft limits for bytes and inodes, durably. Graces that have begun keep
    /// their end.
    ///
    /// # Errors
    ///
    /// [`FsError::FilesetInUse`] as for `Pool::set_quota`. [`FsError::Invalid`] for more than a
    /// hundred years.
    pub fn set_quota_graces(&self, name: &FilesetName, graces: [Option<u64>; 2]) -> FsResult<()> {
        const LONGEST_SECONDS: u64 = 100 * 366 * 24 * 60 * 60;
        if graces.iter().flatten().any(|seconds| *seconds > LONGEST_SECONDS) {
            return Err(FsError::Invalid);
        }
        self.check_limits_have_come(name)?;
        self.core.quotas().set_quota_graces(name.parts(), graces)
    }
}
