//! Goal: whatever a pool's file is on, each request ends in time when that stops to answer, and
//! the pool is unmounted. Method: a FUSE file system with one file in memory, which reads no
//! request any more when it is told to. It has no poll(2) and no asynchronous direct I/O: of such
//! a file the kernel believes that it never blocks, and waits for the server in the submission.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use front::fuse::mountpoint;
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::{HOLDFAST, Mounted, can_mount, write};

const FILE_BYTES: usize = 64 << 20;
const WRITE_BYTES_MAX: usize = 128 << 10;

// Requests of linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// The server, ended with it.
struct Hung {
    directory: PathBuf,
    /// Its number with the kernel.
    connection: u32,
    hangs: Arc<AtomicBool>,
    /// Whether a request waits while it hangs.
    is_asked: Arc<AtomicBool>,
}

impl Hung {
    fn mount(directory: PathBuf) -> Hung {
        Hung::mount_for(directory, 3600)
    }

    /// The same, where the kernel remembers what files are for `valid_seconds`.
    fn mount_for(directory: PathBuf, valid_seconds: u64) -> Hung {
        fs::create_dir(&directory).expect("the name is new");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("it is there");
        let fd = device.as_raw_fd();
        let data = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other\0");
        let data = std::ffi::CString::from_vec_with_nul(data.into_bytes()).expect("one at the end");
        rustix::mount::mount("hung", &directory, "fuse", MountFlags::empty(), data.as_c_str())
            .expect("as root");
        let hangs = Arc::new(AtomicBool::new(false));
        let is_asked = Arc::new(AtomicBool::new(false));
        std::thread::spawn({
            let (hangs, is_asked) = (Arc::clone(&hangs), Arc::clone(&is_asked));
            move || serve(device, (&hangs, &is_asked), valid_seconds)
        });
        let device = fs::metadata(&directory).expect("it answers").dev();
        Hung { directory, connection: rustix::fs::minor(device), hangs, is_asked }
    }

    fn pool(&self) -> String {
        self.directory.join("pool.hf").to_str().expect("the path is ASCII").to_owned()
    }

    fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::Relaxed);
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Whoever still waits for it gets an error, and its thread ends.
        let abort = format!("/sys/fs/fuse/connections/{}/abort", self.connection);
        let _ = fs::write(abort, "1");
        let _ = mountpoint::detach(&self.directory);
        self.hang(false);
    }
}

/// Answers until the file system is gone.
fn serve(mut device: File, (hangs, is_asked): (&AtomicBool, &AtomicBool), valid_seconds: u64) {
    let mut content = vec![0; FILE_BYTES];
    let mut request = vec![0; WRITE_BYTES_MAX + (64 << 10)];
    loop {
        // What has begun to be read when it hangs is not answered before it hangs no more.
        let length = match device.read(&mut request) {
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => return,
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => continue,
            Err(error) => panic!("{error}"),
        };
        while hangs.load(Ordering::Relaxed) {
            is_asked.store(true, Ordering::Relaxed);
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let Some(answer) = answer(&request[..length], &mut content, valid_seconds) else {
            continue;
        };
        let unique = &request[8..16];
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).expect("it is short");
        let bytes = [&length.to_le_bytes(), &error.to_le_bytes()[..], unique, &body].concat();
        // An interrupted request is asked for no more.
        let _ = device.write(&bytes);
    }
}

fn number<const N: usize>(request: &[u8], at: usize) -> [u8; N] {
    *request[at..].first_chunk().expect("the kernel sends it whole")
}

/// Returns what a request is answered with; `None`: it is not.
fn answer(
    request: &[u8],
    content: &mut [u8],
    valid_seconds: u64,
) -> Option<Result<Vec<u8>, Errno>> {
    let opcode = u32::from_le_bytes(number(request, 4));
    let node = u64::from_le_bytes(number(request, 16));
    let body = &request[40..];
    let range = || {
        let offset = usize::try_from(u64::from_le_bytes(number(body, 8))).expect("64 bits");
        let length = usize::try_from(u32::from_le_bytes(number(body, 16))).expect("64 bits");
        offset.min(FILE_BYTES)..(offset + length).min(FILE_BYTES)
    };
    Some(match opcode {
        FORGET | BATCH_FORGET | INTERRUPT => return None,
        INIT => Ok(init()),
        LOOKUP if body == b"pool.hf\0" => {
            let valid = valid_seconds;
            let head = [2_u64, 0, valid, valid, 0].into_iter().flat_map(u64::to_le_bytes);
            Ok(head.chain(attributes(2)).collect())
        }
        LOOKUP => Err(Errno::NOENT),
        GETATTR => {
            let valid = [valid_seconds, 0].into_iter().flat_map(u64::to_le_bytes);
            Ok(valid.chain(attributes(node)).collect())
        }
        OPEN => Ok(vec![0; 16]),
        READ => Ok(content[range()].to_vec()),
        WRITE => {
            let range = range();
            let length = u32::try_from(range.len()).expect("it has 32 bits");
            content[range].copy_from_slice(&body[40..]);
            Ok([length.to_le_bytes(), [0; 4]].concat())
        }
        STATFS => Ok(vec![0; 80]),
        RELEASE | FSYNC | FLUSH => Ok(Vec::new()),
        _ => Err(Errno::NOSYS),
    })
}

