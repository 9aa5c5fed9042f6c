//! Sawmill, chapter 6: raw disks, a striped RAID with updates in place, and Holdfast as RAID-5, all
//! on the same disks (Shirriff 1995, figures 6-4 to 6-9, tables 6-4 and 6-6).

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::members::Layout;
use runtime::clock::ManualClock;
use runtime::sync::Mutex;
use storage::device::SharedDevice;
use storage::device::sim::{DiskModel, Image, SimDevice, SimOptions};
use storage::volume::VolumeDevices;

use crate::LabError;
use crate::disks::ibm_0661;
use crate::load::{Direction, LoadRate, RandomLoad};
use crate::report::{Goal, Grid, LabReport, PaperComparison, Series, hundredths, to_u64, to_usize};
use crate::rig::Rig;
use crate::target::{LoadTarget, PoolFile, RawDisks, StripedRaid};

const DISKS: usize = 16;
/// A stripe unit of 64 KB (2^16).
const LAYOUT: Layout = Layout::Raid5 { unit_shift: 16 };
/// Size of each disk. Seeks cover all of it, as in the paper.
const DISK_BYTES: u64 = 32 << 20;
const NAME: &[u8] = b"large";
/// Engine cache, too small to hold the file.
const CACHE_BYTES: usize = 4 << 20;
/// File of table 6-6, and its request size.
const FILE_BYTES: u64 = 5 << 20;
const PIECE_BYTES: u64 = 1 << 20;
const LARGE_BYTES: u64 = 4 << 20;
const SMALL_BYTES: u64 = 4 << 10;
/// A stripe without parity: 15 units.
const STRIPE_BYTES: u64 = 960 << 10;

const NO_PROCESSOR: &str =
    "The paper's processor, a Sun-4, is the limit there; here a processor costs nothing.";
/// Table 6-4: name, target, direction, whether several streams, requests a second, and reason for a
/// difference.
const OPERATIONS: [(&str, SawmillTarget, Direction, bool, u64, &str); 12] = [
    ("1 disk, reads", SawmillTarget::Raw, Direction::Read, false, 50, ""),
    ("1 disk, writes", SawmillTarget::Raw, Direction::Write, false, 45, ""),
    ("16 disks, reads", SawmillTarget::Raw, Direction::Read, true, 710, ""),
    ("16 disks, writes", SawmillTarget::Raw, Direction::Write, true, 670, ""),
    ("RAID, 1 stream, reads", SawmillTarget::Raid, Direction::Read, false, 55, ""),
    ("RAID, 1 stream, writes", SawmillTarget::Raid, Direction::Write, false, 25, ""),
    ("RAID, 8 streams, reads", SawmillTarget::Raid, Direction::Read, true, 300, ""),
    ("RAID, 8 streams, writes", SawmillTarget::Raid, Direction::Write, true, 100, ""),
    ("Sawmill, 1 stream, reads", SawmillTarget::Holdfast, Direction::Read, false, 45, ""),
    (
        "Sawmill, 1 stream, writes",
        SawmillTarget::Holdfast,
        Direction::Write,
        false,
        345,
        NO_PROCESSOR,
    ),
    ("Sawmill, 4 streams, reads", SawmillTarget::Holdfast, Direction::Read, true, 95, NO_PROCESSOR),
    (
        "Sawmill, 4 streams, writes",
        SawmillTarget::Holdfast,
        Direction::Write,
        true,
        345,
        NO_PROCESSOR,
    ),
];
const SMALL_REQUESTS: &str = "Those file systems make small requests of one disk, one at a time.";
const ONE: bool = false;
const SEVERAL: bool = true;
/// A figure from the text: name, target, direction and whether several streams, request size,
/// hundredths of MB/s, and reason for a difference.
type PaperFigure = (&'static str, SawmillTarget, (Direction, bool), u64, u64, &'static str);
const RATES: [PaperFigure; 8] = [
    (
        "large reads of the raw disks (figure 6-7)",
        SawmillTarget::Raw,
        (Direction::Read, ONE),
        LARGE_BYTES,
        2_450,
        "",
    ),
    (
        "large writes of the raw disks (figure 6-7)",
        SawmillTarget::Raw,
        (Direction::Write, ONE),
        LARGE_BYTES,
        1_950,
        "",
    ),
    (
        "reads at random, one stream: the paper's peak (figure 6-6), here of 4 MB",
        SawmillTarget::Holdfast,
        (Direction::Read, ONE),
        LARGE_BYTES,
        1_840,
        "",
    ),
    (
        "reads in sequence, one stream (figure 6-7), here at random of 4 MB",
        SawmillTarget::Holdfast,
        (Direction::Read, ONE),
        LARGE_BYTES,
        2_100,
        "",
    ),
    (
        "large writes, one stream (figures 6-6, 6-7)",
        SawmillTarget::Holdfast,
        (Direction::Write, ONE),
        LARGE_BYTES,
        1_500,
        "Sawmill had its processor full, and disks that write at 1.2 MB/s; the model's write at \
         their reads' 1.6.",
    ),
    (
        "writes of 16 KB in place, RAID, 8 streams (figure 6-9)",
        SawmillTarget::Raid,
        (Direction::Write, SEVERAL),
        16 << 10,
        110,
        "",
    ),
    (
        "writes of 64 KB in place, RAID, 8 streams (figure 6-9)",
        SawmillTarget::Raid,
        (Direction::Write, SEVERAL),
        64 << 10,
        200,
        "",
    ),
    (
        "writes of 16 KB, several streams (figure 6-9)",
        SawmillTarget::Holdfast,
        (Direction::Write, SEVERAL),
        16 << 10,
        410,
        NO_PROCESSOR,
    ),
];

