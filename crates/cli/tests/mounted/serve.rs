//! `holdfast serve`: the program serves a pool by NFS, and closes it when it is told to end.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use super::{HOLDFAST, first_line};

/// A NULL call of NFSv3 with its record mark, and the answer to it.
const NULL_CALL: [u8; 44] = [
    0x80, 0, 0, 40, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0x86, 0xa3, 0, 0, 0, 3, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];
const NULL_ANSWER: [u8; 28] =
    [0x80, 0, 0, 24, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn holdfast(arguments: &[&str]) -> std::process::Output {
    Command::new(HOLDFAST).args(arguments).output().expect("the program can be started")
}

#[test]
fn a_served_pool_answers_and_is_clean_after_the_signal() {
    let name = format!("holdfast-serve-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    fs::create_dir_all(&work).expect("the name is new");
    let pool = work.join("pool.hf").to_str().expect("it is ASCII").to_owned();
    assert!(holdfast(&["create", &pool, "--size", "256M"]).status.success());
    let mut child = Command::new(HOLDFAST)
        .args(["--json", "serve", &pool, "--nfs", "127.0.0.1:0", "--export", "/a:rw"])
        .args(["--state", &work.join("state").display().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program can be started");
    let line = first_line(&mut child);
    let (_, rest) = line.split_once("\"nfs\":\"").expect("it says where");
    let address = rest.split('"').next().expect("it is quoted");
    assert!(line.contains(":/a DIRECTORY"), "{line}");
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.write_all(&NULL_CALL).expect("it reads");
    let mut answer = [0; NULL_ANSWER.len()];
    socket.read_exact(&mut answer).expect("it answers");
    assert_eq!(answer, NULL_ANSWER);
    // The port and the pool are taken.
    for option in ["--nfs", "--listen", "--portmap"] {
        let more = if option == "--nfs" { &[][..] } else { &["--nfs", "127.0.0.1:0"] };
        let second = holdfast(&[&["serve", &pool, option, address], more].concat());
        let told = String::from_utf8_lossy(&second.stderr).into_owned();
        let words = format!("{option} {address}: another program listens at this port");
        assert!(!second.status.success() && told.contains(&words), "{told}");
        assert!(told.contains("give another port"), "{told}");
    }
    // An address of documentation is nobody's.
    let second = holdfast(&["serve", &pool, "--nfs", "192.0.2.1:0"]);
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && told.contains("has no such address"), "{told}");
    let second = holdfast(&["serve", &pool, "--nfs", "127.0.0.1:0"]);
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && told.contains("in use"), "{told}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    assert!(holdfast(&["check", &pool]).status.success());
    fs::remove_dir_all(&work).expect("nothing uses it");
}

/// A program that serves a pool, until it is dropped.
struct Serving {
    child: std::process::Child,
    /// What it said when it served.
    line: String,
}

impl Serving {
    fn start(arguments: &[&str]) -> Serving {
        Serving::start_for(arguments, "")
    }

    /// Starts it for a service manager that listens there.
    fn start_for(arguments: &[&str], manager: &str) -> Serving {
        let mut child = Command::new(HOLDFAST)
            .args(["--json", "serve"])
            .args(arguments)
            .env("NOTIFY_SOCKET", manager)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let line = first_line(&mut child);
        Serving { child, line }
    }

    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn told(arguments: &[&str]) -> String {
    let output = holdfast(arguments);
    let (out, err) = (output.stdout, output.stderr);
    format!("{}{}", String::from_utf8_lossy(&out), String::from_utf8_lossy(&err))
}

/// Returns the words of a table, with one blank between them.
fn words(table: &str) -> String {
    table.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Goal: a served pool is asked as a mounted one, and is administered while it is served. Method:
/// every command of filesets, snapshots, jobs and exports, and the server started again.
#[test]
fn a_served_pool_is_asked_and_its_exports_are_kept() {
    let name = format!("holdfast-exports-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    fs::create_dir_all(&work).expect("the name is new");
    let pool = work.join("pool.hf").to_str().expect("it is ASCII").to_owned();
    let state = work.join("state").to_str().expect("it is ASCII").to_owned();
    assert!(holdfast(&["create", &pool, "--size", "256M"]).status.success());
    let alone = told(&["export", "list", &pool]);
    assert!(alone.contains("start `holdfast serve"), "{alone}");
    let start = || Serving::start(&[&pool, "--nfs", "127.0.0.1:0", "--state", &state]);
    let serving = start();
    assert!(serving.line.contains(":/ DIRECTORY"), "{}", serving.line);
    let of = |name: &str| format!("{pool}:{name}");
    let does = |arguments: &[&str]| {
        let output = holdfast(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", told(arguments));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    does(&["fileset", "create", &of("a")]);
    does(&["snapshot", "create", &of("a@monday")]);
    does(&["job", "list", &pool]);
    let networks = "10.0.0.0/8,127.0.0.0/8";
    let added = does(&["export", "add", &of("a"), "/a", "--to", networks, "--rw"]);
    assert!(added.contains("mount -t nfs") && added.contains(":/a DIRECTORY"), "{added}");
    let list = does(&["export", "list", &pool]);
    assert!(words(&list).contains("/a a rw 10.0.0.0/8,127.0.0.0/8 root mount -t nfs"), "{list}");
    // What was exported as nothing was said is kept with the first that is added.
    assert!(words(&list).contains("/ root rw this machine") && !list.contains("as nothing else"));
    let status = does(&["status", &pool]);
    assert!(status.contains("by NFS at 127.0.0.1:") && status.contains("2 exports"), "{status}");
    assert!(does(&["status"]).contains(&pool));
    // Who asks about a directory is not told of a server that has none.
    let elsewhere = told(&["status", work.to_str().expect("it is ASCII")]);
    assert!(elsewhere.contains("not mounted"), "{elsewhere}");
    does(&["snapshot", "delete", &of("a@monday")]);
    let refused = told(&["fileset", "delete", &of("a")]);
    assert!(refused.contains("`holdfast export remove "), "{refused}");
    for (arguments, words) in [
        (vec!["export", "add", &of("none"), "/none"], "none"),
        (vec!["export", "add", &of("a"), "a"], "path from /"),
        (vec!["export", "add", &of("a"), "/a"], "already"),
        (vec!["export", "remove", &pool, "/none"], "export list"),
        (vec!["export", "add", &of("a@monday"), "/m"], "snapshot"),
    ] {
        let refused = told(&arguments);
        assert!(refused.contains(words), "{arguments:?}: {refused}");
    }
    serving.end();
    let serving = start();
    let list = does(&["export", "list", &pool]);
    let rows = words(&list);
    assert!(rows.contains("/a a rw") && rows.contains("/ root rw"), "{list}");
    for name in ["/", "/a"] {
        does(&["export", "remove", &pool, name]);
    }
    assert!(!does(&["export", "list", &pool]).contains("/a"));
    serving.end();
    let serving = start();
    assert!(serving.line.contains("\"exports\":[]"), "{}", serving.line);
    serving.end();
    assert!(holdfast(&["check", &pool]).status.success());
    fs::remove_dir_all(&work).expect("nothing uses it");
}

/// Goal: what `holdfast.toml` says is served, of two pools, and what it says later, by a signal and
/// by a command; a broken one changes nothing, and is told with its line.
#[test]
fn a_configuration_is_applied_and_reloaded() {
    let name = format!("holdfast-config-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    fs::create_dir_all(&work).expect("the name is new");
    let (a, b, config) = (work.join("a.hf"), work.join("b.hf"), work.join("holdfast.toml"));
    let text = |path: &std::path::Path| path.to_str().expect("it is ASCII").to_owned();
    let (a, b, file) = (text(&a), text(&b), text(&config));
    for pool in [&a, &b] {
        assert!(holdfast(&["create", pool, "--size", "64M"]).status.success());
    }
    let head = "nfs = \"127.0.0.1:0\"\nstate = \"state\"\n[http]\nlisten = \"127.0.0.1:0\"\n\
                [[pool]]\npath = \"a.hf\"\n[[pool]]\npath = \"b.hf\"\n";
    let export =
        |pool: &str, name: &str| format!("[[export]]\npool = \"{pool}\"\nname = \"{name}\"\n");
    let write = |text: &str| fs::write(&config, text).expect("it can be written");
    write(&format!("{head}[[exprot]]\n"));
    let refused = told(&["serve", "--config", &file, "--check"]);
    assert!(refused.contains("holdfast.toml:9:3: unknown field `exprot`"), "{refused}");
    write(&(head.to_owned() + &export("a.hf", "/a") + &export("b.hf", "/b")));
    let checked = told(&["serve", "--config", &file, "--check"]);
    assert!(checked.contains("2 pools, 2 exports"), "{checked}");
    let serving = Serving::start(&["--config", &file]);
    assert!(serving.line.contains("\"exports\":[\"/a\",\"/b\"]"), "{}", serving.line);
    let list = |pool: &str| told(&["export", "list", pool]);
    assert!(words(&list(&b)).contains("/b root ro") && !list(&b).contains("/a  "), "{}", list(&b));
    let refused = told(&["export", "remove", &a, "/a"]);
    assert!(refused.contains("holdfast.toml: remove it there"), "{refused}");

    write(&(head.to_owned() + &export("a.hf", "/other")));
    assert!(holdfast(&["reload", &a]).status.success());
    assert!(list(&a).contains("/other") && !list(&a).contains("/a  "), "{}", list(&a));
    assert!(!list(&b).contains("/b"), "{}", list(&b));
    for (broken, words) in [
        (head.to_owned() + "[[export]]\nname = 7\n", "holdfast.toml:10:8: "),
        (head.replace("127.0.0.1:0", "127.0.0.1:1"), "which needs the server to be started again"),
        (
            head.to_owned() + &export("a.hf", "/x") + "dir = \"/none\"\n",
            "/none: no directory to export",
        ),
    ] {
        write(&broken);
        let refused = told(&["reload", &a]);
        assert!(refused.contains(words) && refused.contains("stays"), "{words}: {refused}");
        assert!(list(&a).contains("/other") && !list(&a).contains("/x  "), "{}", list(&a));
    }
    write(&(head.to_owned() + &export("b.hf", "/signalled")));
    let pid = rustix::process::Pid::from_child(&serving.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("it runs");
    let begun = std::time::Instant::now();
    while !list(&b).contains("/signalled") {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{}", list(&b));
    }
    let (_, rest) = serving.line.split_once("\"http\":\"").expect("it says where");
    let address = rest.split('"').next().expect("it is quoted").to_owned();
    let mut socket = TcpStream::connect(&address).expect("it listens");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"ok\":true"), "{answer}");
    serving.end();
    for pool in [&a, &b] {
        assert!(holdfast(&["check", pool]).status.success());
    }
    fs::remove_dir_all(&work).expect("nothing uses it");
}

/// Goal: snapshots are taken by schedule, also after a new start; who started the server is told
/// when it serves and when it ends; and what clients do is shown.
#[test]
fn a_server_keeps_schedules_and_tells_its_manager() {
    let name = format!("holdfast-schedule-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    fs::create_dir_all(&work).expect("the name is new");
    let text = |path: std::path::PathBuf| path.to_str().expect("it is ASCII").to_owned();
    let (pool, state) = (text(work.join("pool.hf")), text(work.join("state")));
    let manager = text(work.join("notify"));
    let told_manager = std::os::unix::net::UnixDatagram::bind(&manager).expect("it is free");
    let patience = Some(std::time::Duration::from_secs(30));
    told_manager.set_read_timeout(patience).expect("it is no zero");
    let hears = |words: &str| {
        let mut bytes = [0; 64];
        let count = told_manager.recv(&mut bytes).expect("the manager is told");
        assert_eq!(String::from_utf8_lossy(&bytes[..count]), words);
    };
    assert!(holdfast(&["create", &pool, "--size", "256M"]).status.success());
    let arguments = [&pool, "--nfs", "127.0.0.1:0", "--state", &state];
    let serving = Serving::start_for(&arguments, &manager);
    hears("READY=1");
    let of = |name: &str| format!("{pool}:{name}");
    assert!(holdfast(&["fileset", "create", &of("a")]).status.success());
    let set = told(&["schedule", "set", &of("a"), "hourly=24,daily=7"]);
    assert!(set.contains("keeps hourly=24,daily=7"), "{set}");
    for (arguments, words) in [
        (vec!["schedule", "set", &of("none"), "daily=7"], "no fileset none"),
        (vec!["schedule", "set", &pool, "daily=7"], "name a fileset"),
        (vec!["schedule", "set", &of("a"), "yearly=7"], "hourly=24,daily=7"),
    ] {
        let refused = told(&arguments);
        assert!(refused.contains(words), "{arguments:?}: {refused}");
    }
    let snapshots = || told(&["snapshot", "list", &of("a")]);
    let begun = std::time::Instant::now();
    while !(snapshots().contains("a@hourly-") && snapshots().contains("a@daily-")) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{}", snapshots());
    }
    let top = told(&["--json", "top", &pool, "--every", "100ms", "--times", "1"]);
    assert!(top.contains("\"operations\":[]") && top.contains("\"clients\":[]"), "{top}");
    serving.end();
    hears("STOPPING=1");
    let alone = told(&["schedule", "list", &pool]);
    assert!(alone.contains("start `holdfast serve"), "{alone}");
    let serving = Serving::start(&arguments);
    let list = told(&["schedule", "list", &pool]);
    assert!(list.contains("a        hourly=24,daily=7"), "{list}");
    assert!(told(&["schedule", "set", &of("a"), "none"]).contains("keeps none"));
    assert!(!told(&["schedule", "list", &pool]).contains("hourly"));
    assert!(snapshots().contains("a@hourly-"), "what was taken stays");
    serving.end();
    assert!(holdfast(&["check", &pool]).status.success());
    fs::remove_dir_all(&work).expect("nothing uses it");
}

/// Goal: what a mount asks is counted by operation, in `top`, by HTTP and for Prometheus, and stays
/// counted when the mount has ended.
#[test]
fn what_mounts_ask_is_counted_beside_nfs() {
    if !crate::can_mount("what_mounts_ask_is_counted_beside_nfs") {
        return;
    }
    let name = format!("holdfast-counted-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    let mnt = work.join("mnt");
    fs::create_dir_all(&mnt).expect("the name is new");
    let text = |path: std::path::PathBuf| path.to_str().expect("it is ASCII").to_owned();
    let (pool, state, mount) = (text(work.join("pool.hf")), text(work.join("state")), text(mnt));
    assert!(holdfast(&["create", &pool, "--size", "64M"]).status.success());
    let serving = Serving::start(&[&pool, "--listen", "127.0.0.1:0", "--state", &state]);
    assert!(holdfast(&["mount", &pool, &mount]).status.success());
    let _unmounted = crate::several::Other(mount.clone().into());
    let (_, rest) = serving.line.split_once("\"http\":\"").expect("it says where");
    let address = rest.split('"').next().expect("it is quoted").to_owned();
    let metrics = || {
        let mut socket = TcpStream::connect(&address).expect("it listens");
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("it answers");
        let start =
            "holdfast_operation_duration_seconds_count{front=\"fuse\",operation=\"MKDIR\"} ";
        let line = answer.lines().find_map(|line| line.strip_prefix(start));
        line.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    for number in 0..5 {
        fs::create_dir(format!("{mount}/{number}")).expect("there is room");
    }
    assert_eq!(metrics(), 5);
    let maker = {
        let mount = mount.clone();
        std::thread::spawn(move || {
            for number in 5..2000 {
                fs::create_dir(format!("{mount}/{number}")).expect("there is room");
                std::thread::park_timeout(std::time::Duration::from_micros(500));
            }
        })
    };
    let top = told(&["--json", "top", &pool, "--every", "300ms", "--times", "1"]);
    assert!(top.contains("\"front\":\"fuse\",\"operation\":\"MKDIR\""), "{top}");
    assert!(top.contains(&format!("\"path\":\"{mount}\",\"place\":")), "{top}");
    assert!(top.contains(&format!("\"address\":\"{mount}\"")), "{top}");
    maker.join().expect("it makes them");
    assert!(holdfast(&["unmount", &mount]).status.success());
    let begun = std::time::Instant::now();
    while metrics() != 2000 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{}", metrics());
    }
    serving.end();
    assert!(holdfast(&["check", &pool]).status.success());
    fs::remove_dir_all(&work).expect("nothing uses it");
}

/// Goal: a server keeps what its configuration says of snapshots and scrubs, and what commands say
/// beside that; a scrub by hand is known to it, and to the next.
#[test]
fn schedules_are_of_the_configuration_and_of_commands() {
    let name = format!("holdfast-schedules-said-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    fs::create_dir_all(&work).expect("the name is new");
    let text = |name: &str| work.join(name).to_str().expect("it is ASCII").to_owned();
    let (pool, other, config) = (text("d0.hf"), text("d1.hf"), text("holdfast.toml"));
    let group = format!("mirror:{pool},{other}");
    assert!(holdfast(&["create", "--group", &group, "--size", "128M"]).status.success());
    let head = "nfs = \"127.0.0.1:0\"\nstate = \"state\"\n[[pool]]\npath = \"d0.hf\"\n";
    let write = |more: &str| fs::write(&config, format!("{head}{more}")).expect("there is room");
    write("[[schedule]]\nfileset = \"a\"\nkeep = \"hourly=2\"\n");
    let checked = told(&["serve", "--config", &config, "--check"]);
    assert!(checked.contains("there is no fileset a in"), "{checked}");
    write("");
    let serving = Serving::start(&["--config", &config]);
    assert!(holdfast(&["fileset", "create", &format!("{pool}:a")]).status.success());
    let list = || told(&["schedule", "list", &pool]);
    assert!(list().contains("scrub  monthly (default), next "), "{}", list());
    assert!(told(&["schedule", "scrub", &pool, "weekly"]).contains("scrub  weekly (command)"));
    let wrong = told(&["schedule", "scrub", &pool, "yearly"]);
    assert!(wrong.contains("daily, weekly, monthly or none"), "{wrong}");
    write("[[schedule]]\nfileset = \"b\"\nkeep = \"hourly=2\"\n");
    let refused = told(&["reload", &pool]);
    assert!(refused.contains("there is no fileset b in"), "{refused}");
    write("[[schedule]]\nfileset = \"a\"\nkeep = \"hourly=2\"\n[[schedule]]\nscrub = \"daily\"\n");
    assert!(holdfast(&["reload", &pool]).status.success());
    assert!(words(&list()).contains("a hourly=2 by the configuration"), "{}", list());
    assert!(list().contains("scrub  daily (configuration)"), "{}", list());
    let refused = told(&["schedule", "scrub", &pool, "none"]);
    assert!(refused.contains("change its [[schedule]]"), "{refused}");
    assert!(holdfast(&["scrub", &pool, "--wait"]).status.success());
    assert!(list().contains("the last began "), "{}", list());
    serving.end();
    write("");
    let serving = Serving::start(&["--config", &config]);
    let shown = told(&["--json", "schedule", "scrub", &pool]);
    assert!(
        shown.contains("\"every\":\"weekly\"") && shown.contains("\"is_ended\":true"),
        "{shown}"
    );
    serving.end();
    assert!(holdfast(&["check", &pool]).status.success());
    fs::remove_dir_all(&work).expect("nothing uses it");
}

/// Goal: `notify test` tells all whom the configuration names, also behind a reload, and says of
/// whom nobody knows how to tell him; a server without any says what to write.
#[test]
fn a_server_tells_a_test_to_all_whom_its_configuration_names() {
    let name = format!("holdfast-notices-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    fs::create_dir_all(&work).expect("the name is new");
    let text = |path: std::path::PathBuf| path.to_str().expect("it is ASCII").to_owned();
    let (pool, config) = (text(work.join("pool.hf")), text(work.join("holdfast.toml")));
    let (state, told_file) = (text(work.join("state")), work.join("told"));
    assert!(holdfast(&["create", &pool, "--size", "64M"]).status.success());
    let base = format!("[[pool]]\npath = \"{pool}\"\n");
    fs::write(&config, &base).expect("there is room");
    let serving = Serving::start(&["--config", &config, "--nfs", "127.0.0.1:0", "--state", &state]);
    let nobody = holdfast(&["notify", "test", &pool]);
    assert!(!nobody.status.success());
    assert!(told(&["notify", "test", &pool]).contains("write a [[notify]]"));
    let notify = format!(
        "[[notify]]\ncommand = [\"sh\", \"-c\", \"echo $HOLDFAST_EVENT > {}\"]\n\
         [[notify]]\ncommand = [\"/nonexistent\"]\nevents = [\"space\"]\n",
        told_file.display()
    );
    fs::write(&config, base + &notify).expect("there is room");
    assert!(holdfast(&["reload", &pool]).status.success());
    let came = told(&["notify", "test", &pool]);
    assert!(came.lines().next().is_some_and(|line| line.ends_with(": told")), "{came}");
    assert!(came.contains("/nonexistent: No such file"), "{came}");
    let tested = holdfast(&["notify", "test", &pool, "--json"]);
    assert_eq!(tested.status.code(), Some(1), "one was not told");
    let tested = String::from_utf8_lossy(&tested.stdout).into_owned();
    let tested: Vec<serde_json::Value> =
        tested.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    assert!(tested[0]["ok"] == true && tested[0]["error"].is_null(), "{tested:?}");
    let error = tested[1]["error"].as_str().expect("it says why");
    assert!(tested[1]["ok"] == false && error.contains("No such file"), "{tested:?}");
    assert_eq!(tested[1]["receiver"], "command /nonexistent");
    assert_eq!(fs::read_to_string(&told_file).expect("it was run"), "test\n");
    let status = told(&["status", &pool, "--json"]);
    assert!(status.contains("\"receivers\":2") && status.contains("\"failed\":2"), "{status}");
    serving.end();
    fs::remove_dir_all(&work).expect("nothing uses it");
}

/// Goal: what `serve` would refuse, `serve --check` refuses, and it changes nothing: pools that
/// cannot be looked at so are told.
#[test]
fn what_would_not_be_served_is_no_good_configuration() {
    let name = format!("holdfast-checked-{}", std::process::id());
    let work = std::env::temp_dir().join(name);
    fs::create_dir_all(&work).expect("the name is new");
    let text = |name: &str| work.join(name).to_str().expect("it is ASCII").to_owned();
    let (pool, config, link) = (text("pool.hf"), text("holdfast.toml"), text("link.hf"));
    assert!(holdfast(&["create", &pool, "--size", "64M"]).status.success());
    fs::write(work.join("none.hf"), vec![7; 1 << 20]).expect("there is room");
    std::os::unix::fs::symlink(&pool, &link).expect("the name is new");
    let base = format!("nfs = \"127.0.0.1:0\"\n[[pool]]\npath = \"{pool}\"\n");
    let checked = |more: &str| {
        fs::write(&config, format!("{base}{more}")).expect("there is room");
        let output = holdfast(&["serve", "--config", &config, "--check"]);
        let told = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&told).into_owned())
    };
    let before = fs::read(&pool).expect("it is there");
    let (is_well, told) = checked("[[export]]\nname = \"/a\"\n");
    assert!(is_well && told.contains("All is well: 1 pools, 1 exports"), "{told}");
    for (more, words) in [
        ("[[export]]\nname = \"/a\"\nfileset = \"nothere\"\n", "there is no fileset nothere"),
        ("[[export]]\nname = \"/a\"\ndir = \"/nothere\"\n", "no directory to export"),
        ("[[pool]]\npath = \"none.hf\"\n", "not a Holdfast pool"),
        ("[[pool]]\npath = \"link.hf\"\n", "it is named twice"),
    ] {
        let (is_well, told) = checked(more);
        assert!(!is_well && told.contains(words), "{more}: {told}");
    }
    let other = format!("{pool}:nothere");
    let output = holdfast(&["serve", &other, "--nfs", "127.0.0.1:0", "--check"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("there is no fileset nothere"), "{told}");
    assert!(fs::read(&pool).expect("it is there") == before, "it was changed");
    let state = text("state");
    let serving = Serving::start(&[&pool, "--nfs", "127.0.0.1:0", "--state", &state]);
    let (is_well, told) = checked("[[export]]\nname = \"/a\"\n");
    assert!(is_well && told.contains("not looked at") && !told.contains("All is"), "{told}");
    serving.end();
    fs::remove_dir_all(&work).expect("nothing uses it");
}
