//! Exports of a running server: added, listed, removed, kept.
//!
//! What commands add is kept in a file of the state directory for each pool, by the pool's
//! identity, in the words of `holdfast.toml` (decision 0071).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::vnode::api::{FilesetUuid, FsError};
use front::nfs::Export;
use serde::{Deserialize, Serialize};

use super::{Hub, ServedPool, mount_line, shown};
use crate::backend::BackendError;
use crate::control::{
    Answer, EXPORTS_MAX, ExportFacts, ExportSource, ExportSpec, Peer, Request, name_of,
};
use crate::uses::Use;

/// Whose an export is, by its name.
#[derive(Default)]
pub(super) struct Exports(Mutex<BTreeMap<String, Owner>>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    /// Number of the pool.
    pool: usize,
    by: ExportSource,
}

impl Exports {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Owner>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is in the file of a pool's exports.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptFile {
    #[serde(default, rename = "export")]
    exports: Vec<ExportSpec>,
}

/// Returns the name of the file that keeps what is exported of a pool.
fn file_of(served: &ServedPool) -> String {
    format!("exports-{}.toml", served.id)
}

impl Hub {
    /// Exports what the command line or the configuration says, and then what was kept of each
    /// pool. What is kept and cannot be exported now (its fileset is gone, its name is taken) stays
    /// kept, and is told. Returns whether anything was kept of any pool, be it nothing.
    pub(crate) fn export_kept(&self) -> anyhow::Result<bool> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut has_file = false;
        for (index, served) in self.pools.iter().enumerate() {
            let name = file_of(served);
            let Some(text) = self.state.read(&name)? else { continue };
            has_file = true;
            let path = self.state.path_of(&name);
            let kept: KeptFile = toml::from_str(&text).map_err(|error| {
                anyhow::anyhow!("{}: {error}: mend the file, or remove it", path.display())
            })?;
            for spec in kept.exports {
                if let Err(error) = self.export(index, &spec, ExportSource::Kept) {
                    tracing::error!(export = spec.name, "not exported: {error}");
                }
            }
        }
        Ok(has_file)
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
        self.exports.lock().insert(name, Owner { pool: index, by });
        Ok(())
    }

    /// Returns what `spec` says as an export that nobody can reach yet.
    fn prepare(&self, index: usize, spec: &ExportSpec) -> Result<Export, BackendError> {
        export_of(&self.pools[index], spec)
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
        for (index, spec) in exports {
            let export = self.prepare(*index, spec)?;
            let owner = owners.get(&export.rules().name);
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
        for (pool, spec) in exports {
            let owner = Owner { pool: *pool, by: ExportSource::Configuration };
            owners.insert(spec.name.clone(), owner);
        }
        Ok(())
    }

    pub(super) fn export_add(
        &self,
        index: usize,
        spec: &ExportSpec,
    ) -> Result<Answer, BackendError> {
        let served = &self.pools[index];
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
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
            self.withdraw(&spec.rules().map_err(|cause| served.failed(cause))?.name);
        }
        kept.map(|()| Answer::Done)
    }

    pub(super) fn export_remove(&self, index: usize, name: &str) -> Result<Answer, BackendError> {
        let served = &self.pools[index];
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = self.exports.lock().get(name).copied().filter(|owner| owner.pool == index);
        match owner {
            None => {
                let list = format!("`holdfast export list {}` shows them", shown(&served.path));
                Err(served.failed(format!("there is no export {name} of this pool: {list}")))
            }
            Some(Owner { by: ExportSource::Configuration, .. }) => Err(served.failed(format!(
                "the export {name} is one of holdfast.toml: remove it there, and `holdfast reload`"
            ))),
            Some(_) => {
                self.withdraw(name);
                self.keep(index)?;
                Ok(Answer::Done)
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
        let mut list = self.facts(index, None)?;
        list.retain(|facts| facts.export.name.as_str() > after);
        list.sort_by(|a, b| a.export.name.cmp(&b.export.name));
        let has_more = list.len() > EXPORTS_MAX;
        list.truncate(EXPORTS_MAX);
        for facts in &mut list {
            facts.mount = mount_line(nfs.address, &facts.export.name);
        }
        Ok(Answer::Exports { list, has_more })
    }

    /// Returns the exports of a pool, those of `by` alone if that is given, with the names that
    /// their filesets have now.
    fn facts(
        &self,
        index: usize,
        by: Option<ExportSource>,
    ) -> Result<Vec<ExportFacts>, BackendError> {
        let Some(nfs) = &self.nfs else { return Ok(Vec::new()) };
        let names = self.fileset_names(index)?;
        let owners = self.exports.lock().clone();
        let facts = |export: std::sync::Arc<Export>| {
            let owner = owners.get(&export.rules().name)?;
            let is_asked = owner.pool == index && by.is_none_or(|by| by == owner.by);
            let fileset = names.get(&export.fileset()).cloned();
            is_asked.then(|| ExportFacts {
                export: ExportSpec::of(export.rules(), fileset),
                by: owner.by,
                mount: String::new(),
            })
        };
        Ok(nfs.service.exports().into_iter().filter_map(facts).collect())
    }

    fn fileset_names(&self, index: usize) -> Result<BTreeMap<FilesetUuid, String>, BackendError> {
        let (mut names, mut from) = (BTreeMap::new(), Some(0));
        while let Some(slot) = from {
            let request = Request::FilesetList { from: slot };
            let Answer::Filesets { list, next } =
                self.pools[index].pool.control(&request, Peer::own())?
            else {
                break;
            };
            for facts in list {
                if let Ok(uuid) = u128::from_str_radix(&facts.uuid, 16) {
                    names.insert(FilesetUuid(uuid), facts.name);
                }
            }
            // Slots rise, so this ends.
            from = next.filter(|&next| next > slot);
        }
        Ok(names)
    }

    /// SV1: writes down what commands have exported of a pool.
    fn keep(&self, index: usize) -> Result<(), BackendError> {
        let served = &self.pools[index];
        let kept = self.facts(index, Some(ExportSource::Kept))?;
        let exports = kept.into_iter().map(|facts| facts.export).collect();
        let file = KeptFile { exports };
        let text = toml::to_string(&file).map_err(|error| served.failed(error.to_string()))?;
        let head = format!(
            "# What `holdfast export add` has exported of {}. The server writes this file: change\n\
             # it by `holdfast export`.\n\n",
            shown(&served.path).escape_debug()
        );
        let written = self.state.write(&file_of(served), &(head + &text));
        written.map_err(|error| served.failed(format!("{error:#}")))
    }

    /// A fileset is in the pool of number `to` now, and what is exported of it goes on: from there
    /// when the server is started again. What the configuration exports it says itself.
    pub(super) fn exports_moved(&self, fileset: FilesetUuid, (from, to): (usize, usize)) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(nfs) = &self.nfs else { return };
        let (mut is_kept, mut configured) = (false, Vec::new());
        for export in nfs.service.exports().iter().filter(|it| it.fileset() == fileset) {
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
        for index in [to, from].into_iter().filter(|_| is_kept) {
            if let Err(error) = self.keep(index) {
                tracing::error!("exports do not follow their fileset: {error}");
            }
        }
    }

    /// The names in the file are those that filesets had: writes those that they have.
    pub(super) fn filesets_renamed(&self, index: usize) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let has_kept = self
            .exports
            .lock()
            .values()
            .any(|owner| owner.pool == index && owner.by == ExportSource::Kept);
        if !has_kept {
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
    Ok(export.keeping(Box::new(claim)))
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
