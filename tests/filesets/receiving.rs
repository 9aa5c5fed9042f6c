//! What a fileset that receives is to the others: its quota, its counts, its family.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use engine::api::{Caller, Fallocate, FileKind, FileSystem, FsError, Ino, NewInode};
use engine::{FilesetChange, Pool, ReceiveError};

use super::send::{
    POOL_BYTES, assert_same, known, mend, open, part, pool_of, receive, records, send_from, take,
};
use super::{assert_clean, free_all, name, names, new_fileset};

fn create(pool: &Pool, file: &str, bytes: &[u8]) -> Ino {
    let (caller, new) = (Caller::root(), NewInode::new(FileKind::Regular, 0o644));
    let made = pool.create(&caller, pool.root(), file.as_bytes(), new, None);
    let ino = made.expect("there is room").ino;
    pool.write(&caller, ino, 0, bytes).expect("there is room");
    pool.forget(ino, 1);
    ino
}

fn change(pool: &Pool, quota_bytes: Option<u64>, reservation_bytes: Option<u64>) {
    let change = FilesetChange { quota_bytes, reservation_bytes, ..FilesetChange::default() };
    pool.fileset_admin().change_fileset(&name("copy"), &change).expect("it is there");
}

fn referenced(pool: &Pool, fileset: &str) -> u64 {
    let all = pool.fileset_admin().filesets().expect("the table can be read");
    all.iter().find(|it| it.name == fileset).expect("it is there").referenced_bytes
}

/// Goal: what is received counts in what its fileset references; one that runs over the quota
/// leaves nothing, and says so; quota and reservation stay what they were, also after a reopening.
#[test]
fn what_is_received_keeps_to_the_quota_of_its_fileset() {
    const RESERVATION: u64 = 16 << 20;
    let device = pool_of(POOL_BYTES, 3);
    let source = open(&device, "root", None);
    create(&source, "first", &[1; 1 << 20]);
    take(&source, "c0");
    create(&source, "second", &vec![2; 6 << 20]);
    take(&source, "c1");
    let target = pool_of(POOL_BYTES, 9);
    let pool = open(&target, "root", None);
    receive(&pool, &send_from(&source, None, "c0", None)).expect("there is room");
    let before = referenced(&pool, "copy");
    assert!(before > 1 << 20 && before < 2 << 20, "{before}");
    change(&pool, Some(4 << 20), None);
    let next = send_from(&source, Some("c0"), "c1", None);
    let failure = receive(&pool, &next).expect_err("6 MiB more are too many");
    assert!(matches!(failure.error, ReceiveError::Fs(FsError::QuotaExceeded)), "{failure:?}");
    assert!(failure.token.is_none());
    free_all(&pool);
    assert_eq!(names(&pool), ["copy", "copy@c0", "root"]);
    assert_eq!(referenced(&pool, "copy"), before);
    change(&pool, Some(24 << 20), Some(RESERVATION));
    let kept = pool.status().space.kept;
    receive(&pool, &next).expect("there is room now");
    let after = referenced(&pool, "copy");
    assert!(after > before + (6 << 20) && referenced(&pool, "copy@c1") == after, "{after}");
    // What it has is kept free for it no more.
    assert_eq!(kept - pool.status().space.kept, (after - before) >> 12);
    let shown = (pool.status().space.kept, pool.status().space.reserved);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&target);
    let pool = open(&target, "copy", None);
    assert_eq!((pool.status().space.kept, pool.status().space.reserved), shown);
    let info = pool.fileset_admin().filesets().expect("the table can be read");
    let copy = info.iter().find(|it| it.name == "copy").expect("it is there");
    assert_eq!((copy.quota_bytes, copy.reservation_bytes), (24 << 20, RESERVATION));
    assert_eq!(referenced(&pool, "copy"), after);
    let past = pool.create(
        &Caller::root(),
        pool.root(),
        b"past",
        NewInode::new(FileKind::Regular, 0o644),
        None,
    );
    let past = past.expect("there is room").ino;
    let refused = pool.write(&Caller::root(), past, 0, &vec![3; 18 << 20]);
    assert_eq!(refused, Err(FsError::QuotaExceeded));
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&target);
}

