//! The front behind a kernel. Skipped, loudly, where there is no /dev/fuse.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use engine::api::{Caller, FileKind, FileSystem, NewInode, Timestamp};
use engine::{Pool, PoolCreateOptions};
use front::fuse::mountpoint::{self, Mountpoint};
use front::fuse::{
    EndCause, FuseTransportChoice, MountError, MountOptions, MountedSession, StopSignals,
    UnmountOutcome, mount, run,
};
use runtime::clock::SystemClock;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use storage::device::{MemoryDevice, SharedDevice};

use crate::memory_fs::{DAMAGED, MemoryFs, PANICKING};

/// Names the directory that [`serve_for_another_process`] mounts.
const SERVE: &str = "HOLDFAST_TEST_SERVE";
/// Tells it to serve by /dev/fuse.
const BY_DEV: &str = "HOLDFAST_TEST_BY_DEV";
/// What it says when the mount answers.
const READY: &str = "the mount answers";

/// Makes two tests of each function: one by each transport.
macro_rules! by_each_transport {
    ($($name:ident,)*) => {
        mod by_dev {
            $(#[test] fn $name() { super::$name(super::FuseTransportChoice::Dev); })*
        }
        mod by_uring {
            $(#[test] fn $name() { super::$name(super::FuseTransportChoice::Uring); })*
        }
    };
}

by_each_transport! {
    programs_see_what_they_wrote,
    a_stream_is_read_ahead_by_several_requests,
    open_with_truncation_empties_the_file,
    an_unlinked_file_lives_until_it_is_closed,
    listings_agree_with_stat_and_show_damaged_files,
    attributes_are_kept,
    fsync_and_synchronous_writes_reach_the_file_system,
    a_request_that_takes_long_holds_up_no_other,
    others_are_answered_while_syncs_are_not_over,
    many_who_sync_are_answered_by_few_threads,
    streams_of_several_readers_come_to_their_end,
    a_mount_without_attributes_has_none,
    a_bug_costs_the_request_and_not_the_mount,
    a_clean_unmount_syncs_and_leaves_nothing,
    a_busy_mount_is_detached_and_ends_with_its_last_user,
    a_read_only_mount_refuses_changes,
    a_writeback_cache_keeps_data_and_times,
    pages_that_find_no_room_are_an_error_of_fsync,
    the_ends_of_time_are_kept,
    a_mount_whose_server_was_killed_is_replaced,
    sigterm_unmounts_and_ends_the_server,
}

/// Returns whether mounting can be tried here, and says loudly where it cannot.
pub(crate) fn has_dev_fuse(test: &str) -> bool {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &opened {
        eprintln!("\n*** SKIPPED: {test}: /dev/fuse: {error} ***\n");
    }
    opened.is_ok()
}

fn has_fuse(test: &str, transport: FuseTransportChoice) -> bool {
    if !has_dev_fuse(test) {
        return false;
    }
    if let (FuseTransportChoice::Uring, Some(reason)) = (transport, uring_refusal()) {
        eprintln!("\n*** SKIPPED: {test}: by io_uring: {reason} ***\n");
        return false;
    }
    true
}

/// Returns why io_uring cannot be used here.
fn uring_refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let refusal = REFUSAL.get_or_init(|| {
        let mounted = Mounted::new(FuseTransportChoice::Uring);
        let used = mounted.session.transport();
        (used.name() != "io_uring").then(|| used.reason())
    });
    refusal.as_deref()
}

/// A directory of the test's own. Removed only when nothing is mounted on it.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("holdfast-front-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the name is new");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = mountpoint::detach(&self.0);
        let _ = fs::remove_dir(&self.0);
    }
}

struct Mounted {
    // In this order: the session unmounts before the directory goes.
    session: MountedSession,
    fs: Arc<MemoryFs>,
    directory: Directory,
}

impl Mounted {
    fn new(transport: FuseTransportChoice) -> Mounted {
        Mounted::with(transport, |_| {})
    }

