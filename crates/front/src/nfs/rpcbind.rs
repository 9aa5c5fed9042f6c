//! Registration of this server with the machine's rpcbind (RFC 1833 version 4), by its local
//! socket, for clients that are given no port.
//!
//! # Invariants
//!
//! - RB1: An entry of a live program is left alone. An entry with a port on which no program
//!   listens belongs to a killed server and is replaced.
//! - RB2: Registered entries are removed when the [`Registration`] is dropped.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::xdr::{XdrError, XdrReader, XdrWriter, count_of};
use super::{mount, nlm, portmap, protocol};

/// Socket of rpcbind.
pub const RPCBIND_SOCKET: &str = "/run/rpcbind.sock";

const VERSION: u32 = 4;
const SET: u32 = 1;
const UNSET: u32 = 2;
const DUMP: u32 = 4;
/// Fragment bit: the last of its record.
const LAST: u32 = 1 << 31;
const ANSWER_TIME: Duration = Duration::from_secs(2);
const CONNECT_TIME: Duration = Duration::from_millis(500);
const ANSWER_BYTES_MAX: usize = 256 << 10;
const FRAGMENTS_MAX: usize = 1024;
const STRING_BYTES_MAX: usize = 1024;

const PROGRAMS: [(u32, u32, &str); 4] = [
    (protocol::PROGRAM, protocol::VERSION, "NFS"),
    (mount::PROGRAM, 1, "MOUNT"),
    (mount::PROGRAM, 3, "MOUNT"),
    (nlm::PROGRAM, nlm::VERSION, "locks"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
struct RpcbindEntry {
    program: u32,
    version: u32,
    /// `tcp` or `tcp6`.
    network: String,
    /// Universal address (RFC 5665).
    address: String,
}

impl RpcbindEntry {
    fn is_of(&self, other: &RpcbindEntry) -> bool {
        (self.program, self.version, &self.network)
            == (other.program, other.version, &other.network)
    }

    fn port(&self) -> Option<u16> {
        let mut parts = self.address.rsplit('.').map(str::parse::<u8>);
        let (low, high) = (parts.next()?.ok()?, parts.next()?.ok()?);
        Some(u16::from(high) << 8 | u16::from(low))
    }

    /// Returns the host address, or `None` for all addresses of this machine.
    fn host(&self) -> Option<IpAddr> {
        let host = self.address.rsplitn(3, '.').nth(2)?.parse::<IpAddr>().ok()?;
        (!host.is_unspecified()).then_some(host)
    }

    /// Returns whether listeners at the two addresses exclude each other.
    fn is_at(&self, other: &RpcbindEntry) -> bool {
        let hosts = (self.host(), other.host());
        let meet = matches!(hosts, (Some(one), Some(another)) if one == another)
            || matches!(hosts, (None, _) | (_, None));
        meet && self.port() == other.port()
    }

    fn is_live(&self) -> bool {
        let Some(port) = self.port() else { return true };
        let own: IpAddr = match self.network.as_str() {
            "tcp6" => Ipv6Addr::LOCALHOST.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        };
        let host = self.host().unwrap_or(own);
        let found = TcpStream::connect_timeout(&(host, port).into(), CONNECT_TIME);
        found.map_or_else(|error| error.kind() != ErrorKind::ConnectionRefused, |_| true)
    }
}

fn entries_at(address: SocketAddr) -> Vec<RpcbindEntry> {
    let mut hosts = vec![("tcp", address.ip().to_canonical())];
    if address.is_ipv6() && address.ip().is_unspecified() {
        // A socket at the unspecified IPv6 address accepts IPv4 too.
        hosts = vec![("tcp6", address.ip()), ("tcp", Ipv4Addr::UNSPECIFIED.into())];
    } else if hosts[0].1.is_ipv6() {
        hosts[0].0 = "tcp6";
    }
    let entry =
        |(network, host): &(&str, IpAddr), (program, version, _): (u32, u32, &str)| RpcbindEntry {
            program,
            version,
            network: (*network).to_owned(),
            address: portmap::address(*host, address.port()),
        };
    hosts.iter().flat_map(|host| PROGRAMS.map(|program| entry(host, program))).collect()
}

/// Registered entries, removed on drop.
#[derive(Debug)]
pub struct Registration {
    socket: PathBuf,
    entered: Vec<RpcbindEntry>,
    others: Vec<String>,
}

impl Registration {
    /// Registers the programs served at `address` with the rpcbind at `socket`. Returns `None`
    /// without rpcbind.
    ///
    /// # Errors
    ///
    /// An error or malformed reply of rpcbind. Nothing stays registered.
    pub fn begin(socket: &Path, address: SocketAddr) -> io::Result<Option<Registration>> {
        let mut asked = match RpcbindClient::connect(socket) {
            Ok(asked) => asked,
            Err(error)
                if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind()) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let (entered, others) = (Vec::new(), Vec::new());
        let mut registration = Registration { socket: socket.to_owned(), entered, others };
        let found = asked.list()?;
        for entry in entries_at(address) {
            registration.enter(&mut asked, entry, &found)?;
        }
        registration.others.dedup();
        Ok(Some(registration))
    }

    /// Returns descriptions of programs not registered because another server has their entries.
    #[must_use]
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// Registers an entry, unless a live program has it (RB1).
    fn enter(
        &mut self,
        asked: &mut RpcbindClient,
        entry: RpcbindEntry,
        found: &[RpcbindEntry],
    ) -> io::Result<()> {
        let there = found.iter().find(|it| it.is_of(&entry));
        // No other server can listen at this address, so its entry is stale.
        let stale = there.filter(|it| it.is_at(&entry) || !it.is_live());
        if let Some(stale) = stale {
            asked.change(UNSET, stale)?;
        }
        let is_free = there.is_none() || stale.is_some();
        if is_free && asked.change(SET, &entry)? {
            self.entered.push(entry);
            return Ok(());
        }
        let name = PROGRAMS.iter().find(|it| it.0 == entry.program).map_or("", |it| it.2);
        let at = there
            .and_then(RpcbindEntry::port)
            .map_or(String::new(), |port| format!(" at port {port}"));
        self.others.push(format!("{name} ({}, of another program{at})", entry.network));
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.entered.is_empty() {
            return;
        }
        let taken = RpcbindClient::connect(&self.socket).and_then(|mut asked| {
            self.entered.iter().try_for_each(|entry| asked.change(UNSET, entry).map(drop))
        });
        if let Err(error) = taken {
            tracing::warn!(%error, "rpcbind keeps entries of this server");
        }
    }
}

struct RpcbindClient {
    stream: UnixStream,
    xid: u32,
}

impl RpcbindClient {
    fn connect(socket: &Path) -> io::Result<RpcbindClient> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        Ok(RpcbindClient { stream, xid: 0 })
    }

    fn change(&mut self, procedure: u32, entry: &RpcbindEntry) -> io::Result<bool> {
        let mut args = XdrWriter::default();
        args.words(&[entry.program, entry.version]);
        for text in [&entry.network, &entry.address, ""] {
            args.opaque(text.as_bytes());
        }
        let reply = self.call(procedure, &args.into_inner())?;
        results_of(&reply, self.xid).and_then(|mut it| it.bool()).map_err(senseless)
    }

    fn list(&mut self) -> io::Result<Vec<RpcbindEntry>> {
        let reply = self.call(DUMP, &[])?;
        let read = |mut reader: XdrReader<'_>| {
            let mut all = Vec::new();
            // Ends at the latest with the reply.
            while reader.bool()? {
                let (program, version) = (reader.u32()?, reader.u32()?);
                let mut text = || reader.opaque(STRING_BYTES_MAX).map(String::from_utf8_lossy);
                let (network, address) = (text()?.into_owned(), text()?.into_owned());
                text()?;
                all.push(RpcbindEntry { program, version, network, address });
            }
            Ok(all)
        };
        results_of(&reply, self.xid).and_then(read).map_err(senseless)
    }

    fn call(&mut self, procedure: u32, args: &[u8]) -> io::Result<Vec<u8>> {
        self.xid += 1;
        let mut record = XdrWriter::default();
        record.u32(0);
        record.words(&[self.xid, 0, 2, portmap::PROGRAM, VERSION, procedure, 0, 0, 0, 0]);
        record.raw(args);
        record.set_u32(0, LAST | count_of(record.len() - 4));
        self.stream.write_all(&record.into_inner())?;
        let mut answer = Vec::new();
        for _ in 0..FRAGMENTS_MAX {
            let mut mark = [0; 4];
            self.stream.read_exact(&mut mark)?;
            let mark = XdrReader::new(&mark).u32().map_err(senseless)?;
            let bytes = usize::try_from(mark & !LAST).map_err(|_| senseless(XdrError))?;
            if answer.len() + bytes > ANSWER_BYTES_MAX {
                return Err(senseless(XdrError));
            }
            let begin = answer.len();
            answer.resize(begin + bytes, 0);
            self.stream.read_exact(&mut answer[begin..])?;
            if mark & LAST != 0 {
                return Ok(answer);
            }
        }
        Err(senseless(XdrError))
    }
}

