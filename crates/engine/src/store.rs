//! Pages, places, and changes to them, for the layers above the allocator.

use std::ops::{Deref, Range};
use std::sync::Arc;

use format::bitmap;
use format::defect::DefectCode;
use format::geometry::Geometry;
use format::ids::{AnodeNo, Epoch, FilesetId, Lsn, Place, PoolId};
use format::page::{
    BIRTH_OFFSET, PAGE_BYTES, PageBytes, PageHeader, PageKind, PageOwner, birth_of,
};
use runtime::clock::{Clock, Timestamp};
use runtime::{if_planted, planted, unless_planted};
use storage::volume::Volume;

use crate::alloc::{Allocator, Extent, Ledger};
use crate::buffer::{Cache, PageRef, corrupt, page_of};
use crate::error::{FsError, FsResult};
use crate::gate::{FilesetGate, GateGuard};
use crate::journal::{AppliedTx, Journal, LogCredits, Tx, TxPage, TxPageRange};
use crate::usage::{Account, OwnerAccounts, SpaceRequest, Usage};

/// Moves that page splits leave to the end of a transaction: pages of two names, and of the anodes
/// of two directories.
const MOVES_KEPT: usize = 4;
/// Refuses to edit a page shared with snapshots: born in `shared_epoch` or before.
fn check_own(
    shared_epoch: Epoch,
    page: &PageBytes,
    kind: PageKind,
    owner: PageOwner,
) -> FsResult<()> {
    let is_pools_own = owner.fileset == FilesetId(0);
    let is_own = shared_epoch == Epoch(0) || birth_of(page) > shared_epoch;
    if is_own || is_pools_own || planted!(SharedPageEdited) {
        return Ok(());
    }
    Err(FsError::Shared { kind, owner })
}

const KIND_OFFSET: usize = 18;

/// The pool, for the layers of files.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) volume: Volume,
    pub(crate) cache: Arc<Cache>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) alloc: Arc<Allocator>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A page as seen by a transaction, or by all.
pub(crate) enum PageView<'a> {
    /// The version with the edits of an open transaction.
    Own(&'a PageBytes),
    /// The version in the cache.
    Shared(PageRef),
}

impl Deref for PageView<'_> {
    type Target = PageBytes;

    fn deref(&self) -> &PageBytes {
        match self {
            PageView::Own(bytes) => bytes,
            PageView::Shared(bytes) => page_of(bytes),
        }
    }
}

/// The effect of a change on the fileset's references, in fragments.
#[derive(Debug)]
struct UsageChange {
    usage: Arc<Usage>,
    change: i64,
    /// Fragments of the mapped blocks that were counted as accepted.
    accepted: u64,
    /// The effect on users, groups and projects, if they are counted.
    owners: Vec<OwnerUsageChange>,
}

/// The effect of a change on one account: fragments, and inodes.
#[derive(Debug)]
struct OwnerUsageChange {
    account: Arc<Account>,
    change: [i64; 2],
    /// Fragments of the mapped blocks that were counted as accepted.
    accepted: u64,
    /// Fragments and inodes that [`Change::admit`] has accepted.
    admitted: [u64; 2],
}

impl UsageChange {
    fn owner(&mut self, account: &Arc<Account>) -> &mut OwnerUsageChange {
        let known = self.owners.iter().position(|it| Arc::ptr_eq(&it.account, account));
        let index = known.unwrap_or_else(|| {
            let account = Arc::clone(account);
            let (change, admitted) = ([0; 2], [0; 2]);
            self.owners.push(OwnerUsageChange { account, change, accepted: 0, admitted });
            self.owners.len() - 1
        });
        &mut self.owners[index]
    }

    #[cold]
    fn admit_owners(&mut self, asker: SpaceRequest) -> FsResult<()> {
        for owner in &mut self.owners {
            let more = |change: i64| u64::try_from(change).unwrap_or(0);
            let fragments = more(owner.change[0]).saturating_sub(owner.accepted);
            let inodes = more(owner.change[1]);
            owner.account.accept((fragments, 0), inodes, asker)?;
            owner.admitted = [fragments, inodes];
        }
        Ok(())
    }

    /// Gives back the admitted fragments and inodes of an undone change.
    fn give_back(&self) {
        for owner in &self.owners {
            owner.account.give_back(owner.admitted[0], owner.admitted[1]);
        }
    }
}

/// Log credits for changes that must begin without waiting. The drop returns the rest.
#[derive(Debug)]
pub(crate) struct ReservedLogCredits<'s>(Change<'s>);