    fn with(transport: FuseTransportChoice, change: impl FnOnce(&mut MountOptions)) -> Mounted {
        let fs = Arc::new(MemoryFs::new());
        let directory = Directory::new();
        let mut options = MountOptions::new("memory,pool.hf");
        options.transport = transport;
        change(&mut options);
        let session =
            mount(fs.clone(), &directory.0, &options, None).expect("there is a /dev/fuse");
        Mounted { session, fs, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.0.join(name)
    }
}

fn programs_see_what_they_wrote(transport: FuseTransportChoice) {
    if !has_fuse("programs_see_what_they_wrote", transport) {
        return;
    }
    let mounted = Mounted::new(transport);
    let path = mounted.path("file");
    let bytes: Vec<u8> = (0..750_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&path, &bytes).expect("write");
    assert!(fs::read(&path).expect("read") == bytes, "not the bytes that were written");

    let mut file = OpenOptions::new().append(true).read(true).open(&path).expect("open");
    file.write_all(b"end").expect("append");
    file.seek(SeekFrom::Start(2_999_999)).expect("seek");
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).expect("read");
    assert_eq!(tail, [&bytes[2_999_999..], b"end"].concat());
    assert_eq!(file.metadata().expect("stat").len(), 3_000_003);

    fs::create_dir(mounted.path("dir")).expect("mkdir");
    fs::rename(&path, mounted.path("dir/moved")).expect("rename");
    fs::hard_link(mounted.path("dir/moved"), mounted.path("second")).expect("link");
    assert_eq!(fs::metadata(mounted.path("second")).expect("stat").nlink(), 2);
    symlink("dir/moved", mounted.path("link")).expect("symlink");
    assert_eq!(fs::metadata(mounted.path("link")).expect("stat").len(), 3_000_003);
    let error = fs::remove_dir(mounted.path("dir")).expect_err("it has a name in it");
    assert_eq!(error.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    fs::remove_dir_all(mounted.path("dir")).expect("rm -r");
    assert_eq!(fs::metadata(mounted.path("second")).expect("stat").nlink(), 1);
}

/// Goal: a stream has more than one request ahead of its reader. Method: the file is not in the
/// kernel's cache; only a mount of root's may read ahead so far.
fn a_stream_is_read_ahead_by_several_requests(transport: FuseTransportChoice) {
    const MIB: usize = 1 << 20;
    const PATIENCE: Duration = Duration::from_secs(10);
    if !has_fuse("a_stream_is_read_ahead_by_several_requests", transport) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("\n*** SKIPPED: a_stream_is_read_ahead_by_several_requests: not root ***\n");
        return;
    }
    let mounted = Mounted::new(transport);
    let new = NewInode::new(FileKind::Regular, 0o644);
    let (fs, caller) = (&mounted.fs, Caller::root());
    let ino = fs.create(&caller, fs.root(), b"stream", new, None).expect("the name is new").ino;
    fs.write(&caller, ino, 0, &vec![7; 16 * MIB]).expect("memory does not fail");
    let mut file = File::open(mounted.path("stream")).expect("open");
    let mut bytes = vec![0; MIB];
    for _ in 0..6 {
        file.read_exact(&mut bytes).expect("read");
    }
    // The kernel has asked by now, but maybe was not answered yet.
    let is_far = || fs.read_end.load(Ordering::SeqCst) > 8 * 1024 * 1024;
    let begun = Instant::now();
    while !is_far() && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert!(is_far(), "after 6 MiB {} bytes were asked for", fs.read_end.load(Ordering::SeqCst));
}

/// Goal: opening with `O_TRUNC` empties the file though OPEN is never sent.
fn open_with_truncation_empties_the_file(transport: FuseTransportChoice) {
    if !has_fuse("open_with_truncation_empties_the_file", transport) {
        return;
    }
    let mounted = Mounted::new(transport);
    let path = mounted.path("file");
    for content in [&b"long content"[..], b"short", b""] {
        // The first open of a mount is the one that learns that OPEN is declined.
        File::create(&path).expect("open").write_all(content).expect("write");
        assert_eq!(fs::read(&path).expect("read"), content);
    }
}

