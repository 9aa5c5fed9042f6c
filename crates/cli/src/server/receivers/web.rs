//! One POST of JSON, by HTTP or by TLS: the first line of the answer is read, and counts.
//!
//! By TLS the other side must have a certificate for its name that this machine trusts: roots are
//! read from the system's file each time, so that what is renewed there counts.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{Address, one_line};

/// How long a connection to one address may take to be made.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Most of an answer that is read.
pub(super) const ANSWER_BYTES_MAX: usize = 512;
/// Where systems keep the certificates that they trust: Debian, Fedora, SUSE, Alpine.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A connection of which every step ends by a time, however little the other side sends.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> std::io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

fn timed_out(error: Error) -> Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(into).map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes).map_err(timed_out)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// Returns the file of certificates that this machine trusts.
pub(super) fn trusted() -> Option<PathBuf> {
    let chosen = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    chosen.or_else(|| BUNDLES.iter().map(PathBuf::from).find(|bundle| bundle.exists()))
}

/// Posts `body` within `time`; by TLS to one whose certificate those in `trusted` vouch for.
pub(super) fn post(
    address: &Address,
    body: &str,
    trusted: Option<&Path>,
    time: Duration,
) -> Result<(), String> {
    let shown = |error: Error| format!("{}: {error}", address.shown());
    let until = Instant::now() + time;
    let timed = Timed { stream: connect(address, until)?, until };
    let code = if address.is_tls {
        let mut stream = encrypted(address, trusted, timed)?;
        exchange(&mut stream, address, body).map_err(shown)?
    } else {
        let mut stream = timed;
        exchange(&mut stream, address, body).map_err(shown)?
    };
    match code {
        Some(code) if code.len() == 3 && code.starts_with('2') => Ok(()),
        Some(code) => Err(format!("{}: answered {}", address.shown(), one_line(&code))),
        None => Err(format!("{}: its answer is no HTTP", address.shown())),
    }
}

/// Connects to the first address of the host that answers; what it took to find these is over by
/// then.
fn connect(address: &Address, until: Instant) -> Result<TcpStream, String> {
    let shown = |error: Error| format!("{}: {error}", address.shown());
    let mut last = Err(format!("{}: no such host", address.host));
    for found in (address.host.as_str(), address.port).to_socket_addrs().map_err(shown)? {
        // A name may have an address that nobody listens at, beside one where somebody does.
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        last = TcpStream::connect_timeout(&found, left.min(CONNECT_TIME)).map_err(shown);
        if last.is_ok() {
            break;
        }
    }
    last
}

fn encrypted(
    address: &Address,
    trusted: Option<&Path>,
    timed: Timed,
) -> Result<StreamOwned<ClientConnection, Timed>, String> {
    let url = address.shown();
    let trusted = trusted.ok_or_else(|| {
        format!("{url}: this machine has no certificates that it trusts: set SSL_CERT_FILE")
    })?;
    let shown = trusted.display();
    let certificates = CertificateDer::pem_file_iter(trusted)
        .map_err(|error| format!("{url}: {shown}: {error}"))?;
    let mut roots = RootCertStore::empty();
    // One that is not understood vouches for nobody.
    let (found, wrong): (Vec<_>, Vec<_>) = certificates.partition(Result::is_ok);
    let (count, unread) = roots.add_parsable_certificates(found.into_iter().flatten());
    if count == 0 {
        let why = wrong.into_iter().find_map(Result::err).map_or_else(
            || format!("{unread} that are not understood"),
            |error| format!("the first is wrong: {error}"),
        );
        return Err(format!("{url}: {shown} has no certificate to trust ({why})"));
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name =
        ServerName::try_from(address.host.clone()).map_err(|error| format!("{url}: {error}"))?;
    let client =
        ClientConnection::new(Arc::new(config), name).map_err(|error| format!("{url}: {error}"))?;
    let mut stream = StreamOwned::new(client, timed);
    let StreamOwned { conn, sock } = &mut stream;
    while conn.is_handshaking() {
        conn.complete_io(sock)
            .map_err(|error| format!("{url}: {error} (trusted are those in {shown})"))?;
    }
    Ok(stream)
}

/// Sends the request; returns the code that is answered. `None`: the answer is no HTTP.
fn exchange(
    stream: &mut (impl Read + Write),
    address: &Address,
    body: &str,
) -> std::io::Result<Option<String>> {
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nUser-Agent: holdfast\r\nConnection: close\r\n\r\n{body}",
        address.path,
        address.host_field(),
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    while !answer.contains(&b'\n') && answer.len() < ANSWER_BYTES_MAX {
        let mut some = [0; ANSWER_BYTES_MAX];
        match stream.read(&mut some)? {
            0 => break,
            count => answer.extend_from_slice(&some[..count]),
        }
    }
    let line = String::from_utf8_lossy(&answer);
    let line = line.lines().next().unwrap_or_default();
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    Ok(code.map(str::to_owned))
}
