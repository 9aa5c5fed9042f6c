//! What people begin with: `holdfast demo`, and a line of /etc/fstab.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::several::Other;
use crate::{HOLDFAST, Mounted, can_mount};

/// How long the demo may take to begin, and to end.
const DEMO_TIME: Duration = Duration::from_secs(60);

/// A demo that runs, until it is dropped.
struct Demo {
    child: Child,
    said: PathBuf,
    _mount: Other,
}

impl Demo {
    fn start(work: &Path) -> Demo {
        let said = work.join("said");
        let file = File::create(&said).expect("it can be written");
        let child = Command::new(HOLDFAST)
            .args(["demo", "--size", "1G", "--directory"])
            .arg(work.join("demo"))
            .env("HOLDFAST_RUN_DIR", work)
            .stdout(file.try_clone().expect("it is open"))
            .stderr(file)
            .spawn()
            .expect("the program can be started");
        let mut demo = Demo { child, said, _mount: Other(work.join("demo/mnt")) };
        demo.wait(|demo| demo.text().contains("End:"));
        demo
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.said).expect("it is there")
    }

    /// Waits until something is so.
    #[allow(clippy::disallowed_methods, reason = "nobody tells when a program has said something")]
    fn wait(&mut self, mut is_so: impl FnMut(&mut Demo) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < DEMO_TIME, "{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it has ended, and well.
    fn ended(&mut self) {
        self.wait(|demo| demo.child.try_wait().expect("it is ours").is_some());
        let status = self.child.wait().expect("it is ours");
        assert!(status.success(), "{}", self.text());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Goal: the demo does what it says: it makes a pool, mounts it, shows a dashboard, and ends by ^C
/// and by `holdfast unmount`; the next one finds what was written.
#[test]
fn the_demo_mounts_serves_and_ends() {
    if !can_mount("the_demo_mounts_serves_and_ends") {
        return;
    }
    let work = std::env::temp_dir().join(format!("holdfast-demo-{}", std::process::id()));
    fs::create_dir_all(&work).expect("the name is new");
    let (file, pool) = (work.join("demo/mnt/file"), work.join("demo/pool.hf"));
    let holdfast = |arguments: &[&str]| {
        let mut command = Command::new(HOLDFAST);
        let output = command.args(arguments).env("HOLDFAST_RUN_DIR", &work).output();
        let output = output.expect("the program can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };

    let mut demo = Demo::start(&work);
    let text = demo.text();
    assert!(text.contains("Making a pool of 1G"), "{text}");
    fs::write(&file, b"kept").expect("it is mounted");
    let (_, rest) = text.split_once("Dashboard: http://").expect("it says where");
    let address = rest.split('/').next().expect("a path follows");
    let mut socket = TcpStream::connect(address).expect("it listens");
    let request = format!("GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("it reads");
    let mut page = String::new();
    socket.read_to_string(&mut page).expect("it answers");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<title>Holdfast"), "{page}");
    let (_, rest) = text.split_once("Its token: cat ").expect("it says where");
    let token = fs::read(rest.lines().next().expect("a line")).expect("it is there");
    assert!(!token.is_empty(), "there is no token");
    kill_process(Pid::from_child(&demo.child), Signal::INT).expect("it runs");
    demo.ended();
    holdfast(&["check", pool.to_str().expect("it is ASCII")]);

    let mut demo = Demo::start(&work);
    assert!(demo.text().contains("Using the pool"), "{}", demo.text());
    assert_eq!(fs::read(&file).expect("it was kept"), b"kept");
    holdfast(&["unmount", work.join("demo/mnt").to_str().expect("it is ASCII")]);
    demo.ended();
    drop(demo);
    fs::remove_dir_all(&work).expect("nothing uses it");
}

/// Calls `mount.holdfast` as mount(8) does.
pub(crate) fn mount_helper(mounted: &Mounted, pool: &str, more: &[&str]) -> Output {
    let helper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/mount.holdfast");
    // It finds the program where the shell does.
    let programs = Path::new(HOLDFAST).parent().expect("it is in a directory").display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    Command::new(helper)
        .args([pool, &mounted.text("mnt")])
        .args(more)
        .env("PATH", path)
        .env("HOLDFAST_RUN_DIR", &mounted.work)
        .output()
        .expect("the helper can be started")
}

/// Goal: the end of the service takes the sockets of no other server away.
#[test]
fn the_unit_keeps_the_run_directory() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/holdfast.service");
    let unit = fs::read_to_string(unit).expect("it is there");
    assert!(unit.lines().any(|line| line == "RuntimeDirectoryPreserve=yes"), "{unit}");
}

/// Returns the options of what is mounted, as the kernel tells them.
pub(crate) fn options_of(mounted: &Mounted) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the kernel tells");
    let directory = mounted.text("mnt");
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(&directory))?;
    line.split(' ').nth(3).map(str::to_owned)
}

/// Goal: a line of /etc/fstab mounts a pool, or a fileset of it, with the options that are for the
/// file system and without those that are for mount(8) and systemd.
#[test]
fn a_line_of_fstab_mounts_a_pool() {
    if !can_mount("a_line_of_fstab_mounts_a_pool") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    let home = format!("{pool}:home");
    mounted.holdfast(&["fileset", "create", &home]);
    mounted.unmount();

    // Nothing is done where mount(8) only pretends, or names a namespace.
    assert!(mount_helper(&mounted, &pool, &["-f", "-o", "rw"]).status.success());
    assert!(!mount_helper(&mounted, &pool, &["-N", "1", "-o", "rw"]).status.success());
    assert_eq!(options_of(&mounted), None);

    let options = "rw,noatime,nodev,nosuid,nofail,_netdev,x-systemd.requires=net,comment=a b";
    let done = mount_helper(&mounted, &home, &["-s", "-o", options]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let told = options_of(&mounted).expect("it is mounted");
    for word in ["rw", "noatime", "nodev", "nosuid"] {
        assert!(told.split(',').any(|it| it == word), "{word}: {told}");
    }
    fs::write(mounted.path("file"), b"of home").expect("it may be written");
    mounted.unmount();

    let done = mount_helper(&mounted, &home, &["-o", "ro,defaults"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(options_of(&mounted).is_some_and(|it| it.split(',').any(|word| word == "ro")));
    assert_eq!(fs::read(mounted.path("file")).expect("it was kept"), b"of home");
    fs::write(mounted.path("other"), b"").expect_err("it is mounted to be read");
    mounted.unmount();

    let done = mount_helper(&mounted, &pool, &["-o", "rw,nonsense"]);
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && told.contains("nonsense"), "{told}");
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: completion gives the names of a mounted pool, and nothing of a closed one. Method: the
/// script for bash, given words that bash splits at `:` and `@`.
#[test]
fn names_of_a_mounted_pool_are_completed() {
    if !can_mount("names_of_a_mounted_pool_are_completed") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, pages) = (mounted.text("pool.hf"), mounted.text("pages"));
    mounted.holdfast(&["generate", &pages]);
    mounted.holdfast(&["fileset", "create", &format!("{pool}:home")]);
    mounted.holdfast(&["snapshot", "create", &format!("{pool}:home@monday")]);
    let completed = |line: &str, part: &str| {
        let script = "source $1/holdfast.bash; COMP_LINE=$2 COMP_POINT=${#2}; \
                      COMP_WORDS=(holdfast fileset list x) COMP_CWORD=3; \
                      _holdfast_names holdfast \"$3\" list; printf '%s\\n' \"${COMPREPLY[@]}\"";
        let directory = Path::new(HOLDFAST).parent().expect("a program is in a directory");
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash", &pages, line, part]).env("PATH", path);
        let output = command.env("HOLDFAST_RUN_DIR", &mounted.work).output().expect("bash");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    for (line, part, names) in [
        (format!("holdfast fileset list {pool}:ho"), "ho", "home"),
        (format!("holdfast snapshot list {pool}:home@m"), "m", "monday"),
        (format!("holdfast fileset list {pool}:nothing"), "nothing", ""),
        (format!("holdfast device fail {pool} "), "", &*pool),
        ("holdfast scrub ".to_owned(), "", &*pool),
    ] {
        let all = completed(&line, part);
        assert!(all == names || all.lines().any(|it| it == names), "{line}: {all}");
    }
    mounted.unmount();
    let line = format!("holdfast fileset list {pool}:ho");
    assert_eq!(completed(&line, "ho"), "", "no pool is opened");
    mounted.mount(&[]);
    mounted.finish();
}
