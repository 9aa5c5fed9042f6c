//! Rename, as one transaction.

use crate::file::Names;
use std::cmp::Ordering;
use std::sync::Arc;

use format::anode::{Anode, AnodeKind, DiskTime};
use format::ids::AnodeNo;
use runtime::planted;

use crate::alloc::Urgency;
use crate::api::{AttributeChange, Caller, Ino, RenameMode, WHITEOUT};
use crate::dir::{self, DirentLookup};
use crate::error::{FsError, FsResult};
use crate::file::access::{SEARCH, WRITE, check_name, check_project, is_exempt};
use crate::file::names::{directory, drop_link, target_of, touch};
use crate::file::xattr::LazyFilesetGuard;
use crate::file::{Vnode, attr_of};
use crate::journal::LogCredits;
use crate::store::Change;

const DEPTH_MAX: usize = 1 << 16;

struct RenamePlan {
    source_directory: Anode,
    /// `None` if source and target are in one directory.
    target_directory: Option<Anode>,
    source: Anode,
    target: Option<Anode>,
    source_found: DirentLookup,
    target_found: Option<DirentLookup>,
    /// Whiteout at the source name, if requested.
    whiteout: Option<Anode>,
    now: DiskTime,
}

impl RenamePlan {
    fn target_directory(&mut self) -> &mut Anode {
        self.target_directory.as_mut().unwrap_or(&mut self.source_directory)
    }
}

fn check_projects(plan: &RenamePlan, mode: RenameMode) -> FsResult<()> {
    let Some(directory) = &plan.target_directory else { return Ok(()) };
    check_project(&plan.source, directory)?;
    match &plan.target {
        Some(target) if mode == RenameMode::Exchange => {
            check_project(target, &plan.source_directory)
        }
        _ => Ok(()),
    }
}

