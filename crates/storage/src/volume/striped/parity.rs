//! Writing the parity of rows anew, where what lies in them is what it should be.

use std::ops::Range;

use runtime::planted::{self, Planted};

use super::{Striped, count_parity, parts_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceError, Purpose};
use crate::parity::xor_into;
use crate::volume::composite::{ParityMended, Verify};
use crate::volume::parity_reads::ParityReader;
use crate::volume::salvage::Salvaged;

impl Striped {
    /// See [`crate::volume::Composite::mend_parity`]. `rows` are whole ones.
    pub(super) fn mend_rows(
        &self,
        rows: Range<u64>,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<ParityMended, DeviceError> {
        if !self.stripes.shape.has_parity {
            return Ok(ParityMended::Agrees);
        }
        let Some(hold) = self.set.try_hold(rows.clone()) else { return Ok(ParityMended::Left) };
        // Behind the hold: who moves a segment has one.
        let stripes = self.at(rows.start);
        let Range { start: first, end } = stripes.rows_of(&rows);
        let range = stripes.row_offset(first)..stripes.row_offset(end);
        let view = self.set.view_with(returning);
        let shares = self.salvage(&view, &stripes, &range)?;
        count_parity(ParityReader::Scrub, (&stripes, &view), 0..view.len(), &range);
        let shares: Option<Vec<Salvaged>> = shares.into_iter().collect();
        let Some(shares) = shares else { return Ok(ParityMended::Left) };
        let mut data = AlignedBuffer::zeroed(to_usize(rows.end - rows.start));
        for part in parts_of(&stripes, rows.start, data.len()) {
            let from = to_usize(part.place.member_offset - range.start);
            let share = &shares[part.place.member];
            let is_bad = |at: &usize| (from..from + part.length_bytes).contains(at);
            if share.bad.iter().any(is_bad) {
                return Ok(ParityMended::Left);
            }
            data[part.range()].copy_from_slice(&share.bytes[from..from + part.length_bytes]);
        }
        // What does not verify is not made to agree: its parity is all that is left of it.
        if !verify(&data) && !planted::is(Planted::ScrubTrustsBadRow) {
            return Ok(ParityMended::Left);
        }
        let unit_bytes = to_usize(self.stripes.shape.unit_bytes());
        let mut mended = ParityMended::Agrees;
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
            if !self.repair(Purpose::Cleaner, member, offset, &parity, Some(&hold))? {
                return Ok(ParityMended::Left);
            }
            mended = ParityMended::Written;
        }
        Ok(mended)
    }
}
