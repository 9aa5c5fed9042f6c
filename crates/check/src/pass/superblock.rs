//! The copies of the superblock: which is current, and what is wrong with the others.

use format::geometry::{Geometry, SUPERBLOCK_COPIES};
use format::superblock::{SUPERBLOCK_BYTES, Superblock, SuperblockError, without_rest};
use format::text::shown;
use storage::device::SharedDevice;
use storage::pool::{PoolError, SuperblockReport, read_superblock};

use crate::report::Finding;
use crate::{Check, Stop};
use format::defect::{Defect, DefectCode};

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
    let label = shown(&label);
    let label = if label.is_empty() { label } else { format!("{label} ") };
    format!("check of {}: pool {label}{}", device.info().name, superblock.pool_id)
}

/// Notes what is wrong with the copies that are not the current one.
pub(crate) fn run(check: &mut Check<'_>) -> Result<(), Stop> {
    let (device_bytes, pool_bytes) = (check.reader.device_bytes(), pool_bytes(check));
    if device_bytes > pool_bytes {
        check.report.notes.push(format!(
            "the device has {} bytes more than the pool uses (holdfast device grow)",
            device_bytes - pool_bytes
        ));
    }
    for copy in 0..SUPERBLOCK_COPIES {
        let at = Geometry::superblock_offset(device_bytes, copy);
        let Some(defect) = defect_at(check, at, copy) else { continue };
        // The last copies lie at the end: of the device as it was, or as it is.
        let before = Geometry::superblock_offset(pool_bytes, copy);
        let defect = if before == at { Some(defect) } else { defect_at(check, before, copy) };
        let Some(defect) = defect else { continue };
        let defect = Defect { what: format!("copy {copy}: {}", defect.what), ..defect };
        check.report.note(Finding { defect, path: None, device_offset: Some(before) });
    }
    Ok(())
}

fn pool_bytes(check: &Check<'_>) -> u64 {
    let geometry = &check.superblock.current.geometry;
    // Of several disk groups the labels lie behind the last.
    let is_one = geometry.added.is_empty() && geometry.main_first == 0;
    if is_one { geometry.device_bytes } else { check.reader.device_bytes() }
}

/// Says what is wrong with the copy at `offset`, if anything. A pool that was not closed may have
/// older copies: they are written in turn.
fn defect_at(check: &Check<'_>, offset: u64, copy: u16) -> Option<Defect> {
    let current = &check.superblock.current;
    let bytes = match check.reader.read(offset, SUPERBLOCK_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => return Some(DefectCode::SB006.found(error.to_string())),
    };
    let whole = without_rest(*bytes.first_chunk().expect("read as long as asked"));
    match Superblock::decode(&whole, copy) {
        Ok(found) if found.pool_id != current.pool_id => {
            Some(DefectCode::SB001.found(format!("is of pool {}", found.pool_id)))
        }
        Ok(found) if !current.is_open && found.sequence < current.sequence => {
            let (found, newest) = (found.sequence, current.sequence);
            Some(DefectCode::SB008.found(format!("is update {found}, the current one is {newest}")))
        }
        Ok(_) => None,
        Err(error) => Some(error.into()),
    }
}

/// Whether every page of the fixed regions has a place: pages are counted in 32 bits.
pub fn regions_have_places(geometry: &Geometry) -> bool {
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
