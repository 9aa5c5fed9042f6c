//! The name that a user gives a pool.

use super::LABEL_BYTES;

/// Why a text is no label. A superblock may hold one all the same: whoever reads it takes what is
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Choose a shorter one.
    #[error("a label has at most 64 bytes")]
    TooLong,
    /// It could not be printed as one line.
    #[error("a label has no control characters")]
    ControlCharacter,
}

/// Returns `text` as the label of a new pool.
///
/// # Errors
///
/// See [`LabelError`].
pub fn label_of(text: &str) -> Result<[u8; LABEL_BYTES], LabelError> {
    let mut label = [0; LABEL_BYTES];
    let head = label.get_mut(..text.len()).ok_or(LabelError::TooLong)?;
    head.copy_from_slice(text.as_bytes());
    if text.chars().any(char::is_control) {
        return Err(LabelError::ControlCharacter);
    }
    Ok(label)
}
