//! Refusal of commands of earlier versions.
//!
//! In earlier versions, *clone* meant a snapshot and *fork* a clone. An old script must not change
//! or delete the wrong thing. So such a command is refused before anything is opened, and the error
//! names the command of today.

use std::ffi::OsString;

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
        ("create", _) if words.iter().any(|word| is_label(word)) => {
            let line = words.iter().map(|word| match is_label(word) {
                true => quoted(&word.replacen("--label", "--name", 1)),
                false => quoted(word),
            });
            let line = line.collect::<Vec<_>>().join(" ");
            return Some(format!(
                "`--label` is `--name` now (commands find the pool by it), and nothing was done: \
                 holdfast {line}"
            ));
        }
        ("import", _) => ("import".into(), "copy-in".into(), "files are copied in and out"),
        ("export-tree", _) => {
            ("export-tree".into(), "copy-out".into(), "files are copied in and out")
        }
        ("torture" | "prove" | "bench" | "lab", _) => {
            let new = if command == "lab" { "papers" } else { command };
            let line = replaced(&words, command, new);
            return Some(format!(
                "`{command}` is a command of the program holdfast-lab, and nothing was done: \
                 holdfast-lab {line}"
            ));
        }
        _ => return None,
    };
    let line = replaced(&words, &old, &new);
    Some(format!("`{old}` is `{new}` now ({why}), and nothing was done: holdfast {line}"))
}

/// Whether `clone create` has today's form: two names, no `--recursive`. The old one had one name.
fn is_of_today(words: &[String]) -> bool {
    let names = words.iter().skip_while(|word| *word != "create").skip(1);
    names.filter(|word| !word.starts_with("--")).count() >= 2
        && words.iter().all(|word| word != "--recursive")
}

fn is_label(word: &str) -> bool {
    word == "--label" || word.starts_with("--label=")
}

/// Replaces the words of `old`, where they first occur, by `new`.
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
            ("create p.hf --label tank --force", "create p.hf --name tank --force"),
            ("create p.hf --label=tank", "create p.hf --name=tank"),
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
