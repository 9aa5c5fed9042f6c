//! Entries of this server at the portmapper of its machine (rpcbind, RFC 1833 version 4), by the
//! socket that only programs of the machine reach: clients that are told no port ask there.
//!
//! # Invariants
//!
//! - RB1: An entry of a program that is there is left alone. One whose port nobody listens at is of
//!   a server that was killed, and is replaced.
//! - RB2: What was entered is taken back when the [`Registration`] is dropped.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::xdr::{Garbage, Reader, Writer, count_of};
use super::{mount, nlm, portmap, protocol};

/// Where rpcbind listens.
pub const RPCBIND_SOCKET: &str = "/run/rpcbind.sock";

const VERSION: u32 = 4;
const SET: u32 = 1;
const UNSET: u32 = 2;
const DUMP: u32 = 4;
/// Bit of a fragment's length: it is the last of its record.
const LAST: u32 = 1 << 31;
/// How long rpcbind may take for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// How long whoever listens at a port may take to say so.
const CONNECT_TIME: Duration = Duration::from_millis(500);
/// Longest list of programs that is read, and fragments of it.
const ANSWER_BYTES_MAX: usize = 256 << 10;
const FRAGMENTS_MAX: usize = 1024;
const STRING_BYTES_MAX: usize = 1024;

/// What is entered: program, version, and what it is called.
const PROGRAMS: [(u32, u32, &str); 4] = [
    (protocol::PROGRAM, protocol::VERSION, "NFS"),
    (mount::PROGRAM, 1, "MOUNT"),
    (mount::PROGRAM, 3, "MOUNT"),
    (nlm::PROGRAM, nlm::VERSION, "locks"),
];

/// An entry of rpcbind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    program: u32,
    version: u32,
    /// `tcp` or `tcp6`.
    network: String,
    /// As RFC 5665 writes it.
    address: String,
}

impl Entry {
    fn is_of(&self, other: &Entry) -> bool {
        (self.program, self.version, &self.network)
            == (other.program, other.version, &other.network)
    }

    /// Returns the port, which the last two numbers of the address are.
    fn port(&self) -> Option<u16> {
        let mut parts = self.address.rsplit('.').map(str::parse::<u8>);
        let (low, high) = (parts.next()?.ok()?, parts.next()?.ok()?);
        Some(u16::from(high) << 8 | u16::from(low))
    }

    /// Returns the address of the host; `None`: all addresses of this one.
    fn host(&self) -> Option<IpAddr> {
        let host = self.address.rsplitn(3, '.').nth(2)?.parse::<IpAddr>().ok()?;
        (!host.is_unspecified()).then_some(host)
    }

    /// Whether a program that listens at one of the two keeps others from listening at the other.
    fn is_at(&self, other: &Entry) -> bool {
        let hosts = (self.host(), other.host());
        let meet = matches!(hosts, (Some(one), Some(another)) if one == another)
            || matches!(hosts, (None, _) | (_, None));
        meet && self.port() == other.port()
    }

