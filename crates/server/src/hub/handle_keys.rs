//! Keys that seal the file handles of NFS clients.
//!
//! An export seals file handles with the key of its pool, so they stay valid on any server of that
//! pool. Handles of a fileset that was moved may be sealed with its former pool's key. So a server
//! records in its state directory from which pools it has exported each fileset.
//!
//! # Invariants
//! - HK1: A key is accepted only in handles of filesets that were exported from its pool. So the
//!   secret of one pool makes no valid handles of another pool's filesets.
//!
//! # Crashes
//! While NFS is served, the record of an export is stored before clients can reach the export. The
//! records of the exports at a start are stored together, when the server begins to listen. If
//! storing fails, that is only logged ([`ExportedFilesets::keep`]).

use std::sync::{Mutex, PoisonError};

use engine::api::FilesetUuid;
use front::nfs::HandleKey;

use super::{ServedPool, StateDirectory};

/// File of the records, newest last. A line has a key and a fileset, as 32 hexadecimal digits each.
const FILE: &str = "handle-keys";
/// Most records, more than a server has exports. The oldest are dropped. The bound also limits the
/// time to add an export, which scans all records.
const LINES_MAX: usize = 16 << 10;

/// Returns the key with which exports of a pool seal handles.
pub fn of(served: &ServedPool) -> HandleKey {
    HandleKey::derived(served.pool.secret())
}

/// Records of exported filesets and the keys of their pools.
pub struct ExportedFilesets {
    state: Option<StateDirectory>,
    lines: Mutex<HandleKeyLines>,
}

#[derive(Default)]
struct HandleKeyLines {
    /// Records, oldest first.
    lines: Vec<(HandleKey, FilesetUuid)>,
    is_changed: bool,
}

impl ExportedFilesets {
    /// Reads the records in `state`.
    pub fn read(state: &StateDirectory) -> anyhow::Result<ExportedFilesets> {
        let text = state.read(FILE)?.unwrap_or_default();
        let shown = state.path_of(FILE);
        let wrong = |line: &str| {
            let shown = shown.display();
            anyhow::anyhow!("{shown}: {line:?} is not a key and a fileset id: remove the line")
        };
        // HK1: an old line with a key and no fileset is skipped.
        let lines = text.lines().filter(|line| number_in(line).is_none());
        let lines = lines.map(|line| read(line).ok_or_else(|| wrong(line)));
        let lines = lines.collect::<anyhow::Result<Vec<_>>>()?;
        let lines = Mutex::new(HandleKeyLines { lines, is_changed: false });
        Ok(ExportedFilesets { state: Some(state.clone()), lines })
    }

    #[cfg(test)]
    pub(crate) fn forgetful() -> ExportedFilesets {
        ExportedFilesets { state: None, lines: Mutex::default() }
    }

    /// Records that `fileset` is exported with `key`. Returns the other keys with which it was
    /// exported.
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

    /// Stores the records durably. A failure is only logged, because it affects only clients of a
    /// fileset that is moved to another pool later.
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

    /// Goal: HK1. Records outlive the server, up to a bound, in a file that only its owner may
    /// read. A file with a malformed line is refused.
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
