//! What every layer above the allocator works with: pages, places and changes to them.

use std::ops::{Deref, Range};
use std::sync::Arc;

use format::bitmap;
use format::defect::DefectCode;
use format::geometry::Geometry;
use format::ids::{AnodeNo, EPOCH_MAX, Epoch, FilesetId, Lsn, Place, PoolId};
use format::page::{
    BIRTH_OFFSET, PAGE_BYTES, PageBytes, PageHeader, PageKind, PageOwner, birth_of,
};
use runtime::clock::{Clock, Timestamp};
use runtime::planted::{self, Planted};
use storage::volume::Volume;

use crate::alloc::{Allocator, Extent, Ledger};
use crate::buffer::{Cache, PageRef, corrupt, page_of};
use crate::error::{FsError, FsResult};
use crate::gate::{Gate, Inside};
use crate::journal::{Applied, Journal, Own, OwnRange, Reservation, Tx};
use crate::usage::{Account, Asker, Owners, Usage};

/// Of the pages that a transaction may move: those of two names, and of the anodes of two
/// directories.
const MOVES_KEPT: usize = 4;
/// Refuses to change a page that clones hold too: what was born in `shared_epoch` or before it.
fn check_own(
    shared_epoch: Epoch,
    page: &PageBytes,
    kind: PageKind,
    owner: PageOwner,
) -> FsResult<()> {
    let is_pools_own = owner.fileset == FilesetId(0);
    let is_planted = if kind == PageKind::AnodeMap {
        planted::is(Planted::SharedBitSet)
    } else {
        planted::is(Planted::SharedPageEdited)
    };
    let is_own = shared_epoch == Epoch(0) || birth_of(page) > shared_epoch;
    if is_own || is_pools_own || is_planted {
        return Ok(());
    }
    Err(FsError::Shared { kind, owner })
}

/// Byte of a page's header that holds its kind.
const KIND_OFFSET: usize = 18;

/// The pool, as the layers of files see it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) volume: Volume,
    pub(crate) cache: Arc<Cache>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) alloc: Arc<Allocator>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A page as somebody sees it: a transaction's own version, or everyone's.
pub(crate) enum View<'a> {
    /// The version of a transaction that has not ended.
    Own(&'a PageBytes),
    /// The version in memory.
    Shared(PageRef),
}

impl Deref for View<'_> {
    type Target = PageBytes;

    fn deref(&self) -> &PageBytes {
        match self {
            View::Own(bytes) => bytes,
            View::Shared(bytes) => page_of(bytes),
        }
    }
}

/// What a change does to what its fileset references, in fragments.
#[derive(Debug)]
struct Counted {
    usage: Arc<Usage>,
    change: i64,
    /// What was accepted, and is installed.
    accepted: u64,
    /// The same of users, groups and projects, where they are counted.
    owners: Vec<OwnerCounted>,
}

/// What a change does to what a user, a group or a project has: fragments, and inodes.
#[derive(Debug)]
struct OwnerCounted {
    account: Arc<Account>,
    change: [i64; 2],
    /// Blocks that waited, and are installed.
    accepted: u64,
    /// What this change was let in with.
    admitted: [u64; 2],
}

impl Counted {
    fn owner(&mut self, account: &Arc<Account>) -> &mut OwnerCounted {
        let known = self.owners.iter().position(|it| Arc::ptr_eq(&it.account, account));
        let index = known.unwrap_or_else(|| {
            let account = Arc::clone(account);
            let (change, admitted) = ([0; 2], [0; 2]);
            self.owners.push(OwnerCounted { account, change, accepted: 0, admitted });
            self.owners.len() - 1
        });
        &mut self.owners[index]
    }

    /// Holds what each of them gets against his limits; after an error nobody has more.
    #[cold]
    fn admit_owners(&mut self, asker: Asker) -> FsResult<()> {
        for owner in &mut self.owners {
            let more = |change: i64| u64::try_from(change).unwrap_or(0);
            let fragments = more(owner.change[0]).saturating_sub(owner.accepted);
            let inodes = more(owner.change[1]);
            owner.account.accept((fragments, 0), inodes, asker)?;
            owner.admitted = [fragments, inodes];
        }
        Ok(())
    }

