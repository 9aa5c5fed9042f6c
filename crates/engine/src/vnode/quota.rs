//! Quotas of users, groups and projects, as somebody switches them on, sets and reads them
//! (decision 0059).
//!
//! Not here: who is counted, and where (`fileset::quota`); who is refused (`usage::account`).

use format::fileset::NamePart;
use format::quota::{QuotaKind, QuotaState};
use runtime::planted::{self, Planted};

use super::unshare::PATH_PAGES;
use super::{Core, Fileset};
use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::fileset::quota::{Counting, QuotaChange};
use crate::journal::Reservation;
use crate::usage::AccountFacts;

/// What the quotas of a fileset are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaStatus {
    pub(crate) state: QuotaState,
    /// Seconds for which the soft limits of fragments and of inodes may be passed.
    pub(crate) graces: [u64; 2],
    /// The number at which no anode has ever been: where counting ends.
    pub(crate) anodes_end: u64,
}

impl Core {
    /// Returns the fileset that is called so, which may be changed.
    fn quota_fileset(&self, path: &[NamePart]) -> FsResult<&Fileset> {
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.open_fileset(slot)
    }

    /// Switches quotas on, or off; that is durable when this returns. Counting has not begun then.
    pub(crate) fn switch_quotas(&self, path: &[NamePart], is_on: bool) -> FsResult<()> {
        self.switch_quotas_of(self.quota_fileset(path)?, is_on)
    }

    /// As [`Core::switch_quotas`].
    pub(crate) fn switch_quotas_of(&self, fileset: &Fileset, is_on: bool) -> FsResult<()> {
        self.check_writable()?;
        let class = self.with_unsharing(fileset, Urgency::User, || {
            self.check_space_of(fileset, PATH_PAGES, Urgency::User)?;
            // Nothing waits then: each block that does, while quotas are on, counts for its owner.
            let mut still = self.hold_all_still(&[fileset])?;
            let mut change = still.begin(fileset, Reservation::SMALL)?;
            let mut guard = fileset.anodes.lock_current()?;
            let Some((head, container)) = guard.switch_quotas(&self.store, &mut change, is_on)?
            else {
                return Ok(None);
            };
            let applied = change.end();
            guard.settle_quotas(head, container, self.store.asker(true));
            guard.settle(applied.lsn);
            // CRASH: nothing that is not counted any more becomes durable before they are off.
            self.store.journal.close_open();
            drop(still);
            Ok(Some(applied.class))
        })?;
        class.map_or(Ok(()), |class| self.store.journal.commit(class))
    }

    /// Counts some of what is not counted yet. Returns whether there is more.
    pub(crate) fn count_quotas(&self, fileset: &Fileset) -> FsResult<bool> {
        let once = || self.count_quotas_once(fileset);
        loop {
            match self.with_unsharing(fileset, Urgency::System, once)? {
                Counting::Done => return Ok(false),
                Counting::More => return Ok(true),
                // As many times as some hundred anodes have owners.
                Counting::Needs(kind, id) => self.add_account(fileset, (kind, id))?,
            }
        }
    }

    /// As [`Core::count_quotas`], of the fileset that is called so.
    pub(crate) fn count_quotas_named(&self, path: &[NamePart]) -> FsResult<bool> {
        self.count_quotas(self.quota_fileset(path)?)
    }

    fn count_quotas_once(&self, fileset: &Fileset) -> FsResult<Counting> {
        // QC2: nobody changes an anode meanwhile. GT4: another closer, who may wait for the log, is
        // waited for with nothing reserved.
        let begin = || self.store.begin_pool(Reservation::LARGE);
        let early = planted::is(Planted::CounterWaitsWithLog).then(begin).transpose()?;
        let _closed = fileset.gate.close();
        let mut change = early.map_or_else(begin, Ok)?;
        change.share(fileset.gate.shared_epoch());
        let is_planted = planted::is(Planted::CountedUncommitted);
        if !is_planted {
            // CRASH: what is counted was changed in other classes, on pages that this change has
            // no part in. None of them is undone once this is durable.
            self.store.journal.close_open();
        }
        let mut guard = fileset.anodes.lock_current()?;
        let (head, counting) = guard.count_some(&self.store, &mut change)?;
        if head.state == fileset.anodes.quotas.state() {
            return Ok(counting);
        }
        let applied = change.end();
        guard.settle_quotas(head, None, self.store.asker(true));
        guard.settle(applied.lsn);
        if !is_planted {
            // CRASH: who changes an anode below the cursor changes records by it, perhaps on pages
            // that this change has no part in.
            self.store.journal.close_open();
        }
        Ok(counting)
    }

