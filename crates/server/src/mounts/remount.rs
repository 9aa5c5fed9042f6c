//! Remount: changes the options of a served mount.

use anyhow::Context;
use front::fuse::MountOptions;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ActiveMount, PoolMounts};

/// A request to remount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemountSpec {
    /// Device number in the mount table, which all bind mounts of the mount have too.
    pub device: String,
    /// All options, in the form of mount(8).
    pub options: String,
    /// Whether to check the request without applying it.
    pub is_trial: bool,
}

impl PoolMounts {
    pub(crate) fn remount(&self, spec: &RemountSpec) -> anyhow::Result<Value> {
        let shown = self.path.display();
        let mut options = MountOptions::new(&self.path.to_string_lossy());
        options.apply(&spec.options)?;
        let is_read_only = self.pool.status()["is_read_only"] == true;
        anyhow::ensure!(
            options.is_read_only || !is_read_only,
            "{shown}: the pool is open to be read only: unmount it, and mount it with -o rw"
        );
        let (remounter, directory, facts) = {
            let list = self.lock();
            let is_it = |it: &&ActiveMount| {
                // Mounters report their device numbers themselves, so a mounter's number is not
                // trusted.
                it.mounter.is_none() && it.session.device() == Some(&spec.device)
            };
            let mounted = list.mounted.iter().find(is_it);
            let mounted = mounted.with_context(|| format!("{shown}: it serves no such mount"))?;
            if let Some(fixed) = mounted.session.options().fixed_option_in(&options) {
                anyhow::bail!(
                    "-o {fixed} is for a new mount, and no remount: unmount it, and mount it so"
                );
            }
            let directory = mounted.session.directory().to_owned();
            (mounted.session.remounter(), directory, mounted.facts(&self.path))
        };
        if spec.is_trial {
            return Ok(facts);
        }
        remounter.set(&options)?;
        tracing::info!(?directory, is_read_only = options.is_read_only, "remounted");
        Ok(facts)
    }
}
