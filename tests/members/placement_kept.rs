//! Placement beside snapshots, which stay as they are, and in streams, which other pools receive.

use engine::api::{FileKind, FileSystem};
use engine::{DiskGroupError, FilesetChange, NewFileset};
use format::fileset::{FilesetName, NamePart};
use format::placement::Placement;

use super::groups::check_all;
use super::placement::{new_file, prefer, preferred, read, three_singles, write};
use super::removal::take_snapshot;

/// Its number.
const EROFS: i32 = 30;
const FILE_BYTES: usize = 200_000;

fn name(text: &str) -> FilesetName {
    text.parse().expect("a name")
}

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a name")
}

/// Goal: the placement of a file in a snapshot is not set, whichever way leads there: a snapshot
/// shares its pages with the snapshot before it and with what comes after.
#[test]
fn the_placement_of_a_snapshot_or_of_what_is_read_only_stays() {
    let (devices, pool) = three_singles();
    let file = new_file(&pool, pool.root(), "f", FileKind::Regular);
    write(&pool, file, &[3; FILE_BYTES]).expect("there is room");
    take_snapshot(&pool, "c1");
    take_snapshot(&pool, "c2");
    let set = |fileset: &str, path: &[&[u8]]| {
        let done = pool.set_placement(&name(fileset), path, (Placement::Group(1), true));
        done.map_err(|error| {
            let DiskGroupError::Files(error) = error else { panic!("{error}") };
            error
        })
    };
    for path in [&[&b".snapshots"[..], b"c2", b"f"][..], &[b".snapshots", b"c2"]] {
        let refused = set("root", path);
        assert_eq!(refused.map_err(|error| error.errno()), Err(EROFS));
    }
    assert_eq!(preferred(&pool, file), "any");
    pool.fileset_admin()
        .create_fileset(&name("kept"), &NewFileset::default())
        .expect("there is room");
    let change = FilesetChange { is_read_only: Some(true), ..FilesetChange::default() };
    pool.fileset_admin().change_fileset(&name("kept"), &change).expect("it is there");
    let refused = set("kept", &[]);
    assert_eq!(refused.map_err(|error| error.errno()), Err(EROFS));

    pool.fileset_admin().delete_snapshot(&name("root"), &part("c1")).expect("nobody holds it");
    while !pool.jobs().is_empty() {
        pool.tick().expect("nothing fails");
    }
    assert_eq!(read(&pool, file, FILE_BYTES), [3; FILE_BYTES]);
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "c1 is deleted");
}

/// Goal: a disk group is a matter of its pool: what is received has no placement.
#[test]
fn a_stream_does_not_carry_a_placement() {
    let (_, pool) = three_singles();
    let file = new_file(&pool, pool.root(), "f", FileKind::Regular);
    prefer(&pool, file, "1").expect("it is there");
    prefer(&pool, pool.root(), "2").expect("it is there");
    write(&pool, file, &[3; FILE_BYTES]).expect("there is room");
    take_snapshot(&pool, "c");
    let mut stream = Vec::new();
    pool.fileset_admin()
        .send((&name("root"), &part("c")), None, None, &mut stream, &mut |_, _| ())
        .expect("it can be read");
    pool.fileset_admin()
        .receive(&name("copy"), &mut &stream[..], [7; 32], &mut |_, _| ())
        .expect("it fits");
    for path in [&[][..], &[&b"f"[..]]] {
        assert_eq!(pool.placement(&name("copy"), path), Ok(Placement::Any), "{path:?}");
    }
    assert_eq!(pool.placement(&name("root"), &[b"f"]), Ok(Placement::Group(1)));
}
