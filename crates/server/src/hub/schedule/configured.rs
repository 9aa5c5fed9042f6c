//! Snapshot schedules of the configuration: `[[schedule]]` of `holdfast.toml`.
//!
//! # Policy
//!
//! 1. A configured schedule overrides a command's. Further commands for the fileset are refused.
//!    The command's schedule is kept and listed, and applies again when the configuration has no
//!    entry.
//! 2. A configured schedule applies to any fileset of its name. It does not follow a rename or a
//!    move.
//! 3. A reload is refused if an entry names no fileset, or keeps more snapshots than a fileset can
//!    have. A server that starts only reports such an entry, and serves the other filesets.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::ScheduledFileset;
use crate::backend::BackendError;
use crate::hub::config::Config;
use crate::hub::{Hub, ServedPool};
use crate::peer::Peer;
use control::{Answer, Request, SnapshotCounts, SnapshotSchedule};

/// Configured schedule of a fileset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredSchedule {
    pub(crate) pool: usize,
    pub(crate) fileset: String,
    /// Number of snapshots to keep. All 0 turns a command's schedule off.
    pub(crate) keep: SnapshotCounts,
}

impl Hub {
    pub(super) fn configured(&self, index: usize) -> Vec<ConfiguredSchedule> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let all = config.iter().flat_map(|(_, config)| &config.schedules);
        all.filter(|it| it.pool == index).cloned().collect()
    }

    /// Refuses a command for a fileset with a configured schedule (policy 1).
    pub(super) fn check_not_configured(
        &self,
        index: usize,
        fileset: &str,
    ) -> Result<(), BackendError> {
        let said = self.configured(index).into_iter().find(|it| it.fileset == fileset);
        let Some(said) = said else { return Ok(()) };
        let served = &self.pools[index];
        let pool = served.path.display();
        Err(served.failed(format!(
            "the configuration of the server says that {fileset} keeps {}: change its \
             [[schedule]], then `holdfast reload {pool}`",
            said.keep.text()
        )))
    }
}

pub(super) fn merged(
    mut own: Vec<SnapshotSchedule>,
    configured: &[ConfiguredSchedule],
    found: &BTreeMap<String, ScheduledFileset>,
) -> Vec<SnapshotSchedule> {
    for said in configured {
        let named = found.iter().find(|(_, it)| it.name == said.fileset);
        let uuid = named.map_or("", |(uuid, _)| uuid);
        let new = SnapshotSchedule::new(&said.fileset, uuid, said.keep);
        let new = SnapshotSchedule { is_gone: named.is_none(), is_configured: true, ..new };
        match own.iter_mut().find(|it| named.is_some() && it.uuid == uuid) {
            Some(before) => {
                let set_aside = Some(before.keep).filter(|keep| *keep != said.keep);
                *before = SnapshotSchedule { set_aside, ..new };
            }
            None => own.push(new),
        }
    }
    own
}

/// Refuses configured schedules that the pool cannot follow (policy 3).
pub fn check(config: &Config, index: usize, served: &ServedPool) -> anyhow::Result<()> {
    let own: Vec<_> = config.schedules.iter().filter(|it| it.pool == index).collect();
    if own.is_empty() {
        return Ok(());
    }
    let names = names_of(served)?;
    let pool = served.path.display();
    for said in &own {
        let snapshots_max = names.get(&said.fileset).copied().unwrap_or_default();
        let fits = said.keep.check_fits(&said.fileset, snapshots_max);
        fits.map_err(|cause| anyhow::anyhow!("[[schedule]]: {pool}: {cause}"))?;
    }
    match own.iter().find(|it| !names.contains_key(&it.fileset)) {
        None => Ok(()),
        Some(said) => anyhow::bail!(
            "[[schedule]]: there is no fileset {} in {pool}: `holdfast fileset list {pool}` shows \
             them",
            said.fileset
        ),
    }
}

fn names_of(served: &ServedPool) -> Result<BTreeMap<String, u64>, BackendError> {
    let (mut names, mut from) = (BTreeMap::new(), Some(0));
    while let Some(slot) = from {
        let request = Request::FilesetList { from: slot };
        let answer = served.pool.control(&request, Peer::own())?;
        let Answer::Filesets { list, next } = answer else { break };
        let are_there = list.into_iter().filter(|it| it.freed_permille.is_none());
        names.extend(are_there.map(|it| (it.name, it.snapshots_max)));
        from = next.filter(|&next| next > slot);
    }
    Ok(names)
}
