//! The connections of a server, by number and by address.
//!
//! # Invariants
//! - PE1: Of each address it is known how many there are, without looking at all of them: who
//!   connects again and again costs no more where many are connected.
//! - PE2: What is counted of an address never falls while it has a connection: what its connections
//!   counted that have ended stays. When the last one has gone nothing is kept.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::connection::Connection;
use super::server::Client;

/// The connections that are open.
#[derive(Default)]
pub(super) struct Peers {
    by_token: HashMap<u64, Arc<Connection>>,
    of_address: HashMap<IpAddr, OfAddress>,
}

/// What is known of an address that has connections.
struct OfAddress {
    connections: usize,
    /// The number of the first connection of those that followed one another without a gap.
    first: u64,
    /// What the connections among them counted that have ended: requests, their bytes, and the
    /// bytes of answers.
    ended: [u64; 3],
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
        self.of_address.get(&address).map_or(0, |of| of.connections)
    }

    /// Returns who is connected, in order of addresses.
    pub(super) fn clients(&self) -> Vec<Client> {
        let begin = |(&address, of): (&IpAddr, &OfAddress)| {
            let [requests, received_bytes, sent_bytes] = of.ended;
            let (connections, since, in_flight) = (of.connections, of.first, 0);
            let client = Client {
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
        let mut clients: BTreeMap<IpAddr, Client> = self.of_address.iter().map(begin).collect();
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

    pub(super) fn insert(&mut self, connection: Arc<Connection>) {
        let new = OfAddress { connections: 0, first: connection.token, ended: [0; 3] };
        self.of_address.entry(connection.peer.ip()).or_insert(new).connections += 1;
        self.by_token.insert(connection.token, connection);
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<Arc<Connection>> {
        let removed = self.by_token.remove(&token)?;
        leave(&mut self.of_address, &removed);
        Some(removed)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Arc<Connection>) -> bool) {
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

/// PE2: one connection of its address less.
fn leave(of_address: &mut HashMap<IpAddr, OfAddress>, connection: &Connection) {
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

    /// Goal: PE2. Method: of two connections one ends, which has counted more; then the other, and
    /// the machine connects again.
    #[test]
    fn what_is_counted_of_a_machine_does_not_fall_while_it_is_connected() {
        let mut peers = Peers::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        let told = |peers: &Peers| {
            let clients = peers.clients();
            let told = |it: &Client| (it.since, it.connections, it.requests, it.sent_bytes);
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
