//! Finds the device of a pool by the name that a user typed.

use std::path::{Path, PathBuf};

use control::DeviceFacts;

/// Most symbolic links to follow from a name, as in the kernel. Detects a cycle.
const LINKS_MAX: usize = 40;

/// Returns the device with this path, id or slot. Fails with advice if several match: a missing
/// member keeps its last path, which may be another device's path at present.
pub(crate) fn the_one(
    devices: Vec<DeviceFacts>,
    name: &str,
) -> Result<Option<DeviceFacts>, String> {
    the_one_of(devices, name, &|device| is_called(device, name))
}

/// Returns the device with this path, id or slot. If none matches, makes `name` absolute, resolves
/// its symbolic links, and compares the result with each device's path. The device file itself may
/// be missing.
pub fn the_one_here(devices: Vec<DeviceFacts>, name: &str) -> Result<Option<DeviceFacts>, String> {
    let shown = the_one(devices.clone(), name)?;
    let Some(whole) = lead(Path::new(name)).filter(|_| shown.is_none()) else { return Ok(shown) };
    let is_there = |device: &DeviceFacts| {
        let path = Path::new(&device.path);
        path.is_absolute() && (path == whole || lead(path).is_some_and(|it| it == whole))
    };
    the_one_of(devices, name, &is_there)
}

fn lead(path: &Path) -> Option<PathBuf> {
    let mut path = std::path::absolute(path).ok()?;
    for _ in 0..LINKS_MAX {
        if let Ok(whole) = std::fs::canonicalize(&path) {
            return Some(whole);
        }
        let folder = std::fs::canonicalize(path.parent()?).ok()?;
        let whole = folder.join(path.file_name()?);
        match std::fs::read_link(&whole) {
            Ok(target) => path = folder.join(target),
            Err(_) => return Some(whole),
        }
    }
    None
}

fn the_one_of(
    devices: Vec<DeviceFacts>,
    name: &str,
    is_it: &dyn Fn(&DeviceFacts) -> bool,
) -> Result<Option<DeviceFacts>, String> {
    let mut found: Vec<DeviceFacts> = devices.into_iter().filter(is_it).collect();
    if found.len() > 1 {
        let each = |device: &DeviceFacts| {
            format!("slot {} ({}, {}, id {})", device.slot, device.path, device.state, device.id)
        };
        let all: Vec<String> = found.iter().map(each).collect();
        return Err(format!("{name} names {}: say which by its id", all.join(" and ")));
    }
    Ok(found.pop())
}

fn is_called(device: &DeviceFacts, name: &str) -> bool {
    !name.is_empty() && device.path == name || device.id == name || device.slot.to_string() == name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a path shared by two members, one of them missing, selects neither.
    #[test]
    fn a_name_of_several_devices_is_refused() {
        let device = |slot: u64, path: &str, state: &str| DeviceFacts {
            slot,
            id: format!("{slot:032x}"),
            path: path.to_owned(),
            state: state.to_owned(),
            ..DeviceFacts::default()
        };
        let all = || {
            vec![
                device(0, "/dev/sdd", "online"),
                device(1, "/dev/sdb", "online"),
                device(3, "/dev/sdd", "missing"),
            ]
        };
        let words = the_one(all(), "/dev/sdd").expect_err("it is two");
        assert!(words.contains("slot 0") && words.contains("slot 3 (/dev/sdd, missing"), "{words}");
        let of = |name: &str| the_one(all(), name).expect("it is one").map(|it| it.slot);
        assert_eq!(of("/dev/sdb"), Some(1));
        assert_eq!(of("3"), Some(3));
        assert_eq!(of(&format!("{:032x}", 0)), Some(0));
        assert_eq!(of("/dev/sdx"), None);
    }
    /// Goal: a device whose file is missing is found by every path that led to the file: a relative
    /// one, one through a linked folder, and a link to the file.
    #[test]
    fn a_device_that_is_gone_goes_by_every_path_to_it() {
        let folder = std::env::temp_dir().join(format!("holdfast-gone-{}", std::process::id()));
        let folder = std::path::absolute(folder).expect("it is one");
        std::fs::create_dir_all(folder.join("p")).expect("the name is new");
        let folder = std::fs::canonicalize(&folder).expect("it is there");
        let at = |name: &str| folder.join(name).display().to_string();
        std::os::unix::fs::symlink(at("p"), at("folder")).expect("the name is new");
        std::os::unix::fs::symlink("p/gone", at("relative")).expect("the name is new");
        std::os::unix::fs::symlink(at("relative"), at("link")).expect("the name is new");
        std::os::unix::fs::symlink(at("circle"), at("circle")).expect("the name is new");
        let device = |slot: u64, path: String| DeviceFacts { slot, path, ..DeviceFacts::default() };
        let all = || vec![device(0, at("p/there")), device(1, at("p/gone"))];
        let of = |name: &str| the_one_here(all(), name).expect("it is one").map(|it| it.slot);
        for name in ["p/gone", "folder/gone", "p/../p/gone", "relative", "link"] {
            assert_eq!(of(&at(name)), Some(1), "{name}");
        }
        assert_eq!(of("1"), Some(1));
        for name in ["circle", "p/other", "nowhere/gone"] {
            assert_eq!(of(&at(name)), None, "{name}");
        }
        let own = std::env::current_dir().expect("there is one").join("gone");
        let all = vec![device(7, own.display().to_string())];
        assert_eq!(the_one_here(all, "gone").expect("it is one").map(|it| it.slot), Some(7));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