    /// The change is given up: what it was let in with is nobody's.
    fn give_back(&self) {
        for owner in &self.owners {
            owner.account.give_back(owner.admitted[0], owner.admitted[1]);
        }
    }
}

/// Room for changes to come, which its holder begins without waiting. What is left of it is given
/// back when it is dropped.
#[derive(Debug)]
pub(crate) struct Pot<'s>(Change<'s>);

impl<'s> Pot<'s> {
    /// Starts a change of the fileset whose gate the caller keeps closed, and of which clones hold
    /// what was born in `shared_epoch` or before it. `None`: not so much room
    /// is left.
    pub(crate) fn begin(
        &mut self,
        reservation: Reservation,
        shared_epoch: Epoch,
    ) -> Option<Change<'s>> {
        let store = self.0.store;
        let tx = store.journal.begin_from(self.0.tx_mut(), reservation)?;
        Some(Change::new(store, tx, None, shared_epoch))
    }
}

/// A transaction with what it takes from and gives back to the allocator. Dropped before its end,
/// it was never there.
#[derive(Debug)]
pub(crate) struct Change<'s> {
    store: &'s Store,
    tx: Option<Tx>,
    ledger: Ledger,
    /// Metadata is placed near this.
    pub(crate) near: Place,
    /// Pages that go home together with the anode that leads to them, by its number.
    with_anode: Vec<(AnodeNo, Place)>,
    /// What was born in this epoch or before it, clones of its fileset hold too; 0: nothing.
    shared_epoch: Epoch,
    /// What it does to what its fileset references.
    counted: Option<Counted>,
    /// It is inside the gate of its fileset until it has ended or was given up.
    _inside: Option<Inside<'s>>,
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

    /// Returns who asks for room now.
    pub(crate) fn asker(&self, is_privileged: bool) -> Asker {
        let now = u64::try_from(self.now().seconds).unwrap_or(0);
        Asker { may_be_refused: !is_privileged, now }
    }

    /// Starts a change of the pool's own, or of a fileset that nobody can reach. Called with no
    /// lock held.
    pub(crate) fn begin_pool(&self, reservation: Reservation) -> FsResult<Change<'_>> {
        let tx = self.journal.begin(reservation)?;
        Ok(Change::new(self, tx, None, Epoch(0)))
    }

    /// Starts a change of the fileset that has `gate`, which it enters before it gets its epoch
    /// (GT1). Called with no lock held.
    pub(crate) fn begin_in<'s>(
        &'s self,
        gate: &'s Gate,
        reservation: Reservation,
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

    /// Starts a change of pages of several filesets, clones' too, whose places alone it changes. It
    /// enters all `gates` before it gets its epoch, or none: `None`. Called with no lock held.
    pub(crate) fn begin_inside<'s>(
        &'s self,
        gates: &[&'s Gate],
        reservation: Reservation,
    ) -> FsResult<Option<(Change<'s>, Vec<Inside<'s>>)>> {
        let mut inside = Vec::with_capacity(gates.len());
        let mut enter = || {
            inside.clear();
            inside.extend(gates.iter().map_while(|gate| gate.try_enter()));
            inside.len() == gates.len()
        };
        let tx = self.journal.begin_if(reservation, &mut enter)?;
        Ok(tx.map(|tx| (Change::new(self, tx, None, Epoch(0)), inside)))
    }

    /// Reserves room for `count` large changes and a small one, for whoever must not wait once he
    /// has begun; fewer, if so much is not to be had. Called with no lock held.
    pub(crate) fn fill_pot(&self, count: usize) -> FsResult<Pot<'_>> {
        let count = count.min(self.journal.at_once(Reservation::LARGE));
        let all = Reservation::LARGE.times_and(count, Reservation::SMALL);
        self.begin_pool(all).map(Pot)
    }

    /// Returns a page as `change` sees it, or as everyone does.
    pub(crate) fn view<'a>(
        &self,
        change: Option<&'a Change<'_>>,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<View<'a>> {
        match change.and_then(|change| change.tx().view(place)) {
            Some(Own::Whole(bytes)) => return Ok(View::Own(bytes)),
            Some(Own::Patched(bytes)) => return Ok(View::Shared(bytes)),
            None => {}
        }
        Ok(View::Shared(self.cache.bytes(place, kind, owner)?))
    }

    /// Calls `look` with `range` of a page as `change` sees it, or as everyone does. Cheaper than
    /// [`Store::view`] where the change has other bytes of the page, for it copies none.
    pub(crate) fn peek<R>(
        &self,
        change: Option<&Change<'_>>,
        (place, kind, owner): (Place, PageKind, PageOwner),
        range: Range<usize>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> FsResult<R> {
        match change.map_or(OwnRange::Nothing, |change| change.tx().peek(place, &range)) {
            OwnRange::All(own) => Ok(look(own)),
            OwnRange::Part => Ok(look(&self.view(change, place, kind, owner)?[range])),
            OwnRange::Nothing => Ok(look(&self.cache.bytes(place, kind, owner)?[range])),
        }
    }
}