impl Names<'_> {
    pub(crate) fn rename_name(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        mut around: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<()> {
        self.check_writable()?;
        check_name(source.1)?;
        check_name(target.1)?;
        let source_directory = self.vnode(source.0)?;
        let target_directory = self.vnode(target.0)?;
        let _renaming = self.fileset.rename_lock.lock();
        let mut gone = None;
        loop {
            let directories = (&source_directory, &target_directory);
            let (moved, replaced) = self.both_names(caller, directories, (source.1, target.1))?;
            match (mode, replaced) {
                (_, Some(_)) if mode.keeps_target() => return Err(FsError::Exists),
                (RenameMode::Exchange, None) => return Err(FsError::NotFound),
                _ => {}
            }
            self.check_loops(moved, replaced, &source_directory, &target_directory, mode)?;
            if replaced == Some(moved) {
                // POSIX: a rename between links to one file has no effect.
                return Ok(());
            }
            let load = || -> FsResult<_> {
                Ok((self.vnode_of(moved)?, replaced.map(|it| self.vnode_of(it)).transpose()?))
            };
            let (moved_file, replaced_file) = match load() {
                // The file was removed since the lookup: retry. If it is found again, a dirent is
                // damaged.
                Err(FsError::Stale)
                    if gone.replace((moved, replaced)) != Some((moved, replaced)) =>
                {
                    continue;
                }
                files => files?,
            };
            let is_directory = |file: &Arc<Vnode>| {
                let state = file.state.read();
                state.anode().is_ok_and(|anode| anode.kind == AnodeKind::Directory)
            };
            let is_within = Arc::ptr_eq(&source_directory, &target_directory);
            let mut moved_files = std::iter::once(&moved_file).chain(&replaced_file);
            if !is_within && moved_files.any(is_directory) && !planted!(RenameReliesOnUndone) {
                // CRASH: this rename may form no loop only because of an earlier one, with which it
                // may share no page. The earlier one must not be lost alone.
                self.store.journal.close_open();
            }
            let vnodes = RenameVnodes {
                source_directory: &source_directory,
                target_directory: &target_directory,
                source: moved_file,
                target: replaced_file,
            };
            let names = (source.1, target.1);
            let told = around.as_deref_mut();
            let renamed = self.rename_locked(caller, &vnodes, names, mode, told)?;
            if let Some(is_last) = renamed {
                let is_gone = |file: &Arc<Vnode>| is_last && !self.table.is_referenced(file.ino);
                vnodes.target.filter(is_gone).inspect(|file| self.doom(file));
                return Ok(());
            }
        }
    }

    /// Looks up both names at one moment, so that the checks on them are consistent.
    fn both_names(
        &self,
        caller: &Caller,
        (source, target): (&Arc<Vnode>, &Arc<Vnode>),
        (source_name, target_name): (&[u8], &[u8]),
    ) -> FsResult<(AnodeNo, Option<AnodeNo>)> {
        // LOCK: directories by rising number, and one directory once.
        let first = (if source.number < target.number { source } else { target }).state.read();
        let second = match source.number.cmp(&target.number) {
            Ordering::Equal => None,
            Ordering::Less => Some(target.state.read()),
            Ordering::Greater => Some(source.state.read()),
        };
        let second = second.as_ref().unwrap_or(&first);
        let (in_source, in_target) =
            if source.number < target.number { (&first, second) } else { (second, &first) };
        // As in a path walk, both directories are searched before the names.
        self.searched(caller, in_source)?;
        self.searched(caller, in_target)?;
        let moved = self.find_name(caller, in_source, source_name)?.ok_or(FsError::NotFound)?;
        let replaced = self.find_name(caller, in_target, target_name)?;
        Ok((moved.target.anode, replaced.map(|found| found.target.anode)))
    }

    fn check_loops(
        &self,
        moved: AnodeNo,
        replaced: Option<AnodeNo>,
        source_directory: &Arc<Vnode>,
        target_directory: &Arc<Vnode>,
        mode: RenameMode,
    ) -> FsResult<()> {
        if Arc::ptr_eq(source_directory, target_directory) || planted!(RenameLoop) {
            return Ok(());
        }
        if self.is_above(moved, target_directory)? {
            return Err(FsError::Invalid);
        }
        if let Some(replaced) = replaced
            && self.is_above(replaced, source_directory)?
        {
            return Err(if mode == RenameMode::Exchange {
                FsError::Invalid
            } else {
                FsError::NotEmpty
            });
        }
        Ok(())
    }

    fn is_above(&self, number: AnodeNo, below: &Arc<Vnode>) -> FsResult<bool> {
        let mut at = Arc::clone(below);
        for _ in 0..DEPTH_MAX {
            if at.number == number {
                return Ok(true);
            }
            let parent = at.state.read().anode()?.parent;
            if parent == at.number {
                return Ok(false);
            }
            at = self.vnode_of(parent)?;
        }
        Err(FsError::Invalid)
    }

    /// Renames if both names are unchanged. Returns whether the target was unlinked; `None` if a
    /// name has changed.
    fn rename_locked(
        &self,
        caller: &Caller,
        vnodes: &RenameVnodes<'_>,
        (source_name, target_name): (&[u8], &[u8]),
        mode: RenameMode,
        around: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<Option<bool>> {
        // A whiteout may inherit long access lists, so it needs more log credits.
        let is_large = mode.leaves_whiteout();
        let reservation = if is_large { LogCredits::LARGE_NAMES } else { LogCredits::SMALL };
        let mut change = self.begin(reservation)?;
        let mut guards = vnodes.lock();
        let Some(mut plan) = self.plan(vnodes, &guards, source_name, target_name)? else {
            return Ok(None);
        };
        self.check_rename(caller, &plan, mode)?;
        check_projects(&plan, mode)?;
        let directories = [vnodes.source_directory.number, vnodes.target_directory.number];
        let seen = |guards: &[(AnodeNo, StateGuard<'_>)]| {
            let state = |number| guards.iter().find(|(locked, _)| *locked == number);
            directories.map(|number| state(number).and_then(|(_, state)| attr_of(self, state).ok()))
        };
        let before = around.is_some().then(|| seen(&guards));
        let mut fileset = LazyFilesetGuard::new(self);
        let mut is_last = false;
        let is_new_name = mode != RenameMode::Exchange && plan.target.is_none();
        if mode == RenameMode::Exchange {
            self.exchange(&mut change, &mut plan)?;
        } else {
            if mode.leaves_whiteout() {
                self.check_room()?;
                let directory = &plan.source_directory;
                let made =
                    self.make_anode(caller, &mut change, &mut fileset, directory, WHITEOUT)?;
                plan.whiteout = Some(made);
            } else if plan.target.is_none() {
                // A name that replaces another needs no room.
                self.check_space(0, Urgency::Name)?;
            }
            self.move_name(&mut change, &mut plan, (source_name, target_name))?;
            is_last = self.drop_replaced(&mut change, &mut fileset, &mut plan)?;
        }
        let written = [
            Some(&plan.source_directory),
            plan.target_directory.as_ref(),
            Some(&plan.source),
            plan.target.as_ref(),
            plan.whiteout.as_ref(),
        ];
        for anode in written.into_iter().flatten() {
            fileset.write_anode(&mut change, anode)?;
        }
        // Only a new name or a whiteout is charged.
        if plan.whiteout.is_some() || is_new_name {
            change.admit(is_exempt(caller))?;
        }
        // V1: the locked vnode is in the table before the anode can be found on its page.
        let whiteout =
            plan.whiteout.map(|anode| Arc::new(Vnode::new(self.ino(anode.number), anode)));
        let whiteout_state = whiteout.as_ref().map(|vnode| vnode.state.write());
        whiteout.iter().for_each(|vnode| self.table.insert_unreferenced(Arc::clone(vnode)));
        let applied = change.end();
        fileset.settle(applied.lsn);
        whiteout_state.into_iter().for_each(|mut state| state.class = applied.class);
        let changed =
            [Some(plan.source_directory), plan.target_directory, Some(plan.source), plan.target];
        for anode in changed.into_iter().flatten() {
            let state = guards.iter_mut().find(|(number, _)| *number == anode.number);
            let (_, state) = state.expect("every anode of the plan is locked");
            self.replace(state, anode, applied.class);
        }
        if let (Some(around), Some([from, to])) = (around, before) {
            let [from_after, to_after] = seen(&guards);
            let of = |before, after| AttributeChange { before, after };
            *around = [of(from, from_after), of(to, to_after)];
        }
        Ok(Some(is_last))
    }

    /// Unlinks the replaced file, if any. Returns whether it lost its last name.
    fn drop_replaced(
        &self,
        change: &mut Change<'_>,
        fileset: &mut LazyFilesetGuard<'_>,
        plan: &mut RenamePlan,
    ) -> FsResult<bool> {
        let now = plan.now;
        let Some(target) = plan.target.as_mut() else { return Ok(false) };
        let was_directory = target.kind == AnodeKind::Directory;
        let is_last = drop_link(target, now);
        if is_last {
            self.orphan(fileset.guard(), change, target)?;
        }
        if was_directory {
            plan.target_directory().nlink -= 1;
        }
        Ok(is_last)
    }

    fn plan(
        &self,
        vnodes: &RenameVnodes<'_>,
        guards: &[(AnodeNo, StateGuard<'_>)],
        source_name: &[u8],
        target_name: &[u8],
    ) -> FsResult<Option<RenamePlan>> {
        let state = |number: AnodeNo| {
            let found = guards.iter().find(|(locked, _)| *locked == number);
            &found.expect("every vnode of the rename is locked").1
        };
        let live = |vnode: &Vnode| -> FsResult<Anode> {
            let anode = directory(state(vnode.number))?;
            if anode.nlink == 0 { Err(FsError::NotFound) } else { Ok(anode.clone()) }
        };
        let source_directory = live(vnodes.source_directory)?;
        let is_same = vnodes.source_directory.number == vnodes.target_directory.number;
        let target_directory = if is_same { None } else { Some(live(vnodes.target_directory)?) };
        let source_found = dir::find(&self.store, None, &source_directory, source_name)?;
        let source_found = source_found.ok_or(FsError::NotFound)?;
        let in_target = target_directory.as_ref().unwrap_or(&source_directory);
        let target_found = dir::find(&self.store, None, in_target, target_name)?;
        let expected = vnodes.target.as_ref().map(|vnode| vnode.number);
        if source_found.target.anode != vnodes.source.number
            || target_found.map(|found| found.target.anode) != expected
        {
            return Ok(None);
        }
        let source = state(vnodes.source.number).anode()?.clone();
        let target = expected.map(|number| state(number).anode().cloned()).transpose()?;
        self.check_target(&source_found.target, source.generation.0)?;
        if let (Some(found), Some(target)) = (&target_found, &target) {
            self.check_target(&found.target, target.generation.0)?;
        }
        let now = self.now();
        Ok(Some(RenamePlan {
            source_directory,
            target_directory,
            source,
            target,
            source_found,
            target_found,
            whiteout: None,
            now,
        }))
    }

    /// Moves the name; the old one is removed, or becomes the whiteout.
    fn move_name(
        &self,
        change: &mut Change<'_>,
        plan: &mut RenamePlan,
        names: (&[u8], &[u8]),
    ) -> FsResult<()> {
        let name = names.1;
        let new = target_of(&plan.source);
        let is_directory = plan.source.kind == AnodeKind::Directory;
        let source_page = plan.source_found.place();
        match plan.target_found {
            Some(found) => {
                let in_target = plan.target_directory.as_ref().unwrap_or(&plan.source_directory);
                dir::retarget(change, in_target, &found, new)?;
                change.tx_mut().moves(source_page, found.place());
            }
            None => {
                let store = &self.store;
                dir::insert(store, change, plan.target_directory(), name, new)?;
                let in_target = plan.target_directory.as_ref().unwrap_or(&plan.source_directory);
                let inserted = dir::find(store, Some(change), in_target, name)?;
                let inserted = inserted.ok_or(FsError::NotFound)?;
                change.tx_mut().moves(source_page, inserted.place());
            }
        }
        // Looked up again, since the insertion may have split the page of the old name.
        let again = dir::find(&self.store, Some(change), &plan.source_directory, names.0)?;
        let again = again.ok_or(FsError::NotFound)?;
        match plan.whiteout.as_ref().map(target_of) {
            Some(whiteout) => dir::retarget(change, &plan.source_directory, &again, whiteout)?,
            None => dir::remove(&self.store, change, &mut plan.source_directory, &again)?,
        }
        let now = plan.now;
        plan.source.ctime = now;
        plan.source.parent = plan.target_directory().number;
        touch(&mut plan.source_directory, now);
        touch(plan.target_directory(), now);
        if is_directory && plan.target_directory.is_some() {
            plan.source_directory.nlink -= 1;
            plan.target_directory().nlink += 1;
        }
        Ok(())
    }

    fn exchange(&self, change: &mut Change<'_>, plan: &mut RenamePlan) -> FsResult<()> {
        let target = plan.target.as_mut().ok_or(FsError::NotFound)?;
        let found = plan.target_found.ok_or(FsError::NotFound)?;
        let (source_target, target_target) = (target_of(&plan.source), target_of(target));
        let directories = (&plan.source_directory, plan.target_directory.as_ref());
        let in_target = directories.1.unwrap_or(directories.0);
        dir::retarget(change, directories.0, &plan.source_found, target_target)?;
        dir::retarget(change, in_target, &found, source_target)?;
        change.tx_mut().moves(plan.source_found.place(), found.place());
        let now = plan.now;
        plan.source.ctime = now;
        target.ctime = now;
        target.parent = plan.source_directory.number;
        let moved = i64::from(plan.source.kind == AnodeKind::Directory)
            - i64::from(target.kind == AnodeKind::Directory);
        plan.source.parent = plan.target_directory().number;
        touch(&mut plan.source_directory, now);
        touch(plan.target_directory(), now);
        if let Some(target_directory) = plan.target_directory.as_mut() {
            let add = |nlink: u32, delta: i64| {
                u32::try_from(i64::from(nlink) + delta).expect("a directory has its own links")
            };
            target_directory.nlink = add(target_directory.nlink, moved);
            plan.source_directory.nlink = add(plan.source_directory.nlink, -moved);
        }
        Ok(())
    }
}

impl Names<'_> {
    /// Checks permissions, then file kinds, in Linux's order.
    fn check_rename(&self, caller: &Caller, plan: &RenamePlan, mode: RenameMode) -> FsResult<()> {
        let target_directory = plan.target_directory.as_ref().unwrap_or(&plan.source_directory);
        self.check_removal(caller, &plan.source_directory, &plan.source)?;
        match &plan.target {
            Some(target) => self.check_removal(caller, target_directory, target)?,
            None => self.check_access(caller, target_directory, WRITE | SEARCH)?,
        }
        let is_exchange = mode == RenameMode::Exchange;
        let is_directory = |anode: &Anode| anode.kind == AnodeKind::Directory;
        let replaced = plan.target.as_ref().filter(|_| !is_exchange);
        match replaced.map(|target| (is_directory(&plan.source), is_directory(target))) {
            Some((true, false)) => return Err(FsError::NotDirectory),
            Some((false, true)) => return Err(FsError::IsDirectory),
            Some((true, true) | (false, false)) | None => {}
        }
        // The `..` of a directory changes with its parent, which needs write permission on it.
        if plan.target_directory.is_some() {
            let exchanged = plan.target.as_ref().filter(|_| is_exchange);
            for anode in [Some(&plan.source), exchanged].into_iter().flatten() {
                if is_directory(anode) {
                    self.check_access(caller, anode, WRITE)?;
                }
            }
        }
        if replaced.is_some_and(|target| is_directory(target) && target.entries > 0) {
            return Err(FsError::NotEmpty);
        }
        Ok(())
    }
}

type StateGuard<'v> = runtime::sync::RwLockWriteGuard<'v, crate::file::VnodeState>;
struct RenameVnodes<'v> {
    source_directory: &'v Arc<Vnode>,
    target_directory: &'v Arc<Vnode>,
    source: Arc<Vnode>,
    target: Option<Arc<Vnode>>,
}

impl RenameVnodes<'_> {
    fn lock(&self) -> Vec<(AnodeNo, StateGuard<'_>)> {
        let all = [
            Some(self.source_directory),
            Some(self.target_directory),
            Some(&self.source),
            self.target.as_ref(),
        ];
        let mut vnodes: Vec<&Arc<Vnode>> = all.into_iter().flatten().collect();
        vnodes.sort_unstable_by_key(|vnode| vnode.number);
        vnodes.dedup_by_key(|vnode| vnode.number);
        vnodes.into_iter().map(|vnode| (vnode.number, vnode.state.write())).collect()
    }
}
