//! The name that a user gives a pool.

use super::LABEL_BYTES;

/// Name of a pool for which no better one was found.
const FALLBACK_NAME: &str = "pool";

/// Why a text can't name a pool. Readers accept any label on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Longer than 64 bytes.
    #[error("the name of a pool has at most {LABEL_BYTES} bytes: choose a shorter one")]
    TooLong,
    /// Would be taken for something else: a path, a fileset, an option.
    #[error(
        "the name of a pool is not empty, does not begin with \".\" or \"-\", and holds no \"/\", \
         \":\", \"@\", \",\", backslash, space or control character: choose another"
    )]
    Character,
}

/// Verifies `text` as the name of a pool.
///
/// # Errors
///
/// [`LabelError`]: choose another name.
pub fn verify_pool_name(text: &str) -> Result<(), LabelError> {
    if text.len() > LABEL_BYTES {
        return Err(LabelError::TooLong);
    }
    let is_name = !text.is_empty() && !text.starts_with(is_no_start) && !text.contains(is_refused);
    if is_name { Ok(()) } else { Err(LabelError::Character) }
}

fn is_no_start(c: char) -> bool {
    matches!(c, '.' | '-')
}

/// Whether a mount's source, an argument or `/etc/fstab` would give the character a meaning.
fn is_refused(c: char) -> bool {
    matches!(c, '/' | ':' | '@' | ',' | '\\') || c.is_whitespace() || c.is_control()
}

/// Returns the label of a pool of this name. A pool in memory has none, and `text` is empty.
///
/// # Errors
///
/// See [`verify_pool_name`].
pub fn label_of(text: &str) -> Result<[u8; LABEL_BYTES], LabelError> {
    if !text.is_empty() {
        verify_pool_name(text)?;
    }
    let mut label = [0; LABEL_BYTES];
    let head = label.get_mut(..text.len()).ok_or(LabelError::TooLong)?;
    head.copy_from_slice(text.as_bytes());
    Ok(label)
}

/// Returns the name in a label. `None` if a label from elsewhere holds no valid name.
#[must_use]
pub fn name_in(label: &[u8; LABEL_BYTES]) -> Option<&str> {
    let end = label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES);
    let name = std::str::from_utf8(label.get(..end)?).ok()?;
    verify_pool_name(name).ok().map(|()| name)
}

/// Returns the valid name that is most like `text`.
#[must_use]
pub fn name_like(text: &str) -> String {
    let replaced = text.trim_start_matches(is_no_start).chars();
    let mut name = String::new();
    for c in replaced.map(|c| if is_refused(c) { '_' } else { c }) {
        if name.len() + c.len_utf8() > LABEL_BYTES {
            break;
        }
        name.push(c);
    }
    if name.is_empty() { FALLBACK_NAME.to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word_that_is_no_path_and_no_fileset() {
        let long = "n".repeat(LABEL_BYTES);
        for name in ["tank", "Gr\u{f6}\u{df}e", "a.b-c_d", "<b>", &long] {
            assert_eq!(verify_pool_name(name), Ok(()), "{name}");
            assert_eq!(name_in(&label_of(name).expect("it is a name")), Some(name));
            assert_eq!(name_like(name), name);
        }
        for (text, like) in [
            ("", "pool"),
            ("..", "pool"),
            ("-rf", "rf"),
            (".hidden", "hidden"),
            ("a/b", "a_b"),
            ("tank:home", "tank_home"),
            ("a@b", "a_b"),
            ("a,b", "a_b"),
            ("a b\n\\", "a_b__"),
        ] {
            assert_eq!(verify_pool_name(text), Err(LabelError::Character), "{text}");
            assert_eq!(name_like(text), like);
            assert_eq!(verify_pool_name(like), Ok(()));
        }
        let longer = "\u{e9}".repeat(LABEL_BYTES);
        assert_eq!(verify_pool_name(&longer), Err(LabelError::TooLong));
        assert_eq!(name_like(&longer).len(), LABEL_BYTES);
    }

    #[test]
    fn a_label_that_holds_no_name_names_nothing() {
        let mut label = [0; LABEL_BYTES];
        assert_eq!(name_in(&label), None);
        label[..3].copy_from_slice(b"a/b");
        assert_eq!(name_in(&label), None);
        label[..2].copy_from_slice(b"\xff\xff");
        assert_eq!(name_in(&label), None);
    }
}
