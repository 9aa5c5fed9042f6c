//! Directories: names to anodes, in hashed pages.
//!
//! # Layout
//!
//! See [`format::directory`]. The page for a hash is found by asking the container's map: of the
//! pages that the hash could be in, one for each depth, the deepest that is there is the one.
//!
//! # Invariants
//!
//! - N1: Of the pages on the way to a hash the deepest that exists holds it: a split makes both
//!   halves before the next transaction looks.
//! - N2: `anode.entries` counts the names, `anode.pages` the pages, and `anode.depth` is the depth
//!   of the deepest page.
//! - N3: Two pages that split from each other, one of them empty, are joined by the removal that
//!   emptied it, so a directory shrinks as it is emptied.
//! - N4: The pointer to a page that has split says how deep the page is and where the page is that
//!   split off last, if that one is still there ([`SplitHint`]).
//!
//! # Concurrency
//!
//! The caller holds the lock of the directory's vnode.

mod ahead;

pub(crate) use ahead::pages_from;

use std::ops::Range;

use format::anode::{Anode, AnodeKind};
use format::defect::DefectCode;
use format::directory::{
    self as page, COLLISIONS_MAX, DEPTH_MAX, Gap, NewDirent, cookie_of, hash_in, hash_of,
    next_prefix, page_number,
};
use format::ids::{AnodeNo, Generation, Place};
use format::page::{PAGE_BYTES, PageBytes, PageKind};
use format::pointer::{BlockPointer, SplitHint};
use runtime::planted::{self, Planted};

use crate::buffer::corrupt;
use crate::container::{content_owner, no_page};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store, View};

/// Most splits of a page for one name: a second is needed once in thousands, and a fifth never but
/// for names that were chosen to meet. Far fewer pages than a change reserves room for.
const SPLITS_MAX: usize = 4;
/// Most pages that one removal joins.
const MERGES_MAX: usize = 4;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) anode: AnodeNo,
    pub(crate) generation: Generation,
    pub(crate) kind: AnodeKind,
}

/// Where a name was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) target: Target,
    /// Page of the directory, and offset in it.
    at: PageAt,
    offset: usize,
    cookie: u64,
}

/// Where a new name goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    hash: u64,
    /// The page that holds its hash; `None`: the directory has no pages.
    at: Option<PageAt>,
    /// The free entry of the page that has room for it, and its collision number.
    room: Option<(Gap, u64)>,
}

/// One name, copied out of its page.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) cookie: u64,
    pub(crate) target: Target,
    pub(crate) name: Vec<u8>,
}

/// A page of a directory: its number, and where it is.
#[derive(Clone, Copy, Debug)]
struct PageAt {
    number: u64,
    place: Place,
}

/// Returns the page that holds `hash`, and its bytes; `None` if the directory has no pages.
///
/// The number of pages tells how deep most of them are, so the first look is nearly always right:
/// the page itself says which hashes it holds. Where it split once more, its pointer tells (N4) and
/// leads to the other half, with no further walk of the map. Where it holds other hashes still, the
/// page that split off it towards this hash is asked next; where there is none so deep, the next
/// shallower one.
fn page_of_hash<'a>(
    store: &Store,
    change: Option<&'a Change<'_>>,
    anode: &Anode,
    hash: u64,
) -> FsResult<Option<(PageAt, View<'a>)>> {
    if anode.pages == 0 {
        return Ok(None);
    }
    let mut depth = usual_depth(anode);
    // A damaged directory may send the search to and fro: it looks at most once at each depth, on
    // the way up and on the way down.
    for _ in 0..2 * DEPTH_MAX {
        let number = page_number(hash, depth);
        let Some(pointer) = store.block(change, anode, number)? else {
            // All depths with this number are holes.
            match (0..depth).rev().find(|shallower| page_number(hash, *shallower) != number) {
                Some(shallower) => depth = shallower,
                None => break,
            }
            continue;
        };
        // A hint that went home without the page it tells of is no reason to fail.
        let hinted = hinted_sibling(&pointer, number, hash).and_then(|(deeper, at)| {
            let view = view_at(store, change, anode, at).ok()?;
            Some((deeper, at, view))
        });
        let (at, view);
        (depth, at, view) = match hinted {
            Some(sibling) => sibling,
            None => {
                let at = PageAt { number, place: pointer.place };
                (depth, at, view_at(store, change, anode, at)?)
            }
        };
        let found = page::depth(&view[..]);
        // N1: the page holds this hash, or the hash went another way when the page split.
        match (depth + 1..=found).find(|deeper| page_number(hash, *deeper) != at.number) {
            None => return Ok(Some((at, view))),
            Some(deeper) => depth = deeper,
        }
    }
    Err(corrupt(DefectCode::DR008.found(format!("{} has no page for a hash", anode.number))))
}

