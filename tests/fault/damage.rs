//! What a device returns is not what was written there, or is not ours.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode, RenameMode, XattrMode};
use engine::{NewFileset, Pool, PoolOpenError, PoolOpenOptions};
use format::defect::DefectCode;
use format::fileset::{FilesetName, NamePart};
use format::ids::Place;
use format::map::{is_split, pointer_at, set_pointer};
use format::page::{PageBytes, PageKind, page_lsn, stamp};
use format::superblock::SUPERBLOCK_BYTES;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::{
    POOL_BYTES, content, defects, device_of, find, make, new_pool, open, pool_in_memory, read,
};

const FILES: u64 = 30;
const FILE_BYTES: usize = 40_000;
/// Part of each file that is overwritten once it is in the map: leaves are split.
const OVERWRITTEN: std::ops::Range<usize> = 4096..10_000;
/// Bits that turn over, each in an image of its own.
const ROTS: usize = 400;

fn one_of(prng: &mut Prng, count: usize) -> usize {
    let count = u64::try_from(count).expect("few");
    usize::try_from(prng.below(count)).expect("below a usize")
}

/// A pool that was closed, with files in it.
fn full_image() -> Image {
    let device = SimDevice::open(new_pool(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("a new pool opens");
    for number in 0..FILES {
        let name = format!("file{number}");
        make(&pool, &name).expect("there is room");
        let ino = find(&pool, &name).expect("it was made");
        let bytes = content(number, FILE_BYTES);
        let mut old = bytes.clone();
        old[OVERWRITTEN].fill(0xee);
        pool.write(&Caller::root(), ino, 0, &old).expect("there is room");
        pool.sync().expect("there is room");
        let from = u64::try_from(OVERWRITTEN.start).expect("small");
        pool.write(&Caller::root(), ino, from, &bytes[OVERWRITTEN]).expect("there is room");
    }
    pool.close().expect("nothing fails");
    device.image()
}

/// Goal: a page of metadata is believed only if its checksum is right. Method: one bit of a name
/// turns over, which nothing but the checksum can tell.
#[test]
fn a_name_of_which_a_bit_turned_over_is_never_listed() {
    let base = full_image();
    let mut place = None;
    base.for_each_page(|offset, bytes| {
        // The last: the log has the name too, and lies in front.
        if let Some(at) = bytes.windows(6).position(|window| window == b"file17") {
            place = Some(offset + u64::try_from(at).expect("in a page"));
        }
    });
    let device = SimDevice::open(base, SimOptions::default());
    device.rot(place.expect("the name is in a directory"), 1);
    let shared: SharedDevice = device;
    let pool = open(&shared).expect("the directory is not read by an open");
    let listed = pool.readdir(&Caller::root(), pool.root(), 0, &mut |_| true);
    assert!(matches!(listed, Err(FsError::Corrupt { .. })), "{listed:?}");
}

/// Goal: no read ever returns wrong bytes. Method: one bit of what was written turns over.
#[test]
fn rot_is_told_and_never_served() {
    let base = full_image();
    let mut pages = Vec::new();
    base.for_each_page(|offset, bytes| {
        if bytes.iter().any(|&byte| byte != 0) {
            pages.push(offset);
        }
    });
    let mut prng = Prng::from_seed(3);
    let (mut told, mut refused) = (0, 0);
    for _ in 0..ROTS {
        let page = pages[one_of(&mut prng, pages.len())];
        let (offset, mask) = (page + prng.below(4096), 1 << prng.below(8));
        let mut image = base.clone();
        image.flip(offset, mask);
        let device = device_of(&image);
        let is_found = defects(&device).is_some();
        let options = PoolOpenOptions {
            files: engine::FilesOptions { is_read_only: true, ..Default::default() },
            ..PoolOpenOptions::default()
        };
        let opened = Pool::open(Arc::clone(&device), Arc::new(ManualClock::new()), options);
        let pool = match opened {
            Ok(pool) => pool,
            Err(error) => {
                refused += 1;
                assert!(is_found, "check finds nothing, open says {error}");
                continue;
            }
        };
        for number in 0..FILES {
            match read(&pool, &format!("file{number}")) {
                Ok(bytes) => assert!(bytes == content(number, FILE_BYTES), "wrong bytes, {offset}"),
                Err(FsError::Corrupt { defect, .. }) => {
                    told += 1;
                    assert!(is_found, "check finds nothing, a read says {defect} ({offset})");
                }
                Err(error) => panic!("bit at {offset}: {error}"),
            }
        }
    }
    println!("{ROTS} bits: {told} reads told, {refused} opens refused");
    assert!(told > 100, "{told}");
}

/// Goal: an error can name the file that it is about, however many names its directory has.
#[test]
fn the_path_of_each_file_of_a_large_directory_is_known() {
    let (_, pool) = pool_in_memory(POOL_BYTES);
    for number in 0..1000 {
        let name = format!("file{number}");
        let ino = make(&pool, &name).expect("there is room");
        assert_eq!(pool.path_of(ino), Ok(format!("/{name}").into_bytes()));
    }
    let last = find(&pool, "file999").expect("it was made");
    pool.unlink(&Caller::root(), pool.root(), b"file999", None).expect("it is there");
    assert!(pool.path_of(last).is_err(), "it has no name any more");
    assert_eq!(pool.path_of(pool.root()), Ok(b"/".to_vec()));
}

/// The same of what a rename moved, and of what it left.
#[test]
fn the_paths_of_a_moved_file_and_of_its_whiteout_are_known() {
    let (_, pool) = pool_in_memory(POOL_BYTES);
    let (caller, root) = (Caller::root(), pool.root());
    let new = NewInode::new(FileKind::Directory, 0o755);
    let directory = pool.create(&caller, root, b"d", new, None).expect("there is room").ino;
    let moved = make(&pool, "f").expect("there is room");
    let renamed = pool.rename(&caller, (root, b"f"), (directory, b"g"), RenameMode::Whiteout, None);
    renamed.expect("there is room");
    let left = find(&pool, "f").expect("a whiteout is left");
    assert_eq!(pool.path_of(left), Ok(b"/f".to_vec()));
    assert_eq!(pool.path_of(moved), Ok(b"/d/g".to_vec()));
}

/// Opens what is not to be opened: it is refused, and nothing is written.
fn is_refused(image: &Image, expected: &str) {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let error: PoolOpenError = open(&shared).expect_err("it is opened");
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(device.counts().writes(), 0, "{error}");
    assert_eq!(device.image().content_hash(), image.content_hash());
}

#[test]
fn a_truncated_image_is_refused_untouched() {
    let base = full_image();
    for kept in [POOL_BYTES / 2, POOL_BYTES - 4096, 1 << 20, 32 << 10] {
        let mut image = Image::blank(kept);
        base.for_each_page(|offset, bytes| {
            if offset + 4096 <= kept {
                image.write(offset, bytes);
            }
        });
        is_refused(&image, &format!("truncate -s {POOL_BYTES} "));
    }
}

#[test]
fn what_is_not_ours_is_refused_untouched() {
    is_refused(&Image::blank(POOL_BYTES), "");
    let mut foreign = Image::blank(POOL_BYTES);
    foreign.write(0, &content(9, 1 << 20));
    is_refused(&foreign, "");
}

/// Goal: what lies behind the head of a superblock of few members is nobody's business.
#[test]
fn garbage_behind_the_head_of_a_superblock_does_not_count() {
    let mut image = full_image();
    for offset in [0, 64 << 10, POOL_BYTES - (128 << 10), POOL_BYTES - (64 << 10)] {
        image.write(offset + 4096, &content(3, SUPERBLOCK_BYTES - 4096));
    }
    let shared: SharedDevice = SimDevice::open(image, SimOptions::default());
    let report = check::run(Arc::clone(&shared), check::CheckOptions::default(), &mut |_| {});
    assert!(report.is_clean() && report.noted.is_empty(), "{}", report.to_text());
    open(&shared).expect("it is whole").close().expect("nothing fails");
}

#[test]
fn a_newer_format_is_refused_untouched() {
    let mut newer = full_image();
    for offset in [0, 64 << 10, POOL_BYTES - (128 << 10), POOL_BYTES - (64 << 10)] {
        let mut page = vec![0; SUPERBLOCK_BYTES];
        newer.read(offset, &mut page);
        page[12] = 9;
        let crc = crc32c::crc32c(&page[12..]);
        page[8..12].copy_from_slice(&crc.to_le_bytes());
        newer.write(offset, &page);
    }
    is_refused(&newer, "newer than this software");
}

/// Goal: a directory page that lies about itself under a good checksum is refused where it is read,
/// and not believed by whoever adds a name. Method: each field that an insert relies on is wrong in
/// turn.
#[test]
fn a_lying_directory_page_is_refused() {
    let base = full_image();
    let mut pages = Vec::new();
    base.for_each_page(|offset, bytes| {
        let is_directory = bytes.starts_with(b"HFpg") && bytes[18] == 15;
        pages.extend(is_directory.then_some(offset));
    });
    assert!(!pages.is_empty(), "there is a directory page");
    // Count of names, bytes in use, depth; length and name length of the first entry.
    let lies: [(usize, &[u8]); 6] = [
        (84, &[0xff, 0xff]),
        (96, &[0; 8]),
        (96, &[0xff; 8]),
        (104, &[3]),
        (128 + 22, &[0xff, 0x7f]),
        (128 + 14, &[0xff]),
    ];
    for (at, lie) in lies {
        let mut image = base.clone();
        for &offset in &pages {
            let mut page = [0; 4096];
            image.read(offset, &mut page);
            page[at..at + lie.len()].copy_from_slice(lie);
            let lsn = format::page::page_lsn(&page);
            format::page::stamp(&mut page, lsn);
            image.write(offset, &page);
        }
        let device = device_of(&image);
        let pool = open(&device).expect("the root directory is not read yet");
        for number in 0..100 {
            let refused = make(&pool, &format!("new{number}")).expect_err("it is believed");
            let FsError::Corrupt { defect, .. } = refused else { panic!("{refused}") };
            assert!(defect.code.name().starts_with("DR00"), "{defect}");
        }
    }
}

/// Goal: a page of attributes that lies about itself under a good checksum is refused where it is
/// read, and not believed by whoever adds an attribute. Method: each field that an insert relies on
/// is wrong in turn.
#[test]
fn a_lying_attribute_page_is_refused() {
    let device = SimDevice::open(new_pool(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("a new pool opens");
    let ino = make(&pool, "file").expect("there is room");
    let set = |pool: &Pool, ino, name: &[u8]| {
        pool.setxattr(&Caller::root(), ino, name, &[7; 900], XattrMode::Set, None)
    };
    set(&pool, ino, b"user.first").expect("there is room");
    pool.close().expect("nothing fails");
    let base = device.image();
    // Count of entries, bytes in use; bytes of the name and of the value of the first entry.
    let lies: [(usize, &[u8]); 5] =
        [(84, &[0xff; 4]), (96, &[0; 8]), (96, &[0xff; 8]), (128 + 1, &[0xff]), (128 + 4, &[1])];
    for (at, lie) in lies {
        let mut image = base.clone();
        base.for_each_page(|offset, bytes| {
            let is_ours = bytes.starts_with(b"HFpg") && bytes[18] == PageKind::Attributes.code();
            if is_ours {
                let mut page: PageBytes = *bytes.first_chunk().expect("a page");
                page[at..at + lie.len()].copy_from_slice(lie);
                let lsn = page_lsn(&page);
                stamp(&mut page, lsn);
                image.write(offset, &page);
            }
        });
        let pool = open(&device_of(&image)).expect("no attribute is read yet");
        let ino = find(&pool, "file").expect("its attributes are elsewhere");
        let refused = set(&pool, ino, b"user.second").expect_err("it is believed");
        assert!(
            matches!(&refused, FsError::Corrupt { defect, .. } if defect.code == DefectCode::XA001)
        );
        let unread = pool.getxattr(&Caller::root(), ino, b"user.first").expect_err("it is served");
        assert!(matches!(unread, FsError::Corrupt { .. }), "{unread}");
        for error in [refused, unread] {
            assert!(error.file().is_some_and(|file| file.path == "/file"), "{error}");
        }
    }
}

/// Goal: a block that is said to lie behind the last place that a number can name is told of.
/// Method: the first pointer of each leaf is changed so, under a good checksum.
#[test]
fn a_block_that_lies_nowhere_is_told() {
    let mut image = full_image();
    let mut leaves = Vec::new();
    image.for_each_page(|offset, bytes| {
        let bytes: &PageBytes = bytes.first_chunk().expect("a page");
        let is_map = bytes.starts_with(b"HFpg") && bytes[18] == PageKind::Map.code();
        leaves.extend((is_map && !is_split(bytes)).then_some((offset, *bytes)));
    });
    assert!(!leaves.is_empty(), "files have maps");
    for (offset, mut page) in leaves {
        let Some(mut pointer) = pointer_at(&page, 0) else { continue };
        pointer.place = Place::from_bits(u64::MAX);
        set_pointer(&mut page, 0, Some(&pointer));
        let lsn = page_lsn(&page);
        stamp(&mut page, lsn);
        image.write(offset, &page);
    }
    let device = device_of(&image);
    assert!(defects(&device).is_some(), "the check sees nothing");
    let pool = open(&device).expect("no map is read yet");
    for number in 0..FILES {
        let told = read(&pool, &format!("file{number}")).expect_err("it is read from nowhere");
        assert!(matches!(told, FsError::Io { .. } | FsError::Corrupt { .. }), "{told}");
        let file = told.file().expect("the file is known");
        assert_eq!((&file.path, file.first_byte()), (&format!("/file{number}"), Some(0)), "{told}");
        assert!(told.to_string().contains(&file.to_string()), "{told}");
    }
}

/// Goal: an error names pool and fileset with the path, which files of two filesets may share.
/// Method: a file of the same path in two filesets and in a snapshot of one, and all their data
/// rots.
#[test]
fn an_error_names_the_fileset_of_its_file() {
    let device = SimDevice::open(new_pool(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared).expect("a new pool opens");
    let named = |text: &str| text.parse::<FilesetName>().expect("a name");
    for text in ["home", "home/ann"] {
        pool.fileset_admin()
            .create_fileset(&named(text), &NewFileset::default())
            .expect("there is room");
    }
    let ann = pool.fileset_admin().hold_fileset(&named("home/ann")).expect("it is there");
    let bytes = content(1, FILE_BYTES);
    for root in [pool.root(), pool.root_of(ann).expect("it is held")] {
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made = pool.create(&Caller::root(), root, b"same", new, None).expect("there is room");
        pool.write(&Caller::root(), made.ino, 0, &bytes).expect("there is room");
    }
    let part = NamePart::new("then").expect("a name");
    pool.fileset_admin()
        .create_snapshot(&named("home/ann"), &part, [7; 16])
        .expect("there is room");
    pool.close().expect("nothing fails");
    drop(pool);
    let (image, mut data) = (device.image(), Vec::new());
    image.for_each_page(|offset, page| {
        data.extend((page[..256] == bytes[..256]).then_some(offset));
    });
    assert!(data.len() >= 2, "the content lies where it was written: {data:?}");
    let device = SimDevice::open(image, SimOptions::default());
    data.iter().for_each(|offset| device.rot(*offset, 1));
    let shared: SharedDevice = device;
    let pool = open(&shared).expect("no content is read yet");
    let ann = pool.fileset_admin().hold_fileset(&named("home/ann")).expect("it is there");
    let then = pool.fileset_admin().hold_snapshot(&named("home/ann"), &part).expect("it is there");
    for (fileset, name) in
        [(pool.main_fileset(), "root"), (ann, "home/ann"), (then, "home/ann@then")]
    {
        let root = pool.root_of(fileset).expect("it is held");
        let found = pool.lookup(&Caller::root(), root, b"same").expect("names are well");
        let read = pool.read(&Caller::root(), found.ino, 0, FILE_BYTES, &mut Vec::new());
        let told = read.expect_err("the content has rotted");
        let file = told.file().expect("the file is known");
        assert_eq!((file.fileset.as_deref(), file.path.as_str()), (Some(name), "/same"), "{told}");
        assert_eq!(file.pool, pool.status().pool_id, "{told}");
        assert!(told.to_string().contains(&format!("{name}:/same, bytes 0 to ")), "{told}");
    }
}
