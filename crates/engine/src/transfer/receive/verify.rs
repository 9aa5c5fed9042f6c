//! Final verification of a received state: names lead to existing files, link counts match,
//! directories form a tree with names on the pages of their hashes, and attribute containers belong
//! to their files. Only the differences from the base are read, since the base is correct.
//!
//! Names and files are compared by sums of keyed hashes over the changes. The key is random and
//! unknown to the sender, so unequal sets have equal sums with probability 2^-64. Memory holds a
//! number per renamed directory, and the pages of one directory or container.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use format::acl::Acl;
use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE, ROOT_ANODE};
use format::attributes::{
    ATTRIBUTE_LIST_BYTES_MAX, AttributeName, AttributeValueLocation, ContainerPages, entries,
    is_value_page,
};
use format::directory::{ALL_HASHES, covered, depth, dirents};
use format::hash::siphash24;
use format::ids::{AnodeNo, Generation};
use format::page::{PageKind, read_u64};
use format::pointer::BlockPointer;

use super::{ReceiveResult, ReceiveState, senseless};
use crate::container::{ContainerVersions, content_owner, is_one_file};
use crate::convert::wide;
use crate::error::FsResult;
use crate::fileset_table::diff::{ChangedAnode, NodeView};

const GENERATION_MASK: u64 = (1 << 48) - 1;
const DEPTH_MAX: usize = 1 << 16;

/// A file as a name leads to it, and for a directory its parent.
#[derive(Clone, Copy)]
struct NamedFile {
    number: AnodeNo,
    generation: u64,
    kind: AnodeKind,
    /// Parent of a directory; 0 for other files.
    parent: AnodeNo,
}

/// Index and depth of the removed and added pages of a directory.
#[derive(Default)]
struct DirectoryPageChanges {
    gone: Vec<(u64, u8)>,
    came: Vec<(u64, u8)>,
}

struct ReceiveVerification<'l> {
    receiving: &'l ReceiveState<'l>,
    before: Option<NodeView>,
    after: NodeView,
    key: [u64; 2],
    /// Keyed sum of the names, minus that of the link counts of files.
    names: u64,
    /// Keyed sum of the subdirectories, minus that of the link counts of directories.
    inside: u64,
    moved: BTreeSet<u64>,
    wrong: Option<String>,
}

impl NamedFile {
    fn of(anode: &Anode) -> NamedFile {
        let is_directory = anode.kind == AnodeKind::Directory;
        NamedFile {
            number: anode.number,
            generation: anode.generation.0 & GENERATION_MASK,
            kind: anode.kind,
            parent: if is_directory { anode.parent } else { AnodeNo(0) },
        }
    }

    fn hash(self, key: [u64; 2], salt: u64) -> u64 {
        let kind = u64::from(self.kind.code());
        let words = [self.number.0, self.generation, kind, self.parent.0, salt];
        siphash24(key, words.map(u64::to_le_bytes).as_flattened())
    }
}

impl ReceiveState<'_> {
    /// Compares all new names with all anodes (RV1). `random` is unknown to the sender.
    pub(super) fn verify(&self, random: &[u8; 32]) -> ReceiveResult<()> {
        self.core.writeback().sync_all()?;
        let after = NodeView::whole(&self.files.fileset.anodes.lock().entry());
        let target = self.core.transfers().check_target(&self.target, &self.begin, self.arrival)?;
        let before = target.base.map(|base| NodeView::of(&base.snapshot));
        let mut look = ReceiveVerification {
            receiving: self,
            before,
            after,
            key: [16, 24].map(|at| read_u64(random, at)),
            names: 0,
            inside: 0,
            moved: BTreeSet::new(),
            wrong: None,
        };
        look.all()?;
        match look.wrong {
            Some(what) => Err(senseless(what)),
            None => Ok(()),
        }
    }
}

