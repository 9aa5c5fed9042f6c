//! The copies of the superblock: which is current, and what is wrong with the others.

use storage::device::SharedDevice;
use storage::pool::read_superblock;

use crate::Stop;
use crate::defect::{Code, Defect, Subject};
use crate::report::Report;

/// Returns the current superblock and notes what is wrong with the other copies.
pub(crate) fn open(
    device: &SharedDevice,
    report: &mut Report,
) -> Result<format::superblock::Superblock, Stop> {
    let found = read_superblock(device.as_ref())?;
    for (copy, error) in found.copies.iter().enumerate() {
        let Some(error) = error else { continue };
        let message = error.to_string();
        report.add(Defect {
            code: Code::of_message(&message).unwrap_or(Code::SB006),
            what: format!("copy {copy}: {}", crate::without_code(&message)),
            subject: Subject::default(),
            path: None,
            place: None,
            device_offset: u16::try_from(copy).ok().map(|copy| {
                let bytes = device.info().size_bytes;
                format::geometry::Geometry::superblock_offset(bytes, copy)
            }),
        });
    }
    let label: Vec<u8> = found.current.label.into_iter().take_while(|&byte| byte != 0).collect();
    let label = String::from_utf8_lossy(&label).into_owned();
    let id = found.current.pool_id;
    report.title = format!("check of {}: pool {label} {id}", device.info().name);
    Ok(found.current)
}