impl<'s> ReservedLogCredits<'s> {
    /// Starts a change of a fileset with a closed gate. `None` if the credits do not suffice.
    pub(crate) fn begin(
        &mut self,
        reservation: LogCredits,
        shared_epoch: Epoch,
    ) -> Option<Change<'s>> {
        let store = self.0.store;
        let tx = store.journal.begin_from(self.0.tx_mut(), reservation)?;
        Some(Change::new(store, tx, None, shared_epoch))
    }
}

/// A transaction, with its allocations and frees. Undone if dropped before `end`.
#[derive(Debug)]
pub(crate) struct Change<'s> {
    store: &'s Store,
    tx: Option<Tx>,
    ledger: Ledger,
    /// Preferred place of new metadata.
    pub(crate) near: Place,
    /// Pages to be written back together with an anode, by its number.
    with_anode: Vec<(AnodeNo, Place)>,
    /// Snapshots share everything born in this epoch or before; 0 without any.
    shared_epoch: Epoch,
    counted: Option<UsageChange>,
    /// Inside the gate of its fileset until its end.
    _inside: Option<GateGuard<'s>>,
}

impl Store {
    pub(crate) fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    pub(crate) fn pool_id(&self) -> PoolId {
        self.cache.pool_id()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn asker(&self, is_privileged: bool) -> SpaceRequest {
        let now = u64::try_from(self.now().seconds).unwrap_or(0);
        SpaceRequest { may_be_refused: !is_privileged, now }
    }

    /// Starts a change of the pool's structures, or of a fileset out of others' reach. Called
    /// without locks.
    pub(crate) fn begin_pool(&self, reservation: LogCredits) -> FsResult<Change<'_>> {
        let tx = self.journal.begin(reservation)?;
        Ok(Change::new(self, tx, None, Epoch(0)))
    }

    /// Starts a change of the fileset with `gate`, entered before the epoch is assigned (GT1).
    /// Called without locks.
    pub(crate) fn begin_in<'s>(
        &'s self,
        gate: &'s FilesetGate,
        reservation: LogCredits,
    ) -> FsResult<Change<'s>> {
        loop {
            let mut inside = None;
            let mut enter = || {
                inside = gate.try_enter();
                inside.is_some()
            };
            if let Some(tx) = self.journal.begin_if(reservation, &mut enter)? {
                let shared_epoch = gate.shared_epoch();
                return Ok(Change::new(self, tx, inside, shared_epoch));
            }
            gate.wait_until_open();
        }
    }

    /// Starts a change of block places in several filesets and snapshots. Enters all `gates` before
    /// the epoch is assigned; `None` if one is closed. Called without locks.
    pub(crate) fn begin_inside<'s>(
        &'s self,
        gates: &[&'s FilesetGate],
        reservation: LogCredits,
    ) -> FsResult<Option<(Change<'s>, Vec<GateGuard<'s>>)>> {
        let mut inside = Vec::with_capacity(gates.len());
        let mut enter = || {
            inside.clear();
            inside.extend(gates.iter().map_while(|gate| gate.try_enter()));
            inside.len() == gates.len()
        };
        let tx = self.journal.begin_if(reservation, &mut enter)?;
        Ok(tx.map(|tx| (Change::new(self, tx, None, Epoch(0)), inside)))
    }

    /// Reserves log credits for a small change and up to `count` large ones, which then begin
    /// without waiting. Called without locks.
    pub(crate) fn fill_pot(&self, count: usize) -> FsResult<ReservedLogCredits<'_>> {
        let count = count.min(self.journal.at_once(LogCredits::LARGE));
        let all = LogCredits::LARGE.times_and(count, LogCredits::SMALL);
        self.begin_pool(all).map(ReservedLogCredits)
    }

    /// Returns a page as seen by `change`.
    pub(crate) fn view<'a>(
        &self,
        change: Option<&'a Change<'_>>,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<PageView<'a>> {
        match change.and_then(|change| change.tx().view(place)) {
            Some(TxPage::Whole(bytes)) => return Ok(PageView::Own(bytes)),
            Some(TxPage::Patched(bytes)) => return Ok(PageView::Shared(bytes)),
            None => {}
        }
        Ok(PageView::Shared(self.cache.bytes(place, kind, owner)?))
    }

    /// Reads a range of a page as seen by `change`. Cheaper than [`Store::view`], as no copy is
    /// made.
    pub(crate) fn peek<R>(
        &self,
        change: Option<&Change<'_>>,
        (place, kind, owner): (Place, PageKind, PageOwner),
        range: Range<usize>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> FsResult<R> {
        match change.map_or(TxPageRange::Nothing, |change| change.tx().peek(place, &range)) {
            TxPageRange::All(own) => Ok(look(own)),
            TxPageRange::Part => Ok(look(&self.view(change, place, kind, owner)?[range])),
            TxPageRange::Nothing => Ok(look(&self.cache.bytes(place, kind, owner)?[range])),
        }
    }
}

