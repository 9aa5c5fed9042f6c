//! The journal: checks its heads, and replays the log if the next mount would.

use std::sync::Arc;

use format::defect::DefectCode;
use format::page::PAGE_BYTES;

use crate::context::{Check, CheckError};
use crate::convert::to_u64;
use crate::reader::PoolReader;
use crate::replay::{copies_of_heads, replay_into, verify_rest};
use crate::report::DefectFinding;

/// Memory for each page that the log changes: its place, and its share of the tree.
const LOGGED_BYTES: u64 = 16;

pub(crate) fn run(check: &mut Check<'_>) -> Result<(), CheckError> {
    heads(check);
    let reader = Arc::get_mut(&mut check.reader).expect("no pass before this one shares it");
    let replayed = if check.superblock.current.is_open {
        replay_into(reader, &mut check.report)
    } else {
        verify_rest(reader, &mut check.report)
    };
    if !replayed.is_whole {
        (check.is_torn, check.is_incomplete) = (true, true);
        let what = "the log could not be replayed: what is checked may lie between two states. \
                    Leaks, missing names and totals are not told, and some defects may come of it";
        check.report.notes.push(what.to_owned());
    }
    let logged = to_u64(check.reader.logged.len()) * LOGGED_BYTES;
    let bytes = check.reader.overlay_bytes() + logged;
    check.take_memory(bytes + replayed.memory_bytes)?;
    check.memory_bytes -= replayed.memory_bytes;
    Ok(())
}

/// Reports unusable copies of the heads on each device and, in a closed pool, a copy older than the
/// other copy of its head. If no head verifies, the replay reports that.
fn heads(check: &mut Check<'_>) {
    let copies = check.reader.fixed_copies(check.reader.geometry.journal_offset);
    if copies.is_empty() {
        heads_of(check, "");
    }
    for copy in copies {
        let of_device = format!(" of {}", copy.name());
        reader_of(check).fixed = Some(copy);
        heads_of(check, &of_device);
    }
    reader_of(check).fixed = None;
}

fn reader_of<'check>(check: &'check mut Check<'_>) -> &'check mut PoolReader {
    Arc::get_mut(&mut check.reader).expect("no pass before this one shares it")
}

fn heads_of(check: &mut Check<'_>, of_device: &str) {
    let copies = copies_of_heads(&check.reader);
    let newest = copies.iter().flatten().max_by_key(|head| head.sequence);
    let Some(&newest) = newest else { return };
    let is_closed = !check.superblock.current.is_open;
    for (slot, copy) in (0..).zip(copies) {
        let what = match copy {
            Err(error) => error.to_string(),
            Ok(head) => {
                let is_twin = head.first_slot() == newest.first_slot();
                if !is_closed || !is_twin || head.sequence == newest.sequence {
                    continue;
                }
                format!("is head {}, its twin is head {}", head.sequence, newest.sequence)
            }
        };
        let defect = DefectCode::JR008.found(format!("copy {slot}{of_device}: {what}"));
        let device_offset = Some(offset_of(&check.reader, slot));
        check.report.note(DefectFinding { defect, path: None, device_offset });
    }
}

fn offset_of(reader: &PoolReader, slot: u64) -> u64 {
    reader.geometry.journal_offset + slot * to_u64(PAGE_BYTES)
}
