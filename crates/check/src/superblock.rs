//! The copies of the superblock: which is current, and what is wrong with the others.

use format::geometry::Geometry;
use format::superblock::SuperblockError;
use storage::device::SharedDevice;
use storage::pool::{PoolError, read_superblock};

use crate::Stop;
use crate::report::{Finding, Report};
use format::defect::Defect;

/// Returns the current superblock and notes what is wrong with the other copies.
pub(crate) fn open(
    device: &SharedDevice,
    report: &mut Report,
) -> Result<format::superblock::Superblock, Stop> {
    let found = read_superblock(device.as_ref())?;
    if !regions_have_places(&found.current.geometry) {
        let (device, field) = (device.info().name.clone(), "regions past 16 TiB");
        let cause = SuperblockError::BadField { field };
        return Err(PoolError::Superblock { device, cause }.into());
    }
    for (copy, error) in found.copies.iter().enumerate() {
        let Some(error) = error else { continue };
        let defect = Defect::from(error.clone());
        report.add(Finding {
            defect: Defect { what: format!("copy {copy}: {}", defect.what), ..defect },
            path: None,
            device_offset: u16::try_from(copy).ok().map(|copy| {
                let bytes = device.info().size_bytes;
                Geometry::superblock_offset(bytes, copy)
            }),
        });
    }
    let label: Vec<u8> = found.current.label.into_iter().take_while(|&byte| byte != 0).collect();
    let label = String::from_utf8_lossy(&label).into_owned();
    let id = found.current.pool_id;
    let label = if label.is_empty() { label } else { format!("{label} ") };
    report.title = format!("check of {}: pool {label}{id}", device.info().name);
    Ok(found.current)
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
