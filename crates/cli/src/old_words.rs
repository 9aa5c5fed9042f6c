//! Commands of earlier versions, whose words mean something else now or nothing.
//!
//! Until the words of ZFS and btrfs were taken over, a *clone* was what is a snapshot now, and a
//! *fork* what is a clone. A script that has the old words must not take, write or delete anything
//! that it did not mean. So they are refused before anything is opened, with the line that does
//! today what was asked for.

use std::ffi::OsString;

/// Returns why `arguments` (without the program's name) are refused: they are of an earlier
/// version. The text has the line to write instead.
pub(crate) fn refusal(arguments: &[OsString]) -> Option<String> {
    let words: Vec<String> =
        arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return None;
    }
    let is_word = |word: &&String| !word.starts_with("--");
    let mut named = words.iter().filter(is_word).map(String::as_str);
    let (command, next) = (named.next()?, named.next());
    let (old, new, why) = match (command, next) {
        ("clone", Some("create")) if is_of_today(&words) => return None,
        ("clone", Some(act @ ("create" | "list" | "delete" | "hold" | "release"))) => {
            let why = "what cannot be changed is a snapshot, and a clone is a writable fileset";
            (format!("clone {act}"), format!("snapshot {act}"), why)
        }
        ("fileset", Some("fork")) => (
            "fileset fork".into(),
            "clone create".into(),
            "a writable fileset of a snapshot is a clone",
        ),
        ("import", _) => ("import".into(), "copy-in".into(), "files are copied in and out"),
        ("export-tree", _) => {
            ("export-tree".into(), "copy-out".into(), "files are copied in and out")
        }
        _ => return None,
    };
    let line = replaced(&words, &old, &new);
    Some(format!("`{old}` is `{new}` now ({why}), and nothing was done: holdfast {line}"))
}

/// Whether `clone create` has a snapshot and the name of a clone: its older form had one name.
fn is_of_today(words: &[String]) -> bool {
    let names = words.iter().skip_while(|word| *word != "create").skip(1);
    names.filter(|word| !word.starts_with("--")).count() >= 2
        && words.iter().all(|word| word != "--recursive")
}

/// Returns `words` as one line with the words of `new` in place of the first ones of `old`.
fn replaced(words: &[String], old: &str, new: &str) -> String {
    let mut old = old.split(' ').peekable();
    let mut line: Vec<String> = Vec::new();
    let mut new = Some(new);
    for word in words {
        if old.next_if(|it| it == word).is_none() {
            line.push(quoted(word));
        } else if let Some(new) = new.take() {
            line.push(new.to_owned());
        }
    }
    line.join(" ")
}

/// Returns a word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@=,+%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> Option<String> {
        refusal(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    /// Goal: each command of old is refused with the line of today.
    #[test]
    fn old_words_are_refused_with_the_line_of_today() {
        for (old, new) in [
            ("clone create p.hf:a@x", "snapshot create p.hf:a@x"),
            ("clone create --recursive p.hf:a@x", "snapshot create --recursive p.hf:a@x"),
            ("--json clone delete p.hf:a@x --wait", "--json snapshot delete p.hf:a@x --wait"),
            ("clone list p.hf", "snapshot list p.hf"),
            ("clone hold p.hf:a@x me", "snapshot hold p.hf:a@x me"),
            ("clone release p.hf:a@x me", "snapshot release p.hf:a@x me"),
            ("fileset fork p.hf:a@x p.hf:b", "clone create p.hf:a@x p.hf:b"),
            ("import /a&b p.hf:a", "copy-in '/a&b' p.hf:a"),
            ("export-tree p.hf:a a.tar", "copy-out p.hf:a a.tar"),
        ] {
            let told = refused(old).unwrap_or_default();
            assert!(told.ends_with(&format!("nothing was done: holdfast {new}")), "{old}: {told}");
        }
    }

    #[test]
    fn words_of_today_are_left_alone() {
        for line in [
            "clone create p.hf:a@x p.hf:b",
            "clone create --member d.hf p.hf:a@x p.hf:b",
            "clone --help",
            "clone create --help",
            "snapshot create p.hf:a@x",
            "fileset list p.hf",
            "export add p.hf:a /a",
            "",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
    }
}