    /// Adds a record for somebody who has none. Called with no lock held.
    pub(super) fn add_account(&self, fileset: &Fileset, id: (QuotaKind, u32)) -> FsResult<()> {
        self.with_unsharing_pages(fileset, Urgency::User, || {
            self.check_space_of(fileset, PATH_PAGES, Urgency::User)?;
            let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
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

    /// Changes limits; that is durable when this returns.
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

    /// As [`Core::set_quota`], of a fileset whose quotas are on.
    pub(crate) fn set_quota_of(
        &self,
        fileset: &Fileset,
        id: (QuotaKind, u32),
        new: QuotaChange,
    ) -> FsResult<()> {
        self.check_writable()?;
        let class = self.with_unsharing(fileset, Urgency::User, || {
            let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
            let guard = fileset.anodes.lock_current()?;
            let (account, limits) = guard.change_limits(&self.store, &mut change, id, new)?;
            let applied = change.end();
            account.set_limits(&limits, self.store.asker(true).now);
            guard.settle(applied.lsn);
            Ok(applied.class)
        })?;
        self.store.journal.commit(class)
    }

    /// Changes how long soft limits may be passed; that is durable when this returns.
    pub(crate) fn set_quota_graces(
        &self,
        path: &[NamePart],
        graces: [Option<u64>; 2],
    ) -> FsResult<()> {
        let fileset = self.quota_fileset(path)?;
        self.check_quotas_on(fileset, path)?;
        self.set_quota_graces_of(fileset, graces)
    }

    /// As [`Core::set_quota_graces`], of a fileset whose quotas are on.
    pub(crate) fn set_quota_graces_of(
        &self,
        fileset: &Fileset,
        graces: [Option<u64>; 2],
    ) -> FsResult<()> {
        self.check_writable()?;
        let class = self.with_unsharing(fileset, Urgency::User, || {
            let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
            let guard = fileset.anodes.lock_current()?;
            let head = guard.change_graces(&self.store, &mut change, graces)?;
            let applied = change.end();
            guard.settle_quotas(head, None, self.store.asker(true));
            guard.settle(applied.lsn);
            Ok(applied.class)
        })?;
        self.store.journal.commit(class)
    }

    fn check_quotas_on(&self, fileset: &Fileset, path: &[NamePart]) -> FsResult<()> {
        if fileset.anodes.quotas.state() != QuotaState::Off {
            return Ok(());
        }
        let name = format::fileset::joined(path);
        let by = "its quotas of users, groups and projects are off: `holdfast quota on` switches \
                  them on";
        Err(FsError::FilesetInUse { name, by: by.to_owned() })
    }

    /// Writes when graces end that have begun since. Returns whether there is more to write.
    pub(crate) fn write_graces(&self, fileset: &Fileset) -> FsResult<bool> {
        if !fileset.anodes.quotas.take_stale() {
            return Ok(false);
        }
        let written = self.with_unsharing(fileset, Urgency::System, || {
            let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
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

    /// Returns what the quotas of a fileset are like.
    pub(crate) fn quota_status(&self, path: &[NamePart]) -> FsResult<QuotaStatus> {
        let fileset = self.quota_fileset(path)?;
        let quotas = &fileset.anodes.quotas;
        Ok(QuotaStatus {
            state: quotas.state(),
            graces: quotas.graces(),
            anodes_end: fileset.anodes.anodes_end(),
        })
    }

    /// Returns the accounts of a fileset from `from` on, by id, `count` at most.
    pub(crate) fn quota_accounts(
        &self,
        path: &[NamePart],
        (kind, from): (QuotaKind, u32),
        count: usize,
    ) -> FsResult<Vec<AccountFacts>> {
        Ok(self.quota_fileset(path)?.anodes.quotas.accounts(kind, from, count))
    }

    /// Does for all filesets that are open what their quotas wait for: a step of counting, and the
    /// ends of graces.
    pub(crate) fn tend_quotas(&self) -> FsResult<bool> {
        let (mut has_more, mut failed) = (false, None);
        if self.options.is_read_only {
            return Ok(false);
        }
        for fileset in self.filesets.iter() {
            let is_leaving = fileset.is_leaving() && !planted::is(Planted::EndedFilesetChanged);
            if fileset.is_clone() || fileset.is_read_only() || is_leaving {
                continue;
            }
            match self.tend_quotas_of(fileset) {
                Ok(more) => has_more |= more,
                // It was deleted meanwhile, or restored.
                Err(FsError::Stale) => {}
                // One that is damaged keeps no other waiting.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(has_more), Err)
    }

    fn tend_quotas_of(&self, fileset: &Fileset) -> FsResult<bool> {
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
    use crate::vnode::filesets::NewFileset;
    use crate::vnode::leave::tests::{part, pool_with_one};

    /// Goal: a fileset that is deleted while its files are counted for quotas is freed, and keeps
    /// no other job waiting. Method: some of it is freed before the counting goes on.
    #[test]
    fn a_fileset_that_is_deleted_while_it_is_counted_is_freed() {
        let (pool, _) = pool_with_one();
        let (core, path) = (pool.core(), [part("b")]);
        let made = core.create_fileset(&path, &NewFileset::default()).expect("there is room");
        core.switch_quotas(&path, true).expect("there is room");
        pool.delete_fileset(&"b".parse::<FilesetName>().expect("a name")).expect("nobody uses it");
        core.filesets.table.free_some(&core.store, made.slot).expect("it can be read");
        assert_eq!(core.tend_quotas(), Ok(false));
        for _ in 0..20 {
            pool.tick().expect("nothing fails");
        }
        assert_eq!(pool.is_freeing(), Ok(false));
    }

    /// Goal: whoever counts waits for another closer of the gate, who may wait for the log, with
    /// nothing of the log reserved (GT4). Method: a debug build asserts so where he waits.
    #[test]
    fn who_counts_waits_for_another_closer_with_nothing_reserved() {
        let (pool, _) = pool_with_one();
        let (core, path) = (pool.core(), [part("b")]);
        core.create_fileset(&path, &NewFileset::default()).expect("there is room");
        core.switch_quotas(&path, true).expect("there is room");
        let fileset = core.quota_fileset(&path).expect("it is there");
        std::thread::scope(|scope| {
            let closed = fileset.gate.close();
            let (tell, told) = channel();
            scope.spawn(move || tell.send(core.count_quotas(fileset)));
            // Who does not wait has ended long before.
            let waited = told.recv_timeout(Duration::from_millis(300));
            assert_eq!(waited, Err(RecvTimeoutError::Timeout), "it is closed");
            drop(closed);
            told.recv().expect("nothing is reserved").expect("it can be read");
        });
    }

    /// Goal: of graces that begin together none is forgotten where a page of records has to be
    /// copied first, because a clone holds it. Method: those of users on two pages, of which the
    /// first is the fileset's own again.
    #[test]
    fn graces_of_many_are_kept_beside_a_clone() {
        let (pool, _) = pool_with_one();
        let (core, path) = (pool.core(), [part("root")]);
        core.switch_quotas(&path, true).expect("there is room");
        while core.count_quotas_named(&path).expect("it can be read") {}
        let fileset = core.quota_fileset(&path).expect("it is there");
        let limits = QuotaChange {
            fragments_soft: Some(1),
            fragments_hard: None,
            inodes_soft: None,
            inodes_hard: None,
        };
        for id in 1..=100 {
            core.add_account(fileset, (QuotaKind::User, id)).expect("there is room");
            core.set_quota_of(fileset, (QuotaKind::User, id), limits).expect("it is there");
        }
        while core.write_graces(fileset).expect("there is room") {}
        core.create_clone(&path, &part("c"), [3; 16]).expect("there is room");
        let account =
            |id| fileset.anodes.quotas.account((QuotaKind::User, id)).expect("it is there");
        let begin = |id| account(id).accept((2, 0), 0, core.store.asker(true)).expect("not held");
        begin(1);
        assert_eq!(core.write_graces(fileset), Ok(false));
        (50..=70).for_each(begin);
        let mut change = core.store.begin_in(&fileset.gate, Reservation::SMALL).expect("room");
        let given_up = fileset.anodes.lock().write_graces(&core.store, &mut change);
        assert!(matches!(given_up, Err(FsError::Shared { .. })), "{given_up:?}");
        drop(change);
        let kept = (50..=70).filter(|id| account(*id).take_stale().is_some()).count();
        assert_eq!(kept, 21, "all are written the next time");
    }
}
