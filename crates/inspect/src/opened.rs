//! A pool opened for inspection: as its device holds it, or as after the next mount.

use format::defect::DefectCode;
use format::superblock::Superblock;
use storage::device::{DeviceError, SharedDevice};
use storage::pool::{PoolError, read_superblock};

use check::reader::{PoolReader, regions_have_places};
use check::replay::replay_into;
use check::report::ConsistencyReport;

/// Why an object cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// No pool, or an unreadable one.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The device failed the read.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No object has this name or number: choose another.
    #[error("{what}: {why}")]
    NotThere {
        /// The request.
        what: String,
        /// The reason.
        why: String,
    },
}

impl InspectError {
    pub(crate) fn not_there(what: impl Into<String>, why: impl Into<String>) -> InspectError {
        InspectError::NotThere { what: what.into(), why: why.into() }
    }
}

/// A pool opened for inspection.
#[derive(Debug)]
pub struct InspectedPool {
    pub(crate) reader: PoolReader,
    pub(crate) superblock: Superblock,
}

impl InspectedPool {
    /// Opens the pool as its device holds it.
    ///
    /// # Errors
    ///
    /// [`InspectError`] if there is no readable pool.
    pub fn raw(device: &SharedDevice) -> Result<InspectedPool, InspectError> {
        let superblock = read_superblock(device.as_ref())?.current;
        if !regions_have_places(&superblock.geometry) {
            let name = device.info().name.clone();
            let defect = DefectCode::SB006.found("regions past 16 TiB");
            return Err(InspectError::not_there(name, defect.to_string()));
        }
        let (geometry, pool_id) = (superblock.geometry.clone(), superblock.pool_id);
        let reader = PoolReader::new(SharedDevice::clone(device), geometry, pool_id);
        Ok(InspectedPool { reader, superblock })
    }

    /// Opens the pool as after the next mount.
    ///
    /// # Errors
    ///
    /// [`InspectError`] if there is no readable pool.
    pub fn replayed(device: &SharedDevice) -> Result<InspectedPool, InspectError> {
        let mut opened = InspectedPool::raw(device)?;
        if opened.superblock.is_open {
            replay_into(&mut opened.reader, &mut ConsistencyReport::default());
        }
        Ok(opened)
    }
}
