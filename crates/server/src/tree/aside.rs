//! Temporary names for files that are not complete yet, and the removal of files that killed
//! processes left under such names.
//!
//! # Invariants
//!
//! - AN1: A temporary name is `.holdfast-PID-START-RANDOM`: the creating process, its start time in
//!   ticks since boot, and 64 random bits. The random bits make names unique, and the start time
//!   tells apart processes that had the same PID.
//! - AN2: Only names of exactly this form are removed, once their process has ended, and
//!   directories only if empty. A file of such a name is incomplete, or was replaced already.
//!
//! Processes of other machines and containers are invisible here, and count as ended. If one copies
//! into the same directory at the same time, its temporary file may be removed. It then reports an
//! error for that file, and the file to be replaced stays.

use std::sync::OnceLock;

use engine::api::FileKind;

use super::{FileTree, TreeError, TreeResult};
use crate::neighbours::{has_threads, started_of};

const PREFIX: &str = ".holdfast-";
const RANDOM_DIGITS: usize = 16;
/// Most names removed per visit of a directory. The next copy removes further ones.
const REMOVED_MAX: usize = 1024;

fn own_start() -> Option<u64> {
    static START: OnceLock<Option<u64>> = OnceLock::new();
    *START.get_or_init(|| started_of("self"))
}

/// Returns a unique temporary name (AN1).
pub(crate) fn name() -> TreeResult<Vec<u8>> {
    let (process, start) = (std::process::id(), own_start().unwrap_or(0));
    Ok(format!("{PREFIX}{process}-{start}-{}", random()?).into_bytes())
}

/// Returns a unique name for a complete file that no copy may remove. It has no PID (AN2).
pub(crate) fn kept_name() -> TreeResult<Vec<u8>> {
    Ok(format!("{PREFIX}kept-{}", random()?).into_bytes())
}

fn random() -> TreeResult<String> {
    let mut random = [0; 8];
    let filled = getrandom::fill(&mut random);
    filled.map_err(|error| TreeError::of_file(format!("no random number: {error}")))?;
    Ok(format!("{:016x}", u64::from_le_bytes(random)))
}

/// Returns the process and start time in a temporary name. `None` if the name has another form.
fn process_of(name: &[u8]) -> Option<(u32, u64)> {
    let fields = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    let mut fields = fields.split('-');
    let (process, start, random) = (fields.next()?, fields.next()?, fields.next()?);
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if fields.next().is_some() || random.len() != RANDOM_DIGITS || !random.bytes().all(is_digit) {
        return None;
    }
    let (process_no, start_ticks) = (process.parse::<u32>().ok()?, start.parse::<u64>().ok()?);
    // Refuses names with signs or leading zeros, which are not made here.
    let is_exact = process_no.to_string() == process && start_ticks.to_string() == start;
    is_exact.then_some((process_no, start_ticks))
}

fn is_left(name: &[u8]) -> bool {
    let Some((process, start)) = process_of(name) else { return false };
    let lives = started_of(&process.to_string()) == Some(start) && has_threads(process);
    // If /proc is not readable, no process can be found alive, so no name is removed.
    own_start().is_some() && !lives
}

/// Removes what killed processes left in a directory, except names that `keeps` accepts.
pub(crate) fn remove_left<T: FileTree>(
    tree: &T,
    directory: &T::Node,
    keeps: impl Fn(&[u8]) -> bool,
) -> TreeResult<()> {
    let mut left = Vec::new();
    tree.list(directory, &mut |name| {
        if left.len() < REMOVED_MAX && is_left(&name) {
            left.push(name);
        }
    })?;
    for name in left.into_iter().filter(|name| !keeps(name)) {
        let Some(there) = tree.find(directory, &name)? else { continue };
        let removed = match there.kind {
            FileKind::Directory => tree.remove_directory(directory, &name),
            FileKind::Regular
            | FileKind::Symlink
            | FileKind::BlockDevice
            | FileKind::CharDevice
            | FileKind::Fifo
            | FileKind::Socket => tree.remove(directory, &name),
        };
        let name = super::shown(&name);
        match removed {
            Ok(()) => tracing::info!(name, "removed what a killed copy left"),
            Err(error) => tracing::warn!(name, %error, "a killed copy left it"),
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn name_of_the_dead(random: u64) -> Vec<u8> {
        let start = own_start().expect("there is proc(5)") + 1;
        format!("{PREFIX}{}-{start}-{random:016x}", std::process::id()).into_bytes()
    }

    #[test]
    fn only_exact_names_of_ended_processes_are_left() {
        let own = name().expect("there are random numbers");
        assert_ne!(own, name().expect("there are random numbers"));
        assert_eq!(process_of(&own), Some((std::process::id(), own_start().expect("proc(5)"))));
        assert!(!is_left(&own), "this process lives");
        let kept = kept_name().expect("there are random numbers");
        assert_eq!(process_of(&kept), None, "what is kept is of no process");
        assert!(is_left(&name_of_the_dead(7)), "its number went to another process");
        for no_name in [
            ".holdfast-1-2",
            ".holdfast-1-2-0123456789abcde",
            ".holdfast-1-2-0123456789ABCDEF",
            ".holdfast-01-2-0123456789abcdef",
            ".holdfast-+1-2-0123456789abcdef",
            ".holdfast-1-2-0123456789abcdef-",
            ".holdfast-1-2-0123456789abcdef.txt",
            "holdfast-1-2-0123456789abcdef",
        ] {
            assert_eq!(process_of(no_name.as_bytes()), None, "{no_name}");
        }
    }
}
