//! The copies of the superblock: which is current, and what is wrong with the others.

use format::geometry::Geometry;
use format::superblock::{Superblock, SuperblockError};
use storage::device::SharedDevice;
use storage::pool::{PoolError, SuperblockReport, read_superblock};

use crate::report::Finding;
use crate::{Check, Stop};
use format::defect::Defect;

/// Reads the superblock; refuses one whose pool can't be checked.
pub(crate) fn open(device: &SharedDevice) -> Result<SuperblockReport, Stop> {
    let found = read_superblock(device.as_ref())?;
    if !regions_have_places(&found.current.geometry) {
        let (device, field) = (device.info().name.clone(), "regions past 16 TiB");
        let cause = SuperblockError::BadField { field };
        return Err(PoolError::Superblock { device, cause }.into());
    }
    Ok(found)
}

/// Returns what a report of the pool begins with.
pub(crate) fn title(device: &SharedDevice, superblock: &Superblock) -> String {
    let label: Vec<u8> = superblock.label.into_iter().take_while(|&byte| byte != 0).collect();
    let label = String::from_utf8_lossy(&label).into_owned();
    let label = if label.is_empty() { label } else { format!("{label} ") };
    format!("check of {}: pool {label}{}", device.info().name, superblock.pool_id)
}

/// Notes what is wrong with the copies that are not the current one.
pub(crate) fn run(check: &mut Check<'_>) -> Result<(), Stop> {
    let device_bytes = check.reader.device_bytes();
    for (copy, error) in (0_u16..).zip(check.superblock.copies.clone()) {
        let Some(error) = error else { continue };
        let defect = Defect::from(error);
        check.report.add(Finding {
            defect: Defect { what: format!("copy {copy}: {}", defect.what), ..defect },
            path: None,
            device_offset: Some(Geometry::superblock_offset(device_bytes, copy)),
        });
    }
    Ok(())
}

/// Whether every page of the fixed regions has a place: pages are counted in 32 bits.
pub(crate) fn regions_have_places(geometry: &Geometry) -> bool {
    let ends = [
        geometry.groups_offset,
        geometry.journal_offset.saturating_add(geometry.journal_bytes),
        geometry.double_write_offset.saturating_add(geometry.double_write_pages * 2 * 4096),
    ];
    ends.iter().all(|&end| end <= u64::from(u32::MAX) * 4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::geometry::GeometryOptions;

    #[test]
    fn regions_without_places_are_refused() {
        let planned = Geometry::plan(&GeometryOptions {
            device_bytes: 64 << 40,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        })
        .expect("large enough");
        assert!(regions_have_places(&planned));
        let far = 32 << 40;
        let hostile = [
            Geometry { groups_offset: far, ..planned.clone() },
            Geometry { journal_offset: far, ..planned.clone() },
            Geometry { double_write_offset: far, ..planned },
        ];
        assert!(!hostile.iter().any(regions_have_places));
    }
}