    /// Whether somebody listens there.
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

/// Returns the entries of a server that listens at `address`.
fn entries_at(address: SocketAddr) -> Vec<Entry> {
    let mut hosts = vec![("tcp", address.ip().to_canonical())];
    if address.is_ipv6() && address.ip().is_unspecified() {
        // It listens by both.
        hosts = vec![("tcp6", address.ip()), ("tcp", Ipv4Addr::UNSPECIFIED.into())];
    } else if hosts[0].1.is_ipv6() {
        hosts[0].0 = "tcp6";
    }
    let entry = |(network, host): &(&str, IpAddr), (program, version, _): (u32, u32, &str)| Entry {
        program,
        version,
        network: (*network).to_owned(),
        address: portmap::address(*host, address.port()),
    };
    hosts.iter().flat_map(|host| PROGRAMS.map(|program| entry(host, program))).collect()
}

/// Entries of this server, until it is dropped.
#[derive(Debug)]
pub struct Registration {
    socket: PathBuf,
    entered: Vec<Entry>,
    others: Vec<String>,
}

impl Registration {
    /// Enters what is served at `address` with the rpcbind that listens at `socket`. `None`: none
    /// does.
    ///
    /// # Errors
    ///
    /// What is wrong with the answers of rpcbind; nothing stays entered then.
    pub fn begin(socket: &Path, address: SocketAddr) -> io::Result<Option<Registration>> {
        let mut asked = match Asked::connect(socket) {
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

    /// Returns what of this server is not entered, in words: another program has it.
    #[must_use]
    pub fn others(&self) -> &[String] {
        &self.others
    }

    /// RB1.
    fn enter(&mut self, asked: &mut Asked, entry: Entry, found: &[Entry]) -> io::Result<()> {
        let there = found.iter().find(|it| it.is_of(&entry));
        // At the address and port that this server has nobody else is.
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
        let at =
            there.and_then(Entry::port).map_or(String::new(), |port| format!(" at port {port}"));
        self.others.push(format!("{name} ({}, of another program{at})", entry.network));
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.entered.is_empty() {
            return;
        }
        let taken = Asked::connect(&self.socket).and_then(|mut asked| {
            self.entered.iter().try_for_each(|entry| asked.change(UNSET, entry).map(drop))
        });
        if let Err(error) = taken {
            tracing::warn!(%error, "rpcbind keeps entries of this server");
        }
    }
}

/// A connection to rpcbind.
struct Asked {
    stream: UnixStream,
    xid: u32,
}

impl Asked {
    fn connect(socket: &Path) -> io::Result<Asked> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.set_write_timeout(Some(ANSWER_TIME))?;
        Ok(Asked { stream, xid: 0 })
    }

    /// Sets or takes back an entry. Returns whether rpcbind did.
    fn change(&mut self, procedure: u32, entry: &Entry) -> io::Result<bool> {
        let mut args = Writer::default();
        args.words(&[entry.program, entry.version]);
        for text in [&entry.network, &entry.address, ""] {
            args.opaque(text.as_bytes());
        }
        let reply = self.call(procedure, &args.into_inner())?;
        results_of(&reply, self.xid).and_then(|mut it| it.bool()).map_err(senseless)
    }

    /// Returns all entries.
    fn list(&mut self) -> io::Result<Vec<Entry>> {
        let reply = self.call(DUMP, &[])?;
        let read = |mut reader: Reader<'_>| {
            let mut all = Vec::new();
            // Each takes bytes of the answer, which are bounded.
            while reader.bool()? {
                let (program, version) = (reader.u32()?, reader.u32()?);
                let mut text = || reader.opaque(STRING_BYTES_MAX).map(String::from_utf8_lossy);
                let (network, address) = (text()?.into_owned(), text()?.into_owned());
                text()?;
                all.push(Entry { program, version, network, address });
            }
            Ok(all)
        };
        results_of(&reply, self.xid).and_then(read).map_err(senseless)
    }

    /// Calls a procedure. Returns the record of the answer.
    fn call(&mut self, procedure: u32, args: &[u8]) -> io::Result<Vec<u8>> {
        self.xid += 1;
        let mut record = Writer::default();
        record.u32(0);
        record.words(&[self.xid, 0, 2, portmap::PROGRAM, VERSION, procedure, 0, 0, 0, 0]);
        record.raw(args);
        record.set_u32(0, LAST | count_of(record.len() - 4));
        self.stream.write_all(&record.into_inner())?;
        let mut answer = Vec::new();
        for _ in 0..FRAGMENTS_MAX {
            let mut mark = [0; 4];
            self.stream.read_exact(&mut mark)?;
            let mark = Reader::new(&mark).u32().map_err(senseless)?;
            let bytes = usize::try_from(mark & !LAST).map_err(|_| senseless(Garbage))?;
            if answer.len() + bytes > ANSWER_BYTES_MAX {
                return Err(senseless(Garbage));
            }
            let begin = answer.len();
            answer.resize(begin + bytes, 0);
            self.stream.read_exact(&mut answer[begin..])?;
            if mark & LAST != 0 {
                return Ok(answer);
            }
        }
        Err(senseless(Garbage))
    }
}

/// Returns what an answer has behind its head; one that is refused has nothing.
fn results_of(answer: &[u8], xid: u32) -> Result<Reader<'_>, Garbage> {
    let mut reader = Reader::new(answer);
    // The call's number, a reply, accepted.
    let is_ours = (reader.u32()?, reader.u32()?, reader.u32()?) == (xid, 1, 0);
    reader.u32()?;
    reader.opaque(STRING_BYTES_MAX)?;
    let is_done = reader.u32()? == 0;
    if is_ours && is_done { Ok(reader) } else { Err(Garbage) }
}

