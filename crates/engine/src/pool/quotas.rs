//! The quotas of users, groups and projects of a pool's filesets: switched, set, told.

use format::fileset::{FilesetName, Moving};
use format::ids::FRAGMENTS_MAX;
use format::quota::{QuotaKind, QuotaState};

use super::Pool;
use crate::error::{FsError, FsResult};
use crate::fileset::quota::QuotaChange;
use crate::vnode::api::{Caller, FileKind, FileSystem, FilesetUuid, Ino, SetAttr};

/// Steps of counting that one call does at most: some seconds.
const STEPS_PER_CALL: usize = 256;

/// How far the quotas of a fileset are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaProgress {
    /// Nobody is counted.
    Off,
    /// So much of it is counted, in parts of 1,000: nobody is refused yet.
    Counting(u64),
    /// All is counted, and limits hold.
    On,
}

/// What a fileset tells of its quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaInfo {
    /// How far they are.
    pub progress: QuotaProgress,
    /// Seconds for which a soft limit of bytes may be passed.
    pub bytes_grace_seconds: u64,
    /// Seconds for which a soft limit of inodes may be passed.
    pub inodes_grace_seconds: u64,
}

/// What a user, a group or a project has and may have. 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaAccount {
    /// Whose it is.
    pub kind: QuotaKind,
    /// His number.
    pub id: u32,
    /// What his files take, with what waits.
    pub bytes: u64,
    /// His files.
    pub inodes: u64,
    /// Bytes past which the grace begins.
    pub bytes_soft: u64,
    /// Most bytes.
    pub bytes_hard: u64,
    /// Inodes past which the grace begins.
    pub inodes_soft: u64,
    /// Most inodes.
    pub inodes_hard: u64,
    /// When the grace of bytes ends: seconds since 1970; 0: he is not past the soft limit.
    pub bytes_grace_end: u64,
    /// When the grace of inodes ends; as above.
    pub inodes_grace_end: u64,
}

/// What is to be changed of limits. 0: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimitsChange {
    /// Bytes past which the grace begins.
    pub bytes_soft: Option<u64>,
    /// Most bytes.
    pub bytes_hard: Option<u64>,
    /// Inodes past which the grace begins.
    pub inodes_soft: Option<u64>,
    /// Most inodes.
    pub inodes_hard: Option<u64>,
}

/// What users, groups and projects may have in a fileset.
pub(super) struct Allowed {
    is_on: bool,
    graces: [u64; 2],
    accounts: Vec<(QuotaKind, u32, QuotaChange)>,
    /// Of the fragments in them: binary logarithm.
    fragment_shift: u8,
}

impl Pool {
    /// Returns what users may have in the fileset in `slot`, be it on its way; `None`: nobody ever
    /// said.
    pub(super) fn allowed_in(&self, slot: u32) -> FsResult<Option<Allowed>> {
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
        let allowed = Allowed { is_on, graces: quotas.graces(), accounts, fragment_shift };
        Ok((is_on || !allowed.accounts.is_empty()).then_some(allowed))
    }

    /// Sets in the fileset in `slot` what users may have, durably; what they have is counted by
    /// [`Pool::tick`]. Done again it does no harm.
    pub(super) fn allow_in(&self, slot: u32, allowed: &Allowed) -> FsResult<()> {
        let fileset = self.core.open_fileset(slot)?;
        let shift = self.core.store.geometry().fragment_shift;
        let fragments = |count: Option<u64>| {
            count.map(|count| (count << allowed.fragment_shift).div_ceil(1 << shift))
        };
        if fileset.anodes.quotas.state() == QuotaState::Off {
            self.core.switch_quotas_of(fileset, true)?;
        }
        self.core.set_quota_graces_of(fileset, allowed.graces.map(Some))?;
        for (kind, id, change) in &allowed.accounts {
            let change = QuotaChange {
                fragments_soft: fragments(change.fragments_soft),
                fragments_hard: fragments(change.fragments_hard),
                ..*change
            };
            self.core.set_quota_of(fileset, (*kind, *id), change)?;
        }
        if allowed.is_on { Ok(()) } else { self.core.switch_quotas_of(fileset, false) }
    }

    /// FM6: refuses to change what users may have while the move that the fileset has come by is
    /// not finished: given again, it sets what they had in the other pool.
    fn check_limits_have_come(&self, name: &FilesetName) -> FsResult<()> {
        let moving = self.core.find_moving(name.parts())?.and_then(|found| found.moving);
        if !matches!(moving, Some(Moving::Arrived { .. })) {
            return Ok(());
        }
        let by = "it has come from another pool by a move that is not finished, and takes limits \
                  of users from there: give the `holdfast fileset move` again, and then this; if \
                  that pool is lost, `holdfast fileset move --here` comes first";
        Err(FsError::FilesetInUse { name: name.to_string(), by: by.to_owned() })
    }

