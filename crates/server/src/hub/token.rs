//! Token that gives a client of the HTTP interface the rights of an administrator.
//!
//! It is 32 random bytes as hexadecimal digits, in a file of the state directory that only the
//! owner may read. The server creates a missing file. To revoke the token, remove the file and
//! reload.

use super::StateDirectory;

const FILE: &str = "token";
const BYTES: usize = 32;

/// The token.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    pub(crate) fn of(state: &StateDirectory) -> anyhow::Result<Token> {
        let path = state.path_of(FILE);
        if let Some(text) = state.read(FILE)? {
            let text = text.trim();
            let is_one = text.len() == 2 * BYTES && text.bytes().all(|it| it.is_ascii_hexdigit());
            let shown = path.display();
            anyhow::ensure!(is_one, "{shown}: it is no token: remove it, and a new one is made");
            let mode = std::fs::metadata(&path)?;
            let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions());
            let is_private = mode & 0o077 == 0;
            anyhow::ensure!(is_private, "{shown}: others may read the token: `chmod 600 {shown}`");
            return Ok(Token(text.to_ascii_lowercase()));
        }
        let mut random = [0; BYTES];
        getrandom::fill(&mut random)?;
        let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        state.write(FILE, &format!("{text}\n"))?;
        Ok(Token(text))
    }

    /// Returns the path of the token's file.
    pub fn path_of(state: &StateDirectory) -> std::path::PathBuf {
        state.path_of(FILE)
    }

    pub(crate) fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        if own.len() != given.len() {
            return false;
        }
        let differ = own.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b));
        std::hint::black_box(differ) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_its_owners_alone() {
        let name = format!("holdfast-token-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let state = StateDirectory::find(Some(&path)).expect("it is given");
        let token = Token::of(&state).expect("it is made");
        let file = Token::path_of(&state);
        let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = Token::of(&state).expect("it is read");
        assert!(token.is(again.0.as_bytes()));
        let mut other = again.0.clone().into_bytes();
        other[63] ^= 1;
        assert!(!token.is(&other) && !token.is(b"") && !token.is(&other[..63]));
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&file, open).expect("it is ours");
        let refused = Token::of(&state).err().expect("others may read it").to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
        std::fs::remove_dir_all(&path).expect("it is ours");
    }
}
