//! A member that answered writes and stored nothing: for a while, all of it or a part, while its
//! labels say that it has everything. What the others have is right, is served, and is what all
//! have afterwards.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use engine::{Pool, PoolOpenOptions};
use format::geometry::{JOURNAL_HEADS, SUPERBLOCK_AREA_BYTES};
use format::ids::Lsn;
use format::page::{PAGE_BYTES, PageHeader, stamp};
use runtime::clock::ManualClock;
use storage::device::sim::{Fault, FaultPlan, Image, StoppedExtent, StoppedReads};
use storage::device::{IoPurpose, RequestKind};
use storage::volume::{Volume, VolumeDevices};

use super::raid5::{all_but, content};
use super::returns::grounds;
use super::{Devices, NOTHING, devices_of, get, open, put, rebuild, reopened, shared, unmended};

/// Files of the first life, of which every second goes in the next.
const FIRST: u8 = 40;
/// Files of the second life.
const SECOND: u8 = 90;
/// What a member has lost of the writes of the second life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    /// Pages of metadata at home, those that list their LSNs too.
    Pages,
    /// All that lies in allocation groups.
    Groups,
    /// The heads of the journal and the log.
    Log,
    /// The double-write area and the group table.
    Fixed,
    /// Everything but its labels.
    All,
}

const LOST: [Lost; 5] = [Lost::Pages, Lost::Groups, Lost::Log, Lost::Fixed, Lost::All];

/// A pool whose members have the same history, and what one of them held in its middle.
struct History {
    devices: Devices,
    older: Vec<Image>,
    files: Files,
    journal: Range<u64>,
    groups_offset: u64,
}

fn is_page(bytes: &[u8; PAGE_BYTES]) -> bool {
    PageHeader::parse(bytes).is_some()
}

fn length_of(number: u8) -> usize {
    [700, 5_000, 40_000][usize::from(number) % 3]
}

/// What is in a pool, and what was removed.
#[derive(Clone, Default)]
struct Files {
    there: BTreeMap<String, Vec<u8>>,
    gone: Vec<String>,
}

impl Files {
    fn write(&mut self, pool: &Pool, stem: &str, number: u8) {
        let (name, bytes) = (format!("{stem}{number}"), content(number, length_of(number)));
        put(pool, &name, &bytes).expect("there is room");
        self.there.insert(name, bytes);
    }

    fn first_life(&mut self, pool: &Pool) {
        (0..FIRST).for_each(|number| self.write(pool, "first", number));
        pool.checkpoint().expect("nothing fails");
    }

    fn second_life(&mut self, pool: &Pool) {
        for number in (0..FIRST).step_by(2) {
            let name = format!("first{number}");
            pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None).expect("it is there");
            self.there.remove(&name);
            self.gone.push(name);
        }
        for number in 0..SECOND {
            self.write(pool, "second", number);
            if number % 40 == 39 {
                pool.checkpoint().expect("nothing fails");
            }
        }
    }

    fn verify(&self, pool: &Pool, what: &str) {
        for (name, bytes) in &self.there {
            assert!(get(pool, name).as_ref() == Some(bytes), "{what}: {name} is another");
        }
        for name in &self.gone {
            assert!(get(pool, name).is_none(), "{what}: {name} is back");
        }
    }

    /// Opens the pool, scrubs and closes it; then it has all that it should have, whichever member
    /// is lost.
    fn verify_mended(&self, devices: &Devices, what: &str) {
        assert_clean(devices, what);
        let pool = open(devices).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.verify(&pool, what);
        scrub(&pool, what);
        self.verify(&pool, what);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        assert_clean(devices, what);
        for away in 0..devices.len() {
            let what = format!("{what}, without {away}");
            let left = reopened(devices, &all_but(devices.len(), away));
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            self.verify(&pool, &what);
            pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(pool);
            assert_clean(&left, &what);
        }
    }
}

fn again(devices: &Devices) -> Devices {
    reopened(devices, &(0..devices.len()).collect::<Vec<_>>())
}

fn history(base: &Devices, is_closed: bool) -> History {
    let devices = again(base);
    let mut files = Files::default();
    let pool = open(&devices).expect("it is new");
    files.first_life(&pool);
    let older = devices.iter().map(|device| device.image()).collect();
    files.second_life(&pool);
    let geometry = pool.status().geometry;
    if is_closed {
        pool.close().expect("nothing fails");
    }
    let devices = again(&devices);
    let (journal, groups_offset) =
        (geometry.journal_offset..geometry.double_write_offset, geometry.groups_offset);
    History { devices, older, files, journal, groups_offset }
}

