//! Readahead of file content.
//!
//! Three reads of one length at one distance show a sequential or strided reader, forwards or
//! backwards. After a reply, its thread reads the next ranges ([`Files::read_steps`]) into
//! [`crate::segment::ReadaheadBuffer`]. See Shirriff, "Sawmill: A Logging File System for a
//! High-Performance RAID Disk Array", 1995, section 4.3.2.
//!
//! Readahead is only a hint: bytes are verified when used, and the reader repeats a failed read.
//!
//! # Bounds
//!
//! A reader's *window* starts with two reads, and doubles each time that half of it was used, up to
//! [`WINDOW_BYTES_MAX`], [`WINDOW_STEPS_MAX`] reads and a quarter of the readahead memory. It is
//! halved when data was evicted before its use. Files in the segment cache have no readahead. The
//! table holds 256 readers, [`PLACES`] in each shard, and replaces the least recent one of a shard.
//! At most [`FILLERS_MAX`] threads read, and [`WAITING_MAX`] windows wait.
//!
//! # Concurrency
//!
//! The locks of this module are leaves. None is held during I/O. Data of a file that was changed
//! since is not used (SC1, SC2 of `segment::chunks`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use storage::device::{AlignedBuffer, IoPurpose, SharedBytes};

use crate::alloc::Extent;
use crate::api::Ino;
use crate::convert::index_wide;
use crate::file::read::RUN_BYTES_MAX;
use crate::file::{Core, Files};
use crate::segment::{ChunkFill, ReadaheadBuffer, ReadaheadStart};
use crate::sync::Mutex;
const SHARDS: usize = 64;
const PLACES: usize = 4;
/// Reads at one distance before readahead begins.
const IN_ROW: u32 = 2;
const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// Divisor of the readahead memory for one window.
const WINDOW_SHARE: u64 = 4;
const WINDOW_STEPS_MAX: u32 = 256;
const WAITING_MAX: usize = 8;
/// Most threads that read ahead, of the mount's four or more, so that others serve requests.
const FILLERS_MAX: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileRead {
    pub(super) ino: Ino,
    pub(super) offset: u64,
    pub(super) length_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct SequentialReader {
    /// Identity of the reader, unique in its shard.
    number: u64,
    last: FileRead,
    /// Distance between the starts of reads; 0 if unknown.
    distance: i64,
    in_row: u32,
    window_steps: u32,
    most_steps: u32,
    /// Whether the last read used data that was read ahead.
    is_used: bool,
    /// Count of steps after the last read that are read ahead, or being read.
    ahead_steps: u32,
    is_waiting: bool,
    used: u64,
}

impl SequentialReader {
    fn new(step: FileRead, distance: i64, used: u64) -> SequentialReader {
        SequentialReader {
            number: used,
            last: step,
            distance,
            in_row: u32::from(distance != 0),
            window_steps: 2,
            most_steps: 1,
            is_used: false,
            ahead_steps: 0,
            is_waiting: false,
            used,
        }
    }

    /// Returns the number of steps to `step`, if it is a read of this reader. Several steps are
    /// accepted, since the kernel sends reads in any order.
    fn steps_to(&self, step: FileRead) -> Option<u32> {
        let SequentialReader { last, distance, .. } = *self;
        if step.ino != last.ino || step.length_bytes > last.length_bytes {
            return None;
        }
        let from = i128::from(step.offset) - i128::from(last.offset);
        if distance == 0 || from % i128::from(distance) != 0 {
            return None;
        }
        let steps = u32::try_from(from / i128::from(distance)).ok()?;
        (1..=self.ahead_steps.max(1)).contains(&steps).then_some(steps)
    }

    fn follows(&self, step: FileRead) -> bool {
        let FileRead { ino, offset, length_bytes } = self.last;
        ino == step.ino && offset.checked_add(length_bytes) == Some(step.offset)
    }

    /// Returns the range `steps` after the last read; `None` before the start of the file.
    fn at(&self, steps: u32) -> Option<Range<u64>> {
        let from = self.distance.checked_mul(steps.into())?;
        let start = self.last.offset.checked_add_signed(from)?;
        Some(start..start.checked_add(self.last.length_bytes)?)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedReadahead {
    ino: Ino,
    reader: u64,
    ranges: Vec<Range<u64>>,
}

#[derive(Debug, Default)]
struct ReaderShard {
    readers: Vec<SequentialReader>,
    clock: u64,
}

#[derive(Debug)]
pub(super) struct FileReadahead {
    shards: [Mutex<ReaderShard>; SHARDS],
    /// Last reads of the readers with a waiting window.
    waiting: Mutex<VecDeque<FileRead>>,
    /// Whether `waiting` has any, readable without the lock.
    has_waiting: AtomicBool,
    fillers: AtomicUsize,
}

impl Default for FileReadahead {
    fn default() -> FileReadahead {
        FileReadahead {
            shards: std::array::from_fn(|_| Mutex::new(ReaderShard::default())),
            waiting: Mutex::new(VecDeque::new()),
            has_waiting: AtomicBool::new(false),
            fillers: AtomicUsize::new(0),
        }
    }
}

#[derive(Debug)]
struct ActiveReadahead<'a>(&'a AtomicUsize);

impl Drop for ActiveReadahead<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct ReadaheadFill<'a> {
    ahead: &'a ReadaheadBuffer,
    fill: ChunkFill,
    data: Option<SharedBytes>,
}

impl ReadaheadFill<'_> {
    fn end(mut self, data: Option<AlignedBuffer>) {
        self.data = data.map(Into::into);
    }
}

