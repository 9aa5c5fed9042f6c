//! Reads the label at a path without opening the path as a device. A search for members examines
//! many files that are none, and reading some of them may hang.

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

/// Longest wait for a path that no label names. A disk that spins up answers in that time.
const LOOK_DEADLINE: Duration = Duration::from_secs(15);
/// Longest wait for a path that a label names. It allows for a disk in deep sleep, staggered
/// spin-up, and one retry by the kernel. It is long because without the device the pool runs with
/// one copy less.
const LABELLED_DEADLINE: Duration = Duration::from_secs(120);
/// Longest wait for further labelled paths after one has not answered.
const NEXT_LABELLED_DEADLINE: Duration = Duration::from_secs(30);
/// Wait after which the delay is logged.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// Number of paths without an answer after which no more unlabelled paths are read. Each has
/// blocked a thread and cost its deadline.
const OVERDUE_MAX: usize = 4;
/// Most paths that are reported as unread.
const UNREAD_MAX: usize = 64;

#[derive(Debug)]
pub(super) enum LabelReadResult {
    Label(Box<Superblock>),
    NoLabel,
}

#[derive(Debug, Default)]
pub(super) struct LabelReader {
    overdue: usize,
    /// Labelled paths that did not answer. They are not read again.
    silent: BTreeSet<PathBuf>,
    /// Unlabelled paths that did not answer, or were skipped after others had not.
    unread: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
struct LabelReadTimeouts {
    told_after: Duration,
    deadline: Duration,
}

impl LabelReader {
    pub(super) fn at(&mut self, path: &Path, is_labelled: bool) -> LabelReadResult {
        if self.silent.contains(path) {
            return LabelReadResult::NoLabel;
        }
        if self.overdue >= OVERDUE_MAX && !is_labelled {
            self.note_unread(path);
            return LabelReadResult::NoLabel;
        }
        let deadline = match is_labelled {
            true if self.silent.is_empty() => LABELLED_DEADLINE,
            true => NEXT_LABELLED_DEADLINE,
            false => LOOK_DEADLINE,
        };
        let before = self.overdue;
        let seen =
            self.within(LabelReadTimeouts { told_after: TOLD_AFTER, deadline }, path, newest_label);
        match self.overdue > before {
            true if is_labelled => drop(self.silent.insert(path.to_owned())),
            true => self.note_unread(path),
            false => {}
        }
        seen
    }

    fn note_unread(&mut self, path: &Path) {
        if self.unread.len() < UNREAD_MAX {
            self.unread.push(path.to_owned());
        }
    }

    pub(super) fn into_unread(self) -> Vec<PathBuf> {
        self.unread
    }

    fn within(
        &mut self,
        LabelReadTimeouts { told_after, deadline }: LabelReadTimeouts,
        path: &Path,
        look: impl FnOnce(&Path) -> Option<Superblock> + Send + 'static,
    ) -> LabelReadResult {
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
        found.map_or(LabelReadResult::NoLabel, |label| LabelReadResult::Label(Box::new(label)))
    }
}

/// Returns the newest label among the valid copies at `path`. One valid copy is enough.
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
    // A file shorter than any pool was truncated, and has only the copies at its front.
    let copies = if size_bytes < POOL_BYTES_MIN { 0..2 } else { 0..SUPERBLOCK_COPIES };
    let size_bytes = size_bytes.max(POOL_BYTES_MIN);
    let label = |copy| label_at(&file, Geometry::superblock_offset(size_bytes, copy), copy);
    let newest = copies.filter_map(label).max_by_key(|label| label.sequence)?;
    // Copies of an old label may survive among another system's data.
    (!is_anothers(&file)).then_some(newest)
}

