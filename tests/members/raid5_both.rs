//! Power cuts of a pool in stripes after which a member is missing and another has a sector that
//! cannot be read: more than a parity is for. Nothing wrong may be read then, and what is lost is
//! told.
//!
//! The same cut without the bad sector is the measure: its recovery reads the same log. So each
//! name and each byte of it is found again, or is an error that a check of what is left tells too.

use std::collections::BTreeSet;

use engine::Pool;
use engine::api::{Caller, FileKind, FileSystem, FsError, Ino, NewInode};
use runtime::prng::Prng;
use storage::device::sim::Image;
use storage::pool::read_superblock;
use storage::volume::{Volume, VolumeDevices};
use testkit::canon::{CanonAttr, Data, Path, Times, Tree, walk};
use testkit::crash::{Finding, History, Reason, judge};

use super::raid5::new_raid5;
use super::raid5_crash::{cut, history_at, open, run, setting, without};
use super::raid5_known::{content as distinct, with_bad};
use super::{Devices, reopened, shared};

/// Bad sectors that are tried, one after the other, with each missing member of a cut.
const SECTORS: usize = 3;

/// What an exploration was.
#[derive(Clone, Copy, Debug, Default)]
struct Explored {
    cuts: u64,
    states: u64,
    /// Pools of which nothing was lost, of which something was, and that were refused.
    whole: u64,
    harmed: u64,
    refused: u64,
}

/// What is lost of a tree.
#[derive(Debug, Default)]
struct Lost {
    /// Files of which bytes are: all names of each.
    files: Vec<Vec<Path>>,
    /// What cannot be looked at at all.
    names: BTreeSet<Path>,
}

/// Whether an error says that something cannot be had, and not that it is not so.
fn is_loss(error: &FsError) -> bool {
    matches!(error, FsError::Io { .. } | FsError::Corrupt { .. })
}

/// Reads a file page by page; `None`: it is lost.
fn pages_of(pool: &Pool, ino: Ino, length: u64) -> Result<Vec<Option<Vec<u8>>>, FsError> {
    let read = |offset: u64| {
        let mut page = Vec::new();
        let wanted = usize::try_from((length - offset).min(4096)).expect("small");
        match pool.read(&Caller::root(), ino, offset, wanted, &mut page) {
            Ok(_) => Ok(Some(page)),
            Err(error) if is_loss(&error) => Ok(None),
            Err(error) => Err(error),
        }
    };
    (0..length).step_by(4096).map(read).collect()
}

/// Returns what is lost of `whole`.
fn compare(whole: &Tree, pool: &Pool) -> Result<Lost, String> {
    let (caller, mut lost) = (Caller::root(), Lost::default());
    let mut inos = std::collections::BTreeMap::from([(Path::default(), pool.root())]);
    for (path, &index) in &whole.names {
        let Some((parent, name)) = path.split() else { continue };
        let Some(&parent) = inos.get(&parent) else {
            lost.names.insert(path.clone());
            continue;
        };
        let attr = match pool.lookup(&caller, parent, name) {
            Ok(attr) => attr,
            Err(error) if is_loss(&error) => {
                lost.names.insert(path.clone());
                continue;
            }
            Err(error) => return Err(format!("{path}: {error}")),
        };
        if attr.kind == FileKind::Directory {
            inos.insert(path.clone(), attr.ino);
        }
        let inode = &whole.inodes[index];
        let found = CanonAttr::of(&attr, Times::Ignored);
        if found != inode.attr {
            return Err(format!("{path}: {found:?}, not {:?}", inode.attr));
        }
        let Data::Pages(expected) = &inode.data else { continue };
        let pages = pages_of(pool, attr.ino, attr.size_bytes);
        let pages = pages.map_err(|error| format!("{path}: {error}"))?;
        for (number, page) in (0..).zip(pages) {
            let Some(mut page) = page else {
                let is_it = |(_, named): &(&Path, &usize)| **named == index;
                let names = whole.names.iter().filter(is_it).map(|(path, _)| path.clone());
                lost.files.push(names.collect());
                break;
            };
            page.resize(4096, 0);
            let is_right = match expected.get(&number) {
                Some(expected) => page == expected[..],
                None => page.iter().all(|byte| *byte == 0),
            };
            if !is_right {
                return Err(format!("{path}: page {number} is another"));
            }
        }
    }
    Ok(lost)
}