/// Returns the page that split off page `number` last, and at which depth, if `hash` went there
/// with it and no other way before.
fn hinted_sibling(pointer: &BlockPointer, number: u64, hash: u64) -> Option<(u8, PageAt)> {
    let hint = pointer.split_hint().filter(|hint| hint.depth <= DEPTH_MAX)?;
    let sibling = PageAt { number: page_number(hash, hint.depth), place: hint.sibling? };
    let is_towards = page_number(hash, hint.depth - 1) == number && sibling.number != number;
    is_towards.then_some((hint.depth, sibling))
}

/// Notes in the pointer to page `number` how deep the page is now, and where the page is that split
/// off it last (N4).
fn set_hint(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    number: u64,
    hint: SplitHint,
) -> FsResult<()> {
    let pointer = store.block(Some(change), anode, number)?;
    let pointer = pointer.ok_or_else(|| no_page(anode, number))?;
    // It leads where it led, so nothing is freed.
    store.set_block(change, anode, number, Some(&pointer.with_split_hint(Some(hint))))?;
    Ok(())
}

fn view_at<'a>(
    store: &Store,
    change: Option<&'a Change<'_>>,
    anode: &Anode,
    at: PageAt,
) -> FsResult<View<'a>> {
    store.view(change, at.place, PageKind::Directory, content_owner(anode, at.number))
}

fn edit_at<'c>(
    change: &'c mut Change<'_>,
    anode: &Anode,
    at: PageAt,
) -> FsResult<&'c mut PageBytes> {
    change.edit(at.place, PageKind::Directory, content_owner(anode, at.number))
}

fn edit_range_at<'c>(
    change: &'c mut Change<'_>,
    anode: &Anode,
    at: PageAt,
    range: Range<usize>,
) -> FsResult<&'c mut [u8]> {
    let owner = content_owner(anode, at.number);
    change.edit_range(at.place, PageKind::Directory, owner, range)
}

/// Returns how deep most pages of a directory are that has some.
fn usual_depth(anode: &Anode) -> u8 {
    let usual = u8::try_from(anode.pages.max(1).ilog2()).unwrap_or(DEPTH_MAX);
    usual.min(deepest(anode))
}

fn deepest(anode: &Anode) -> u8 {
    anode.depth.min(DEPTH_MAX)
}

/// Finds `name` in the directory.
pub(crate) fn find(
    store: &Store,
    change: Option<&Change<'_>>,
    anode: &Anode,
    name: &[u8],
) -> FsResult<Option<Found>> {
    let hash = hash_of(anode.key, name);
    let Some((at, view)) = page_of_hash(store, change, anode, hash)? else { return Ok(None) };
    Ok(page::find(&view[..], hash, name).map(|dirent| Found {
        target: Target { anode: dirent.anode, generation: dirent.generation, kind: dirent.kind },
        at,
        offset: dirent.offset,
        cookie: dirent.cookie,
    }))
}

/// Returns where `name` goes in the directory; `None` if it is there. Good as long as the directory
/// does not change.
pub(crate) fn spot_for(store: &Store, anode: &Anode, name: &[u8]) -> FsResult<Option<Spot>> {
    spot_in(store, None, anode, name)
}

