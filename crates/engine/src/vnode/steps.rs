//! Reading what a reader of a file will ask for next.
//!
//! Who reads the same length at the same distance three times, one read behind the other or with
//! gaps between them, forwards or backwards, most likely goes on so. What comes next is read behind
//! his answer ([`Files::read_steps`]), while he digests it, by the thread that has given it, and
//! kept until he asks ([`crate::segment::Ahead`]). See Shirriff, "Sawmill: A Logging File System
//! for a High-Performance RAID Disk Array", 1995, section 4.3.2.
//!
//! What is read ahead is a hint: bytes are verified when they are handed out, and one that can't be
//! read is read again by who asks for it, which tells why it can't be.
//!
//! # Bounds
//!
//! A *window* is what is read ahead of one reader. It is two reads long at first, twice as long
//! each time that its reader has used half of it, up to [`WINDOW_BYTES_MAX`], [`WINDOW_STEPS_MAX`]
//! reads and a quarter of the memory for what is read ahead; half as long when what was read ahead
//! is gone before he comes. Of files in the segment cache nothing is read ahead. 256
//! readers are known at a time, [`PLACES`] of them of one file; the one that read longest ago is
//! forgotten. At most [`FILLERS_MAX`] threads read ahead, and [`WAITING_MAX`] windows wait for one.
//!
//! # Concurrency
//!
//! Locks here are leaves. While a device brings what is read ahead none is held, the file's
//! neither: it may be written, cut or removed meanwhile, and then what was read is no longer asked
//! for (SC1, SC2 of `segment::chunks`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, Purpose, SharedBytes};

use super::api::Ino;
use super::read::RUN_BYTES_MAX;
use super::{Core, Files};
use crate::alloc::Extent;
use crate::convert::index_wide;
use crate::segment::{Ahead, Begun, Fill};
use crate::sync::Mutex;

/// Parts of the table of readers, by file.
const SHARDS: usize = 64;
/// Readers of a part.
const PLACES: usize = 4;
/// Reads at one distance before anything is read ahead.
const IN_ROW: u32 = 2;
/// Most bytes that are read ahead of a reader.
const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// Of the memory for what is read ahead, the part that one window may take.
const WINDOW_SHARE: u64 = 4;
/// Most reads that are read ahead of a reader.
const WINDOW_STEPS_MAX: u32 = 256;
/// Most windows that wait to be read.
const WAITING_MAX: usize = 8;
/// Most threads that read ahead at a time: the fewest that serve a mount are four.
const FILLERS_MAX: usize = 2;

/// What somebody has read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) ino: Ino,
    pub(super) offset: u64,
    pub(super) length_bytes: u64,
}

/// Somebody who reads a file in even steps, as far as is known.
#[derive(Clone, Copy, Debug)]
struct Reader {
    /// When it was first known: no other of its part of the table has the same.
    number: u64,
    last: Step,
    /// From the start of one read to that of the next; 0: not known.
    distance: i64,
    /// Reads that came at this distance.
    in_row: u32,
    window_steps: u32,
    /// Most that the window may be.
    most_steps: u32,
    /// Whether what was read ahead was of use so far.
    is_used: bool,
    /// Reads behind the last one that were read ahead, or are being read.
    ahead_steps: u32,
    is_waiting: bool,
    /// When it read last.
    used: u64,
}

impl Reader {
    fn new(step: Step, distance: i64, used: u64) -> Reader {
        Reader {
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

    /// Returns how many steps lie between its last read and `step`, if that is one of its own: the
    /// kernel hands several to a server at a time, in any order.
    fn steps_to(&self, step: Step) -> Option<u32> {
        let Reader { last, distance, .. } = *self;
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

    fn follows(&self, step: Step) -> bool {
        let Step { ino, offset, length_bytes } = self.last;
        ino == step.ino && offset.checked_add(length_bytes) == Some(step.offset)
    }

    /// Returns its read `steps` behind the last one, unless that lies before the file.
    fn at(&self, steps: u32) -> Option<Range<u64>> {
        let from = self.distance.checked_mul(steps.into())?;
        let start = self.last.offset.checked_add_signed(from)?;
        Some(start..start.checked_add(self.last.length_bytes)?)
    }
}

/// Reads of a file that come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Coming {
    ino: Ino,
    reader: u64,
    ranges: Vec<Range<u64>>,
}

#[derive(Debug, Default)]
struct Shard {
    readers: Vec<Reader>,
    clock: u64,
}

/// Who reads in even steps, and what is to be read ahead.
#[derive(Debug)]
pub(super) struct Steps {
    shards: [Mutex<Shard>; SHARDS],
    /// Readers whose windows are to be read, by file and the offset of the last read.
    waiting: Mutex<VecDeque<Step>>,
    /// Whether one waits: so nobody locks to find none.
    has_waiting: AtomicBool,
    fillers: AtomicUsize,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps {
            shards: std::array::from_fn(|_| Mutex::new(Shard::default())),
            waiting: Mutex::new(VecDeque::new()),
            has_waiting: AtomicBool::new(false),
            fillers: AtomicUsize::new(0),
        }
    }
}

/// A thread that reads ahead, until this is dropped.
#[derive(Debug)]
struct Filler<'a>(&'a AtomicUsize);

