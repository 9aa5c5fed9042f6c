//! Placement: which disk group the data of a file comes from, as a file or its directory says.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsError, FsResult, Ino, NewInode, XattrMode};
use engine::{NewFileset, Pool};
use format::fileset::FilesetName;
use format::members::Layout;
use format::placement::Placement;
use format::stripes::UNIT_SHIFT_DEFAULT;
use storage::device::sim::{Image, SimDevice};
use storage::device::{IoPurpose, RequestKind};

use super::groups::{check_all, content, group_of, groups};
use super::removal::{finish, take_snapshot};
use super::roles::{Spec, make};
use super::{Devices, POOL_BYTES, devices_of, open, reopened};

const PLACEMENT: &[u8] = b"user.holdfast.placement";
const STRIPE: Layout = Layout::Stripe { unit_shift: UNIT_SHIFT_DEFAULT };
/// More than goes into the log.
const FILE_BYTES: usize = 200_000;

/// A pool of three disk groups of one device, each for data.
pub(super) fn three_singles() -> (Devices, Pool) {
    let (devices, made) = make(&[(Layout::Single, 1, true); 3], 2 * POOL_BYTES);
    made.expect("it fits");
    let devices = reopened(&devices, &[0, 1, 2]);
    let pool = open(&devices).expect("it was made");
    (devices, pool)
}

pub(super) fn new_file(pool: &Pool, directory: Ino, name: &str, kind: FileKind) -> Ino {
    let new = NewInode::new(kind, 0o755);
    let made = pool.create(&Caller::root(), directory, name.as_bytes(), new, None);
    made.expect("there is room").ino
}

pub(super) fn write(pool: &Pool, ino: Ino, content: &[u8]) -> FsResult<()> {
    pool.write(&Caller::root(), ino, 0, content)?;
    pool.fsync(&Caller::root(), ino, false)
}

pub(super) fn prefer(pool: &Pool, ino: Ino, placement: &str) -> FsResult<()> {
    let value = placement.as_bytes();
    pool.setxattr(&Caller::root(), ino, PLACEMENT, value, XattrMode::Set, None)
}

pub(super) fn preferred(pool: &Pool, ino: Ino) -> String {
    let value = pool.getxattr(&Caller::root(), ino, PLACEMENT).expect("each has one");
    String::from_utf8(value).expect("words")
}

pub(super) fn read(pool: &Pool, ino: Ino, bytes: usize) -> Vec<u8> {
    let mut content = Vec::new();
    pool.read(&Caller::root(), ino, 0, bytes, &mut content).expect("it can be read");
    content
}

/// Counts of bytes of data that devices were written.
struct Counts(Vec<u64>);

impl Counts {
    fn of(devices: &Devices) -> Counts {
        let of =
            |device: &Arc<SimDevice>| device.counts().of(IoPurpose::Data, RequestKind::Write).bytes;
        Counts(devices.iter().map(of).collect())
    }

    /// Returns the devices that were written data since.
    fn since(&mut self, devices: &Devices) -> Vec<usize> {
        let now = Counts::of(devices);
        let pairs = self.0.iter().zip(&now.0).enumerate();
        let written = pairs.filter(|(_, (before, now))| now > before).map(|(at, _)| at).collect();
        *self = now;
        written
    }
}

/// Goal: data goes to the disk group that its file prefers, in this life and the next; what is made
/// in a directory takes its placement; what was written before stays where it is.
#[test]
fn data_comes_from_the_disk_group_that_its_file_prefers() {
    let (devices, pool) = three_singles();
    let mut counts = Counts::of(&devices);
    for group in [2, 0, 1] {
        let placement = group.to_string();
        let top = new_file(&pool, pool.root(), &format!("d{group}"), FileKind::Directory);
        prefer(&pool, top, &placement).expect("it is there");
        let below = new_file(&pool, top, "below", FileKind::Directory);
        for file in 0..6 {
            let directory = if file % 2 == 0 { top } else { below };
            let ino = new_file(&pool, directory, &format!("f{file}"), FileKind::Regular);
            assert_eq!(preferred(&pool, ino), placement);
            write(&pool, ino, &content(file, 1, FILE_BYTES)).expect("there is room");
            assert_eq!(counts.since(&devices), [group], "file {file}");
        }
        let free = new_file(&pool, top, "free", FileKind::Regular);
        assert_eq!(preferred(&pool, free), placement);
        prefer(&pool, free, "any").expect("any is always there");
        assert_eq!(preferred(&pool, free), "any");
    }
    let names = pool.listxattr(&Caller::root(), pool.root()).expect("it is there");
    assert!(names.is_empty(), "copies should not be pinned: {names:?}");
    let kept = new_file(&pool, pool.root(), "kept", FileKind::Regular);
    prefer(&pool, kept, "1").expect("it is there");
    write(&pool, kept, &content(1, 1, FILE_BYTES)).expect("there is room");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "after a close");
    let devices = reopened(&devices, &[0, 1, 2]);
    let pool = open(&devices).expect("it was closed");
    let kept = pool.lookup(&Caller::root(), pool.root(), b"kept").expect("it is there").ino;
    let mut counts = Counts::of(&devices);
    write(&pool, kept, &content(1, 2, FILE_BYTES)).expect("there is room");
    assert_eq!(counts.since(&devices), [1], "in another life");
    prefer(&pool, kept, "2").expect("it is there");
    pool.sync().expect("nothing fails");
    assert!(counts.since(&devices).is_empty(), "nothing is moved for it");
    write(&pool, kept, &content(1, 3, FILE_BYTES)).expect("there is room");
    assert_eq!(counts.since(&devices), [2]);
    pool.removexattr(&Caller::root(), kept, PLACEMENT, None).expect("that is any");
    assert_eq!(preferred(&pool, kept), "any");
}

