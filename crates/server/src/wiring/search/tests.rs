//! Tests of which devices a search finds and uses.

use std::os::unix::fs::FileExt;

use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::members::{Layout, Member};
use runtime::clock::{ManualClock, SystemClock};
use storage::device::SharedDevice;
use storage::volume::VolumeDevices;

use super::*;
use crate::backend::MemberSearchOptions;
use crate::wiring::members::{MemberDevices, find};

/// Creates a mirror of the files d0 and d1 in a new folder, opens it once and closes it.
fn mirror_in(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let made = |name: &str| -> SharedDevice {
        let path = folder.join(name);
        FileDevice::create(&path, 10 << 20, FileOptions::default()).expect("a file")
    };
    let options = PoolCreateOptions::new(10 << 20, [8; 64]);
    let devices = [made("d0"), made("d1")];
    Pool::create_on(&devices, Layout::Mirror, &ManualClock::new(), &options).expect("it fits");
    let opening = VolumeDevices { devices: devices.to_vec(), accepts_missing: false };
    let clock = Arc::new(SystemClock::new());
    let pool = Pool::open_members(opening, clock, PoolOpenOptions::default()).expect("it is new");
    pool.close().expect("nothing fails");
    folder
}

fn search_from(first: &Path) -> Result<MemberDevices, BackendError> {
    find(first, &MemberSearchOptions::default(), FileOptions::default())
}

fn search_with(first: &Path, hints: &[PathBuf]) -> Result<MemberDevices, BackendError> {
    let members = MemberSearchOptions { hints: hints.to_vec(), ..MemberSearchOptions::default() };
    find(first, &members, FileOptions::default())
}

fn paths_of(found: &MemberDevices) -> Vec<PathBuf> {
    found.files.iter().map(|(path, _)| path.clone()).collect()
}

fn use_pool(found: MemberDevices) {
    let clock = Arc::new(SystemClock::new());
    let pool = Pool::open_members(found.opening(), clock, PoolOpenOptions::default());
    pool.expect("it is whole").close().expect("nothing fails");
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("there is room");
}

fn assert_refused(found: Result<MemberDevices, BackendError>, paths: [&Path; 2]) {
    let error = found.err().expect("one is a copy of the other").to_string();
    let names_both = paths.iter().all(|path| error.contains(&*path.to_string_lossy()));
    assert!(names_both && error.contains("--member"), "{error}");
}

