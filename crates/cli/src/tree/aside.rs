//! Names that files have while they are made beside what they replace, and the removal of those
//! that a killed process left.
//!
//! # Invariants
//!
//! - AN1: A name is `.holdfast-PID-START-RANDOM`: the process that made it, the start of that
//!   process in ticks since the boot, and 64 random bits. So no two names are equal, and a process
//!   that got the number of a killed one is not taken for it.
//! - AN2: Only names of exactly this form whose process has ended are removed, and a directory only
//!   while it is empty. What has such a name is incomplete, or was replaced already.
//!
//! Processes of other machines and containers cannot be seen: one that writes to the same directory
//! at the same time may lose a name that it uses. It then reports an error for that file, and what
//! the file was to replace stays.

use std::sync::OnceLock;

use engine::vnode::api::FileKind;

use super::{Tree, TreeError, TreeResult};
use crate::wiring::neighbours::{has_threads, started_of};

const PREFIX: &str = ".holdfast-";
/// Hexadecimal digits of the random part.
const RANDOM_DIGITS: usize = 16;
/// Names that are removed when a directory is entered; the next import or export removes more.
const REMOVED_MAX: usize = 1024;

/// Returns when this process started; `None`: there is no proc(5).
fn own_start() -> Option<u64> {
    static START: OnceLock<Option<u64>> = OnceLock::new();
    *START.get_or_init(|| started_of("self"))
}

/// Returns a name that no file has (AN1).
pub(crate) fn name() -> TreeResult<Vec<u8>> {
    let (process, start) = (std::process::id(), own_start().unwrap_or(0));
    Ok(format!("{PREFIX}{process}-{start}-{}", random()?).into_bytes())
}

/// Returns a name that no file has, for a file that is not replaced yet: no import or export
/// removes it (AN2).
pub(crate) fn kept_name() -> TreeResult<Vec<u8>> {
    Ok(format!("{PREFIX}kept-{}", random()?).into_bytes())
}

fn random() -> TreeResult<String> {
    let mut random = [0; 8];
    let filled = getrandom::fill(&mut random);
    filled.map_err(|error| TreeError::of_file(format!("no random number: {error}")))?;
    Ok(format!("{:016x}", u64::from_le_bytes(random)))
}

/// Returns process and start in a name of this form; `None`: it has another form.
fn process_of(name: &[u8]) -> Option<(u32, u64)> {
    let fields = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    let mut fields = fields.split('-');
    let (process, start, random) = (fields.next()?, fields.next()?, fields.next()?);
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if fields.next().is_some() || random.len() != RANDOM_DIGITS || !random.bytes().all(is_digit) {
        return None;
    }
    let (process_no, start_ticks) = (process.parse::<u32>().ok()?, start.parse::<u64>().ok()?);
    // No sign and no zeros in front.
    let is_exact = process_no.to_string() == process && start_ticks.to_string() == start;
    is_exact.then_some((process_no, start_ticks))
}

/// Whether a name was made by a process that has ended (AN2).
fn is_left(name: &[u8]) -> bool {
    let Some((process, start)) = process_of(name) else { return false };
    let lives = started_of(&process.to_string()) == Some(start) && has_threads(process);
    // Without proc(5) no process is seen.
    own_start().is_some() && !lives
}

/// Removes what killed processes left in a directory, but for names that `keeps` wants kept.
pub(crate) fn remove_left<T: Tree>(
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
            Ok(()) => tracing::info!(name, "removed what a killed import or export left"),
            Err(error) => tracing::warn!(name, %error, "a killed import or export left it"),
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a name as a process made it that has ended.
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