/// Extent of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SawmillSize {
    /// Three request sizes on the paper's disks. Takes seconds.
    Small,
    /// All request sizes and disk models.
    Full,
}

impl SawmillSize {
    fn request_bytes(self) -> &'static [u64] {
        match self {
            SawmillSize::Small => &[SMALL_BYTES, STRIPE_BYTES, LARGE_BYTES],
            SawmillSize::Full => &[
                512,
                SMALL_BYTES,
                16 << 10,
                64 << 10,
                256 << 10,
                STRIPE_BYTES,
                1 << 20,
                LARGE_BYTES,
            ],
        }
    }

    fn models(self) -> Vec<DiskModel> {
        match self {
            SawmillSize::Small => vec![ibm_0661()],
            SawmillSize::Full => vec![ibm_0661(), DiskModel::hdd(), DiskModel::ssd()],
        }
    }

    fn file_bytes(self) -> u64 {
        match self {
            SawmillSize::Small => 96 << 20,
            SawmillSize::Full => 288 << 20,
        }
    }

    /// Number of requests: many small ones, but a quarter of the file at most.
    fn requests(self, request_bytes: u64, direction: Direction) -> u64 {
        let most = match (self, direction) {
            (SawmillSize::Small, Direction::Read) => 128,
            (SawmillSize::Full, Direction::Read) => 400,
            (SawmillSize::Small, Direction::Write) => 1_000,
            (SawmillSize::Full, Direction::Write) => 4_000,
        };
        (self.file_bytes() / 4 / request_bytes).clamp(16, most)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SawmillTarget {
    Raw,
    Raid,
    Holdfast,
}

impl SawmillTarget {
    fn name(self) -> &'static str {
        match self {
            SawmillTarget::Raw => "raw disks",
            SawmillTarget::Raid => "RAID-5",
            SawmillTarget::Holdfast => "Holdfast",
        }
    }

    /// Streams in measurements with several, as in the paper.
    fn streams(self, request_bytes: u64) -> usize {
        match self {
            SawmillTarget::Raw => DISKS,
            SawmillTarget::Raid if request_bytes <= 64 << 10 => 8,
            SawmillTarget::Raid if request_bytes <= 256 << 10 => 4,
            SawmillTarget::Raid => 2,
            SawmillTarget::Holdfast => 4,
        }
    }
}

/// Runs the Sawmill lab.
///
/// # Errors
///
/// [`LabError`].
pub fn sawmill(size: SawmillSize, told: &mut dyn FnMut(&str)) -> Result<LabReport, LabError> {
    told("a pool is filled");
    let filled = filled_pool(size)?;
    let mut grids = Vec::new();
    let (mut beside, mut goals) = (Vec::new(), Vec::new());
    for model in size.models() {
        let is_papers = grids.is_empty();
        let measured = SawmillRates::new(size, model, &filled, told)?;
        if is_papers {
            beside.extend(measured.beside_the_paper());
            beside.extend(traditional(model)?);
            goals = measured.goals();
        }
        grids.extend(measured.grids());
    }
    Ok(LabReport {
        lab: "sawmill".to_owned(),
        title: "Raw disks, RAID-5 in place and Holdfast: Sawmill, figures 6-4 to 6-9".to_owned(),
        setting: vec![
            format!("{DISKS} disks, requests at random over all of each; stripe unit 64 KB"),
            "RAID-5: update in place without a file system, old data and parity read first".into(),
            "Holdfast: a pool in RAID-5, one file; writes end with a sync; a cache of 4 MB".into(),
            "its maps are in memory, as on a server that has run for a while".to_owned(),
            "a processor costs nothing".to_owned(),
        ],
        grids,
        beside,
        goals,
    })
}

