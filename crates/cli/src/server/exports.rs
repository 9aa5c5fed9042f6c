//! Exports of a running server: added, listed, removed, kept.
//!
//! What commands add is kept in a file of the state directory for each pool, by the pool's
//! identity, in the words of `holdfast.toml` (decision 0071).
//!
//! # Crashes
//!
//! What is exported of a fileset that moves goes along (decision 0085). Before the move begins the
//! file of the pool that it goes to says that it is *arriving*, by the identity of the fileset.
//! After the switch the export is taken out of the file of the pool that it came from, and then put
//! into the other as one that is kept. Wherever that is cut off, the next server finds the fileset
//! in one pool ([`Hub::settle_moves`] comes first): in the other, then what is arriving is exported
//! there and what the first file says of it is dropped; or where it was, then what is arriving is.
//!
//! What is kept goes by the identity of its fileset, which the file says beside its name. What
//! can't be served stays in the file ([`super::unserved`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::vnode::api::{FilesetUuid, FsError};
use front::nfs::Export;
use serde::{Deserialize, Serialize};

use super::{Hub, ServedPool, handle_keys, mount_line, shown};
use crate::backend::BackendError;
use crate::control::{
    Answer, EXPORTS_MAX, ExportFacts, ExportSource, ExportSpec, FilesetFacts, Peer, Request,
    name_of,
};
use crate::uses::Use;

/// Whose an export is, by its name.
#[derive(Default)]
pub(super) struct Exports(Mutex<BTreeMap<String, Owner>>);

#[derive(Clone, PartialEq, Eq)]
struct Owner {
    /// Number of the pool.
    pool: usize,
    by: ExportSource,
    /// Pool and fileset as whoever asked for it has named them.
    said: (usize, Option<String>),
}

impl Owner {
    fn new(pool: usize, spec: &ExportSpec, by: ExportSource) -> Owner {
        Owner { pool, by, said: (pool, spec.fileset.clone()) }
    }
}

/// Filesets that are about to move, and to the pool of which number. One is moved at a time; of
/// others it may not be known where they are.
pub(super) type Arriving = Mutex<BTreeMap<FilesetUuid, usize>>;

impl Exports {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Owner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }
}

/// What is in the file of a pool's exports.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptFile {
    #[serde(default, rename = "export", skip_serializing_if = "Vec::is_empty")]
    exports: Vec<ExportSpec>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    arriving: Vec<ArrivingExport>,
    /// By the name of an export: what identifies its fileset, as 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    filesets: BTreeMap<String, String>,
}

impl KeptFile {
    /// Returns what identifies the fileset of an export.
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

/// What is exported of a fileset that is about to come.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArrivingExport {
    /// What identifies it, as 32 hexadecimal digits.
    uuid: String,
    export: ExportSpec,
}

const CONFIGURED: ExportSource = ExportSource::Configuration;

/// Returns the name of the file that keeps what is exported of a pool.
fn file_of(served: &ServedPool) -> String {
    format!("exports-{}.toml", served.id)
}

