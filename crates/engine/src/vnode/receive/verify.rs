//! The last look at what was received: every name leads to a file that is there, every file has as
//! many names as it says, and no directory is below itself. It looks at what differs from where the
//! stream began, which was right.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use format::anode::{Anode, AnodeKind, ROOT_ANODE};
use format::directory::dirents;
use format::ids::{AnodeNo, Generation};
use format::page::PageKind;
use format::pointer::BlockPointer;

use super::super::api::LINKS_MAX;
use super::{Done, Receiving, senseless};
use crate::container::{Versions, content_owner, is_one_file};
use crate::error::FsResult;
use crate::fileset::diff::{ChangedAnode, NodeView};

/// A dirent has so many bits of a generation.
const GENERATION_MASK: u64 = (1 << 48) - 1;
/// Directories one inside the other, at most.
const DEPTH_MAX: usize = 1 << 16;

/// What changed of the names of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Links {
    /// Names found.
    names: i64,
    /// Names that the anode counts; of a directory 1 while it is there.
    stated: i64,
    /// Of a directory: directories found in it.
    inside: i64,
    /// And as its count of links says.
    stated_inside: i64,
}

/// A look under way.
struct Look<'l> {
    receiving: &'l Receiving<'l>,
    before: Option<NodeView>,
    after: NodeView,
    links: BTreeMap<u64, Links>,
    moved: BTreeSet<u64>,
    /// What is wrong.
    wrong: Option<String>,
}

impl Receiving<'_> {
    /// Holds all names that came against all anodes.
    pub(super) fn verify(&self) -> Done<()> {
        self.core.sync_all()?;
        let after = NodeView::whole(&self.files.fileset.anodes.lock().entry());
        let target = self.core.check_target(&self.target, &self.begin, self.arrival)?;
        let before = target.base.map(|base| NodeView::of(&base.clone));
        let (links, moved) = (BTreeMap::new(), BTreeSet::new());
        let mut look = Look { receiving: self, before, after, links, moved, wrong: None };
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
        if self.wrong.is_none() && self.after.anode(store, ROOT_ANODE)?.is_none() {
            self.wrong = Some("it has no root".to_owned());
        }
        let wrong = self.links.iter().find(|(_, it)| {
            it.names != it.stated || (it.inside != it.stated_inside && it.stated_inside != i64::MAX)
        });
        let wrong = wrong.map(|(number, links)| {
            format!("{} says other names than came: {links:?}", AnodeNo(*number))
        });
        if self.wrong.is_none() {
            self.wrong = wrong;
        }
        self.no_loops()
    }

    fn changed(&mut self, changed: &ChangedAnode) -> FsResult<()> {
        let (before, after) = (changed.before.as_ref(), changed.after.as_ref());
        for (anode, sign) in [(before, -1), (after, 1)] {
            let Some(anode) = anode.filter(|it| it.kind != AnodeKind::Internal) else { continue };
            let links = self.links.entry(anode.number.0).or_default();
            let is_directory = anode.kind == AnodeKind::Directory;
            let is_root = anode.number == ROOT_ANODE;
            if anode.nlink == 0 {
                // It was removed, and somebody has it open.
                continue;
            }
            links.stated += match (is_directory, is_root) {
                (true, true) => 0,
                (true, false) => sign,
                (false, _) => sign * i64::from(anode.nlink),
            };
            if is_directory && anode.nlink >= LINKS_MAX {
                // Counts past the limit are not kept.
                links.stated_inside = i64::MAX;
            } else if is_directory && links.stated_inside != i64::MAX {
                links.stated_inside += sign * (i64::from(anode.nlink) - 2);
            }
        }
        if let Some(after) = after {
            self.containers(after)?;
        }
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
    fn containers(&mut self, anode: &Anode) -> FsResult<()> {
        let store = &self.receiving.core.store;
        let mut is_right = true;
        if anode.kind == AnodeKind::Internal {
            let owner = self.after.anode(store, anode.parent)?;
            is_right = owner.is_some_and(|it| [it.xattr, it.acl].contains(&anode.number));
        } else {
            for number in [anode.xattr, anode.acl].into_iter().filter(|number| number.0 != 0) {
                let container = self.after.anode(store, number)?;
                let container = container.filter(|it| it.kind == AnodeKind::Internal);
                is_right &= container.is_some_and(|it| it.parent == anode.number);
            }
        }
        if !is_right {
            self.wrong = Some(format!("{} has no such attributes", anode.number));
        }
        Ok(())
    }

    fn names(&mut self, (before, after): (Option<&Anode>, Option<&Anode>)) -> FsResult<()> {
        let is_directory = |anode: &&Anode| anode.kind == AnodeKind::Directory;
        let (before, after) = (before.filter(is_directory), after.filter(is_directory));
        let core = self.receiving.core;
        let _ = core.store.differing_pages(Versions::new(before, after), 0, &mut |page| {
            self.names_in(before, (page.index, page.before), -1)?;
            self.names_in(after, (page.index, page.after), 1)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    fn names_in(
        &mut self,
        directory: Option<&Anode>,
        (index, pointer): (u64, Option<BlockPointer>),
        sign: i64,
    ) -> FsResult<()> {
        let (Some(anode), Some(pointer)) = (directory, pointer) else { return Ok(()) };
        let owner = content_owner(anode, index);
        let store = &self.receiving.core.store;
        let page = store.view(None, pointer.place, PageKind::Directory, owner)?;
        for dirent in dirents(&page[..]) {
            self.links.entry(dirent.anode.0).or_default().names += sign;
            let is_directory = dirent.kind == AnodeKind::Directory;
            if is_directory {
                self.links.entry(anode.number.0).or_default().inside += sign;
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
        Ok(())
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
