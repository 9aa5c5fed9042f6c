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
//! - N2: `anode.entries` counts the names, `anode.pages` the pages, and `anode.rdev` is the depth
//!   of the deepest page.
//!
//! # Concurrency
//!
//! The caller holds the lock of the directory's vnode.

use format::anode::{Anode, AnodeKind};
use format::directory::{
    self as page, COLLISIONS_MAX, DEPTH_MAX, NewDirent, cookie_of, hash_in, hash_of, next_prefix,
    page_number,
};
use format::ids::{AnodeNo, Generation};
use format::page::{PAGE_BYTES, PageKind};

use crate::buffer::corrupt;
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store};

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
    pub(crate) number: u64,
    pub(crate) offset: usize,
}

/// One name, copied out of its page.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) cookie: u64,
    pub(crate) target: Target,
    pub(crate) name: Vec<u8>,
}

/// Returns the number of the page that holds `hash`; `None` if the directory has no pages.
fn page_of_hash(
    store: &Store,
    change: Option<&Change<'_>>,
    anode: &Anode,
    hash: u64,
) -> FsResult<Option<u64>> {
    if anode.pages == 0 {
        return Ok(None);
    }
    let mut last = None;
    for depth in (0..=deepest(anode)).rev() {
        let number = page_number(hash, depth);
        if last == Some(number) {
            continue;
        }
        last = Some(number);
        if store.block(change, anode, number)?.is_some() {
            return Ok(Some(number));
        }
    }
    Err(corrupt(format!("DR007: directory {} has no page for a hash", anode.number)))
}

fn deepest(anode: &Anode) -> u8 {
    u8::try_from(anode.rdev).map_or(DEPTH_MAX, |depth| depth.min(DEPTH_MAX))
}

/// Finds `name` in the directory.
pub(crate) fn find(
    store: &Store,
    change: Option<&Change<'_>>,
    anode: &Anode,
    name: &[u8],
) -> FsResult<Option<Found>> {
    let hash = hash_of(anode.key, name);
    let Some(number) = page_of_hash(store, change, anode, hash)? else { return Ok(None) };
    let Some(view) = store.content(change, anode, number, PageKind::Directory)? else {
        return Ok(None);
    };
    Ok(page::find(&view[..], hash, name).map(|dirent| Found {
        target: Target { anode: dirent.anode, generation: dirent.generation, kind: dirent.kind },
        number,
        offset: dirent.offset,
    }))
}

/// Adds a name that is not there. The caller writes the directory's anode.
pub(crate) fn insert(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    name: &[u8],
    target: Target,
) -> FsResult<()> {
    let hash = hash_of(anode.key, name);
    if anode.pages == 0 {
        let bytes = store.add_content(change, anode, 0, PageKind::Directory)?;
        page::initialise(&mut bytes[..], 0);
        anode.rdev = 0;
        anode.size_bytes = wide(PAGE_BYTES);
    }
    // A split halves a page; a page that keeps all names of one prefix is split again.
    for _ in 0..=DEPTH_MAX {
        let number = page_of_hash(store, Some(change), anode, hash)?
            .ok_or_else(|| corrupt("DR007: a directory with pages has none"))?;
        let bytes = store
            .edit_content(change, anode, number, PageKind::Directory)?
            .ok_or_else(|| corrupt("DR007: a page of a directory vanished"))?;
        if page::has_room(&bytes[..], name.len()) {
            insert_in_page(&mut bytes[..], hash, name, target)?;
            anode.entries += 1;
            return Ok(());
        }
        split(store, change, anode, number, hash)?;
    }
    Err(FsError::NoSpace)
}

fn insert_in_page(bytes: &mut [u8], hash: u64, name: &[u8], target: Target) -> FsResult<()> {
    let collision = page::free_collision(bytes, hash).ok_or(FsError::NoSpace)?;
    debug_assert!(collision < COLLISIONS_MAX);
    let new = NewDirent {
        cookie: cookie_of(hash, collision),
        anode: target.anode,
        generation: target.generation,
        kind: target.kind,
        name,
    };
    if page::insert(bytes, &new).is_none() {
        page::compact(bytes);
        page::insert(bytes, &new).expect("has_room said that it fits");
    }
    Ok(())
}