impl Hub {
    /// Exports what was kept of each pool, behind what command line and configuration say. What is
    /// kept and can't be served now (its fileset is gone, its name is taken) stays kept, and is
    /// told. Returns whether anything was kept of any pool, be it nothing.
    pub(crate) fn export_kept(&self) -> anyhow::Result<bool> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = Vec::new();
        for (index, served) in self.pools.iter().enumerate() {
            let name = file_of(served);
            let Some(text) = self.state.read(&name)? else { continue };
            let path = self.state.path_of(&name);
            let kept: KeptFile = toml::from_str(&text).map_err(|error| {
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

    /// Exports of filesets that were about to move, when a server ended, are those of the pool that
    /// the fileset is in.
    fn resolve_arriving(&self, files: &mut [(usize, KeptFile)]) -> anyhow::Result<()> {
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
        // SV1: first those that lose an export: until the others have it their files say that it
        // comes.
        let mut changed: Vec<_> = files.iter_mut().filter(|_| is_changed).collect();
        changed.sort_by_key(|(index, _)| came.values().any(|(pool, ..)| pool == index));
        for (index, kept) in changed {
            // What is of another fileset is another export, which only has that name.
            let has_come = |kept: &KeptFile, spec: &ExportSpec| {
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

    /// Exports something from now on.
    pub(crate) fn export(
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
        self.exports.lock().insert(name, Owner::new(index, spec, by));
        Ok(())
    }

    /// Returns what `spec` says as an export that nobody can reach yet.
    fn prepare(&self, index: usize, spec: &ExportSpec) -> Result<Export, BackendError> {
        let served = &self.pools[index];
        let export = export_of(served, spec)?;
        Ok(match &self.nfs {
            Some(nfs) => nfs.believing(served, export),
            None => export,
        })
    }

    /// Exports what the configuration says, in place of what it said before: all of it, or, with an
    /// error, nothing else than before. Clients of what is in both notice nothing.
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
                Owner { pool: at, ..Owner::new(*index, spec, CONFIGURED) },
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
        let is_configured = |owner: &Owner| owner.by == ExportSource::Configuration;
        let old: Vec<&str> =
            owners.iter().filter(|(_, it)| is_configured(it)).map(|(name, _)| &**name).collect();
        nfs.service.replace(&old, put)?;
        let mut owners = self.exports.lock();
        owners.retain(|_, owner| !is_configured(owner));
        owners.extend(next);
        Ok(())
    }

    /// Returns pool and words for what the configuration exports of a fileset that has moved since,
    /// where it says of it what it said before. `None`: it has not moved, or is another.
    fn moved(
        &self,
        owner: Option<&Owner>,
        (index, spec): (usize, &ExportSpec),
    ) -> Result<Option<(usize, ExportSpec)>, BackendError> {
        let is_it = |owner: &&Owner| {
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
        let name = spec.rules().map_err(|cause| served.failed(cause))?.name;
        self.check_unserved(index, &name)?;
        self.export(index, spec, ExportSource::Kept)?;
        // What is exported as nothing else was said must not vanish with the next start, which
        // finds that something was.
        for owner in self.exports.lock().values_mut() {
            if (owner.pool, owner.by) == (index, ExportSource::Default) {
                owner.by = ExportSource::Kept;
            }
        }
        // SV1. What cannot be kept is not exported.
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
            Some(Owner { by: ExportSource::Configuration, .. }) => Err(served.failed(format!(
                "the export {name} is one of holdfast.toml: remove it there, and `holdfast reload`"
            ))),
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

    /// Exports it no more.
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
            // The next answer begins behind a name, and one that is not served may have that of one
            // that is.
            let is_split = list[EXPORTS_MAX - 1].export.name == list[EXPORTS_MAX].export.name;
            list.truncate(EXPORTS_MAX - usize::from(is_split));
        }
        Ok(Answer::Exports { list, has_more })
    }

    /// Returns the exports of a pool, with the names that their filesets have now.
    fn facts(&self, index: usize) -> Result<Vec<ExportFacts>, BackendError> {
        let Some(nfs) = &self.nfs else { return Ok(Vec::new()) };
        let names = self.fileset_names(index)?;
        let owners = self.exports.lock().clone();
        let facts = |export: Arc<Export>| {
            let owner = owners.get(&export.rules().name)?;
            let fileset = names.get(&export.fileset()).cloned();
            (owner.pool == index).then(|| ExportFacts {
                export: ExportSpec::of(export.rules(), fileset),
                by: owner.by,
                mount: String::new(),
                not_served: None,
            })
        };
        Ok(nfs.service.exports().into_iter().filter_map(facts).collect())
    }

    /// Returns the file of what commands have exported of a pool.
    fn kept_of(&self, index: usize) -> Result<KeptFile, BackendError> {
        let mut file = KeptFile::default();
        if let Some(nfs) = &self.nfs {
            let names = self.fileset_names(index)?;
            let owners = self.exports.lock().clone();
            for export in nfs.service.exports() {
                let owner = owners.get(&export.rules().name);
                if owner.is_some_and(|it| (it.pool, it.by) == (index, ExportSource::Kept)) {
                    let fileset = names.get(&export.fileset()).cloned();
                    let spec = ExportSpec::of(export.rules(), fileset);
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

    /// Returns the exports of a pool, by name.
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

    /// Returns the filesets of a pool that have a name, and no clones.
    pub(super) fn filesets_of(&self, index: usize) -> Result<Vec<FilesetFacts>, BackendError> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(slot) = from {
            let request = Request::FilesetList { from: slot };
            let Answer::Filesets { list, next } =
                self.pools[index].pool.control(&request, Peer::own())?
            else {
                break;
            };
            // What is being freed has the name and the identity that it had.
            let is_there =
                |it: &FilesetFacts| it.freed_permille.is_none() && !it.is_clone && !it.is_receiving;
            all.extend(list.into_iter().filter(is_there));
            // Slots rise, so this ends.
            from = next.filter(|&next| next > slot);
        }
        Ok(all)
    }

    /// SV1: writes down what commands have exported of a pool, and what of that is about to move.
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
                    going.push(ExportSpec::of(export.rules(), None));
                }
            }
            let arriving = |export| ArrivingExport { uuid: uuid.clone(), export };
            file.arriving.extend(going.into_iter().map(arriving));
        }
        self.write_kept(index, &file)
    }

    fn write_kept(&self, index: usize, file: &KeptFile) -> Result<(), BackendError> {
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

    /// Notes to which pool a fileset is about to move; `None`: to none. Returns what was noted.
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

    /// A fileset is about to move to the pool of number `to`: what commands have exported of it is
    /// written down there before it does.
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

    /// The move has ended, and the fileset has stayed: nothing of it is arriving. Where nobody
    /// knows, it is still, until the move is finished or the server starts again.
    pub(super) fn exports_stay(&self, fileset: FilesetUuid) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(to) = self.set_arriving(fileset, None) else { return };
        if self.has_kept_of(fileset)
            && let Err(error) = self.keep_own(to)
        {
            tracing::error!("exports of a fileset that has stayed are in a file: {error}");
        }
    }

    /// A fileset is in the pool of number `to` now, and what is exported of it goes on: from there
    /// when the server is started again. What the configuration exports it says itself.
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
        // CRASH: what is arriving stands in the file of the one until it is out of the other's.
        let kept = self.keep_own(from).and_then(|()| {
            self.set_arriving(fileset, None);
            self.keep_own(to)
        });
        if let Err(error) = kept {
            tracing::error!("exports do not follow their fileset: {error}");
        }
    }

    /// The names in the file are those that filesets had: writes those that they have.
    pub(super) fn filesets_renamed(&self, index: usize) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let is_kept = |owner: &Owner| (owner.pool, owner.by) == (index, ExportSource::Kept);
        if !self.exports.lock().values().any(is_kept) {
            return;
        }
        if let Err(error) = self.keep(index) {
            tracing::error!("exports keep the old name of a fileset: {error}");
        }
    }
}

/// Returns what `spec` says of a pool as an export that nobody can reach yet.
pub(crate) fn export_of(served: &ServedPool, spec: &ExportSpec) -> Result<Export, BackendError> {
    let rules = spec.rules().map_err(|cause| served.failed(cause))?;
    let name = rules.fileset.as_deref().map(name_of).transpose();
    let name = name.map_err(|cause| served.failed(cause))?;
    let how = Use::Export(rules.name.clone());
    let claim = served.mounts.uses.claim(name.as_ref(), None, how)?;
    let export = Export::of(rules, claim.outside(), claim.fileset()).map_err(|error| {
        let directory = spec.dir.as_deref().unwrap_or("/");
        served.failed(refusal(directory, &error))
    })?;
    // Given back with the last request that has the export.
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