fn blank_disks(count: usize) -> Vec<Arc<SimDevice>> {
    let disk = |number: usize| {
        let options = SimOptions { name: format!("disk {number}"), ..SimOptions::default() };
        SimDevice::open(Image::blank(DISK_BYTES), options)
    };
    (0..count).map(disk).collect()
}

fn shared(disks: &[Arc<SimDevice>]) -> Vec<SharedDevice> {
    disks.iter().map(|disk| -> SharedDevice { Arc::<SimDevice>::clone(disk) }).collect()
}

/// Creates a pool on `disks`, outside of virtual time.
fn create(disks: &[SharedDevice]) -> Result<(), LabError> {
    let layout = if disks.len() == 1 { Layout::Single } else { LAYOUT };
    let options = PoolCreateOptions::new(DISK_BYTES, [9; 64]);
    Pool::create_on(disks, layout, &ManualClock::new(), &options)?;
    Ok(())
}

fn options() -> PoolOpenOptions {
    PoolOpenOptions { cache_bytes: CACHE_BYTES, ..PoolOpenOptions::default() }
}

fn make_file(pool: &Pool, bytes: u64) -> Result<Ino, LabError> {
    let new = NewInode::new(FileKind::Regular, 0o644);
    let file = pool.create(&Caller::root(), pool.root(), NAME, new, None)?.ino;
    for nth in 0..bytes / PIECE_BYTES {
        let fill = nth.to_le_bytes()[0] | 1;
        let data = vec![fill; to_usize(PIECE_BYTES)];
        pool.write(&Caller::root(), file, nth * PIECE_BYTES, &data)?;
    }
    Ok(file)
}

fn filled_pool(size: SawmillSize) -> Result<Vec<Image>, LabError> {
    let disks = blank_disks(DISKS);
    create(&shared(&disks))?;
    let opening = VolumeDevices { devices: shared(&disks), accepts_missing: false };
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open_members(opening, clock, options())?;
    make_file(&pool, size.file_bytes())?;
    pool.close()?;
    drop(pool);
    Ok(disks.iter().map(|disk| disk.image()).collect())
}

fn with_pool<T: Send>(
    rig: &Rig,
    work: impl FnOnce(&Pool) -> Result<T, LabError>,
) -> Result<T, LabError> {
    let opened = Mutex::new(None);
    rig.run(1, &|_, _| {
        let opening = VolumeDevices { devices: rig.disks.clone(), accepts_missing: false };
        let pool = Pool::open_members(opening, rig.clock.clone(), options())?;
        // Loads the free space maps here. Otherwise the first read would.
        pool.tick()?;
        opened.lock().replace(pool);
        Ok(())
    })?;
    let pool = opened.into_inner();
    pool.as_ref().map_or_else(|| unreachable!("it was opened"), work)
}

struct SawmillRates {
    size: SawmillSize,
    model: DiskModel,
    /// Target, direction, whether several streams, request size, and rate.
    rates: Vec<(SawmillTarget, Direction, bool, u64, LoadRate)>,
}

impl SawmillRates {
    fn new(
        size: SawmillSize,
        model: DiskModel,
        filled: &[Image],
        told: &mut dyn FnMut(&str),
    ) -> Result<SawmillRates, LabError> {
        let mut rates = Vec::new();
        for &request_bytes in size.request_bytes() {
            told(&format!("{}, requests of {request_bytes} bytes", model.name));
            for who in [SawmillTarget::Raw, SawmillTarget::Raid, SawmillTarget::Holdfast] {
                for direction in [Direction::Read, Direction::Write] {
                    for is_several in [false, true] {
                        let streams = if is_several { who.streams(request_bytes) } else { 1 };
                        let requests = size.requests(request_bytes, direction);
                        let load = RandomLoad { direction, request_bytes, streams, requests };
                        let rate = rate_of(who, &load, model, filled, size)?;
                        rates.push((who, direction, is_several, request_bytes, rate));
                    }
                }
            }
        }
        Ok(SawmillRates { size, model, rates })
    }