fn spot_in(
    store: &Store,
    change: Option<&Change<'_>>,
    anode: &Anode,
    name: &[u8],
) -> FsResult<Option<Spot>> {
    let hash = hash_of(anode.key, name);
    let Some((at, view)) = page_of_hash(store, change, anode, hash)? else {
        return Ok(Some(Spot { hash, at: None, room: None }));
    };
    let looked = page::look(&view[..], hash, name);
    let spot = Spot { hash, at: Some(at), room: looked.gap.zip(looked.collision) };
    Ok(looked.found.is_none().then_some(spot))
}

/// Adds a name that is not there. The caller writes the directory's anode.
pub(crate) fn insert(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    name: &[u8],
    target: Target,
) -> FsResult<()> {
    let spot = spot_in(store, Some(change), anode, name)?;
    let spot =
        spot.ok_or_else(|| corrupt(DefectCode::DR009.found("a name that is new is there")))?;
    insert_at(store, change, anode, &spot, name, target)
}

/// Adds a name at the spot for it. The caller writes the directory's anode.
pub(crate) fn insert_at(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    spot: &Spot,
    name: &[u8],
    target: Target,
) -> FsResult<()> {
    let Spot { hash, at: mut page, room } = *spot;
    let entries = anode.entries.checked_add(1).ok_or(FsError::NoSpace)?;
    if let Some(group) = store.alloc.home_group(anode.number) {
        change.near = store.geometry().descriptor_place(group);
    }
    if anode.pages == 0 {
        let bytes = store.add_content(change, anode, 0, PageKind::Directory)?;
        page::initialise(&mut bytes[..], 0);
        anode.depth = 0;
        anode.size_bytes = wide(PAGE_BYTES);
    }
    if let (Some(at), Some((gap, collision))) = (page, room) {
        let new = dirent_of(cookie_of(hash, collision), name, target);
        insert_in_gap(change, anode, at, gap, &new)?;
        anode.entries = entries;
        return Ok(());
    }
    // A split halves a page; a page that keeps all names of one prefix is split again.
    for _ in 0..=SPLITS_MAX {
        let at = match page.take() {
            Some(at) => at,
            None => {
                let found = page_of_hash(store, Some(change), anode, hash)?;
                found.ok_or_else(|| no_page(anode, 0))?.0
            }
        };
        let bytes = edit_at(change, anode, at)?;
        if page::has_room(&bytes[..], name.len()) {
            insert_in_page(&mut bytes[..], hash, name, target)?;
            anode.entries = entries;
            return Ok(());
        }
        split(store, change, anode, at, hash)?;
    }
    Err(FsError::NoSpace)
}

/// Adds a name to a page that has a free entry for it: little of the page is copied.
fn insert_in_gap(
    change: &mut Change<'_>,
    anode: &Anode,
    at: PageAt,
    gap: Gap,
    new: &NewDirent<'_>,
) -> FsResult<()> {
    let bytes = edit_range_at(change, anode, at, gap.range_for(new.name.len()))?;
    page::put(bytes, gap, new);
    let counts = edit_range_at(change, anode, at, page::COUNTS)?;
    page::add_to_counts(counts, page::entry_bytes(new.name.len()));
    Ok(())
}

fn insert_in_page(bytes: &mut [u8], hash: u64, name: &[u8], target: Target) -> FsResult<()> {
    let collision = page::look(bytes, hash, name).collision.ok_or(FsError::NoSpace)?;
    debug_assert!(collision < COLLISIONS_MAX);
    let new = dirent_of(cookie_of(hash, collision), name, target);
    if page::insert(bytes, &new).is_none() {
        page::compact(bytes);
        page::insert(bytes, &new).expect("has_room said that it fits");
    }
    Ok(())
}

fn dirent_of(cookie: u64, name: &[u8], target: Target) -> NewDirent<'_> {
    NewDirent {
        cookie,
        anode: target.anode,
        generation: target.generation,
        kind: target.kind,
        name,
    }
}

