//! Which processes or kernel facilities have a busy device or file in use.

mod kernel;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use control::text::printable;

pub(crate) use kernel::{
    file_behind, is_below_another, is_one_device, kernel_claims, kernel_uses, mount_from,
};

const NAMED_MAX: usize = 4;

/// Names the processes with a lock on a file, as text after "in use". Empty if unknown.
pub(crate) fn lock_holders(path: &Path) -> String {
    let named: Vec<String> = holders_of(path).into_iter().take(NAMED_MAX).map(process).collect();
    if named.is_empty() { String::new() } else { format!(" by {}", named.join(", ")) }
}

pub(crate) fn is_held_here(path: &Path) -> bool {
    let holders = holders_of(path);
    i32::try_from(std::process::id()).is_ok_and(|own| holders.contains(&own))
}

/// Returns the processes with a lock on a file, by /proc/locks.
pub fn holders_of(path: &Path) -> Vec<i32> {
    let Ok(stat) = std::fs::metadata(path) else { return Vec::new() };
    let (major, minor) = (rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", stat.ino());
    let table = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut pids: Vec<i32> = table.lines().filter_map(|line| holder_in(line, &file)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Returns the process in a line of /proc/locks (proc(5)) that has a lock on `file`, `None` for
/// other files: `1: FLOCK  ADVISORY  WRITE 708 08:01:131339 0 EOF`.
fn holder_in(line: &str, file: &str) -> Option<i32> {
    let mut fields = line.split_whitespace().skip(1);
    // Skips a line with `->`, which is a waiter.
    fields.next().filter(|&kind| kind == "FLOCK" || kind == "POSIX")?;
    let mut fields = fields.skip(2);
    let (pid, locked) = (fields.next()?.parse().ok()?, fields.next()?);
    // The PID is 0 for a process of another PID namespace.
    (locked == file && pid > 0).then_some(pid)
}

/// Describes a process: `process 708 (holdfast) of user 1000`.
pub fn process(pid: i32) -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
    let command = read("comm").unwrap_or_default();
    let owner = std::fs::metadata(format!("/proc/{pid}")).ok().map(|stat| stat.uid());
    let mut text = format!("process {pid}");
    if !command.trim().is_empty() {
        text += &format!(" ({})", printable(command.trim()));
    }
    match owner {
        Some(uid) if uid != rustix::process::geteuid().as_raw() => {
            text + &format!(" of user {uid}")
        }
        Some(_) | None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_of_locks_is_taken_apart() {
        let file = "08:01:131339";
        for (line, expected) in [
            ("1: FLOCK  ADVISORY  WRITE 708 08:01:131339 0 EOF", Some(708)),
            ("2: POSIX  ADVISORY  READ  709 08:01:131339 128 128", Some(709)),
            ("3: FLOCK  ADVISORY  READ 710 08:01:131340 0 EOF", None),
            ("3: -> FLOCK  ADVISORY  WRITE 711 08:01:131339 0 EOF", None),
            ("4: OFDLCK ADVISORY  WRITE -1 08:01:131339 0 EOF", None),
            ("5: FLOCK  ADVISORY  WRITE 0 08:01:131339 0 EOF", None),
            ("6: FLOCK", None),
            ("", None),
        ] {
            assert_eq!(holder_in(line, file), expected, "{line}");
        }
    }

    #[test]
    fn the_holder_of_a_lock_is_named() {
        let path = std::env::temp_dir().join(format!("holdfast-held-{}", std::process::id()));
        let file = std::fs::File::create(&path).expect("it can be made");
        assert_eq!(lock_holders(&path), "");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared).expect("it is free");
        let holders = lock_holders(&path);
        let own = format!(" by process {} (", std::process::id());
        // Some file systems have other device numbers in the table.
        assert!(holders.is_empty() || holders.starts_with(&own), "{holders}");
        assert_eq!(is_held_here(&path), !holders.is_empty());
        std::fs::remove_file(&path).expect("it is ours");
    }
}
