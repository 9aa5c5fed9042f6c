//! A minimal NFSv3 client with one call at a time: records, XDR and a TCP connection.

#![expect(clippy::big_endian_bytes, reason = "XDR is big-endian")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{NfsError, Procedure};

/// Largest fragment of a reply.
pub(super) const RECORD_BYTES_MAX: u32 = 1 << 20;
/// Time limit of a whole reply.
const REPLY_TIME: Duration = Duration::from_secs(60);
/// RFC 1813.
const HANDLE_BYTES_MAX: usize = 64;
const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;

/// XDR encoder.
#[derive(Clone, Debug, Default)]
pub(super) struct CallEncoder(Vec<u8>);

impl CallEncoder {
    pub(super) fn u32(mut self, word: u32) -> CallEncoder {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub(super) fn u64(mut self, word: u64) -> CallEncoder {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub(super) fn opaque(self, bytes: &[u8]) -> CallEncoder {
        let mut words = self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        words.0.extend(bytes);
        words.0.resize(words.0.len().next_multiple_of(4), 0);
        words
    }

    /// Appends attributes that set the mode only.
    pub(super) fn mode(self, mode: u32) -> CallEncoder {
        [1, mode, 0, 0, 0, 0, 0].into_iter().fold(self, CallEncoder::u32)
    }
}

/// The rest of a reply, untrusted (BN1).
#[derive(Debug)]
pub(super) struct CallReply {
    bytes: Vec<u8>,
    at: usize,
}

#[derive(Debug)]
pub(super) struct TruncatedReplyError;

impl CallReply {
    pub(super) fn u32(&mut self) -> Result<u32, TruncatedReplyError> {
        let word = self
            .bytes
            .get(self.at..)
            .and_then(|rest| rest.first_chunk())
            .ok_or(TruncatedReplyError)?;
        self.at += 4;
        Ok(u32::from_be_bytes(*word))
    }

    pub(super) fn opaque(&mut self) -> Result<Vec<u8>, TruncatedReplyError> {
        let length = usize::try_from(self.u32()?).map_err(|_| TruncatedReplyError)?;
        let end = self.at.checked_add(length).ok_or(TruncatedReplyError)?;
        let bytes = self.bytes.get(self.at..end).ok_or(TruncatedReplyError)?.to_vec();
        self.at = end.next_multiple_of(4);
        Ok(bytes)
    }

    fn handle(&mut self) -> Result<Vec<u8>, TruncatedReplyError> {
        self.opaque().and_then(|it| {
            if it.len() <= HANDLE_BYTES_MAX { Ok(it) } else { Err(TruncatedReplyError) }
        })
    }
}

#[derive(Debug)]
pub(super) struct BenchNfsClient {
    address: SocketAddr,
    reply_time: Duration,
    socket: TcpStream,
    xid: u32,
}

impl BenchNfsClient {
    pub(super) fn connect(address: SocketAddr) -> Result<BenchNfsClient, NfsError> {
        let connected = TcpStream::connect_timeout(&address, REPLY_TIME).and_then(|socket| {
            socket.set_nodelay(true)?;
            socket.set_write_timeout(Some(REPLY_TIME))?;
            Ok(socket)
        });
        let socket = connected.map_err(|cause| NfsError::Connection { address, cause })?;
        Ok(BenchNfsClient { address, reply_time: REPLY_TIME, socket, xid: 0 })
    }

    /// Reconnects. The result of the call in progress stays unknown.
    pub(super) fn connect_again(&mut self) -> Result<(), NfsError> {
        let reply_time = self.reply_time;
        *self = BenchNfsClient { reply_time, ..BenchNfsClient::connect(self.address)? };
        Ok(())
    }

    /// Fills `into` from the socket, before `until`.
    fn read_until(&mut self, into: &mut [u8], until: Instant) -> Result<(), NfsError> {
        let address = self.address;
        let cut = |cause| NfsError::Connection { address, cause };
        let mut filled = 0;
        while let Some(room) = into.get_mut(filled..).filter(|room| !room.is_empty()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let seconds = self.reply_time.as_secs_f64();
                return Err(self.wrong(format!("a reply that takes more than {seconds} s")));
            }
            self.socket.set_read_timeout(Some(left)).map_err(cut)?;
            match self.socket.read(room) {
                Ok(0) => return Err(cut(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => filled += count,
                // Timeout, or a spurious wakeup.
                Err(error)
                    if matches!(
                        error.kind(),
                        std::io::ErrorKind::WouldBlock
                            | std::io::ErrorKind::TimedOut
                            | std::io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(cut(error)),
            }
        }
        Ok(())
    }

    fn wrong(&self, what: impl Into<String>) -> NfsError {
        NfsError::Protocol { address: self.address, what: what.into() }
    }

    /// Makes a call as the superuser, and returns its results.
    fn call(
        &mut self,
        program: u32,
        number: u32,
        args: &CallEncoder,
    ) -> Result<CallReply, NfsError> {
        self.xid = self.xid.wrapping_add(1);
        let sys = [0; 5].into_iter().fold(CallEncoder::default(), CallEncoder::u32);
        let head = [self.xid, 0, 2, program, 3, number, 1];
        let head = head.into_iter().fold(CallEncoder::default(), CallEncoder::u32).opaque(&sys.0);
        let head = head.u32(0).u32(0);
        let length = u32::try_from(head.0.len() + args.0.len()).unwrap_or(0);
        let mark = (1 << 31 | length).to_be_bytes();
        let address = self.address;
        let record = [&mark[..], &head.0, &args.0].concat();
        let cut = |cause| NfsError::Connection { address, cause };
        self.socket.write_all(&record).map_err(cut)?;
        let bytes = self.record()?;
        let mut answer = CallReply { bytes, at: 0 };
        let head = |answer: &mut CallReply| {
            let (xid, kind, state) = (answer.u32()?, answer.u32()?, answer.u32()?);
            if state == 0 {
                answer.u32()?;
                answer.opaque()?;
            }
            Ok::<_, TruncatedReplyError>((xid, kind, state, answer.u32()?))
        };
        match head(&mut answer) {
            Ok((xid, 1, 0, 0)) if xid == self.xid => Ok(answer),
            Ok((xid, ..)) if xid != self.xid => Err(self.wrong("a reply to another call")),
            Ok((_, _, state, status)) => {
                Err(self.wrong(format!("call {number} is refused ({state}, {status})")))
            }
            Err(TruncatedReplyError) => Err(self.wrong("a reply that is cut off")),
        }
    }

    fn record(&mut self) -> Result<Vec<u8>, NfsError> {
        let until = Instant::now() + self.reply_time;
        let mut bytes = Vec::new();
        loop {
            let mut mark = [0; 4];
            self.read_until(&mut mark, until)?;
            let mark = u32::from_be_bytes(mark);
            let length = mark & !(1 << 31);
            if length > RECORD_BYTES_MAX || bytes.len() > crate::number::to_usize(1 << 20) {
                return Err(self.wrong(format!("a reply of {length} bytes")));
            }
            let begin = bytes.len();
            bytes.resize(begin + crate::number::to_usize(length.into()), 0);
            let room = bytes.get_mut(begin..).unwrap_or_default();
            self.read_until(room, until)?;
            if mark >> 31 == 1 {
                return Ok(bytes);
            }
        }
    }

    /// Makes an NFS call on `name`, and returns its results after the status.
    pub(super) fn nfs(
        &mut self,
        procedure: Procedure,
        name: &str,
        args: &CallEncoder,
    ) -> Result<CallReply, NfsError> {
        self.named(procedure.name(), procedure.number(), name, args)
    }

    fn named(
        &mut self,
        procedure: &'static str,
        number: u32,
        name: &str,
        args: &CallEncoder,
    ) -> Result<CallReply, NfsError> {
        let program = if procedure == "MNT" { MOUNT } else { NFS };
        let mut answer = self.call(program, number, args)?;
        match answer.u32() {
            Ok(0) => Ok(answer),
            Ok(status) => Err(NfsError::Status { procedure, name: name.to_owned(), status }),
            Err(TruncatedReplyError) => Err(self.wrong("a reply without a status")),
        }
    }

    /// Returns the file handle of an export.
    pub(super) fn mount(&mut self, export: &str) -> Result<Vec<u8>, NfsError> {
        let args = CallEncoder::default().opaque(export.as_bytes());
        let mut answer = self.named("MNT", 1, export, &args)?;
        answer.handle().map_err(|_| self.wrong("MNT without a handle"))
    }

    fn made(&self, mut answer: CallReply, what: &str) -> Result<Vec<u8>, NfsError> {
        let handle = match answer.u32() {
            Ok(1) => answer.handle(),
            Ok(_) | Err(TruncatedReplyError) => Err(TruncatedReplyError),
        };
        handle.map_err(|_| self.wrong(format!("{what} without a handle")))
    }

    /// Creates a file, or opens an existing one.
    pub(super) fn create(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, NfsError> {
        let args =
            CallEncoder::default().opaque(directory).opaque(name.as_bytes()).u32(0).mode(0o644);
        let answer = self.nfs(Procedure::Create, name, &args)?;
        self.made(answer, "CREATE")
    }

    pub(super) fn mkdir(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, NfsError> {
        let args = CallEncoder::default().opaque(directory).opaque(name.as_bytes()).mode(0o755);
        let answer = self.named("MKDIR", 9, name, &args)?;
        self.made(answer, "MKDIR")
    }

    pub(super) fn symlink(
        &mut self,
        directory: &[u8],
        name: &str,
        target: &str,
    ) -> Result<Vec<u8>, NfsError> {
        let args = CallEncoder::default().opaque(directory).opaque(name.as_bytes()).mode(0o777);
        let answer = self.named("SYMLINK", 10, name, &args.opaque(target.as_bytes()))?;
        self.made(answer, "SYMLINK")
    }

    pub(super) fn remove(&mut self, directory: &[u8], name: &str) -> Result<(), NfsError> {
        let args = CallEncoder::default().opaque(directory).opaque(name.as_bytes());
        self.nfs(Procedure::Remove, name, &args).map(drop)
    }

    pub(super) fn rmdir(&mut self, directory: &[u8], name: &str) -> Result<(), NfsError> {
        let args = CallEncoder::default().opaque(directory).opaque(name.as_bytes());
        self.named("RMDIR", 13, name, &args).map(drop)
    }

    pub(super) fn write(
        &mut self,
        (file, name): (&[u8], &str),
        offset: u64,
        data: &[u8],
        is_stable: bool,
    ) -> Result<(), NfsError> {
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let stable = if is_stable { 2 } else { 0 };
        let args =
            CallEncoder::default().opaque(file).u64(offset).u32(count).u32(stable).opaque(data);
        self.nfs(Procedure::Write, name, &args).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Goal: a server that sends single bytes in endless fragments is given up after the time
    /// limit.
    #[test]
    fn a_reply_that_trickles_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client comes");
            let _ = socket.read(&mut [0; 64]).expect("it asks");
            // Fragments of one byte, none of them the last, until the client disconnects.
            while socket.write_all(&[0, 0, 0, 1, b'x']).is_ok() {
                std::thread::park_timeout(Duration::from_millis(10));
            }
        });
        let mut client = BenchNfsClient::connect(address).expect("it listens");
        client.reply_time = Duration::from_millis(300);
        let begun = Instant::now();
        let refused = client.mount("/").expect_err("it is no reply").to_string();
        assert!(refused.contains("takes more than 0.3 s"), "{refused}");
        assert!(begun.elapsed() < Duration::from_secs(20));
        drop(client);
        server.join().expect("no bug");
    }

    /// Goal: a reply that is malformed, refused or for another call is an immediate error (BN1).
    #[test]
    fn a_reply_is_not_believed() {
        let good = |xid: u32| {
            [xid, 1, 0, 0, 0, 0, 0, 200]
                .into_iter()
                .fold(CallEncoder::default(), CallEncoder::u32)
                .0
        };
        let cases: [(&str, Vec<u8>); 5] = [
            ("another call", good(9)),
            ("without a handle", good(1)),
            ("cut off", vec![0, 0, 0, 1]),
            (
                "is refused",
                [1_u32, 1, 1, 0].into_iter().fold(CallEncoder::default(), CallEncoder::u32).0,
            ),
            (
                "status 13",
                [1_u32, 1, 0, 0, 0, 0, 13]
                    .into_iter()
                    .fold(CallEncoder::default(), CallEncoder::u32)
                    .0,
            ),
        ];
        for (words, reply) in cases {
            let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
            let address = listener.local_addr().expect("it has one");
            let server = std::thread::spawn(move || {
                let (mut socket, _) = listener.accept().expect("a client comes");
                let mut call = [0; 64];
                let _ = socket.read(&mut call).expect("it asks");
                let mark = 1 << 31 | u32::try_from(reply.len()).expect("it is short");
                socket.write_all(&mark.to_be_bytes()).expect("it reads");
                socket.write_all(&reply).expect("it reads");
            });
            let mut client = BenchNfsClient::connect(address).expect("it listens");
            let refused = client.mount("/").expect_err("it is no handle").to_string();
            assert!(refused.contains(words), "{words}: {refused}");
            server.join().expect("no bug");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let server = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client comes");
            let _ = socket.read(&mut [0; 64]).expect("it asks");
            socket.write_all(&u32::MAX.to_be_bytes()).expect("it reads");
        });
        let refused = BenchNfsClient::connect(address).expect("it listens").mount("/");
        assert!(matches!(refused, Err(NfsError::Protocol { .. })), "{refused:?}");
        server.join().expect("no bug");
    }
}