/// Goal: one valid copy of its label suffices to find a member.
#[test]
fn a_member_is_found_by_any_copy_of_its_label() {
    let folder = mirror_in("labels");
    let path = folder.join("d1");
    let whole = std::fs::read(&path).expect("it is there");
    let file = std::fs::File::options().write(true).open(&path).expect("it is there");
    let offset = |copy| format::geometry::Geometry::superblock_offset(10 << 20, copy);
    for kept in 0..4 {
        for rot in [&[b'X'][..], &[0xa5; 4096], &[0; 4096]] {
            file.write_all_at(&whole, 0).expect("it can be written");
            for copy in (0..4).filter(|copy| *copy != kept) {
                file.write_all_at(rot, offset(copy)).expect("it can be written");
            }
            let found = search_from(&folder.join("d0")).expect("both are there");
            assert_eq!(found.files.len(), 2, "label {kept} alone, {} bytes", rot.len());
            drop(found);
            let found = search_from(&path).expect("both are there");
            assert_eq!(found.files.len(), 2, "label {kept} alone, {} bytes", rot.len());
        }
    }
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// Goal: a member is found by any name. If it is in use, the search fails.
#[test]
fn a_member_goes_by_any_name_and_is_not_done_without_while_it_is_in_use() {
    let folder = mirror_in("names");
    let path = |name: &str| folder.join(name);
    std::fs::rename(path("d1"), path("e1")).expect("it is ours");
    assert_eq!(paths_of(&search_from(&path("d0")).expect("both")), [path("d0"), path("e1")]);
    std::fs::hard_link(path("e1"), path("f1")).expect("it is ours");
    std::os::unix::fs::symlink(path("e1"), path("d1")).expect("it is ours");
    let found = search_from(&path("d0")).expect("three names of one device");
    assert_eq!(found.files.len(), 2);
    drop(found);
    // A child process of another test may have the descriptors until it calls exec, so the test
    // retries.
    let begun = std::time::Instant::now();
    let in_use = loop {
        match FileDevice::open(&path("f1"), FileOptions::default()) {
            Ok(device) => break device,
            Err(error) => assert!(begun.elapsed().as_secs() < 20, "it is free: {error}"),
        }
        std::thread::yield_now();
    };
    let error = search_from(&path("d0")).err().expect("it is in use").to_string();
    assert!(error.contains("1: "), "{error}");
    drop(in_use);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// Goal: a copied pool is opened without the original, whether or not the original was used since
/// (FD1, FD5). If the copy lacks a member, the original's is not used.
#[test]
fn a_copy_of_a_pool_is_opened_without_the_original() {
    let original = mirror_in("original");
    let folder = original.join("copy");
    std::fs::create_dir(&folder).expect("the name is new");
    let (own, copied) = (|name: &str| original.join(name), |name: &str| folder.join(name));
    for name in ["d0", "d1"] {
        copy(&own(name), &copied(name));
    }
    let whole = [copied("d0"), copied("d1")];
    assert_eq!(paths_of(&search_from(&copied("d0")).expect("both are there")), whole);
    use_pool(search_from(&own("d0")).expect("both are there"));
    assert_eq!(paths_of(&search_from(&copied("d0")).expect("both are there")), whole);
    std::fs::remove_file(copied("d1")).expect("it is ours");
    // At first the original is newer, then both are equal.
    assert_refused(search_from(&copied("d0")), [&copied("d0"), &own("d0")]);
    copy(&own("d0"), &copied("d0"));
    assert_refused(search_from(&copied("d0")), [&copied("d0"), &own("d0")]);
    let alone = search_with(&copied("d0"), &[copied("d0")]).expect("it is meant");
    assert_eq!(paths_of(&alone), [copied("d0")]);
    use_pool(alone);
    // The copy is newer now. The original is opened all the same, because both of its members are
    // in the named folder.
    assert_eq!(paths_of(&search_from(&own("d0")).expect("both")), [own("d0"), own("d1")]);
    std::fs::remove_dir_all(&original).expect("it is ours");
}

/// Goal: of several copies in one folder, the newest is opened. Of equal copies, only one named
/// with `--member` is. A named device is not exchanged for a newer copy (FD3, FD4).
#[test]
fn of_copies_in_one_folder_the_newest_is_opened_and_of_equal_ones_none() {
    let folder = mirror_in("beside");
    let path = |name: &str| folder.join(name);
    copy(&path("d1"), &path("a1"));
    assert_refused(search_from(&path("d0")), [&path("a1"), &path("d1")]);
    let named = search_with(&path("d0"), &[path("d1")]).expect("it is decided");
    assert_eq!(paths_of(&named), [path("d0"), path("d1")]);
    use_pool(named);
    let found = search_from(&path("d0")).expect("one is older");
    assert_eq!(paths_of(&found), [path("d0"), path("d1")]);
    drop(found);
    assert_refused(search_from(&path("a1")), [&path("a1"), &path("d1")]);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// Goal: the member at the path in the label is used, though an older copy lies in the named
/// folder.
#[test]
fn an_older_copy_beside_does_not_hide_the_member_that_a_label_leads_to() {
    let folder = mirror_in("left");
    let (path, elsewhere) = (|name: &str| folder.join(name), folder.join("elsewhere"));
    std::fs::create_dir(&elsewhere).expect("the name is new");
    let moved = elsewhere.join("d1");
    copy(&path("d1"), &path("kept"));
    std::fs::rename(path("d1"), &moved).expect("it is ours");
    use_pool(search_with(&path("d0"), std::slice::from_ref(&moved)).expect("it is named"));
    let found = search_from(&path("d0")).expect("it is where the label says");
    assert_eq!(paths_of(&found), [path("d0"), moved]);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// Goal: a member is found in a folder with many other files.
#[test]
fn a_member_is_found_in_a_folder_of_thousands_of_files() {
    let folder = mirror_in("many");
    for number in 0..3000 {
        std::fs::write(folder.join(format!("file-{number}")), b"").expect("there is room");
    }
    for name in ["aa", "zz"] {
        let names = std::fs::read_dir(&folder).expect("it is there").flatten();
        let is_it = |name: &std::ffi::OsString| ["d1", "aa"].iter().any(|known| name == known);
        let own = names.map(|it| it.file_name()).find(is_it).expect("one of these");
        std::fs::rename(folder.join(own), folder.join(name)).expect("it is ours");
        let found = search_from(&folder.join("d0")).expect("both are there");
        assert_eq!(paths_of(&found), [folder.join("d0"), folder.join(name)]);
    }
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// Goal: the recorded path of an absent member is dropped if another pool's device is there now,
/// and kept if a blank one is.
#[test]
fn a_path_at_which_a_stranger_is_now_is_not_believed() {
    let folder = mirror_in("strangers");
    let path = |name: &str| folder.join(name);
    std::fs::remove_file(path("d1")).expect("it is ours");
    let others = || search_from(&path("d0")).expect("one of two").others;
    assert!(others().is_empty());
    std::fs::write(path("d1"), vec![0; 10 << 20]).expect("there is room");
    assert!(others().is_empty());
    std::fs::remove_file(path("d1")).expect("it is ours");
    let stranger: SharedDevice =
        FileDevice::create(&path("d1"), 10 << 20, FileOptions::default()).expect("a file");
    let options = PoolCreateOptions::new(10 << 20, [9; 64]);
    Pool::create(&stranger, &ManualClock::new(), &options).expect("it fits");
    let known = path("d1").as_os_str().as_bytes().to_vec();
    assert_eq!(others(), std::slice::from_ref(&known));
    std::fs::remove_file(path("d1")).expect("it is ours");
    std::os::unix::fs::symlink(path("d0"), path("d1")).expect("a link");
    assert_eq!(others(), [known]);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

/// Goal: no search is made for a slot whose member was removed.
#[test]
fn a_slot_that_is_free_is_not_searched_for() {
    let folder = mirror_in("free");
    let found = search_from(&folder.join("d0")).expect("both are there");
    let mut read = read_superblock(found.files[0].1.as_ref()).expect("it has one");
    read.current.members.push(Member::gone());
    let mut search = MemberSearch::new(&read, &folder.join("d0"), (false, FileOptions::default()));
    assert!(search.lacks(&[]));
    let other = label_of(&found.files[1].1).expect("it has one");
    search.add(&folder.join("d1"), &other, false);
    assert!(!search.lacks(&[]), "the third has gone");
    std::fs::remove_dir_all(&folder).expect("it is ours");
}