impl History {
    /// Returns the devices, of which the one in slot `stale` has lost what `lost` says.
    fn without(&self, stale: usize, lost: Lost) -> Devices {
        let mut images: Vec<Image> = self.devices.iter().map(|device| device.image()).collect();
        let (image, older) = (&mut images[stale], &self.older[stale]);
        let labels_start = image.size_bytes() - 2 * SUPERBLOCK_AREA_BYTES;
        let groups = self.groups_offset..labels_start;
        let range = match lost {
            Lost::Pages => self.journal.end..labels_start,
            Lost::Groups => groups,
            Lost::Log => self.journal.clone(),
            Lost::Fixed => self.journal.end..self.groups_offset,
            Lost::All => self.journal.start..labels_start,
        };
        let (mut new, mut old) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        for at in range.step_by(PAGE_BYTES) {
            image.read(at, &mut new);
            older.read(at, &mut old);
            let are_pages = || is_page(&new) && is_page(&old);
            if new != old && (lost != Lost::Pages || are_pages()) {
                image.write(at, &old);
            }
        }
        devices_of(images)
    }
}

fn assert_clean(devices: &Devices, what: &str) {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).expect("enough are there");
    let report =
        check::run(Arc::clone(volume.device()), check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{what}: {}", report.to_text());
}

fn scrub(pool: &Pool, what: &str) {
    assert!(pool.devices().scrub().expect("there are several"));
    for _ in 0..1000 {
        pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = pool.devices().scrub_report().expect("it was begun");
        if report.is_done {
            assert_eq!(unmended(&report), NOTHING, "{what}: {report:?}");
            return;
        }
    }
    panic!("{what}: the scrub does not end");
}

/// Goal: what a member has lost, though its labels tell of nothing, is served from the others, told
/// of, and on all of them after a scrub. Method: its image of the middle of a pool's life is put in
/// the place of a part of what it holds; afterwards each member is lost.
#[test]
fn what_a_member_never_stored_is_taken_from_the_others() {
    for (count, base) in grounds() {
        for is_closed in [true, false] {
            let history = history(&base, is_closed);
            for (lost, stale) in LOST.iter().flat_map(|lost| (0..count).map(move |at| (*lost, at)))
            {
                let what = format!("{count} members, closed: {is_closed}, {lost:?} of {stale}");
                let devices = history.without(stale, lost);
                history.files.verify_mended(&devices, &what);
            }
        }
    }
}

/// Goal: a member may go on storing nothing of one kind while the pool is recovered and used, and
/// through a second crash. Method: it loses all writes of one purpose from the middle of a life on.
#[test]
fn a_member_may_store_nothing_through_a_recovery() {
    const LOST_WRITES_MAX: u64 = 4_000;
    let purposes = [IoPurpose::Home, IoPurpose::Journal, IoPurpose::DoubleWrite, IoPurpose::Data];
    for (count, base) in grounds() {
        for (purpose, stale) in purposes.iter().flat_map(|it| (0..count).map(move |at| (*it, at))) {
            let what = format!("{count} members, {purpose:?} of {stale}");
            let lose = |nth| Fault::LoseWrite { purpose: Some(purpose), nth };
            let plan = FaultPlan { faults: (0..LOST_WRITES_MAX).map(lose).collect() };
            let (devices, mut files) = (again(&base), Files::default());
            let pool = open(&devices).expect("it is new");
            files.first_life(&pool);
            devices[stale].arm(plan.clone());
            files.second_life(&pool);
            let devices = again(&devices);
            drop(pool);
            devices[stale].arm(plan);
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            files.verify(&pool, &what);
            (0..10).for_each(|number| files.write(&pool, "third", number));
            pool.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
            (10..20).for_each(|number| files.write(&pool, "third", number));
            let devices = again(&devices);
            drop(pool);
            files.verify_mended(&devices, &what);
        }
    }
}

