//! Error of senseless command arguments.

/// Arguments that are well formed one by one, but make no sense together.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct UsageError {
    message: String,
}

impl UsageError {
    /// Returns an error whose message describes valid arguments.
    pub fn new(message: impl Into<String>) -> UsageError {
        UsageError { message: message.into() }
    }
}
