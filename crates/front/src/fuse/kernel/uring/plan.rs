//! Availability of io_uring before mounting, and the size of its queues.
//!
//! The kernel requires a queue for each possible CPU, each with an entry or more, and each entry
//! has room for the largest request. On machines with many CPUs this memory must be bounded.

use std::io;
use std::path::Path;

use super::super::super::options::FuseTransportChoice;
use super::PAYLOAD_BYTES;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Most memory of one mount's entries. Untouched pages take none, and a sequential client uses one
/// entry.
const ENTRIES_BYTES_MAX: usize = 256 << 20;
/// Most entries of a queue, hence most reads of a CPU in one batch.
const ENTRIES_MAX: usize = 16;
/// Fewest entries: a long request must not block the others.
const ENTRIES_MIN: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fuse::kernel) struct UringQueuePlan {
    pub(super) queues: u16,
    pub(super) entries: u16,
}

pub(in crate::fuse::kernel) fn plan(choice: FuseTransportChoice) -> Result<UringQueuePlan, String> {
    if choice == FuseTransportChoice::Dev {
        return Err("--transport dev, which is the default".to_owned());
    }
    turn_on(Path::new(SWITCH))?;
    let listed = std::fs::read_to_string(POSSIBLE).map_err(|e| format!("{POSSIBLE}: {e}"))?;
    let Some(processors) = count(listed.trim()) else {
        return Err(format!("{POSSIBLE} is not understood: {}", listed.trim()));
    };
    entries_of(processors)
}

fn turn_on(switch: &Path) -> Result<(), String> {
    match std::fs::read_to_string(switch) {
        Ok(state) if state.trim() == "Y" => return Ok(()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(
                "this kernel has no FUSE over io_uring (Linux 6.14 or later has)".to_owned()
            );
        }
        Err(error) => return Err(format!("{}: {error}", switch.display())),
    }
    std::fs::write(switch, "Y").map_err(|error| {
        let switch = switch.display();
        format!("{switch} is off, and turning it on failed ({error}): `echo Y >{switch}` as root")
    })
}

/// Returns the count of numbers in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.split(',').try_fold(0_usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Returns as many entries as the memory bound allows, up to [`ENTRIES_MAX`]. Fails below
/// [`ENTRIES_MIN`].
fn entries_of(processors: usize) -> Result<UringQueuePlan, String> {
    let entries = (ENTRIES_BYTES_MAX / PAYLOAD_BYTES / processors.max(1)).min(ENTRIES_MAX);
    match (u16::try_from(processors), u16::try_from(entries)) {
        (Ok(queues), Ok(count)) if entries >= ENTRIES_MIN && queues > 0 => {
            Ok(UringQueuePlan { queues, entries: count })
        }
        _ => Err(format!(
            "queues for {processors} possible processors take more than {} MiB",
            ENTRIES_BYTES_MAX >> 20
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        let lists =
            ["0", "0-1", "0-3,8", "0-3,8-11,64", "", "3-1", "a", "0-", "0-18446744073709551615"];
        let counts = lists.map(count);
        assert_eq!(counts, [Some(1), Some(2), Some(5), Some(9), None, None, None, None, None]);
    }

    #[test]
    fn entries_shrink_with_processors_until_there_are_too_few() {
        let entries = |processors| entries_of(processors).ok().map(|plan| plan.entries);
        assert_eq!([1, 2, 16, 64, 128].map(entries), [16, 16, 16, 4, 2].map(Some));
        assert_eq!(
            [0, 129, 8192, 1 << 20].map(entries),
            [Some(16), None, None, None].map(|e| e.filter(|_| false))
        );
        let reason = entries_of(129).expect_err("too many");
        assert!(
            reason.contains("129 possible processors") && reason.contains("256 MiB"),
            "{reason}"
        );
    }

    /// Goal: each failure to enable FUSE over io_uring is reported with its remedy.
    #[test]
    fn a_switch_that_cannot_be_turned_on_is_told() {
        let place = std::env::temp_dir().join(format!("holdfast-switch-{}", std::process::id()));
        let absent = turn_on(&place).expect_err("there is none");
        assert!(absent.contains("no FUSE over io_uring"), "{absent}");
        std::fs::write(&place, "N\n").expect("a file can be made");
        turn_on(&place).expect("it is ours");
        assert_eq!(std::fs::read_to_string(&place).expect("it is there"), "Y");
        turn_on(&place).expect("it is on");
        std::fs::remove_file(&place).expect("it is ours");
        std::fs::create_dir(&place).expect("the name is free");
        let refused = turn_on(&place).expect_err("a directory");
        assert!(refused.contains("holdfast-switch"), "{refused}");
        std::fs::remove_dir(&place).expect("it is ours");
    }
}