impl ReceiveVerification<'_> {
    fn all(&mut self) -> FsResult<()> {
        let (before, after) = (self.before.clone(), self.after.clone());
        let store = &self.receiving.core.store;
        let _ = store.differing_anodes(before.as_ref(), &after, AnodeNo(0), &mut |changed| {
            self.changed(changed)?;
            let goes_on = self.wrong.is_none();
            Ok(if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        if self.wrong.is_some() {
            return Ok(());
        }
        if self.after.anode(store, ROOT_ANODE)?.is_none() {
            self.wrong = Some("it has no root".to_owned());
        } else if self.names != 0 {
            self.wrong = Some("its files count other names than there are".to_owned());
        } else if self.inside != 0 {
            self.wrong =
                Some("its directories count other directories than are in them".to_owned());
        }
        self.no_loops()
    }

    fn count_names(&mut self, named: NamedFile, count: i64) {
        let times = count.cast_unsigned();
        self.names = self.names.wrapping_add(named.hash(self.key, 0).wrapping_mul(times));
    }

    fn count_inside(&mut self, directory: &Anode, count: i64) {
        let times = count.cast_unsigned();
        // Counted without the parent, so that a moved directory needs no recount of its names.
        let named = NamedFile { parent: AnodeNo(0), ..NamedFile::of(directory) };
        let hash = named.hash(self.key, 1);
        self.inside = self.inside.wrapping_add(hash.wrapping_mul(times));
    }

    fn changed(&mut self, changed: &ChangedAnode) -> FsResult<()> {
        let (before, after) = (changed.before.as_ref(), changed.after.as_ref());
        for (anode, sign) in [(before, -1), (after, 1)] {
            let Some(anode) = anode.filter(|it| it.kind != AnodeKind::Internal) else { continue };
            if anode.nlink == 0 {
                // An open unlinked file, which has no name to count.
                continue;
            }
            if anode.kind != AnodeKind::Directory {
                self.count_names(NamedFile::of(anode), -sign * i64::from(anode.nlink));
                continue;
            }
            if anode.number != ROOT_ANODE {
                self.count_names(NamedFile::of(anode), -sign);
            } else if anode.parent != ROOT_ANODE {
                self.wrong = Some("its root is in another directory".to_owned());
            }
            self.count_inside(anode, -sign * (i64::from(anode.nlink) - 2));
        }
        self.containers(before, after)?;
        let is_one = match (before, after) {
            (Some(before), Some(after)) => is_one_file(before, after),
            _ => false,
        };
        if is_one {
            return self.names((before, after));
        }
        self.names((before, None))?;
        self.names((None, after))
    }

    fn containers(&mut self, before: Option<&Anode>, after: Option<&Anode>) -> FsResult<()> {
        let mut is_right = match after {
            None => true,
            Some(after) if after.kind == AnodeKind::Internal => {
                self.names_container(after.parent, after.number)? && self.adds_up(after)?
            }
            Some(after) => {
                let mut is_right = are_lists(after.attributes.iter());
                for number in containers_of(after) {
                    is_right &= self.is_container_of(number, after.number)?;
                }
                is_right
            }
        };
        // If a file and a container no longer refer to each other, both must have changed.
        match before {
            None => {}
            Some(before) if before.kind == AnodeKind::Internal => {
                let of = after.filter(|it| it.kind == AnodeKind::Internal).map(|it| it.parent);
                is_right &= of == Some(before.parent)
                    || !self.names_container(before.parent, before.number)?;
            }
            Some(before) => {
                for number in containers_of(before) {
                    let is_its = after.is_some_and(|it| containers_of(it).any(|it| it == number));
                    is_right &= is_its || !self.is_container_of(number, before.number)?;
                }
            }
        }
        if !is_right && let Some(anode) = after.or(before) {
            self.wrong = Some(format!("{} has no such attributes", anode.number));
        }
        Ok(())
    }

    fn is_container_of(&self, number: AnodeNo, owner: AnodeNo) -> FsResult<bool> {
        let found = self.after.anode(&self.receiving.core.store, number)?;
        Ok(number >= FIRST_FILE_ANODE
            && found.is_some_and(|it| it.kind == AnodeKind::Internal && it.parent == owner))
    }

    fn names_container(&self, owner: AnodeNo, number: AnodeNo) -> FsResult<bool> {
        let found = self.after.anode(&self.receiving.core.store, owner)?;
        let found = found.filter(|it| it.kind != AnodeKind::Internal);
        Ok(found.is_some_and(|it| containers_of(&it).any(|it| it == number)))
    }

    fn adds_up(&self, container: &Anode) -> FsResult<bool> {
        let (mut pages, mut is_right) = (ContainerPages::default(), true);
        let store = &self.receiving.core.store;
        let _ = store.differing_pages(
            ContainerVersions::new(None, Some(container)),
            0,
            &mut |found| {
                let Some(pointer) = found.after else { return Ok(ControlFlow::Continue(())) };
                let owner = content_owner(container, found.index);
                let page = store.view(None, pointer.place, PageKind::Attributes, owner)?;
                pages.add(found.index, &page);
                let lists = entries(&page).filter_map(|entry| match entry.value {
                    AttributeValueLocation::Here(value) => Some((entry.name, value)),
                    AttributeValueLocation::Pages(_) => None,
                });
                is_right = (is_value_page(&page) || are_lists(lists))
                    && pages.list_bytes() <= ATTRIBUTE_LIST_BYTES_MAX;
                Ok(if is_right { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            },
        )?;
        Ok(is_right && pages.add_up())
    }

    fn names(&mut self, (before, after): (Option<&Anode>, Option<&Anode>)) -> FsResult<()> {
        let is_directory = |anode: &&Anode| anode.kind == AnodeKind::Directory;
        let (before, after) = (before.filter(is_directory), after.filter(is_directory));
        let (core, mut pages) = (self.receiving.core, DirectoryPageChanges::default());
        let _ =
            core.store.differing_pages(ContainerVersions::new(before, after), 0, &mut |page| {
                let gone = self.names_in(before, (page.index, page.before), -1)?;
                let came = self.names_in(after, (page.index, page.after), 1)?;
                pages.gone.extend(gone.map(|depth| (page.index, depth)));
                pages.came.extend(came.map(|depth| (page.index, depth)));
                Ok(ControlFlow::Continue(()))
            })?;
        if let Some(after) = after
            && !finds_its_names(before, after, pages)
        {
            self.wrong = Some(format!("the pages of directory {} do not tile it", after.number));
        }
        Ok(())
    }

    fn names_in(
        &mut self,
        directory: Option<&Anode>,
        (index, pointer): (u64, Option<BlockPointer>),
        sign: i64,
    ) -> FsResult<Option<u8>> {
        let (Some(anode), Some(pointer)) = (directory, pointer) else { return Ok(None) };
        let owner = content_owner(anode, index);
        let store = &self.receiving.core.store;
        let page = store.view(None, pointer.place, PageKind::Directory, owner)?;
        for dirent in dirents(&page[..]) {
            let is_directory = dirent.kind == AnodeKind::Directory;
            let named = NamedFile {
                number: dirent.anode,
                generation: dirent.generation.0,
                kind: dirent.kind,
                parent: if is_directory { anode.number } else { AnodeNo(0) },
            };
            self.count_names(named, sign);
            if is_directory {
                self.count_inside(anode, sign);
            }
            if sign < 0 {
                continue;
            }
            if is_directory {
                self.moved.insert(dirent.anode.0);
            }
            let found = self.after.anode(store, dirent.anode)?;
            let is_right = found.is_some_and(|found| {
                Generation(found.generation.0 & GENERATION_MASK) == dirent.generation
                    && found.kind == dirent.kind
                    && (!is_directory || found.parent == anode.number)
            });
            if !is_right {
                let name = dirent.name.escape_ascii();
                self.wrong = Some(format!("the name {name} in {} leads nowhere", anode.number));
            }
        }
        Ok(Some(depth(&page[..])))
    }

    fn no_loops(&mut self) -> FsResult<()> {
        let store = &self.receiving.core.store;
        let mut good = BTreeSet::from([ROOT_ANODE.0]);
        for &number in &self.moved {
            let (mut at, mut way) = (number, BTreeSet::new());
            while !good.contains(&at) && self.wrong.is_none() {
                let parent = self.after.anode(store, AnodeNo(at))?.map(|anode| anode.parent.0);
                let is_new = way.insert(at);
                match parent.filter(|_| is_new && way.len() <= DEPTH_MAX) {
                    Some(parent) => at = parent,
                    None => self.wrong = Some(format!("{} is below itself", AnodeNo(number))),
                }
            }
            good.extend(way);
        }
        Ok(())
    }
}

fn containers_of(file: &Anode) -> impl Iterator<Item = AnodeNo> + use<> {
    [file.xattr, file.acl].into_iter().filter(|number| number.0 != 0)
}

fn are_lists<'a>(mut all: impl Iterator<Item = (AttributeName<'a>, &'a [u8])>) -> bool {
    all.all(|(name, value)| !name.namespace.is_acl() || Acl::decode(value).is_ok())
}

/// Whether lookups find all names: the pages cover each hash once, at the right depth.
fn finds_its_names(before: Option<&Anode>, after: &Anode, mut pages: DirectoryPageChanges) -> bool {
    let DirectoryPageChanges { gone, came } = &mut pages;
    let before = before.filter(|it| it.pages > 0);
    let kept = before.filter(|it| it.pages > wide(gone.len()));
    let is_known = kept.is_none_or(|it| it.key == after.key && it.depth <= after.depth);
    let deepest = came.iter().map(|&(_, depth)| depth).max();
    let expected = match before {
        _ if after.pages == 0 => Some(Vec::new()),
        None => Some(vec![ALL_HASHES]),
        Some(_) => covered(gone),
    };
    let found = covered(came);
    is_known && deepest.is_none_or(|it| it <= after.depth) && found.is_some() && found == expected
}
