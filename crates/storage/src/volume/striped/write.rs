//! Writing: whole stripes, with their parity if they have any, and pages in two copies. Nothing
//! here reads.

use format::page::PAGE_BYTES;
use format::stripes::Stripes;
use runtime::planted::{self, Planted};

use super::{Striped, absent, parts_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, Operation, Purpose, SharedBytes, Ticket, WRITE_PIECES_MAX};
use crate::parity::xor_into;
use crate::volume::parity_reads::Handing;
use crate::volume::ranges::InFlight;

/// Cuts the pieces of a write where units end. The bytes are shared.
struct Cutter {
    pieces: std::vec::IntoIter<SharedBytes>,
    rest: Option<SharedBytes>,
}

impl Cutter {
    fn new(pieces: Vec<SharedBytes>) -> Cutter {
        Cutter { pieces: pieces.into_iter(), rest: None }
    }

    /// Returns the next `length_bytes`, or what is left.
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

/// Returns a unit of which the last `lacking_bytes` are no bytes of the pool, but zeros.
fn filled(mut unit: Vec<SharedBytes>, lacking_bytes: usize) -> Vec<SharedBytes> {
    if lacking_bytes > 0 {
        unit.push(SharedBytes::from(AlignedBuffer::zeroed(lacking_bytes)));
    }
    unit
}

/// Returns the parity of units, each in pieces.
fn parity_of(units: &[Vec<SharedBytes>], unit_bytes: usize) -> AlignedBuffer {
    let mut parity = AlignedBuffer::zeroed(unit_bytes);
    if planted::is(Planted::ParityForgotten) {
        return parity;
    }
    // Where each unit is: piece, and byte in it. What no piece of a unit ends in is taken at once.
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

/// Returns pieces as they can be written at once.
fn few(pieces: Vec<SharedBytes>) -> Vec<SharedBytes> {
    if pieces.len() <= WRITE_PIECES_MAX {
        return pieces;
    }
    let mut whole = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
    vec![SharedBytes::from(AlignedBuffer::copy_of(&whole))]
}

impl Striped {
    /// Writes whole stripes: data, and parity if they have any, each member's share in one write
    /// (R5).
    pub(super) fn submit_stripes(
        &self,
        purpose: Purpose,
        offset: u64,
        data: Vec<SharedBytes>,
    ) -> Ticket {
        let length_bytes: u64 = data.iter().map(|piece| to_u64(piece.len())).sum();
        let in_flight = self.set.begin_write(offset..offset + length_bytes);
        // Behind it: who moves the segment holds it.
        self.write_rows(&self.at(offset), purpose, (offset, data), Some(in_flight))
    }

    /// The same of what lies as `stripes` say, by who keeps others from it.
    pub(super) fn write_rows(
        &self,
        stripes: &Stripes,
        purpose: Purpose,
        (offset, data): (u64, Vec<SharedBytes>),
        in_flight: Option<InFlight>,
    ) -> Ticket {
        let shape = stripes.shape;
        let length_bytes: u64 = data.iter().map(|piece| to_u64(piece.len())).sum();
        let is_whole = stripes.is_row_bound(offset)
            && stripes.is_row_bound(offset + length_bytes)
            && length_bytes > 0;
        if !is_whole {
            // A bug above: to write it would leave a stripe whose parity does not agree.
            return self.refused(&Operation::Write { offset, data });
        }
        let rows = stripes.rows_of(&(offset..offset + length_bytes));
        let _handing = Handing::begin();
        let view = self.set.view();
        let has_share = |member: &usize| stripes.has_member(*member);
        let is_out = |member: &usize| view[*member].writable().is_none();
        let left_out = (0..view.len()).filter(has_share).find(is_out);
        let may_leave_out = shape.has_parity || planted::is(Planted::StripeDoneWithout);
        if let Some(member) = left_out.filter(|_| !may_leave_out) {
            // R7: its share would be nowhere.
            return Ticket::ready(Err(absent(&view, member)));
        }
        let unit_bytes = to_usize(shape.unit_bytes());
        if planted::is(Planted::OldParityRead) {
            let slot = stripes.parity_member(rows.start).and_then(|member| view.get(member));
            let buffer = AlignedBuffer::for_reading(unit_bytes);
            let read = Operation::Read { offset: stripes.row_offset(rows.start), buffer };
            slot.map(|slot| self.set.submit_all(slot, purpose, vec![read]));
        }
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
                let mut parity = parity_of(&units, unit_bytes);
                if left_out.is_some() && planted::is(Planted::DegradedParityForgotten) {
                    parity = AlignedBuffer::zeroed(unit_bytes);
                }
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
                let write = Operation::Write { offset: at, data: few(share) };
                tickets.push((member, self.set.submit(slot, purpose, write)));
            }
        }
        self.set.together(&view, tickets, in_flight)
    }

    /// Writes pages, each to both members that have a copy.
    pub(super) fn submit_copies(
        &self,
        purpose: Purpose,
        offset: u64,
        data: &[SharedBytes],
    ) -> Ticket {
        let length_bytes: u64 = data.iter().map(|piece| to_u64(piece.len())).sum();
        let in_flight = self.set.begin_write(offset..offset + length_bytes);
        // Behind it: who moves the segment holds it.
        self.write_copies(&self.at(offset), purpose, (offset, data), Some(in_flight))
    }

    /// The same of what lies as `stripes` say, by who keeps others from it.
    pub(super) fn write_copies(
        &self,
        stripes: &Stripes,
        purpose: Purpose,
        (offset, data): (u64, &[SharedBytes]),
        in_flight: Option<InFlight>,
    ) -> Ticket {
        let length_bytes: usize = data.iter().map(|piece| piece.len()).sum();
        let parts = parts_of(stripes, offset, length_bytes);
        let seconds: Option<Vec<(usize, u64)>> =
            parts.iter().map(|part| stripes.second_copy(&part.place)).collect();
        let seconds = seconds.filter(|_| length_bytes.is_multiple_of(PAGE_BYTES));
        let Some(seconds) = seconds else {
            return self.refused(&Operation::Write { offset, data: data.to_vec() });
        };
        let _handing = Handing::begin();
        let view = self.set.view();
        let (mut cutter, mut tickets) = (Cutter::new(data.to_vec()), Vec::new());
        for (part, second) in parts.iter().zip(seconds) {
            let pieces = cutter.take(part.length_bytes);
            let mut copies = vec![(part.place.member, part.place.member_offset), second];
            if planted::is(Planted::SecondCopyForgotten) {
                copies.truncate(1);
            }
            for (member, at) in copies {
                let Some(slot) = view.get(member) else { continue };
                if slot.writable().is_some() {
                    let write = Operation::Write { offset: at, data: pieces.clone() };
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

    /// Goal: parity does not depend on how the bytes were handed over.
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
