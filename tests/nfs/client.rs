//! A client of NFSv3 with an XDR of its own, so that a mistake of the server's is not made twice.
//!
//! It speaks by a [`Wire`]: a socket, or the service itself.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use front::nfs::{DeferredReply, NotCallError, ReplySink, Service};
use runtime::sync::Mutex;

pub(crate) const NFS: (u32, u32) = (100_003, 3);
pub(crate) const MOUNT: (u32, u32) = (100_005, 3);

pub(crate) const UNSTABLE: u32 = 0;
pub(crate) const FILE_SYNC: u32 = 2;

/// Words that are written one after another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words(pub(crate) Vec<u8>);

impl Words {
    pub(crate) fn u32(mut self, word: u32) -> Words {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub(crate) fn u64(mut self, word: u64) -> Words {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub(crate) fn opaque(self, bytes: &[u8]) -> Words {
        let mut words = self.u32(u32::try_from(bytes.len()).expect("it is short"));
        words.0.extend(bytes);
        words.0.resize(words.0.len().next_multiple_of(4), 0);
        words
    }

    /// Attributes to set: mode and size.
    pub(crate) fn set(self, mode: Option<u32>, size: Option<u64>) -> Words {
        let words = match mode {
            Some(mode) => self.u32(1).u32(mode),
            None => self.u32(0),
        };
        let words = words.u32(0).u32(0);
        let words = match size {
            Some(size) => words.u32(1).u64(size),
            None => words.u32(0),
        };
        words.u32(0).u32(0)
    }
}

/// An answer that is read from front to back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    bytes: Vec<u8>,
    at: usize,
}

/// What an answer tells of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attr {
    pub(crate) kind: u32,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) fsid: u64,
    pub(crate) fileid: u64,
    pub(crate) ctime: (u32, u32),
}

/// Names of a directory, with handles where they came with them.
pub(crate) type Names = Vec<(String, Option<Vec<u8>>)>;

/// What an answer tells around a change: the size before, and the attributes after.
#[derive(Clone, Debug)]
pub(crate) struct Wcc {
    pub(crate) size_before: Option<u64>,
    pub(crate) after: Option<Attr>,
}

impl Answer {
    pub(crate) fn u32(&mut self) -> u32 {
        let word = self.bytes[self.at..self.at + 4].try_into().expect("4 bytes");
        self.at += 4;
        u32::from_be_bytes(word)
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    pub(crate) fn opaque(&mut self) -> Vec<u8> {
        let length = usize::try_from(self.u32()).expect("it is short");
        let bytes = self.bytes[self.at..self.at + length].to_vec();
        self.at += length.next_multiple_of(4);
        bytes
    }

    pub(crate) fn attr(&mut self) -> Attr {
        let [kind, mode, nlink, uid, gid] = std::array::from_fn(|_| self.u32());
        let (size, _used, _rdev) = (self.u64(), self.u64(), self.u64());
        let (fsid, fileid) = (self.u64(), self.u64());
        let (_atime, _mtime) = (self.u64(), self.u64());
        let ctime = (self.u32(), self.u32());
        Attr { kind, mode, nlink, uid, gid, size, fsid, fileid, ctime }
    }

    pub(crate) fn some_attr(&mut self) -> Option<Attr> {
        (self.u32() == 1).then(|| self.attr())
    }

    pub(crate) fn wcc(&mut self) -> Wcc {
        let size_before = (self.u32() == 1).then(|| {
            let size = self.u64();
            let _ = (self.u64(), self.u64());
            size
        });
        Wcc { size_before, after: self.some_attr() }
    }

    /// Handle, attributes and those around the directory of what was made.
    pub(crate) fn made(&mut self) -> (Vec<u8>, Attr, Wcc) {
        assert_eq!(self.u32(), 1, "a handle follows");
        let handle = self.opaque();
        (handle, self.some_attr().expect("attributes follow"), self.wcc())
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The call was refused as a whole: 1 for what was denied, else 16 and the accept status.
    Rpc(u32),
    /// The status of the call.
    Status(u32),
}

/// Carries records.
pub(crate) trait Wire {
    fn exchange(&mut self, record: &[u8]) -> Vec<u8>;
}

/// A connection.
pub(crate) struct Socket(pub(crate) TcpStream);

impl Socket {
    pub(crate) fn connect(address: SocketAddr) -> Socket {
        Socket(TcpStream::connect(address).expect("the server listens"))
    }

    pub(crate) fn send(&mut self, record: &[u8]) {
        let mark = 1 << 31 | u32::try_from(record.len()).expect("it is short");
        let whole = [&mark.to_be_bytes()[..], record].concat();
        self.0.write_all(&whole).expect("the server reads");
    }

    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).expect("the server answers");
        let length = u32::from_be_bytes(mark) & !(1 << 31);
        let mut record = vec![0; usize::try_from(length).expect("it is short")];
        self.0.read_exact(&mut record).expect("the server answers");
        record
    }
}

