//! What a pool holds, as text: any page and the log (`dump`), and each layer from a name to a byte
//! on the disk or back (`explain`). Changes nothing.
//!
//! It reads as the checker does: past the engine, a pool that was not closed as the next mount will
//! see it.
//!
//! Not here: verdicts (`check`).

pub mod dump;
pub mod explain;
mod stripe;

use format::defect::DefectCode;
use format::superblock::Superblock;
use storage::device::{DeviceError, SharedDevice};
use storage::pool::{PoolError, read_superblock};

use check::reader::{Reader, regions_have_places};
use check::replay::replay_into;
use check::report::Report;

/// Why something could not be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// Not a pool, or not one that this software reads.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The device could not read it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is nothing of that name or number: ask for something else.
    #[error("{what}: {why}")]
    NotThere {
        /// What was asked for.
        what: String,
        /// Why there is none.
        why: String,
    },
}

impl InspectError {
    pub(crate) fn not_there(what: impl Into<String>, why: impl Into<String>) -> InspectError {
        InspectError::NotThere { what: what.into(), why: why.into() }
    }
}

/// A pool that is looked at.
#[derive(Debug)]
pub struct Opened {
    pub(crate) reader: Reader,
    pub(crate) superblock: Superblock,
}

impl Opened {
    /// Opens the pool as its device holds it.
    ///
    /// # Errors
    ///
    /// See [`InspectError`].
    pub fn raw(device: &SharedDevice) -> Result<Opened, InspectError> {
        let superblock = read_superblock(device.as_ref())?.current;
        if !regions_have_places(&superblock.geometry) {
            let name = device.info().name.clone();
            let defect = DefectCode::SB006.found("regions past 16 TiB");
            return Err(InspectError::not_there(name, defect.to_string()));
        }
        let (geometry, pool_id) = (superblock.geometry.clone(), superblock.pool_id);
        let reader = Reader::new(SharedDevice::clone(device), geometry, pool_id);
        Ok(Opened { reader, superblock })
    }

    /// Opens the pool as the next mount will see it.
    ///
    /// # Errors
    ///
    /// See [`InspectError`].
    pub fn replayed(device: &SharedDevice) -> Result<Opened, InspectError> {
        let mut opened = Opened::raw(device)?;
        if opened.superblock.is_open {
            replay_into(&mut opened.reader, &mut Report::default());
        }
        Ok(opened)
    }
}