/// Holds what a check tells of what is left against what is lost.
fn tell(devices: &Devices, lost: &Lost) -> Result<(), String> {
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    let (volume, _) = Volume::open_members(opening).map_err(|error| error.to_string())?;
    let report = check::run(volume.device().clone(), check::CheckOptions::default(), &mut |_| ());
    let text = report.to_text();
    if report.is_clean() {
        return Err(format!("{lost:?}, and a check finds nothing"));
    }
    let is_told = |names: &Vec<Path>| names.iter().any(|path| text.contains(&path.to_string()));
    match lost.files.iter().find(|names| !is_told(names)) {
        Some(names) if lost.names.is_empty() => {
            Err(format!("{names:?} is lost, and not told: {text}"))
        }
        _ => Ok(()),
    }
}

/// Judges what a cut left without the member in slot `missing`, with one bad sector after the
/// other.
fn judge_both(
    images: &[Image],
    missing: usize,
    history: &History,
    prng: &mut Prng,
    explored: &mut Explored,
) -> Result<(), String> {
    let pool = open(&without(images, Some(missing)))?;
    judge(history, &pool).map_err(|findings| format!("{findings:?}"))?;
    let whole = walk(&pool, Times::Ignored).map_err(|error| error.to_string())?;
    drop(pool);
    // Sectors that something is in.
    let mut sectors = Vec::new();
    for (member, image) in images.iter().enumerate().filter(|(at, _)| *at != missing) {
        image.for_each_page(|offset, page| {
            if page.iter().any(|byte| *byte != 0) {
                sectors.push((member, offset));
            }
        });
    }
    for _ in 0..SECTORS {
        let at = prng.below(u64::try_from(sectors.len()).expect("few"));
        let bad = sectors[usize::try_from(at).expect("few")];
        explored.states += 1;
        judge_one(images, (missing, bad), (&whole, history), explored)
            .map_err(|finding| format!("{} bad at {}: {finding}", bad.0, bad.1))?;
    }
    Ok(())
}

fn judge_one(
    images: &[Image],
    (missing, bad): (usize, (usize, u64)),
    (whole, history): (&Tree, &History),
    explored: &mut Explored,
) -> Result<(), String> {
    let devices = with_bad(images, Some(missing), &[bad]);
    let label = devices.iter().find_map(|device| read_superblock(device.as_ref()).ok());
    let groups = label.ok_or("no label")?.current.geometry.groups_offset;
    let pool = match open(&devices) {
        Ok(pool) => pool,
        // Fixed regions are on all members.
        Err(error) if bad.1 < groups => return Err(error),
        Err(error) => {
            explored.refused += 1;
            let told = tell(&devices, &Lost::default());
            return told.map_err(|finding| format!("{error}; {finding}"));
        }
    };
    let Err(findings) = judge(history, &pool) else {
        explored.whole += 1;
        return Ok(());
    };
    let told: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let is_walk = |finding: &Finding| matches!(finding.reason, Reason::Walk(_));
    if bad.1 < groups || !findings.iter().all(is_walk) {
        return Err(told.join("\n"));
    }
    let lost = compare(whole, &pool)?;
    drop(pool);
    explored.harmed += 1;
    tell(&devices, &lost).map_err(|finding| format!("{}; {finding}", told.join("\n")))
}

fn explore(seed: u64, cut_one_in: u64, explored: &mut Explored) {
    let count = 3 + usize::try_from(seed % 3).expect("few");
    let base = new_raid5(count);
    let base_pool = open(&reopened(&base, &(0..count).collect::<Vec<_>>())).expect("it opens");
    let (devices, recorded) = run(&base, seed, 40);
    let (mut prng, end) = (Prng::from_seed(!seed), devices[0].timeline().now());
    for time in 0..=end {
        if !prng.one_in(cut_one_in) {
            continue;
        }
        explored.cuts += 1;
        let history = history_at(&base_pool, &recorded, time);
        let images = cut(&devices, time, &mut prng);
        for missing in 0..count {
            judge_both(&images, missing, &history, &mut prng, explored).unwrap_or_else(|finding| {
                panic!("seed {seed}, cut at {time} of {end}, {count}, {missing} away: {finding}")
            });
        }
    }
}

/// Goal: with a member missing and a bad sector on another nothing is read as what it is not, and
/// what is lost is told. `HOLDFAST_SOAK=N` runs N times as many seeds.
#[test]
fn a_missing_member_and_a_bad_sector_give_nothing_wrong() {
    let first = setting("HOLDFAST_SEED").unwrap_or(0);
    let seeds = setting("HOLDFAST_SOAK").unwrap_or(1) * 12;
    let mut explored = Explored::default();
    for seed in first..first + seeds {
        explore(seed, 50, &mut explored);
    }
    println!("{explored:?}");
    assert!(explored.states > 200 && explored.harmed > 10, "{explored:?}");
}