fn an_unlinked_file_lives_until_it_is_closed(transport: FuseTransportChoice) {
    if !has_fuse("an_unlinked_file_lives_until_it_is_closed", transport) {
        return;
    }
    let mounted = Mounted::new(transport);
    let path = mounted.path("file");
    let mut options = OpenOptions::new();
    let file = options.create_new(true).read(true).write(true).open(&path).expect("open");
    fs::remove_file(&path).expect("unlink");
    file.write_all_at(b"still here", 0).expect("write");
    let mut bytes = [0; 10];
    file.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"still here");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
}

fn listings_agree_with_stat_and_show_damaged_files(transport: FuseTransportChoice) {
    if !has_fuse("listings_agree_with_stat_and_show_damaged_files", transport) {
        return;
    }
    let mounted = Mounted::new(transport);
    for number in 0..1000 {
        fs::write(mounted.path(&format!("{number:04}")), b"").expect("create");
    }
    let damaged = str::from_utf8(DAMAGED).expect("ASCII");
    // Behind the kernel's back: it would look the name up first.
    let new = NewInode::new(FileKind::Regular, 0o600);
    mounted
        .fs
        .create(&Caller::root(), mounted.fs.root(), DAMAGED, new, None)
        .expect("the name is new");
    for _ in 0..2 {
        let mut count = 0;
        for entry in fs::read_dir(&mounted.directory.0).expect("readdir") {
            let entry = entry.expect("each entry is readable");
            count += 1;
            if entry.file_name() != damaged {
                let metadata = entry.metadata().expect("stat");
                let inos = (std::os::unix::fs::DirEntryExt::ino(&entry), metadata.ino());
                assert_eq!(inos.0, inos.1, "{entry:?}");
            }
        }
        assert_eq!(count, 1001);
    }
    let error = fs::metadata(mounted.path(damaged)).expect_err("it cannot be looked up");
    assert_eq!(error.raw_os_error(), Some(Errno::UCLEAN.raw_os_error()));
    assert_eq!(fs::metadata(&mounted.directory.0).expect("stat").ino(), 1);
}

fn attributes_are_kept(transport: FuseTransportChoice) {
    if !has_fuse("attributes_are_kept", transport) {
        return;
    }
    let mounted = Mounted::new(transport);
    let path = mounted.path("file");
    let file = File::create(&path).expect("open");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).expect("chmod");
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o4751);
    for time in [UNIX_EPOCH - Duration::from_millis(1200), UNIX_EPOCH + Duration::new(5, 7)] {
        file.set_modified(time).expect("utimens");
        assert_eq!(file.metadata().expect("stat").modified().expect("there is one"), time);
    }
    file.set_len(1 << 20).expect("extend");
    file.set_len(5).expect("truncate");
    assert_eq!(fs::read(&path).expect("read"), [0; 5]);
    let blocks = rustix::fs::statvfs(&mounted.directory.0).expect("statfs");
    assert_eq!(blocks.f_blocks * blocks.f_frsize, 1 << 30);
    assert_eq!(blocks.f_bavail * blocks.f_frsize, 1 << 28);
}

/// Goal: what must be durable asks for it, and exactly once.
fn fsync_and_synchronous_writes_reach_the_file_system(transport: FuseTransportChoice) {
    if !has_fuse("fsync_and_synchronous_writes_reach_the_file_system", transport) {
        return;
    }
    let mounted = Mounted::new(transport);
    let count = || mounted.fs.fsync_count.swap(0, Ordering::SeqCst);
    let file = File::create(mounted.path("file")).expect("open");
    file.sync_all().expect("fsync");
    file.sync_data().expect("fdatasync");
    File::open(&mounted.directory.0).expect("open").sync_all().expect("fsync of a directory");
    assert_eq!(count(), 3);
    let mut synchronous =
        OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(mounted.path("file"));
    synchronous.as_mut().expect("open").write_all(b"durable").expect("write");
    assert_eq!(count(), 1, "the kernel makes one FSYNC of a write with O_SYNC");
}

