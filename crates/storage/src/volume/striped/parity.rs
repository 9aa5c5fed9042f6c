//! Repair of parity whose data verifies.

use std::ops::Range;

use runtime::planted;

use super::{Striped, count_parity, parts_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceError, IoPurpose};
use crate::parity::xor_into;
use crate::volume::composite::{ParityCheckOutcome, Verify};
use crate::volume::parity_reads::ParityReader;
use crate::volume::salvage::SalvagedRange;

impl Striped {
    /// See [`crate::volume::Composite::mend_parity`]. `rows` are whole rows.
    pub(super) fn mend_rows(
        &self,
        rows: Range<u64>,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<ParityCheckOutcome, DeviceError> {
        if !self.stripes.shape.has_parity {
            return Ok(ParityCheckOutcome::Agrees);
        }
        let Some(hold) = self.set.try_hold(rows.clone()) else {
            return Ok(ParityCheckOutcome::Left);
        };
        // Read under the hold, because a move changes the layout under a hold.
        let stripes = self.at(rows.start);
        let Range { start: first, end } = stripes.rows_of(&rows);
        let range = stripes.row_offset(first)..stripes.row_offset(end);
        let view = self.set.view_with(returning);
        let shares = self.salvage(&view, &stripes, &range)?;
        count_parity(ParityReader::Scrub, (&stripes, &view), 0..view.len(), &range);
        let shares: Option<Vec<SalvagedRange>> = shares.into_iter().collect();
        let Some(shares) = shares else { return Ok(ParityCheckOutcome::Left) };
        let mut data = AlignedBuffer::zeroed(to_usize(rows.end - rows.start));
        for part in parts_of(&stripes, rows.start, data.len()) {
            let from = to_usize(part.place.member_offset - range.start);
            let share = &shares[part.place.member];
            let is_bad = |at: &usize| (from..from + part.length_bytes).contains(at);
            if share.bad.iter().any(is_bad) {
                return Ok(ParityCheckOutcome::Left);
            }
            data[part.range()].copy_from_slice(&share.bytes[from..from + part.length_bytes]);
        }
        // Data that does not verify may still be reconstructed from its parity, so that is kept.
        if !verify(&data) && !planted!(ScrubTrustsBadRow) {
            return Ok(ParityCheckOutcome::Left);
        }
        let unit_bytes = to_usize(self.stripes.shape.unit_bytes());
        let mut mended = ParityCheckOutcome::Agrees;
        for row in first..end {
            let Some(member) = stripes.parity_member(row) else { continue };
            let at = to_usize((row - first) << self.stripes.shape.unit_shift);
            let unit = |share: usize| &shares[share].bytes[at..at + unit_bytes];
            let others: Vec<&[u8]> =
                (0..shares.len()).filter(|share| *share != member).map(unit).collect();
            let mut parity = AlignedBuffer::zeroed(unit_bytes);
            xor_into(&mut parity, &others);
            let is_read = !shares[member].bad.iter().any(|bad| (at..at + unit_bytes).contains(bad));
            if is_read && parity[..] == *unit(member) {
                continue;
            }
            let offset = range.start + to_u64(at);
            if !self.repair(IoPurpose::Cleaner, member, offset, &parity, Some(&hold))? {
                return Ok(ParityCheckOutcome::Left);
            }
            mended = ParityCheckOutcome::Written;
        }
        Ok(mended)
    }
}
