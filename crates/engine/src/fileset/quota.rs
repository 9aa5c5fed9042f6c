//! Administration of user, group and project quotas (decision 0059).
//!
//! Not here: the accounts (`fileset_table::quota`), and enforcement (`usage::account`).

use crate::file::FilesetQuotas;
use format::fileset::NamePart;
use format::quota::{QuotaKind, QuotaState};
use runtime::planted;

use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::file::OpenFileset;
use crate::file::unshare::PATH_PAGES;
use crate::fileset_table::quota::{QuotaChange, QuotaCountStep};
use crate::journal::LogCredits;
use crate::usage::AccountReport;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaStatus {
    pub(crate) state: QuotaState,
    /// Grace periods of the soft limits of fragments and inodes, in seconds.
    pub(crate) graces: [u64; 2],
    /// First anode number never used, where counting ends.
    pub(crate) anodes_end: u64,
}

impl FilesetQuotas<'_> {
    fn quota_fileset(&self, path: &[NamePart]) -> FsResult<&OpenFileset> {
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.open_fileset(slot)
    }

    /// Switches quotas on or off, durable on return. Counting starts later.
    pub(crate) fn switch_quotas(&self, path: &[NamePart], is_on: bool) -> FsResult<()> {
        self.switch_quotas_of(self.quota_fileset(path)?, is_on)
    }

    pub(crate) fn switch_quotas_of(&self, fileset: &OpenFileset, is_on: bool) -> FsResult<()> {
        self.check_writable()?;
        let class = self.with_unsharing(fileset, Urgency::User, || {
            self.check_space_of(fileset, PATH_PAGES, Urgency::User)?;
            // With quotas on, each dirty block is charged to its owner. A block placed before is
            // not, so there must be none.
            let mut still = self.snapshotter().hold_all_still(&[fileset])?;
            let mut change = still.begin(fileset, LogCredits::SMALL)?;
            let mut guard = fileset.anodes.lock_current()?;
            let Some((head, container)) = guard.switch_quotas(&self.store, &mut change, is_on)?
            else {
                return Ok(None);
            };
            let applied = change.end();
            guard.settle_quotas(head, container, self.store.asker(true));
            guard.settle(applied.lsn);
            // CRASH: no change made without accounting may become durable after the switch.
            self.store.journal.close_open();
            drop(still);
            Ok(Some(applied.class))
        })?;
        class.map_or(Ok(()), |class| self.store.journal.commit(class))
    }

    pub(crate) fn count_quotas(&self, fileset: &OpenFileset) -> FsResult<bool> {
        let once = || self.count_quotas_once(fileset);
        loop {
            match self.with_unsharing(fileset, Urgency::System, once)? {
                QuotaCountStep::Done => return Ok(false),
                QuotaCountStep::More => return Ok(true),
                // At most once for each owner of a file in the step.
                QuotaCountStep::Needs(kind, id) => self.add_account(fileset, (kind, id))?,
            }
        }
    }

    pub(crate) fn count_quotas_named(&self, path: &[NamePart]) -> FsResult<bool> {
        self.count_quotas(self.quota_fileset(path)?)
    }

    fn count_quotas_once(&self, fileset: &OpenFileset) -> FsResult<QuotaCountStep> {
        // QC2: closes the gate to changes of anodes. GT4: log credits come after it, since another
        // closer may wait for the log.
        let _closed = fileset.gate.close();
        let mut change = self.store.begin_pool(LogCredits::LARGE)?;
        change.share(fileset.gate.shared_epoch());
        // CRASH: the changes counted here are in other classes, on other pages. None may be undone
        // once the count is durable.
        self.store.journal.close_open();
        let mut guard = fileset.anodes.lock_current()?;
        let (head, counting) = guard.count_some(&self.store, &mut change)?;
        if head.state == fileset.anodes.quotas.state() {
            return Ok(counting);
        }
        let applied = change.end();
        guard.settle_quotas(head, None, self.store.asker(true));
        guard.settle(applied.lsn);
        // CRASH: a later change below the cursor updates records, perhaps on other pages. It must
        // not be durable without the cursor.
        self.store.journal.close_open();
        Ok(counting)
    }

    /// Adds a record for an id without one. Called with no lock held.
    pub(crate) fn add_account(&self, fileset: &OpenFileset, id: (QuotaKind, u32)) -> FsResult<()> {
        self.with_unsharing_pages(fileset, Urgency::User, || {
            self.check_space_of(fileset, PATH_PAGES, Urgency::User)?;
            let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
            let mut guard = fileset.anodes.lock_current()?;
            let Some(added) = guard.add_account(&self.store, &mut change, id)? else {
                return Ok(());
            };
            let applied = change.end();
            guard.settle_account(added);
            guard.settle(applied.lsn);
            Ok(())
        })
    }

    pub(crate) fn set_quota(
        &self,
        path: &[NamePart],
        id: (QuotaKind, u32),
        new: QuotaChange,
    ) -> FsResult<()> {
        let fileset = self.quota_fileset(path)?;
        self.check_quotas_on(fileset, path)?;
        self.set_quota_of(fileset, id, new)
    }

    pub(crate) fn set_quota_of(
        &self,
        fileset: &OpenFileset,
        id: (QuotaKind, u32),
        new: QuotaChange,
    ) -> FsResult<()> {
        self.check_writable()?;
        let class = self.with_unsharing(fileset, Urgency::User, || {
            let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
            let guard = fileset.anodes.lock_current()?;
            let (account, limits) = guard.change_limits(&self.store, &mut change, id, new)?;
            let applied = change.end();
            account.set_limits(&limits, self.store.asker(true).now);
            guard.settle(applied.lsn);
            Ok(applied.class)
        })?;
        self.store.journal.commit(class)
    }

    pub(crate) fn set_quota_graces(
        &self,
        path: &[NamePart],
        graces: [Option<u64>; 2],
    ) -> FsResult<()> {
        let fileset = self.quota_fileset(path)?;
        self.check_quotas_on(fileset, path)?;
        self.set_quota_graces_of(fileset, graces)
    }

    pub(crate) fn set_quota_graces_of(
        &self,
        fileset: &OpenFileset,
        graces: [Option<u64>; 2],
    ) -> FsResult<()> {
        self.check_writable()?;
        let class = self.with_unsharing(fileset, Urgency::User, || {
            let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
            let guard = fileset.anodes.lock_current()?;
            let head = guard.change_graces(&self.store, &mut change, graces)?;
            let applied = change.end();
            guard.settle_quotas(head, None, self.store.asker(true));
            guard.settle(applied.lsn);
            Ok(applied.class)
        })?;
        self.store.journal.commit(class)
    }

    fn check_quotas_on(&self, fileset: &OpenFileset, path: &[NamePart]) -> FsResult<()> {
        if fileset.anodes.quotas.state() != QuotaState::Off {
            return Ok(());
        }
        let name = format::fileset::joined(path);
        let by = "its quotas of users, groups and projects are off: `holdfast quota on` switches \
                  them on";
        Err(FsError::FilesetInUse { name, by: by.to_owned() })
    }

    pub(crate) fn write_graces(&self, fileset: &OpenFileset) -> FsResult<bool> {
        if !fileset.anodes.quotas.take_stale() {
            return Ok(false);
        }
        let written = self.with_unsharing(fileset, Urgency::System, || {
            let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
            let guard = fileset.anodes.lock_current()?;
            let has_more = guard.write_graces(&self.store, &mut change)?;
            let applied = change.end();
            guard.settle(applied.lsn);
            Ok(has_more)
        });
        if written != Ok(false) {
            fileset.anodes.quotas.note_stale();
        }
        written
    }

    pub(crate) fn quota_status(&self, path: &[NamePart]) -> FsResult<QuotaStatus> {
        let fileset = self.quota_fileset(path)?;
        let quotas = &fileset.anodes.quotas;
        Ok(QuotaStatus {
            state: quotas.state(),
            graces: quotas.graces(),
            anodes_end: fileset.anodes.anodes_end(),
        })
    }

    pub(crate) fn quota_accounts(
        &self,
        path: &[NamePart],
        (kind, from): (QuotaKind, u32),
        count: usize,
    ) -> FsResult<Vec<AccountReport>> {
        Ok(self.quota_fileset(path)?.anodes.quotas.accounts(kind, from, count))
    }

    /// Performs a step of the due quota work in each open fileset. Returns whether there is more.
    pub(crate) fn tend_quotas(&self) -> FsResult<bool> {
        let (mut has_more, mut failed) = (false, None);
        if self.options.is_read_only {
            return Ok(false);
        }
        for fileset in self.filesets.iter() {
            let is_leaving = fileset.is_leaving() && !planted!(EndedFilesetChanged);
            if fileset.is_snapshot() || fileset.is_read_only() || is_leaving {
                continue;
            }
            match self.tend_quotas_of(fileset) {
                Ok(more) => has_more |= more,
                // The fileset was deleted or restored meanwhile.
                Err(FsError::Stale) => {}
                // Damage of one fileset must not stop the work in the others.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(has_more), Err)
    }

    fn tend_quotas_of(&self, fileset: &OpenFileset) -> FsResult<bool> {
        let is_counting = matches!(
            fileset.anodes.quotas.state(),
            QuotaState::Clearing(_) | QuotaState::Counting(_)
        );
        let has_more = is_counting && self.count_quotas(fileset)?;
        Ok(self.write_graces(fileset)? || has_more)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use format::fileset::FilesetName;

    use super::*;
    use crate::file::open_filesets::NewFileset;
    use crate::transfer::leave::tests::{part, pool_with_one};

    /// Method: some of the fileset is freed before the counting continues.
    #[test]
    fn a_fileset_that_is_deleted_while_it_is_counted_is_freed() {
        let (pool, _) = pool_with_one();
        let (core, path) = (pool.core(), [part("b")]);
        let made = core.create_fileset(&path, &NewFileset::default()).expect("there is room");
        core.quotas().switch_quotas(&path, true).expect("there is room");
        pool.fileset_admin()
            .delete_fileset(&"b".parse::<FilesetName>().expect("a name"))
            .expect("nobody uses it");
        core.filesets.table.free_some(&core.store, made.slot).expect("it can be read");
        assert_eq!(core.quotas().tend_quotas(), Ok(false));
        for _ in 0..20 {
            pool.tick().expect("nothing fails");
        }
        assert_eq!(pool.fileset_admin().is_freeing(), Ok(false));
    }

    /// Goal: GT4. Method: a debug build asserts it at the wait.
    #[test]
    fn who_counts_waits_for_another_closer_with_nothing_reserved() {
        let (pool, _) = pool_with_one();
        let (core, path) = (pool.core(), [part("b")]);
        core.create_fileset(&path, &NewFileset::default()).expect("there is room");
        core.quotas().switch_quotas(&path, true).expect("there is room");
        let quotas = core.quotas();
        let fileset = quotas.quota_fileset(&path).expect("it is there");
        std::thread::scope(|scope| {
            let closed = fileset.gate.close();
            let (tell, told) = channel();
            scope.spawn(move || tell.send(core.quotas().count_quotas(fileset)));
            // Time within which the count would have ended if it did not wait.
            let waited = told.recv_timeout(Duration::from_millis(300));
            assert_eq!(waited, Err(RecvTimeoutError::Timeout), "it is closed");
            drop(closed);
            told.recv().expect("nothing is reserved").expect("it can be read");
        });
    }

    /// Goal: no grace is lost when a page of records must be unshared first. Method: users on two
    /// pages, of which the first is unshared.
    #[test]
    fn graces_of_many_are_kept_beside_a_snapshot() {
        let (pool, _) = pool_with_one();
        let (core, path) = (pool.core(), [part("root")]);
        core.quotas().switch_quotas(&path, true).expect("there is room");
        while core.quotas().count_quotas_named(&path).expect("it can be read") {}
        let quotas = core.quotas();
        let fileset = quotas.quota_fileset(&path).expect("it is there");
        let limits = QuotaChange {
            fragments_soft: Some(1),
            fragments_hard: None,
            inodes_soft: None,
            inodes_hard: None,
        };
        for id in 1..=100 {
            core.quotas().add_account(fileset, (QuotaKind::User, id)).expect("there is room");
            core.quotas()
                .set_quota_of(fileset, (QuotaKind::User, id), limits)
                .expect("it is there");
        }
        while core.quotas().write_graces(fileset).expect("there is room") {}
        core.snapshotter().create_snapshot(&path, &part("c"), [3; 16]).expect("there is room");
        let account =
            |id| fileset.anodes.quotas.account((QuotaKind::User, id)).expect("it is there");
        let begin = |id| account(id).accept((2, 0), 0, core.store.asker(true)).expect("not held");
        begin(1);
        assert_eq!(core.quotas().write_graces(fileset), Ok(false));
        (50..=70).for_each(begin);
        let mut change = core.store.begin_in(&fileset.gate, LogCredits::SMALL).expect("room");
        let given_up = fileset.anodes.lock().write_graces(&core.store, &mut change);
        assert!(matches!(given_up, Err(FsError::Shared { .. })), "{given_up:?}");
        drop(change);
        let kept = (50..=70).filter(|id| account(*id).take_stale().is_some()).count();
        assert_eq!(kept, 21, "all are written the next time");
    }
}
