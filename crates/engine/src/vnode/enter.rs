//! Operations on a clone, and their end when it is deleted: whoever came through the directory of
//! clones is put out (decision 0054).
//!
//! # Invariants
//!
//! - PO1: Nobody looks at a page of a clone that is being freed. Whoever looks is inside the
//!   clone's gate, where else only changes are, and has seen there that it is not gone. Whoever
//!   deletes it says first that it is gone, and then waits until nobody is inside.

use std::ops::Deref;
use std::sync::atomic::Ordering;

use runtime::planted::{self, Planted};

use super::api::Ino;
use super::filesets::{FOR_GOOD, Fileset};
use super::{Core, Files};
use crate::error::{FsError, FsResult};
use crate::gate::{Closed, Inside};

/// The files of a fileset for one operation: of a clone nothing is freed meanwhile (PO1).
#[derive(Debug)]
pub(crate) struct Entered<'c> {
    files: Files<'c>,
    _inside: Option<Inside<'c>>,
}

impl<'c> Deref for Entered<'c> {
    type Target = Files<'c>;

    fn deref(&self) -> &Files<'c> {
        &self.files
    }
}

/// A clone with nobody inside. Unless it is deleted, they may come again when this is dropped.
#[derive(Debug)]
pub(super) struct PutOut<'c> {
    pub(super) clone: &'c Fileset,
    pub(super) is_deleted: bool,
    _closed: Option<Closed<'c>>,
}

impl Drop for PutOut<'_> {
    fn drop(&mut self) {
        if !self.is_deleted {
            self.clone.is_gone.store(false, Ordering::SeqCst);
        }
    }
}

impl<'c> Files<'c> {
    /// Goes in for one operation. Called with no lock held, and by nobody who is inside.
    #[inline]
    pub(crate) fn enter(self) -> FsResult<Entered<'c>> {
        // Whoever changes a fileset that is none enters with his change.
        if !self.fileset.is_clone {
            return Ok(Entered { files: self, _inside: None });
        }
        self.enter_clone()
    }

    #[cold]
    fn enter_clone(self) -> FsResult<Entered<'c>> {
        // Nobody puts the main one out.
        let inside = (!self.core.is_main(self.fileset)).then(|| self.fileset.gate.enter());
        if self.fileset.is_put_out() {
            return Err(FsError::Stale);
        }
        Ok(Entered { files: self, _inside: inside })
    }
}

impl Fileset {
    /// Whether a front holds it that will give it back.
    fn has_front(&self) -> bool {
        !self.holds.load(Ordering::SeqCst).is_multiple_of(FOR_GOOD)
    }

    /// Whether it is a clone that was deleted, or is about to be.
    pub(super) fn is_put_out(&self) -> bool {
        self.is_clone
            && self.is_gone.load(Ordering::SeqCst)
            && !planted::is(Planted::DeletedCloneEntered)
    }
}

impl Core {
    /// As [`Core::files_of`], for one operation: until what this returns is dropped. Called with no
    /// lock held, and by nobody who is inside.
    #[inline]
    pub(crate) fn enter(&self, ino: Ino) -> FsResult<Entered<'_>> {
        self.files_of(ino)?.enter()
    }

    /// Puts everybody out of a clone that was entered: who comes is told that it is stale, and who
    /// is inside has left when this returns. Called with no lock held.
    ///
    /// # Errors
    ///
    /// [`FsError::FilesetInUse`] while a front holds it that will give it back.
    pub(super) fn put_out<'c>(&'c self, clone: &'c Fileset) -> FsResult<PutOut<'c>> {
        {
            let _holding = self.filesets.holding.lock();
            if self.is_main(clone) || clone.has_front() {
                let name = self.filesets.table.lock(&self.store)?.path_of(clone.anodes.slot);
                let by = "it is mounted, or being copied: unmount it, or wait until that has ended";
                return Err(FsError::FilesetInUse { name, by: by.to_owned() });
            }
            // One at a time: only who has set the mark may take it back.
            if clone.is_gone.swap(true, Ordering::SeqCst) {
                let name = self.filesets.table.lock(&self.store)?.path_of(clone.anodes.slot);
                let by = "it is being deleted already";
                return Err(FsError::FilesetInUse { name, by: by.to_owned() });
            }
        }
        // PO1.
        let closed = (!planted::is(Planted::ReadersNotWaitedFor)).then(|| clone.gate.close());
        Ok(PutOut { clone, is_deleted: false, _closed: closed })
    }
}
