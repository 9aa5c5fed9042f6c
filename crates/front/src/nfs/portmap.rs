//! A portmapper (RFC 1833) for NFS, MOUNT and NLM. Clients whose mount options give the ports do
//! not need it.
//!
//! Serves version 2, and GETADDR and DUMP of versions 3 and 4. Nothing can be registered.
//!
//! Clients of libtirpc (rpcinfo, showmount) use UDP, served by a [`Portmapper`]. Source addresses
//! of UDP can be forged, so clients without an export get no reply much longer than the request (no
//! DUMP).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::rpc::{self, Call, MARK_BYTES, RpcError};
use super::service::{ReplySink, Service};
use super::xdr::{XdrError, XdrReader, XdrWriter};
use super::{mount, nlm, protocol};

pub(super) const PROGRAM: u32 = 100_000;
pub(super) const VERSION_FIRST: u32 = 2;
pub(super) const VERSION_LAST: u32 = 4;

const NULL: u32 = 0;
/// GETPORT of version 2, GETADDR of the others.
const GET: u32 = 3;
const DUMP: u32 = 4;
/// Protocol number in version 2, and its name in later versions.
type RpcTransport = (u32, &'static [u8]);
const TCP: RpcTransport = (6, b"tcp");
const UDP: RpcTransport = (17, b"udp");
const STRING_BYTES_MAX: usize = 256;
const DATAGRAM_BYTES_MAX: usize = 1024;
const PATIENCE: Duration = Duration::from_millis(500);

const SERVED: [(u32, u32, RpcTransport); 10] = [
    (PROGRAM, 2, TCP),
    (PROGRAM, 3, TCP),
    (PROGRAM, 4, TCP),
    (PROGRAM, 2, UDP),
    (PROGRAM, 3, UDP),
    (PROGRAM, 4, UDP),
    (protocol::PROGRAM, protocol::VERSION, TCP),
    (mount::PROGRAM, 1, TCP),
    (mount::PROGRAM, 3, TCP),
    (nlm::PROGRAM, nlm::VERSION, TCP),
];
/// The well-known port, only for the portmapper.
const OWN_PORT: u16 = 111;

pub(super) fn answer(
    service: &Service,
    peer: SocketAddr,
    call: &Call,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<(), RpcError> {
    let is_old = call.version == VERSION_FIRST;
    match call.procedure {
        NULL => Ok(()),
        GET if is_old => get_port(service, args, out).map_err(|XdrError| RpcError::Arguments),
        GET => get_address(service, peer, args, out).map_err(|XdrError| RpcError::Arguments),
        DUMP => {
            for (program, version, (transport, network)) in SERVED {
                out.words(&[1, program, version]);
                if is_old {
                    out.words(&[transport, u32::from(port_of(service, program))]);
                } else {
                    out.opaque(network);
                    out.opaque(address(near(peer), port_of(service, program)).as_bytes());
                    out.opaque(b"superuser");
                }
            }
            out.bool(false);
            Ok(())
        }
        _ => Err(RpcError::Procedure),
    }
}

fn port_of(service: &Service, program: u32) -> u16 {
    if program == PROGRAM { OWN_PORT } else { service.port() }
}

fn get_port(
    service: &Service,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<(), XdrError> {
    let (program, version, transport) = (args.u32()?, args.u32()?, args.u32()?);
    args.u32()?;
    let is_ours = SERVED
        .iter()
        .any(|(its, of, (number, _))| (*its, *of, *number) == (program, version, transport));
    out.u32(if is_ours { u32::from(port_of(service, program)) } else { 0 });
    Ok(())
}

fn get_address(
    service: &Service,
    peer: SocketAddr,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<(), XdrError> {
    let (program, version) = (args.u32()?, args.u32()?);
    let network = args.opaque(STRING_BYTES_MAX)?;
    // For IPv6 the name is tcp6.
    let is_ours = SERVED
        .iter()
        .any(|(its, of, (_, name))| (*its, *of) == (program, version) && network.starts_with(name));
    let found =
        if is_ours { address(near(peer), port_of(service, program)) } else { String::new() };
    out.opaque(found.as_bytes());
    Ok(())
}

/// Returns a universal address (RFC 5665).
pub(super) fn address(host: IpAddr, port: u16) -> String {
    let [high, low] = [port >> 8, port & 0xff];
    format!("{host}.{high}.{low}")
}

/// Returns the local address from which packets to `peer` are sent.
fn near(peer: SocketAddr) -> IpAddr {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Looks up the route. Sends nothing.
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(peer)?;
        socket.local_addr()
    });
    found.map_or(any, |found| found.ip())
}

/// Serves the portmapper by UDP until dropped.
#[derive(Debug)]
pub struct Portmapper {
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Portmapper {
    /// Starts a thread that answers requests on `socket`.
    pub fn start(service: Arc<Service>, socket: UdpSocket) -> std::io::Result<Portmapper> {
        socket.set_read_timeout(Some(PATIENCE))?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_stopping);
        let thread = std::thread::Builder::new().name("nfs-portmap".to_owned());
        let thread = thread.spawn(move || {
            let mut bytes = [0; DATAGRAM_BYTES_MAX];
            while !stop.load(Ordering::Acquire) {
                let Ok((count, peer)) = socket.recv_from(&mut bytes) else { continue };
                if let Some(reply) = answer_datagram(&service, peer, &bytes[..count]) {
                    // UDP clients retransmit.
                    let _ = socket.send_to(&reply, peer);
                }
            }
        })?;
        Ok(Portmapper { is_stopping, thread: Some(thread) })
    }
}

impl Drop for Portmapper {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread cannot have panicked.
            let _ = thread.join();
        }
    }
}

