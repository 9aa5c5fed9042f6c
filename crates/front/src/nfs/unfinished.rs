//! Accounting of unfinished requests by address (NC7).

use std::collections::HashMap;
use std::net::IpAddr;

use super::connection::HELD_BYTES_MAX;

/// Most bytes of unfinished records of one address: a WRITE of 1 MiB on each of 64 connections.
pub(super) const ADDRESS_UNFINISHED_MAX: usize = 64 << 20;
/// Most bytes of unfinished records, half of all held bytes.
pub(super) const UNFINISHED_MAX: usize = HELD_BYTES_MAX / 2;

#[derive(Default)]
pub(super) struct UnfinishedInput {
    pub(super) total: usize,
    pub(super) of_address: HashMap<IpAddr, usize>,
}

impl UnfinishedInput {
    /// Replaces `before` bytes of a record of `address` by `now` bytes.
    pub(super) fn change(&mut self, address: IpAddr, before: usize, now: usize) {
        self.total = self.total - before + now;
        let of = self.of_address.entry(address).or_default();
        *of = *of - before + now;
        if *of == 0 {
            self.of_address.remove(&address);
        }
    }

    /// Returns `address` if it exceeds its own limit. If the total exceeds the limit for all, the
    /// address with the most bytes.
    pub(super) fn past_bound(&self, address: IpAddr) -> Option<IpAddr> {
        let own = self.of_address.get(&address).copied().unwrap_or(0);
        if own > ADDRESS_UNFINISHED_MAX {
            return Some(address);
        }
        let most = self.of_address.iter().max_by_key(|(_, bytes)| **bytes);
        most.filter(|_| self.total > UNFINISHED_MAX).map(|(most, _)| *most)
    }
}
