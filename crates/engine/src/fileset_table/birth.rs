//! The first pages of a fileset: root directory, anode map, orphan list.

use format::anode::{
    ANODE_MAP_ANODE, Anode, AnodeKind, DiskTime, FIRST_FILE_ANODE, ORPHAN_ANODE, ROOT_ANODE,
    StorageMode, page_and_slot,
};
use format::bitmap;
use format::fileset::Fileset;
use format::ids::{AnodeNo, Epoch, FilesetId, Generation};
use format::page::PageKind;
use format::placement::Placement;

use super::slot_range;
use crate::container::{content_owner, no_page};
use crate::convert::narrow;
use crate::error::FsResult;
use crate::store::{Change, Store};

#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRoot {
    pub(crate) owner: (u32, u32),
    /// Key of the directory's hash function.
    pub(crate) key: [u64; 2],
    pub(crate) created: DiskTime,
    /// Placement inherited by files created in it.
    pub(crate) placement: Placement,
}

pub(crate) const FIRST_ANODES: u64 = 3;

/// Returns the anode of an internal container of the fileset, born in `epoch`.
pub(crate) fn internal(number: AnodeNo, family: FilesetId, epoch: Epoch) -> Anode {
    let mut anode = Anode::new(AnodeKind::Internal, number, family, 12);
    anode.storage = StorageMode::Blocked;
    anode.generation = Generation(epoch.0);
    anode.birth = epoch;
    anode
}

pub(crate) fn root_directory(family: FilesetId, root: &NewRoot, epoch: Epoch) -> Anode {
    let mut anode = Anode::new(AnodeKind::Directory, ROOT_ANODE, family, 12);
    anode.storage = StorageMode::Blocked;
    anode.generation = Generation(epoch.0);
    anode.birth = epoch;
    anode.mode = 0o755;
    anode.nlink = 2;
    (anode.uid, anode.gid) = root.owner;
    anode.parent = ROOT_ANODE;
    anode.key = root.key;
    anode.placement = root.placement;
    (anode.atime, anode.mtime, anode.ctime, anode.btime) =
        (root.created, root.created, root.created, root.created);
    anode
}

pub(crate) fn make_first_pages(
    store: &Store,
    change: &mut Change<'_>,
    entry: &mut Fileset,
    root: &NewRoot,
) -> FsResult<()> {
    let (epoch, family) = (change.epoch(), entry.family);
    let mut map = internal(ANODE_MAP_ANODE, family, epoch);
    let bits = store.add_content(change, &mut map, 0, PageKind::AnodeMap)?;
    (0..narrow(FIRST_FILE_ANODE.0)).for_each(|bit| bitmap::set(bits, bit, true));
    let mut table = entry.table_anode();
    store.add_content(change, &mut table, 0, PageKind::Anode)?;
    let anodes = [root_directory(family, root, epoch), map, internal(ORPHAN_ANODE, family, epoch)];
    let place = store.block(Some(change), &table, 0)?.ok_or_else(|| no_page(&table, 0))?.place;
    for anode in anodes {
        let (_, slot) = page_and_slot(anode.number);
        let owner = content_owner(&table, 0);
        let bytes = change.edit_range(place, PageKind::Anode, owner, slot_range(slot))?;
        entry.fragments += anode.fragments;
        bytes.copy_from_slice(&anode.encode());
    }
    entry.set_table_anode(&table);
    entry.fragments += table.fragments;
    entry.anodes_used = FIRST_ANODES;
    entry.anodes_end = FIRST_FILE_ANODE.0;
    change.count_anodes(i64::try_from(FIRST_ANODES).expect("a handful"));
    Ok(())
}
