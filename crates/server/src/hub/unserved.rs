//! Kept exports that cannot be served. They stay stored, are listed with the reason, and retried.
//!
//! The obstacle may be temporary: the move of the fileset was interrupted, the directory is
//! missing, the pool is damaged, or the configuration has an export of the same name. Each run of
//! the timetable retries, and so do commands that may remove an obstacle.
//!
//! A kept export is bound to the identity of its fileset. If another fileset gets the name, that
//! one is not exported.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::api::FilesetUuid;

use super::{Hub, shown};
use crate::backend::BackendError;
use control::{ExportFacts, ExportSource, ExportSpec};

/// Most kept exports of a server, unserved ones included. NFS has the same limit.
pub(super) const KEPT_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct UnservedExport {
    pub(super) spec: ExportSpec,
    /// Identity of the fileset. `None` if an older server stored the export, with the name only.
    pub(super) fileset: Option<FilesetUuid>,
    why: String,
}

#[derive(Default)]
pub(super) struct UnservedExports(Mutex<BTreeMap<(usize, String), UnservedExport>>);

impl UnservedExports {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(usize, String), UnservedExport>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn of(&self, index: usize) -> Vec<UnservedExport> {
        let all = self.lock();
        all.iter().filter(|((pool, _), _)| *pool == index).map(|(_, it)| it.clone()).collect()
    }

    pub(super) fn of_fileset(&self, fileset: FilesetUuid, but: usize) -> Vec<ExportSpec> {
        let all = self.lock();
        let is_it =
            |(pool, it): (usize, &UnservedExport)| pool != but && it.fileset == Some(fileset);
        let own = all.iter().filter(|((pool, _), it)| is_it((*pool, it)));
        own.map(|(_, it)| it.spec.clone()).collect()
    }

    pub(super) fn take(&self, index: usize, name: &str) -> Option<UnservedExport> {
        self.lock().remove(&(index, name.to_owned()))
    }

    pub(super) fn put(&self, index: usize, export: UnservedExport) {
        self.lock().insert((index, export.spec.name.clone()), export);
    }

    pub(super) fn moved(&self, fileset: FilesetUuid, to: usize) -> bool {
        let mut all = self.lock();
        let (own, others) =
            std::mem::take(&mut *all).into_iter().partition(|(_, it)| it.fileset == Some(fileset));
        *all = others;
        let own: BTreeMap<(usize, String), UnservedExport> = own;
        let is_any = !own.is_empty();
        all.extend(own.into_iter().map(|((_, name), it)| ((to, name), it)));
        is_any
    }
}

/// Names of a pool's filesets, which are read once for all exports, when the first export needs
/// them. Reading them for each export would take time in the product of exports and filesets.
pub(super) struct FilesetNames<'h> {
    hub: &'h Hub,
    index: usize,
    read: OnceCell<BTreeMap<FilesetUuid, String>>,
}

impl FilesetNames<'_> {
    /// Returns the name of a fileset. If reading the names fails, the next call tries again.
    fn of(&self, fileset: FilesetUuid) -> Result<Option<String>, BackendError> {
        if self.read.get().is_none() {
            let _ = self.read.set(self.hub.fileset_names(self.index)?);
        }
        Ok(self.read.get().and_then(|names| names.get(&fileset)).cloned())
    }
}

impl Hub {
    pub(super) fn names_of(&self, index: usize) -> FilesetNames<'_> {
        FilesetNames { hub: self, index, read: OnceCell::new() }
    }

    /// Serves a kept export, or records why it cannot be served. Returns whether it is served.
    pub(super) fn serve_kept(
        &self,
        names: &FilesetNames<'_>,
        spec: &ExportSpec,
        fileset: Option<FilesetUuid>,
    ) -> bool {
        let index = names.index;
        let served = self.try_kept(names, spec, fileset);
        let Err(error) = served else { return true };
        let why = error.to_string();
        let before = self.unserved.take(index, &spec.name);
        if before.is_none_or(|before| before.why != why) {
            tracing::error!(export = spec.name, "kept, and not served: {why}");
        }
        self.unserved.put(index, UnservedExport { spec: spec.clone(), fileset, why });
        false
    }

    fn try_kept(
        &self,
        names: &FilesetNames<'_>,
        spec: &ExportSpec,
        fileset: Option<FilesetUuid>,
    ) -> Result<(), BackendError> {
        let index = names.index;
        let served = &self.pools[index];
        self.served_by_nfs(served)?;
        let Some(fileset) = fileset else {
            return self.export(index, spec, ExportSource::Kept);
        };
        let name = names.of(fileset)?;
        // A snapshot with which a pool was opened is the main fileset there, and is not in the list
        // of names.
        if name.is_none() && fileset == served.pool.file_system().main_fileset() {
            let spec = ExportSpec { fileset: None, ..spec.clone() };
            return self.export(index, &spec, ExportSource::Kept);
        }
        let Some(name) = name else {
            let (pool, name) = (shown(&served.path), &spec.name);
            let was = spec.fileset.as_deref().unwrap_or("it");
            return Err(served.failed(format!(
                "the fileset that was exported, {was}, is gone: `holdfast export remove {pool} \
                 {name}` forgets it"
            )));
        };
        let spec = ExportSpec { fileset: Some(name), ..spec.clone() };
        self.export(index, &spec, ExportSource::Kept)
    }

    /// Retries all unserved exports, but not while a fileset moves, because its exports move too.
    pub(crate) fn serve_unserved(&self) {
        if self.nfs.is_none() || self.unserved.count() == 0 || self.moved_now().is_some() {
            return;
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        for index in 0..self.pools.len() {
            self.try_unserved(index);
        }
    }

    /// Retries the unserved exports of a pool. The caller holds `Hub::changing` (SV2).
    pub(super) fn try_unserved(&self, index: usize) {
        let (names, mut is_changed) = (self.names_of(index), false);
        for UnservedExport { spec, fileset, .. } in self.unserved.of(index) {
            if self.serve_kept(&names, &spec, fileset) {
                self.unserved.take(index, &spec.name);
                tracing::warn!(export = spec.name, "it is served again");
                is_changed = true;
            }
        }
        // The file may still have an old name of the fileset, or lack its identity.
        if is_changed && let Err(error) = self.keep(index) {
            tracing::error!("exports are kept as they were: {error}");
        }
    }

    /// Refuses an export if an unserved one has its name, or if there are [`KEPT_MAX`] exports.
    pub(super) fn check_unserved(&self, index: usize, name: &str) -> Result<(), BackendError> {
        let served = &self.pools[index];
        for other in 0..self.pools.len() {
            self.try_unserved(other);
            let same = self.unserved.of(other).into_iter().find(|it| it.spec.name == name);
            let Some(same) = same else { continue };
            let pool = shown(&self.pools[other].path);
            return Err(served.failed(format!(
                "{name}: it is kept already, and not served: {}; `holdfast export remove {pool} \
                 {name}` takes it away",
                same.why
            )));
        }
        let (served_now, unserved) = (self.exports.count(), self.unserved.count());
        if served_now + unserved >= KEPT_MAX {
            return Err(served.failed(format!(
                "{name}: there are {KEPT_MAX} exports already, {unserved} of them not served: \
                 remove one"
            )));
        }
        Ok(())
    }

    pub(super) fn unserved_facts(&self, index: usize) -> Vec<ExportFacts> {
        let facts = |it: UnservedExport| ExportFacts {
            export: it.spec,
            by: ExportSource::Kept,
            mount: String::new(),
            not_served: Some(it.why),
        };
        self.unserved.of(index).into_iter().map(facts).collect()
    }
}
