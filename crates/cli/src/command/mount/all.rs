//! `holdfast mount --all`: makes all mounts of the configuration.

use std::ffi::OsString;

use anyhow::Context;
use front::fuse::mountpoint::{self, Mountpoint};
use serde_json::{Value, json};

use crate::args::MountArgs;
use crate::daemon::Relaunch;
use crate::exit;
use crate::output::Output;
use server::hub::config::{Config, MountConfig};

pub(super) fn run(args: &MountArgs, relaunch: &Relaunch, output: &Output) -> anyhow::Result<u8> {
    let path = args.config.as_deref().context("name a configuration with --config")?;
    let config = Config::read(path)?;
    if config.mounts.is_empty() {
        output.remark(&format!("{}: it says no [[mount]].", path.display()));
    }
    let mut failed = 0;
    for mount in &config.mounts {
        match one(mount, relaunch, output) {
            Ok(()) => {}
            Err(error) => {
                failed += 1;
                let directory = mount.directory.display();
                let facts =
                    json!({ "directory": directory.to_string(), "error": format!("{error:#}") });
                output.fact(&format!("{directory} is not mounted: {error:#}"), &facts);
            }
        }
    }
    Ok(if failed == 0 { exit::DONE } else { exit::FAILED })
}

fn one(mount: &MountConfig, relaunch: &Relaunch, output: &Output) -> anyhow::Result<()> {
    let directory = &mount.directory;
    let mountpoint = mountpoint::inspect(directory)
        .with_context(|| format!("{}: make the directory first", directory.display()))?;
    let name = mount.name();
    if let Mountpoint::Live { source } = mountpoint {
        let shown = directory.display();
        let mounted = json!({ "directory": shown.to_string(), "pool": source });
        let facts = json!({ "mounted": mounted, "was_there": true });
        output.fact(&format!("{shown} is mounted already"), &facts);
        return Ok(());
    }
    // One after the other, because the first mount of a pool starts the server that serves the
    // others.
    let mut arguments: Vec<OsString> =
        vec!["--json".into(), "mount".into(), name.clone(), directory.into(), "--daemon".into()];
    if let Some(options) = &mount.options {
        arguments.extend(["-o".into(), options.into()]);
    }
    let done = std::process::Command::new(&relaunch.program)
        .args(arguments)
        .envs(relaunch.environment.iter().cloned())
        .output()
        .context("the program cannot be started again")?;
    let text = String::from_utf8_lossy(&done.stdout);
    let facts = text.lines().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let facts = facts.unwrap_or(Value::Null);
    if !done.status.success() {
        let error = facts["error"]
            .as_str()
            .map_or_else(|| String::from_utf8_lossy(&done.stderr).trim().to_owned(), str::to_owned);
        anyhow::bail!("{error}");
    }
    let text = format!("{} is mounted on {}", name.to_string_lossy(), directory.display());
    output.fact(&text, &facts);
    Ok(())
}