/// Splits page `number`: names whose next bit of the hash is set go to a new page.
fn split(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    number: u64,
    hash: u64,
) -> FsResult<()> {
    let old = {
        let view = store.content(Some(change), anode, number, PageKind::Directory)?;
        view.ok_or_else(|| corrupt("DR007: a page of a directory vanished"))?.to_vec()
    };
    let depth = page::depth(&old);
    if depth >= DEPTH_MAX || page_number(hash, depth) != number {
        return Err(corrupt(format!("DR008: depth {depth} of page {number} can't be so")));
    }
    let sibling = number + (1 << depth);
    let keeps =
        |dirent: &page::Dirent<'_>| page_number(hash_in(dirent.cookie), depth + 1) == number;
    let new = store.add_content(change, anode, sibling, PageKind::Directory)?;
    page::initialise(&mut new[..], depth + 1);
    for dirent in page::dirents(&old).filter(|dirent| !keeps(dirent)) {
        page::copy_entry(&mut new[..], &dirent);
    }
    let kept = store
        .edit_content(change, anode, number, PageKind::Directory)?
        .ok_or_else(|| corrupt("DR007: a page of a directory vanished"))?;
    page::initialise(&mut kept[..], depth + 1);
    for dirent in page::dirents(&old).filter(keeps) {
        page::copy_entry(&mut kept[..], &dirent);
    }
    anode.rdev = anode.rdev.max(u32::from(depth) + 1);
    anode.size_bytes = anode.pages * wide(PAGE_BYTES);
    Ok(())
}

/// Removes a name that was found in this very change. The caller writes the directory's anode.
pub(crate) fn remove(
    store: &Store,
    change: &mut Change<'_>,
    anode: &mut Anode,
    found: &Found,
) -> FsResult<()> {
    let bytes = store
        .edit_content(change, anode, found.number, PageKind::Directory)?
        .ok_or_else(|| corrupt("DR007: a page of a directory vanished"))?;
    page::remove(&mut bytes[..], found.offset);
    anode.entries = anode
        .entries
        .checked_sub(1)
        .ok_or_else(|| corrupt("DR009: a directory counts fewer names than it has"))?;
    Ok(())
}

/// Makes a name that was found in this very change lead elsewhere.
pub(crate) fn retarget(
    store: &Store,
    change: &mut Change<'_>,
    anode: &Anode,
    found: &Found,
    target: Target,
) -> FsResult<()> {
    let bytes = store
        .edit_content(change, anode, found.number, PageKind::Directory)?
        .ok_or_else(|| corrupt("DR007: a page of a directory vanished"))?;
    page::retarget(&mut bytes[..], found.offset, target.anode, target.generation, target.kind);
    Ok(())
}

/// Returns the names of the first page that has any with a cookie above `cookie`, in order of
/// cookies; empty at the end.
pub(crate) fn list_after(store: &Store, anode: &Anode, cookie: u64) -> FsResult<Vec<Listed>> {
    // The hash of the last name seen: others with the same hash may follow it.
    let mut hash = hash_in(cookie).max(1);
    loop {
        let Some(number) = page_of_hash(store, None, anode, hash)? else { return Ok(Vec::new()) };
        let view = store
            .content(None, anode, number, PageKind::Directory)?
            .ok_or_else(|| corrupt("DR007: a page of a directory vanished"))?;
        let mut listed: Vec<Listed> = page::dirents(&view[..])
            .filter(|dirent| dirent.cookie > cookie)
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
        match next_prefix(hash, page::depth(&view[..])) {
            Some(next) => hash = next,
            None => return Ok(Vec::new()),
        }
    }
}