/// Goal: in a pool that is full but for what is reserved for a fileset, that fileset receives, as a
/// whole or by parts, and what was reserved for it is reserved still less what came; where as much
/// is reserved for another, nothing is received, and the other has all of it.
#[test]
fn a_stream_draws_on_the_reservation_of_its_fileset_alone() {
    const RESERVATION: u64 = 14 << 20;
    let device = pool_of(POOL_BYTES, 3);
    let source = open(&device, "root", None);
    create(&source, "first", &[1; 1 << 20]);
    take(&source, "c0");
    create(&source, "second", &vec![2; 6 << 20]);
    take(&source, "c1");
    let next = send_from(&source, Some("c0"), "c1", None);
    for (reserved_for, is_broken_off) in [("copy", false), ("copy", true), ("other", false)] {
        let target = pool_of(POOL_BYTES, 9);
        let pool = open(&target, "root", None);
        receive(&pool, &send_from(&source, None, "c0", None)).expect("there is room");
        pool.fileset_admin()
            .create_fileset(&name("other"), &new_fileset(1))
            .expect("there is room");
        let reservation_bytes = Some(RESERVATION);
        let reserve = FilesetChange { reservation_bytes, ..FilesetChange::default() };
        pool.fileset_admin().change_fileset(&name(reserved_for), &reserve).expect("there is room");
        let ballast = create(&pool, "ballast", &[3]);
        let (mut at, data) = (0, vec![3; 64 << 10]);
        while pool.write(&Caller::root(), ballast, at, &data).is_ok() {
            at += 64 << 10;
        }
        pool.sync().expect("what was accepted is stored");
        let kept = || pool.status().space.kept << 12;
        let (before, kept_before) = (referenced(&pool, "copy"), kept());
        let mut token = None;
        if is_broken_off {
            let broken = receive(&pool, &next[..next.len() / 2]).expect_err("it breaks off");
            token = broken.token;
            assert!(token.is_some(), "{broken:?}");
            assert_eq!(kept(), kept_before, "nobody draws on it");
        }
        let received = match token {
            Some(token) => receive(&pool, &send_from(&source, Some("c0"), "c1", Some(token))),
            None => receive(&pool, &next),
        };
        if reserved_for == "copy" {
            received.expect("it is reserved");
            let after = referenced(&pool, "copy");
            assert!(after > before + (6 << 20), "{after}");
            assert_eq!(kept(), kept_before - (after - before));
        } else {
            let failure = received.expect_err("it is another's");
            assert!(matches!(failure.error, ReceiveError::Fs(FsError::NoSpace)), "{failure:?}");
            free_all(&pool);
            assert_eq!(kept(), kept_before, "the other has all of it");
        }
        let shown = kept();
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&target);
        let pool = open(&target, reserved_for, None);
        assert_eq!(pool.status().space.kept << 12, shown);
        create(&pool, "last", &vec![4; 2 << 20]);
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&target);
    }
}