impl Drop for ReadaheadFill<'_> {
    fn drop(&mut self) {
        self.ahead.end(&self.fill, self.data.as_ref());
    }
}

impl FileReadahead {
    fn shard(&self, ino: Ino) -> &Mutex<ReaderShard> {
        let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.shards[index_wide(mixed)]
    }

    /// Notes a read of the device or of readahead (`is_ahead`). `limit_bytes` is the readahead
    /// memory.
    pub(super) fn note(&self, step: FileRead, is_ahead: bool, limit_bytes: u64) {
        let most = WINDOW_BYTES_MAX.min(limit_bytes / WINDOW_SHARE);
        let most = most.checked_div(step.length_bytes).unwrap_or(0);
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(WINDOW_STEPS_MAX);
        let mut shard = self.shard(step.ino).lock();
        let Some(reader) = shard.note(step, is_ahead, most) else { return };
        if reader.is_waiting || reader.ahead_steps * 2 > reader.window_steps || most == 0 {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING_MAX {
            reader.is_waiting = true;
            waiting.push_back(reader.last);
            self.has_waiting.store(true, Ordering::Release);
        }
    }

    fn begin(&self) -> Option<ActiveReadahead<'_>> {
        if !self.has_waiting.load(Ordering::Acquire) {
            return None;
        }
        let one_more = |count: usize| Some(count + 1).filter(|_| count < FILLERS_MAX);
        let begun = self.fillers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        // Only a counted thread gets an [`ActiveReadahead`], since its drop decrements the count.
        begun.is_ok().then(|| ActiveReadahead(&self.fillers))
    }

    /// Takes the next waiting window, and marks it as read ahead.
    fn next(&self) -> Option<PlannedReadahead> {
        loop {
            let step = {
                let mut waiting = self.waiting.lock();
                let step = waiting.pop_front();
                self.has_waiting.store(!waiting.is_empty(), Ordering::Release);
                step?
            };
            let mut shard = self.shard(step.ino).lock();
            // The reader may have advanced since its window was queued.
            let is_it =
                |reader: &&mut SequentialReader| reader.is_waiting && reader.last.ino == step.ino;
            let Some(reader) = shard.readers.iter_mut().find(is_it) else { continue };
            reader.is_waiting = false;
            if std::mem::take(&mut reader.is_used) {
                reader.window_steps = (reader.window_steps * 2).min(reader.most_steps);
            }
            let steps = reader.ahead_steps + 1..=reader.window_steps;
            let ranges: Vec<_> = steps.map_while(|steps| reader.at(steps)).collect();
            reader.ahead_steps = reader.window_steps;
            if !ranges.is_empty() {
                return Some(PlannedReadahead { ino: step.ino, reader: reader.number, ranges });
            }
        }
    }