/// Returns whether another system has overwritten the device: its magic number is there, and the
/// first copy of the label is not. Without a known magic number, the first copy counts as damaged.
fn is_anothers(file: &File) -> bool {
    let mut front = vec![0; KNOWN_BYTES];
    let mut read = 0;
    while let Some(rest) = front.get_mut(read..).filter(|rest| !rest.is_empty()) {
        // If a part cannot be read, only the part before it is compared.
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
    use engine::{Pool, PoolCreateOptions};
    use runtime::clock::ManualClock;
    use storage::device::{FileDevice, FileOptions, SharedDevice};

    use super::*;

    /// Goal: paths that do not answer delay a search for a bounded time, and after some of them no
    /// more are tried.
    #[test]
    fn what_hangs_is_passed_over_and_little_of_it_ends_the_looking() {
        let mut looks = LabelReader::default();
        let hangs = |_: &Path| {
            std::thread::park_timeout(Duration::from_secs(2));
            None
        };
        for _ in 0..OVERDUE_MAX {
            let ms = Duration::from_millis(1);
            let patience = LabelReadTimeouts { told_after: ms, deadline: ms };
            let seen = looks.within(patience, Path::new("/dev/hangs"), hangs);
            assert!(matches!(seen, LabelReadResult::NoLabel));
        }
        assert_eq!(looks.overdue, OVERDUE_MAX);
        let folder = std::env::temp_dir().join(format!("holdfast-look-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("there is room");
        let path = folder.join("d");
        let device = FileDevice::create(&path, 10 << 20, FileOptions::default());
        let device: SharedDevice = device.expect("a file");
        let options = PoolCreateOptions::new(10 << 20, [9; 64]);
        Pool::create(&device, &ManualClock::new(), &options).expect("it fits");
        assert!(
            matches!(looks.at(&path, false), LabelReadResult::NoLabel),
            "nothing is looked at any more"
        );
        assert!(
            matches!(looks.at(&path, true), LabelReadResult::Label(_)),
            "but where a label says"
        );
        // A shorter label may be followed by the rest of a longer one, which is no part of it.
        let file = FileOpenOptions::new().write(true).open(&path).expect("it is ours");
        for copy in 0..SUPERBLOCK_COPIES {
            let behind = Geometry::superblock_offset(10 << 20, copy) + 4096;
            file.write_all_at(&[0xa5; SUPERBLOCK_BYTES - 4096], behind).expect("there is room");
        }
        assert!(matches!(looks.at(&path, true), LabelReadResult::Label(_)), "its head says all");
        // At first only the first copy is damaged, then another system's data begins there.
        file.write_all_at(&[0; 4096], 0).expect("there is room");
        assert!(matches!(looks.at(&path, true), LabelReadResult::Label(_)), "another copy says it");
        file.write_all_at(b"XOLDFAST", 0).expect("there is room");
        assert!(matches!(looks.at(&path, true), LabelReadResult::Label(_)), "one byte is wrong");
        file.write_all_at(&[0x5a; 256 << 10], 0).expect("there is room");
        assert!(
            matches!(looks.at(&path, true), LabelReadResult::Label(_)),
            "those at the end are whole"
        );
        file.write_all_at(&[0x55, 0xaa], 510).expect("there is room");
        assert!(
            matches!(looks.at(&path, true), LabelReadResult::NoLabel),
            "it is somebody else's by now"
        );
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    /// Goal: a slow disk is waited for after the delay was logged. Method: a disk that answers ten
    /// times as late, and one that misses the deadline.
    #[test]
    fn a_disk_that_begins_to_turn_is_waited_for() {
        let mut looks = LabelReader::default();
        let label = || {
            let folder = std::env::temp_dir().join(format!("holdfast-slow-{}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("there is room");
            let path = folder.join("d");
            let device = FileDevice::create(&path, 10 << 20, FileOptions::default());
            let device: SharedDevice = device.expect("a file");
            let options = PoolCreateOptions::new(10 << 20, [9; 64]);
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
            let patience =
                LabelReadTimeouts { told_after, deadline: Duration::from_secs(deadline_s) };
            let seen = looks.within(patience, path, slow);
            assert_eq!(matches!(seen, LabelReadResult::Label(_)), answers, "{deadline_s}");
        }
        assert_eq!(looks.overdue, 1);
        looks.silent.insert(path.to_owned());
        assert!(matches!(looks.at(path, true), LabelReadResult::NoLabel), "it is not asked again");
    }
}