/// Goal: a kind can be preferred: each file on one device, or each on all.
#[test]
fn a_kind_of_disk_group_can_be_preferred() {
    let specs: [Spec; 4] = [
        (Layout::Single, 1, false),
        (Layout::RoundRobin, 2, true),
        (STRIPE, 2, true),
        (Layout::Single, 1, true),
    ];
    let (devices, made) = make(&specs, 4 * POOL_BYTES);
    made.expect("it fits");
    let devices = reopened(&devices, &[0, 1, 2, 3, 4, 5]);
    let pool = open(&devices).expect("it was made");
    let mut counts = Counts::of(&devices);
    for (placement, one_of) in [("round-robin", true), ("striped", false), ("3", true)] {
        let directory = new_file(&pool, pool.root(), placement, FileKind::Directory);
        prefer(&pool, directory, placement).expect("it is there");
        for file in 0..8 {
            let ino = new_file(&pool, directory, &format!("f{file}"), FileKind::Regular);
            write(&pool, ino, &content(file, 1, 3 * FILE_BYTES)).expect("there is room");
            let written = counts.since(&devices);
            let expected = match placement {
                "round-robin" => [1, 2].as_slice(),
                "striped" => &[3, 4],
                _ => &[5],
            };
            assert!(written.iter().all(|at| expected.contains(at)), "{placement}: {written:?}");
            assert_eq!(written.len() == 1, one_of, "{placement}: {written:?}");
        }
    }
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "kinds");
}

/// Goal: a placement refuses nobody: what has no room where it is wanted goes elsewhere, and what
/// `df` promises fits.
#[test]
fn a_file_goes_on_elsewhere_where_what_it_prefers_is_full() {
    let (devices, pool) = three_singles();
    prefer(&pool, pool.root(), "1").expect("it is there");
    let statfs = pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is open");
    let files = usize::try_from(statfs.available_bytes).expect("small") * 9 / 10 / FILE_BYTES;
    assert!(files > 150, "{statfs:?}: three devices of 20 MiB");
    let mut inos = Vec::new();
    let mut counts = Counts::of(&devices);
    let mut in_first = 0;
    for file in 0..files {
        let ino = new_file(&pool, pool.root(), &format!("f{file}"), FileKind::Regular);
        write(&pool, ino, &content(file, 1, FILE_BYTES))
            .unwrap_or_else(|error| panic!("file {file} of {files}: {error}"));
        in_first += usize::from(counts.since(&devices) == [1]);
        inos.push(ino);
    }
    // 20 MiB hold 70 of 200 kB and more.
    assert!((70..110).contains(&in_first), "{in_first} of {files} on the device preferred");
    for (file, ino) in inos.iter().enumerate() {
        assert!(read(&pool, *ino, FILE_BYTES) == content(file, 1, FILE_BYTES), "file {file}");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "full");
}

/// Goal: what moves out of a disk group that leaves goes where its file prefers, with a snapshot
/// that shares it; a preference for what is gone is followed by nobody, and hinders nobody.
#[test]
fn what_leaves_a_disk_group_goes_where_its_file_prefers() {
    let (devices, pool) = three_singles();
    let kept = new_file(&pool, pool.root(), "kept", FileKind::Regular);
    let stays = new_file(&pool, pool.root(), "stays", FileKind::Regular);
    for (ino, version) in [(kept, 1), (stays, 2)] {
        prefer(&pool, ino, "1").expect("it is there");
        write(&pool, ino, &content(7, version, 10 * FILE_BYTES)).expect("there is room");
    }
    prefer(&pool, kept, "2").expect("it is there");
    take_snapshot(&pool, "c");
    write(&pool, stays, &content(7, 3, FILE_BYTES)).expect("there is room");
    pool.sync().expect("nothing fails");
    let before: Vec<u64> = groups(&pool).iter().map(|group| group.used_bytes).collect();
    pool.devices().remove_disk_group(1).expect("it fits elsewhere");
    let refused = prefer(&pool, kept, "1").expect_err("it leaves");
    assert_eq!(refused, FsError::Invalid);
    finish(&pool, 2, "removal");
    let after: Vec<u64> = groups(&pool).iter().map(|group| group.used_bytes).collect();
    let (to_first, to_second) = (after[0] - before[0], after[1] - before[2]);
    println!("{to_first} bytes to disk group 0, {to_second} to disk group 2");
    // The whole of `kept`, and of the rest a part: without a preference both have half of all.
    assert!(to_second >= 10 * 200_000 + to_first / 2, "{before:?} {after:?}");
    assert_eq!(preferred(&pool, stays), "1", "it may come back");
    write(&pool, stays, &content(7, 4, 10 * FILE_BYTES)).expect("there is room elsewhere");
    assert!(read(&pool, stays, 10 * FILE_BYTES) == content(7, 4, 10 * FILE_BYTES));
    assert!(read(&pool, kept, 10 * FILE_BYTES) == content(7, 1, 10 * FILE_BYTES));
    pool.close().expect("nothing fails");
    drop(pool);
    let rest = reopened(&devices, &[0, 2]);
    check_all(&rest, "without it");
    let images = [devices[0].image(), devices[2].image(), Image::blank(2 * POOL_BYTES)];
    let devices = devices_of(images.to_vec());
    let pool = open(&devices[..2]).expect("it was closed");
    let number =
        pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[2])).expect("it fits");
    assert_eq!(number, 1, "the lowest that is free");
    let mut counts = Counts::of(&devices);
    let stays = pool.lookup(&Caller::root(), pool.root(), b"stays").expect("it is there").ino;
    write(&pool, stays, &content(7, 5, FILE_BYTES)).expect("there is room");
    assert_eq!(counts.since(&devices), [2], "preferred again");
}

