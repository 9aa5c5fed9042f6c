//! Reading in physical order: a page read in a run is judged as if it were read alone.

use std::sync::Arc;

use format::defect::DefectCode;
use format::geometry::{Geometry, GeometryOptions};
use format::group::SegmentKind;
use format::ids::{Lsn, Place, PoolId};
use format::page::{PAGE_BYTES, stamp};
use runtime::prng::Prng;
use storage::device::{MemoryDevice, SharedDevice};

use super::fuzz::{index_below, metadata_places, mutate, restamp_slots};
use super::image::{BIG, DIR, SMALL, TestImage};
use super::planted::BadSector;
use crate::convert::to_u64;
use crate::reader::PoolReader;
use crate::report::ConsistencyReport;
use crate::space::FragmentSpace;
use crate::sweep::{RUN_BYTES_MAX, Sweep};
use crate::{CheckOptions, run};

const SEEDS: u64 = 400;
/// An eighth of this is less than one run, so there is no sweep.
const MEMORY_FOR_NO_SWEEP: u64 = 4 << 20;

fn check_with(device: SharedDevice, memory_bytes_max: u64) -> ConsistencyReport {
    run(device, CheckOptions { memory_bytes_max, ..CheckOptions::default() }, &mut |_| {})
}

/// Goal: the verdict on a page does not depend on whether it was read in a run. Method: pages
/// changed under good checksums, as in `fuzz.rs`, checked with a sweep and without.
#[test]
fn swept_pages_are_judged_like_pages_read_alone() {
    let image = TestImage::new(4096);
    let places = metadata_places(&image);
    let mut found = 0;
    for seed in 0..SEEDS {
        let mut prng = Prng::from_seed(seed);
        let place = places[index_below(&mut prng, places.len())];
        let whole = image.read_page(place);
        let mut bytes = whole;
        let from = if prng.below(4) == 0 { 0 } else { 128 };
        mutate(&mut prng, &mut bytes[from..]);
        if prng.below(4) > 0 {
            restamp_slots(&mut bytes);
            stamp(&mut bytes, Lsn(seed));
        }
        image.write_page(place, &bytes);
        let swept = check_with(image.device.clone(), 64 << 20);
        let alone = check_with(image.device.clone(), MEMORY_FOR_NO_SWEEP);
        assert_eq!(swept.to_json(), alone.to_json(), "seed {seed}");
        found += u64::from(!swept.is_clean());
        image.write_page(place, &whole);
    }
    assert!(found > SEEDS / 2, "only {found} of {SEEDS} were found");
}

/// Goal: an unreadable page or block costs none of the neighbours that are read with it.
#[test]
fn what_cannot_be_read_is_the_only_thing_reported() {
    let image = TestImage::new(4096);
    for (key, path) in [((DIR, 0), "/dir"), ((BIG, 3), "/big"), ((SMALL, 0), "/small")] {
        let place = image.places[&key];
        let device = Arc::new(BadSector { below: image.device.clone(), bad: image.offset(place) });
        let report = check_with(device, 64 << 20);
        let io = report.findings.iter().filter(|found| found.defect.code == DefectCode::IO001);
        let found: Vec<_> = io.map(|found| (found.defect.place, found.path.as_deref())).collect();
        assert_eq!(found, [(Some(place), Some(path))], "{}", report.to_text());
    }
}

/// A group whose segments all hold metadata, with every page in use.
struct Full {
    reader: PoolReader,
    space: FragmentSpace,
    pages: Vec<u64>,
}

impl Full {
    fn new() -> Full {
        let device = MemoryDevice::new("memory", 256 << 20);
        let geometry = Geometry::plan(&GeometryOptions {
            device_bytes: 256 << 20,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        })
        .expect("large enough");
        let mut space = FragmentSpace::new(geometry.clone());
        let group = space.add_group(0, true);
        for segment in 0..geometry.segments_of(0) {
            group.set_segment(segment, Some(SegmentKind::Metadata), geometry.segment_fragments);
        }
        let front = crate::space::front_fragments(&geometry, 0);
        let offset = |at| geometry.device_offset(Place::new(0, 0, at), 1).expect("in the group");
        let pages = (front..geometry.fragments_of(0)).map(offset).collect();
        Full { reader: PoolReader::new(device, geometry, PoolId([1; 16])), space, pages }
    }

    /// Takes page `index`. Returns whether the sweep had read it.
    fn take(&mut self, sweep: &mut Sweep, index: usize) -> bool {
        let offset = self.pages[index];
        let front = crate::space::front_fragments(&self.reader.geometry, 0);
        let fragment = front + u32::try_from(index).expect("few");
        self.space.groups.get_mut(&0).expect("added").set(fragment, 1);
        sweep.is_coming(offset) && {
            sweep.expect(offset);
            let page = sweep.take(&self.reader, &self.space, offset);
            page.is_some_and(|page| page.len() == PAGE_BYTES)
        }
    }
}

/// Goal: in any order of taking, the sweep stays within its memory and frees all that was taken. In
/// the order of the device it reads every page.
#[test]
fn the_sweep_keeps_to_its_memory_in_every_order() {
    const RUNS: u64 = 3;
    let pages = Full::new().pages.len();
    assert!(to_u64(pages * PAGE_BYTES) > (RUNS + 2) * RUN_BYTES_MAX, "more than it may keep");
    let straight: Vec<usize> = (0..pages).collect();
    let backward: Vec<usize> = (0..pages).rev().collect();
    let mut shuffled = straight.clone();
    let mut prng = Prng::from_seed(1);
    (1..pages).for_each(|index| shuffled.swap(index, index_below(&mut prng, index + 1)));
    for (order, least) in [(straight, pages), (backward, 0), (shuffled, 0)] {
        let mut full = Full::new();
        let share = 8;
        let mut sweep = Sweep::new(&full.space, &full.reader, share * RUNS * RUN_BYTES_MAX);
        let mut taken = 0;
        for index in order {
            taken += usize::from(full.take(&mut sweep, index));
            assert!(sweep.held_bytes() <= RUNS * RUN_BYTES_MAX, "{}", sweep.held_bytes());
        }
        assert!(taken >= least, "{taken} of {pages}");
        assert_eq!(sweep.held_bytes(), 0, "{taken} of {pages} taken");
    }
}
