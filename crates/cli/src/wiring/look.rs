//! What lies at a path, without opening it as a device: whoever searches for the members of a pool
//! looks at many files that are none, and some of them may hang.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions as FileOpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use format::geometry::{Geometry, POOL_BYTES_MIN, SUPERBLOCK_COPIES};
use format::superblock::{MAGIC, SUPERBLOCK_BYTES, Superblock, without_rest};
use storage::device::IO_ALIGN_BYTES;

use super::blank::{KNOWN_BYTES, known_in};

/// How long a look may take: a disk that spins up answers by then.
const LOOK_DEADLINE: Duration = Duration::from_secs(15);
/// The same at a path that a label names, and that is waited for before all others: a disk that has
/// slept for long, or one of many that begin to turn one after the other, answers by then, also
/// where the kernel tries again once. To go on without it costs more: the pool has one copy less.
const LABELLED_DEADLINE: Duration = Duration::from_secs(120);
/// The same once one that a label names has not answered.
const NEXT_LABELLED_DEADLINE: Duration = Duration::from_secs(30);
/// After how long people are told what is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(5);
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
    /// Paths that a label names and that did not answer: they are not asked again.
    silent: BTreeSet<PathBuf>,
}

/// How long one look may take.
#[derive(Clone, Copy, Debug)]
struct Patience {
    told_after: Duration,
    deadline: Duration,
}

impl Looks {
    /// Looks at `path`, which a label names, or one does not.
    pub(super) fn at(&mut self, path: &Path, is_labelled: bool) -> Seen {
        if self.overdue >= OVERDUE_MAX && !is_labelled || self.silent.contains(path) {
            return Seen::NoLabel;
        }
        let deadline = match is_labelled {
            true if self.silent.is_empty() => LABELLED_DEADLINE,
            true => NEXT_LABELLED_DEADLINE,
            false => LOOK_DEADLINE,
        };
        let before = self.overdue;
        let seen = self.within(Patience { told_after: TOLD_AFTER, deadline }, path, newest_label);
        if is_labelled && self.overdue > before {
            self.silent.insert(path.to_owned());
        }
        seen
    }

    fn within(
        &mut self,
        Patience { told_after, deadline }: Patience,
        path: &Path,
        look: impl FnOnce(&Path) -> Option<Superblock> + Send + 'static,
    ) -> Seen {
        let (sender, receiver) = mpsc::channel();
        let own = path.to_owned();
        let looking = std::thread::Builder::new().name("look".to_owned());
        let begun = looking.spawn(move || drop(sender.send(look(&own))));
        let wait = |most: Duration| receiver.recv_timeout(most);
        let timeout = Err(mpsc::RecvTimeoutError::Timeout);
        let path = path.display();
        let answer = begun.ok().map(|_| match wait(told_after.min(deadline)) {
            answer if answer == timeout && told_after < deadline => {
                let most_s = deadline.as_secs();
                tracing::warn!(%path, most_s, "a disk is waited for: it may have to begin to turn");
                wait(deadline.saturating_sub(told_after))
            }
            answer => answer,
        });
        if answer == Some(timeout) {
            self.overdue += 1;
            tracing::warn!(%path, "it does not answer: no member is looked for there");
        }
        let found = answer.and_then(Result::ok).flatten();
        found.map_or(Seen::NoLabel, |label| Seen::Label(Box::new(label)))
    }
}

/// Returns the newest label of a pool that lies at `path`, of whichever copy: one copy that
/// verifies is enough, whatever became of the others.
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
    // A file that was truncated has only the copies at its front.
    let copies = if size_bytes < POOL_BYTES_MIN { 0..2 } else { 0..SUPERBLOCK_COPIES };
    let size_bytes = size_bytes.max(POOL_BYTES_MIN);
    let label = |copy| label_at(&file, Geometry::superblock_offset(size_bytes, copy), copy);
    let newest = copies.filter_map(label).max_by_key(|label| label.sequence)?;
    // Copies may be left between what another system has written.
    (!is_anothers(&file)).then_some(newest)
}

/// Whether another system has written to a device since it had labels: its mark is there, and no
/// label is at the front. Anything else there is a label that has rotted.
fn is_anothers(file: &File) -> bool {
    let mut front = vec![0; KNOWN_BYTES];
    let mut read = 0;
    while let Some(rest) = front.get_mut(read..).filter(|rest| !rest.is_empty()) {
        // What cannot be read is no mark.
        match file.read_at(rest, u64::try_from(read).unwrap_or(u64::MAX)) {
            Ok(bytes) if bytes > 0 => read += bytes,
            Ok(_) | Err(_) => break,
        }
    }
    front.truncate(read);
    !front.starts_with(&MAGIC) && known_in(&front).is_some()
}