    fn give_up(&self, coming: &PlannedReadahead) {
        let mut shard = self.shard(coming.ino).lock();
        let is_it = |reader: &&mut SequentialReader| reader.number == coming.reader;
        if let Some(reader) = shard.readers.iter_mut().find(is_it) {
            reader.ahead_steps = 0;
        }
    }
}

impl ReaderShard {
    /// Returns the reader of `step`, once its distance is established.
    fn note(
        &mut self,
        step: FileRead,
        is_ahead: bool,
        most_steps: u32,
    ) -> Option<&mut SequentialReader> {
        self.clock += 1;
        let now = self.clock;
        let known =
            |reader: &SequentialReader| reader.steps_to(step).is_some() || reader.follows(step);
        let Some(at) = self.readers.iter().position(known) else {
            self.add(step, now);
            return None;
        };
        let reader = &mut self.readers[at];
        match reader.steps_to(step) {
            Some(steps) => {
                reader.in_row = reader.in_row.saturating_add(1);
                if reader.ahead_steps >= steps && is_ahead {
                    reader.is_used = true;
                } else if reader.ahead_steps >= steps {
                    // The data was evicted before its use.
                    reader.is_used = false;
                    reader.window_steps = (reader.window_steps / 2).max(1);
                    reader.ahead_steps = 0;
                }
                reader.ahead_steps = reader.ahead_steps.saturating_sub(steps);
            }
            None => {
                // A sequential read of another length.
                let distance = i64::try_from(step.length_bytes).unwrap_or(0);
                let was = i128::from(reader.distance) == i128::from(reader.last.length_bytes);
                let in_row = if was { reader.in_row.saturating_add(1) } else { 1 };
                *reader = SequentialReader { in_row, ..SequentialReader::new(step, distance, now) };
            }
        }
        reader.most_steps = most_steps.max(1);
        reader.window_steps = reader.window_steps.min(reader.most_steps);
        reader.last = step;
        reader.used = now;
        (reader.in_row >= IN_ROW).then_some(reader)
    }

    fn add(&mut self, step: FileRead, now: u64) {
        let of_file = self.readers.iter().filter(|reader| reader.last.ino == step.ino);
        let before = of_file.max_by_key(|reader| reader.used).map(|reader| reader.last);
        let distance = before.map_or(0, |before| {
            let from = i128::from(step.offset) - i128::from(before.offset);
            // Overlapping reads are not strided.
            let is_step = from.unsigned_abs() >= step.length_bytes.into();
            if is_step { i64::try_from(from).unwrap_or(0) } else { 0 }
        });
        if self.readers.len() >= PLACES {
            let oldest = self.readers.iter().enumerate().min_by_key(|(_, reader)| reader.used);
            if let Some((at, _)) = oldest {
                self.readers.swap_remove(at);
            }
        }
        self.readers.push(SequentialReader::new(step, distance, now));
    }
}

impl Core {
    /// Whether a window waits and a thread may read it. `false` while all readahead threads are
    /// busy, since the caller would retry at once.
    pub(crate) fn has_steps_to_read(&self) -> bool {
        self.steps.has_waiting.load(Ordering::Acquire)
            && self.steps.fillers.load(Ordering::Acquire) < FILLERS_MAX
    }

    /// Reads the next window of a reader. Called with no lock held, after a reply.
    pub(crate) fn read_ahead_of_readers(&self) {
        let Some(_filler) = self.steps.begin() else { return };
        let Some(coming) = self.steps.next() else { return };
        let is_refused = self.enter(coming.ino).is_ok_and(|files| !files.read_steps(&coming));
        if is_refused {
            self.steps.give_up(&coming);
        }
    }
}