/// Goal: while a stream is received, or has broken off, the snapshot that it begins from stays,
/// snapshots and clones can be taken, and the rest is received if the newest snapshot is still the
/// one.
#[test]
fn a_snapshot_that_a_stream_begins_from_stays_while_it_comes() {
    let device = pool_of(POOL_BYTES, 3);
    let source = open(&device, "root", None);
    create(&source, "first", &[1; 100_000]);
    take(&source, "c0");
    create(&source, "second", &[2; 3 << 20]);
    take(&source, "c1");
    let target = pool_of(POOL_BYTES, 9);
    let pool = open(&target, "root", None);
    receive(&pool, &send_from(&source, None, "c0", None)).expect("there is room");
    let next = send_from(&source, Some("c0"), "c1", None);
    let broken = receive(&pool, &next[..next.len() / 2]).expect_err("it breaks off");
    let token = broken.token.expect("it goes on");
    let refused = pool
        .fileset_admin()
        .delete_snapshot(&name("copy"), &part("c0"))
        .expect_err("a stream needs it");
    assert!(refused.to_string().contains("stream"), "{refused}");
    let deleted =
        pool.fileset_admin().delete_fileset(&name("copy")).expect_err("it has a snapshot");
    assert!(matches!(deleted, FsError::FilesetInUse { .. }), "{deleted}");
    pool.fileset_admin()
        .create_clone((&name("copy"), &part("c0")), &name("clone"), [7; 16])
        .expect("there is room");
    pool.fileset_admin()
        .create_snapshots_below(&name("copy"), &part("all"), &mut || [8; 16])
        .expect("it is quiet");
    let rest = send_from(&source, Some("c0"), "c1", Some(token));
    let other = receive(&pool, &rest).expect_err("another snapshot is the newest");
    assert!(other.error.to_string().contains("newest snapshot"), "{other:?}");
    pool.fileset_admin().delete_snapshot(&name("copy"), &part("all")).expect("nobody needs it");
    free_all(&pool);
    receive(&pool, &rest).expect("c0 is the newest again");
    assert_eq!(names(&pool), ["clone", "copy", "copy@c0", "copy@c1", "root"]);
    let by = pool
        .fileset_admin()
        .delete_snapshot(&name("copy"), &part("c0"))
        .expect_err("it has two children");
    assert!(by.to_string().contains("clone") && by.to_string().contains("copy@c1"), "{by}");
    pool.fileset_admin().delete_fileset(&name("clone")).expect("nobody uses it");
    free_all(&pool);
    pool.fileset_admin().delete_snapshot(&name("copy"), &part("c0")).expect("nobody needs it");
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&target);
    let kept = known_of(&device, source, "root", "c1");
    let pool = open(&target, "copy", None);
    assert_same(&known(&pool), &kept, "without c0");
    pool.close().expect("nothing fails");
}

fn known_of(
    device: &storage::device::SharedDevice,
    pool: Pool,
    fileset: &str,
    snapshot: &str,
) -> super::send::Known {
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(device, fileset, Some(snapshot));
    let known = known(&pool);
    pool.close().expect("nothing fails");
    known
}

/// Goal: a clone of a snapshot that nobody changed receives what came after the snapshot, in the
/// same pool, and the room that the snapshot's files reserve is counted for whoever is written to.
#[test]
fn a_clone_receives_what_its_origin_became() {
    let device = pool_of(POOL_BYTES, 3);
    let pool = open(&device, "root", None);
    let (caller, first) = (Caller::root(), create(&pool, "first", &[1; 100_000]));
    let all = Fallocate::Allocate { keep_size: false };
    pool.fallocate(&caller, first, 0, 10 << 20, all).expect("there is room");
    take(&pool, "c0");
    let reserved = pool.status().space.reserved;
    assert!(reserved > 2_000, "{reserved}");
    create(&pool, "second", &[2; 1 << 20]);
    pool.write(&caller, first, 0, &[3; 2 << 20]).expect("it is reserved");
    take(&pool, "c1");
    let root_reserves = pool.status().space.reserved;
    pool.fileset_admin()
        .create_clone((&name("root"), &part("c0")), &name("copy"), [7; 16])
        .expect("there is room");
    assert_eq!(pool.status().space.reserved, root_reserves + reserved);
    let next = send_from(&pool, Some("c0"), "c1", None);
    let broken = receive(&pool, &next[..next.len() / 3]).expect_err("it breaks off");
    assert!(broken.token.is_some() && pool.status().space.reserved > root_reserves + reserved);
    assert!(pool.fileset_admin().abort_receiving(&name("copy")).expect("nobody sends"));
    free_all(&pool);
    assert_eq!(pool.status().space.reserved, root_reserves + reserved, "what is given up");
    receive(&pool, &next).expect("there is room");
    assert!(pool.status().space.reserved <= root_reserves + reserved);
    assert_eq!(names(&pool), ["copy", "copy@c1", "root", "root@c0", "root@c1"]);
    let kept = known_of(&device, pool, "root", "c1");
    assert_clean(&device);
    let pool = open(&device, "copy", None);
    assert_same(&known(&pool), &kept, "a clone");
    create(&pool, "third", &[4; 100_000]);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}

