//! Start position of the journal at an open: the end of a closed pool's log, or of the replayed
//! log.

use std::cell::RefCell;

use format::ids::{Epoch, PoolId};
use format::journal::JournalHead;
use format::superblock::Superblock;
use runtime::planted;
use storage::volume::Volume;

use super::PoolOpenError;
use crate::convert::wide;
use crate::journal::{self, JournalStart, RecoveryReport};
use crate::segment::{LostBlock, summarise_log_data};

/// Returns the journal head of a closed pool. `None` if the log needs a replay.
pub(super) fn rest_of(
    volume: &Volume,
    superblock: &Superblock,
) -> Result<Option<JournalHead>, PoolOpenError> {
    if superblock.is_open {
        return Ok(None);
    }
    Ok(journal::head_at_rest(volume, superblock.pool_id)?)
}

pub(super) fn go_on(
    volume: &Volume,
    superblock: &Superblock,
    head: JournalHead,
    is_read_only: bool,
) -> Result<JournalStart, PoolOpenError> {
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

/// Replays the log. Returns the journal's start position.
pub(super) fn recover(
    volume: &Volume,
    superblock: &mut Superblock,
    lost: &mut Vec<LostBlock>,
) -> Result<(JournalStart, RecoveryReport), PoolOpenError> {
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

/// Refuses an open without absent members if the others lack part of the log: after that open the
/// log of an absent member is never read again. Writes nothing.
pub(super) fn check_log_without_absent(
    volume: &Volume,
    pool_id: PoolId,
) -> Result<(), PoolOpenError> {
    let missing = volume.newly_absent().filter(|_| !planted!(LogReadTooLate));
    let Some(missing) = missing else { return Ok(()) };
    let read = journal::check_log(volume, pool_id);
    read.map_err(|cause| PoolOpenError::LogAway { missing, cause: Box::new(cause) })
}
