//! Names as printable text: names may have any bytes.

use std::fmt::Write as _;

/// Returns `name` as one line without terminal control.
///
/// Control characters, direction marks, invisible characters and backslashes are written as in Rust
/// (`\n`, `\u{1b}`, `\\`), bytes that are not UTF-8 as `\xff`. So different names look different,
/// and none forges a line of a report.
#[must_use]
pub fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '\\' || character.is_control() || is_invisible(character) {
                text.extend(character.escape_default());
            } else {
                text.push(character);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns `name` as [`shown`] does, in quotation marks.
#[must_use]
pub fn quoted(name: &[u8]) -> String {
    format!("\"{}\"", shown(name).replace('"', "\\\""))
}

/// Whether a character moves or hides others.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
    )
}

#[cfg(test)]
mod tests {
    use super::{quoted, shown};

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_the_rest_is_left() {
        let same = ["", "a b", "Gr\u{f6}\u{df}e", "\u{65e5}.txt", "it's \"q\"", "\u{1f600}"];
        for same in same {
            assert_eq!(shown(same.as_bytes()), same);
        }
        assert_eq!(quoted(b"a \"b\"\n"), "\"a \\\"b\\\"\\n\"");
        let cases: [(&[u8], &str); 8] = [
            (b"\x1b[2J", "\\u{1b}[2J"),
            (b"a\nFS001: all is lost", "a\\nFS001: all is lost"),
            (b"a\tb\r", "a\\tb\\r"),
            (b"\x7f", "\\u{7f}"),
            ("\u{9b}2J".as_bytes(), "\\u{9b}2J"),
            ("a\u{202e}txt.exe".as_bytes(), "a\\u{202e}txt.exe"),
            (b"\xff\xfea", "\\xff\\xfea"),
            (b"a\\n", "a\\\\n"),
        ];
        for (name, expected) in cases {
            assert_eq!(shown(name), expected);
        }
    }
}