fn label_at(file: &File, offset: u64, copy: u16) -> Option<Superblock> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, offset).ok()?;
    if magic != MAGIC {
        return None;
    }
    let mut bytes = [0; SUPERBLOCK_BYTES];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Superblock::decode(&without_rest(bytes), copy).ok()
}

#[cfg(test)]
mod tests {
    use engine::{CreateOptions, Pool};
    use runtime::clock::ManualClock;
    use storage::device::{FileDevice, FileOptions, SharedDevice};

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
            let ms = Duration::from_millis(1);
            let patience = Patience { told_after: ms, deadline: ms };
            let seen = looks.within(patience, Path::new("/dev/hangs"), hangs);
            assert!(matches!(seen, Seen::NoLabel));
        }
        assert_eq!(looks.overdue, OVERDUE_MAX);
        let folder = std::env::temp_dir().join(format!("holdfast-look-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("there is room");
        let path = folder.join("d");
        let device = FileDevice::create(&path, 10 << 20, FileOptions::default());
        let device: SharedDevice = device.expect("a file");
        let options = CreateOptions::new(10 << 20, [9; 64]);
        Pool::create(&device, &ManualClock::new(), &options).expect("it fits");
        assert!(matches!(looks.at(&path, false), Seen::NoLabel), "nothing is looked at any more");
        assert!(matches!(looks.at(&path, true), Seen::Label(_)), "but where a label says");
        // What a longer label has left behind a short one is no part of it.
        let file = FileOpenOptions::new().write(true).open(&path).expect("it is ours");
        for copy in 0..SUPERBLOCK_COPIES {
            let behind = Geometry::superblock_offset(10 << 20, copy) + 4096;
            file.write_all_at(&[0xa5; SUPERBLOCK_BYTES - 4096], behind).expect("there is room");
        }
        assert!(matches!(looks.at(&path, true), Seen::Label(_)), "its head says all");
        // Its first copy alone is bad; then something else begins there.
        file.write_all_at(&[0; 4096], 0).expect("there is room");
        assert!(matches!(looks.at(&path, true), Seen::Label(_)), "another copy says it");
        file.write_all_at(b"XOLDFAST", 0).expect("there is room");
        assert!(matches!(looks.at(&path, true), Seen::Label(_)), "one byte is wrong");
        file.write_all_at(&[0x5a; 256 << 10], 0).expect("there is room");
        assert!(matches!(looks.at(&path, true), Seen::Label(_)), "those at the end are whole");
        file.write_all_at(&[0x55, 0xaa], 510).expect("there is room");
        assert!(matches!(looks.at(&path, true), Seen::NoLabel), "it is somebody else's by now");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    /// Goal: a disk that takes long is waited for, past the moment at which people are told of it.
    /// Method: one that answers ten times as late, and one that does not by the deadline.
    #[test]
    fn a_disk_that_begins_to_turn_is_waited_for() {
        let mut looks = Looks::default();
        let label = || {
            let folder = std::env::temp_dir().join(format!("holdfast-slow-{}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("there is room");
            let path = folder.join("d");
            let device = FileDevice::create(&path, 10 << 20, FileOptions::default());
            let device: SharedDevice = device.expect("a file");
            let options = CreateOptions::new(10 << 20, [9; 64]);
            Pool::create(&device, &ManualClock::new(), &options).expect("it fits");
            let label = newest_label(&path);
            std::fs::remove_dir_all(&folder).expect("it is ours");
            label
        };
        let label = label().expect("a label");
        let (told_after, path) = (Duration::from_millis(20), Path::new("/dev/turns"));
        for (deadline_s, answers) in [(60, true), (0, false)] {
            let own = label.clone();
            let slow = move |_: &Path| {
                std::thread::park_timeout(Duration::from_millis(200));
                Some(own)
            };
            let patience = Patience { told_after, deadline: Duration::from_secs(deadline_s) };
            let seen = looks.within(patience, path, slow);
            assert_eq!(matches!(seen, Seen::Label(_)), answers, "{deadline_s}");
        }
        assert_eq!(looks.overdue, 1);
        looks.silent.insert(path.to_owned());
        assert!(matches!(looks.at(path, true), Seen::NoLabel), "it is not asked again");
    }
}
