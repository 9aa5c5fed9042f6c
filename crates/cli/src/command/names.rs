//! `holdfast names WORD LINE`: names that complete the last word of a command line: served pools,
//! their filesets, snapshots and devices. Run by the completion scripts of `holdfast generate`.
//!
//! Opens no pool. Prints nothing on errors, and after [`TIME_MAX`], because a shell waits for it.

use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::Value;

use super::controlled::ControlledPool;
use crate::exit;
use crate::output::Output;
use control::{Answer, Request};
use server::status::{self, DiscoveredServer};

/// Longest wait for servers.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Most names printed. A shell asks before it shows more than a hundred.
const NAMES_MAX: usize = 1000;

pub(crate) fn run(word: &str, line: &str) -> u8 {
    let (sender, receiver) = channel();
    let (word, line) = (word.to_owned(), line.to_owned());
    std::thread::spawn(move || sender.send(names_of(&word, &line)));
    if let Ok(Ok(names)) = receiver.recv_timeout(TIME_MAX) {
        let output = Output::new(false);
        names.iter().for_each(|name| output.fact(name, &Value::Null));
    }
    exit::DONE
}

fn names_of(word: &str, line: &str) -> anyhow::Result<Vec<String>> {
    let earlier = line.strip_suffix(word).unwrap_or(line).split_whitespace();
    let earlier: Vec<&str> = earlier.filter(|it| !it.starts_with('-')).collect();
    let Some(command) = earlier.get(1) else { return Ok(Vec::new()) };
    let mut names = match word.split_once(':') {
        Some((pool, rest)) => {
            let Some(at) = served(pool)? else { return Ok(Vec::new()) };
            let mut filesets = at.filesets()?;
            filesets.retain(|it| it.is_snapshot == rest.contains('@'));
            filesets.into_iter().map(|it| format!("{pool}:{}", it.name)).collect()
        }
        None => {
            let pool = earlier.get(3).filter(|_| *command == "device");
            match pool.map_or(Ok(None), |pool| served(pool))? {
                Some(at) => devices_of(&at)?,
                None => {
                    let servers = status::all()?;
                    let names = servers.iter().filter_map(|found| found.pool_name());
                    names
                        .chain(servers.iter().map(|found| found.pool()))
                        .map(str::to_owned)
                        .collect()
                }
            }
        }
    };
    // The scripts split at line ends. Other characters that shells interpret are left to them.
    names.retain(|name| name.starts_with(word) && !name.contains(char::is_control));
    names.sort();
    names.dedup();
    names.truncate(NAMES_MAX);
    Ok(names)
}

/// Returns the pool that `word` names, by its name, a device, or a mount point, if it has a server.
fn served(word: &str) -> anyhow::Result<Option<ControlledPool>> {
    let servers = status::all()?;
    let path = std::fs::canonicalize(word).or_else(|_| std::path::absolute(word))?;
    let is_named = |found: &DiscoveredServer| found.pool_name() == Some(word);
    let is_at = |found: &DiscoveredServer| found.is_on(&path) || found.devices().contains(&path);
    let found = servers.iter().position(is_named).or(servers.iter().position(is_at));
    Ok(found.and_then(|index| servers.into_iter().nth(index)).map(ControlledPool::of))
}

fn devices_of(at: &ControlledPool) -> anyhow::Result<Vec<String>> {
    let Answer::Devices(devices) = at.ask(&Request::DeviceList {})? else { return Ok(Vec::new()) };
    Ok(devices.into_iter().map(|device| device.path).collect())
}
