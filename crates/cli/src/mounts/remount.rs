//! A mount that is served and is to be another: read-only or not, with access times or without.

use anyhow::Context;
use front::fuse::MountOptions;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Mounted, Mounts};

/// How a mount that is there is to be from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemountSpec {
    /// Its device number, by the kernel's table of mounts: of each copy of it.
    pub(crate) device: String,
    /// All its options, as mount(8) has them.
    pub(crate) options: String,
    /// Whether it is only asked whether that can be.
    pub(crate) is_trial: bool,
}

impl Mounts {
    /// Changes a mount that is served. Returns what `status` tells of it.
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
            let is_it = |it: &&Mounted| {
                // A mounter's word is believed of nothing.
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
