//! Quotas of users, groups and projects: records of what each has, in a container of the fileset's
//! own that is made when they are switched on (decision 0059).
//!
//! # Invariants
//!
//! - QC1: The records say what the anodes below the cursor take, by owner, group and project; once
//!   all are counted, what all take. Who writes such an anode moves the difference from whom the
//!   slot said before to whom it says now, in the same transaction.
//! - QC2: The cursor and the state change behind the closed gate: whoever is inside sees one value.
//! - QC3: Records are added in transactions of their own, and stay. In memory there is an account
//!   for each.
//!
//! # Crashes
//!
//! A step of counting adds what it found and moves the cursor in one transaction: a crash keeps
//! both or neither, and counting goes on from there. It finds what has no open class any more: a
//! crash that keeps the step keeps that, too. Ends of graces are written some time after
//! they begin; what a crash loses of them begins again.
//!
//! # Concurrency
//!
//! Usage changes by operations of the log, without a lock. Limits, records and the head are changed
//! by whoever holds the fileset's lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::anode::{ANODE_BYTES, Anode, QUOTA_ANODE, slot_offset};
use format::defect::DefectCode;
use format::ids::{AnodeNo, FilesetId, Place};
use format::page::{PageBytes, PageKind, PageOwner, SLOTS_PER_PAGE};
use format::quota::{
    LIMITS_OFFSET, Owned, QuotaHead, QuotaKind, QuotaLimits, QuotaRecord, QuotaState, RECORD_BYTES,
    RECORDS_MAX, RECORDS_PER_PAGE, USED_FRAGMENTS_OFFSET, USED_INODES_OFFSET, record_offset,
};
use runtime::planted::{self, Planted};

use super::birth::internal;
use super::moved::MovedPages;
use super::{FilesetGuard, MountedFileset, i64_of, read_anode_in};
use crate::buffer::corrupt;
use crate::container::{content_owner, no_page};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store};
use crate::sync::RwLock;
use crate::usage::{Account, AccountFacts, Asker, Owners, Payer, Terms};

/// Pages of the anode table that one step counts at most: the gate is closed meanwhile.
const TABLE_PAGES_PER_STEP: u64 = 64;
/// Pages of records that one step changes at most.
const RECORD_PAGES_PER_STEP: usize = 48;
/// Records whose limits one transaction writes at most.
const LIMITS_PER_CHANGE: usize = 16;

type Id = (QuotaKind, u32);

/// The quotas of a mounted fileset.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    /// QC1: anodes below this number are counted by whoever changes them; 0: none is.
    counted_below: AtomicU64,
    /// Whether blocks that wait count for the owners of their files: from the moment at which
    /// quotas are switched on, for the scan finds only what is installed.
    is_switched_on: AtomicBool,
    terms: Arc<Terms>,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    head: QuotaHead,
    /// The container; `None`: they were never switched on.
    container: Option<Arc<Anode>>,
    accounts: BTreeMap<Id, Arc<Account>>,
    /// The accounts of a file, kept for the next one like it.
    owners: BTreeMap<[u32; 3], Owners>,
    /// The first record that was never used.
    next_record: u64,
}

/// Kept accounts of files at most: programs write files of few owners at a time.
const OWNERS_KEPT: usize = 1024;

/// What a slot said before an anode was written to it.
pub(super) struct Before {
    pub(super) fragments: u64,
    /// Whether the anode is one of those that are counted, and whose it was.
    pub(super) counted: Option<Option<Owned>>,
}

/// How far a step of counting has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// There is more to do.
    More,
    /// All is counted, or nothing is to be.
    Done,
    /// This one needs a record first.
    Needs(QuotaKind, u32),
}