impl Files<'_> {
    /// Reads a window ahead. Returns `false` if nothing was read for lack of memory.
    ///
    /// Bad data is dropped: the later read has the checksums to repair it ([`crate::file::read`]).
    fn read_steps(&self, coming: &PlannedReadahead) -> bool {
        let Some(extents) = self.extents_of(coming) else { return false };
        let ahead = &self.segments.ahead;
        let (mut fillings, mut is_refused) = (Vec::new(), false);
        for extent in extents {
            match ahead.begin(extent) {
                ReadaheadStart::Fill(fill) => {
                    fillings.push(ReadaheadFill { ahead, fill, data: None })
                }
                ReadaheadStart::Held => {}
                ReadaheadStart::Refused => is_refused = true,
            }
        }
        let wanted = fillings.iter().map(|filling| {
            let Extent { place, fragments } = filling.fill.extent;
            (place, self.reader().stored_bytes(fragments))
        });
        let volume = &self.store.volume;
        let is_refused = is_refused && fillings.is_empty();
        let mut errors = volume.read_errors();
        let tickets = volume.submit_reads(IoPurpose::Data, wanted);
        for (filling, ticket) in fillings.into_iter().zip(tickets) {
            let data = ticket.wait().ok().and_then(|answer| answer.buffer);
            let now = volume.read_errors();
            let is_good = std::mem::replace(&mut errors, now) == now;
            filling.end(data.filter(|_| is_good));
        }
        !is_refused
    }

    /// Returns the places of a window, without keeping the file's lock; `None` if a writer holds
    /// it.
    fn extents_of(&self, coming: &PlannedReadahead) -> Option<Vec<Extent>> {
        let Some(vnode) = self.table.find(coming.ino) else { return Some(Vec::new()) };
        let state = vnode.state.try_read()?;
        let mut extents = Vec::new();
        for range in joined(&coming.ranges) {
            let range = range.start..range.end.min(state.size_bytes);
            if range.is_empty() {
                continue;
            }
            // Not an error here: a read of the range will return it.
            let Ok(plan) = self.reader().plan_range(&state, range) else { break };
            extents.extend(plan.extents());
        }
        Some(extents)
    }
}