/// Returns the reply to a portmapper request, if it is one and may be answered.
fn answer_datagram(service: &Service, peer: SocketAddr, record: &[u8]) -> Option<Vec<u8>> {
    let (program, procedure) = rpc::peek(record)?;
    let is_told = procedure != DUMP || service.knows(peer.ip());
    if program != PROGRAM || !is_told {
        return None;
    }
    let kept = Arc::new(LastReply::default());
    let sink: Arc<dyn ReplySink> = Arc::<LastReply>::clone(&kept);
    service.serve(peer, record, &sink).ok()?;
    let reply = kept.0.lock().take()?;
    reply.get(MARK_BYTES..).map(<[u8]>::to_vec)
}

#[derive(Default)]
struct LastReply(Mutex<Option<Vec<u8>>>);

impl ReplySink for LastReply {
    fn send(&self, reply: Vec<u8>) {
        *self.0.lock() = Some(reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs::HandleKey;

    #[test]
    fn an_address_ends_with_the_port_in_two_parts() {
        assert_eq!(address(Ipv4Addr::LOCALHOST.into(), 2049), "127.0.0.1.8.1");
        let peer = SocketAddr::from(([127, 0, 0, 1], 99));
        assert_eq!(near(peer), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn a_port_is_told_by_udp_and_nothing_else_is() {
        let service = Arc::new(Service::new(HandleKey([1; 16]), 2049));
        let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a port");
        let address = socket.local_addr().expect("it has one");
        let _portmapper = Portmapper::start(service, socket).expect("it starts");
        let asker = UdpSocket::bind("127.0.0.1:0").expect("there is a port");
        let ask = |program: u32, procedure: u32, about: [u32; 3]| {
            let mut words = XdrWriter::default();
            words.words(&[7, 0, 2, program, 2, procedure, 0, 0, 0, 0]);
            words.words(&about);
            words.u32(0);
            asker.send_to(&words.into_inner(), address).expect("it can be sent");
        };
        asker.set_read_timeout(Some(Duration::from_secs(20))).expect("it is long");
        let told = || {
            let mut bytes = [0; 64];
            let count = asker.recv(&mut bytes).expect("it answers");
            XdrReader::new(&bytes[count - 4..count]).u32()
        };
        // Only the last is answered: NFS has no UDP, and DUMP is not for strangers.
        let nfs = [protocol::PROGRAM, protocol::VERSION, TCP.0];
        ask(protocol::PROGRAM, 0, nfs);
        ask(PROGRAM, DUMP, nfs);
        ask(PROGRAM, GET, nfs);
        assert_eq!(told(), Ok(2049));
        // The portmapper is served by UDP, NFS is not.
        ask(PROGRAM, GET, [protocol::PROGRAM, protocol::VERSION, UDP.0]);
        assert_eq!(told(), Ok(0));
        ask(PROGRAM, GET, [PROGRAM, VERSION_FIRST, UDP.0]);
        assert_eq!(told(), Ok(111));
    }
}
