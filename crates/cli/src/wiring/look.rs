//! What lies at a path, without opening it as a device: whoever searches for the members of a pool
//! looks at many files that are none, and some of them may hang.

use std::fs::{File, OpenOptions as FileOpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use format::geometry::{Geometry, POOL_BYTES_MIN, SUPERBLOCK_COPIES};
use format::superblock::{MAGIC, SUPERBLOCK_BYTES, Superblock};
use storage::device::IO_ALIGN_BYTES;

/// How long a look may take: a disk that spins up answers by then.
const LOOK_DEADLINE: Duration = Duration::from_secs(15);
/// Looks that may be overdue before no more are begun: each keeps a thread, and its deadline.
const OVERDUE_MAX: usize = 4;

/// What was found at a path.
#[derive(Debug)]
pub(super) enum Seen {
    /// The newest label of a pool.
    Label(Box<Superblock>),
    /// No label that can be read.
    NoLabel,
}

/// Who looks at one path after the other.
#[derive(Debug, Default)]
pub(super) struct Looks {
    overdue: usize,
}

impl Looks {
    /// Looks at `path`.
    pub(super) fn at(&mut self, path: &Path) -> Seen {
        self.within(LOOK_DEADLINE, path, newest_label)
    }

    fn within(
        &mut self,
        deadline: Duration,
        path: &Path,
        look: impl FnOnce(&Path) -> Option<Superblock> + Send + 'static,
    ) -> Seen {
        if self.overdue >= OVERDUE_MAX {
            return Seen::NoLabel;
        }
        let (sender, receiver) = mpsc::channel();
        let own = path.to_owned();
        let looking = std::thread::Builder::new().name("look".to_owned());
        let begun = looking.spawn(move || drop(sender.send(look(&own))));
        let answer = begun.ok().map(|_| receiver.recv_timeout(deadline));
        if matches!(answer, Some(Err(mpsc::RecvTimeoutError::Timeout))) {
            self.overdue += 1;
            let path = path.display();
            tracing::warn!(%path, "it does not answer: no member is looked for there");
        }
        let found = answer.and_then(Result::ok).flatten();
        found.map_or(Seen::NoLabel, |label| Seen::Label(Box::new(label)))
    }
}

/// Returns the newest label of a pool that lies at `path`, of whichever copy.
fn newest_label(path: &Path) -> Option<Superblock> {
    let kind = std::fs::metadata(path).ok()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return None;
    }
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = FileOpenOptions::new().read(true).custom_flags(nonblocking).open(path).ok()?;
    let end = file.seek(SeekFrom::End(0)).ok()?;
    let aligned = u64::try_from(IO_ALIGN_BYTES).unwrap_or(1);
    let size_bytes = end - end % aligned;
    if size_bytes < POOL_BYTES_MIN {
        return label_at(&file, 0, 0);
    }
    let label = |copy| label_at(&file, Geometry::superblock_offset(size_bytes, copy), copy);
    (0..SUPERBLOCK_COPIES).filter_map(label).max_by_key(|label| label.sequence)
}

fn label_at(file: &File, offset: u64, copy: u16) -> Option<Superblock> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, offset).ok()?;
    if magic != MAGIC {
        return None;
    }
    let mut bytes = [0; SUPERBLOCK_BYTES];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Superblock::decode(&bytes, copy).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what does not answer holds a search up for a bounded time: after some of it nothing is
    /// looked at any more.
    #[test]
    fn what_hangs_is_passed_over_and_little_of_it_ends_the_looking() {
        let mut looks = Looks::default();
        let hangs = |_: &Path| {
            std::thread::park_timeout(Duration::from_secs(2));
            None
        };
        for _ in 0..OVERDUE_MAX {
            let seen = looks.within(Duration::from_millis(1), Path::new("/dev/hangs"), hangs);
            assert!(matches!(seen, Seen::NoLabel));
        }
        let asked = |_: &Path| -> Option<Superblock> { panic!("nothing is looked at any more") };
        let seen = looks.within(Duration::from_secs(1), Path::new("/dev/sda"), asked);
        assert!(matches!(seen, Seen::NoLabel));
        assert_eq!(looks.overdue, OVERDUE_MAX);
    }
}