impl Drop for Filler<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A read that ends when this is dropped, whatever becomes of it.
struct Filling<'a> {
    ahead: &'a Ahead,
    fill: Fill,
    data: Option<SharedBytes>,
}

impl Filling<'_> {
    fn end(mut self, data: Option<AlignedBuffer>) {
        self.data = data.map(Into::into);
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.ahead.end(&self.fill, self.data.as_ref());
    }
}

impl Steps {
    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        let mixed = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.shards[index_wide(mixed)]
    }

    /// Notes a read that asked the device, or was spared that: `is_ahead`, some of it had been read
    /// ahead. `limit_bytes`: memory for what is.
    pub(super) fn note(&self, step: Step, is_ahead: bool, limit_bytes: u64) {
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

    fn begin(&self) -> Option<Filler<'_>> {
        if !self.has_waiting.load(Ordering::Acquire) {
            return None;
        }
        let is_planted = planted::is(Planted::RefusedCountsDown);
        let next = |count: usize| if is_planted { count + 1 } else { count.saturating_add(1) };
        let one_more = |count: usize| Some(next(count)).filter(|_| count < FILLERS_MAX);
        let begun = self.fillers.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        if is_planted && begun.is_err() {
            drop(Filler(&self.fillers));
        }
        // Only one that was begun may be dropped: it counts down then.
        begun.is_ok().then(|| Filler(&self.fillers))
    }

    /// Returns what a reader will ask for next and is not read ahead; it is from now on.
    fn next(&self) -> Option<Coming> {
        loop {
            let step = {
                let mut waiting = self.waiting.lock();
                let step = waiting.pop_front();
                self.has_waiting.store(!waiting.is_empty(), Ordering::Release);
                step?
            };
            let mut shard = self.shard(step.ino).lock();
            // He may have read on meanwhile.
            let is_it = |reader: &&mut Reader| reader.is_waiting && reader.last.ino == step.ino;
            let Some(reader) = shard.readers.iter_mut().find(is_it) else { continue };
            reader.is_waiting = false;
            if std::mem::take(&mut reader.is_used) {
                reader.window_steps = (reader.window_steps * 2).min(reader.most_steps);
            }
            let steps = reader.ahead_steps + 1..=reader.window_steps;
            let ranges: Vec<_> = steps.map_while(|steps| reader.at(steps)).collect();
            reader.ahead_steps = reader.window_steps;
            if !ranges.is_empty() {
                return Some(Coming { ino: step.ino, reader: reader.number, ranges });
            }
        }
    }

    /// Takes back that a window is read ahead: nothing of it is.
    fn give_up(&self, coming: &Coming) {
        let mut shard = self.shard(coming.ino).lock();
        let is_it = |reader: &&mut Reader| reader.number == coming.reader;
        if let Some(reader) = shard.readers.iter_mut().find(is_it) {
            reader.ahead_steps = 0;
        }
    }
}

