//! Directories: map names to anodes, in hashed pages.
//!
//! # Layout
//!
//! See [`format::directory`]. A hash has one possible page at each depth. The deepest of these
//! pages in the container's map holds it.
//!
//! # Invariants
//!
//! - N1: The deepest existing page on the way to a hash holds it: one transaction creates both
//!   halves of a split.
//! - N2: `anode.entries` counts the names, `anode.pages` the pages, and `anode.depth` is the depth
//!   of the deepest page.
//! - N3: If a removal empties one half of a split, the same transaction joins the halves. So a
//!   directory shrinks as it is emptied.
//! - N4: The pointer to a page that has split holds the page's depth and the place of the page that
//!   split off last, if that page still exists ([`SplitHint`]).
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
use runtime::planted;

use crate::buffer::corrupt;
use crate::container::{content_owner, no_page};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::store::{Change, PageView, Store};

/// Most splits for one name. A second is needed once in thousands, a fifth only for colliding
/// names.
const SPLITS_MAX: usize = 4;
const MERGES_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirentTarget {
    pub(crate) anode: AnodeNo,
    pub(crate) generation: Generation,
    pub(crate) kind: AnodeKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DirentLookup {
    pub(crate) target: DirentTarget,
    at: DirectoryPageLocation,
    offset: usize,
    cookie: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DirentInsertPoint {
    hash: u64,
    at: Option<DirectoryPageLocation>,
    room: Option<(Gap, u64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct ListedDirent {
    pub(crate) cookie: u64,
    pub(crate) target: DirentTarget,
    pub(crate) name: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct DirectoryPageLocation {
    number: u64,
    place: Place,
}

/// Returns the page that holds `hash`; `None` if the directory has no pages. Begins at the usual
/// depth, where the search nearly always ends. Each page has its own depth, and a hint in its
/// pointer leads to the other half of a later split (N4).
fn page_of_hash<'a>(
    store: &Store,
    change: Option<&'a Change<'_>>,
    anode: &Anode,
    hash: u64,
) -> FsResult<Option<(DirectoryPageLocation, PageView<'a>)>> {
    if anode.pages == 0 {
        return Ok(None);
    }
    let mut depth = usual_depth(anode);
    // Bounds the search in a damaged directory: each depth on the way up and down.
    for _ in 0..2 * DEPTH_MAX {
        let number = page_number(hash, depth);
        let Some(pointer) = store.block(change, anode, number)? else {
            match (0..depth).rev().find(|shallower| page_number(hash, *shallower) != number) {
                Some(shallower) => depth = shallower,
                None => break,
            }
            continue;
        };
        // Ignore a hint to an unreadable page: it may be on disk without that page.
        let hinted = hinted_sibling(&pointer, number, hash).and_then(|(deeper, at)| {
            let view = view_at(store, change, anode, at).ok()?;
            Some((deeper, at, view))
        });
        let (at, view);
        (depth, at, view) = match hinted {
            Some(sibling) => sibling,
            None => {
                let at = DirectoryPageLocation { number, place: pointer.place };
                (depth, at, view_at(store, change, anode, at)?)
            }
        };
        let found = page::depth(&view[..]);
        // The page holds this hash (N1), unless the hash moved to another page in a split.
        match (depth + 1..=found).find(|deeper| page_number(hash, *deeper) != at.number) {
            None => return Ok(Some((at, view))),
            Some(deeper) => depth = deeper,
        }
    }
    Err(corrupt(DefectCode::DR008.found(format!("{} has no page for a hash", anode.number))))
}

/// Returns the page that split off page `number` last, if `hash` belongs there.
fn hinted_sibling(
    pointer: &BlockPointer,
    number: u64,
    hash: u64,
) -> Option<(u8, DirectoryPageLocation)> {
    let hint = pointer.split_hint().filter(|hint| hint.depth <= DEPTH_MAX)?;
    let sibling =
        DirectoryPageLocation { number: page_number(hash, hint.depth), place: hint.sibling? };
    let is_towards = page_number(hash, hint.depth - 1) == number && sibling.number != number;
    is_towards.then_some((hint.depth, sibling))
}

/// Records in a page's pointer its depth and the page that split off it last (N4).
fn set_hint(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    number: u64,
    hint: SplitHint,
) -> FsResult<()> {
    let pointer = store.block(Some(change), anode, number)?;
    let pointer = pointer.ok_or_else(|| no_page(anode, number))?;
    store.set_block(change, anode, number, Some(&pointer.with_split_hint(Some(hint))))?;
    Ok(())
}

fn view_at<'a>(
    store: &Store,
    change: Option<&'a Change<'_>>,
    anode: &Anode,
    at: DirectoryPageLocation,
) -> FsResult<PageView<'a>> {
    store.view(change, at.place, PageKind::Directory, content_owner(anode, at.number))
}

fn edit_at<'c>(
    change: &'c mut Change<'_>,
    anode: &Anode,
    at: DirectoryPageLocation,
) -> FsResult<&'c mut PageBytes> {
    change.edit(at.place, PageKind::Directory, content_owner(anode, at.number))
}