/// Returns where each page of `bytes` lies; of some more than once: the parity of a row that has no
/// other page is the same page.
fn places_of(images: &[Image], bytes: &[u8]) -> Vec<Vec<(usize, u64)>> {
    let mut places = vec![Vec::new(); bytes.len() / 4096];
    for (member, image) in images.iter().enumerate() {
        image.for_each_page(|offset, found| {
            let page = bytes.chunks(4096).position(|page| page == found);
            if let Some(page) = page {
                places[page].push((member, offset));
            }
        });
    }
    places
}

/// Pages of a block.
pub(crate) const BLOCK_PAGES: usize = 4;
/// No whole number of units: the next file begins within one.
pub(crate) const FILE_BYTES: usize = 44 << 10;

/// A pool that was closed, and where the pages of its files lie.
pub(crate) struct Closed {
    pub(crate) images: Vec<Image>,
    pub(crate) files: Vec<Vec<u8>>,
    places: Vec<Vec<Vec<(usize, u64)>>>,
}

impl Closed {
    /// Returns where each page lies that is like no other.
    pub(crate) fn pages(&self) -> Vec<(usize, u64)> {
        let single = self.places.iter().flatten().filter(|of| of.len() == 1);
        single.map(|of| of[0]).collect()
    }
}

pub(crate) fn name(file: usize) -> String {
    format!("file{file}")
}

/// Returns members of a pool with files whose blocks begin within units.
pub(crate) fn closed(count: usize) -> Closed {
    let devices = reopened(&new_raid5(count), &(0..count).collect::<Vec<_>>());
    let pool = open(&devices).expect("it is new");
    let files: Vec<Vec<u8>> = (0..4).map(|file| distinct(file, FILE_BYTES)).collect();
    for (file, bytes) in files.iter().enumerate() {
        // None alone: each flush fills a row up.
        let (caller, new) = (Caller::root(), NewInode::new(FileKind::Regular, 0o644));
        let made = pool.create(&caller, pool.root(), name(file).as_bytes(), new, None);
        let ino = made.expect("there is room").ino;
        pool.write(&caller, ino, 0, bytes).expect("there is room");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    let places = files.iter().map(|bytes| places_of(&images, bytes)).collect();
    Closed { images, files, places }
}

/// Goal: with a member away, a bad sector costs a block nothing if it lies at no byte of a member
/// at which the block has what is away, or what is bad. Method: files whose last block is no whole
/// number of units, so that the next begin within one. Each page is bad in turn, and each block is
/// read at once.
#[test]
fn a_bad_sector_beside_a_block_costs_nothing_of_it() {
    let (mut given, mut lost) = (0, 0);
    for count in [3, 4, 5] {
        let closed = closed(count);
        let known = closed.pages();
        let Closed { images, files, places } = closed;
        for away in 0..count {
            for &bad in known.iter().filter(|(member, _)| *member != away) {
                let pool = open(&with_bad(&images, Some(away), &[bad])).expect("it was closed");
                let is_hit = |&(member, offset): &(usize, u64)| {
                    offset == bad.1 && (member == away || member == bad.0)
                };
                for (file, bytes) in files.iter().enumerate() {
                    let attr = pool.lookup(&Caller::root(), pool.root(), name(file).as_bytes());
                    let ino = attr.expect("it is there").ino;
                    for (block, pages) in places[file].chunks(BLOCK_PAGES).enumerate() {
                        if pages.iter().any(|places| places.len() != 1) {
                            continue;
                        }
                        let what = format!("{count}, {away} away, {bad:?} bad, {file}: {block}");
                        let (at, length) = (block * BLOCK_PAGES * 4096, pages.len() * 4096);
                        let (mut found, start) = (Vec::new(), u64::try_from(at).expect("small"));
                        let read = pool.read(&Caller::root(), ino, start, length, &mut found);
                        let is_read = read.is_ok();
                        assert!(!is_read || found == bytes[at..at + length], "{what}");
                        assert_eq!(
                            !is_read,
                            pages.iter().flatten().any(is_hit),
                            "{what}: {read:?}"
                        );
                        given += u64::from(is_read);
                        lost += u64::from(!is_read);
                    }
                }
            }
        }
    }
    assert!(given > 1000 && lost > 100, "{given} {lost}");
}
