//! Open connections by token and by address.
//!
//! # Invariants
//! - PE1: The connections of each address are counted, so that a reconnecting client costs no
//!   search of all connections.
//! - PE2: An address's totals include its ended connections, so the totals never decrease while it
//!   is connected. They are dropped with its last connection.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::connection::NfsConnection;
use super::server::ConnectedClient;

#[derive(Default)]
pub(super) struct Peers {
    by_token: HashMap<u64, Arc<NfsConnection>>,
    of_address: HashMap<IpAddr, AddressPeers>,
}

struct AddressPeers {
    connections: usize,
    /// Token of the first connection after a time without connections.
    first: u64,
    /// Totals of ended connections: requests, their bytes, bytes of replies.
    ended: [u64; 3],
}

impl Peers {
    pub(super) fn len(&self) -> usize {
        self.by_token.len()
    }

    pub(super) fn get(&self, token: u64) -> Option<&Arc<NfsConnection>> {
        self.by_token.get(&token)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<NfsConnection>> {
        self.by_token.values()
    }

    pub(super) fn count_of(&self, address: IpAddr) -> usize {
        self.of_address.get(&address).map_or(0, |of| of.connections)
    }

    pub(super) fn clients(&self) -> Vec<ConnectedClient> {
        let begin = |(&address, of): (&IpAddr, &AddressPeers)| {
            let [requests, received_bytes, sent_bytes] = of.ended;
            let (connections, since, in_flight) = (of.connections, of.first, 0);
            let client = ConnectedClient {
                address,
                since,
                connections,
                requests,
                received_bytes,
                sent_bytes,
                in_flight,
            };
            (address, client)
        };
        let mut clients: BTreeMap<IpAddr, ConnectedClient> =
            self.of_address.iter().map(begin).collect();
        for connection in self.by_token.values() {
            let ([requests, received_bytes, sent_bytes], in_flight) = connection.counts();
            let Some(client) = clients.get_mut(&connection.peer.ip()) else { continue };
            client.requests += requests;
            client.received_bytes += received_bytes;
            client.sent_bytes += sent_bytes;
            client.in_flight += in_flight;
        }
        clients.into_values().collect()
    }

    pub(super) fn insert(&mut self, connection: Arc<NfsConnection>) {
        let new = AddressPeers { connections: 0, first: connection.token, ended: [0; 3] };
        self.of_address.entry(connection.peer.ip()).or_insert(new).connections += 1;
        self.by_token.insert(connection.token, connection);
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<Arc<NfsConnection>> {
        let removed = self.by_token.remove(&token)?;
        leave(&mut self.of_address, &removed);
        Some(removed)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Arc<NfsConnection>) -> bool) {
        let Peers { by_token, of_address } = self;
        by_token.retain(|_, connection| {
            let is_kept = keep(connection);
            if !is_kept {
                leave(of_address, connection);
            }
            is_kept
        });
    }
}

/// Removes a connection, keeping its totals (PE2).
fn leave(of_address: &mut HashMap<IpAddr, AddressPeers>, connection: &NfsConnection) {
    let address = connection.peer.ip();
    let Some(of) = of_address.get_mut(&address) else { return };
    of.connections -= 1;
    if of.connections == 0 {
        of_address.remove(&address);
        return;
    }
    for (sum, count) in of.ended.iter_mut().zip(connection.totals()) {
        *sum += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs::connection::tests::from;

    /// Goal: an address's connections are counted, however they come and go (PE1).
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

    /// Goal: totals never decrease (PE2). Method: of two connections the busier one ends, then the
    /// other, then the client reconnects.
    #[test]
    fn what_is_counted_of_a_machine_does_not_fall_while_it_is_connected() {
        let mut peers = Peers::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        let told = |peers: &Peers| {
            let clients = peers.clients();
            let told =
                |it: &ConnectedClient| (it.since, it.connections, it.requests, it.sent_bytes);
            clients.iter().map(told).collect::<Vec<_>>()
        };
        for (token, requests) in [(20, 5), (21, 300)] {
            let connection = from(address, token);
            connection.count_for_test([requests, 10 * requests, 100]);
            peers.insert(connection);
        }
        assert_eq!(told(&peers), [(20, 2, 305, 200)]);
        peers.remove(21);
        assert_eq!(told(&peers), [(20, 1, 305, 200)], "what has ended was asked too");
        peers.retain(|_| false);
        assert_eq!(told(&peers), []);
        peers.insert(from(address, 30));
        assert_eq!(told(&peers), [(30, 1, 0, 0)], "it has connected again");
    }
}
