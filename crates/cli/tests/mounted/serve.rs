//! `holdfast serve`: the program serves a pool by NFS, and closes it when it is told to end.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use super::HOLDFAST;

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
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program can be started");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("it says what it does");
    let (_, rest) = line.split_once("\"nfs\":\"").expect("it says where");
    let address = rest.split('"').next().expect("it is quoted");
    assert!(line.contains(":/a DIRECTORY"), "{line}");
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.write_all(&NULL_CALL).expect("it reads");
    let mut answer = [0; NULL_ANSWER.len()];
    socket.read_exact(&mut answer).expect("it answers");
    assert_eq!(answer, NULL_ANSWER);
    // The port and the pool are taken.
    let second = holdfast(&["serve", &pool, "--nfs", address]);
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && told.contains("give another port"), "{told}");
    let second = holdfast(&["serve", &pool, "--nfs", "127.0.0.1:0"]);
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && told.contains("in use"), "{told}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
    assert!(holdfast(&["check", &pool]).status.success());
    fs::remove_dir_all(&work).expect("nothing uses it");
}
