//! The files of one client, and its calls on them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::prng::Prng;

use super::client::{BenchNfsClient, CallEncoder};
use super::{Mix, NfsError, Procedure};
use crate::number::{to_f64, to_u64, to_usize};

/// Directory for benchmark files, in the export.
const TOP: &str = "holdfast-bench-nfs";
/// Size of a READ or WRITE, as in SFS 97.
const TRANSFER_BYTES: u64 = 8192;
/// Percentage and KiB of file sizes, as in SFS 97.
const SIZES: [(u64, u64); 10] =
    [(33, 1), (21, 2), (13, 4), (10, 8), (8, 16), (5, 32), (4, 64), (3, 128), (2, 256), (1, 1024)];
/// NFS3ERR_NOENT.
const NOT_THERE: u32 = 2;
/// Files created in advance for REMOVE.
const SPARE_FILES: u64 = 8;

#[derive(Debug)]
pub(super) struct NfsLoad {
    client: BenchNfsClient,
    prng: Prng,
    top: Vec<u8>,
    name: String,
    directory: Vec<u8>,
    files: Vec<NfsLoadFile>,
    link: Option<Vec<u8>>,
    /// Files created by CREATE calls, and not yet removed.
    made: VecDeque<String>,
    /// A file whose creation or removal is in progress, or was when the connection broke.
    begun: Option<String>,
    next: u64,
    data: Vec<u8>,
}

#[derive(Debug)]
struct NfsLoadFile {
    name: String,
    handle: Vec<u8>,
    bytes: u64,
}

pub(super) fn make_top(client: &mut BenchNfsClient, root: &[u8]) -> Result<Vec<u8>, NfsError> {
    client.mkdir(root, TOP)
}

pub(super) fn remove_top(client: &mut BenchNfsClient, root: &[u8]) -> Result<(), NfsError> {
    RetriedRemoval::new(client).gone(|client| client.rmdir(root, TOP))
}

fn size_of_file(prng: &mut Prng) -> u64 {
    let mut left = prng.below(100);
    for (share, kib) in SIZES {
        if left < share {
            return kib << 10;
        }
        left -= share;
    }
    1024
}

impl NfsLoad {
    pub(super) fn new(client: BenchNfsClient, top: &[u8], number: u64, seed: u64) -> NfsLoad {
        let mut prng = Prng::from_seed(seed.wrapping_add(number));
        let mut data = vec![0; to_usize(TRANSFER_BYTES)];
        data.fill_with(|| u8::try_from(prng.below(256)).unwrap_or(0));
        let name = format!("client{number}");
        NfsLoad {
            client,
            prng,
            top: top.to_vec(),
            name,
            directory: Vec::new(),
            files: Vec::new(),
            link: None,
            made: VecDeque::new(),
            begun: None,
            next: 0,
            data,
        }
    }

    pub(super) fn make_files(&mut self, count: u64, stop: &AtomicBool) -> Result<(), NfsError> {
        self.directory = self.client.mkdir(&self.top, &self.name)?;
        self.link = Some(self.client.symlink(&self.directory, "link", "file0")?);
        for number in 0..count.max(1) {
            if stop.load(Ordering::Relaxed) {
                return Err(NfsError::Stopped);
            }
            let name = format!("file{number}");
            self.begun = Some(name.clone());
            let handle = self.client.create(&self.directory, &name)?;
            self.begun = None;
            let bytes = size_of_file(&mut self.prng);
            self.files.push(NfsLoadFile { name, handle, bytes });
            let Some(NfsLoadFile { name, handle, .. }) = self.files.last() else { continue };
            let mut at = 0;
            while at < bytes {
                let part = (bytes - at).min(TRANSFER_BYTES);
                let data = self.data.get(..to_usize(part)).unwrap_or_default();
                self.client.write((handle, name), at, data, false)?;
                at += part;
            }
        }
        for _ in 0..SPARE_FILES {
            self.create()?;
        }
        Ok(())
    }

    pub(super) fn share(&mut self) -> f64 {
        to_f64(self.prng.below(1000)) / 1000.0
    }

    fn create(&mut self) -> Result<(), NfsError> {
        let name = format!("new{}", self.next);
        self.next += 1;
        self.begun = Some(name.clone());
        self.client.create(&self.directory, &name)?;
        self.begun = None;
        self.made.push_back(name);
        Ok(())
    }