/// Goal: a client that asks and is answered, again and again, gets a thread for itself, and then a
/// request that takes long holds up nobody else. Method: names that are not there, one after the
/// other, then a sync that does not end; another client asks for a name meanwhile.
fn a_request_that_takes_long_holds_up_no_other(transport: FuseTransportChoice) {
    if !has_fuse("a_request_that_takes_long_holds_up_no_other", transport) {
        return;
    }
    let mounted = Mounted::with(transport, |options| options.poll_time = Duration::from_millis(20));
    let file = File::create(mounted.path("file")).expect("open");
    for round in 0..20 {
        let gate = mounted.fs.gate.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..200 {
                    fs::metadata(mounted.path(&format!("{round}-{number}"))).expect_err("absent");
                }
                file.sync_all().expect("fsync");
            });
            while mounted.fs.fsync_count.load(Ordering::SeqCst) <= round {
                std::thread::yield_now();
            }
            let (tell, told) = std::sync::mpsc::channel();
            let mounted = &mounted;
            scope.spawn(move || {
                fs::metadata(mounted.path(&format!("other-{round}"))).expect_err("absent");
                tell.send(()).expect("the test listens");
            });
            let answered = told.recv_timeout(Duration::from_secs(10));
            drop(gate);
            answered.expect("the other client is answered meanwhile");
        });
    }
}

/// Goal: who syncs keeps no thread of the server. Method: there is one, and several syncs that are
/// not over.
fn others_are_answered_while_syncs_are_not_over(transport: FuseTransportChoice) {
    if !has_fuse("others_are_answered_while_syncs_are_not_over", transport) {
        return;
    }
    let mounted = Mounted::with(transport, |options| options.thread_count = 1);
    let make = |name| File::create(mounted.path(name)).expect("open");
    let files = ["one", "two", "three"].map(make);
    mounted.fs.later.begin();
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| file.sync_all().expect("fsync"));
        }
        while mounted.fs.later.count() < files.len() {
            std::thread::yield_now();
        }
        fs::metadata(mounted.path("absent")).expect_err("absent");
        for _ in &files {
            let (told, done) = mounted.fs.later.take().expect("the server waits for none");
            told(done);
        }
    });
}

