//! The connections of a server, by number and by address.
//!
//! # Invariants
//! - PE1: Of each address it is known how many there are, without looking at all of them: who
//!   connects again and again costs no more where many are connected.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::connection::Connection;

/// The connections that are open.
#[derive(Default)]
pub(super) struct Peers {
    by_token: HashMap<u64, Arc<Connection>>,
    of_address: HashMap<IpAddr, usize>,
}

impl Peers {
    pub(super) fn len(&self) -> usize {
        self.by_token.len()
    }

    pub(super) fn get(&self, token: u64) -> Option<&Arc<Connection>> {
        self.by_token.get(&token)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.by_token.values()
    }

    /// Returns how many connections of `address` there are.
    pub(super) fn count_of(&self, address: IpAddr) -> usize {
        self.of_address.get(&address).copied().unwrap_or(0)
    }

    pub(super) fn insert(&mut self, connection: Arc<Connection>) {
        *self.of_address.entry(connection.peer.ip()).or_default() += 1;
        self.by_token.insert(connection.token, connection);
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<Arc<Connection>> {
        let removed = self.by_token.remove(&token)?;
        leave(&mut self.of_address, removed.peer.ip());
        Some(removed)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Arc<Connection>) -> bool) {
        let Peers { by_token, of_address } = self;
        by_token.retain(|_, connection| {
            let is_kept = keep(connection);
            if !is_kept {
                leave(of_address, connection.peer.ip());
            }
            is_kept
        });
    }
}

/// One connection of `address` less.
fn leave(of_address: &mut HashMap<IpAddr, usize>, address: IpAddr) {
    let count = of_address.get(&address).copied().unwrap_or(0);
    if count > 1 {
        of_address.insert(address, count - 1);
    } else {
        of_address.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs::connection::tests::from;

    /// Goal: PE1, however connections come and go.
    #[test]
    fn addresses_are_counted() {
        let mut peers = Peers::default();
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let counts = |peers: &Peers| [1, 2].map(|last| peers.count_of(address(last)));
        for (token, last) in [(20, 1), (21, 1), (22, 2)] {
            peers.insert(from(address(last), token));
        }
        assert_eq!((peers.len(), counts(&peers)), (3, [2, 1]));
        assert!(peers.remove(20).is_some() && peers.remove(20).is_none());
        assert_eq!(counts(&peers), [1, 1]);
        peers.retain(|connection| connection.token == 22);
        assert_eq!((peers.len(), counts(&peers)), (1, [0, 1]));
        assert_eq!(peers.of_address.len(), 1, "nothing is kept of who has gone");
    }
}