/// Splits a page: names whose next bit of the hash is set go to a new page.
fn split(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    at: PageAt,
    hash: u64,
) -> FsResult<()> {
    let number = at.number;
    let old = view_at(store, Some(change), anode, at)?.to_vec();
    let depth = page::depth(&old);
    if depth >= DEPTH_MAX || page_number(hash, depth) != number {
        return Err(corrupt(
            DefectCode::DR008.found(format!("depth {depth} of page {number} can't be so")),
        ));
    }
    let sibling = number + (1 << depth);
    let keeps =
        |dirent: &page::Dirent<'_>| page_number(hash_in(dirent.cookie), depth + 1) == number;
    let new = store.add_content(change, anode, sibling, PageKind::Directory)?;
    page::initialise(&mut new[..], depth + 1);
    for dirent in page::dirents(&old).filter(|dirent| !keeps(dirent)) {
        page::copy_entry(&mut new[..], &dirent);
    }
    let pointer = store.block(Some(change), anode, sibling)?;
    let place = pointer.map(|pointer| pointer.place);
    set_hint(store, change, anode, number, SplitHint { depth: depth + 1, sibling: place })?;
    let kept = edit_at(change, anode, at)?;
    page::initialise(&mut kept[..], depth + 1);
    for dirent in page::dirents(&old).filter(keeps) {
        page::copy_entry(&mut kept[..], &dirent);
    }
    anode.depth = anode.depth.max(depth + 1);
    anode.size_bytes = size_of_pages(anode);
    // The sibling goes home first, because it is new. The page that it left, and what leads to it,
    // go home together: else a crash that loses the log too loses the names that moved.
    let path = store.map_path(change, anode, sibling)?;
    if change.moves_on_path(anode.number, at.place, &path) { Ok(()) } else { Err(FsError::NoSpace) }
}

fn size_of_pages(anode: &Anode) -> u64 {
    anode.pages.saturating_mul(wide(PAGE_BYTES)).min(i64::MAX.unsigned_abs())
}

impl Found {
    /// Where the page of the name is.
    pub(crate) fn place(&self) -> Place {
        self.at.place
    }

    /// Returns the name where its page is now: a copy of the page changes nothing but its place
    /// (US6), and leaves the version of the directory as it was.
    pub(crate) fn again(self, store: &Store, anode: &Anode) -> FsResult<Found> {
        if planted::is(Planted::FoundPlaceKept) {
            return Ok(self);
        }
        let pointer = store.block(None, anode, self.at.number)?;
        let place = pointer.ok_or_else(|| no_page(anode, self.at.number))?.place;
        Ok(Found { at: PageAt { place, ..self.at }, ..self })
    }
}

/// Removes a name that was found in this very change. The caller writes the directory's anode.
pub(crate) fn remove(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    found: &Found,
) -> FsResult<()> {
    let view = view_at(store, Some(change), anode, found.at)?;
    let removal = page::removal(&view[..], found.offset, found.cookie);
    drop(view);
    let removal = removal.ok_or_else(|| {
        corrupt(DefectCode::DR002.found("the entry of a name that was found is free"))
    })?;
    page::put_gap(edit_range_at(change, anode, found.at, removal.head())?, removal.gap);
    let counts = edit_range_at(change, anode, found.at, page::COUNTS)?;
    let is_empty = page::subtract_from_counts(counts, removal.entry_bytes) == 0;
    anode.entries = anode.entries.checked_sub(1).ok_or_else(|| {
        corrupt(DefectCode::DR013.found("a directory counts fewer names than it has"))
    })?;
    let mut at = found.at;
    for _ in 0..MERGES_MAX {
        if !is_empty {
            break;
        }
        match merge(store, change, anode, at)? {
            Some(joined) => at = joined,
            None => break,
        }
    }
    Ok(())
}

