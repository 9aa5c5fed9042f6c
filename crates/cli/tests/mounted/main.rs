//! What programs get on a mount of a real pool: the kernel, the protocol, the server and the engine
//! together. Skipped, loudly, where there is no /dev/fuse; some of it needs root.
//!
//! Every test has a pool of its own in a temporary directory, and ends with `holdfast check`.

mod acl;
mod asked;
mod attach;
mod attributes;
mod calls;
mod content;
mod create;
mod degraded;
mod device;
mod devices;
mod elsewhere;
mod filesets;
mod found;
mod groups;
mod growth;
mod handles;
mod hung;
mod journal;
mod lists;
mod locks;
mod mount;
mod moving;
mod names;
mod numbers;
mod options;
mod packaged;
mod pools;
mod quota;
mod roles;
mod serve;
mod server;
mod several;
mod shared;
mod shared_locks;
mod space;
mod stripe;
mod transfer;
mod trees;
mod twice;
mod unmount;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use front::fuse::mountpoint;

/// The program under test.
const HOLDFAST: &str = env!("CARGO_BIN_EXE_holdfast");

/// Returns whether mounting can be tried here as root, and says loudly where it cannot.
fn can_mount(test: &str) -> bool {
    let has_fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let is_root = rustix::process::geteuid().is_root();
    if !has_fuse || !is_root {
        eprintln!("\n*** SKIPPED: {test}: needs root and /dev/fuse ***\n");
    }
    has_fuse && is_root
}

/// Tells other threads that it is over, also where something has failed: a scope waits for them.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A pool, mounted.
struct Mounted {
    work: PathBuf,
}

impl Mounted {
    /// Makes a pool and mounts it with more arguments.
    fn with(arguments: &[&str]) -> Mounted {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("holdfast-mounted-{}-{number}", std::process::id());
        let work = fs::canonicalize(std::env::temp_dir()).expect("there is one").join(name);
        fs::create_dir_all(work.join("mnt")).expect("the name is new");
        let mounted = Mounted { work };
        mounted.holdfast(&["create", &mounted.text("pool.hf"), "--size", "256M"]);
        mounted.mount(arguments);
        mounted
    }

    fn new() -> Mounted {
        Mounted::with(&[])
    }

    fn text(&self, name: &str) -> String {
        self.work.join(name).to_str().expect("the path is ASCII").to_owned()
    }

    /// Runs the program, whatever comes of it.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(HOLDFAST);
        command.args(arguments).env("HOLDFAST_RUN_DIR", &self.work);
        // Disks of other tests may be in /dev.
        command.env("HOLDFAST_SCAN", &self.work);
        command.output().expect("the program can be started")
    }

    fn holdfast(&self, arguments: &[&str]) {
        let output = self.run(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {}{stderr}", output.status);
    }

    fn mount(&self, arguments: &[&str]) {
        let (pool, directory) = (self.text("pool.hf"), self.text("mnt"));
        self.holdfast(&[&["mount", &pool, &directory, "--daemon"], arguments].concat());
    }

    fn unmount(&self) {
        self.holdfast(&["unmount", &self.text("mnt")]);
    }

    fn remount(&self, arguments: &[&str]) {
        self.unmount();
        self.mount(arguments);
    }

    /// Returns a path on the mount.
    fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    fn root(&self) -> PathBuf {
        self.work.join("mnt")
    }

    /// The pool is as it must be.
    fn finish(self) {
        self.unmount();
        self.holdfast(&["check", &self.text("pool.hf")]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nothing but what a test that failed has left.
        let _ = mountpoint::detach(&self.root());
        let _ = fs::remove_dir_all(&self.work);
    }
}

/// Waits for the first line that a process says, whose output is piped.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("it says what it does");
    line
}

/// Returns the error number of a call that must fail.
#[track_caller]
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("it is refused").raw_os_error().expect("the kernel says so")
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("it is written");
}
