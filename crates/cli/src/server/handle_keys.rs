//! The keys by which handles may be sealed that clients of NFS have.
//!
//! An export seals by the key of its pool, so that its handles are good wherever that pool is
//! served, and whatever is served beside it. A fileset that has moved is found by handles too that
//! the pool it came from has sealed: so a server remembers the keys of all pools that it has
//! served, in a file of its state directory.

use front::nfs::HandleKey;

use super::{ServedPool, StateDirectory};

/// The file: a key a line, as hexadecimal digits, those of now last.
const FILE: &str = "handle-keys";
/// Most keys that are remembered: each is tried on a handle that is none.
const KEYS_MAX: usize = 64;

/// Returns the key of a pool.
pub(crate) fn of(served: &ServedPool) -> HandleKey {
    HandleKey::derived(served.pool.secret())
}

/// Returns the keys of `pools` and of those that were served before, and remembers them.
pub(crate) fn all(pools: &[ServedPool], state: &StateDirectory) -> anyhow::Result<Vec<HandleKey>> {
    with_remembered(pools.iter().map(of).collect(), state)
}

fn with_remembered(own: Vec<HandleKey>, state: &StateDirectory) -> anyhow::Result<Vec<HandleKey>> {
    let text = state.read(FILE)?.unwrap_or_default();
    let shown = state.path_of(FILE);
    let wrong = || anyhow::anyhow!("{}: a line of it is no key: remove it", shown.display());
    let lines = text.lines().map(|line| read(line).ok_or_else(wrong));
    let mut keys = lines.collect::<anyhow::Result<Vec<HandleKey>>>()?;
    let before = keys.clone();
    keys.retain(|key| !own.contains(key));
    keys.extend(own);
    let surplus = keys.len().saturating_sub(KEYS_MAX);
    keys.drain(..surplus);
    let is_known = before.len() == keys.len() && keys.iter().all(|key| before.contains(key));
    if !is_known {
        let text: String = keys.iter().map(|key| format!("{}\n", shown_key(key))).collect();
        if let Err(error) = state.write(FILE, &text) {
            // Nothing is lost yet: only what leaves one of these pools needs it, later.
            tracing::warn!("the keys of NFS handles are not remembered: {error:#}");
        }
    }
    Ok(keys)
}

fn shown_key(key: &HandleKey) -> String {
    key.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(line: &str) -> Option<HandleKey> {
    let is_one = line.len() == 32 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(line, 16).ok().filter(|_| is_one)?;
    let mut bytes = number.to_le_bytes();
    bytes.reverse();
    Some(HandleKey(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_is_written_and_nothing_else_is() {
        let key = HandleKey(std::array::from_fn(|at| u8::try_from(at).expect("16 numbers")));
        assert_eq!(read(&shown_key(&key)), Some(key));
        for line in
            ["", "7", "+0102030405060708090a0b0c0d0e0f0", "zz0102030405060708090a0b0c0d0e0f"]
        {
            assert_eq!(read(line), None, "{line}");
        }
    }

    /// Goal: a key outlives the pool that it is of, for as long as there are not too many others;
    /// the file is its owner's alone, and one that was changed by hand is not taken for another.
    #[test]
    fn keys_of_pools_that_were_served_are_remembered() {
        let name = format!("holdfast-handle-keys-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let state = StateDirectory::find(Some(&path)).expect("it is given");
        let key = |number: u8| HandleKey([number; 16]);
        let known = |own: &[u8]| {
            let own = own.iter().map(|&number| key(number)).collect();
            with_remembered(own, &state).expect("it is kept")
        };
        assert_eq!(known(&[1, 2]), [key(1), key(2)]);
        assert_eq!(known(&[2, 3]), [key(1), key(2), key(3)]);
        assert_eq!(known(&[1]), [key(2), key(3), key(1)]);
        let mode = std::fs::metadata(state.path_of(FILE)).expect("it is there").permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
        for number in 10..10 + u8::try_from(KEYS_MAX).expect("it is small") {
            assert!(known(&[1, number]).len() <= KEYS_MAX);
        }
        let left = known(&[1]);
        assert!(left.contains(&key(1)) && !left.contains(&key(2)), "the oldest is forgotten");
        state.write(FILE, "nonsense\n").expect("it is ours");
        let refused = with_remembered(vec![key(1)], &state).expect_err("it is no key").to_string();
        assert!(refused.contains(FILE) && refused.contains("remove"), "{refused}");
        std::fs::remove_dir_all(&path).expect("it is ours");
    }
}