impl Quotas {
    /// Reads them, if there are any.
    pub(super) fn load(store: &Store, table: &Anode, family: FilesetId) -> FsResult<Quotas> {
        let Some(container) = read_anode_in(store, table, None, family, QUOTA_ANODE)? else {
            return Ok(Quotas::default());
        };
        if container.pages > RECORDS_MAX / RECORDS_PER_PAGE + 1 {
            let what = "the container of quotas has more pages than it may";
            return Err(corrupt(DefectCode::AN005.found(what).of(family, QUOTA_ANODE)));
        }
        let quotas = Quotas::default();
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

    /// Whether anybody is counted.
    pub(crate) fn is_on(&self) -> bool {
        self.counted_below.load(Ordering::Acquire) > 0
    }

    /// Whether blocks that wait count for the owners of their files.
    pub(crate) fn is_switched_on(&self) -> bool {
        self.is_switched_on.load(Ordering::Acquire)
    }

    /// Whether the head says anything but off.
    pub(crate) fn state(&self) -> QuotaState {
        self.state.read().head.state
    }

    /// Returns how long soft limits may be passed: seconds, of fragments and of inodes.
    pub(crate) fn graces(&self) -> [u64; 2] {
        let head = self.state.read().head;
        [head.fragments_grace, head.inodes_grace]
    }

    /// Whether graces have begun or ended that no record says; asking says that they will be
    /// written.
    pub(crate) fn take_stale(&self) -> bool {
        self.is_on() && self.terms.take_stale()
    }

    /// They were not.
    pub(crate) fn note_stale(&self) {
        self.terms.note_stale();
    }

    /// Makes everybody see what the head says.
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

    pub(crate) fn account(&self, id: Id) -> FsResult<Arc<Account>> {
        let found = self.state.read().accounts.get(&id).map(Arc::clone);
        found.ok_or(FsError::Uncounted { kind: id.0, id: id.1 })
    }

    /// Returns the accounts from `from` on, by id, `count` at most.
    pub(crate) fn accounts(&self, kind: QuotaKind, from: u32, count: usize) -> Vec<AccountFacts> {
        let state = self.state.read();
        let range = state.accounts.range((kind, from)..=(kind, u32::MAX));
        range.take(count).map(|(_, account)| account.facts()).collect()
    }

    /// Returns the accounts of the owner, the group and the project of a file.
    fn owners(&self, ids: [u32; 3]) -> FsResult<Owners> {
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

    /// Pages of the container were moved.
    pub(super) fn tell_moved(&self, moved: &MovedPages) {
        if let Some(container) = self.state.write().container.as_mut() {
            moved.tell(Arc::make_mut(container));
        }
    }

    /// The container begins elsewhere: clones hold what it was.
    pub(crate) fn set_container(&self, container: &Anode) {
        self.state.write().container = Some(Arc::new(container.clone()));
    }
}

fn bad(family: FilesetId, what: impl Into<String>) -> FsError {
    corrupt(DefectCode::FS016.found(what.into()).of(family, QUOTA_ANODE))
}

fn read_records(
    state: &mut State,
    family: FilesetId,
    terms: &Arc<Terms>,
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

/// Returns page, and offset in it, of a record.
fn position(record: u64) -> (u64, usize) {
    (record / RECORDS_PER_PAGE, record_offset(record % RECORDS_PER_PAGE))
}

/// Where a page of records is.
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

/// Adds to the usage that a record says.
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

/// What moves from account to account.
#[derive(Default)]
struct Moves(Vec<(Id, [i64; 2])>);

impl Moves {
    fn add(&mut self, owned: &Owned, sign: i64) {
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
    /// Returns what the slot of anode `number` says, of which these are the bytes.
    pub(super) fn before(&self, number: AnodeNo, slot: &[u8]) -> Before {
        let fragments = super::fragments_in(slot);
        let below = self.quotas.counted_below.load(Ordering::Acquire);
        let is_planted = below > 0 && planted::is(Planted::CountedTwiceByScan);
        if number.0 >= below && !is_planted {
            return Before { fragments, counted: None };
        }
        let owned = slot.first_chunk::<ANODE_BYTES>().and_then(Owned::in_slot);
        Before { fragments, counted: Some(owned) }
    }

    /// QC1: an anode that is counted was `before`, and is `after` now.
    #[cold]
    pub(super) fn count_owners(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        before: Option<Owned>,
        after: Option<Owned>,
    ) -> FsResult<()> {
        if before == after {
            return Ok(());
        }
        let mut moves = Moves::default();
        if let Some(after) = &after {
            moves.add(after, 1);
        }
        let is_planted = planted::is(Planted::ChownMovesOneSide)
            && before.zip(after).is_some_and(|(before, after)| before.ids != after.ids);
        if let Some(before) = before.filter(|_| !is_planted) {
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

    /// Returns whom new blocks of a file count for.
    pub(crate) fn payer(
        &self,
        store: &Store,
        anode: &Anode,
        is_privileged: bool,
    ) -> FsResult<Payer<'_>> {
        if !self.quotas.is_switched_on() {
            return Ok(Payer::fileset(&self.usage));
        }
        let owners = self.quotas.owners([anode.uid, anode.gid, anode.project])?;
        let asker = store.asker(is_privileged);
        Ok(Payer { usage: &self.usage, owners: Some(owners), asker })
    }

    /// Holds `fragments` more for a file against the limits of whom it belongs to.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`] if they are too many.
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

/// What is to be changed of the limits of one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotaChange {
    /// Fragments past which the grace begins; 0: no limit.
    pub(crate) fragments_soft: Option<u64>,
    /// Most fragments; 0: no limit.
    pub(crate) fragments_hard: Option<u64>,
    /// Inodes past which the grace begins; 0: no limit.
    pub(crate) inodes_soft: Option<u32>,
    /// Most inodes; 0: no limit.
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
    fn quotas(&self) -> &Quotas {
        &self.fileset.quotas
    }

    fn put_head(&self, store: &Store, change: &mut Change<'_>, head: &QuotaHead) -> FsResult<()> {
        let container = self.quotas().container()?;
        let (place, kind, owner) = page_at(store, change, &container, 0)?;
        let range = record_offset(0)..record_offset(1);
        change.edit_range(place, kind, owner, range)?.copy_from_slice(&head.encode());
        Ok(())
    }

    /// Switches them on, or off, for whoever keeps the gate closed. Returns the head as it will be;
    /// `None`: nothing changes. [`FilesetGuard::settle_quotas`] is called once the change has
    /// ended.
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
            // What was counted before it was switched off is of no use any more.
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

    /// The change has ended that set the head, and made the container if it is given.
    pub(crate) fn settle_quotas(&self, head: QuotaHead, container: Option<Anode>, asker: Asker) {
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

    /// Adds a record, unless there is one. [`FilesetGuard::settle_account`] is called once the
    /// change has ended, with what this returns.
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

    /// The change that added a record has ended.
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

    /// Changes limits. Once the change has ended, the account takes the limits that this returns.
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

    /// Changes how long soft limits may be passed; returns the head as it will be.
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

    /// Writes the ends of graces that have begun or ended, as many as one change may. Returns
    /// whether there are more.
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
                // The change is given up, with all that it has.
                let first =
                    if planted::is(Planted::GraceForgotten) { written.len() - 1 } else { 0 };
                written.iter().skip(first).for_each(|account| account.note_stale());
                return Err(error);
            }
        }
        Ok(false)
    }

    /// Counts some of the anodes, or clears what was counted before, for whoever keeps the gate
    /// closed. Returns the head as it will be, and how far that is.
    pub(crate) fn count_some(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
    ) -> FsResult<(QuotaHead, Counting)> {
        let head = self.quotas().state.read().head;
        let with = |state| QuotaHead { state, ..head };
        match head.state {
            QuotaState::Off | QuotaState::On => Ok((head, Counting::Done)),
            QuotaState::Clearing(page) => {
                let state = self.clear_page(store, change, page)?;
                self.put_head(store, change, &with(state))?;
                Ok((with(state), Counting::More))
            }
            QuotaState::Counting(cursor) => {
                let (counted, reached) = self.find_usage(store, cursor)?;
                let container = self.quotas().container()?;
                for ((kind, id), more) in &counted {
                    let Ok(account) = self.quotas().account((*kind, *id)) else {
                        return Ok((head, Counting::Needs(*kind, *id)));
                    };
                    add_usage(store, change, (&container, account.record), *more)?;
                    change.note_owner(&self.fileset.usage, &account, *more);
                }
                let is_done = reached >= self.state.entry.anodes_end;
                let state = if is_done { QuotaState::On } else { QuotaState::Counting(reached) };
                self.put_head(store, change, &with(state))?;
                Ok((with(state), if is_done { Counting::Done } else { Counting::More }))
            }
        }
    }

    /// Clears the usage of the records of a page; returns what is next.
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

    /// Finds what anodes from `cursor` on take, by owner, group and project, and the number up to
    /// which it has looked.
    fn find_usage(&self, store: &Store, cursor: u64) -> FsResult<(BTreeMap<Id, [i64; 2]>, u64)> {
        let per_page = wide(SLOTS_PER_PAGE);
        let end = self.state.entry.anodes_end.div_ceil(per_page);
        let (mut counted, mut pages) = (BTreeMap::<Id, [i64; 2]>::new(), BTreeSet::new());
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
                let Some(owned) = bytes.and_then(Owned::in_slot) else { continue };
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