    /// Switches the quotas of a fileset on, and counts what its users, groups and projects have,
    /// for some seconds: [`Pool::tick`] and the next call count the rest. Until all is counted
    /// nobody is refused.
    ///
    /// # Errors
    ///
    /// [`FsError::NoFileset`]; [`FsError::FilesetInUse`] if it changes faster than it can be
    /// written, or has come by a move that is not finished; [`FsError::NoSpace`] if there is no
    /// room for the records.
    pub fn switch_quotas_on(&self, name: &FilesetName) -> FsResult<QuotaProgress> {
        self.check_limits_have_come(name)?;
        self.core.switch_quotas(name.parts(), true)?;
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

    /// As [`Pool::switch_quotas_on`], and leaves all counting to [`Pool::tick`].
    ///
    /// # Errors
    ///
    /// As [`Pool::switch_quotas_on`].
    pub fn begin_quotas(&self, name: &FilesetName) -> FsResult<()> {
        self.check_limits_have_come(name)?;
        self.core.switch_quotas(name.parts(), true)
    }

    /// Counts some hundred of the files that are not counted yet. Returns whether there are more.
    ///
    /// # Errors
    ///
    /// As [`Pool::switch_quotas_on`].
    pub fn count_quotas(&self, name: &FilesetName) -> FsResult<bool> {
        self.core.count_quotas_named(name.parts())
    }

    /// Gives the file at `path` in a fileset, and all that is below it if it is a directory and
    /// `is_recursive`, to a project; what is made in it from then on has that too. Returns how many
    /// files that were. It is durable when this returns.
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

    /// The pool is about to be closed: whoever gives a tree of files a project or a placement, or
    /// counts what a clone holds alone, ends where he is, with [`FsError::TryLater`]. What he has
    /// done stays.
    pub fn end_walks(&self) {
        self.core.end_walks();
    }

    /// Does `work` for the file at `path` in a fileset, and all that is below it if
    /// `is_recursive`; what it changes is durable when this returns.
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
                    // Somebody has removed it since its directory was read.
                    Err(FsError::Stale | FsError::NotFound) if ino != first => Ok(()),
                    other => other,
                };
            }
            // What was done stays, and is durable, also if the rest failed.
            self.sync().and(done)
        })
    }

    /// Does `work` for what is at `path` in a fileset, which is open meanwhile.
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

    /// Adds what is in a directory to `found`.
    fn children(&self, directory: Ino, found: &mut Vec<Ino>) -> FsResult<()> {
        self.readdir(&Caller::root(), directory, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                found.push(entry.ino);
            }
            true
        })
    }

    /// Switches the quotas of a fileset off: nobody is counted, nor refused. Limits are kept for
    /// the next time.
    ///
    /// # Errors
    ///
    /// As [`Pool::switch_quotas_on`].
    pub fn switch_quotas_off(&self, name: &FilesetName) -> FsResult<()> {
        self.check_limits_have_come(name)?;
        self.core.switch_quotas(name.parts(), false)
    }

    /// Returns what the quotas of a fileset are like.
    ///
    /// # Errors
    ///
    /// [`FsError::NoFileset`].
    pub fn quota_info(&self, name: &FilesetName) -> FsResult<QuotaInfo> {
        let status = self.core.quota_status(name.parts())?;
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

    /// Returns what users, groups or projects have, from `from` on by their numbers, `count` at
    /// most.
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
        let accounts = self.core.quota_accounts(name.parts(), (kind, from), count)?;
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

    /// Changes the limits of a user, a group or a project. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`FsError::FilesetInUse`] if the quotas of the fileset are off, or it has come by a move
    /// that is not finished; [`FsError::Invalid`] for id 0, which is never limited, for a soft
    /// limit above the hard one, and for what is larger than any pool.
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
        self.core.set_quota(name.parts(), (kind, id), change)
    }

    /// Changes for how many seconds soft limits of bytes, and of inodes, may be passed from now on;
    /// graces that have begun end as they did. It is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`FsError::FilesetInUse`] as for [`Pool::set_quota`]; [`FsError::Invalid`] for more than a
    /// hundred years.
    pub fn set_quota_graces(&self, name: &FilesetName, graces: [Option<u64>; 2]) -> FsResult<()> {
        const LONGEST_SECONDS: u64 = 100 * 366 * 24 * 60 * 60;
        if graces.iter().flatten().any(|seconds| *seconds > LONGEST_SECONDS) {
            return Err(FsError::Invalid);
        }
        self.check_limits_have_come(name)?;
        self.core.set_quota_graces(name.parts(), graces)
    }
}