/// Goal: whoever keeps the syncs of all lets nobody wait for ever, with as few threads as there can
/// be. Method: several clients that make and sync files of a pool.
fn many_who_sync_are_answered_by_few_threads(transport: FuseTransportChoice) {
    if !has_fuse("many_who_sync_are_answered_by_few_threads", transport) {
        return;
    }
    for threads in [1, 2] {
        let pool = new_pool();
        let directory = Directory::new();
        let mut options = MountOptions::new("memory.hf");
        options.transport = transport;
        options.thread_count = threads;
        let session =
            mount(pool.clone(), &directory.0, &options, None).expect("there is a /dev/fuse");
        std::thread::scope(|scope| {
            for client in 0..6 {
                let directory = &directory.0;
                scope.spawn(move || {
                    for number in 0..50 {
                        let path = directory.join(format!("{client}-{number}"));
                        let mut file = File::create(path).expect("open");
                        file.write_all(&[7; 4096]).expect("write");
                        file.sync_all().expect("fsync");
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&directory.0).expect("open").count(), 300);
        session.unmount().expect("unmount");
        session.wait().expect("the session ends");
        pool.close().expect("memory does not fail");
    }
}

/// Goal: replies that one thread makes and another sends are all sent. Method: several streams, of
/// which the kernel asks for several pieces at a time, and which it forgets each time.
fn streams_of_several_readers_come_to_their_end(transport: FuseTransportChoice) {
    const ROUNDS: usize = 100;
    if !has_fuse("streams_of_several_readers_come_to_their_end", transport) {
        return;
    }
    let mounted = Arc::new(Mounted::new(transport));
    let (tell, told) = std::sync::mpsc::channel();
    for number in 0..3 {
        let (mounted, tell) = (Arc::clone(&mounted), tell.clone());
        std::thread::spawn(move || {
            let path = mounted.path(&format!("{number}"));
            fs::write(&path, vec![7; 6 << 20]).expect("write");
            for _ in 0..ROUNDS {
                let mut file = File::open(&path).expect("open");
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).expect("read");
                assert_eq!(bytes.len(), 6 << 20);
                file.sync_all().expect("fsync");
            }
            drop(mounted);
            tell.send(()).expect("the test listens");
        });
    }
    for _ in 0..3 {
        told.recv_timeout(Duration::from_secs(60)).expect("no reply is lost");
    }
}

/// Goal: `noxattr` refuses attributes that the pool has, as a file system without any does.
fn a_mount_without_attributes_has_none(transport: FuseTransportChoice) {
    if !has_fuse("a_mount_without_attributes_has_none", transport) {
        return;
    }
    let pool = new_pool();
    for (given, refused) in [("rw", None), ("noxattr", Some(Errno::OPNOTSUPP))] {
        let directory = Directory::new();
        let mut options = MountOptions::new("memory.hf");
        options.transport = transport;
        options.apply(given).expect("it is known");
        let session =
            mount(pool.clone(), &directory.0, &options, None).expect("there is a /dev/fuse");
        let path = directory.0.join("file");
        fs::write(&path, b"data").expect("write");
        let flags = rustix::fs::XattrFlags::empty();
        for _ in 0..2 {
            let set = rustix::fs::setxattr(&path, "user.name", b"value", flags);
            assert_eq!(set.err(), refused);
            let mut value = [0; 8];
            let got = rustix::fs::getxattr(&path, "user.name", &mut value[..]);
            assert_eq!((got.err(), &value[..5] == b"value"), (refused, refused.is_none()));
            let listed = rustix::fs::listxattr(&path, &mut [0; 64][..]);
            assert_eq!(listed.is_err(), refused.is_some());
        }
        session.unmount().expect("unmount");
        session.wait().expect("the session ends");
    }
    pool.close().expect("memory does not fail");
}

/// Makes and opens a pool in memory.
pub(crate) fn new_pool() -> Arc<Pool> {
    const POOL_BYTES: u64 = 64 << 20;
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, &SystemClock::new(), &options).expect("a pool fits");
    let pool = Pool::open(device, Arc::new(SystemClock::new()), engine::PoolOpenOptions::default());
    Arc::new(pool.expect("a new pool opens"))
}

fn a_bug_costs_the_request_and_not_the_mount(transport: FuseTransportChoice) {
    if !has_fuse("a_bug_costs_the_request_and_not_the_mount", transport) {
        return;
    }
    let mounted = Mounted::with(transport, |options| options.thread_count = 1);
    let name = str::from_utf8(PANICKING).expect("ASCII");
    fs::write(mounted.path(name), b"data").expect("write");
    fs::write(mounted.path("other"), b"data").expect("write");
    let file = File::open(mounted.path(name)).expect("open");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
    let error = fs::read(mounted.path(name)).expect_err("the file system panics");
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(fs::read(mounted.path("other")).expect("the mount lives"), b"data");
}

fn a_clean_unmount_syncs_and_leaves_nothing(transport: FuseTransportChoice) {
    if !has_fuse("a_clean_unmount_syncs_and_leaves_nothing", transport) {
        return;
    }
    let Mounted { session, fs, directory } = Mounted::new(transport);
    let entry = mountpoint::mounted_on(session.directory()).expect("mountinfo");
    let entry = entry.expect("it is mounted");
    assert_eq!(entry.kind, "fuse.holdfast");
    // The helper of users who are not root splits options at commas.
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(entry.source, if is_root { "memory,pool.hf" } else { "memory_pool.hf" });
    let second = mount(fs.clone(), &directory.0, &MountOptions::new("second"), None);
    assert!(matches!(second, Err(MountError::AlreadyMounted { .. })), "{second:?}");
    assert_eq!(session.unmount().expect("unmount"), UnmountOutcome::Clean);
    session.wait().expect("the session ends");
    assert!(fs.sync_count.load(Ordering::SeqCst) > 0);
    assert_eq!(mountpoint::inspect(&directory.0).expect("stat"), Mountpoint::Free);
}

fn a_busy_mount_is_detached_and_ends_with_its_last_user(transport: FuseTransportChoice) {
    if !has_fuse("a_busy_mount_is_detached_and_ends_with_its_last_user", transport) {
        return;
    }
    let Mounted { session, fs: _, directory } = Mounted::new(transport);
    let mut file = File::create(directory.0.join("file")).expect("open");
    assert_eq!(session.unmount().expect("unmount"), UnmountOutcome::Detached);
    assert_eq!(mountpoint::inspect(&directory.0).expect("stat"), Mountpoint::Free);
    file.write_all(b"goes on").expect("files in use still work");
    assert!(!session.is_ended());
    drop(file);
    session.wait().expect("the session ends");
}

fn a_read_only_mount_refuses_changes(transport: FuseTransportChoice) {
    if !has_fuse("a_read_only_mount_refuses_changes", transport) {
        return;
    }
    let mounted = Mounted::with(transport, |options| options.apply("ro").expect("it is known"));
    let error = File::create(mounted.path("file")).expect_err("it is read-only");
    assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
}

fn a_writeback_cache_keeps_data_and_times(transport: FuseTransportChoice) {
    if !has_fuse("a_writeback_cache_keeps_data_and_times", transport) {
        return;
    }
    let mounted = Mounted::with(transport, |options| options.has_writeback_cache = true);
    let path = mounted.path("file");
    let mut file = File::create(&path).expect("open");
    for _ in 0..100 {
        file.write_all(b"small ").expect("write");
    }
    file.sync_all().expect("fsync");
    assert_eq!(fs::read(&path).expect("read").len(), 600);
}

/// Goal: FU8. Whoever syncs is told of pages that the kernel held and that found no room. Method:
/// room for half of what one WRITE of the cache brings.
fn pages_that_find_no_room_are_an_error_of_fsync(transport: FuseTransportChoice) {
    if !has_fuse("pages_that_find_no_room_are_an_error_of_fsync", transport) {
        return;
    }
    const BYTES: usize = 256 << 10;
    let mounted = Mounted::with(transport, |options| options.has_writeback_cache = true);
    let mut file = File::create(mounted.path("file")).expect("open");
    mounted.fs.size_bytes_max.store(128 << 10, Ordering::SeqCst);
    file.write_all(&[7; BYTES]).expect("the cache takes it");
    let refused = file.sync_all().expect_err("half of it is nowhere");
    assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    mounted.fs.size_bytes_max.store(u64::MAX, Ordering::SeqCst);
    file.seek(SeekFrom::Start(0)).expect("seek");
    file.write_all(&[7; BYTES]).expect("the cache takes it");
    file.sync_all().expect("there is room");
}

/// Goal: every time that the kernel lets through is kept, the ends of its range too.
fn the_ends_of_time_are_kept(transport: FuseTransportChoice) {
    if !has_fuse("the_ends_of_time_are_kept", transport) {
        return;
    }
    let mounted = Mounted::new(transport);
    let path = mounted.path("file");
    fs::write(&path, b"data").expect("write");
    for seconds in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX] {
        let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 999_999_999 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let no_flags = rustix::fs::AtFlags::empty();
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, no_flags).expect("utimensat");
        let metadata = fs::metadata(&path).expect("stat");
        // At the ends of its range the kernel leaves the nanoseconds out.
        let is_end = seconds == i64::MIN || seconds == i64::MAX;
        let nanoseconds = if is_end { 0 } else { 999_999_999 };
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (seconds, nanoseconds.into()));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (seconds, nanoseconds.into()));
        // What the kernel remembers is one thing, what the file system has another.
        let attr = mounted.fs.lookup(&Caller::root(), mounted.fs.root(), b"file").expect("there");
        assert_eq!(attr.mtime, Timestamp { seconds, nanoseconds });
        mounted.fs.forget(attr.ino, 1);
    }
}

