//! Several devices in one command: which they are, and what became of each.
//!
//! # Invariants
//!
//! - DC1: Nothing is asked for before each name is known to be that of another device than the
//!   others.
//! - DC2: Devices are taken in the order in which they were named. What is refused ends the
//!   command, which says for each device whether it was done.

use std::collections::HashMap;
use std::hash::Hash;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::named;
use crate::command::controlled::Controlled;
use crate::control::DeviceFacts;
use crate::control::device::the_one_here;
use crate::exit::UsageError;
use crate::output::{Output, printable};

/// A device that a command names.
#[derive(Debug)]
pub(super) struct Chosen {
    /// As the user named it.
    pub(super) given: String,
    /// As the pool is asked for it.
    pub(super) asked: String,
    /// The name as a path, which may have any bytes; of one that is to come the whole one.
    pub(super) path: PathBuf,
    /// What the pool says of it; `None`: it knows none of that name.
    pub(super) facts: Option<DeviceFacts>,
}

/// Whether a name may be one that the pool does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    /// It is the path where a device is now.
    Allowed,
    /// Nothing can be done with it.
    Refused,
}

/// Returns the devices that `names` name, of `all` that the pool has.
pub(super) fn of_pool(
    at: &Controlled,
    all: &[DeviceFacts],
    names: &[String],
    unknown: Unknown,
) -> anyhow::Result<Vec<Chosen>> {
    let pool = at.pool.display();
    let mut chosen = Vec::with_capacity(names.len());
    for given in names {
        let whole = named(given);
        let found = the_one_here(all.to_vec(), &whole);
        let facts = found.map_err(|words| anyhow::anyhow!("{pool}: {words}"))?;
        anyhow::ensure!(
            facts.is_some() || unknown == Unknown::Allowed,
            "{pool}: there is no device {given}: `holdfast device list {pool}` shows them"
        );
        // By what it is: when another was taken out or in, a slot may be that of another device.
        let id = facts.as_ref().map(|facts| facts.id.clone()).filter(|id| !id.is_empty());
        let asked = id.unwrap_or(whole);
        chosen.push(Chosen { given: given.clone(), asked, path: given.into(), facts });
    }
    // DC1.
    let identity = |chosen: &Chosen| match &chosen.facts {
        Some(facts) => (facts.slot.to_string(), facts.id.clone()),
        None => (chosen.asked.clone(), String::new()),
    };
    refuse_twice(chosen.iter().map(|chosen| (identity(chosen), chosen.given.as_str())))?;
    Ok(chosen)
}

/// Returns devices that are to come to the pool, by their whole paths.
pub(super) fn to_come(paths: &[PathBuf]) -> anyhow::Result<Vec<Chosen>> {
    let given: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    // DC1.
    refuse_twice(paths.iter().map(|path| identity_of(path)).zip(given.iter().map(String::as_str)))?;
    let whole = |(path, given): (&PathBuf, &String)| {
        let path = std::path::absolute(path)?;
        let asked = path.display().to_string();
        Ok(Chosen { given: given.clone(), asked, path, facts: None })
    };
    paths.iter().zip(&given).map(whole).collect()
}

/// What tells a file or device from others, whatever name it goes by.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Identity {
    /// A block device, by its number.
    Block(u64),
    /// A file, by its file system and its inode.
    File(u64, u64),
    /// What is not there yet, by its path.
    Path(PathBuf),
}

fn identity_of(path: &Path) -> Identity {
    if let Ok(stat) = std::fs::metadata(path) {
        return match stat.file_type().is_block_device() {
            true => Identity::Block(stat.rdev()),
            false => Identity::File(stat.dev(), stat.ino()),
        };
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
    let whole = folder.ok().zip(path.file_name()).map(|(folder, name)| folder.join(name));
    Identity::Path(whole.unwrap_or_else(|| path.to_owned()))
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

/// Calls `act` with each of `devices`, and whether others follow, until one is refused; says then
/// what was done.
pub(super) fn each(
    devices: &[Chosen],
    output: &Output,
    act: &mut dyn FnMut(&Chosen, bool) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for (at, device) in devices.iter().enumerate() {
        let Err(error) = act(device, at + 1 < devices.len()) else { continue };
        if devices.len() == 1 {
            return Err(error);
        }
        // DC2.
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

/// Says what was done of several devices.
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