/// Joins a page with the one that it split from, or that split from it, if one of the two is empty
/// and neither has split again: the lower number keeps all names, the upper page is given up.
fn merge(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    at: PageAt,
) -> FsResult<Option<PageAt>> {
    let depth = page::depth(&view_at(store, Some(change), anode, at)?[..]);
    if depth == 0 {
        return Ok(None);
    }
    let bit = 1 << (depth - 1);
    let find = |change: &Change<'_>, number: u64| -> FsResult<Option<PageAt>> {
        let pointer = store.block(Some(change), anode, number)?;
        Ok(pointer.map(|pointer| PageAt { number, place: pointer.place }))
    };
    let (lower, upper) = (find(change, at.number & !bit)?, find(change, at.number | bit)?);
    let (Some(lower), Some(upper)) = (lower, upper) else { return Ok(None) };
    let kept = view_at(store, Some(change), anode, lower)?.to_vec();
    let gone = view_at(store, Some(change), anode, upper)?.to_vec();
    let is_split_again = page::depth(&kept) != depth || page::depth(&gone) != depth;
    if is_split_again || (page::count(&kept) > 0 && page::count(&gone) > 0) {
        return Ok(None);
    }
    // As in a split. An empty page that stays costs a page.
    let mut path = store.map_path(change, anode, upper.number)?;
    path.push(lower.place);
    if !change.moves_on_path(anode.number, upper.place, &path) {
        return Ok(None);
    }
    let bytes = edit_at(change, anode, lower)?;
    if page::count(&gone) > 0 && !planted::is(Planted::JoinedPagesLoseNames) {
        page::initialise(&mut bytes[..], depth - 1);
        for dirent in page::dirents(&gone) {
            page::copy_entry(&mut bytes[..], &dirent);
        }
    }
    page::set_depth(&mut bytes[..], depth - 1);
    store.remove_content(change, anode, upper.number, PageKind::Directory)?;
    let hint = SplitHint { depth: depth - 1, sibling: None };
    set_hint(store, change, anode, lower.number, hint)?;
    anode.size_bytes = size_of_pages(anode);
    Ok(Some(lower))
}

/// Makes a name that was found in this very change lead elsewhere.
pub(crate) fn retarget(
    change: &mut Change<'_>,
    anode: &Anode,
    found: &Found,
    target: Target,
) -> FsResult<()> {
    let head = edit_range_at(change, anode, found.at, page::head_at(found.offset))?;
    page::retarget(head, target.anode, target.generation, target.kind);
    Ok(())
}

/// Returns the names of the first page that has any with a cookie above `cookie`, in order of
/// cookies; empty at the end.
pub(crate) fn list_after(store: &Store, anode: &Anode, cookie: u64) -> FsResult<Vec<Listed>> {
    // The hash of the last name seen: others with the same hash may follow it.
    let mut hash = hash_in(cookie).max(1);
    loop {
        let Some((_, view)) = page_of_hash(store, None, anode, hash)? else {
            return Ok(Vec::new());
        };
        let mut listed: Vec<Listed> = page::dirents(&view[..])
            .filter(|dirent| dirent.cookie > cookie)
            .skip(usize::from(cookie > 2 && planted::is(Planted::CookieStale)))
            .map(|dirent| Listed {
                cookie: dirent.cookie,
                target: Target {
                    anode: dirent.anode,
                    generation: dirent.generation,
                    kind: dirent.kind,
                },
                name: dirent.name.to_vec(),
            })
            .collect();
        if !listed.is_empty() {
            listed.sort_unstable_by_key(|entry| entry.cookie);
            return Ok(listed);
        }
        let skipped = u8::from(planted::is(Planted::ReaddirSkipsSplitPage));
        match next_prefix(hash, page::depth(&view[..]).saturating_sub(skipped)) {
            Some(next) => hash = next,
            None => return Ok(Vec::new()),
        }
    }
}

/// Returns the name that leads to `child`; `None` if none does.
pub(crate) fn name_of(store: &Store, anode: &Anode, child: AnodeNo) -> FsResult<Option<Vec<u8>>> {
    let mut hash = 1;
    while let Some((_, view)) = page_of_hash(store, None, anode, hash)? {
        if let Some(dirent) = page::dirents(&view[..]).find(|dirent| dirent.anode == child) {
            return Ok(Some(dirent.name.to_vec()));
        }
        match next_prefix(hash, page::depth(&view[..])) {
            Some(next) => hash = next,
            None => break,
        }
    }
    Ok(None)
}
