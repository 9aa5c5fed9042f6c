//! Text of untrusted origin, for terminals and JSON.

use std::path::Path;

use serde::Serializer;

/// Returns `text` with its control characters escaped, so that names from a pool cannot command a
/// terminal.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

/// Serializes a path as text. Bytes that are not UTF-8 become U+FFFD, because JSON has no byte
/// strings.
pub fn path_as_text<S: Serializer>(
    path: impl AsRef<Path>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.as_ref().display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_commands_no_terminal() {
        assert_eq!(printable("a\nb\u{1b}[31m\u{9b}"), "a\\nb\\u{1b}[31m\\u{9b}");
        assert_eq!(printable("caf\u{e9} 1"), "caf\u{e9} 1");
    }
}