impl Wire for Socket {
    fn exchange(&mut self, record: &[u8]) -> Vec<u8> {
        self.send(record);
        self.receive()
    }
}

struct Told(Mutex<Sender<Vec<u8>>>);

impl ReplySink for Told {
    fn send(&self, reply: Vec<u8>) {
        // Who asked may have left.
        let _ = self.0.lock().send(reply);
    }
}

/// The service, without a socket.
pub(crate) struct Direct {
    service: Arc<Service>,
    peer: SocketAddr,
    sink: Arc<dyn ReplySink>,
    told: Receiver<Vec<u8>>,
}

impl Direct {
    pub(crate) fn new(service: &Arc<Service>, peer: SocketAddr) -> Direct {
        let (sender, told) = channel();
        let sink = Arc::new(Told(Mutex::new(sender)));
        Direct { service: Arc::clone(service), peer, sink, told }
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Serves a record; the answer, if there is one before a commit.
    pub(crate) fn start(&mut self, record: &[u8]) -> (Option<Vec<u8>>, Option<DeferredReply>) {
        self.try_start(record).expect("it is a call")
    }

    /// Serves what may be no call.
    pub(crate) fn try_start(
        &mut self,
        record: &[u8],
    ) -> Result<(Option<Vec<u8>>, Option<DeferredReply>), NotCallError> {
        let commit = self.service.serve(self.peer, record, &self.sink)?;
        Ok((self.told(), commit))
    }

    pub(crate) fn told(&mut self) -> Option<Vec<u8>> {
        self.told.try_recv().ok().map(|reply| reply[4..].to_vec())
    }
}

impl Wire for Direct {
    fn exchange(&mut self, record: &[u8]) -> Vec<u8> {
        let (reply, commit) = self.start(record);
        if let Some(commit) = commit {
            commit.run();
        }
        reply.or_else(|| self.told()).expect("there is an answer")
    }
}

/// A client on a wire.
pub(crate) struct Client<W> {
    pub(crate) wire: W,
    pub(crate) xid: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl<W: Wire> Client<W> {
    pub(crate) fn new(wire: W) -> Client<W> {
        Client { wire, xid: 1, uid: 0, gid: 0 }
    }

    /// Returns the record of a call.
    pub(crate) fn record(
        &mut self,
        (program, version): (u32, u32),
        number: u32,
        args: &Words,
    ) -> Vec<u8> {
        self.xid += 1;
        let sys = Words::default().u32(0).opaque(b"test").u32(self.uid).u32(self.gid).u32(0);
        let head = Words::default().u32(self.xid).u32(0).u32(2).u32(program).u32(version);
        let mut words = head.u32(number).u32(1).opaque(&sys.0).u32(0).u32(0);
        words.0.extend(&args.0);
        words.0
    }

    pub(crate) fn call(
        &mut self,
        program: (u32, u32),
        number: u32,
        args: Words,
    ) -> Result<Answer, Trouble> {
        let record = self.record(program, number, &args);
        let reply = self.wire.exchange(&record);
        open(self.xid, reply)
    }

    /// Calls NFS, and expects the status to be 0.
    pub(crate) fn nfs(&mut self, number: u32, args: Words) -> Result<Answer, Trouble> {
        let mut answer = self.call(NFS, number, args)?;
        match answer.u32() {
            0 => Ok(answer),
            status => Err(Trouble::Status(status)),
        }
    }

    pub(crate) fn mount(&mut self, path: &str) -> Result<Vec<u8>, Trouble> {
        let mut answer = self.call(MOUNT, 1, Words::default().opaque(path.as_bytes()))?;
        match answer.u32() {
            0 => Ok(answer.opaque()),
            status => Err(Trouble::Status(status)),
        }
    }

    pub(crate) fn getattr(&mut self, handle: &[u8]) -> Result<Attr, Trouble> {
        Ok(self.nfs(1, Words::default().opaque(handle))?.attr())
    }

    pub(crate) fn lookup(
        &mut self,
        directory: &[u8],
        name: &str,
    ) -> Result<(Vec<u8>, Attr), Trouble> {
        let args = Words::default().opaque(directory).opaque(name.as_bytes());
        let mut answer = self.nfs(3, args)?;
        Ok((answer.opaque(), answer.some_attr().expect("attributes follow")))
    }

    pub(crate) fn create(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, Trouble> {
        let args = Words::default().opaque(directory).opaque(name.as_bytes());
        Ok(self.nfs(8, args.u32(1).set(Some(0o644), None))?.made().0)
    }

    pub(crate) fn mkdir(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, Trouble> {
        let args = Words::default().opaque(directory).opaque(name.as_bytes());
        Ok(self.nfs(9, args.set(Some(0o755), None))?.made().0)
    }

    /// Writes; returns how stable it is, and the verifier.
    pub(crate) fn write(
        &mut self,
        file: &[u8],
        offset: u64,
        bytes: &[u8],
        stable: u32,
    ) -> Result<(u32, u64), Trouble> {
        let count = u32::try_from(bytes.len()).expect("it is short");
        let args = Words::default().opaque(file).u64(offset).u32(count).u32(stable).opaque(bytes);
        let mut answer = self.nfs(7, args)?;
        answer.wcc();
        assert_eq!(answer.u32(), count, "all of it is written");
        Ok((answer.u32(), answer.u64()))
    }

    /// Writes durably what there is room for; returns how much that is.
    pub(crate) fn write_some(
        &mut self,
        file: &[u8],
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Trouble> {
        let count = u32::try_from(bytes.len()).expect("it is short");
        let args = Words::default().opaque(file).u64(offset).u32(count).u32(FILE_SYNC);
        let mut answer = self.nfs(7, args.opaque(bytes))?;
        answer.wcc();
        Ok(usize::try_from(answer.u32()).expect("it is short"))
    }

    pub(crate) fn commit(&mut self, file: &[u8]) -> Result<u64, Trouble> {
        let mut answer = self.nfs(21, Words::default().opaque(file).u64(0).u32(0))?;
        answer.wcc();
        Ok(answer.u64())
    }

    pub(crate) fn read(
        &mut self,
        file: &[u8],
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), Trouble> {
        let mut answer = self.nfs(6, Words::default().opaque(file).u64(offset).u32(count))?;
        answer.some_attr();
        let (count, is_end) = (answer.u32(), answer.u32() == 1);
        let bytes = answer.opaque();
        assert_eq!(u32::try_from(bytes.len()), Ok(count));
        assert!(answer.is_at_end());
        Ok((bytes, is_end))
    }

    pub(crate) fn remove(&mut self, directory: &[u8], name: &str) -> Result<Wcc, Trouble> {
        let args = Words::default().opaque(directory).opaque(name.as_bytes());
        Ok(self.nfs(12, args)?.wcc())
    }

    /// Lists a whole directory, in answers of at most `bytes`; with handles where there are any.
    pub(crate) fn list(&mut self, directory: &[u8], bytes: u32) -> Result<Names, Trouble> {
        let (mut cookie, mut verifier, mut all) = (0, 0, Vec::new());
        loop {
            let args = Words::default().opaque(directory).u64(cookie).u64(verifier);
            let mut answer = self.nfs(17, args.u32(bytes).u32(bytes))?;
            assert!(answer.bytes.len() <= usize::try_from(bytes).expect("small") + 24);
            answer.some_attr();
            verifier = answer.u64();
            while answer.u32() == 1 {
                answer.u64();
                let name = String::from_utf8(answer.opaque()).expect("a test's name");
                cookie = answer.u64();
                answer.some_attr();
                let handle = (answer.u32() == 1).then(|| answer.opaque());
                all.push((name, handle));
            }
            if answer.u32() == 1 {
                return Ok(all);
            }
        }
    }
}

/// Returns the results of an answer to `xid`.
pub(crate) fn open(xid: u32, reply: Vec<u8>) -> Result<Answer, Trouble> {
    let mut answer = Answer { bytes: reply, at: 0 };
    assert_eq!(answer.u32(), xid, "the answer is to this call");
    assert_eq!(answer.u32(), 1, "it is an answer");
    if answer.u32() == 1 {
        return Err(Trouble::Rpc(1));
    }
    answer.u64();
    match answer.u32() {
        0 => Ok(answer),
        status => Err(Trouble::Rpc(16 + status)),
    }
}
