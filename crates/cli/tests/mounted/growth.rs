//! Pools that become longer while they are mounted, as a user meets it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};

use crate::{Mounted, can_mount};

const FILE_BYTES: usize = 1 << 20;

/// Returns whether the program did what it was told, and what it said.
fn told(mounted: &Mounted, arguments: &[&str]) -> (bool, String) {
    let output = mounted.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Returns what statvfs(2) says: bytes of the pool, and those that are left.
fn space(mounted: &Mounted) -> (u64, u64) {
    let stat = rustix::fs::statvfs(mounted.path("")).expect("it is mounted");
    (stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)
}

/// Writes files from number `from` on until the pool is full; returns how many there are.
fn fill(mounted: &Mounted, from: usize) -> usize {
    let write = |number: &usize| -> std::io::Result<()> {
        let mut file = File::create(mounted.path(&format!("f{number}")))?;
        file.write_all(&content(*number))?;
        file.sync_all()
    };
    let (full, error) = (from..)
        .find_map(|number| write(&number).err().map(|error| (number, error)))
        .expect("it is full some time");
    assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    full
}

fn content(number: usize) -> Vec<u8> {
    format!("file {number} ").bytes().cycle().take(FILE_BYTES).collect()
}

fn verify(mounted: &Mounted, files: usize) {
    for number in 0..files {
        let found = fs::read(mounted.path(&format!("f{number}"))).expect("it is there");
        assert!(found == content(number), "file {number}");
    }
}

/// Goal: a full pool takes files again as soon as its file was made longer and it was told so; `df`
/// and `status` say so at once, before it a hint names the command; and what cannot be is refused.
#[test]
fn a_mounted_pool_uses_what_its_file_is_longer() {
    if !can_mount("a_mounted_pool_uses_what_its_file_is_longer") {
        return;
    }
    let mounted = Mounted::new();
    let (directory, pool) = (mounted.text("mnt"), mounted.text("pool.hf"));
    let files = fill(&mounted, 0);
    let (total, _) = space(&mounted);
    let grow = ["device", "grow", &directory];
    let (has_grown, refusal) = told(&mounted, &grow);
    assert!(!has_grown && refusal.contains("uses all that its devices have"), "{refusal}");
    assert!(refusal.contains("truncate -s") && refusal.contains(&pool), "{refusal}");
    let (_, status) = told(&mounted, &["status", &directory]);
    assert!(!status.contains("grow:"), "{status}");

    let length = fs::metadata(&pool).expect("it is a file").len();
    let file = File::options().write(true).open(&pool).expect("it is ours");
    file.set_len(length + (40 << 20)).expect("there is room");
    let (_, status) = told(&mounted, &["status", &directory]);
    assert!(status.contains("grow: ") && status.contains("holdfast device grow"), "{status}");
    assert_eq!(space(&mounted).0, total, "not by itself");
    let (has_grown, said) = told(&mounted, &grow);
    assert!(has_grown && said.contains("disk group 0, a single, has room for"), "{said}");
    let (longer, left) = space(&mounted);
    assert!(longer > total + (32 << 20) && left > 30 << 20, "{total} {longer} {left}");
    let (_, status) = told(&mounted, &["status", &directory]);
    assert!(!status.contains("grow: "), "{status}");
    let more = fill(&mounted, files);
    assert!(more > files + 24, "{files} {more}");

    // The command makes the file longer itself if it is told to, and never shorter.
    let (has_grown, refusal) = told(&mounted, &[&grow[..], &["--size", "8M"]].concat());
    assert!(!has_grown && refusal.contains("never becomes shorter"), "{refusal}");
    let (has_grown, refusal) = told(&mounted, &[&grow[..], &["/nowhere"]].concat());
    assert!(!has_grown && refusal.contains("no device /nowhere"), "{refusal}");
    let size = format!("{}", length + (60 << 20));
    let (has_grown, said) = told(&mounted, &[&grow[..], &["--size", &size, "--json"]].concat());
    assert!(has_grown && said.contains(r#""more_bytes":"#), "{said}");
    assert_eq!(fs::metadata(&pool).expect("it is a file").len(), length + (60 << 20));
    let most = fill(&mounted, more);
    assert!(most > more + 10, "{more} {most}");
    verify(&mounted, most);
    mounted.remount(&[]);
    verify(&mounted, most);
    mounted.unmount();
    mounted.holdfast(&["check", &pool]);
    // A pool that is not mounted is opened for it.
    mounted.holdfast(&["device", "grow", &pool, "--size", "400M"]);
    mounted.mount(&[]);
    assert!(space(&mounted).0 > 380 << 20);
    mounted.remount(&["-o", "ro"]);
    file.set_len(500 << 20).expect("there is room");
    let (has_grown, refusal) = told(&mounted, &grow);
    assert!(!has_grown && refusal.contains("for reading alone"), "{refusal}");
    mounted.remount(&[]);
    verify(&mounted, most);
    mounted.finish();
}