impl<'s> Change<'s> {
    fn new(
        store: &'s Store,
        tx: Tx,
        inside: Option<GateGuard<'s>>,
        shared_epoch: Epoch,
    ) -> Change<'s> {
        Change {
            store,
            tx: Some(tx),
            ledger: Ledger::default(),
            near: Place::NONE,
            with_anode: Vec::new(),
            shared_epoch,
            counted: None,
            _inside: inside,
        }
    }
}

impl Change<'_> {
    fn tx(&self) -> &Tx {
        self.tx.as_ref().expect("a change has its transaction until its end")
    }

    pub(crate) fn tx_mut(&mut self) -> &mut Tx {
        self.tx.as_mut().expect("a change has its transaction until its end")
    }

    /// Notes that content moves from page `source` to pages on `path`, and that the anode `number`
    /// changes with it. All are written back together, because the names must not be lost or
    /// doubled. Returns false beyond the transaction's limit.
    #[must_use]
    pub(crate) fn moves_on_path(&mut self, number: AnodeNo, source: Place, path: &[Place]) -> bool {
        let mut places = vec![source];
        places.extend_from_slice(path);
        let is_allowed = self.tx_mut().moves_among(&places, MOVES_KEPT);
        if is_allowed {
            self.with_anode.push((number, source));
        }
        is_allowed
    }

    /// Notes the page of an anode that earlier moves named. Returns false beyond the transaction's
    /// limit.
    #[must_use]
    pub(crate) fn anode_is_at(&mut self, number: AnodeNo, place: Place) -> bool {
        let mut places: Vec<Place> = Vec::new();
        self.with_anode.retain(|(of, source)| {
            let is_its = *of == number;
            places.extend(is_its.then_some(*source));
            !is_its
        });
        if places.is_empty() {
            return true;
        }
        places.push(place);
        self.tx_mut().moves_among(&places, 0)
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.tx().epoch
    }

    pub(crate) fn page_count(&self) -> usize {
        self.tx().page_count()
    }

    pub(crate) fn edit(
        &mut self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<&mut PageBytes> {
        let bytes = self.edit_range(place, kind, owner, 0..PAGE_BYTES)?;
        Ok(bytes.first_chunk_mut().expect("it is a page"))
    }

    /// Treats a page as one edited range, which avoids the cost of many separate edits.
    pub(crate) fn take_whole(&mut self, place: Place) {
        if let Some(tx) = self.tx.as_mut() {
            let _ = tx.own_range(place, &(0..PAGE_BYTES));
        }
    }

    /// Returns a range of whole words for editing. Cheaper than editing the page, which is copied
    /// and compared as a whole.
    pub(crate) fn edit_range(
        &mut self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
        range: Range<usize>,
    ) -> FsResult<&mut [u8]> {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        if let Some(at) = tx.own_range(place, &range) {
            return Ok(tx.own_bytes(at));
        }
        let page = match tx.page_of_window(place) {
            Some(page) => page,
            None => {
                let page = self.store.cache.page_with_bytes(place, kind, owner)?;
                check_own(self.shared_epoch, page_of(&page.1), kind, owner)?;
                page
            }
        };
        Ok(tx.add_edit(page, range))
    }

    pub(crate) fn is_shared(
        &self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<bool> {
        if self.shared_epoch == Epoch(0) || self.tx().has_page(place) {
            return Ok(false);
        }
        let (_, bytes) = self.store.cache.page_with_bytes(place, kind, owner)?;
        Ok(check_own(self.shared_epoch, page_of(&bytes), kind, owner).is_err())
    }

    pub(crate) fn set_bit(
        &mut self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
        bit: u32,
        is_set: bool,
    ) -> FsResult<()> {
        if let Some(own) = self.tx_mut().own_mut(place) {
            bitmap::set(own, bit, is_set);
            return Ok(());
        }
        let (buffer, bytes) = self.store.cache.page_with_bytes(place, kind, owner)?;
        check_own(self.shared_epoch, page_of(&bytes), kind, owner)?;
        self.tx_mut().set_bits(&buffer, bit, 1, is_set);
        Ok(())
    }

    /// Returns the last epoch shared with snapshots: its blocks are not freed.
    pub(crate) fn shared_epoch(&self) -> Epoch {
        if_planted!(SharedBlockFreed, return Epoch(0));
        self.shared_epoch
    }

    /// Copies a shared page (copy-on-write). Returns the place of the copy, to which the caller
    /// redirects the pointer.
    pub(crate) fn copy_page(
        &mut self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<Place> {
        let (buffer, bytes) = self.store.cache.page_with_bytes(place, kind, owner)?;
        self.near = place;
        let birth = self.epoch();
        let copy = self.add_copy(page_of(&bytes), kind, owner, birth)?;
        if buffer.class() != 0 {
            // CRASH: the copy contains edits of an open class. An empty edit of the old page joins
            // that class, so that a crash keeps both or neither.
            self.tx_mut().add_u64(&buffer, BIRTH_OFFSET, 0);
        }
        Ok(copy)
    }

    /// Moves a page unchanged, and keeps its birth (MV1). The caller redirects all pointers, then
    /// calls [`Cache::leave`]. The old page gets no tombstone, because a durable pointer may still
    /// lead to it.
    pub(crate) fn move_page(
        &mut self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<Place> {
        let (buffer, _) = self.store.cache.page_with_bytes(place, kind, owner)?;
        // This change may have redirected pointers in the page.
        let bytes: PageBytes = *self.store.view(Some(self), place, kind, owner)?;
        let copy = self.add_copy(&bytes, kind, owner, birth_of(&bytes))?;
        if buffer.class() != 0 {
            // CRASH: joins the class of the edits in the page, as `copy_page` does.
            self.tx_mut().add_u64(&buffer, BIRTH_OFFSET, 0);
        }
        let fragments = self.store.geometry().page_fragments();
        self.free(&[Extent { place, fragments }])?;
        Ok(copy)
    }

    fn add_copy(
        &mut self,
        bytes: &PageBytes,
        kind: PageKind,
        owner: PageOwner,
        birth: Epoch,
    ) -> FsResult<Place> {
        let copy = self.add_page(kind, owner)?;
        let header = PageHeader::parse(bytes);
        let header = header.map(|header| PageHeader { place: copy, birth, lsn: Lsn(0), ..header });
        let page = self.tx_mut().own_mut(copy);
        let (Some(header), Some(page)) = (header, page) else {
            return Err(corrupt(DefectCode::AG003.found("a page without a header").at(copy)));
        };
        page.copy_from_slice(bytes);
        header.encode(page);
        Ok(copy)
    }

    /// Joins the class of the page's last change, without an edit.
    pub(crate) fn note(&mut self, place: Place, kind: PageKind, owner: PageOwner) -> FsResult<()> {
        let (buffer, _) = self.store.cache.page_with_bytes(place, kind, owner)?;
        self.tx_mut().add_u64(&buffer, BIRTH_OFFSET, 0);
        Ok(())
    }

    pub(crate) fn add_page(&mut self, kind: PageKind, owner: PageOwner) -> FsResult<Place> {
        let near = self.near;
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        let place = self.store.alloc.allocate_page(tx, &mut self.ledger, near)?;
        let mut header = PageHeader::new(kind, self.store.pool_id(), place, owner);
        header.birth = tx.epoch;
        let page = tx.new_page(place);
        let page = page
            .ok_or_else(|| corrupt(DefectCode::AG003.found("in use, but marked free").at(place)))?;
        header.encode(page);
        Ok(place)
    }

    /// Frees a page, with a tombstone until its reuse. Does not change a shared page.
    pub(crate) fn free_page(
        &mut self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<()> {
        let bytes = match self.edit(place, kind, owner) {
            Err(FsError::Shared { .. }) => return Ok(()),
            bytes => bytes?,
        };
        bytes[KIND_OFFSET] = PageKind::Tombstone.code();
        let fragments = self.store.geometry().page_fragments();
        self.free(&[Extent { place, fragments }])
    }

    pub(crate) fn free(&mut self, extents: &[Extent]) -> FsResult<()> {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.free(tx, &mut self.ledger, extents)
    }

    /// Takes promised blocks of open segments into use.
    pub(crate) fn install(&mut self, extents: &[Extent]) -> FsResult<()> {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.install(tx, &mut self.ledger, extents)
    }

    pub(crate) fn reserve(&mut self, fragments: u32) {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.reserve(tx, &mut self.ledger, fragments);
    }

    pub(crate) fn unreserve(&mut self, fragments: u32) {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.unreserve(tx, &mut self.ledger, fragments);
    }

    pub(crate) fn count_reservations(&mut self, delta: i64) {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.count_reservations(tx, delta);
    }

    pub(crate) fn count_anodes(&mut self, delta: i64) {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.count_anodes(tx, delta);
    }

    /// Adds to a count in a page that transactions share. Logged as a delta (see `journal::tx`), so
    /// the page need not belong to the caller.
    pub(crate) fn add_to_count(
        &mut self,
        (place, kind, owner): (Place, PageKind, PageOwner),
        offset: usize,
        change: i64,
    ) -> FsResult<()> {
        let buffer = self.store.cache.page(place, kind, owner)?;
        self.tx_mut().add_u64(&buffer, offset, change);
        Ok(())
    }

    /// Notes a change of the references, to be counted at the end, and the accepted fragments of
    /// the mapped blocks (QT3).
    pub(crate) fn note_usage(&mut self, usage: &Arc<Usage>, change: i64, accepted: u64) {
        let counted = self.counted_of(usage);
        counted.change += change;
        counted.accepted += accepted;
    }

    fn counted_of(&mut self, usage: &Arc<Usage>) -> &mut UsageChange {
        self.counted.get_or_insert_with(|| {
            let usage = Arc::clone(usage);
            UsageChange { usage, change: 0, accepted: 0, owners: Vec::new() }
        })
    }

    /// Notes a change of an account, to be counted at the end (QA1).
    pub(crate) fn note_owner(
        &mut self,
        usage: &Arc<Usage>,
        account: &Arc<Account>,
        change: [i64; 2],
    ) {
        let owner = self.counted_of(usage).owner(account);
        owner.change[0] += change[0];
        owner.change[1] += change[1];
    }

    /// Notes the accepted fragments of mapped blocks in the accounts of `owners` (QA2).
    pub(crate) fn note_waited(
        &mut self,
        usage: &Arc<Usage>,
        owners: &OwnerAccounts,
        accepted: u64,
    ) {
        for account in owners.iter() {
            self.counted_of(usage).owner(account).accepted += accepted;
        }
    }

    /// Adds to a count in a page of the fileset. Fails if the page is shared with snapshots.
    pub(crate) fn add_to_own_count(
        &mut self,
        (place, kind, owner): (Place, PageKind, PageOwner),
        offset: usize,
        change: i64,
    ) -> FsResult<()> {
        let (buffer, bytes) = self.store.cache.page_with_bytes(place, kind, owner)?;
        check_own(self.shared_epoch, page_of(&bytes), kind, owner)?;
        self.tx_mut().add_u64(&buffer, offset, change);
        Ok(())
    }

    /// Closes the open classes, so that all earlier changes become durable before this one or with
    /// it. For a change that relies on another without a common page.
    pub(crate) fn close_all_before(&self) {
        if_planted!(SnapshotCommitsItsClassAlone, return);
        unless_planted!(EntryReliesOnUndone, self.store.journal.close_open());
    }

    /// Turns a change of the pool into one of a fileset with a closed gate.
    pub(crate) fn share(&mut self, shared_epoch: Epoch) {
        self.shared_epoch = shared_epoch;
    }

    /// Checks the quotas for what the change adds beyond accepted fragments.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`]: drop the change.
    pub(crate) fn admit(&mut self, is_privileged: bool) -> FsResult<()> {
        let store = self.store;
        let Some(counted) = &mut self.counted else { return Ok(()) };
        if !counted.owners.is_empty() {
            counted.admit_owners(store.asker(is_privileged))?;
        }
        let more = u64::try_from(counted.change).unwrap_or(0).saturating_sub(counted.accepted);
        counted.usage.accept(more, 0, true)?;
        counted.accepted += more;
        Ok(())
    }

    pub(crate) fn end(mut self) -> AppliedTx {
        let tx = self.tx.take().expect("a change has its transaction until its end");
        let applied = self.store.journal.end(tx);
        self.store.alloc.settle(std::mem::take(&mut self.ledger), applied.lsn);
        if let Some(counted) = self.counted.take() {
            counted.usage.settle(counted.change, counted.accepted);
            if !counted.owners.is_empty() {
                let now = self.store.asker(true).now;
                for owner in &counted.owners {
                    let [fragments, inodes] = owner.admitted;
                    let accepted = [fragments + owner.accepted, inodes];
                    owner.account.settle(owner.change, accepted, now);
                }
            }
        }
        applied
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            self.store.journal.abandon(tx);
            self.store.alloc.undo(std::mem::take(&mut self.ledger));
            self.counted.take().inspect(UsageChange::give_back);
        }
    }
}