/// Returns the results in a reply, or an error if the call was refused.
fn results_of(answer: &[u8], xid: u32) -> Result<XdrReader<'_>, XdrError> {
    let mut reader = XdrReader::new(answer);
    // xid, REPLY, accepted.
    let is_ours = (reader.u32()?, reader.u32()?, reader.u32()?) == (xid, 1, 0);
    reader.u32()?;
    reader.opaque(STRING_BYTES_MAX)?;
    let is_done = reader.u32()? == 0;
    if is_ours && is_done { Ok(reader) } else { Err(XdrError) }
}

fn senseless(XdrError: XdrError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "rpcbind refused, or answered what makes no sense")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};
    use std::thread::JoinHandle;

    use super::*;

    struct FakeRpcbind {
        path: PathBuf,
        entries: Arc<Mutex<Vec<RpcbindEntry>>>,
        thread: Option<JoinHandle<()>>,
    }

    impl FakeRpcbind {
        fn start(name: &str, entries: Vec<RpcbindEntry>, answers: bool) -> FakeRpcbind {
            let path = std::env::temp_dir().join(format!("{name}-{}.sock", std::process::id()));
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).expect("it is free");
            let entries = Arc::new(Mutex::new(entries));
            let all = Arc::clone(&entries);
            let thread = std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.expect("somebody came");
                    while let Some(call) = record(&mut stream).filter(|call| !call.is_empty()) {
                        let reply = if answers { answer(&call, &all) } else { vec![7; 8] };
                        let mut record = XdrWriter::default();
                        record.u32(LAST | count_of(reply.len()));
                        record.raw(&reply);
                        stream.write_all(&record.into_inner()).expect("it is read");
                    }
                    if stream.peer_addr().is_err() {
                        return;
                    }
                }
            });
            FakeRpcbind { path, entries, thread: Some(thread) }
        }

        fn entries(&self) -> Vec<RpcbindEntry> {
            self.entries.lock().expect("no panic").clone()
        }
    }

    impl Drop for FakeRpcbind {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
            // Not joined: the thread waits for a connection until the process ends.
            drop(self.thread.take());
        }
    }

    fn record(stream: &mut UnixStream) -> Option<Vec<u8>> {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).ok()?;
        let mark = XdrReader::new(&mark).u32().ok()?;
        let mut bytes = vec![0; usize::try_from(mark & !LAST).ok()?];
        stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn answer(call: &[u8], all: &Mutex<Vec<RpcbindEntry>>) -> Vec<u8> {
        let mut reader = XdrReader::new(call);
        let head: [u32; 10] = std::array::from_fn(|_| reader.u32().expect("it has a head"));
        assert_eq!(head[1..5], [0, 2, 100_000, 4]);
        let mut reply = XdrWriter::default();
        reply.words(&[head[0], 1, 0, 0, 0, 0]);
        let mut all = all.lock().expect("no panic");
        if head[5] == DUMP {
            for entry in all.iter() {
                reply.words(&[1, entry.program, entry.version]);
                for text in [&entry.network, &entry.address, "superuser"] {
                    reply.opaque(text.as_bytes());
                }
            }
            reply.bool(false);
            return reply.into_inner();
        }
        let (program, version) = (reader.u32().expect("it is"), reader.u32().expect("it is"));
        let mut text = || String::from_utf8_lossy(reader.opaque(99).expect("it is")).into_owned();
        let entry = RpcbindEntry { program, version, network: text(), address: text() };
        let is_there = all.iter().any(|it| it.is_of(&entry));
        if head[5] == UNSET {
            all.retain(|it| !it.is_of(&entry));
        } else if !is_there {
            all.push(entry);
        }
        reply.bool(is_there == (head[5] == UNSET));
        reply.into_inner()
    }

    fn entry(program: u32, version: u32, port: u16) -> RpcbindEntry {
        let address = portmap::address(Ipv4Addr::UNSPECIFIED.into(), port);
        RpcbindEntry { program, version, network: "tcp".to_owned(), address }
    }

    /// Goal: programs are registered and removed. Stale entries are replaced, and live ones kept
    /// (RB1, RB2).
    #[test]
    fn entries_are_made_and_taken_back_and_those_of_others_left_alone() {
        let other = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let live = other.local_addr().expect("it is bound").port();
        let dead = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let gone = dead.local_addr().expect("it is bound").port();
        drop(dead);
        let before = vec![entry(nlm::PROGRAM, 4, live), entry(mount::PROGRAM, 3, gone)];
        let fake = FakeRpcbind::start("holdfast-rpcbind", before, true);
        let address = "0.0.0.0:2049".parse().expect("it is one");
        let begun = Registration::begin(&fake.path, address).expect("it answers");
        let begun = begun.expect("it is there");
        assert_eq!(begun.others(), [format!("locks (tcp, of another program at port {live})")]);
        let own = |program, version| entry(program, version, 2049);
        let entered = [own(protocol::PROGRAM, 3), own(mount::PROGRAM, 1), own(mount::PROGRAM, 3)];
        let kept = entry(nlm::PROGRAM, 4, live);
        assert_eq!(fake.entries(), [std::slice::from_ref(&kept), &entered[..]].concat());
        // A killed server leaves entries, which the next one at its port takes over.
        std::mem::forget(begun);
        let again = Registration::begin(&fake.path, address).expect("it answers");
        drop(again.expect("it is there"));
        assert_eq!(fake.entries(), [kept]);
    }

    /// Goal: without rpcbind nothing is registered, and malformed replies are reported.
    #[test]
    fn a_portmapper_that_is_not_there_or_senseless_is_told() {
        let address = "[::]:2049".parse().expect("it is one");
        let none = Registration::begin(Path::new("/none/rpcbind.sock"), address);
        assert!(none.expect("none runs").is_none());
        let fake = FakeRpcbind::start("holdfast-senseless", Vec::new(), false);
        let refused = Registration::begin(&fake.path, address).expect_err("it makes no sense");
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        let both: Vec<_> = entries_at(address).into_iter().map(|it| it.address).collect();
        assert_eq!((&both[0][..], &both[4][..]), ("::.8.1", "0.0.0.0.8.1"));
        let one = entries_at("[::ffff:10.0.0.1]:2049".parse().expect("it is one"));
        assert_eq!((&one[0].network[..], &one[0].address[..]), ("tcp", "10.0.0.1.8.1"));
    }
}
