//! Writes: full stripes, with parity in a raid5, and pages in two copies. Nothing here reads.

use format::page::PAGE_BYTES;
use format::stripes::Stripes;
use runtime::{if_planted, planted};

use super::{Striped, absent, parts_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, DeviceOperation, IoPurpose, SharedBytes, Ticket, WRITE_PIECES_MAX,
};
use crate::parity::xor_into;
use crate::volume::parity_reads::StripeSubmission;
use crate::volume::ranges::InFlightWrite;

/// Cuts the pieces of a write at unit borders. The bytes are shared.
struct Cutter {
    pieces: std::vec::IntoIter<SharedBytes>,
    rest: Option<SharedBytes>,
}

impl Cutter {
    fn new(pieces: Vec<SharedBytes>) -> Cutter {
        Cutter { pieces: pieces.into_iter(), rest: None }
    }

    fn take(&mut self, length_bytes: usize) -> Vec<SharedBytes> {
        let (mut taken, mut wanted) = (Vec::new(), length_bytes);
        while wanted > 0 {
            let Some(piece) = self.rest.take().or_else(|| self.pieces.next()) else { break };
            let length = piece.len().min(wanted);
            if length < piece.len() {
                self.rest = Some(piece.slice(length..piece.len()));
            }
            if length > 0 {
                taken.push(if length < piece.len() { piece.slice(0..length) } else { piece });
            }
            wanted -= length;
        }
        taken
    }
}

fn filled(mut unit: Vec<SharedBytes>, lacking_bytes: usize) -> Vec<SharedBytes> {
    if lacking_bytes > 0 {
        unit.push(SharedBytes::from(AlignedBuffer::zeroed(lacking_bytes)));
    }
    unit
}

fn parity_of(units: &[Vec<SharedBytes>], unit_bytes: usize) -> AlignedBuffer {
    let mut parity = AlignedBuffer::zeroed(unit_bytes);
    if_planted!(ParityForgotten, return parity);
    // Piece, and offset in it, of each unit. Each iteration ends at an end of a piece.
    let mut at = vec![(0_usize, 0_usize); units.len()];
    let mut done = 0;
    while done < unit_bytes {
        let rest = |(unit, &(piece, from)): (&Vec<SharedBytes>, &(usize, usize))| {
            unit.get(piece).map_or(0, |piece| piece.len() - from)
        };
        let length = units.iter().zip(&at).map(rest).min().unwrap_or(0);
        if length == 0 {
            break;
        }
        let sources: Vec<&[u8]> = units
            .iter()
            .zip(&at)
            .map(|(unit, &(piece, from))| &unit[piece][from..from + length])
            .collect();
        xor_into(&mut parity[done..done + length], &sources);
        for (unit, at) in units.iter().zip(&mut at) {
            at.1 += length;
            if at.1 == unit[at.0].len() {
                *at = (at.0 + 1, 0);
            }
        }
        done += length;
    }
    parity
}

/// Joins the pieces if they are too many for one write.
fn few(pieces: Vec<SharedBytes>) -> Vec<SharedBytes> {
    if pieces.len() <= WRITE_PIECES_MAX {
        return pieces;
    }
    let mut whole = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
    vec![SharedBytes::from(AlignedBuffer::copy_of(&whole))]
}

impl Striped {
    /// Writes full stripes with their parity, one write per member (R5).
    pub(super) fn submit_stripes(
        &self,
        purpose: IoPurpose,
        offset: u64,
        data: Vec<SharedBytes>,
    ) -> Ticket {
        let length_bytes: u64 = data.iter().map(|piece| to_u64(piece.len())).sum();
        let in_flight = self.set.begin_write(offset..offset + length_bytes);
        // After `begin_write`: a move changes the layout under a hold.
        self.write_rows(&self.at(offset), purpose, (offset, data), Some(in_flight))
    }