    /// Makes a random call of a mix, and returns its procedure.
    pub(super) fn ask(&mut self, mix: Mix) -> Result<Procedure, NfsError> {
        let mut procedure = mix.choose(&mut self.prng);
        if procedure == Procedure::Remove && self.made.is_empty() {
            procedure = Procedure::Create;
        }
        let index = to_usize(self.prng.below(to_u64(self.files.len())));
        let Some(NfsLoadFile { name, handle, bytes }) = self.files.get(index) else {
            return Ok(procedure);
        };
        let of_file = || CallEncoder::default().opaque(handle);
        let of_directory = || CallEncoder::default().opaque(&self.directory);
        let blocks = bytes.div_ceil(TRANSFER_BYTES).max(1);
        let at = self.prng.below(blocks) * TRANSFER_BYTES;
        let count = (bytes - at.min(*bytes)).min(TRANSFER_BYTES);
        let args = match procedure {
            Procedure::Create => {
                self.create()?;
                return Ok(procedure);
            }
            Procedure::Remove => {
                if let Some(name) = self.made.pop_front() {
                    self.begun = Some(name.clone());
                    self.client.remove(&self.directory, &name)?;
                    self.begun = None;
                }
                return Ok(procedure);
            }
            Procedure::Write => {
                let data = self.data.get(..to_usize(count)).unwrap_or_default();
                self.client.write((handle, name), at, data, mix.is_stable())?;
                return Ok(procedure);
            }
            Procedure::Getattr => of_file(),
            // No guard (`sattrguard3`) follows the attributes.
            Procedure::Setattr => of_file().mode(0o640).u32(0),
            Procedure::Lookup => of_directory().opaque(name.as_bytes()),
            Procedure::Access => of_file().u32(0x3f),
            Procedure::Readlink => {
                CallEncoder::default().opaque(self.link.as_deref().unwrap_or_default())
            }
            Procedure::Read => {
                of_file().u64(at).u32(u32::try_from(TRANSFER_BYTES).unwrap_or(u32::MAX))
            }
            Procedure::Readdir => of_directory().u64(0).u64(0).u32(8192),
            Procedure::Readdirplus => of_directory().u64(0).u64(0).u32(8192).u32(8192),
            Procedure::Fsstat | Procedure::Fsinfo => of_directory(),
            Procedure::Commit => of_file().u64(0).u32(0),
        };
        self.client.nfs(procedure, name, &args)?;
        Ok(procedure)
    }

    /// Removes all files, after a reconnect if necessary.
    pub(super) fn remove(&mut self) -> Result<(), NfsError> {
        let files = std::mem::take(&mut self.files);
        let made = std::mem::take(&mut self.made);
        let link = "link".to_owned();
        let names = files.into_iter().map(|file| file.name).chain(made).chain(self.begun.take());
        let mut again = RetriedRemoval::new(&mut self.client);
        let is_made = !self.directory.is_empty();
        for name in names.chain([link]).filter(|_| is_made) {
            again.gone(|client| client.remove(&self.directory, &name))?;
        }
        again.gone(|client| client.rmdir(&self.top, &self.name))
    }
}

/// Removal that reconnects once.
pub(super) struct RetriedRemoval<'c> {
    client: &'c mut BenchNfsClient,
    /// A second reconnect is not tried: a server that disconnects twice is gone.
    has_connected: bool,
}

impl<'c> RetriedRemoval<'c> {
    pub(super) fn new(client: &'c mut BenchNfsClient) -> RetriedRemoval<'c> {
        RetriedRemoval { client, has_connected: false }
    }

    /// Makes a removal call. A file that does not exist counts as removed.
    pub(super) fn gone(
        &mut self,
        mut call: impl FnMut(&mut BenchNfsClient) -> Result<(), NfsError>,
    ) -> Result<(), NfsError> {
        let mut done = call(self.client);
        let is_broken =
            matches!(done, Err(NfsError::Connection { .. } | NfsError::Protocol { .. }));
        if is_broken && !self.has_connected {
            self.has_connected = true;
            self.client.connect_again()?;
            done = call(self.client);
        }
        match done {
            Err(NfsError::Status { status: NOT_THERE, .. }) => Ok(()),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Goal: cleanup reconnects if the connection broke, and accepts files already gone.
    #[test]
    fn what_was_made_is_removed_by_another_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let server = std::thread::spawn(move || {
            drop(listener.accept().expect("a client comes"));
            let (mut socket, _) = listener.accept().expect("it comes again");
            let mut removed = Vec::new();
            let mut mark = [0; 4];
            while socket.read_exact(&mut mark).is_ok() {
                let length = usize::from(mark[3]) + (usize::from(mark[2]) << 8);
                let mut call = vec![0; length];
                socket.read_exact(&mut call).expect("it is whole");
                removed.push(call[23]);
                let reply = [&[0x80, 0, 0, 28], &call[..4], &[0, 0, 0, 1], &[0; 19], &[2]].concat();
                socket.write_all(&reply).expect("it reads");
            }
            removed
        });
        let client = BenchNfsClient::connect(address).expect("it listens");
        let mut load = NfsLoad::new(client, b"top", 0, 1);
        load.directory = b"directory".to_vec();
        load.begun = Some("new7".to_owned());
        load.remove().expect("nothing is there");
        drop(load);
        // REMOVE of the file and of the link, and RMDIR.
        assert_eq!(server.join().expect("no bug"), [12, 12, 13]);
    }

    #[test]
    fn sizes_are_those_of_a_hundred_files() {
        assert_eq!(SIZES.iter().map(|(share, _)| share).sum::<u64>(), 100);
        let mut prng = Prng::from_seed(3);
        let sizes: Vec<u64> = (0..10_000).map(|_| size_of_file(&mut prng)).collect();
        let small = sizes.iter().filter(|bytes| **bytes <= 2048).count();
        assert!((5000..5800).contains(&small), "{small}");
        assert!(sizes.contains(&(1 << 20)));
    }
}
