//! Every state that a power cut may leave of a recorded workload, judged by all processors.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

use storage::device::sim::{Image, Points, Recording, Strategy};

/// What a power cut left.
#[derive(Debug)]
pub struct Cut<K> {
    /// How many of the recording's events were before it.
    pub at: usize,
    /// What was known of the workload then.
    pub known: K,
    /// How many others are judged before this one.
    pub number: u64,
    /// What is on the device.
    pub image: Image,
}

/// States in order; the same bytes of which the same is known are given once.
struct Cuts<'a, K> {
    points: Points<'a>,
    strategy: &'a Strategy,
    /// Those of the point at hand.
    waiting: VecDeque<Cut<K>>,
    seen: BTreeSet<(u64, K)>,
    given: u64,
    /// The first state with a finding, by number.
    found: Option<(u64, String)>,
}

impl<K: Clone + Ord> Cuts<'_, K> {
    fn next(&mut self, known_at: &impl Fn(usize) -> K) -> Option<Cut<K>> {
        while self.found.is_none() {
            if let Some(cut) = self.waiting.pop_front() {
                if self.seen.insert((cut.image.content_hash(), cut.known.clone())) {
                    let number = self.given;
                    self.given += 1;
                    return Some(Cut { number, ..cut });
                }
                continue;
            }
            let point = self.points.next()?;
            let (at, known) = (point.position(), known_at(point.position()));
            let images = point.images(self.strategy);
            self.waiting.extend(images.map(|it| Cut {
                at,
                known: known.clone(),
                number: 0,
                image: it.image,
            }));
        }
        None
    }

    fn note(&mut self, number: u64, finding: String) {
        if self.found.as_ref().is_none_or(|(first, _)| number < *first) {
            self.found = Some((number, finding));
        }
    }
}

/// Judges each state that a power cut may leave of `recording`; returns how many these were.
///
/// `known_at` says what is known of the workload when the recording stood at a position. A state is
/// judged once for the same bytes of which the same is known, by as many threads as there are
/// processors.
///
/// # Panics
///
/// At the first state that `judge` finds something in, with `what` and where it was cut.
pub fn judge_cuts<K: Clone + Ord + Send>(
    what: &str,
    recording: &Recording,
    strategy: &Strategy,
    known_at: impl Fn(usize) -> K + Sync,
    judge: impl Fn(&Cut<K>) -> Result<(), String> + Sync,
) -> u64 {
    let cuts = Mutex::new(Cuts {
        points: recording.points(),
        strategy,
        waiting: VecDeque::new(),
        seen: BTreeSet::new(),
        given: 0,
        found: None,
    });
    let locked = || cuts.lock().unwrap_or_else(PoisonError::into_inner);
    let worker = || {
        loop {
            let Some(cut) = locked().next(&known_at) else { return };
            if let Err(finding) = judge(&cut) {
                locked().note(cut.number, format!("{what}, cut at {}: {finding}", cut.at));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(worker))));
    let cuts = cuts.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, finding)) = cuts.found {
        panic!("{finding}");
    }
    cuts.given
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use storage::device::sim::{SimDevice, SimOptions};
    use storage::device::{AlignedBuffer, Device, IoPurpose};

    use super::*;

    const DEVICE_BYTES: u64 = 1 << 20;
    const WRITE_BYTES: usize = 4096;
    const STRATEGY: Strategy =
        Strategy { exhaustive_writes_max: 4, random_subsets: 0, torn_variants: 0, seed: 0 };

    /// Two writes, a flush, and the first write once more, of the same bytes.
    fn recording() -> Recording {
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device: Arc<SimDevice> = SimDevice::new(DEVICE_BYTES, options);
        let page = |fill: u8| AlignedBuffer::copy_of(&[fill; WRITE_BYTES]);
        device.write(IoPurpose::Data, 0, page(1)).expect("nothing fails");
        device.write(IoPurpose::Data, 8192, page(2)).expect("nothing fails");
        device.flush(IoPurpose::Data).expect("nothing fails");
        device.write(IoPurpose::Data, 0, page(1)).expect("nothing fails");
        device.recording()
    }

    /// Goal: each state is judged once: none, either or both of the two writes.
    #[test]
    fn the_same_bytes_are_judged_once() {
        let seen = Mutex::new(BTreeSet::new());
        let judged = judge_cuts(
            "two writes",
            &recording(),
            &STRATEGY,
            |_| (),
            |cut| {
                let mut bytes = [[0; WRITE_BYTES]; 2];
                cut.image.read(0, &mut bytes[0]);
                cut.image.read(8192, &mut bytes[1]);
                let mut seen = seen.lock().map_err(|error| error.to_string())?;
                let is_new = seen.insert((bytes[0][0], bytes[1][0]));
                if is_new { Ok(()) } else { Err("it was judged before".to_owned()) }
            },
        );
        assert_eq!(judged, 4);
    }

    /// Goal: the same bytes are judged again when more is known.
    #[test]
    fn the_same_bytes_are_judged_again_when_more_is_known() {
        let recording = recording();
        let end = recording.position();
        let judged = judge_cuts("two writes", &recording, &STRATEGY, |at| at == end, |_| Ok(()));
        assert_eq!(judged, 5, "both writes, before the end and at it");
    }

    /// Goal: what is found is told, with what was cut and where.
    #[test]
    #[should_panic(expected = "two writes, cut at")]
    fn a_finding_is_told() {
        let both = |cut: &Cut<()>| {
            let mut byte = [0; WRITE_BYTES];
            cut.image.read(8192, &mut byte);
            if byte[0] == 2 { Err("the second is there".to_owned()) } else { Ok(()) }
        };
        judge_cuts("two writes", &recording(), &STRATEGY, |_| (), both);
    }
}