    fn rate(
        &self,
        who: SawmillTarget,
        direction: Direction,
        is_several: bool,
        bytes: u64,
    ) -> Option<LoadRate> {
        let wanted = (who, direction, is_several, bytes);
        let found = self.rates.iter().find(|(who, direction, is_several, bytes, _)| {
            (*who, *direction, *is_several, *bytes) == wanted
        });
        found.map(|(.., rate)| *rate)
    }

    fn grids(&self) -> Vec<Grid> {
        let figures = [
            (Direction::Read, false, "reads of one stream (figures 6-4, 6-6, 6-7)"),
            (Direction::Write, false, "writes of one stream (figures 6-4, 6-6, 6-7)"),
            (Direction::Read, true, "reads of several streams (figures 6-5, 6-8, 6-9)"),
            (Direction::Write, true, "writes of several streams (figures 6-5, 6-9)"),
        ];
        let grid = |(direction, is_several, what): (Direction, bool, &str)| {
            let column = |who: SawmillTarget| {
                let of = |&bytes: &u64| self.rate(who, direction, is_several, bytes);
                let rates = self.size.request_bytes().iter().filter_map(of);
                Series {
                    name: who.name().to_owned(),
                    centimegabytes_per_second: rates.map(LoadRate::centimegabytes).collect(),
                }
            };
            Grid {
                title: format!("{}: {what}", self.model.name),
                request_bytes: self.size.request_bytes().to_vec(),
                series: [SawmillTarget::Raw, SawmillTarget::Raid, SawmillTarget::Holdfast]
                    .map(column)
                    .to_vec(),
            }
        };
        figures.map(grid).to_vec()
    }

    /// Compares with table 6-4 and the figures from the text.
    fn beside_the_paper(&self) -> Vec<PaperComparison> {
        let small = OPERATIONS.into_iter().filter_map(|line| {
            let (what, who, way, is_several, paper, why) = line;
            let ours = self.rate(who, way, is_several, SMALL_BYTES)?.requests_per_second();
            Some(PaperComparison {
                what: format!("4 KB a second, {what} (table 6-4)"),
                paper: paper.to_string(),
                ours: ours.to_string(),
                why: why.to_owned(),
            })
        });
        let others = RATES.into_iter().filter_map(|line| {
            let (what, who, (way, is_several), bytes, paper, why) = line;
            let ours = self.rate(who, way, is_several, bytes)?.centimegabytes();
            Some(PaperComparison {
                what: what.to_owned(),
                paper: format!("{} MB/s", hundredths(paper)),
                ours: format!("{} MB/s", hundredths(ours)),
                why: why.to_owned(),
            })
        });
        small.chain(others).collect()
    }

    fn goals(&self) -> Vec<Goal> {
        let ratio = |direction, over: SawmillTarget, bytes: u64| {
            let ours =
                self.rate(SawmillTarget::Holdfast, direction, false, bytes)?.centimegabytes();
            let theirs = self.rate(over, direction, false, bytes)?.centimegabytes();
            Some(ours * 100 / theirs.max(1))
        };
        let goals = [
            (
                "random writes of 4 KB, Holdfast / RAID-5",
                Direction::Write,
                SawmillTarget::Raid,
                SMALL_BYTES,
                2_000,
            ),
            (
                "reads of 4 MB, Holdfast / raw disks",
                Direction::Read,
                SawmillTarget::Raw,
                LARGE_BYTES,
                85,
            ),
            (
                "writes of 4 MB, Holdfast / raw disks",
                Direction::Write,
                SawmillTarget::Raw,
                LARGE_BYTES,
                85,
            ),
        ];
        let goal = |(what, direction, over, bytes, at_least): (&str, _, _, _, _)| {
            Some(Goal { what: what.to_owned(), ratio: ratio(direction, over, bytes)?, at_least })
        };
        goals.into_iter().filter_map(goal).collect()
    }
}

