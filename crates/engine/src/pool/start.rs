//! Where the journal of a pool that is opened goes on: at the end of a closed one, or behind what
//! was replayed.

use std::cell::RefCell;

use format::ids::{Epoch, PoolId};
use format::journal::JournalHead;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};
use storage::volume::Volume;

use super::OpenError;
use crate::convert::wide;
use crate::journal::{self, JournalStart, RecoveryReport};
use crate::segment::{LostBlock, summarise_log_data};

/// Returns the head of a closed pool's journal; `None`: its log must be replayed.
pub(super) fn rest_of(
    volume: &Volume,
    superblock: &Superblock,
) -> Result<Option<JournalHead>, OpenError> {
    if superblock.is_open {
        return Ok(None);
    }
    Ok(journal::head_at_rest(volume, superblock.pool_id)?)
}

/// Returns where the journal of a closed pool goes on.
pub(super) fn go_on(
    volume: &Volume,
    superblock: &Superblock,
    head: JournalHead,
    is_read_only: bool,
) -> Result<JournalStart, OpenError> {
    journal::check_room(head.tail, head.epoch.0.max(superblock.epoch_base.0))?;
    let head = if is_read_only {
        head
    } else {
        journal::align_head(volume, superblock.pool_id, head, superblock.sector_bytes)?
    };
    Ok(JournalStart {
        lsn: head.tail,
        previous_crc: head.previous_crc,
        epoch: Epoch(head.epoch.0.max(superblock.epoch_base.0)),
        head_sequence: head.sequence,
        double_write_sequence: head.double_write_sequence,
    })
}

/// Replays the log; returns where the journal goes on.
pub(super) fn recover(
    volume: &Volume,
    superblock: &mut Superblock,
    lost: &mut Vec<LostBlock>,
) -> Result<(JournalStart, RecoveryReport), OpenError> {
    let (pool_id, epoch_base) = (superblock.pool_id, superblock.epoch_base);
    let told = RefCell::new(lost);
    let recovery = journal::recover(volume, pool_id, epoch_base, &|kept, log| {
        summarise_log_data(volume, superblock, kept, log, &mut told.borrow_mut())
    })?;
    superblock.add_void(recovery.void);
    let lost_blocks = wide(told.into_inner().len());
    let report = RecoveryReport { was_needed: true, lost_blocks, ..recovery.report };
    Ok((recovery.start, report))
}

/// Refuses to leave members behind that are not there where the others do not give the whole log:
/// once the labels call them missing nobody reads what they have of it. Writes nothing.
pub(super) fn check_log_without_absent(volume: &Volume, pool_id: PoolId) -> Result<(), OpenError> {
    let is_planted = planted::is(Planted::LogReadTooLate);
    let Some(missing) = volume.newly_absent().filter(|_| !is_planted) else { return Ok(()) };
    let read = journal::check_log(volume, pool_id);
    read.map_err(|cause| OpenError::LogAway { missing, cause: Box::new(cause) })
}