impl<'s> Change<'s> {
    fn new(
        store: &'s Store,
        tx: Tx,
        inside: Option<Inside<'s>>,
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

    /// Content of page `source` moves to pages that `path`, or the anode of `number` at its top,
    /// leads to: they go home together, for neither may be seen without the other. Returns whether
    /// the transaction may move so much.
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

    /// The anode of `number` is written to the page at `place`. Returns whether the transaction may
    /// move so much.
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

    /// Number of the transaction.
    pub(crate) fn epoch(&self) -> Epoch {
        self.tx().epoch
    }

    /// How many pages the transaction touches so far.
    pub(crate) fn page_count(&self) -> usize {
        self.tx().page_count()
    }

    /// Returns the page at `place`, to change.
    pub(crate) fn edit(
        &mut self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<&mut PageBytes> {
        let bytes = self.edit_range(place, kind, owner, 0..PAGE_BYTES)?;
        Ok(bytes.first_chunk_mut().expect("it is a page"))
    }

    /// What is changed of the page at `place` from now on is changed in one piece, if some of it is
    /// changed already: what lies apart in a page counts by itself otherwise.
    pub(crate) fn take_whole(&mut self, place: Place) {
        if let Some(tx) = self.tx.as_mut() {
            let _ = tx.own_range(place, &(0..PAGE_BYTES));
        }
    }

    /// Returns `range` of the page at `place`, whole words, to change: cheaper than the whole page,
    /// which is copied, and compared at the end.
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

    /// Whether clones hold the page at `place` too.
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

    /// Sets or clears a bit of a bitmap page of the fileset.
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

    /// Returns the epoch up to which blocks belong to clones of the fileset, too: what it gives up
    /// of them is not freed.
    pub(crate) fn shared_epoch(&self) -> Epoch {
        if planted::is(Planted::SharedBlockFreed) {
            return Epoch(0);
        }
        let is_kept = planted::is(Planted::OwnBlockKept) && self.shared_epoch > Epoch(0);
        if is_kept { Epoch(EPOCH_MAX) } else { self.shared_epoch }
    }

    /// Makes a copy of the page at `place`, which clones hold too, for the fileset itself; returns
    /// its place. The caller points there who pointed to the old one.
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
            // CRASH: what an open class has put into the old page is in the copy: a crash keeps
            // both or neither. A change of nothing makes the transaction part of that class.
            self.tx_mut().add_u64(&buffer, BIRTH_OFFSET, 0);
        }
        Ok(copy)
    }

