//! Exports that commands have added and that can't be served now: kept, shown with the reason, and
//! tried again.
//!
//! What keeps one from being served may pass: its fileset leaves for another pool and nobody knows
//! where it is, its directory is missing, a pool is damaged, the configuration has its name. It is
//! tried again at each look of the timetable, and behind the commands that may have helped.
//!
//! Whose it is does not change meanwhile: an export goes by the identity of its fileset. Another
//! fileset that gets the name is not exported in its place.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::vnode::api::FilesetUuid;

use super::{Hub, shown};
use crate::backend::BackendError;
use crate::control::{ExportFacts, ExportSource, ExportSpec};

/// Most exports of a server that are kept, with those that are not served: as many as NFS has.
pub(super) const KEPT_MAX: usize = 1024;

/// An export that is kept and not served.
#[derive(Clone, Debug)]
pub(super) struct Unserved {
    pub(super) spec: ExportSpec,
    /// What identifies its fileset; `None`: an older server has kept its name alone.
    pub(super) fileset: Option<FilesetUuid>,
    /// Why it is not served.
    why: String,
}

/// By number of the pool and name.
#[derive(Default)]
pub(super) struct AllUnserved(Mutex<BTreeMap<(usize, String), Unserved>>);

impl AllUnserved {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(usize, String), Unserved>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns those of the pool of number `index`, by name.
    pub(super) fn of(&self, index: usize) -> Vec<Unserved> {
        let all = self.lock();
        all.iter().filter(|((pool, _), _)| *pool == index).map(|(_, it)| it.clone()).collect()
    }

    /// Returns those of a fileset that are not kept for the pool of number `but`.
    pub(super) fn of_fileset(&self, fileset: FilesetUuid, but: usize) -> Vec<ExportSpec> {
        let all = self.lock();
        let is_it = |(pool, it): (usize, &Unserved)| pool != but && it.fileset == Some(fileset);
        let own = all.iter().filter(|((pool, _), it)| is_it((*pool, it)));
        own.map(|(_, it)| it.spec.clone()).collect()
    }

    /// Takes one out.
    pub(super) fn take(&self, index: usize, name: &str) -> Option<Unserved> {
        self.lock().remove(&(index, name.to_owned()))
    }

    /// Puts one in.
    pub(super) fn put(&self, index: usize, export: Unserved) {
        self.lock().insert((index, export.spec.name.clone()), export);
    }

    /// Those of a fileset are of the pool of number `to`. Returns whether there are any.
    pub(super) fn moved(&self, fileset: FilesetUuid, to: usize) -> bool {
        let mut all = self.lock();
        let (own, others) =
            std::mem::take(&mut *all).into_iter().partition(|(_, it)| it.fileset == Some(fileset));
        *all = others;
        let own: BTreeMap<(usize, String), Unserved> = own;
        let is_any = !own.is_empty();
        all.extend(own.into_iter().map(|((_, name), it)| ((to, name), it)));
        is_any
    }
}

/// The names of the filesets of a pool, read once for all of its exports, and only if one asks:
/// with the names read for each, a start took as long as exports times filesets.
pub(super) struct Names<'h> {
    hub: &'h Hub,
    index: usize,
    read: OnceCell<BTreeMap<FilesetUuid, String>>,
}

impl Names<'_> {
    /// Returns the name of a fileset. What could not be read is read again for the next.
    fn of(&self, fileset: FilesetUuid) -> Result<Option<String>, BackendError> {
        if self.read.get().is_none() {
            let _ = self.read.set(self.hub.fileset_names(self.index)?);
        }
        Ok(self.read.get().and_then(|names| names.get(&fileset)).cloned())
    }
}

impl Hub {
    /// Returns the names of the filesets of the pool of number `index`, as they are when the first
    /// is asked for.
    pub(super) fn names_of(&self, index: usize) -> Names<'_> {
        Names { hub: self, index, read: OnceCell::new() }
    }

    /// Exports what is kept of a pool, or notes why it can't be served.
    pub(super) fn serve_kept(
        &self,
        names: &Names<'_>,
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
        self.unserved.put(index, Unserved { spec: spec.clone(), fileset, why });
        false
    }

    fn try_kept(
        &self,
        names: &Names<'_>,
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
        // A server that was opened with a clone has that as its main one, and by no other name.
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

    /// Tries again to serve what is kept and is not served. Nothing is tried while a fileset is
    /// moved: what is exported of it goes where it goes.
    pub(crate) fn serve_unserved(&self) {
        if self.nfs.is_none() || self.unserved.count() == 0 || self.moved_now().is_some() {
            return;
        }
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        for index in 0..self.pools.len() {
            self.try_unserved(index);
        }
    }

    /// As [`Hub::serve_unserved`], of one pool. Who calls changes exports alone (SV2).
    pub(super) fn try_unserved(&self, index: usize) {
        let (names, mut is_changed) = (self.names_of(index), false);
        for Unserved { spec, fileset, .. } in self.unserved.of(index) {
            if self.serve_kept(&names, &spec, fileset) {
                self.unserved.take(index, &spec.name);
                tracing::warn!(export = spec.name, "it is served again");
                is_changed = true;
            }
        }
        // Its fileset may have another name, or have been kept by name alone.
        if is_changed && let Err(error) = self.keep(index) {
            tracing::error!("exports are kept as they were: {error}");
        }
    }

    /// Refuses to add an export that is kept already, or one too many.
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

    /// Returns what is told of those of the pool of number `index`.
    pub(super) fn unserved_facts(&self, index: usize) -> Vec<ExportFacts> {
        let facts = |it: Unserved| ExportFacts {
            export: it.spec,
            by: ExportSource::Kept,
            mount: String::new(),
            not_served: Some(it.why),
        };
        self.unserved.of(index).into_iter().map(facts).collect()
    }
}
