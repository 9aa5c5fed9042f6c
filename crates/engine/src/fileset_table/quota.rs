//! Quotas of users, groups and projects: usage and limit records, in an internal container of the
//! fileset that is created when quotas are first switched on (decision 0059).
//!
//! # Invariants
//!
//! - QC1: The records hold the usage of all anodes below the cursor, by owner, group and project,
//!   and of all anodes once the count is complete. A write of such an anode moves the difference
//!   from the accounts of the slot's old contents to those of its new contents, in the same
//!   transaction.
//! - QC2: Cursor and state change only behind the closed gate, so an operation inside sees one
//!   value.
//! - QC3: Records are added in transactions of their own, and are never removed. Each has an
//!   account in memory.
//!
//! # Crashes
//!
//! A step of counting adds its usage and moves the cursor in one transaction, so a crash keeps both
//! or neither, and counting resumes. A step first closes all open classes, so no change that it
//! counts can be undone once the step is durable. Ends of graces are written some time after they
//! begin. A crash may lose some, and those graces begin again.
//!
//! # Concurrency
//!
//! Usage changes by logged operations, without a lock. Limits, records and the head change under
//! the fileset's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::anode::{ANODE_BYTES, Anode, QUOTA_ANODE, slot_offset};
use format::defect::DefectCode;
use format::ids::{AnodeNo, FilesetId, Place};
use format::page::{PageBytes, PageKind, PageOwner, SLOTS_PER_PAGE};
use format::quota::{
    LIMITS_OFFSET, QuotaCharge, QuotaHead, QuotaKind, QuotaLimits, QuotaRecord, QuotaState,
    RECORD_BYTES, RECORDS_MAX, RECORDS_PER_PAGE, USED_FRAGMENTS_OFFSET, USED_INODES_OFFSET,
    record_offset,
};

use super::birth::internal;
use super::moved::PageRelocations;
use super::{FilesetGuard, MountedFileset, i64_of, read_anode_in};
use crate::buffer::corrupt;
use crate::container::{content_owner, no_page};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store};
use crate::sync::RwLock;
use crate::usage::{
    Account, AccountReport, BlockAccounts, OwnerAccounts, QuotaTerms, SpaceRequest,
};

/// Most anode table pages counted per step, which keeps the gate closed.
const TABLE_PAGES_PER_STEP: u64 = 64;
/// Most record pages changed per step.
const RECORD_PAGES_PER_STEP: usize = 48;
/// Most records with limits written per transaction.
const LIMITS_PER_CHANGE: usize = 16;

type QuotaKey = (QuotaKind, u32);

#[derive(Debug, Default)]
pub(crate) struct QuotaTables {
    /// Writers count anodes below this number (QC1). 0 if none are counted.
    counted_below: AtomicU64,
    /// Whether dirty blocks count for file owners. True as soon as quotas are switched on, because
    /// the scan finds only mapped blocks.
    is_switched_on: AtomicBool,
    terms: Arc<QuotaTerms>,
    state: RwLock<QuotaTablesState>,
}

#[derive(Debug, Default)]
struct QuotaTablesState {
    head: QuotaHead,
    container: Option<Arc<Anode>>,
    accounts: BTreeMap<QuotaKey, Arc<Account>>,
    owners: BTreeMap<[u32; 3], OwnerAccounts>,
    /// The first record never used.
    next_record: u64,
}

/// Bound of the cache. Programs write files of few owners at a time.
const OWNERS_KEPT: usize = 1024;