/// Goal: a member that stored its heads and nothing of its log decides where the log begins, and
/// one that has not stored the newest head how long it is. Method: one member stores nothing of its
/// log any more; a checkpoint and files behind it are acknowledged; the power fails when the new
/// head is durable on that member alone.
#[test]
fn the_newest_head_and_the_longest_log_may_be_of_two_members() {
    for (count, base) in grounds() {
        for stale in 0..count {
            let what = format!("{count} members, the log of {stale}");
            let (devices, mut files) = (again(&base), Files::default());
            let pool = open(&devices).expect("it is new");
            files.first_life(&pool);
            let geometry = pool.status().geometry;
            let heads_end = geometry.journal_offset + JOURNAL_HEADS * 4096;
            let (heads, log) =
                (geometry.journal_offset..heads_end, heads_end..geometry.double_write_offset);
            let (extent, reads) = (StoppedExtent::Range(log), StoppedReads::Written);
            devices[stale].arm(FaultPlan::none().with(Fault::StopsStoring {
                nth: 0,
                extent,
                reads,
            }));
            (0..10).for_each(|number| files.write(&pool, "second", number));
            let before: Vec<Image> = devices.iter().map(|device| device.image()).collect();
            pool.checkpoint().expect("nothing fails");
            (0..10).for_each(|number| files.write(&pool, "third", number));
            let mut images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
            drop(pool);
            for (slot, image) in images.iter_mut().enumerate().filter(|(slot, _)| *slot != stale) {
                let mut page = [0; PAGE_BYTES];
                for at in heads.clone().step_by(PAGE_BYTES) {
                    before[slot].read(at, &mut page);
                    image.write(at, &page);
                }
            }
            files.verify_mended(&devices_of(images), &what);
        }
    }
}

/// Goal: a copy of a journal head that cannot be read on the member that has everything does not
/// make the log of one that has stored nothing the right one. Method: each copy of a head in turn.
#[test]
fn a_bad_copy_of_a_head_makes_no_older_log_the_right_one() {
    for (count, base) in grounds() {
        let history = history(&base, false);
        let stale = count - 1;
        for slot in 0..JOURNAL_HEADS {
            let devices = history.without(stale, Lost::Log);
            let offset = history.journal.start + slot * 4096;
            for device in &devices[..stale] {
                device.arm(FaultPlan::none().with(Fault::BadSector { offset }));
            }
            let what = format!("{count} members, the log of {stale} lost, head copy {slot} bad");
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            history.files.verify(&pool, &what);
        }
    }
}

/// Goal: a page above the end of the log is damage, and repairs nothing. Method: pages of a member
/// become older ones with a valid checksum and an LSN that no log had.
#[test]
fn a_copy_above_the_end_of_the_log_is_damage() {
    for (count, base) in grounds() {
        let history = history(&base, true);
        for stale in 0..count {
            let what = format!("{count} members, pages of {stale}");
            let mut images: Vec<Image> =
                history.devices.iter().map(|device| device.image()).collect();
            let (image, older) = (&mut images[stale], &history.older[stale]);
            let labels_start = image.size_bytes() - 2 * SUPERBLOCK_AREA_BYTES;
            let (mut new, mut old) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
            let mut changed = 0;
            for at in (history.journal.end..labels_start).step_by(PAGE_BYTES) {
                image.read(at, &mut new);
                older.read(at, &mut old);
                let are_pages = is_page(&new) && is_page(&old);
                if new != old && are_pages {
                    stamp(&mut old, Lsn(1 << 40));
                    image.write(at, &old);
                    changed += 1;
                }
            }
            assert!(changed > 3, "{what}: {changed} pages");
            history.files.verify_mended(&devices_of(images), &what);
        }
    }
}

/// Goal: a new device of a mirror gets the newest pages, though one of its sources has stored
/// nothing for a while; then the other source may be lost. Method: nothing is read before the
/// rebuild.
#[test]
fn a_device_is_made_whole_from_the_newest_copies() {
    const NEW: usize = 2;
    let [_, (count, base), _] = grounds();
    let history = history(&base, true);
    for stale in 0..NEW {
        let what = format!("{stale} is stale");
        let mut images: Vec<Image> =
            history.without(stale, Lost::Pages).iter().map(|device| device.image()).collect();
        images.push(Image::blank(images[NEW].size_bytes()));
        let all = devices_of(images);
        let pool = rebuild::open(&all[..count].to_vec()).expect("all are there");
        rebuild::begin(&pool, NEW, &all[count]);
        rebuild::finish(&pool);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        let left = reopened(&all, &[stale, count]);
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        history.files.verify(&pool, &what);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        assert_clean(&left, &what);
    }
}