impl Shard {
    /// Returns who has read `step`, if he reads in even steps.
    fn note(&mut self, step: Step, is_ahead: bool, most_steps: u32) -> Option<&mut Reader> {
        self.clock += 1;
        let now = self.clock;
        let known = |reader: &Reader| reader.steps_to(step).is_some() || reader.follows(step);
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
                    // Read ahead in vain: it was gone.
                    reader.is_used = false;
                    reader.window_steps = (reader.window_steps / 2).max(1);
                    reader.ahead_steps = 0;
                }
                reader.ahead_steps = reader.ahead_steps.saturating_sub(steps);
            }
            None => {
                // One behind the other, of another length.
                let distance = i64::try_from(step.length_bytes).unwrap_or(0);
                let was = i128::from(reader.distance) == i128::from(reader.last.length_bytes);
                let in_row = if was { reader.in_row.saturating_add(1) } else { 1 };
                *reader = Reader { in_row, ..Reader::new(step, distance, now) };
            }
        }
        reader.most_steps = most_steps.max(1);
        reader.window_steps = reader.window_steps.min(reader.most_steps);
        reader.last = step;
        reader.used = now;
        (reader.in_row >= IN_ROW).then_some(reader)
    }

    /// Adds a reader who may be new, or has come from the last read of the same file.
    fn add(&mut self, step: Step, now: u64) {
        let of_file = self.readers.iter().filter(|reader| reader.last.ino == step.ino);
        let before = of_file.max_by_key(|reader| reader.used).map(|reader| reader.last);
        let distance = before.map_or(0, |before| {
            let from = i128::from(step.offset) - i128::from(before.offset);
            // Reads that overlap are no steps.
            let is_step = from.unsigned_abs() >= step.length_bytes.into();
            if is_step { i64::try_from(from).unwrap_or(0) } else { 0 }
        });
        if self.readers.len() >= PLACES {
            let oldest = self.readers.iter().enumerate().min_by_key(|(_, reader)| reader.used);
            if let Some((at, _)) = oldest {
                self.readers.swap_remove(at);
            }
        }
        self.readers.push(Reader::new(step, distance, now));
    }
}

impl Core {
    /// Returns whether [`Core::read_ahead_of_readers`] has anything to do: not while as many
    /// threads as may are doing it, for whoever asks would ask again at once.
    pub(crate) fn has_steps_to_read(&self) -> bool {
        self.steps.has_waiting.load(Ordering::Acquire)
            && self.steps.fillers.load(Ordering::Acquire) < FILLERS_MAX
    }

    /// Reads what readers of files will ask for next. Called with no lock held, and with nobody
    /// waiting.
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
    /// Returns whether any of it is read, or nothing need be.
    ///
    /// What a member did not give is read again by who asks for it, who has pointers to mend it by
    /// ([`super::read`]).
    fn read_steps(&self, coming: &Coming) -> bool {
        let Some(extents) = self.extents_of(coming) else { return false };
        let ahead = &self.segments.ahead;
        let (mut fillings, mut is_refused) = (Vec::new(), false);
        for extent in extents {
            match ahead.begin(extent) {
                Begun::Fill(fill) => fillings.push(Filling { ahead, fill, data: None }),
                Begun::Held => {}
                Begun::Refused => is_refused = true,
            }
        }
        let wanted = fillings.iter().map(|filling| {
            let Extent { place, fragments } = filling.fill.extent;
            (place, self.stored_bytes(fragments))
        });
        let volume = &self.store.volume;
        let is_refused = is_refused && fillings.is_empty();
        let mut errors = volume.read_errors();
        let tickets = volume.submit_reads(Purpose::Data, wanted);
        for (filling, ticket) in fillings.into_iter().zip(tickets) {
            let data = ticket.wait().ok().and_then(|answer| answer.buffer);
            let now = volume.read_errors();
            let is_good =
                std::mem::replace(&mut errors, now) == now || planted::is(Planted::AheadNotMended);
            filling.end(data.filter(|_| is_good));
        }
        !is_refused
    }

    /// Returns where what is read ahead lies. A copy: nothing is locked when this returns. `None`:
    /// somebody writes, and is not waited for.
    fn extents_of(&self, coming: &Coming) -> Option<Vec<Extent>> {
        let Some(vnode) = self.table.find(coming.ino) else { return Some(Vec::new()) };
        let state = vnode.state.try_read()?;
        let mut extents = Vec::new();
        for range in joined(&coming.ranges) {
            let range = range.start..range.end.min(state.size_bytes);
            if range.is_empty() {
                continue;
            }
            // What its map says is read again by who asks.
            let Ok(plan) = self.plan_range(&state, range) else { break };
            extents.extend(plan.extents());
        }
        Some(extents)
    }
}