pub(super) struct PreviousAnodeUsage {
    pub(super) fragments: u64,
    /// Outer `None` if writers do not count the anode yet. Inner `None` if the slot was free.
    pub(super) counted: Option<Option<QuotaCharge>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaCountStep {
    More,
    /// Counting is complete or switched off.
    Done,
    /// This account needs a record first.
    Needs(QuotaKind, u32),
}

impl QuotaTables {
    pub(super) fn load(store: &Store, table: &Anode, family: FilesetId) -> FsResult<QuotaTables> {
        let Some(container) = read_anode_in(store, table, None, family, QUOTA_ANODE)? else {
            return Ok(QuotaTables::default());
        };
        if container.pages > RECORDS_MAX / RECORDS_PER_PAGE + 1 {
            let what = "the container of quotas has more pages than it may";
            return Err(corrupt(DefectCode::AN005.found(what).of(family, QUOTA_ANODE)));
        }
        let quotas = QuotaTables::default();
        {
            let mut state = quotas.state.write();
            for page in 0..container.pages {
                let bytes = store.content(None, &container, page, PageKind::Quota)?;
                let bytes = bytes.ok_or_else(|| no_page(&container, page))?;
                if page == 0 {
                    let head = QuotaHead::of(&bytes);
                    let what = "the head of the quotas can't be so";
                    state.head = head.ok_or_else(|| bad(family, what))?;
                }
                read_records(&mut state, family, &quotas.terms, (page, &bytes))?;
            }
            state.container = Some(Arc::new(container));
            state.next_record = state.next_record.max(1);
        }
        quotas.settle_head(store.asker(true).now);
        Ok(quotas)
    }

    pub(crate) fn is_on(&self) -> bool {
        self.counted_below.load(Ordering::Acquire) > 0
    }

    pub(crate) fn is_switched_on(&self) -> bool {
        self.is_switched_on.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self) -> QuotaState {
        self.state.read().head.state
    }

    pub(crate) fn graces(&self) -> [u64; 2] {
        let head = self.state.read().head;
        [head.fragments_grace, head.inodes_grace]
    }

    /// Returns and clears the flag that ends of graces have changed. The caller writes them.
    pub(crate) fn take_stale(&self) -> bool {
        self.is_on() && self.terms.take_stale()
    }

    /// Restores the flag taken by [`QuotaTables::take_stale`], after a failed write.
    pub(crate) fn note_stale(&self) {
        self.terms.note_stale();
    }

    /// Applies the head to the state in memory.
    fn settle_head(&self, now: u64) {
        let head = self.state.read().head;
        let is_enforced = head.state == QuotaState::On;
        self.terms.set(is_enforced, [head.fragments_grace, head.inodes_grace]);
        self.counted_below.store(head.state.counted_below(), Ordering::Release);
        self.is_switched_on.store(head.state != QuotaState::Off, Ordering::Release);
        if is_enforced {
            self.state.read().accounts.values().for_each(|account| account.begin_graces(now));
        }
    }

    pub(crate) fn account(&self, id: QuotaKey) -> FsResult<Arc<Account>> {
        let found = self.state.read().accounts.get(&id).map(Arc::clone);
        found.ok_or(FsError::Uncounted { kind: id.0, id: id.1 })
    }

    pub(crate) fn accounts(&self, kind: QuotaKind, from: u32, count: usize) -> Vec<AccountReport> {
        let state = self.state.read();
        let range = state.accounts.range((kind, from)..=(kind, u32::MAX));
        range.take(count).map(|(_, account)| account.facts()).collect()
    }

    fn owners(&self, ids: [u32; 3]) -> FsResult<OwnerAccounts> {
        if let Some(owners) = self.state.read().owners.get(&ids) {
            return Ok(Arc::clone(owners));
        }
        let [user, group, project] = ids;
        let owners = Arc::new([
            self.account((QuotaKind::User, user))?,
            self.account((QuotaKind::Group, group))?,
            self.account((QuotaKind::Project, project))?,
        ]);
        let mut state = self.state.write();
        if state.owners.len() >= OWNERS_KEPT {
            state.owners.clear();
        }
        state.owners.insert(ids, Arc::clone(&owners));
        Ok(owners)
    }

    fn container(&self) -> FsResult<Arc<Anode>> {
        self.state.read().container.clone().ok_or(FsError::NotFound)
    }

    pub(super) fn tell_moved(&self, moved: &PageRelocations) {
        if let Some(container) = self.state.write().container.as_mut() {
            moved.tell(Arc::make_mut(container));
        }
    }

