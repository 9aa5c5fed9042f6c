//! The copies of the superblock: selects the current one, and checks the others.

use format::geometry::{Geometry, SUPERBLOCK_COPIES};
use format::superblock::{SUPERBLOCK_BYTES, Superblock, SuperblockError, without_rest};
use format::text::shown;
use storage::device::SharedDevice;
use storage::pool::{PoolError, SuperblockReport, read_superblock};

use crate::context::{Check, CheckError};
use crate::reader::regions_have_places;
use crate::report::DefectFinding;
use format::defect::{Defect, DefectCode};

/// Reads the superblock; refuses one whose pool cannot be checked.
pub(crate) fn open(device: &SharedDevice) -> Result<SuperblockReport, CheckError> {
    let found = read_superblock(device.as_ref())?;
    if !regions_have_places(&found.current.geometry) {
        let (device, field) = (device.info().name.clone(), "regions past 16 TiB");
        let cause = SuperblockError::BadField { field };
        return Err(PoolError::Superblock { device, cause }.into());
    }
    Ok(found)
}

pub(crate) fn title(device: &SharedDevice, superblock: &Superblock) -> String {
    let label: Vec<u8> = superblock.label.into_iter().take_while(|&byte| byte != 0).collect();
    let label = shown(&label);
    let label = if label.is_empty() { label } else { format!("{label} ") };
    format!("check of {}: pool {label}{}", device.info().name, superblock.pool_id)
}

pub(crate) fn run(check: &mut Check<'_>) -> Result<(), CheckError> {
    let (device_bytes, pool_bytes) = (check.reader.device_bytes(), pool_bytes(check));
    if device_bytes > pool_bytes {
        check.report.notes.push(format!(
            "the device has {} bytes more than the pool uses (`holdfast device grow POOL` uses \
             them)",
            device_bytes - pool_bytes
        ));
    }
    for copy in 0..SUPERBLOCK_COPIES {
        let at = Geometry::superblock_offset(device_bytes, copy);
        let Some(defect) = defect_at(check, at, copy) else { continue };
        // The last copies are at the device's end, before or after it was enlarged.
        let before = Geometry::superblock_offset(pool_bytes, copy);
        let defect = if before == at { Some(defect) } else { defect_at(check, before, copy) };
        let Some(defect) = defect else { continue };
        let defect = Defect { what: format!("copy {copy}: {}", defect.what), ..defect };
        check.report.note(DefectFinding { defect, path: None, device_offset: Some(before) });
    }
    Ok(())
}

fn pool_bytes(check: &Check<'_>) -> u64 {
    let geometry = &check.superblock.current.geometry;
    // With several disk groups the last copies are behind the last group, at the device's end.
    let is_one = geometry.added.is_empty() && geometry.main_first == 0;
    if is_one { geometry.device_bytes } else { check.reader.device_bytes() }
}

/// Returns the defect of the copy at `offset`, if any. Copies are written in turn, so a pool that
/// was not closed may have older ones.
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