fn edit_range_at<'c>(
    change: &'c mut Change<'_>,
    anode: &Anode,
    at: DirectoryPageLocation,
    range: Range<usize>,
) -> FsResult<&'c mut [u8]> {
    let owner = content_owner(anode, at.number);
    change.edit_range(at.place, PageKind::Directory, owner, range)
}

fn usual_depth(anode: &Anode) -> u8 {
    let usual = u8::try_from(anode.pages.max(1).ilog2()).unwrap_or(DEPTH_MAX);
    usual.min(deepest(anode))
}

fn deepest(anode: &Anode) -> u8 {
    anode.depth.min(DEPTH_MAX)
}

pub(crate) fn find(
    store: &Store,
    change: Option<&Change<'_>>,
    anode: &Anode,
    name: &[u8],
) -> FsResult<Option<DirentLookup>> {
    let hash = hash_of(anode.key, name);
    let Some((at, view)) = page_of_hash(store, change, anode, hash)? else { return Ok(None) };
    Ok(page::find(&view[..], hash, name).map(|dirent| DirentLookup {
        target: DirentTarget {
            anode: dirent.anode,
            generation: dirent.generation,
            kind: dirent.kind,
        },
        at,
        offset: dirent.offset,
        cookie: dirent.cookie,
    }))
}

/// Returns the position for a new name; `None` if the name exists. Valid until the directory
/// changes.
pub(crate) fn spot_for(
    store: &Store,
    anode: &Anode,
    name: &[u8],
) -> FsResult<Option<DirentInsertPoint>> {
    spot_in(store, None, anode, name)
}

fn spot_in(
    store: &Store,
    change: Option<&Change<'_>>,
    anode: &Anode,
    name: &[u8],
) -> FsResult<Option<DirentInsertPoint>> {
    let hash = hash_of(anode.key, name);
    let Some((at, view)) = page_of_hash(store, change, anode, hash)? else {
        return Ok(Some(DirentInsertPoint { hash, at: None, room: None }));
    };
    let looked = page::look(&view[..], hash, name);
    let spot = DirentInsertPoint { hash, at: Some(at), room: looked.gap.zip(looked.collision) };
    Ok(looked.found.is_none().then_some(spot))
}

/// Adds a name that does not exist. The caller writes the directory's anode.
pub(crate) fn insert(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    name: &[u8],
    target: DirentTarget,
) -> FsResult<()> {
    let spot = spot_in(store, Some(change), anode, name)?;
    let spot =
        spot.ok_or_else(|| corrupt(DefectCode::DR009.found("a name that is new is there")))?;
    insert_at(store, change, anode, &spot, name, target)
}

pub(crate) fn insert_at(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    spot: &DirentInsertPoint,
    name: &[u8],
    target: DirentTarget,
) -> FsResult<()> {
    let DirentInsertPoint { hash, at: mut page, room } = *spot;
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

fn insert_in_gap(
    change: &mut Change<'_>,
    anode: &Anode,
    at: DirectoryPageLocation,
    gap: Gap,
    new: &NewDirent<'_>,
) -> FsResult<()> {
    let bytes = edit_range_at(change, anode, at, gap.range_for(new.name.len()))?;
    page::put(bytes, gap, new);
    let counts = edit_range_at(change, anode, at, page::COUNTS)?;
    page::add_to_counts(counts, page::entry_bytes(new.name.len()));
    Ok(())
}

fn insert_in_page(bytes: &mut [u8], hash: u64, name: &[u8], target: DirentTarget) -> FsResult<()> {
    let collision = page::look(bytes, hash, name).collision.ok_or(FsError::NoSpace)?;
    debug_assert!(collision < COLLISIONS_MAX);
    let new = dirent_of(cookie_of(hash, collision), name, target);
    if page::insert(bytes, &new).is_none() {
        page::compact(bytes);
        page::insert(bytes, &new).expect("has_room said that it fits");
    }
    Ok(())
}

fn dirent_of(cookie: u64, name: &[u8], target: DirentTarget) -> NewDirent<'_> {
    NewDirent {
        cookie,
        anode: target.anode,
        generation: target.generation,
        kind: target.kind,
        name,
    }
}