    pub(crate) fn set_container(&self, container: &Anode) {
        self.state.write().container = Some(Arc::new(container.clone()));
    }
}

fn bad(family: FilesetId, what: impl Into<String>) -> FsError {
    corrupt(DefectCode::FS016.found(what.into()).of(family, QUOTA_ANODE))
}

fn read_records(
    state: &mut QuotaTablesState,
    family: FilesetId,
    terms: &Arc<QuotaTerms>,
    (page, bytes): (u64, &PageBytes),
) -> FsResult<()> {
    for index in 0..RECORDS_PER_PAGE {
        let number = page * RECORDS_PER_PAGE + index;
        let record = QuotaRecord::decode_in(bytes, index);
        let record = record.map_err(|field| bad(family, format!("record {number}: {field}")))?;
        let Some(record) = record else { continue };
        state.next_record = number + 1;
        let account = Arc::new(Account::new(&record, number, terms));
        if state.accounts.insert((record.kind, record.id), account).is_some() {
            let (kind, id) = (record.kind.word(), record.id);
            return Err(bad(family, format!("record {number} is of {kind} {id}, as another is")));
        }
    }
    Ok(())
}

fn position(record: u64) -> (u64, usize) {
    (record / RECORDS_PER_PAGE, record_offset(record % RECORDS_PER_PAGE))
}

fn page_at(
    store: &Store,
    change: &Change<'_>,
    container: &Anode,
    page: u64,
) -> FsResult<(Place, PageKind, PageOwner)> {
    let pointer = store.block(Some(change), container, page)?;
    let place = pointer.ok_or_else(|| no_page(container, page))?.place;
    Ok((place, PageKind::Quota, content_owner(container, page)))
}

fn add_usage(
    store: &Store,
    change: &mut Change<'_>,
    (container, record): (&Anode, u64),
    more: [i64; 2],
) -> FsResult<()> {
    let (page, offset) = position(record);
    let at = page_at(store, change, container, page)?;
    for (field, more) in [USED_FRAGMENTS_OFFSET, USED_INODES_OFFSET].into_iter().zip(more) {
        if more != 0 {
            change.add_to_own_count(at, offset + field, more)?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct QuotaUsageChanges(Vec<(QuotaKey, [i64; 2])>);

impl QuotaUsageChanges {
    fn add(&mut self, owned: &QuotaCharge, sign: i64) {
        for (kind, id) in QuotaKind::ALL.into_iter().zip(owned.ids) {
            let more = [sign * i64_of(owned.fragments), sign];
            match self.0.iter_mut().find(|(of, _)| *of == (kind, id)) {
                Some((_, sum)) => *sum = [sum[0] + more[0], sum[1] + more[1]],
                None => self.0.push(((kind, id), more)),
            }
        }
    }
}

impl MountedFileset {
    /// Returns the usage in an anode slot before it is written.
    pub(super) fn before(&self, number: AnodeNo, slot: &[u8]) -> PreviousAnodeUsage {
        let fragments = super::fragments_in(slot);
        let below = self.quotas.counted_below.load(Ordering::Acquire);
        if number.0 >= below {
            return PreviousAnodeUsage { fragments, counted: None };
        }
        let owned = slot.first_chunk::<ANODE_BYTES>().and_then(QuotaCharge::in_slot);
        PreviousAnodeUsage { fragments, counted: Some(owned) }
    }

    /// Moves the usage of a counted anode to its new accounts (QC1).
    #[cold]
    pub(super) fn count_owners(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        before: Option<QuotaCharge>,
        after: Option<QuotaCharge>,
    ) -> FsResult<()> {
        if before == after {
            return Ok(());
        }
        let mut moves = QuotaUsageChanges::default();
        if let Some(after) = &after {
            moves.add(after, 1);
        }
        if let Some(before) = before {
            moves.add(&before, -1);
        }
        moves.0.retain(|(_, more)| *more != [0; 2]);
        let container = self.quotas.container()?;
        for (id, more) in moves.0 {
            let account = self.quotas.account(id)?;
            add_usage(store, change, (&container, account.record), more)?;
            change.note_owner(&self.usage, &account, more);
        }
        Ok(())
    }

    pub(crate) fn payer(
        &self,
        store: &Store,
        anode: &Anode,
        is_privileged: bool,
    ) -> FsResult<BlockAccounts<'_>> {
        if !self.quotas.is_switched_on() {
            return Ok(BlockAccounts::fileset(&self.usage));
        }
        let owners = self.quotas.owners([anode.uid, anode.gid, anode.project])?;
        let asker = store.asker(is_privileged);
        Ok(BlockAccounts { usage: &self.usage, owners: Some(owners), asker })
    }

    /// Checks a file's limits for `fragments` more.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`].
    pub(crate) fn check_owners(
        &self,
        store: &Store,
        anode: &Anode,
        fragments: u64,
        is_privileged: bool,
    ) -> FsResult<()> {
        let payer = self.payer(store, anode, is_privileged)?;
        let Some(owners) = &payer.owners else { return Ok(()) };
        crate::usage::accept_all(owners, (fragments, 0), payer.asker)?;
        owners.iter().for_each(|account| account.give_back(fragments, 0));
        Ok(())
    }
}

/// Change of an account's limits. `None` keeps a limit, and 0 removes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaChange {
    /// Soft limit, past which the grace begins.
    pub(crate) fragments_soft: Option<u64>,
    pub(crate) fragments_hard: Option<u64>,
    /// Soft limit, past which the grace begins.
    pub(crate) inodes_soft: Option<u32>,
    pub(crate) inodes_hard: Option<u32>,
}

impl QuotaChange {
    fn of(self, limits: &QuotaLimits) -> QuotaLimits {
        QuotaLimits {
            fragments_soft: self.fragments_soft.unwrap_or(limits.fragments_soft),
            fragments_hard: self.fragments_hard.unwrap_or(limits.fragments_hard),
            inodes_soft: self.inodes_soft.unwrap_or(limits.inodes_soft),
            inodes_hard: self.inodes_hard.unwrap_or(limits.inodes_hard),
            fragments_grace_end: 0,
            inodes_grace_end: 0,
        }
    }
}

impl FilesetGuard<'_> {
    fn quotas(&self) -> &QuotaTables {
        &self.fileset.quotas
    }

    fn put_head(&self, store: &Store, change: &mut Change<'_>, head: &QuotaHead) -> FsResult<()> {
        let container = self.quotas().container()?;
        let (place, kind, owner) = page_at(store, change, &container, 0)?;
        let range = record_offset(0)..record_offset(1);
        change.edit_range(place, kind, owner, range)?.copy_from_slice(&head.encode());
        Ok(())
    }

    /// Switches quotas on or off, with the gate closed. After the change has ended, the caller
    /// calls [`FilesetGuard::settle_quotas`]. Returns the resulting head and a created container,
    /// or `None` if nothing changes.
    pub(crate) fn switch_quotas(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        is_on: bool,
    ) -> FsResult<Option<(QuotaHead, Option<Anode>)>> {
        let (head, has_container) = {
            let state = self.quotas().state.read();
            (state.head, state.container.is_some())
        };
        if is_on == (head.state != QuotaState::Off) {
            return Ok(None);
        }
        if !is_on {
            let head = QuotaHead { state: QuotaState::Off, ..head };
            self.put_head(store, change, &head)?;
            return Ok(Some((head, None)));
        }
        if has_container {
            // Old counts are stale: clear them first.
            let head = QuotaHead { state: QuotaState::Clearing(0), ..head };
            self.put_head(store, change, &head)?;
            return Ok(Some((head, None)));
        }
        self.save();
        let head = QuotaHead { state: QuotaState::Counting(0), ..head };
        let mut container = internal(QUOTA_ANODE, self.fileset.family, change.epoch());
        let page = store.add_content(change, &mut container, 0, PageKind::Quota)?;
        page[record_offset(0)..record_offset(1)].copy_from_slice(&head.encode());
        self.fileset.write_anode(store, change, &container)?;
        self.state.entry.anodes_used += 1;
        change.count_anodes(1);
        self.write_entry(change)?;
        Ok(Some((head, Some(container))))
    }

    pub(crate) fn settle_quotas(
        &self,
        head: QuotaHead,
        container: Option<Anode>,
        asker: SpaceRequest,
    ) {
        {
            let mut state = self.quotas().state.write();
            state.head = head;
            if let Some(container) = container {
                state.container = Some(Arc::new(container));
                state.next_record = 1;
            }
        }
        self.quotas().settle_head(asker.now);
    }

    /// Adds a record unless it exists. After the change has ended, the caller calls
    /// [`FilesetGuard::settle_account`].
    pub(crate) fn add_account(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        (kind, id): (QuotaKind, u32),
    ) -> FsResult<Option<(Account, Anode)>> {
        let (number, mut container) = {
            let state = self.quotas().state.read();
            if state.accounts.contains_key(&(kind, id)) {
                return Ok(None);
            }
            let Some(container) = &state.container else { return Ok(None) };
            (state.next_record, Anode::clone(container))
        };
        if number >= RECORDS_MAX {
            return Err(FsError::QuotaExceeded);
        }
        let limits = QuotaLimits::default();
        let record = QuotaRecord { kind, id, fragments: 0, inodes: 0, limits };
        let (page, offset) = position(number);
        if store.block(Some(change), &container, page)?.is_none() {
            store.add_content(change, &mut container, page, PageKind::Quota)?;
            self.fileset.write_anode(store, change, &container)?;
        }
        let (place, kind, owner) = page_at(store, change, &container, page)?;
        let bytes = change.edit_range(place, kind, owner, offset..offset + RECORD_BYTES)?;
        bytes.copy_from_slice(&record.encode());
        let account = Account::new(&record, number, &self.quotas().terms);
        Ok(Some((account, container)))
    }

    pub(crate) fn settle_account(&self, (account, container): (Account, Anode)) {
        let mut state = self.quotas().state.write();
        state.next_record = account.record + 1;
        state.container = Some(Arc::new(container));
        state.accounts.insert((account.kind, account.id), Arc::new(account));
    }

    fn put_limits(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        record: u64,
        limits: &QuotaLimits,
    ) -> FsResult<()> {
        let container = self.quotas().container()?;
        let (page, offset) = position(record);
        let (place, kind, owner) = page_at(store, change, &container, page)?;
        let range = offset + LIMITS_OFFSET..offset + RECORD_BYTES;
        change.edit_range(place, kind, owner, range)?.copy_from_slice(&limits.encode());
        Ok(())
    }

    /// Changes limits. After the change has ended, the caller sets them in the account.
    pub(crate) fn change_limits(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        id: (QuotaKind, u32),
        new: QuotaChange,
    ) -> FsResult<(Arc<Account>, QuotaLimits)> {
        let account = self.quotas().account(id)?;
        let limits = new.of(&account.facts().limits);
        let is_above = |soft: u64, hard: u64| hard > 0 && soft > hard;
        if is_above(limits.fragments_soft, limits.fragments_hard)
            || is_above(limits.inodes_soft.into(), limits.inodes_hard.into())
        {
            return Err(FsError::Invalid);
        }
        self.put_limits(store, change, account.record, &limits)?;
        Ok((account, limits))
    }

    /// Changes graces. Returns the resulting head.
    pub(crate) fn change_graces(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        [fragments, inodes]: [Option<u64>; 2],
    ) -> FsResult<QuotaHead> {
        let head = self.quotas().state.read().head;
        let head = QuotaHead {
            fragments_grace: fragments.unwrap_or(head.fragments_grace),
            inodes_grace: inodes.unwrap_or(head.inodes_grace),
            ..head
        };
        self.put_head(store, change, &head)?;
        Ok(head)
    }

    /// Writes changed ends of graces, as many as one change may. Returns whether there are more.
    pub(crate) fn write_graces(&self, store: &Store, change: &mut Change<'_>) -> FsResult<bool> {
        let accounts: Vec<_> = self.quotas().state.read().accounts.values().cloned().collect();
        let mut written = Vec::new();
        for account in accounts {
            if written.len() == LIMITS_PER_CHANGE {
                return Ok(true);
            }
            let Some(limits) = account.take_stale() else { continue };
            let put = self.put_limits(store, change, account.record, &limits);
            written.push(account);
            if let Err(error) = put {
                // The caller drops the change, so none of its records is written.
                written.iter().for_each(|account| account.note_stale());
                return Err(error);
            }
        }
        Ok(false)
    }

    /// Counts some anodes, or clears some old counts, with the gate closed. Returns the resulting
    /// head.
    pub(crate) fn count_some(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
    ) -> FsResult<(QuotaHead, QuotaCountStep)> {
        let head = self.quotas().state.read().head;
        let with = |state| QuotaHead { state, ..head };
        match head.state {
            QuotaState::Off | QuotaState::On => Ok((head, QuotaCountStep::Done)),
            QuotaState::Clearing(page) => {
                let state = self.clear_page(store, change, page)?;
                self.put_head(store, change, &with(state))?;
                Ok((with(state), QuotaCountStep::More))
            }
            QuotaState::Counting(cursor) => {
                let (counted, reached) = self.find_usage(store, cursor)?;
                let container = self.quotas().container()?;
                for ((kind, id), more) in &counted {
                    let Ok(account) = self.quotas().account((*kind, *id)) else {
                        return Ok((head, QuotaCountStep::Needs(*kind, *id)));
                    };
                    add_usage(store, change, (&container, account.record), *more)?;
                    change.note_owner(&self.fileset.usage, &account, *more);
                }
                let is_done = reached >= self.state.entry.anodes_end;
                let state = if is_done { QuotaState::On } else { QuotaState::Counting(reached) };
                self.put_head(store, change, &with(state))?;
                Ok((with(state), if is_done { QuotaCountStep::Done } else { QuotaCountStep::More }))
            }
        }
    }

    fn clear_page(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        page: u64,
    ) -> FsResult<QuotaState> {
        let container = self.quotas().container()?;
        if page >= container.pages {
            self.quotas().state.read().accounts.values().for_each(|account| account.clear());
            return Ok(QuotaState::Counting(0));
        }
        let (place, kind, owner) = page_at(store, change, &container, page)?;
        let bytes = change.edit(place, kind, owner)?;
        for index in u64::from(page == 0)..RECORDS_PER_PAGE {
            let offset = record_offset(index);
            bytes[offset + USED_FRAGMENTS_OFFSET..offset + LIMITS_OFFSET].fill(0);
        }
        Ok(QuotaState::Clearing(page + 1))
    }

    /// Sums the usage of anodes from `cursor` on, by account. Also returns where the next step
    /// begins.
    fn find_usage(
        &self,
        store: &Store,
        cursor: u64,
    ) -> FsResult<(BTreeMap<QuotaKey, [i64; 2]>, u64)> {
        let per_page = wide(SLOTS_PER_PAGE);
        let end = self.state.entry.anodes_end.div_ceil(per_page);
        let (mut counted, mut pages) = (BTreeMap::<QuotaKey, [i64; 2]>::new(), BTreeSet::new());
        let first = cursor / per_page;
        for page in first..end {
            if page - first >= TABLE_PAGES_PER_STEP || pages.len() > RECORD_PAGES_PER_STEP {
                return Ok((counted, page * per_page));
            }
            let Some(bytes) = store.content(None, &self.table, page, PageKind::Anode)? else {
                continue;
            };
            for slot in 0..SLOTS_PER_PAGE {
                let offset = slot_offset(slot);
                let bytes = bytes.get(offset..).and_then(|rest| rest.first_chunk());
                let Some(owned) = bytes.and_then(QuotaCharge::in_slot) else { continue };
                for (kind, id) in QuotaKind::ALL.into_iter().zip(owned.ids) {
                    let sum = counted.entry((kind, id)).or_default();
                    *sum = [sum[0] + i64_of(owned.fragments), sum[1] + 1];
                    if let Ok(account) = self.quotas().account((kind, id)) {
                        pages.insert(position(account.record).0);
                    }
                }
            }
        }
        Ok((counted, end * per_page))
    }
}
