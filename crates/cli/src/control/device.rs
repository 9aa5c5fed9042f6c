//! Which device of a pool a name names.

use super::DeviceFacts;

/// Returns the one of `devices` that `name` names; what to do where it names several: a member that
/// is away has the path that it had last, and another device may have that by now.
pub(crate) fn the_one(
    devices: Vec<DeviceFacts>,
    name: &str,
) -> Result<Option<DeviceFacts>, String> {
    let mut found: Vec<DeviceFacts> =
        devices.into_iter().filter(|device| is_called(device, name)).collect();
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
    // Of some the path is not known.
    !name.is_empty() && device.path == name || device.id == name || device.slot.to_string() == name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a path that two members have, of which one is away, acts on neither.
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
}
