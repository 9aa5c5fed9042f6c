//! Clones by schedule that the configuration says: `[[schedule]]` of `holdfast.toml`.
//!
//! # Policy
//!
//! 1. What the configuration says of a fileset counts, and a command that says another thing of it
//!    is refused. What a command has said before is kept, told, and counts again once the
//!    configuration says nothing of the fileset.
//! 2. It is of whatever has the name: who writes a file writes names. A fileset that is renamed or
//!    moves to another pool leaves it behind.
//! 3. A name that no fileset has, and more clones than a fileset can have, is refused when the
//!    configuration is read again. A server that
//!    starts goes on: the other filesets have their clones, and it tells of this one.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::{Counts, Found, Schedule};
use crate::backend::BackendError;
use crate::control::{Answer, Peer, Request};
use crate::server::config::Config;
use crate::server::{Hub, ServedPool};

/// What the configuration says of a fileset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredSchedule {
    /// The number of the pool.
    pub(crate) pool: usize,
    /// The fileset.
    pub(crate) fileset: String,
    /// What is kept of it; nothing: whatever a command has said, none is taken.
    pub(crate) keep: Counts,
}

impl Hub {
    /// Returns what the configuration says of filesets of a pool.
    pub(super) fn configured(&self, index: usize) -> Vec<ConfiguredSchedule> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let all = config.iter().flat_map(|(_, config)| &config.schedules);
        all.filter(|it| it.pool == index).cloned().collect()
    }

    /// The policy's first sentence.
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

/// Returns schedules of a pool with what the configuration says beside what commands have said.
pub(super) fn merged(
    mut own: Vec<Schedule>,
    configured: &[ConfiguredSchedule],
    found: &BTreeMap<String, Found>,
) -> Vec<Schedule> {
    for said in configured {
        let named = found.iter().find(|(_, it)| it.name == said.fileset);
        let uuid = named.map_or("", |(uuid, _)| uuid);
        let new = Schedule::new(&said.fileset, uuid, said.keep);
        let new = Schedule { is_gone: named.is_none(), is_configured: true, ..new };
        match own.iter_mut().find(|it| named.is_some() && it.uuid == uuid) {
            Some(before) => {
                let set_aside = Some(before.keep).filter(|keep| *keep != said.keep);
                *before = Schedule { set_aside, ..new };
            }
            None => own.push(new),
        }
    }
    own
}

/// The policy's third sentence: refuses what `config` says of a fileset that a pool does not have.
pub(crate) fn check(config: &Config, index: usize, served: &ServedPool) -> anyhow::Result<()> {
    let own: Vec<_> = config.schedules.iter().filter(|it| it.pool == index).collect();
    if own.is_empty() {
        return Ok(());
    }
    let names = names_of(served)?;
    let pool = served.path.display();
    for said in &own {
        let clones_max = names.get(&said.fileset).copied().unwrap_or_default();
        let fits = said.keep.check_fits(&said.fileset, clones_max);
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

/// Returns the names of the filesets of a pool, and how many clones each can have.
fn names_of(served: &ServedPool) -> Result<BTreeMap<String, u64>, BackendError> {
    let (mut names, mut from) = (BTreeMap::new(), Some(0));
    while let Some(slot) = from {
        let request = Request::FilesetList { from: slot };
        let answer = served.pool.control(&request, Peer::own())?;
        let Answer::Filesets { list, next } = answer else { break };
        let are_there = list.into_iter().filter(|it| it.freed_permille.is_none());
        names.extend(are_there.map(|it| (it.name, it.clones_max)));
        // Slots rise, so this ends.
        from = next.filter(|&next| next > slot);
    }
    Ok(names)
}
