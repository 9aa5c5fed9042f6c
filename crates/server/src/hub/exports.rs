//! Exports of a running server: add, list, remove, store.
//!
//! Exports added by `export add` (*kept* exports) are stored in the state directory, in one file
//! per pool, named by the pool's identity, with the keys of `holdfast.toml` (decision 0071). The
//! file also has the identity of each export's fileset. Kept exports that cannot be served stay in
//! the file ([`super::unserved`]).
//!
//! # Crashes
//!
//! Exports of a fileset that moves to another pool move too (decision 0085):
//!
//! 1. Before the move, the target pool's file lists them as *arriving*, by the fileset's identity.
//! 2. After the switch they are removed from the source pool's file.
//! 3. They are then stored in the target pool's file as its own.
//!
//! After a crash at any step, the next server first settles the move ([`Hub::settle_moves`]), so
//! that one pool has the fileset. If that is the target, it takes over the arriving exports, and
//! they are removed from the source's file. If it is the source, the arriving exports are dropped.

use crate::facts::{export_rules, export_spec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::api::{FilesetUuid, FsError};
use front::nfs::Export;
use serde::{Deserialize, Serialize};

use super::{Hub, ServedPool, handle_keys, mount_line, shown};
use crate::backend::BackendError;
use crate::peer::Peer;
use crate::uses::FilesetUse;
use control::{
    Answer, EXPORTS_MAX, ExportFacts, ExportSource, ExportSpec, FilesetFacts, Request, name_of,
};

#[derive(Default)]
pub(super) struct Exports(Mutex<BTreeMap<String, ExportOwner>>);

#[derive(Clone, PartialEq, Eq)]
struct ExportOwner {
    pool: usize,
    by: ExportSource,
    /// Pool index and fileset name that the user gave. They are not changed by a move.
    said: (usize, Option<String>),
}

impl ExportOwner {
    fn new(pool: usize, spec: &ExportSpec, by: ExportSource) -> ExportOwner {
        ExportOwner { pool, by, said: (pool, spec.fileset.clone()) }
    }
}

/// Filesets that are moving or whose move was interrupted, with the index of the target pool. The
/// pool of such a fileset may be unknown.
pub(super) type ArrivingFilesets = Mutex<BTreeMap<FilesetUuid, usize>>;

impl Exports {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ExportOwner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportsFile {
    #[serde(default, rename = "export", skip_serializing_if = "Vec::is_empty")]
    exports: Vec<ExportSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    arriving: Vec<ArrivingExport>,
    /// Identity of each export's fileset, as 32 hexadecimal digits, by export name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    filesets: BTreeMap<String, String>,
}

impl ExportsFile {
    fn fileset_of(&self, name: &str) -> Option<FilesetUuid> {
        let uuid = self.filesets.get(name)?;
        u128::from_str_radix(uuid, 16).ok().map(FilesetUuid)
    }

    fn enter(&mut self, spec: ExportSpec, fileset: Option<FilesetUuid>) {
        if let Some(fileset) = fileset {
            self.filesets.insert(spec.name.clone(), format!("{:032x}", fileset.0));
        }
        self.exports.push(spec);
    }
}

/// An export of a fileset that is to move into the pool of this file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArrivingExport {
    uuid: String,
    export: ExportSpec,
}

const CONFIGURED: ExportSource = ExportSource::Configuration;

fn file_of(served: &ServedPool) -> String {
    format!("exports-{}.toml", served.id)
}

impl Hub {
    /// Serves the kept exports of all pools. The command line's and the configuration's exports
    /// must be served before. A kept export that cannot be served, because its fileset is gone or
    /// its name is taken, stays kept. Returns whether any pool has a file of exports, even an empty
    /// one.
    pub fn export_kept(&self) -> anyhow::Result<bool> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = Vec::new();
        for (index, served) in self.pools.iter().enumerate() {
            let name = file_of(served);
            let Some(text) = self.state.read(&name)? else { continue };
            let path = self.state.path_of(&name);
            let kept: ExportsFile = toml::from_str(&text).map_err(|error| {
                anyhow::anyhow!("{}: {error}: mend the file, or remove it", path.display())
            })?;
            files.push((index, kept));
        }
        self.resolve_arriving(&mut files)?;
        for (index, kept) in &files {
            let names = self.names_of(*index);
            for spec in &kept.exports {
                self.serve_kept(&names, spec, kept.fileset_of(&spec.name));
            }
        }
        Ok(!files.is_empty())
    }

    fn resolve_arriving(&self, files: &mut [(usize, ExportsFile)]) -> anyhow::Result<()> {
        let mut came = BTreeMap::new();
        let mut is_changed = false;
        for (index, kept) in files.iter_mut() {
            if kept.arriving.is_empty() {
                continue;
            }
            is_changed = true;
            let names = self.fileset_names(*index)?;
            for ArrivingExport { uuid, mut export } in std::mem::take(&mut kept.arriving) {
                let Ok(uuid) = u128::from_str_radix(&uuid, 16).map(FilesetUuid) else { continue };
                let Some(name) = names.get(&uuid) else { continue };
                export.fileset = Some(name.clone());
                came.insert(export.name.clone(), (*index, uuid, export));
            }
        }
        // SV1: files that lose exports are written first. Until the other files are written, their
        // old contents list these exports as arriving.
        let mut changed: Vec<_> = files.iter_mut().filter(|_| is_changed).collect();
        changed.sort_by_key(|(index, _)| came.values().any(|(pool, ..)| pool == index));
        for (index, kept) in changed {
            // An export of equal name for another fileset keeps its entry.
            let has_come = |kept: &ExportsFile, spec: &ExportSpec| {
                let of = kept.fileset_of(&spec.name);
                let came = came.get(&spec.name);
                came.is_some_and(|(to, uuid, _)| to == index || of.is_none_or(|it| it == *uuid))
            };
            let (gone, own): (Vec<_>, Vec<_>) = std::mem::take(&mut kept.exports)
                .into_iter()
                .partition(|spec| has_come(kept, spec));
            gone.iter().for_each(|spec| drop(kept.filesets.remove(&spec.name)));
            kept.exports = own;
            for (_, uuid, spec) in came.values().filter(|(pool, ..)| pool == index) {
                kept.enter(spec.clone(), Some(*uuid));
            }
            self.write_kept(*index, kept)?;
        }
        Ok(())
    }

    /// Serves an export.
    pub fn export(
        &self,
        index: usize,
        spec: &ExportSpec,
        by: ExportSource,
    ) -> Result<(), BackendError> {
        let served = &self.pools[index];
        let nfs = self.served_by_nfs(served)?;
        let export = self.prepare(index, spec)?;
        let name = export.rules().name.clone();
        nfs.service.add(export).map_err(|error| served.failed(error.to_string()))?;
        self.exports.lock().insert(name, ExportOwner::new(index, spec, by));
        Ok(())
    }

    /// Builds the export of `spec` without serving it.
    fn prepare(&self, index: usize, spec: &ExportSpec) -> Result<Export, BackendError> {
        let served = &self.pools[index];
        let export = export_of(served, spec)?;
        Ok(match &self.nfs {
            Some(nfs) => nfs.believing(served, export),
            None => export,
        })
    }

    /// Replaces the configured exports by `exports`. On an error nothing changes. Clients of
    /// unchanged exports are not affected.
    pub(crate) fn export_configured(&self, exports: &[(usize, ExportSpec)]) -> anyhow::Result<()> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(nfs) = &self.nfs else {
            anyhow::ensure!(exports.is_empty(), "exports need nfs = \"ADDRESS:PORT\"");
            return Ok(());
        };
        let owners = self.exports.lock().clone();
        let mut put = Vec::new();
        let mut next = Vec::new();
        for (index, spec) in exports {
            let moved = self.moved(owners.get(&spec.name), (*index, spec))?;
            let (at, now) = moved.as_ref().map_or((*index, spec), |(at, now)| (*at, now));
            let export = self.prepare(at, now)?;
            let owner = owners.get(&export.rules().name);
            next.push((
                spec.name.clone(),
                ExportOwner { pool: at, ..ExportOwner::new(*index, spec, CONFIGURED) },
            ));
            let is_free = owner.is_none_or(|owner| owner.by == ExportSource::Configuration);
            let pool = shown(&self.pools[*index].path);
            anyhow::ensure!(
                is_free,
                "{}: it was added by a command: `holdfast export remove {pool} {}`",
                spec.name,
                spec.name
            );
            put.push(export);
        }
        let is_configured = |owner: &ExportOwner| owner.by == ExportSource::Configuration;
        let old: Vec<&str> =
            owners.iter().filter(|(_, it)| is_configured(it)).map(|(name, _)| &**name).collect();
        nfs.service.replace(&old, put)?;
        let mut owners = self.exports.lock();
        owners.retain(|_, owner| !is_configured(owner));
        owners.extend(next);
        Ok(())
    }

    /// If the fileset of a configured export was moved to another pool, and the entry in the
    /// configuration is unchanged, returns the index of that pool and the export's rules there.
    fn moved(
        &self,
        owner: Option<&ExportOwner>,
        (index, spec): (usize, &ExportSpec),
    ) -> Result<Option<(usize, ExportSpec)>, BackendError> {
        let is_it = |owner: &&ExportOwner| {
            let said = (index, spec.fileset.clone());
            owner.by == CONFIGURED && owner.pool != index && owner.said == said
        };
        let Some((owner, nfs)) = owner.filter(is_it).zip(self.nfs.as_ref()) else {
            return Ok(None);
        };
        let exports = nfs.service.exports();
        let export = exports.iter().find(|export| export.rules().name == spec.name);
        let Some(export) = export else { return Ok(None) };
        let fileset = self.fileset_names(owner.pool)?.remove(&export.fileset());
        let pool = shown(&self.pools[owner.pool].path);
        tracing::warn!(export = spec.name, pool, "its fileset has moved: write that into the file");
        Ok(Some((owner.pool, ExportSpec { fileset, ..spec.clone() })))
    }

    pub(super) fn export_add(
        &self,
        index: usize,
        spec: &ExportSpec,
    ) -> Result<Answer, BackendError> {
        let served = &self.pools[index];
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let name = export_rules(spec).map_err(|cause| served.failed(cause))?.name;
        self.check_unserved(index, &name)?;
        self.export(index, spec, ExportSource::Kept)?;
        // A default export of the pool must be kept too: the next server makes none if it finds a
        // file of exports.
        for owner in self.exports.lock().values_mut() {
            if (owner.pool, owner.by) == (index, ExportSource::Default) {
                owner.by = ExportSource::Kept;
            }
        }
        // SV1: an export that could not be stored is withdrawn.
        let kept = self.keep(index);
        if kept.is_err() {
            self.withdraw(&name);
        }
        kept.map(|()| Answer::Done)
    }

    pub(super) fn export_remove(&self, index: usize, name: &str) -> Result<Answer, BackendError> {
        let served = &self.pools[index];
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(export) = self.unserved.take(index, name) {
            let kept = self.keep(index);
            if kept.is_err() {
                self.unserved.put(index, export);
            }
            return kept.map(|()| Answer::Done);
        }
        let owner = self.exports.lock().get(name).cloned().filter(|owner| owner.pool == index);
        match owner {
            None => {
                let list = format!("`holdfast export list {}` shows them", shown(&served.path));
                Err(served.failed(format!("there is no export {name} of this pool: {list}")))
            }
            Some(ExportOwner { by: ExportSource::Configuration, .. }) => {
                Err(served.failed(format!(
                    "the export {name} is one of holdfast.toml: remove it there, and `holdfast \
                 reload {}`",
                    shown(&served.path)
                )))
            }
            Some(owner) => {
                self.exports.lock().remove(name);
                let kept = self.keep(index);
                if kept.is_err() {
                    self.exports.lock().insert(name.to_owned(), owner);
                } else {
                    self.withdraw(name);
                }
                kept.map(|()| Answer::Done)
            }
        }
    }

    pub(crate) fn withdraw(&self, name: &str) {
        if let Some(nfs) = &self.nfs {
            nfs.service.remove(name);
        }
        self.exports.lock().remove(name);
    }

    pub(super) fn export_list(&self, index: usize, after: &str) -> Result<Answer, BackendError> {
        let nfs = self.served_by_nfs(&self.pools[index])?;
        let mut list = self.facts(index)?;
        for facts in &mut list {
            facts.mount = mount_line(nfs.address, &facts.export.name);
        }
        list.extend(self.unserved_facts(index));
        list.retain(|facts| facts.export.name.as_str() > after);
        list.sort_by(|a, b| a.export.name.cmp(&b.export.name));
        let has_more = list.len() > EXPORTS_MAX;
        if has_more {
            // The next page starts after a name. A served and an unserved export of equal name must
            // therefore be on one page.
            let is_split = list[EXPORTS_MAX - 1].export.name == list[EXPORTS_MAX].export.name;
            list.truncate(EXPORTS_MAX - usize::from(is_split));
        }
        Ok(Answer::Exports { list, has_more })
    }

    fn facts(&self, index: usize) -> Result<Vec<ExportFacts>, BackendError> {
        let Some(nfs) = &self.nfs else { return Ok(Vec::new()) };
        let names = self.fileset_names(index)?;
        let owners = self.exports.lock().clone();
        let facts = |export: Arc<Export>| {
            let owner = owners.get(&export.rules().name)?;
            let fileset = names.get(&export.fileset()).cloned();
            (owner.pool == index).then(|| ExportFacts {
                export: export_spec(export.rules(), fileset),
                by: owner.by,
                mount: String::new(),
                not_served: None,
            })
        };
        Ok(nfs.service.exports().into_iter().filter_map(facts).collect())
    }

    fn kept_of(&self, index: usize) -> Result<ExportsFile, BackendError> {
        let mut file = ExportsFile::default();
        if let Some(nfs) = &self.nfs {
            let names = self.fileset_names(index)?;
            let owners = self.exports.lock().clone();
            for export in nfs.service.exports() {
                let owner = owners.get(&export.rules().name);
                if owner.is_some_and(|it| (it.pool, it.by) == (index, ExportSource::Kept)) {
                    let fileset = names.get(&export.fileset()).cloned();
                    let spec = export_spec(export.rules(), fileset);
                    file.enter(spec, Some(export.fileset()));
                }
            }
        }
        for export in self.unserved.of(index) {
            file.enter(export.spec, export.fileset);
        }
        file.exports.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(file)
    }

    #[cfg(test)]
    pub(super) fn facts_of(&self, index: usize) -> Vec<ExportFacts> {
        let mut list = self.facts(index).expect("they can be listed");
        list.sort_by(|a, b| a.export.name.cmp(&b.export.name));
        list
    }

    pub(super) fn fileset_names(
        &self,
        index: usize,
    ) -> Result<BTreeMap<FilesetUuid, String>, BackendError> {
        let all = self.filesets_of(index)?.into_iter();
        let named = |facts: FilesetFacts| {
            let uuid = u128::from_str_radix(&facts.uuid, 16).ok()?;
            Some((FilesetUuid(uuid), facts.name))
        };
        Ok(all.filter_map(named).collect())
    }

    pub(super) fn filesets_of(&self, index: usize) -> Result<Vec<FilesetFacts>, BackendError> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(slot) = from {
            let request = Request::FilesetList { from: slot };
            let Answer::Filesets { list, next } =
                self.pools[index].pool.control(&request, Peer::own())?
            else {
                break;
            };
            // A deleted fileset that is not yet freed is still listed, with its old name.
            let is_there = |it: &FilesetFacts| {
                it.freed_permille.is_none() && !it.is_snapshot && !it.is_receiving
            };
            all.extend(list.into_iter().filter(is_there));
            from = next.filter(|&next| next > slot);
        }
        Ok(all)
    }

    /// Stores the kept exports of a pool, and the arriving exports of all pools (SV1).
    pub(super) fn keep(&self, index: usize) -> Result<(), BackendError> {
        self.keep_own(index)?;
        let others: BTreeSet<usize> = self.arriving().into_values().collect();
        others.into_iter().filter(|to| *to != index).try_for_each(|to| self.keep_own(to))
    }

    fn keep_own(&self, index: usize) -> Result<(), BackendError> {
        let mut file = self.kept_of(index)?;
        for (fileset, to) in self.arriving().into_iter().filter(|(_, to)| *to == index) {
            let uuid = format!("{:032x}", fileset.0);
            let owners = self.exports.lock().clone();
            let mut going = self.unserved.of_fileset(fileset, to);
            for export in self.nfs.iter().flat_map(|nfs| nfs.service.exports()) {
                let owner = owners.get(&export.rules().name);
                let is_kept = owner.is_some_and(|it| it.by == ExportSource::Kept && it.pool != to);
                if is_kept && export.fileset() == fileset {
                    going.push(export_spec(export.rules(), None));
                }
            }
            let arriving = |export| ArrivingExport { uuid: uuid.clone(), export };
            file.arriving.extend(going.into_iter().map(arriving));
        }
        self.write_kept(index, &file)
    }

    fn write_kept(&self, index: usize, file: &ExportsFile) -> Result<(), BackendError> {
        let served = &self.pools[index];
        let text = toml::to_string(file).map_err(|error| served.failed(error.to_string()))?;
        let head = format!(
            "# What `holdfast export add` has exported of {}. The server writes this file: change\n\
             # it by `holdfast export`.\n\n",
            shown(&served.path).escape_debug()
        );
        let written = self.state.write(&file_of(served), &(head + &text));
        written.map_err(|error| served.failed(format!("{error:#}")))
    }

    fn arriving(&self) -> BTreeMap<FilesetUuid, usize> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets or removes the target pool of a moving fileset. Returns the one set before.
    fn set_arriving(&self, fileset: FilesetUuid, to: Option<usize>) -> Option<usize> {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        match to {
            Some(to) => arriving.insert(fileset, to),
            None => arriving.remove(&fileset),
        }
    }

    fn has_kept_of(&self, fileset: FilesetUuid) -> bool {
        let owners = self.exports.lock();
        let is_kept = |name: &str| owners.get(name).is_some_and(|it| it.by == ExportSource::Kept);
        let mut exports = self.nfs.iter().flat_map(|nfs| nfs.service.exports());
        exports.any(|it| it.fileset() == fileset && is_kept(&it.rules().name))
            || !self.unserved.of_fileset(fileset, usize::MAX).is_empty()
    }

    pub(super) fn exports_will_move(
        &self,
        fileset: FilesetUuid,
        to: usize,
    ) -> Result<(), BackendError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.set_arriving(fileset, Some(to));
        if !self.has_kept_of(fileset) {
            return Ok(());
        }
        let kept = self.keep_own(to);
        if kept.is_err() {
            self.set_arriving(fileset, before);
        }
        kept
    }

    /// Removes the arriving exports of a fileset that has stayed in its pool. If its pool is
    /// unknown, they must remain until the move ends or the server restarts, so do not call this
    /// then.
    pub(super) fn exports_stay(&self, fileset: FilesetUuid) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(to) = self.set_arriving(fileset, None) else { return };
        if self.has_kept_of(fileset)
            && let Err(error) = self.keep_own(to)
        {
            tracing::error!("exports of a fileset that has stayed are in a file: {error}");
        }
    }

    /// Gives the exports of a moved fileset to pool `to`, durably if they are kept. For configured
    /// exports, only a warning is logged, because `holdfast.toml` still names the old pool.
    pub(super) fn exports_moved(&self, fileset: FilesetUuid, (from, to): (usize, usize)) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut is_kept, mut configured) = (self.unserved.moved(fileset, to), Vec::new());
        let exports = self.nfs.iter().flat_map(|nfs| nfs.service.exports());
        for export in exports.filter(|it| it.fileset() == fileset) {
            let mut owners = self.exports.lock();
            let Some(owner) = owners.get_mut(&export.rules().name) else { continue };
            owner.pool = to;
            match owner.by {
                ExportSource::Kept => is_kept = true,
                ExportSource::Configuration => configured.push(export.rules().name.clone()),
                ExportSource::CommandLine | ExportSource::Default => {}
            }
        }
        if !configured.is_empty() {
            let names = configured.join(", ");
            tracing::warn!(names, "exported by holdfast.toml from the pool that it was in");
        }
        if !is_kept {
            self.set_arriving(fileset, None);
            return;
        }
        // CRASH: the source's file loses the exports before the target's file stops listing them as
        // arriving, so that the next server finds them in at least one file.
        let kept = self.keep_own(from).and_then(|()| {
            self.set_arriving(fileset, None);
            self.keep_own(to)
        });
        if let Err(error) = kept {
            tracing::error!("exports do not follow their fileset: {error}");
        }
    }

    pub(super) fn filesets_renamed(&self, index: usize) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_kept = |owner: &ExportOwner| (owner.pool, owner.by) == (index, ExportSource::Kept);
        if !self.exports.lock().values().any(is_kept) {
            return;
        }
        if let Err(error) = self.keep(index) {
            tracing::error!("exports keep the old name of a fileset: {error}");
        }
    }
}

/// Builds the export of `spec` for a pool, without serving it.
pub fn export_of(served: &ServedPool, spec: &ExportSpec) -> Result<Export, BackendError> {
    let rules = export_rules(spec).map_err(|cause| served.failed(cause))?;
    let name = rules.fileset.as_deref().map(name_of).transpose();
    let name = name.map_err(|cause| served.failed(cause))?;
    let how = FilesetUse::Export(rules.name.clone());
    let claim = served.mounts.uses.claim(name.as_ref(), None, how)?;
    let export = Export::of(rules, claim.outside(), claim.fileset()).map_err(|error| {
        let directory = spec.dir.as_deref().unwrap_or("/");
        served.failed(refusal(directory, &error))
    })?;
    // The claim on the fileset is dropped with the export, after its last request.
    Ok(export.sealed_by(handle_keys::of(served)).keeping(Box::new(claim)))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "what has no advice of its own is told as it is")]
fn refusal(directory: &str, error: &FsError) -> String {
    match error {
        FsError::NotFound | FsError::NotDirectory => {
            format!("{directory}: no directory to export: make it, or name another")
        }
        _ => format!("{directory}: {error}"),
    }
}