/// Goal: a source that still stores nothing gives a new device no old page, and old data only until
/// the scrub that follows. Method: a member has lost all of a while, and its new writes too; the
/// device is made whole beside it, and then the member that had everything is lost.
#[test]
fn a_source_that_still_stores_nothing_gives_nothing_old() {
    const NEW: usize = 2;
    let [_, (count, base), _] = grounds();
    let history = history(&base, true);
    for (stale, lost) in [(0, Lost::Pages), (1, Lost::Pages), (0, Lost::Groups), (1, Lost::All)] {
        let what = format!("{stale} is stale, {lost:?}");
        let mut images: Vec<Image> =
            history.without(stale, lost).iter().map(|device| device.image()).collect();
        images.push(Image::blank(images[NEW].size_bytes()));
        let all = devices_of(images);
        let pool = rebuild::open(&all[..count].to_vec()).expect("all are there");
        if lost == Lost::Pages {
            let (extent, reads) = (StoppedExtent::Metadata, StoppedReads::Old);
            all[stale].arm(FaultPlan::none().with(Fault::StopsStoring { nth: 0, extent, reads }));
        }
        rebuild::begin(&pool, NEW, &all[count]);
        rebuild::finish(&pool);
        for _ in 0..1000 {
            pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let is_scrubbed = pool.devices().scrub_report().is_some_and(|report| report.is_done);
        assert_eq!(is_scrubbed, lost != Lost::Pages, "{what}: whether a scrub followed");
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(pool);
        let left = reopened(&all, &[stale, count]);
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        history.files.verify(&pool, &what);
        pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// Goal: a pool that lacks more than its layout bears is opened for reading with the whole log of
/// those that are left, whichever of them has lost it. Method: of a raid5 of four two are left, of
/// which one has not stored its log; what can be found is compared with two that have.
#[test]
fn what_is_left_of_a_raid5_has_the_longest_log_of_all_that_are_left() {
    let [.., (count, base)] = grounds();
    let history = history(&base, false);
    let found = |devices: &Devices| -> Result<(Vec<String>, usize), String> {
        let mut options = PoolOpenOptions { cache_bytes: 1 << 20, ..PoolOpenOptions::default() };
        options.files.is_read_only = true;
        let opening = VolumeDevices { devices: shared(devices), accepts_missing: true };
        let pool = Pool::open_members(opening, Arc::new(ManualClock::new()), options);
        let pool = pool.map_err(|error| error.to_string())?;
        let is_there =
            |name: &&String| pool.lookup(&Caller::root(), pool.root(), name.as_bytes()).is_ok();
        let (there, gone) = (history.files.there.keys(), history.files.gone.iter());
        let found: Vec<String> = there.filter(is_there).cloned().collect();
        Ok((found, gone.filter(is_there).count()))
    };
    let mut opened = 0;
    for which in (0..count).flat_map(|one| (one + 1..count).map(move |other| [one, other])) {
        // Where a page that the log changes lies on the others alone, there is no way in.
        let Ok(whole) = found(&reopened(&history.devices, &which)) else { continue };
        assert!(whole.0.len() > usize::from(FIRST), "{which:?}: {} files", whole.0.len());
        opened += 1;
        for stale in which {
            let what = format!("{which:?} are left, the log of {stale} is lost");
            let left = history.without(stale, Lost::Log);
            assert_eq!(found(&reopened(&left, &which)), Ok(whole.clone()), "{what}");
        }
    }
    assert!(opened > 1, "{opened} pairs can be opened");
}

/// Goal: an open of a mirror reads each LSN page that it needs once from each member, and nothing
/// else twice. Method: what it reads of pages is compared with an open on one member alone.
#[test]
fn an_open_reads_few_pages_of_every_member() {
    /// Of the group table, and of the group that has the first files.
    const LSN_PAGES_MAX: u64 = 3;
    let [(count, base), ..] = grounds();
    let history = history(&base, true);
    let reads = |pool: &Pool, purposes: &[IoPurpose]| {
        let of = |purpose: &IoPurpose| {
            let members = pool.devices().members();
            let of_member = members
                .iter()
                .map(|member| member.counts.io.of(*purpose, RequestKind::Read).requests);
            of_member.sum::<u64>()
        };
        purposes.iter().map(of).sum::<u64>()
    };
    let both = open(&reopened(&history.devices, &(0..count).collect::<Vec<_>>()));
    let both = both.expect("all are there");
    let alone = open(&reopened(&history.devices, &[0])).expect("one is enough");
    let [in_both, in_one] = [&both, &alone].map(|pool| reads(pool, &[IoPurpose::Home]));
    let all = reads(&both, &IoPurpose::ALL);
    println!("an open reads {in_both} pages of two members, {in_one} of one, {all} reads in all");
    assert!(in_both <= in_one + LSN_PAGES_MAX, "{in_both} pages of two members, {in_one} of one");
}