/// Returns ranges with those that follow one another as one, no longer than one device read:
/// whoever asks for one of them finds it whole.
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

    /// Notes reads of `length_bytes` at `offsets`, all of which find what was read ahead for them,
    /// and returns what is read ahead behind each.
    fn ahead_of(steps: &Steps, offsets: &[u64], length_bytes: u64) -> Vec<Vec<u64>> {
        let mut all: Vec<u64> = Vec::new();
        let note = |offset: &u64| {
            let is_ahead = all.contains(offset);
            steps.note(Step { ino: INO, offset: *offset, length_bytes }, is_ahead, LIMIT);
            let ranges = steps.next().map_or(Vec::new(), |coming| coming.ranges);
            let starts: Vec<u64> = ranges.into_iter().map(|range| range.start).collect();
            all.extend(&starts);
            starts
        };
        offsets.iter().map(note).collect()
    }

    /// Goal: who finds that as many threads read ahead as may has no part in their count. Seen to
    /// fail: each who was refused counted one down, and below 0 every read panicked.
    #[test]
    fn who_is_refused_counts_for_nobody() {
        let steps = Steps::default();
        steps.has_waiting.store(true, Ordering::Release);
        let fillers: Vec<Option<Filler<'_>>> = (0..FILLERS_MAX).map(|_| steps.begin()).collect();
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
            let ahead = ahead_of(&Steps::default(), offsets, length_bytes);
            assert_eq!(ahead, [&[], &[], next], "{offsets:?}");
        }
    }

    #[test]
    fn nothing_lies_before_a_file() {
        let ahead = ahead_of(&Steps::default(), &[200, 100, 0], 100);
        assert!(ahead.iter().all(Vec::is_empty), "{ahead:?}");
    }

    #[test]
    fn who_reads_here_and_there_is_not_read_ahead_of() {
        let offsets = [10, 900, 40, 400, 3_000, 777, 12, 5_000, 410];
        let ahead = ahead_of(&Steps::default(), &offsets, 10);
        assert!(ahead.iter().all(Vec::is_empty), "{ahead:?}");
    }

    /// The window is twice as long each time that a half of it was used, up to its bound.
    #[test]
    fn windows_grow_with_what_is_used_and_shrink_with_what_was_in_vain() {
        let steps = Steps::default();
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
        let window = |steps: &Steps| steps.shard(INO).lock().readers[0].window_steps;
        let before = window(&steps);
        steps.note(Step { ino: INO, offset: 2_000 << 12, length_bytes: 4 << 10 }, false, LIMIT);
        assert_eq!(window(&steps), before.min(256) / 2);
    }

    /// The kernel hands several reads to a server at a time.
    #[test]
    fn reads_that_come_in_another_order_are_of_the_same_reader() {
        let steps = Steps::default();
        ahead_of(&steps, &[0, 10, 20], 10);
        let note = |offset| steps.note(Step { ino: INO, offset, length_bytes: 10 }, true, LIMIT);
        [40, 30].into_iter().for_each(note);
        let next = steps.next().expect("half of the window was used");
        assert_eq!(next.ranges.first(), Some(&(50..60)));
    }

    /// One of two readers of a file has nothing read ahead; the other goes on.
    #[test]
    fn who_is_given_up_is_one_reader() {
        let steps = Steps::default();
        let note = |offset| steps.note(Step { ino: INO, offset, length_bytes: 10 }, true, LIMIT);
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
        let steps = Steps::default();
        for file in 0..10_000 {
            for at in 0..3 {
                let step = Step { ino: Ino(file), offset: at * 10, length_bytes: 10 };
                steps.note(step, false, LIMIT);
            }
        }
        assert_eq!(steps.waiting.lock().len(), WAITING_MAX);
        let readers = steps.shards.iter().map(|shard| shard.lock().readers.len());
        assert!(readers.into_iter().all(|readers| readers <= PLACES));
    }

    /// Goal: no read harms anything, wherever it is. Method: offsets and lengths at all the edges.
    #[test]
    fn reads_may_be_anywhere() {
        let steps = Steps::default();
        let edges = [0, 1, 10, u64::MAX / 2, u64::MAX - 10, u64::MAX - 1, u64::MAX];
        for length_bytes in edges {
            for offset in edges.into_iter().chain(edges).chain(edges.into_iter().rev()) {
                steps.note(Step { ino: INO, offset, length_bytes }, true, u64::MAX);
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
