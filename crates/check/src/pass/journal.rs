//! The journal: its heads, and what the next mount will make of the log.

use std::sync::Arc;

use crate::replay::{replay_into, verify_rest};
use crate::{Check, Stop};

/// Lays over the device what the next mount would write, if it would write anything.
pub(crate) fn run(check: &mut Check<'_>) -> Result<(), Stop> {
    let reader = Arc::get_mut(&mut check.reader).expect("no pass before this one shares it");
    if check.superblock.current.is_open {
        replay_into(reader, &mut check.report);
    } else {
        verify_rest(reader, &mut check.report);
    }
    let bytes = check.reader.overlay_bytes();
    check.take_memory(bytes)
}
