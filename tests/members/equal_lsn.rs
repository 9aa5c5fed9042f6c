//! Copies of a page of metadata that have one LSN are the same page: what `newest.rs` of the buffer
//! relies on (CY4).
//!
//! A workload runs on a mirror; its power is cut at many moments, each cut is recovered, and some
//! recoveries are cut and recovered again. Every page that verifies on any member, in any of these
//! images, has the bytes that each other one of its place and LSN has.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use format::ids::{Lsn, Place};
use format::page::{PAGE_BYTES, PageHeader, PageKind};
use runtime::prng::Prng;
use storage::device::sim::Image;
use storage::device::{Device, IoPurpose};
use whole_system::soak::seeds;

use super::raid5_crash::{cut, open, run};
use super::{Devices, devices_of, new_mirror, reopened};

/// Seeds for every commit.
const SEEDS: u64 = 2;
/// Operations of a client.
const STEPS: usize = 120;
/// Cuts of a workload, and of each recovery.
const CUTS: u64 = 6;

/// Pages by place and LSN.
#[derive(Default)]
struct Copies {
    known: BTreeMap<(Place, Lsn), [u8; PAGE_BYTES]>,
    again: u64,
}

impl Copies {
    /// Looks at every page of `images`.
    fn look(&mut self, images: &[Image], what: &str) {
        for device in devices_of(images.to_vec()) {
            let length = usize::try_from(images[0].size_bytes()).expect("small");
            let bytes = device.read(IoPurpose::Home, 0, length).expect("nothing fails");
            for page in bytes.as_chunks::<PAGE_BYTES>().0 {
                self.note(page, what);
            }
        }
    }

    fn note(&mut self, page: &[u8; PAGE_BYTES], what: &str) {
        let Some(header) = PageHeader::parse(page) else { return };
        let is_logged = !matches!(
            header.kind,
            PageKind::JournalHead | PageKind::DoubleWriteHead | PageKind::Summary
        );
        let verifies = PageHeader::decode(page, header.pool_id, header.place).is_ok();
        if !is_logged || !verifies {
            return;
        }
        match self.known.entry((header.place, header.lsn)) {
            Entry::Vacant(new) => _ = new.insert(*page),
            Entry::Occupied(known) => {
                let is_same = known.get() == page;
                assert!(is_same, "{what}: {header:?} has other bytes than a copy of its LSN");
                self.again += 1;
            }
        }
    }
}

fn images_of(devices: &Devices) -> Vec<Image> {
    devices.iter().map(|device| device.image()).collect()
}

/// Goal and method: see the header of this file.
#[test]
fn copies_of_one_lsn_are_the_same_page() {
    let base = new_mirror(2);
    for seed in seeds("HOLDFAST_EQUAL_LSN", SEEDS) {
        let (mut prng, mut again) = (Prng::from_seed(seed), 0);
        let (devices, _) = run(&base, seed, STEPS);
        let end = devices[0].timeline().now();
        for _ in 0..CUTS {
            // What other cuts are followed by is another history.
            let mut copies = Copies::default();
            copies.look(&images_of(&base), "new");
            let time = prng.below(end + 1);
            let what = format!("seed {seed}, cut at {time} of {end}");
            let mut images = cut(&devices, time, &mut prng);
            for round in 0..3 {
                let what = format!("{what}, recovery {round}");
                copies.look(&images, &what);
                let recovered = devices_of(images.clone());
                drop(open(&recovered).unwrap_or_else(|error| panic!("{what}: {error}")));
                copies.look(&images_of(&recovered), &what);
                let end = recovered[0].timeline().now();
                images = cut(&recovered, prng.below(end + 1), &mut prng);
            }
            let whole = reopened(&devices_of(images), &[0, 1]);
            let (after, _) = run(&whole, seed + 1, STEPS / 4);
            copies.look(&images_of(&after), &what);
            again += copies.again;
        }
        assert!(again > 1000, "seed {seed}: {again} copies");
    }
}