/// Goal: a stream of thousands of records that is cut at each thousandth goes on by its token.
#[test]
fn a_stream_cut_at_each_thousandth_record_goes_on() {
    let device = pool_of(POOL_BYTES, 3);
    let source = open(&device, "root", None);
    (0..1100_u32).for_each(|number| {
        create(&source, &format!("file {number}"), &number.to_le_bytes().repeat(80));
    });
    take(&source, "c0");
    let target = pool_of(POOL_BYTES, 9);
    let whole = records(&send_from(&source, None, "c0", None)).len();
    assert!(whole > 3000, "{whole} records");
    let (mut token, mut cuts) = (None, 0);
    loop {
        let stream = send_from(&source, None, "c0", token);
        let starts = records(&stream);
        let pool = open(&target, "root", None);
        let end = starts.get(1000).copied().unwrap_or(stream.len());
        let done = receive(&pool, &stream[..end]);
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&target);
        match done {
            Ok(_) => break,
            Err(failure) => token = Some(failure.token.expect("it goes on")),
        }
        cuts += 1;
        assert!(cuts < 9, "it does not come forward");
    }
    assert!(cuts >= whole / 1000, "{cuts} cuts of {whole} records");
    let kept = known_of(&device, source, "root", "c0");
    let pool = open(&target, "copy", None);
    assert_same(&known(&pool), &kept, "c0");
    pool.close().expect("nothing fails");
}

/// Goal: a stream that names the last of all inode numbers costs no more than what it has: it is
/// refused, since nothing leads to that file, and what came is freed in a few steps.
#[test]
fn a_number_without_neighbours_costs_what_one_file_does() {
    const LAST: u64 = (1 << 40) - 1000;
    let device = pool_of(POOL_BYTES, 3);
    let source = open(&device, "root", None);
    create(&source, "first", &[1; 100_000]);
    create(&source, "second", &[2; 1000]);
    take(&source, "c0");
    let whole = send_from(&source, None, "c0", None);
    let starts = records(&whole);
    let end = |at: usize| starts.get(at + 1).copied().unwrap_or(whole.len());
    let mut all: Vec<Vec<u8>> =
        (0..starts.len()).map(|at| whole[starts[at]..end(at)].to_vec()).collect();
    all[0][96..104].copy_from_slice(&(LAST + 1).to_le_bytes());
    let last = all.iter_mut().rfind(|record| record[4] == 2).expect("there are files");
    last[32 + 8..32 + 16].copy_from_slice(&LAST.to_le_bytes());
    let crc = format::checksum::crc32c(&last[32 + 4..32 + 512]);
    last[32..36].copy_from_slice(&crc.to_le_bytes());
    all.iter_mut().zip(0_u64..).for_each(|(record, sequence)| mend(record, sequence, &whole));
    let target = pool_of(POOL_BYTES, 9);
    let pool = open(&target, "root", None);
    let failure = receive(&pool, &all.concat()).expect_err("no name leads to it");
    assert!(matches!(failure.error, ReceiveError::Senseless { .. }), "{failure:?}");
    assert!(failure.error.to_string().contains("name"), "{failure:?}");
    free_all(&pool);
    assert_eq!(names(&pool), ["root"]);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&target);
    source.close().expect("nothing fails");
}

