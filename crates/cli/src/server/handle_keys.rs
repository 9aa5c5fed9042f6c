//! The keys by which handles may be sealed that clients of NFS have.
//!
//! An export seals by the key of its pool, so that its handles are good wherever that pool is
//! served, and whatever is served beside it. A fileset that has moved is found by handles too that
//! the pool it came from has sealed. So a server remembers which filesets it has exported from
//! which pools, in a file of its state directory.
//!
//! # Invariants
//! - HK1: A key is believed of the filesets alone that were exported from its pool: who knows the
//!   secret of one pool makes no handles of another.
//!
//! # Crashes
//! A fileset is noted, durably, before clients can reach its export.

use std::sync::{Mutex, PoisonError};

use engine::vnode::api::FilesetUuid;
use front::nfs::HandleKey;

use super::{ServedPool, StateDirectory};

/// The file. A line: the key as 32 hexadecimal digits, the fileset as 32; what was noted last is
/// last.
const FILE: &str = "handle-keys";
/// Most lines that are remembered; the oldest are forgotten. More exports than a server can have,
/// and each looks through all of them once.
const LINES_MAX: usize = 16 << 10;

/// Returns the key of a pool.
pub(crate) fn of(served: &ServedPool) -> HandleKey {
    HandleKey::derived(served.pool.secret())
}

/// Which filesets were exported from which pools.
pub(crate) struct ExportedFilesets {
    /// Where that outlives the server; `None`: nowhere.
    state: Option<StateDirectory>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    /// The oldest first.
    lines: Vec<(HandleKey, FilesetUuid)>,
    /// Some are not in the file.
    is_changed: bool,
}

impl ExportedFilesets {
    /// Returns what is remembered in `state`.
    pub(crate) fn read(state: &StateDirectory) -> anyhow::Result<ExportedFilesets> {
        let text = state.read(FILE)?.unwrap_or_default();
        let shown = state.path_of(FILE);
        let wrong = |line: &str| {
            let shown = shown.display();
            anyhow::anyhow!("{shown}: {line:?} is not a key and a fileset id: remove the line")
        };
        // A line of a key alone does not say of which filesets it is believed.
        let lines = text.lines().filter(|line| number_in(line).is_none());
        let lines = lines.map(|line| read(line).ok_or_else(|| wrong(line)));
        let lines = lines.collect::<anyhow::Result<Vec<_>>>()?;
        let lines = Mutex::new(Lines { lines, is_changed: false });
        Ok(ExportedFilesets { state: Some(state.clone()), lines })
    }

    /// Returns a memory that ends with the server.
    #[cfg(test)]
    pub(crate) fn forgetful() -> ExportedFilesets {
        ExportedFilesets { state: None, lines: Mutex::default() }
    }

    /// Notes that a fileset is exported by `key`, and returns the keys of other pools that it was
    /// exported from.
    pub(crate) fn note(&self, key: HandleKey, fileset: FilesetUuid) -> Vec<HandleKey> {
        let mut known = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let of_fileset = known.lines.iter().filter(|(_, exported)| *exported == fileset);
        let (own, others): (Vec<HandleKey>, Vec<HandleKey>) =
            of_fileset.map(|(key, _)| *key).partition(|found| *found == key);
        if own.is_empty() {
            known.lines.push((key, fileset));
            let surplus = known.lines.len().saturating_sub(LINES_MAX);
            known.lines.drain(..surplus);
            known.is_changed = true;
        }
        others
    }

    /// Makes what was noted durable. A failure is logged: it harms only a fileset that is moved to
    /// another pool later, and clients that have it mounted over that.
    pub(crate) fn keep(&self) {
        let mut known = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = self.state.as_ref().filter(|_| known.is_changed) else { return };
        let text: String = known.lines.iter().map(shown_line).collect();
        match state.write(FILE, &text) {
            Ok(()) => known.is_changed = false,
            Err(error) => tracing::warn!(
                "cannot store the keys of NFS handles, so clients may have to mount a fileset \
                 again after it moves to another pool: {error:#}"
            ),
        }
    }
}

fn shown_line((key, fileset): &(HandleKey, FilesetUuid)) -> String {
    format!("{:032x} {:032x}\n", u128::from_le_bytes(key.0), fileset.0)
}

fn read(line: &str) -> Option<(HandleKey, FilesetUuid)> {
    let (key, fileset) = line.split_once(' ')?;
    Some((HandleKey(number_in(key)?.to_le_bytes()), FilesetUuid(number_in(fileset)?)))
}

/// Returns the number that 32 hexadecimal digits say.
fn number_in(text: &str) -> Option<u128> {
    let is_one = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| is_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> HandleKey {
        HandleKey(std::array::from_fn(|at| {
            number.wrapping_mul(u8::try_from(at).expect("it is small"))
        }))
    }

    #[test]
    fn a_line_is_read_as_it_is_written_and_nothing_else_is() {
        let line = (key(17), FilesetUuid(1 << 100));
        assert_eq!(read(shown_line(&line).trim_end()), Some(line));
        let digits = "000102030405060708090a0b0c0d0e0f";
        assert!(read(&format!("{digits} {digits}")).is_some());
        for wrong in ["", digits, "7 7", &format!("{digits} +{}", &digits[1..])] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    /// Goal: HK1; what was noted outlives the server, up to a bound; the file is its owner's alone,
    /// and one that was changed by hand is refused and not taken for another.
    #[test]
    fn keys_are_believed_of_the_filesets_that_were_exported_by_them() {
        let name = format!("holdfast-handle-keys-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let state = StateDirectory::find(Some(&path)).expect("it is given");
        let known = || ExportedFilesets::read(&state).expect("it was written here");
        let fileset = FilesetUuid;
        let first = known();
        assert_eq!(first.note(key(1), fileset(10)), []);
        assert_eq!(first.note(key(2), fileset(20)), []);
        first.keep();
        assert_eq!(known().note(key(2), fileset(10)), [key(1)], "it has moved");
        assert_eq!(known().note(key(1), fileset(20)), [key(2)], "it has moved");
        assert_eq!(known().note(key(2), fileset(30)), [], "it was never in the other pool");
        let mode = std::fs::metadata(state.path_of(FILE)).expect("it is there").permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
        let many = known();
        for number in 0..LINES_MAX {
            many.note(key(3), fileset(100 + u128::try_from(number).expect("it is small")));
        }
        many.keep();
        assert_eq!(known().note(key(2), fileset(10)), [], "the oldest is forgotten");
        assert_eq!(known().note(key(2), fileset(100)), [key(3)]);
        state.write(FILE, &format!("{}\n", "07".repeat(16))).expect("it is ours");
        assert_eq!(known().note(key(2), fileset(10)), [], "of no fileset");
        state.write(FILE, "nonsense\n").expect("it is ours");
        let refused = ExportedFilesets::read(&state).map(drop).expect_err("it is no key");
        let refused = refused.to_string();
        assert!(refused.contains(FILE) && refused.contains("remove"), "{refused}");
        std::fs::remove_dir_all(&path).expect("it is ours");
    }
}
