//! The last look at what was received: every name leads to a file that is there, every file has as
//! many names as it says, no directory is below itself, each finds its names by their hashes, and
//! containers of attributes are their files'. It looks at what differs from where the stream began,
//! which was right: so what the stream does not send is held against it too.
//!
//! Names are held against files by sums of keyed hashes, one for each side of what changed: the key
//! is random and nobody outside knows it, so two sums are equal by chance once in 2^64. In memory
//! are a number for each directory that got a name, and the pages of one directory or container.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use format::acl::Acl;
use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE, ROOT_ANODE};
use format::attributes::{
    ATTRIBUTE_LIST_BYTES_MAX, AttributeName, ContainerPages, ValueAt, entries, is_value_page,
};
use format::directory::{ALL_HASHES, covered, depth, dirents};
use format::hash::siphash24;
use format::ids::{AnodeNo, Generation};
use format::page::{PageKind, read_u64};
use format::pointer::BlockPointer;
use runtime::planted::{self, Planted};

use super::{Done, Receiving, senseless};
use crate::container::{Versions, content_owner, is_one_file};
use crate::convert::wide;
use crate::error::FsResult;
use crate::fileset::diff::{ChangedAnode, NodeView};

/// A dirent has so many bits of a generation.
const GENERATION_MASK: u64 = (1 << 48) - 1;
/// Directories one inside the other, at most.
const DEPTH_MAX: usize = 1 << 16;

/// Which file a name leads to, and of a directory where it should be.
#[derive(Clone, Copy)]
struct Named {
    number: AnodeNo,
    generation: u64,
    kind: AnodeKind,
    /// Of a directory, the one that names it.
    parent: AnodeNo,
}

/// Pages of a directory: number and depth of each that is gone, and of each that came.
#[derive(Default)]
struct Changed {
    gone: Vec<(u64, u8)>,
    came: Vec<(u64, u8)>,
}

/// A look under way.
struct Look<'l> {
    receiving: &'l Receiving<'l>,
    before: Option<NodeView>,
    after: NodeView,
    /// Nobody outside knows it.
    key: [u64; 2],
    /// Names found less names that files count.
    names: u64,
    /// Directories found in each directory, less those that its count of links says.
    inside: u64,
    /// Directories that a name leads to that came.
    moved: BTreeSet<u64>,
    /// What is wrong.
    wrong: Option<String>,
}

impl Named {
    fn of(anode: &Anode) -> Named {
        let is_directory = anode.kind == AnodeKind::Directory;
        Named {
            number: anode.number,
            generation: anode.generation.0 & GENERATION_MASK,
            kind: anode.kind,
            parent: if is_directory { anode.parent } else { AnodeNo(0) },
        }
    }

    fn hash(self, key: [u64; 2], salt: u64) -> u64 {
        let which = match planted::is(Planted::ReceivedAnotherFile) {
            true => [0; 3],
            false => [self.generation, u64::from(self.kind.code()), self.parent.0],
        };
        let words = [self.number.0, which[0], which[1], which[2], salt];
        siphash24(key, words.map(u64::to_le_bytes).as_flattened())
    }
}