/// Goal: what was received is shown while somebody counts what the snapshot that it begins from
/// holds alone: both close the gates of the fileset and of what came. Method: many small
/// differences, and somebody who counts all the time; whoever waits for ever would be waited for
/// here.
#[test]
fn what_is_received_is_shown_beside_somebody_who_counts_its_snapshot() {
    let device = pool_of(POOL_BYTES, 3);
    let source = open(&device, "root", None);
    let snapshots: Vec<String> = ('a'..='z').map(|letter| format!("c{letter}")).collect();
    for snapshot in &snapshots {
        create(&source, snapshot, b"new");
        take(&source, snapshot);
    }
    let target = pool_of(POOL_BYTES, 9);
    let pool = Arc::new(open(&target, "root", None));
    receive(&pool, &send_from(&source, None, "ca", None)).expect("there is room");
    let (newest, has_ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let (tell, told) = std::sync::mpsc::channel();
    let (counting, at, is_over) = (Arc::clone(&pool), Arc::clone(&newest), Arc::clone(&has_ended));
    let counted = snapshots.clone();
    std::thread::spawn(move || {
        while !is_over.load(Ordering::SeqCst) {
            // The next one comes at any moment.
            let _ = counting
                .fileset_admin()
                .unique_bytes(&name("copy"), &part(&counted[at.load(Ordering::SeqCst)]));
        }
    });
    std::thread::spawn(move || {
        for (number, pair) in snapshots.windows(2).enumerate() {
            let next = send_from(&source, Some(&pair[0]), &pair[1], None);
            receive(&pool, &next).expect("there is room");
            newest.store(number + 1, Ordering::SeqCst);
        }
        has_ended.store(true, Ordering::SeqCst);
        tell.send(pool.fileset_admin().filesets().expect("the table can be read").len())
            .expect("somebody waits");
    });
    let filesets = told.recv_timeout(Duration::from_secs(120));
    assert_eq!(filesets, Ok(2 + 26), "nobody waits for ever");
}

/// Goal: some of a stream is in the way of another until that is asked for in its place; the same
/// stream goes on, whoever asks for what, and a rest of another takes nothing away.
#[test]
fn some_of_a_stream_gives_way_to_another_if_that_is_asked_for() {
    let device = pool_of(POOL_BYTES, 3);
    let source = open(&device, "root", None);
    create(&source, "first", &vec![1; 4 << 20]);
    take(&source, "c0");
    create(&source, "second", &vec![2; 4 << 20]);
    take(&source, "c1");
    let [one, other] = ["c0", "c1"].map(|snapshot| send_from(&source, None, snapshot, None));
    let target = pool_of(POOL_BYTES, 9);
    let pool = open(&target, "root", None);
    let in_place = |stream: &[u8]| {
        pool.fileset_admin().receive_in_place(
            &name("copy"),
            &mut &stream[..],
            [7; 32],
            &mut |_, _| (),
        )
    };
    let slot = || {
        let all = pool.fileset_admin().filesets().expect("the table can be read");
        all.into_iter().find(|it| it.is_receiving).map(|it| it.slot)
    };
    let half = &other[..other.len() * 3 / 4];
    let token = receive(&pool, half).expect_err("it breaks off").token.expect("it goes on");
    let begun = slot().expect("some has come");
    let refused = receive(&pool, &one).expect_err("another has begun").error.to_string();
    assert!(refused.contains("--discard-partial receives this one"), "{refused}");
    in_place(half).expect_err("it breaks off");
    assert_eq!(slot(), Some(begun), "the same stream goes on");
    let rest = send_from(&source, None, "c1", Some(token));
    let received = in_place(&one).expect("there is room");
    assert_eq!(received.snapshot, part("c0"));
    assert_eq!(slot(), None);
    free_all(&pool);
    assert_eq!(names(&pool), ["copy", "copy@c0", "root"]);
    in_place(&rest).expect_err("nothing of it is here any more");
    assert_eq!(names(&pool), ["copy", "copy@c0", "root"]);
    source.close().expect("nothing fails");
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&target);
}
