//! Admission of operations to snapshots, and their exclusion for a deletion (decision 0054).
//!
//! # Invariants
//!
//! - PO1: No operation reads a page of a snapshot that is being freed. Each enters the snapshot's
//!   gate and checks there that it is not gone. A deletion first marks the snapshot as gone, then
//!   waits until the gate is empty.

use std::ops::Deref;
use std::sync::atomic::Ordering;

use runtime::planted;

use crate::api::Ino;
use crate::error::{FsError, FsResult};
use crate::file::open_filesets::{FOR_GOOD, OpenFileset};
use crate::file::{Core, Files};
use crate::gate::{ClosedGate, GateGuard};

/// The files of a fileset for one operation. If the fileset is a snapshot, none of its pages is
/// freed while this exists (PO1).
#[derive(Debug)]
pub(crate) struct AdmittedFiles<'c> {
    files: Files<'c>,
    _inside: Option<GateGuard<'c>>,
}

impl<'c> Deref for AdmittedFiles<'c> {
    type Target = Files<'c>;

    fn deref(&self) -> &Files<'c> {
        &self.files
    }
}

/// A snapshot from which operations are shut out. Dropping this readmits them, unless it is
/// deleted.
#[derive(Debug)]
pub(crate) struct QuiescedSnapshot<'c> {
    pub(crate) snapshot: &'c OpenFileset,
    pub(crate) is_deleted: bool,
    _closed: Option<ClosedGate<'c>>,
}

impl Drop for QuiescedSnapshot<'_> {
    fn drop(&mut self) {
        if !self.is_deleted {
            self.snapshot.is_gone.store(false, Ordering::SeqCst);
        }
    }
}

impl<'c> Files<'c> {
    /// Admits one operation. Called with no lock held, and not by an operation that is admitted
    /// already.
    #[inline]
    pub(crate) fn enter(self) -> FsResult<AdmittedFiles<'c>> {
        // In a writable fileset only changes enter the gate, and reads need no admission.
        if !self.fileset.is_snapshot {
            return Ok(AdmittedFiles { files: self, _inside: None });
        }
        self.enter_snapshot()
    }

    #[cold]
    fn enter_snapshot(self) -> FsResult<AdmittedFiles<'c>> {
        // The main fileset is never deleted, so its operations need not enter the gate.
        let inside = (!self.core.is_main(self.fileset)).then(|| self.fileset.gate.enter());
        if self.fileset.is_put_out() {
            return Err(FsError::Stale);
        }
        Ok(AdmittedFiles { files: self, _inside: inside })
    }
}

impl OpenFileset {
    fn has_front(&self) -> bool {
        !self.holds.load(Ordering::SeqCst).is_multiple_of(FOR_GOOD)
    }

    pub(super) fn is_put_out(&self) -> bool {
        self.is_snapshot && self.is_gone.load(Ordering::SeqCst) && !planted!(DeletedSnapshotEntered)
    }
}

impl Core {
    /// [`Core::files_of`], admitted for one operation. Called with no lock held, and not by an
    /// operation that is admitted already.
    #[inline]
    pub(crate) fn enter(&self, ino: Ino) -> FsResult<AdmittedFiles<'_>> {
        self.files_of(ino)?.enter()
    }

    /// Shuts out the operations in a snapshot. Later ones get [`FsError::Stale`], and earlier ones
    /// have ended on return. Called with no lock held.
    ///
    /// # Errors
    ///
    /// [`FsError::FilesetInUse`] while a front holds the snapshot.
    pub(crate) fn put_out<'c>(
        &'c self,
        snapshot: &'c OpenFileset,
    ) -> FsResult<QuiescedSnapshot<'c>> {
        {
            let _holding = self.filesets.holding.lock();
            if self.is_main(snapshot) || snapshot.has_front() {
                let name = self.filesets.table.lock(&self.store)?.path_of(snapshot.anodes.slot);
                let by = "it is mounted, or being copied: unmount it, or wait until that has ended";
                return Err(FsError::FilesetInUse { name, by: by.to_owned() });
            }
            // Only one deletion at a time: only the one that set the mark may reset it.
            if snapshot.is_gone.swap(true, Ordering::SeqCst) {
                let name = self.filesets.table.lock(&self.store)?.path_of(snapshot.anodes.slot);
                let by = "it is being deleted already";
                return Err(FsError::FilesetInUse { name, by: by.to_owned() });
            }
        }
        // PO1: waits until the gate is empty.
        let closed = (!planted!(ReadersNotWaitedFor)).then(|| snapshot.gate.close());
        Ok(QuiescedSnapshot { snapshot, is_deleted: false, _closed: closed })
    }
}