fn senseless(Garbage: Garbage) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "rpcbind refused, or answered what makes no sense")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};
    use std::thread::JoinHandle;

    use super::*;

    /// A rpcbind that keeps entries for whoever asks.
    struct Fake {
        path: PathBuf,
        entries: Arc<Mutex<Vec<Entry>>>,
        thread: Option<JoinHandle<()>>,
    }

    impl Fake {
        fn start(name: &str, entries: Vec<Entry>, answers: bool) -> Fake {
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
                        let mut record = Writer::default();
                        record.u32(LAST | count_of(reply.len()));
                        record.raw(&reply);
                        stream.write_all(&record.into_inner()).expect("it is read");
                    }
                    if stream.peer_addr().is_err() {
                        return;
                    }
                }
            });
            Fake { path, entries, thread: Some(thread) }
        }

        fn entries(&self) -> Vec<Entry> {
            self.entries.lock().expect("no panic").clone()
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.path);
            // It waits for the next connection, and ends with the process.
            drop(self.thread.take());
        }
    }

    fn record(stream: &mut UnixStream) -> Option<Vec<u8>> {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark).ok()?;
        let mark = Reader::new(&mark).u32().ok()?;
        let mut bytes = vec![0; usize::try_from(mark & !LAST).ok()?];
        stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn answer(call: &[u8], all: &Mutex<Vec<Entry>>) -> Vec<u8> {
        let mut reader = Reader::new(call);
        let head: [u32; 10] = std::array::from_fn(|_| reader.u32().expect("it has a head"));
        assert_eq!(head[1..5], [0, 2, 100_000, 4]);
        let mut reply = Writer::default();
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
        let entry = Entry { program, version, network: text(), address: text() };
        let is_there = all.iter().any(|it| it.is_of(&entry));
        if head[5] == UNSET {
            all.retain(|it| !it.is_of(&entry));
        } else if !is_there {
            all.push(entry);
        }
        reply.bool(is_there == (head[5] == UNSET));
        reply.into_inner()
    }

    fn entry(program: u32, version: u32, port: u16) -> Entry {
        let address = portmap::address(Ipv4Addr::UNSPECIFIED.into(), port);
        Entry { program, version, network: "tcp".to_owned(), address }
    }

    /// Goal: what is served is entered and taken back; what a dead server has left is replaced, and
    /// a program that is there keeps its entry, which is told (RB1, RB2).
    #[test]
    fn entries_are_made_and_taken_back_and_those_of_others_left_alone() {
        let other = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let live = other.local_addr().expect("it is bound").port();
        let dead = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let gone = dead.local_addr().expect("it is bound").port();
        drop(dead);
        let before = vec![entry(nlm::PROGRAM, 4, live), entry(mount::PROGRAM, 3, gone)];
        let fake = Fake::start("holdfast-rpcbind", before, true);
        let address = "0.0.0.0:2049".parse().expect("it is one");
        let begun = Registration::begin(&fake.path, address).expect("it answers");
        let begun = begun.expect("it is there");
        assert_eq!(begun.others(), [format!("locks (tcp, of another program at port {live})")]);
        let own = |program, version| entry(program, version, 2049);
        let entered = [own(protocol::PROGRAM, 3), own(mount::PROGRAM, 1), own(mount::PROGRAM, 3)];
        let kept = entry(nlm::PROGRAM, 4, live);
        assert_eq!(fake.entries(), [std::slice::from_ref(&kept), &entered[..]].concat());
        // A server that was killed leaves what the next one at its port takes over.
        std::mem::forget(begun);
        let again = Registration::begin(&fake.path, address).expect("it answers");
        drop(again.expect("it is there"));
        assert_eq!(fake.entries(), [kept]);
    }

    /// Goal: without rpcbind nothing is entered, and answers that make no sense are told.
    #[test]
    fn a_portmapper_that_is_not_there_or_senseless_is_told() {
        let address = "[::]:2049".parse().expect("it is one");
        let none = Registration::begin(Path::new("/none/rpcbind.sock"), address);
        assert!(none.expect("none runs").is_none());
        let fake = Fake::start("holdfast-senseless", Vec::new(), false);
        let refused = Registration::begin(&fake.path, address).expect_err("it makes no sense");
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        let both: Vec<_> = entries_at(address).into_iter().map(|it| it.address).collect();
        assert_eq!((&both[0][..], &both[4][..]), ("::.8.1", "0.0.0.0.8.1"));
        let one = entries_at("[::ffff:10.0.0.1]:2049".parse().expect("it is one"));
        assert_eq!((&one[0].network[..], &one[0].address[..]), ("tcp", "10.0.0.1.8.1"));
    }
}
