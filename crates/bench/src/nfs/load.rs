//! A client's files, and the calls on them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use runtime::prng::Prng;

use super::client::{Client, Words};
use super::{Mix, NfsError, Procedure};
use crate::number::{to_f64, to_u64, to_usize};

/// The directory of the bench, in the export.
const TOP: &str = "holdfast-bench-nfs";
/// Bytes of a READ or a WRITE: what SFS 97 moves at once.
const TRANSFER_BYTES: u64 = 8192;
/// Sizes of files in KiB and how many of a hundred have them, as in SFS 97.
const SIZES: [(u64, u64); 10] =
    [(33, 1), (21, 2), (13, 4), (10, 8), (8, 16), (5, 32), (4, 64), (3, 128), (2, 256), (1, 1024)];
/// Files that are there to be removed.
const SPARE_FILES: u64 = 8;

/// What a client works on.
#[derive(Debug)]
pub(super) struct Load {
    client: Client,
    prng: Prng,
    top: Vec<u8>,
    name: String,
    directory: Vec<u8>,
    files: Vec<File>,
    link: Option<Vec<u8>>,
    /// Those that were made and not removed.
    made: VecDeque<String>,
    next: u64,
    data: Vec<u8>,
}

#[derive(Debug)]
struct File {
    name: String,
    handle: Vec<u8>,
    bytes: u64,
}

/// Makes the directory of the bench.
pub(super) fn make_top(client: &mut Client, root: &[u8]) -> Result<Vec<u8>, NfsError> {
    client.mkdir(root, TOP)
}

/// Removes it; it is empty.
pub(super) fn remove_top(client: &mut Client, root: &[u8]) -> Result<(), NfsError> {
    client.rmdir(root, TOP)
}

/// Returns how large a file is.
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

impl Load {
    pub(super) fn new(
        mut client: Client,
        top: &[u8],
        number: u64,
        seed: u64,
    ) -> Result<Load, NfsError> {
        let name = format!("client{number}");
        let directory = client.mkdir(top, &name)?;
        let mut prng = Prng::from_seed(seed.wrapping_add(number));
        let mut data = vec![0; to_usize(TRANSFER_BYTES)];
        data.fill_with(|| u8::try_from(prng.below(256)).unwrap_or(0));
        Ok(Load {
            client,
            prng,
            top: top.to_vec(),
            name,
            directory,
            files: Vec::new(),
            link: None,
            made: VecDeque::new(),
            next: 0,
            data,
        })
    }

    pub(super) fn make_files(&mut self, count: u64, stop: &AtomicBool) -> Result<(), NfsError> {
        self.link = Some(self.client.symlink(&self.directory, "link", "file0")?);
        for number in 0..count.max(1) {
            if stop.load(Ordering::Relaxed) {
                return Err(NfsError::Stopped);
            }
            let name = format!("file{number}");
            let handle = self.client.create(&self.directory, &name)?;
            let bytes = size_of_file(&mut self.prng);
            self.files.push(File { name, handle, bytes });
            let Some(File { name, handle, .. }) = self.files.last() else { continue };
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

    /// Returns a number of this client's own, from 0 to 1.
    pub(super) fn share(&mut self) -> f64 {
        to_f64(self.prng.below(1000)) / 1000.0
    }

    fn create(&mut self) -> Result<(), NfsError> {
        let name = format!("new{}", self.next);
        self.next += 1;
        self.client.create(&self.directory, &name)?;
        self.made.push_back(name);
        Ok(())
    }

    /// Makes the next call of a mix; returns which it was.
    pub(super) fn ask(&mut self, mix: Mix) -> Result<Procedure, NfsError> {
        let mut procedure = mix.choose(&mut self.prng);
        if procedure == Procedure::Remove && self.made.is_empty() {
            procedure = Procedure::Create;
        }
        let index = to_usize(self.prng.below(to_u64(self.files.len())));
        let Some(File { name, handle, bytes }) = self.files.get(index) else {
            return Ok(procedure);
        };
        let of_file = || Words::default().opaque(handle);
        let of_directory = || Words::default().opaque(&self.directory);
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
                    self.client.remove(&self.directory, &name)?;
                }
                return Ok(procedure);
            }
            Procedure::Write => {
                let data = self.data.get(..to_usize(count)).unwrap_or_default();
                self.client.write((handle, name), at, data, mix.is_stable())?;
                return Ok(procedure);
            }
            Procedure::Getattr => of_file(),
            // The guard that follows is that nothing is compared.
            Procedure::Setattr => of_file().mode(0o640).u32(0),
            Procedure::Lookup => of_directory().opaque(name.as_bytes()),
            Procedure::Access => of_file().u32(0x3f),
            Procedure::Readlink => {
                Words::default().opaque(self.link.as_deref().unwrap_or_default())
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

    /// Removes what was made.
    pub(super) fn remove(&mut self) -> Result<(), NfsError> {
        let files = std::mem::take(&mut self.files);
        let made = std::mem::take(&mut self.made);
        for name in files.into_iter().map(|file| file.name).chain(made) {
            self.client.remove(&self.directory, &name)?;
        }
        if self.link.take().is_some() {
            self.client.remove(&self.directory, "link")?;
        }
        self.client.rmdir(&self.top, &self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