/// Version 7.31; writes of more than a page, and nothing else.
fn init() -> Vec<u8> {
    const BIG_WRITES: u32 = 1 << 5;
    let write_bytes = u32::try_from(WRITE_BYTES_MAX).expect("it has 32 bits");
    let words = [7, 31, 0, BIG_WRITES, 0, write_bytes, 1];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.resize(64, 0);
    bytes
}

fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == 1 { (0o040_755, 0) } else { (0o100_600, FILE_BYTES) };
    let size = u64::try_from(size).expect("64 bits");
    let longs = [node, size, size / 512, 0, 0, 0].into_iter().flat_map(u64::to_le_bytes);
    let words: [u32; 10] = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    longs.chain(words.into_iter().flat_map(u32::to_le_bytes)).collect()
}

/// Runs a program, and says how long it took.
fn timed(command: &mut Command) -> Duration {
    let asked = Instant::now();
    let mut child = command.spawn().expect("it can be started");
    while child.try_wait().expect("it is ours").is_none() {
        if asked.elapsed() > Duration::from_secs(60) {
            // Not to be found by who comes next. Where it hangs in the kernel it stays.
            let _ = child.kill();
            panic!("{command:?} hangs");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    asked.elapsed()
}

#[test]
fn a_file_system_that_stops_to_answer_holds_up_nobody() {
    if !can_mount("a_file_system_that_stops_to_answer_holds_up_nobody") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let hung = Hung::mount(mounted.work.join("hung"));
    let (pool, directory) = (hung.pool(), mounted.text("mnt"));
    mounted.holdfast(&["create", &pool, "--force"]);
    let mount = ["mount", &pool, &directory, "--daemon", "--device-deadline", "1s"];
    mounted.holdfast(&mount);
    for number in 0..100 {
        write(&mounted.path(&format!("file-{number}")), &[7; 20_000]);
    }
    File::open(mounted.root()).expect("open").sync_all().expect("all is well");
    mounted.unmount();
    mounted.holdfast(&mount);
    // The server of the pool has these in memory.
    fs::metadata(mounted.path("file-1")).expect("it is there");

    hung.hang(true);
    let bound = Duration::from_secs(15);
    let name = |name: &str| mounted.text(&format!("mnt/{name}"));
    let mut commands = [
        &["ls", "-l", &directory][..],
        &["cat", &name("file-50")],
        &["dd", "if=/dev/zero", &format!("of={}", name("new")), "bs=4k", "count=1", "conv=fsync"],
        &["stat", &name("file-99")],
        &[HOLDFAST, "status", &directory],
        &[HOLDFAST, "unmount", "--lazy", &directory],
    ]
    .map(|words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("HOLDFAST_RUN_DIR", &mounted.work);
        command
    });
    for command in &mut commands {
        let took = timed(command);
        eprintln!("{took:?} {:?}", command.get_program());
        assert!(took < bound, "{command:?} took {took:?}");
    }
    hung.hang(false);
    // What was not answered is over, and the lock with it.
    mounted.holdfast(&mount);
    assert_eq!(fs::read(mounted.path("file-50")).expect("read"), [7; 20_000]);
    mounted.unmount();
    mounted.holdfast(&["check", &pool]);
    drop(hung);
}

/// Goal: a device that was left behind a moment ago, and has not answered all that it was asked for
/// before, is brought back as soon as it has; one that does not answer is refused in time, and in
/// words. Method: one of a mirror is on a file system that answers again while the command waits.
#[test]
fn a_device_that_answers_late_is_brought_back() {
    if !can_mount("a_device_that_answers_late_is_brought_back") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let hung = Hung::mount(mounted.work.join("hung"));
    let (late, directory) = (hung.pool(), mounted.text("mnt"));
    let other = mounted.text("other.hf");
    let group = format!("mirror:{other},{late}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M", "--force"]);
    mounted.holdfast(&["mount", &other, &directory, "--daemon", "--device-deadline", "1s"]);
    write(&mounted.path("before"), &[7; 20_000]);
    hung.hang(true);
    // It has a deadline, and then the one that answers goes on alone.
    write(&mounted.path("meanwhile"), &[8; 20_000]);
    File::open(mounted.path("meanwhile")).expect("open").sync_all().expect("one is left");
    let online = ["device", "online", &directory, &late];
    let asked = Instant::now();
    let refusal = mounted.run(&online);
    let words = String::from_utf8_lossy(&refusal.stderr).into_owned();
    assert!(!refusal.status.success() && words.contains("seconds were waited for"), "{words}");
    assert!((4..15).contains(&asked.elapsed().as_secs()), "{:?}", asked.elapsed());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::park_timeout(Duration::from_secs(2));
            hung.hang(false);
        });
        mounted.holdfast(&[&online[..], &["--wait"]].concat());
    });
    let list = mounted.run(&["device", "list", &directory]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert_eq!(list.matches("online").count(), 2, "{list}");
    mounted.unmount();
    drop(hung);
}