/// Joins adjacent ranges up to the size of a device read. No range is divided.
fn joined(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start && range.end - last.start <= RUN_BYTES_MAX => {
                last.end = range.end;
            }
            _ => joined.push(range.clone()),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(77);
    const LIMIT: u64 = 32 << 20;

    fn ahead_of(steps: &FileReadahead, offsets: &[u64], length_bytes: u64) -> Vec<Vec<u64>> {
        let mut all: Vec<u64> = Vec::new();
        let note = |offset: &u64| {
            let is_ahead = all.contains(offset);
            steps.note(FileRead { ino: INO, offset: *offset, length_bytes }, is_ahead, LIMIT);
            let ranges = steps.next().map_or(Vec::new(), |coming| coming.ranges);
            let starts: Vec<u64> = ranges.into_iter().map(|range| range.start).collect();
            all.extend(&starts);
            starts
        };
        offsets.iter().map(note).collect()
    }

    /// Seen to fail: each refused thread counted down, and below 0 every read panicked.
    #[test]
    fn who_is_refused_counts_for_nobody() {
        let steps = FileReadahead::default();
        steps.has_waiting.store(true, Ordering::Release);
        let fillers: Vec<Option<ActiveReadahead<'_>>> =
            (0..FILLERS_MAX).map(|_| steps.begin()).collect();
        assert!(fillers.iter().all(Option::is_some));
        (0..2 * FILLERS_MAX).for_each(|_| assert!(steps.begin().is_none()));
        assert_eq!(steps.fillers.load(Ordering::Acquire), FILLERS_MAX);
        drop(fillers);
        assert_eq!(steps.fillers.load(Ordering::Acquire), 0);
    }

    #[test]
    fn the_third_read_at_one_distance_is_read_ahead_of() {
        let cases: [(&[u64], u64, &[u64]); 4] = [
            (&[0, 10, 20], 10, &[30, 40]),
            (&[0, 100, 200], 10, &[300, 400]),
            (&[900, 800, 700], 100, &[600, 500]),
            (&[900, 700, 500], 100, &[300, 100]),
        ];
        for (offsets, length_bytes, next) in cases {
            let ahead = ahead_of(&FileReadahead::default(), offsets, length_bytes);
            assert_eq!(ahead, [&[], &[], next], "{offsets:?}");
        }
    }

    #[test]
    fn nothing_lies_before_a_file() {
        let ahead = ahead_of(&FileReadahead::default(), &[200, 100, 0], 100);
        assert!(ahead.iter().all(Vec::is_empty), "{ahead:?}");
    }

    #[test]
    fn who_reads_here_and_there_is_not_read_ahead_of() {
        let offsets = [10, 900, 40, 400, 3_000, 777, 12, 5_000, 410];
        let ahead = ahead_of(&FileReadahead::default(), &offsets, 10);
        assert!(ahead.iter().all(Vec::is_empty), "{ahead:?}");
    }

    #[test]
    fn windows_grow_with_what_is_used_and_shrink_with_what_was_in_vain() {
        let steps = FileReadahead::default();
        let offsets: Vec<u64> = (0..2_000).map(|at| at << 12).collect();
        let ahead = ahead_of(&steps, &offsets, 4 << 10);
        let lengths: Vec<usize> =
            ahead.iter().map(Vec::len).filter(|length| *length > 0).take(6).collect();
        assert_eq!(lengths, [2, 3, 6, 12, 24, 48]);
        let mut held = 0;
        for (at, ahead) in ahead.iter().enumerate().skip(3) {
            held = (held + ahead.len()).saturating_sub(1);
            assert!(held <= 256, "{held} reads ahead after {at}");
        }
        let window = |steps: &FileReadahead| steps.shard(INO).lock().readers[0].window_steps;
        let before = window(&steps);
        steps.note(FileRead { ino: INO, offset: 2_000 << 12, length_bytes: 4 << 10 }, false, LIMIT);
        assert_eq!(window(&steps), before.min(256) / 2);
    }

    /// The kernel sends several reads at a time.
    #[test]
    fn reads_that_come_in_another_order_are_of_the_same_reader() {
        let steps = FileReadahead::default();
        ahead_of(&steps, &[0, 10, 20], 10);
        let note =
            |offset| steps.note(FileRead { ino: INO, offset, length_bytes: 10 }, true, LIMIT);
        [40, 30].into_iter().for_each(note);
        let next = steps.next().expect("half of the window was used");
        assert_eq!(next.ranges.first(), Some(&(50..60)));
    }

    /// The other reader of the file keeps its window.
    #[test]
    fn who_is_given_up_is_one_reader() {
        let steps = FileReadahead::default();
        let note =
            |offset| steps.note(FileRead { ino: INO, offset, length_bytes: 10 }, true, LIMIT);
        [0, 1_000, 10, 1_010, 20, 1_020].into_iter().for_each(note);
        let (first, second) = (steps.next().expect("one"), steps.next().expect("the other"));
        assert_ne!(first.reader, second.reader);
        steps.give_up(&first);
        let ahead = |reader| {
            let shard = steps.shard(INO).lock();
            shard.readers.iter().find(|it| it.number == reader).map(|it| it.ahead_steps)
        };
        assert_eq!((ahead(first.reader), ahead(second.reader)), (Some(0), Some(2)));
    }

    #[test]
    fn what_waits_and_who_is_known_are_bounded() {
        let steps = FileReadahead::default();
        for file in 0..10_000 {
            for at in 0..3 {
                let step = FileRead { ino: Ino(file), offset: at * 10, length_bytes: 10 };
                steps.note(step, false, LIMIT);
            }
        }
        assert_eq!(steps.waiting.lock().len(), WAITING_MAX);
        let readers = steps.shards.iter().map(|shard| shard.lock().readers.len());
        assert!(readers.into_iter().all(|readers| readers <= PLACES));
    }

    /// Method: extreme offsets and lengths.
    #[test]
    fn reads_may_be_anywhere() {
        let steps = FileReadahead::default();
        let edges = [0, 1, 10, u64::MAX / 2, u64::MAX - 10, u64::MAX - 1, u64::MAX];
        for length_bytes in edges {
            for offset in edges.into_iter().chain(edges).chain(edges.into_iter().rev()) {
                steps.note(FileRead { ino: INO, offset, length_bytes }, true, u64::MAX);
                while steps.next().is_some() {}
            }
        }
    }

    #[test]
    fn ranges_are_joined_up_to_one_device_read() {
        let ranges: Vec<_> = (0..30).map(|at| at * 100_000..(at + 1) * 100_000).collect();
        let joined = joined(&ranges);
        assert_eq!(joined, [0..1_000_000, 1_000_000..2_000_000, 2_000_000..3_000_000]);
        assert_eq!(super::joined(&[0..10, 20..30]), [0..10, 20..30]);
    }
}
