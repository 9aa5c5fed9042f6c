//! Names that go: unlink, rmdir.

use engine::api::{FsError, FsResult, Ino};

use super::{Asked, State, access, require_name};

impl State {
    /// What `name` in `parent` names, if `asked.caller` may remove that name.
    pub(super) fn removable(&self, asked: Asked<'_>, parent: Ino, name: &[u8]) -> FsResult<Ino> {
        let ino = self.find(asked.caller, parent, name)?.ok_or(FsError::NotFound)?;
        access::require_removal(asked.caller, self.node(parent)?, self.node(ino)?)?;
        Ok(ino)
    }

    /// Takes one name from an inode that has just lost it.
    pub(super) fn drop_name(&mut self, asked: Asked<'_>, ino: Ino) {
        let node = self.held(ino);
        node.names -= 1;
        node.ctime = asked.now;
        self.drop_if_gone(ino);
    }

    fn remove_name(&mut self, asked: Asked<'_>, parent: Ino, name: &[u8], ino: Ino) {
        let is_directory = self.held(ino).is_directory();
        let node = self.held(parent);
        node.touch_content(asked.now);
        let directory = node.directory_mut();
        directory.clear(name);
        directory.subdirectories -= u32::from(is_directory);
        self.drop_name(asked, ino);
    }

    pub(super) fn unlink(&mut self, asked: Asked<'_>, parent: Ino, name: &[u8]) -> FsResult<()> {
        require_name(name)?;
        let ino = self.removable(asked, parent, name)?;
        if self.node(ino)?.is_directory() {
            return Err(FsError::IsDirectory);
        }
        self.remove_name(asked, parent, name, ino);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, asked: Asked<'_>, parent: Ino, name: &[u8]) -> FsResult<()> {
        require_name(name)?;
        let ino = self.removable(asked, parent, name)?;
        if !self.node(ino)?.directory()?.names.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.remove_name(asked, parent, name, ino);
        Ok(())
    }
}
