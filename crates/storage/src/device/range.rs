//! Validation of requests, common to all devices.

use super::{
    DeviceError, DeviceInfo, DeviceOperation, IO_ALIGN_BYTES, IoPurpose, RequestKind,
    WRITE_PIECES_MAX,
};
use crate::convert::{to_u64, to_usize};

/// Refuses a request that is empty, outside the device, or not aligned as [`DeviceOperation`]
/// requires, in memory and on the device.
///
/// Simulated devices call it too, so that no test passes with a request that a real device refuses.
pub(crate) fn check_request(
    info: &DeviceInfo,
    purpose: IoPurpose,
    operation: &DeviceOperation,
) -> Result<(), DeviceError> {
    let sector_bytes = u64::from(info.sector_bytes);
    let (kind, length_bytes) = (operation.kind(), operation.length_bytes());
    let Some(offset) = operation.offset() else {
        return Ok(());
    };
    let align_bytes =
        if purpose == IoPurpose::Journal { sector_bytes } else { to_u64(IO_ALIGN_BYTES) };
    let is_aligned = offset.is_multiple_of(align_bytes) && length_bytes.is_multiple_of(align_bytes);
    let is_inside = offset.checked_add(length_bytes).is_some_and(|end| end <= info.size_bytes);
    let pieces_fit = match operation {
        DeviceOperation::Write { data, .. } | DeviceOperation::WriteThrough { data, .. } => {
            let fits = |piece: &&[u8]| {
                piece.len().is_multiple_of(to_usize(sector_bytes))
                    && piece.as_ptr().addr().is_multiple_of(to_usize(sector_bytes))
            };
            data.len() <= WRITE_PIECES_MAX && data.iter().all(|piece| fits(&&**piece))
        }
        DeviceOperation::Read { .. } | DeviceOperation::Flush | DeviceOperation::Discard { .. } => {
            true
        }
    };
    if length_bytes == 0 || !is_aligned || !is_inside || !pieces_fit {
        return Err(out_of_range(info, kind, offset, length_bytes));
    }
    Ok(())
}

fn out_of_range(
    info: &DeviceInfo,
    kind: RequestKind,
    offset: u64,
    length_bytes: u64,
) -> DeviceError {
    DeviceError::OutOfRange { device: info.name.clone(), kind, offset, length_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{AlignedBuffer, SharedBytes};
    use std::sync::Arc;

    fn accepts(purpose: IoPurpose, operation: &DeviceOperation) -> bool {
        let name = "memory".to_owned();
        let info = DeviceInfo {
            name,
            size_bytes: 1 << 20,
            sector_bytes: 512,
            is_read_only: false,
            has_write_through: true,
            is_sparse: false,
            transport: "memory",
        };
        check_request(&info, purpose, operation).is_ok()
    }

    fn read(offset: u64, length: usize) -> DeviceOperation {
        DeviceOperation::Read { offset, buffer: AlignedBuffer::zeroed(length) }
    }

    #[test]
    fn requests_at_and_past_each_limit() {
        assert!(accepts(IoPurpose::Data, &read(0, 4096)));
        assert!(accepts(IoPurpose::Data, &read((1 << 20) - 4096, 4096)));
        assert!(!accepts(IoPurpose::Data, &read((1 << 20) - 4096, 8192)), "past the end");
        assert!(!accepts(IoPurpose::Data, &read(u64::MAX - 4095, 4096)), "wraps around");
        assert!(!accepts(IoPurpose::Data, &read(0, 0)), "empty");
        assert!(!accepts(IoPurpose::Data, &read(512, 4096)), "offset by a sector");
        assert!(!accepts(IoPurpose::Data, &read(0, 512)), "length of a sector");
        assert!(accepts(IoPurpose::Journal, &read(512, 1536)));
        assert!(!accepts(IoPurpose::Journal, &read(100, 512)));
        assert!(accepts(IoPurpose::Data, &DeviceOperation::Flush));
        assert!(!accepts(
            IoPurpose::Data,
            &DeviceOperation::Discard { offset: 0, length_bytes: 100 }
        ));
    }

    #[test]
    fn pieces_must_be_aligned_in_memory_and_few() {
        let buffer = Arc::new(AlignedBuffer::zeroed(8192));
        let write = |ranges: &[std::ops::Range<usize>]| DeviceOperation::Write {
            offset: 0,
            data: ranges.iter().map(|r| SharedBytes::new(Arc::clone(&buffer), r.clone())).collect(),
        };
        assert!(accepts(IoPurpose::Data, &write(&[512..1024, 0..3584])));
        assert!(
            !accepts(IoPurpose::Data, &write(std::slice::from_ref(&(100..4196)))),
            "not aligned in memory"
        );
        assert!(!accepts(IoPurpose::Data, &write(&[0..100, 512..4508])), "length of a piece");
        assert!(accepts(IoPurpose::Data, &write(&vec![0..512; 1024])));
        assert!(!accepts(IoPurpose::Data, &write(&vec![0..512; 1032])), "too many pieces");
    }
}