impl Receiving<'_> {
    /// Holds all names that came against all anodes. `random`: unknown to whoever sends.
    pub(super) fn verify(&self, random: &[u8; 32]) -> Done<()> {
        self.core.sync_all()?;
        let after = NodeView::whole(&self.files.fileset.anodes.lock().entry());
        let target = self.core.check_target(&self.target, &self.begin, self.arrival)?;
        let before = target.base.map(|base| NodeView::of(&base.clone));
        let mut look = Look {
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

impl Look<'_> {
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

    /// Adds `count` times what a name leads to.
    fn count_names(&mut self, named: Named, count: i64) {
        let times = count.cast_unsigned();
        self.names = self.names.wrapping_add(named.hash(self.key, 0).wrapping_mul(times));
    }

    /// Adds `count` times that a directory is in this one.
    fn count_inside(&mut self, directory: &Anode, count: i64) {
        let times = count.cast_unsigned();
        // Where it is itself makes no difference.
        let named = Named { parent: AnodeNo(0), ..Named::of(directory) };
        let hash = named.hash(self.key, 1);
        self.inside = self.inside.wrapping_add(hash.wrapping_mul(times));
    }

    fn changed(&mut self, changed: &ChangedAnode) -> FsResult<()> {
        let (before, after) = (changed.before.as_ref(), changed.after.as_ref());
        for (anode, sign) in [(before, -1), (after, 1)] {
            let Some(anode) = anode.filter(|it| it.kind != AnodeKind::Internal) else { continue };
            if anode.nlink == 0 {
                // It was removed, and somebody has it open.
                continue;
            }
            if anode.kind != AnodeKind::Directory {
                self.count_names(Named::of(anode), -sign * i64::from(anode.nlink));
                continue;
            }
            if anode.number != ROOT_ANODE {
                self.count_names(Named::of(anode), -sign);
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

    /// A file's containers of attributes are its, and each such container is a file's.
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
        // What was its before is another's now, or gone, and so is who had it.
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

    /// Whether what was received has container `number`, and says that it is that of `owner`.
    fn is_container_of(&self, number: AnodeNo, owner: AnodeNo) -> FsResult<bool> {
        let found = self.after.anode(&self.receiving.core.store, number)?;
        Ok(number >= FIRST_FILE_ANODE
            && found.is_some_and(|it| it.kind == AnodeKind::Internal && it.parent == owner))
    }

    /// Whether what was received has file `owner`, and says that container `number` is its.
    fn names_container(&self, owner: AnodeNo, number: AnodeNo) -> FsResult<bool> {
        let found = self.after.anode(&self.receiving.core.store, owner)?;
        let found = found.filter(|it| it.kind != AnodeKind::Internal);
        Ok(found.is_some_and(|it| containers_of(&it).any(|it| it == number)))
    }

    /// Whether the pages of a container are those that its attributes lie in.
    fn adds_up(&self, container: &Anode) -> FsResult<bool> {
        let (mut pages, mut is_right) = (ContainerPages::default(), true);
        let store = &self.receiving.core.store;
        let _ = store.differing_pages(Versions::new(None, Some(container)), 0, &mut |found| {
            let Some(pointer) = found.after else { return Ok(ControlFlow::Continue(())) };
            let owner = content_owner(container, found.index);
            let page = store.view(None, pointer.place, PageKind::Attributes, owner)?;
            pages.add(found.index, &page);
            let lists = entries(&page).filter_map(|entry| match entry.value {
                ValueAt::Here(value) => Some((entry.name, value)),
                ValueAt::Pages(_) => None,
            });
            is_right = (is_value_page(&page) || are_lists(lists))
                && pages.list_bytes() <= ATTRIBUTE_LIST_BYTES_MAX;
            Ok(if is_right { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(is_right && (pages.add_up() || planted::is(Planted::ReceivedPagesApart)))
    }

    fn names(&mut self, (before, after): (Option<&Anode>, Option<&Anode>)) -> FsResult<()> {
        let is_directory = |anode: &&Anode| anode.kind == AnodeKind::Directory;
        let (before, after) = (before.filter(is_directory), after.filter(is_directory));
        let (core, mut pages) = (self.receiving.core, Changed::default());
        let _ = core.store.differing_pages(Versions::new(before, after), 0, &mut |page| {
            let gone = self.names_in(before, (page.index, page.before), -1)?;
            let came = self.names_in(after, (page.index, page.after), 1)?;
            pages.gone.extend(gone.map(|depth| (page.index, depth)));
            pages.came.extend(came.map(|depth| (page.index, depth)));
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(after) = after.filter(|_| !planted::is(Planted::ReceivedPagesApart))
            && !finds_its_names(before, after, pages)
        {
            self.wrong = Some(format!("the pages of directory {} do not tile it", after.number));
        }
        Ok(())
    }

    /// Returns the depth of the page.
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
            let named = Named {
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

    /// Every directory that got a name leads to the root by its parents.
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

/// Returns the containers of a file's attributes.
fn containers_of(file: &Anode) -> impl Iterator<Item = AnodeNo> + use<> {
    [file.xattr, file.acl].into_iter().filter(|number| number.0 != 0)
}

/// Whether each access list among attributes can be one.
fn are_lists<'a>(mut all: impl Iterator<Item = (AttributeName<'a>, &'a [u8])>) -> bool {
    all.all(|(name, value)| !name.namespace.is_acl() || Acl::decode(value).is_ok())
}

/// Whether a directory finds each name where its hash says: its pages hold each hash once, and it
/// says how deep they are.
fn finds_its_names(before: Option<&Anode>, after: &Anode, mut pages: Changed) -> bool {
    let Changed { gone, came } = &mut pages;
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