/// Goal: what was asked of a device that had a slot is not done to another that has come into it
/// since. Method: the new device is on a file system that does not answer while it is opened, and
/// another takes the place of the old one meanwhile.
#[test]
fn a_device_that_came_meanwhile_is_not_replaced() {
    if !can_mount("a_device_that_came_meanwhile_is_not_replaced") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let hung = Hung::mount(mounted.work.join("hung"));
    let [first, old, other] = ["m0", "m1", "other"].map(|name| mounted.text(name));
    let (late, directory) = (hung.pool(), mounted.text("mnt"));
    let group = format!("mirror:{first},{old}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    write(&mounted.path("file"), &[7; 20_000]);
    // The kernel knows what it is: to open it is what hangs.
    fs::metadata(&late).expect("it answers");
    hung.hang(true);
    let refused = std::thread::scope(|scope| {
        let replace = ["device", "replace", &directory, &old, &late, "--force"];
        let running = scope.spawn({
            let mounted = &mounted;
            move || mounted.run(&replace)
        });
        let asked = Instant::now();
        while !hung.is_asked.load(Ordering::Relaxed) {
            assert!(asked.elapsed() < Duration::from_secs(30), "nobody opens it");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        mounted.holdfast(&["device", "replace", &directory, &old, &other, "--wait"]);
        hung.hang(false);
        running.join().expect("it ends")
    });
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("another device has come"), "{words}");
    assert!(words.contains(&late), "{words}");
    let list = mounted.run(&["device", "list", &directory]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains(&other) && !list.contains(&late), "{list}");
    mounted.unmount();
    mounted.holdfast(&["check", &other]);
    drop(hung);
}

/// Goal: a loop device that shows a file of a file system that does not answer keeps nobody from
/// using another file. Method: its attributes are known to nobody any more when it hangs.
#[test]
fn a_loop_device_that_does_not_answer_is_not_asked() {
    if !can_mount("a_loop_device_that_does_not_answer_is_not_asked") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let hung = Hung::mount_for(mounted.work.join("hung"), 0);
    let shown = Command::new("losetup").args(["-r", "-f", "--show", &hung.pool()]).output();
    let Some(shown) = shown.ok().filter(|shown| shown.status.success()) else {
        eprintln!("\n*** SKIPPED: a loop device: losetup does not work here ***\n");
        return;
    };
    let shown = String::from_utf8_lossy(&shown.stdout).trim().to_owned();
    let other = mounted.text("other.hf");
    hung.hang(true);
    let mut command = Command::new(HOLDFAST);
    command.args(["create", &other, "--size", "64M"]).env("HOLDFAST_RUN_DIR", &mounted.work);
    let took = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let first = timed(&mut command);
        // It is there now, and looked at.
        first.max(timed(command.arg("--force")))
    }));
    hung.hang(false);
    let _ = Command::new("losetup").args(["-d", &shown]).status();
    let took = took.expect("it has an end");
    assert!(took < Duration::from_secs(15), "{took:?}");
}