    /// Moves the page at `place` elsewhere, as it is, its birth too (MV1); returns where. The
    /// caller points there wherever somebody pointed to the old place, and then says that it was
    /// left ([`Cache::leave`]). No tombstone stays in it: what leads there may be at home for
    /// longer than the copy is.
    pub(crate) fn move_page(
        &mut self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<Place> {
        let (buffer, _) = self.store.cache.page_with_bytes(place, kind, owner)?;
        // What leads elsewhere below it this change may have moved.
        let bytes: PageBytes = *self.store.view(Some(self), place, kind, owner)?;
        let is_planted = planted::is(Planted::PageMoveTakesNewBirth);
        let birth = if is_planted { self.epoch() } else { birth_of(&bytes) };
        let copy = self.add_copy(&bytes, kind, owner, birth)?;
        if buffer.class() != 0 {
            // CRASH: as for a copy.
            self.tx_mut().add_u64(&buffer, BIRTH_OFFSET, 0);
        }
        let fragments = self.store.geometry().page_fragments();
        self.free(&[Extent { place, fragments }])?;
        Ok(copy)
    }

    /// Makes a page that holds what another does.
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

    /// Changes nothing of a page, but belongs to the class that has changed it last, and so does
    /// whoever changes it next.
    pub(crate) fn note(&mut self, place: Place, kind: PageKind, owner: PageOwner) -> FsResult<()> {
        let (buffer, _) = self.store.cache.page_with_bytes(place, kind, owner)?;
        self.tx_mut().add_u64(&buffer, BIRTH_OFFSET, 0);
        Ok(())
    }

    /// Makes a new page of `kind` for `owner`; returns its place.
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

    /// Gives a page up: a tombstone stays in its place until that is used again. One that clones
    /// hold stays theirs.
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

    /// Gives fragments back.
    pub(crate) fn free(&mut self, extents: &[Extent]) -> FsResult<()> {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.free(tx, &mut self.ledger, extents)
    }

    /// Takes promised blocks of open segments into use.
    pub(crate) fn install(&mut self, extents: &[Extent]) -> FsResult<()> {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.install(tx, &mut self.ledger, extents)
    }

    /// Keeps fragments for a block that the file has not stored.
    pub(crate) fn reserve(&mut self, fragments: u32) {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.reserve(tx, &mut self.ledger, fragments);
    }

    /// Gives up what was reserved: the block is stored, or gone.
    pub(crate) fn unreserve(&mut self, fragments: u32) {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.unreserve(tx, &mut self.ledger, fragments);
    }

    /// Adds to the pool's count of bytes that filesets have reserved.
    pub(crate) fn count_reservations(&mut self, delta: i64) {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.count_reservations(tx, delta);
    }

    /// Adds to the pool's count of anodes in use.
    pub(crate) fn count_anodes(&mut self, delta: i64) {
        let tx = self.tx.as_mut().expect("a change has its transaction until its end");
        self.store.alloc.count_anodes(tx, delta);
    }

    /// Adds `change` to a 64-bit count of a page that everyone changes.
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

    /// QT3: the fileset of `usage` will reference so much more, or less, once this has ended;
    /// `accepted` of what was accepted is installed then.
    pub(crate) fn note_usage(&mut self, usage: &Arc<Usage>, change: i64, accepted: u64) {
        let counted = self.counted_of(usage);
        counted.change += change;
        counted.accepted += accepted;
    }

    fn counted_of(&mut self, usage: &Arc<Usage>) -> &mut Counted {
        self.counted.get_or_insert_with(|| {
            let usage = Arc::clone(usage);
            Counted { usage, change: 0, accepted: 0, owners: Vec::new() }
        })
    }

    /// QA1: a user, a group or a project will have so many fragments and inodes more, or fewer,
    /// once this has ended.
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

    /// QA2: a block of these owners, for which so much was accepted, is installed once this has
    /// ended.
    pub(crate) fn note_waited(&mut self, usage: &Arc<Usage>, owners: &Owners, accepted: u64) {
        for account in owners.iter() {
            self.counted_of(usage).owner(account).accepted += accepted;
        }
    }

    /// Adds `change` to a 64-bit count of a page of the fileset's own, which clones may hold too.
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

    /// What was applied so far is durable before this change, or with it: the change relies on it,
    /// and perhaps has no page in common with it.
    pub(crate) fn close_all_before(&self) {
        let is_planted = planted::is(Planted::EntryReliesOnUndone)
            || planted::is(Planted::CloneCommitsItsClassAlone);
        if !is_planted {
            self.store.journal.close_open();
        }
    }

    /// From now on clones hold what was born in `shared_epoch` or before it: of a change of the
    /// pool's own that is one of a fileset whose gate the caller keeps closed.
    pub(crate) fn share(&mut self, shared_epoch: Epoch) {
        self.shared_epoch = shared_epoch;
    }

    /// Holds what the change takes for a user against the quota, what was accepted before aside.
    ///
    /// # Errors
    ///
    /// [`FsError::QuotaExceeded`]: the change is to be given up.
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

    /// Applies the change.
    pub(crate) fn end(mut self) -> Applied {
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
            self.counted.take().inspect(Counted::give_back);
        }
    }
}