/// Splits a page: names with the next bit of the hash set move to a new page.
fn split(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    at: DirectoryPageLocation,
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
    // The sibling is new, so it is written back first. The old page and the path to the sibling
    // must be written back together, or a crash that also loses the log would lose the names.
    let path = store.map_path(change, anode, sibling)?;
    if change.moves_on_path(anode.number, at.place, &path) { Ok(()) } else { Err(FsError::NoSpace) }
}

fn size_of_pages(anode: &Anode) -> u64 {
    anode.pages.saturating_mul(wide(PAGE_BYTES)).min(i64::MAX.unsigned_abs())
}

impl DirentLookup {
    pub(crate) fn place(&self) -> Place {
        self.at.place
    }

    /// Updates the place after the page was copied.
    pub(crate) fn again(self, store: &Store, anode: &Anode) -> FsResult<DirentLookup> {
        let pointer = store.block(None, anode, self.at.number)?;
        let place = pointer.ok_or_else(|| no_page(anode, self.at.number))?.place;
        Ok(DirentLookup { at: DirectoryPageLocation { place, ..self.at }, ..self })
    }
}

/// Removes a name found in the same `change`. The caller writes the directory's anode.
pub(crate) fn remove(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    found: &DirentLookup,
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

/// Joins a page with its other half, if one of them is empty and neither has split again. The page
/// with the lower number stays.
fn merge(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    at: DirectoryPageLocation,
) -> FsResult<Option<DirectoryPageLocation>> {
    let depth = page::depth(&view_at(store, Some(change), anode, at)?[..]);
    if depth == 0 {
        return Ok(None);
    }
    let bit = 1 << (depth - 1);
    let find = |change: &Change<'_>, number: u64| -> FsResult<Option<DirectoryPageLocation>> {
        let pointer = store.block(Some(change), anode, number)?;
        Ok(pointer.map(|pointer| DirectoryPageLocation { number, place: pointer.place }))
    };
    let (lower, upper) = (find(change, at.number & !bit)?, find(change, at.number | bit)?);
    let (Some(lower), Some(upper)) = (lower, upper) else { return Ok(None) };
    let kept = view_at(store, Some(change), anode, lower)?.to_vec();
    let gone = view_at(store, Some(change), anode, upper)?.to_vec();
    let is_split_again = page::depth(&kept) != depth || page::depth(&gone) != depth;
    if is_split_again || (page::count(&kept) > 0 && page::count(&gone) > 0) {
        return Ok(None);
    }
    // Content moves, so the pages are written back together (K2). If the reservation does not allow
    // it, the empty page stays.
    let mut path = store.map_path(change, anode, upper.number)?;
    path.push(lower.place);
    if !change.moves_on_path(anode.number, upper.place, &path) {
        return Ok(None);
    }
    let bytes = edit_at(change, anode, lower)?;
    if page::count(&gone) > 0 && !planted!(JoinedPagesLoseNames) {
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

/// Points a name, found in the same `change`, to `target`.
pub(crate) fn retarget(
    change: &mut Change<'_>,
    anode: &Anode,
    found: &DirentLookup,
    target: DirentTarget,
) -> FsResult<()> {
    let head = edit_range_at(change, anode, found.at, page::head_at(found.offset))?;
    page::retarget(head, target.anode, target.generation, target.kind);
    Ok(())
}

/// Returns the names of the first page with cookies above `cookie`, sorted; empty at the end.
pub(crate) fn list_after(store: &Store, anode: &Anode, cookie: u64) -> FsResult<Vec<ListedDirent>> {
    let mut hash = hash_in(cookie).max(1);
    loop {
        let Some((_, view)) = page_of_hash(store, None, anode, hash)? else {
            return Ok(Vec::new());
        };
        let mut listed: Vec<ListedDirent> = page::dirents(&view[..])
            .filter(|dirent| dirent.cookie > cookie)
            .map(|dirent| ListedDirent {
                cookie: dirent.cookie,
                target: DirentTarget {
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
        match next_prefix(hash, page::depth(&view[..])) {
            Some(next) => hash = next,
            None => return Ok(Vec::new()),
        }
    }
}

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