    /// Writes full stripes in the given layout. No other write to them may be in flight.
    pub(super) fn write_rows(
        &self,
        stripes: &Stripes,
        purpose: IoPurpose,
        (offset, data): (u64, Vec<SharedBytes>),
        in_flight: Option<InFlightWrite>,
    ) -> Ticket {
        let shape = stripes.shape;
        let length_bytes: u64 = data.iter().map(|piece| to_u64(piece.len())).sum();
        let is_whole = stripes.is_row_bound(offset)
            && stripes.is_row_bound(offset + length_bytes)
            && length_bytes > 0;
        if !is_whole {
            // A bug in the caller: the parity would be wrong.
            return self.refused(&DeviceOperation::Write { offset, data });
        }
        let rows = stripes.rows_of(&(offset..offset + length_bytes));
        let _handing = StripeSubmission::begin();
        let view = self.set.view();
        let has_share = |member: &usize| stripes.has_member(*member);
        let is_out = |member: &usize| view[*member].writable().is_none();
        let left_out = (0..view.len()).filter(has_share).find(is_out);
        let may_leave_out = shape.has_parity || planted!(StripeDoneWithout);
        if let Some(member) = left_out.filter(|_| !may_leave_out) {
            // The share of this member would be lost (R7).
            return Ticket::ready(Err(absent(&view, member)));
        }
        let unit_bytes = to_usize(shape.unit_bytes());
        let mut shares: Vec<Vec<SharedBytes>> = view.iter().map(|_| Vec::new()).collect();
        let mut cutter = Cutter::new(data);
        for row in rows.clone() {
            let mut rest_bytes = to_usize(stripes.row_bytes(row));
            let mut unit = || {
                let length_bytes = rest_bytes.min(unit_bytes);
                rest_bytes -= length_bytes;
                filled(cutter.take(length_bytes), unit_bytes - length_bytes)
            };
            let units: Vec<Vec<SharedBytes>> = (0..shape.width().units).map(|_| unit()).collect();
            if let Some(member) = stripes.parity_member(row) {
                let parity = parity_of(&units, unit_bytes);
                shares[member].push(SharedBytes::from(parity));
            }
            for (index, unit) in (0..).zip(units) {
                shares[stripes.data_member(row, index)].extend(unit);
            }
        }
        let at = stripes.row_offset(rows.start);
        let mut tickets = Vec::with_capacity(shares.len());
        for (member, (slot, share)) in view.iter().zip(shares).enumerate() {
            if stripes.has_member(member) && slot.writable().is_some() {
                let write = DeviceOperation::Write { offset: at, data: few(share) };
                tickets.push((member, self.set.submit(slot, purpose, write)));
            }
        }
        self.set.together(&view, tickets, in_flight)
    }

    /// Writes pages, each to both of its members.
    pub(super) fn submit_copies(
        &self,
        purpose: IoPurpose,
        offset: u64,
        data: &[SharedBytes],
    ) -> Ticket {
        let length_bytes: u64 = data.iter().map(|piece| to_u64(piece.len())).sum();
        let in_flight = self.set.begin_write(offset..offset + length_bytes);
        // After `begin_write`: a move changes the layout under a hold.
        self.write_copies(&self.at(offset), purpose, (offset, data), Some(in_flight))
    }

    /// Writes pages in the given layout. No other write to them may be in flight.
    pub(super) fn write_copies(
        &self,
        stripes: &Stripes,
        purpose: IoPurpose,
        (offset, data): (u64, &[SharedBytes]),
        in_flight: Option<InFlightWrite>,
    ) -> Ticket {
        let length_bytes: usize = data.iter().map(|piece| piece.len()).sum();
        let parts = parts_of(stripes, offset, length_bytes);
        let seconds: Option<Vec<(usize, u64)>> =
            parts.iter().map(|part| stripes.second_copy(&part.place)).collect();
        let seconds = seconds.filter(|_| length_bytes.is_multiple_of(PAGE_BYTES));
        let Some(seconds) = seconds else {
            return self.refused(&DeviceOperation::Write { offset, data: data.to_vec() });
        };
        let _handing = StripeSubmission::begin();
        let view = self.set.view();
        let (mut cutter, mut tickets) = (Cutter::new(data.to_vec()), Vec::new());
        for (part, second) in parts.iter().zip(seconds) {
            let pieces = cutter.take(part.length_bytes);
            let copies = [(part.place.member, part.place.member_offset), second];
            for (member, at) in copies {
                let Some(slot) = view.get(member) else { continue };
                if slot.writable().is_some() {
                    let write = DeviceOperation::Write { offset: at, data: pieces.clone() };
                    tickets.push((member, self.set.submit(slot, purpose, write)));
                }
            }
        }
        self.set.together(&view, tickets, in_flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(lengths: &[usize], seed: u8) -> Vec<SharedBytes> {
        let mut next = seed;
        lengths
            .iter()
            .map(|length| {
                let mut bytes = AlignedBuffer::zeroed(*length);
                for byte in bytes.iter_mut() {
                    next = next.wrapping_mul(29).wrapping_add(7);
                    *byte = next;
                }
                SharedBytes::from(bytes)
            })
            .collect()
    }

    /// Goal: parity does not depend on the division into pieces.
    #[test]
    fn units_are_cut_from_pieces_of_any_length() {
        const UNIT: usize = 16384;
        for lengths in [
            vec![UNIT; 4],
            vec![4096; 16],
            vec![4096, 12288, UNIT * 2, 8192, 8192],
            vec![UNIT * 4],
            vec![8192, UNIT, UNIT, UNIT, 8192],
        ] {
            let data = pieces(&lengths, 3);
            let flat: Vec<u8> = data.iter().flat_map(|piece| piece.to_vec()).collect();
            let mut cutter = Cutter::new(data);
            let units: Vec<Vec<SharedBytes>> = (0..4).map(|_| cutter.take(UNIT)).collect();
            for (unit, expected) in units.iter().zip(flat.chunks(UNIT)) {
                let unit: Vec<u8> = unit.iter().flat_map(|piece| piece.to_vec()).collect();
                assert!(unit == expected, "{lengths:?}");
            }
            let parity = parity_of(&units, UNIT);
            for at in 0..UNIT {
                let plain = flat[at] ^ flat[UNIT + at] ^ flat[2 * UNIT + at] ^ flat[3 * UNIT + at];
                assert_eq!(parity[at], plain, "{lengths:?}");
            }
            assert!(cutter.take(1).is_empty());
        }
    }
}
