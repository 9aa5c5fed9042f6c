//! Commands for several devices.
//!
//! # Invariants
//!
//! - DC1: No request is sent before all given names are known to mean different devices.
//! - DC2: Devices are handled in the order in which they are given. The first error ends the
//!   command, which reports the outcome for each device.

use std::collections::HashMap;
use std::hash::Hash;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::named;
use crate::command::controlled::ControlledPool;
use crate::output::Output;
use control::text::printable;
use control::{DeviceFacts, UsageError};
use server::named_device::the_one_here;

#[derive(Debug)]
pub(super) struct DeviceArgument {
    /// Name that the user gave.
    pub(super) given: String,
    /// Name in requests: the device's ID if known.
    pub(super) asked: String,
    /// Path with any bytes. For a new device it is absolute.
    pub(super) path: PathBuf,
    /// Facts from the pool. `None` if it has no such device.
    pub(super) facts: Option<DeviceFacts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownDeviceRule {
    /// An unknown name is taken for the current path of an absent device.
    Allowed,
    Refused,
}

pub(super) fn of_pool(
    at: &ControlledPool,
    all: &[DeviceFacts],
    names: &[String],
    unknown: UnknownDeviceRule,
) -> anyhow::Result<Vec<DeviceArgument>> {
    let pool = at.pool.display();
    let mut chosen = Vec::with_capacity(names.len());
    for given in names {
        let whole = named(given);
        let found = the_one_here(all.to_vec(), &whole);
        let facts = found.map_err(|words| anyhow::anyhow!("{pool}: {words}"))?;
        anyhow::ensure!(
            facts.is_some() || unknown == UnknownDeviceRule::Allowed,
            "{pool}: there is no device {given}: `holdfast device list {pool}` shows them"
        );
        let id = facts.as_ref().map(|facts| facts.id.clone()).filter(|id| !id.is_empty());
        let asked = id.unwrap_or(whole);
        chosen.push(DeviceArgument { given: given.clone(), asked, path: given.into(), facts });
    }
    // DC1: by slot and ID.
    let identity = |chosen: &DeviceArgument| match &chosen.facts {
        Some(facts) => (facts.slot.to_string(), facts.id.clone()),
        None => (chosen.asked.clone(), String::new()),
    };
    refuse_twice(chosen.iter().map(|chosen| (identity(chosen), chosen.given.as_str())))?;
    Ok(chosen)
}

pub(super) fn to_come(paths: &[PathBuf]) -> anyhow::Result<Vec<DeviceArgument>> {
    let given: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    // DC1: by device number or inode.
    refuse_twice(paths.iter().map(|path| identity_of(path)).zip(given.iter().map(String::as_str)))?;
    let whole = |(path, given): (&PathBuf, &String)| {
        let path = std::path::absolute(path)?;
        let asked = path.display().to_string();
        Ok(DeviceArgument { given: given.clone(), asked, path, facts: None })
    };
    paths.iter().zip(&given).map(whole).collect()
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum DeviceFileIdentity {
    Block(u64),
    File(u64, u64),
    /// Path, if the file is missing.
    Path(PathBuf),
}

fn identity_of(path: &Path) -> DeviceFileIdentity {
    if let Ok(stat) = std::fs::metadata(path) {
        return match stat.file_type().is_block_device() {
            true => DeviceFileIdentity::Block(stat.rdev()),
            false => DeviceFileIdentity::File(stat.dev(), stat.ino()),
        };
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
    let whole = folder.ok().zip(path.file_name()).map(|(folder, name)| folder.join(name));
    DeviceFileIdentity::Path(whole.unwrap_or_else(|| path.to_owned()))
}

fn refuse_twice<'a, K: Eq + Hash>(
    devices: impl Iterator<Item = (K, &'a str)>,
) -> anyhow::Result<()> {
    let mut known: HashMap<K, &str> = HashMap::new();
    for (identity, given) in devices {
        let Some(first) = known.insert(identity, given) else { continue };
        let given = printable(given);
        let first = printable(first);
        let words = match given == first {
            true => format!("{given} is named twice"),
            false => format!("{first} and {given} are one device"),
        };
        let message = format!("{words}: nothing was done; name each device once");
        return Err(UsageError::new(message).into());
    }
    Ok(())
}

/// Calls `act` with each device, and with whether others follow, until the first error. Adds the
/// outcome for each device to that error.
pub(super) fn each(
    devices: &[DeviceArgument],
    output: &Output,
    act: &mut dyn FnMut(&DeviceArgument, bool) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for (at, device) in devices.iter().enumerate() {
        let Err(error) = act(device, at + 1 < devices.len()) else { continue };
        if devices.len() == 1 {
            return Err(error);
        }
        // DC2: the outcome for each device.
        let given: Vec<&str> = devices.iter().map(|device| device.given.as_str()).collect();
        let (done, rest) = given.split_at(at);
        let not_tried = rest.get(1..).unwrap_or_default();
        if output.is_json() {
            let facts = json!({ "done": done, "not_done": device.given, "not_tried": not_tried });
            output.fact("", &facts);
        }
        return Err(error.context(how_far(done, &device.given, not_tried)));
    }
    Ok(())
}

fn how_far(done: &[&str], not_done: &str, not_tried: &[&str]) -> String {
    let list = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| printable(name)).collect();
        names.join(", ")
    };
    let mut words = Vec::new();
    if !done.is_empty() {
        words.push(format!("done: {}", list(done)));
    }
    words.push(format!("not done: {}", printable(not_done)));
    if !not_tried.is_empty() {
        words.push(format!("not tried: {}", list(not_tried)));
    }
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_one_device_by_all_of_its_names() {
        let name = format!("holdfast-chosen-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).expect("the name is new");
        let [file, link, other, new] = ["file", "link", "other", "new"].map(|it| folder.join(it));
        std::fs::write(&file, b"").expect("there is room");
        std::fs::write(&other, b"").expect("there is room");
        std::fs::hard_link(&file, &link).expect("both are ours");
        let refusal = |paths: &[&PathBuf]| {
            let paths: Vec<PathBuf> = paths.iter().map(|&path| path.clone()).collect();
            to_come(&paths).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refusal(&[&file, &other, &new]), "");
        assert!(refusal(&[&file, &other, &link]).contains("are one device: nothing was done"));
        let again = folder.join("../").join(folder.file_name().expect("it has one")).join("new");
        assert!(refusal(&[&new, &again]).contains("are one device"));
        assert!(refusal(&[&new, &new]).contains("is named twice: nothing was done"));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn what_was_done_and_what_not_is_said_of_each() {
        assert_eq!(how_far(&["a"], "b", &["c", "d"]), "done: a; not done: b; not tried: c, d");
        assert_eq!(how_far(&[], "a\n", &[]), "not done: a\\n");
    }
}