/// Goal: a tree is given a placement by its path, all that is below it too where that is asked for,
/// and its fileset is not kept open for it.
#[test]
fn a_tree_is_given_a_placement() {
    let (_devices, pool) = three_singles();
    let name: FilesetName = "films".parse().expect("a name");
    let random = [3; 32];
    pool.fileset_admin()
        .create_fileset(&name, &NewFileset { random, ..NewFileset::default() })
        .expect("there is room");
    let top = pool.fileset_admin().hold_fileset(&name).and_then(|it| Ok((it, pool.root_of(it)?)));
    let (fileset, root) = top.expect("it was made");
    let old = new_file(&pool, root, "old", FileKind::Directory);
    let below = new_file(&pool, old, "below", FileKind::Regular);
    new_file(&pool, old, "socket", FileKind::Socket);
    let set = |path: &[&[u8]], placement, is_recursive| {
        pool.set_placement(&name, path, (placement, is_recursive))
    };
    assert_eq!(set(&[], Placement::Group(2), false).expect("it is there"), 1);
    assert_eq!(preferred(&pool, below), "any");
    assert_eq!(set(&[b"old"], Placement::Group(1), true).expect("it is there"), 2);
    assert_eq!(preferred(&pool, below), "1");
    assert_eq!(pool.placement(&name, &[]), Ok(Placement::Group(2)));
    assert_eq!(pool.placement(&name, &[b"old", b"below"]), Ok(Placement::Group(1)));
    assert_eq!(pool.placement(&name, &[b"new"]), Err(FsError::NotFound));
    for (placement, words) in [
        (Placement::Group(7), "there is no disk group 7"),
        (Placement::Striped, "no disk group is striped"),
    ] {
        let refused = set(&[], placement, false).expect_err(words).to_string();
        assert!(refused.contains(words), "{refused}");
    }
    pool.fileset_admin().release_fileset(fileset);
    pool.fileset_admin().delete_fileset(&name).expect("nobody has it open");
}

/// Goal: what cannot be preferred is refused, and nothing is changed.
#[test]
fn what_cannot_be_preferred_is_refused() {
    let (_devices, pool) = three_singles();
    let ino = new_file(&pool, pool.root(), "f", FileKind::Regular);
    let before = pool.getattr(&Caller::root(), ino).expect("it is there");
    for value in ["3", "7", "8", "-1", "", "striped", "round-robin", "raid5", "1\n"] {
        assert_eq!(prefer(&pool, ino, value), Err(FsError::Invalid), "{value:?}");
    }
    assert_eq!(pool.getattr(&Caller::root(), ino), Ok(before));
    let other = Caller::checked(1000, 1000, Vec::new());
    // A kernel asks no more than whether the file may be written.
    let by_kernel = Caller::checked_by_kernel(1000, 1000);
    let set = |caller: &Caller, mode| pool.setxattr(caller, ino, PLACEMENT, b"1", mode, None);
    for caller in [&other, &by_kernel] {
        assert_eq!(set(caller, XattrMode::Set), Err(FsError::NotPermitted));
    }
    assert_eq!(set(&Caller::root(), XattrMode::Create), Err(FsError::Exists));
    assert_eq!(set(&Caller::root(), XattrMode::Replace), Ok(()));
    let (devices, made) =
        make(&[(Layout::Single, 1, false), (Layout::Single, 1, true)], POOL_BYTES);
    made.expect("it fits");
    let pool = open(&devices).expect("it was made");
    assert_eq!(prefer(&pool, pool.root(), "0"), Err(FsError::Invalid), "metadata alone");
    assert_eq!(prefer(&pool, pool.root(), "1"), Ok(()));
}