fn rate_of(
    who: SawmillTarget,
    load: &RandomLoad,
    model: DiskModel,
    filled: &[Image],
    size: SawmillSize,
) -> Result<LoadRate, LabError> {
    let rig = Rig::new(model, filled);
    let run = |target: &dyn LoadTarget| load.run(&rig, target);
    match who {
        SawmillTarget::Raw => run(&RawDisks { disks: &rig.disks }),
        SawmillTarget::Raid => run(&StripedRaid { disks: &rig.disks }),
        SawmillTarget::Holdfast => with_pool(&rig, |pool| {
            let found = Mutex::new(None);
            rig.run(1, &|_, _| {
                found.lock().replace(pool.lookup(&Caller::root(), pool.root(), NAME)?.ino);
                Ok(())
            })?;
            let file = found.into_inner().unwrap_or_else(|| pool.root());
            rig.run(1, &|_, _| read_maps(pool, file, size.file_bytes()))?;
            run(&PoolFile { pool, file, file_bytes: size.file_bytes() })
        }),
    }
}

/// Loads the file's map pages, as on a server that has run for a while.
fn read_maps(pool: &Pool, file: Ino, file_bytes: u64) -> Result<(), LabError> {
    let mut bytes = Vec::new();
    (0..file_bytes / PIECE_BYTES).rev().try_for_each(|nth| {
        bytes.clear();
        pool.read(&Caller::root(), file, nth * PIECE_BYTES, 1, &mut bytes)?;
        Ok(())
    })
}

/// Table 6-6: a file of 5 MB on one disk and on all, in requests of 1 MB.
fn traditional(model: DiskModel) -> Result<Vec<PaperComparison>, LabError> {
    let mut lines = Vec::new();
    for (count, write, read) in [
        (1, "0.23 / 0.77 MB/s", "0.39 / 0.38 MB/s"),
        (DISKS, "0.10 / 0.89 MB/s", "0.38 / 0.37 MB/s"),
    ] {
        let disks = blank_disks(count);
        create(&shared(&disks))?;
        let images: Vec<Image> = disks.iter().map(|disk| disk.image()).collect();
        let rig = Rig::new(model, &images);
        let (written_ns, read_ns) = with_pool(&rig, |pool| write_and_read(&rig, pool))?;
        let pieces = FILE_BYTES / PIECE_BYTES;
        let rate = |took_ns| {
            let rate = LoadRate::new(pieces, FILE_BYTES, took_ns).centimegabytes();
            format!("{} MB/s", hundredths(rate))
        };
        let disks = if count == 1 { "1 disk".to_owned() } else { format!("{count} disks") };
        let what = format!("{disks}, a file of 5 MB");
        lines.push(PaperComparison {
            what: format!("{what} written with fsync, Sprite-FFS / Sprite-LFS (table 6-6)"),
            paper: write.to_owned(),
            ours: rate(written_ns),
            why: SMALL_REQUESTS.to_owned(),
        });
        lines.push(PaperComparison {
            what: format!("{what} read from disk, Sprite-FFS / Sprite-LFS (table 6-6)"),
            paper: read.to_owned(),
            ours: rate(read_ns),
            why: SMALL_REQUESTS.to_owned(),
        });
    }
    Ok(lines)
}

/// Returns the time to write and sync a file, and to read it after reopening the pool.
fn write_and_read(rig: &Rig, pool: &Pool) -> Result<(u64, u64), LabError> {
    let written_ns = rig.run(1, &|_, _| {
        let file = make_file(pool, FILE_BYTES)?;
        Ok(pool.fsync(&Caller::root(), file, false)?)
    })?;
    rig.run(1, &|_, _| Ok(pool.close()?))?;
    let read_ns = with_pool(rig, |pool| {
        rig.run(1, &|_, _| {
            let caller = Caller::root();
            let file = pool.lookup(&caller, pool.root(), NAME)?.ino;
            (0..FILE_BYTES / PIECE_BYTES).try_for_each(|nth| {
                let mut bytes = Vec::new();
                pool.read(&caller, file, nth * PIECE_BYTES, to_usize(PIECE_BYTES), &mut bytes)?;
                debug_assert_eq!(to_u64(bytes.len()), PIECE_BYTES);
                Ok(())
            })
        })
    })?;
    Ok((written_ns, read_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: LA1, and all goals are met.
    #[test]
    fn the_small_lab_is_the_same_each_time_and_reaches_its_goals() {
        let report = sawmill(SawmillSize::Small, &mut |_| ()).expect("nothing fails");
        let again = sawmill(SawmillSize::Small, &mut |_| ()).expect("nothing fails");
        let text = crate::text_of(&report);
        assert_eq!(text, crate::text_of(&again));
        assert_eq!(report.goals.len(), 3);
        assert!(report.goals.iter().all(Goal::is_reached), "{text}");
        assert!(crate::svg_of(&report).is_ok_and(|svg| svg.contains("Holdfast")));
    }
}
