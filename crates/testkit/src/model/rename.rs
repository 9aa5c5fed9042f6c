//! Names that move.

use engine::api::{FsError, FsResult, Ino, RenameMode, WHITEOUT};

use super::access::{self, SEARCH, WRITE};
use super::{Asked, Body, ROOT, State, require_name};

/// A name, where it is, and what it names.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: Ino,
    name: &'a [u8],
    ino: Option<Ino>,
}

impl State {
    pub(super) fn rename(
        &mut self,
        asked: Asked<'_>,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
    ) -> FsResult<()> {
        require_name(source.1)?;
        require_name(target.1)?;
        // Both directories are walked to before either name is looked up.
        self.searched(asked.caller, source.0)?;
        self.searched(asked.caller, target.0)?;
        let moved = self.find(asked.caller, source.0, source.1)?.ok_or(FsError::NotFound)?;
        let over = self.find(asked.caller, target.0, target.1)?;
        let source = Place { parent: source.0, name: source.1, ino: Some(moved) };
        let target = Place { parent: target.0, name: target.1, ino: over };
        self.require_sound(source, target, mode)?;
        if target.ino == Some(moved) {
            return Ok(());
        }
        self.require_permitted(asked, source, target, mode)?;
        self.require_projects(source, target, (moved, mode))?;
        match (mode, over) {
            (RenameMode::Exchange, Some(over)) => {
                self.exchange(asked, source, target, (moved, over));
            }
            (RenameMode::Exchange, None) => unreachable!("require_sound refused it"),
            (_, _) => self.replace(asked, source, target, moved)?,
        }
        if mode.leaves_whiteout() {
            self.insert_unreferenced(asked, source.parent, source.name, WHITEOUT, Body::Special)?;
        }
        Ok(())
    }

    /// What makes no sense, whoever asks.
    fn require_sound(
        &self,
        source: Place<'_>,
        target: Place<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        match (mode, target.ino) {
            (_, Some(_)) if mode.keeps_target() => return Err(FsError::Exists),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (_, _) => {}
        }
        if source.ino.is_some_and(|ino| self.is_at_or_above(ino, target.parent)) {
            return Err(FsError::Invalid);
        }
        if target.ino.is_some_and(|ino| self.is_at_or_above(ino, source.parent)) {
            let is_exchange = mode == RenameMode::Exchange;
            return Err(if is_exchange { FsError::Invalid } else { FsError::NotEmpty });
        }
        Ok(())
    }

    /// Whether `upper` is `lower` or one of the directories above it.
    fn is_at_or_above(&self, upper: Ino, lower: Ino) -> bool {
        let mut at = lower;
        loop {
            if at == upper {
                return true;
            }
            if at == ROOT {
                return false;
            }
            let node = self.node(at).expect("a directory with a name has its parents");
            at = node.directory().expect("parents are directories").parent;
        }
    }

    fn require_permitted(
        &self,
        asked: Asked<'_>,
        source: Place<'_>,
        target: Place<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        let moved = self.node(self.removable(asked, source.parent, source.name)?)?;
        let over = match target.ino {
            Some(_) => Some(self.node(self.removable(asked, target.parent, target.name)?)?),
            None => {
                access::require(asked.caller, self.node(target.parent)?, WRITE | SEARCH)?;
                None
            }
        };
        if let Some(over) = over
            && mode != RenameMode::Exchange
        {
            match (moved.is_directory(), over.is_directory()) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) | (false, false) => {}
            }
        }
        // The `..` of a directory that changes its parent is written.
        if source.parent != target.parent {
            let exchanged = over.filter(|_| mode == RenameMode::Exchange);
            for node in [Some(moved), exchanged].into_iter().flatten() {
                if node.is_directory() {
                    access::require(asked.caller, node, WRITE)?;
                }
            }
        }
        let is_full = over.is_some_and(|over| {
            over.directory().is_ok_and(|directory| !directory.names.is_empty())
        });
        if is_full && mode != RenameMode::Exchange {
            return Err(FsError::NotEmpty);
        }
        Ok(())
    }

    /// What moves to another directory is of its project, where that has one.
    fn require_projects(
        &self,
        source: Place<'_>,
        target: Place<'_>,
        (moved, mode): (Ino, RenameMode),
    ) -> FsResult<()> {
        if source.parent == target.parent {
            return Ok(());
        }
        access::require_project(self.node(moved)?, self.node(target.parent)?)?;
        match target.ino.filter(|_| mode == RenameMode::Exchange) {
            Some(over) => access::require_project(self.node(over)?, self.node(source.parent)?),
            None => Ok(()),
        }
    }

    fn replace(
        &mut self,
        asked: Asked<'_>,
        source: Place<'_>,
        target: Place<'_>,
        moved: Ino,
    ) -> FsResult<()> {
        let is_directory = self.held(moved).is_directory();
        let from = self.held(source.parent);
        from.touch_content(asked.now);
        from.directory_mut().clear(source.name);
        from.directory_mut().subdirectories -= u32::from(is_directory);
        let replaces_directory = match target.ino {
            Some(over) => {
                let is_directory = self.node(over)?.is_directory();
                self.drop_name(asked, over);
                is_directory
            }
            None => false,
        };
        let into = self.held(target.parent);
        into.touch_content(asked.now);
        into.directory_mut().set(target.name, moved);
        into.directory_mut().subdirectories += u32::from(is_directory);
        into.directory_mut().subdirectories -= u32::from(replaces_directory);
        self.settle(asked, moved, target.parent);
        Ok(())
    }

    fn exchange(
        &mut self,
        asked: Asked<'_>,
        source: Place<'_>,
        target: Place<'_>,
        (moved, over): (Ino, Ino),
    ) {
        let leaves = |state: &mut State, ino| u32::from(state.held(ino).is_directory());
        let (moved_counts, over_counts) = (leaves(self, moved), leaves(self, over));
        let from = self.held(source.parent);
        from.touch_content(asked.now);
        from.directory_mut().set(source.name, over);
        from.directory_mut().subdirectories += over_counts;
        from.directory_mut().subdirectories -= moved_counts;
        let into = self.held(target.parent);
        into.touch_content(asked.now);
        into.directory_mut().set(target.name, moved);
        into.directory_mut().subdirectories += moved_counts;
        into.directory_mut().subdirectories -= over_counts;
        self.settle(asked, moved, target.parent);
        self.settle(asked, over, source.parent);
    }

    /// What a move changes in the inode that moved.
    fn settle(&mut self, asked: Asked<'_>, ino: Ino, parent: Ino) {
        let node = self.held(ino);
        node.ctime = asked.now;
        if node.is_directory() {
            node.directory_mut().parent = parent;
        }
    }
}