/// Not a test: the server that the tests below start as a process of its own.
#[test]
#[ignore = "a helper of other tests"]
fn serve_for_another_process() {
    let Some(directory) = std::env::var_os(SERVE) else { return };
    let signals = StopSignals::listen().expect("signals can be caught");
    let fs = Arc::new(MemoryFs::new());
    let mut options = MountOptions::new("served");
    if std::env::var_os(BY_DEV).is_some() {
        options.transport = FuseTransportChoice::Dev;
    }
    let session = mount(fs, Path::new(&directory), &options, None).expect("mount");
    println!("{READY}");
    let end = run(session, signals).expect("serve");
    assert_eq!(end, EndCause::Signal(libc::SIGTERM));
    // Nobody reads what the harness would say.
    std::process::exit(0);
}

fn serve(directory: &Path, transport: FuseTransportChoice) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    if transport == FuseTransportChoice::Dev {
        command.env(BY_DEV, "");
    }
    let mut child = command
        .args(["--exact", "mounted::serve_for_another_process", "--ignored", "--nocapture"])
        .env(SERVE, directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawn");
    let output = child.stdout.take().expect("it is piped");
    let is_ready =
        BufReader::new(output).lines().map_while(Result::ok).any(|line| line.contains(READY));
    assert!(is_ready, "the server did not start");
    child
}

