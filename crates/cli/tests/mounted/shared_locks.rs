//! Locks of several mounts of one fileset exclude each other.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::Value;

use crate::calls::lock_bytes;
use crate::several::other;
use crate::{Mounted, can_mount, errno, write};

/// Longest time for what waits for nobody.
const SOON: Duration = Duration::from_secs(20);

/// Tries until it is done: a lock of an open file ends a moment after its last close.
fn soon(mut take: impl FnMut() -> std::io::Result<()>) {
    let since = Instant::now();
    while let Err(error) = take() {
        assert!(since.elapsed() < SOON, "{error}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

fn opened(directory: &Path, name: &str) -> File {
    File::options().read(true).write(true).open(directory.join(name)).expect("it is there")
}

/// Goal: locks of fcntl(2), of processes and of open files, and of flock(2) exclude the other
/// mount's, and end with the file, the process and the mount.
#[test]
fn locks_of_two_mounts_exclude_each_other() {
    if !can_mount("locks_of_two_mounts_exclude_each_other") {
        return;
    }
    let mounted = Mounted::with(&["--shared"]);
    let other = other(&mounted);
    let (pool, second) = (mounted.text("pool.hf"), mounted.text("other"));
    mounted.holdfast(&["mount", &pool, &second, "--shared"]);
    write(&mounted.path("file"), b"data");
    let (first, again) = (opened(&mounted.root(), "file"), opened(&other.0, "file"));

    flock(&first, FlockOperation::LockShared).expect("nobody has it");
    flock(&again, FlockOperation::NonBlockingLockShared).expect("two may share");
    let refused = flock(&again, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(Errno::WOULDBLOCK));
    flock(&first, FlockOperation::Unlock).expect("it is ours");
    flock(&again, FlockOperation::NonBlockingLockExclusive).expect("it is free");

    // Of the other interface, and so no conflict.
    let take = |file: &File, kind, range| lock_bytes(file, libc::F_OFD_SETLK, kind, range);
    take(&first, libc::F_WRLCK, 0..2).expect("nobody has it");
    assert_eq!(errno(take(&again, libc::F_RDLCK, 1..3)), libc::EAGAIN);
    take(&again, libc::F_WRLCK, 2..4).expect("other bytes");
    drop(first);
    soon(|| take(&again, libc::F_WRLCK, 0..4));

    let script = "use Fcntl; open my $f, '+<', $ARGV[0] or die; \
                  my $lock = pack 's s x4 q q i x4', F_WRLCK, 0, 8, 2, 0; \
                  fcntl($f, F_SETLK, $lock) or die $!; print qq(held\\n); close STDOUT; <STDIN>";
    let mut child = Command::new("perl")
        .args(["-e", script])
        .arg(mounted.path("file"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("perl is there");
    let mut output = child.stdout.take().expect("it is piped");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut output, &mut said).expect("it speaks");
    assert_eq!(said, "held\n");
    let process = |range| lock_bytes(&again, libc::F_SETLK, libc::F_WRLCK, range);
    assert_eq!(errno(process(8..9)), libc::EAGAIN);
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    soon(|| process(8..9));
    // Two references on one open file: a close of one ends what the process has on the file, and no
    // lock of an open file.
    let third = opened(&mounted.root(), "file");
    let copy = again.try_clone().expect("there are descriptors");
    process(20..30).expect("nobody has it");
    assert_eq!(errno(take(&third, libc::F_RDLCK, 20..21)), libc::EAGAIN);
    drop(copy);
    take(&third, libc::F_RDLCK, 20..21).expect("the process has closed the file");
    assert_eq!(errno(take(&third, libc::F_RDLCK, 0..1)), libc::EAGAIN);

    drop((again, third));
    let held = opened(&other.0, "file");
    soon(|| take(&held, libc::F_WRLCK, 0..4));
    mounted.holdfast(&["unmount", "--force", &second]);
    let left = opened(&mounted.root(), "file");
    soon(|| take(&left, libc::F_WRLCK, 0..4));
    drop((held, left));
    mounted.finish();
}

/// Goal: who waits for a lock of the other mount gets it when it is released, and a signal ends the
/// waiting.
#[test]
fn a_lock_of_another_mount_is_waited_for() {
    if !can_mount("a_lock_of_another_mount_is_waited_for") {
        return;
    }
    let mounted = Mounted::with(&["--shared"]);
    let other = other(&mounted);
    let (pool, second) = (mounted.text("pool.hf"), mounted.text("other"));
    mounted.holdfast(&["mount", &pool, &second, "--shared"]);
    write(&mounted.path("file"), b"data");
    let (first, again) = (opened(&mounted.root(), "file"), opened(&other.0, "file"));
    lock_bytes(&first, libc::F_OFD_SETLK, libc::F_WRLCK, 0..4).expect("nobody has it");

    // By the default action of SIGALRM the process ends.
    let script = "use Fcntl; open my $f, '+<', $ARGV[0] or die; alarm 1; \
                  my $lock = pack 's s x4 q q i x4', F_WRLCK, 0, 0, 4, 0; \
                  fcntl($f, F_SETLKW, $lock); exit 3";
    let since = Instant::now();
    let ended = Command::new("perl").args(["-e", script]).arg(other.0.join("file")).status();
    assert_eq!(ended.expect("perl is there").signal(), Some(libc::SIGALRM));
    assert!(since.elapsed() < SOON, "a signal does not end the waiting");

    let waiter = thread::spawn(move || {
        lock_bytes(&again, libc::F_OFD_SETLKW, libc::F_WRLCK, 0..4).expect("it is waited for");
    });
    let list = || -> Vec<Value> {
        let listed = mounted.run(&["locks", "list", &pool, "--json"]).stdout;
        let locks = serde_json::Deserializer::from_slice(&listed).into_iter();
        locks.map(|lock| lock.expect("an object")).collect()
    };
    let since = Instant::now();
    let mut listed = list();
    while listed.len() < 2 {
        assert!(since.elapsed() < SOON && !waiter.is_finished(), "it was not waited for");
        listed = list();
    }
    let of = |lock: &Value| {
        let [path, client] = ["path", "client"].map(|key| lock[key].as_str().map(str::to_owned));
        (lock["is_waiting"].as_bool(), path, client, lock["last_byte"].as_u64())
    };
    let told = |is_waiting, mount: String| {
        (Some(is_waiting), Some(format!("{mount}/file")), Some(mount), Some(3))
    };
    let both = [told(true, second.clone()), told(false, mounted.text("mnt"))];
    assert_eq!(listed.iter().map(of).collect::<Vec<_>>(), both, "{listed:?}");
    lock_bytes(&first, libc::F_OFD_SETLK, libc::F_UNLCK, 0..4).expect("it is ours");
    waiter.join().expect("it gets the lock");
    drop(first);
    mounted.holdfast(&["unmount", &second]);
    mounted.finish();
}

/// Goal: a counter that two mounts raise under a lock, through files that stay open, loses no
/// round: who gets the lock reads what its last owner wrote.
#[test]
fn a_counter_under_a_lock_loses_no_round() {
    const ROUNDS: u64 = 3000;
    if !can_mount("a_counter_under_a_lock_loses_no_round") {
        return;
    }
    let mounted = Mounted::with(&["--shared"]);
    let other = other(&mounted);
    let (pool, second) = (mounted.text("pool.hf"), mounted.text("other"));
    mounted.holdfast(&["mount", &pool, &second, "--shared"]);
    write(&mounted.path("counter"), &[0; 8]);
    let count = |file: File| {
        for _ in 0..ROUNDS {
            lock_bytes(&file, libc::F_OFD_SETLKW, libc::F_WRLCK, 0..8).expect("it is waited for");
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0).expect("it is there");
            let next = u64::from_le_bytes(bytes) + 1;
            file.write_all_at(&next.to_le_bytes(), 0).expect("there is room");
            lock_bytes(&file, libc::F_OFD_SETLK, libc::F_UNLCK, 0..8).expect("it is ours");
        }
    };
    let [first, again] = [mounted.root(), other.0.clone()].map(|at| opened(&at, "counter"));
    thread::scope(|scope| {
        scope.spawn(|| count(first));
        scope.spawn(|| count(again));
    });
    let read = fs::read(mounted.path("counter")).expect("it is there");
    assert_eq!(read, (2 * ROUNDS).to_le_bytes());
    mounted.holdfast(&["unmount", &second]);
    mounted.finish();
}

/// Goal: who gets a lock reads what its last owner wrote, also through a mount that only reads: its
/// kernel has the old page, and nothing else makes it ask again at once.
#[test]
fn who_gets_a_lock_reads_what_was_written_under_it() {
    const ROUNDS: u64 = 500;
    if !can_mount("who_gets_a_lock_reads_what_was_written_under_it") {
        return;
    }
    let mounted = Mounted::with(&["--shared"]);
    let other = other(&mounted);
    let (pool, second) = (mounted.text("pool.hf"), mounted.text("other"));
    mounted.holdfast(&["mount", &pool, &second, "--shared"]);
    write(&mounted.path("file"), &[0; 8]);
    let (writer, reader) = (opened(&mounted.root(), "file"), opened(&other.0, "file"));
    for round in 1..=ROUNDS {
        lock_bytes(&writer, libc::F_OFD_SETLK, libc::F_WRLCK, 0..8).expect("nobody has it");
        writer.write_all_at(&round.to_le_bytes(), 0).expect("there is room");
        lock_bytes(&writer, libc::F_OFD_SETLK, libc::F_UNLCK, 0..8).expect("it is ours");
        lock_bytes(&reader, libc::F_OFD_SETLK, libc::F_RDLCK, 0..8).expect("nobody writes");
        let mut bytes = [0; 8];
        reader.read_exact_at(&mut bytes, 0).expect("it is there");
        assert_eq!(u64::from_le_bytes(bytes), round);
        lock_bytes(&reader, libc::F_OFD_SETLK, libc::F_UNLCK, 0..8).expect("it is ours");
    }
    drop((writer, reader));
    mounted.holdfast(&["unmount", &second]);
    mounted.finish();
}

/// Goal: what two programs append to a file that both have open is there; under a lock, each record
/// is whole. (Without one, the kernel may cut a record at a page.)
#[test]
fn appends_through_two_mounts_lose_nothing() {
    const RECORDS: usize = 500;
    if !can_mount("appends_through_two_mounts_lose_nothing") {
        return;
    }
    let mounted = Mounted::with(&["--shared"]);
    let other = other(&mounted);
    let (pool, second) = (mounted.text("pool.hf"), mounted.text("other"));
    mounted.holdfast(&["mount", &pool, &second, "--shared"]);
    write(&mounted.path("log"), b"");
    let record = |from: usize, number: usize| format!("{from} {number} {}\n", "x".repeat(number));
    let append = |from: usize, at: &Path, locks: bool| {
        let mut file = File::options().append(true).open(at.join("log")).expect("it is there");
        for number in 0..RECORDS {
            if locks {
                flock(&file, FlockOperation::LockExclusive).expect("it is waited for");
            }
            file.write_all(record(from, number).as_bytes()).expect("there is room");
            if locks {
                flock(&file, FlockOperation::Unlock).expect("it is ours");
            }
        }
    };
    let both = |locks| {
        thread::scope(|scope| {
            scope.spawn(|| append(0, &mounted.root(), locks));
            scope.spawn(|| append(1, &other.0, locks));
        });
    };
    both(false);
    let bytes: usize =
        (0..2).flat_map(|from| (0..RECORDS).map(move |number| record(from, number).len())).sum();
    let size = fs::metadata(mounted.path("log")).expect("it is there").len();
    assert_eq!(usize::try_from(size), Ok(bytes));
    write(&mounted.path("log"), b"");
    both(true);
    let mut found: Vec<String> = fs::read_to_string(mounted.path("log"))
        .expect("it is text")
        .split_inclusive('\n')
        .map(str::to_owned)
        .collect();
    found.sort_unstable();
    let mut wanted: Vec<String> =
        (0..2).flat_map(|from| (0..RECORDS).map(move |number| record(from, number))).collect();
    wanted.sort_unstable();
    let other = found.iter().zip(&wanted).find(|(found, wanted)| found != wanted);
    assert_eq!(other, None, "{} records", found.len());
    mounted.holdfast(&["unmount", &second]);
    mounted.finish();
}