/// Goal: after `kill -9` the directory can be mounted again at once, under load too.
fn a_mount_whose_server_was_killed_is_replaced(transport: FuseTransportChoice) {
    if !has_fuse("a_mount_whose_server_was_killed_is_replaced", transport) {
        return;
    }
    let directory = Directory::new();
    let mut child = serve(&directory.0, transport);
    let held = File::create(directory.0.join("file")).expect("open");
    // The kernel has the directory in its cache now, and answers stat(2) from it for ever.
    fs::metadata(&directory.0).expect("the server lives");
    child.kill().expect("kill -9");
    child.wait().expect("it is ours");
    // While the last of the server's descriptors wait to be closed, requests are aborted.
    let dying = [Errno::CONNABORTED, Errno::CANCELED].map(Errno::raw_os_error);
    let errors = std::iter::repeat_with(|| {
        let error = held.sync_all().expect_err("the server is dead");
        error.raw_os_error().expect("the kernel's")
    });
    let mut last = errors.take(512).skip_while(|error| dying.contains(error));
    assert_eq!(last.next(), Some(Errno::NOTCONN.raw_os_error()));
    assert_eq!(mountpoint::inspect(&directory.0).expect("stat"), Mountpoint::Dead);

    let fs = Arc::new(MemoryFs::new());
    let session = mount(fs, &directory.0, &MountOptions::new("again"), None).expect("mount");
    assert!(session.has_replaced_dead());
    fs::write(directory.0.join("file"), b"new").expect("the new server answers");
    drop(held);
}

fn sigterm_unmounts_and_ends_the_server(transport: FuseTransportChoice) {
    if !has_fuse("sigterm_unmounts_and_ends_the_server", transport) {
        return;
    }
    let directory = Directory::new();
    let mut child = serve(&directory.0, transport);
    fs::write(directory.0.join("file"), b"data").expect("write");
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it is ours").success());
    assert_eq!(mountpoint::inspect(&directory.0).expect("stat"), Mountpoint::Free);
}
