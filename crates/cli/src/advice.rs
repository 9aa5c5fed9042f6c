//! Test of the advice in messages: each command that a message names exists, and is accepted as it
//! is written.

use std::path::Path;

use clap::{CommandFactory, Parser};

use crate::args::{CliArguments, CliCommand};

/// Crates whose messages a user of the program may see.
const CRATES: [&str; 9] =
    ["check", "cli", "control", "engine", "format", "front", "runtime", "server", "storage"];

/// Least number of different commands with arguments. Fewer means that the search is broken.
const COMMANDS_MIN: usize = 40;

/// Adds the code of each file below `directory`, without tests and comments, and with string
/// literals on one line.
fn read_below(directory: &Path, all: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(directory).expect("sources are there") {
        let path = entry.expect("sources are there").path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            read_below(&path, all);
        }
        if !name.ends_with(".rs") || ["tests.rs", "advice.rs", "fuzz.rs"].contains(&&*name) {
            continue;
        }
        let code = std::fs::read_to_string(&path).expect("sources are text");
        let code = code.split("#[cfg(test)]\nmod tests").next().expect("split gives a part");
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        let mut text = String::new();
        for line in code.lines().filter(is_code) {
            match line.strip_suffix('\\') {
                Some(goes_on) => text += goes_on.trim_start(),
                None => text += &format!("{}\n", line.trim_start()),
            }
        }
        all.push((path.display().to_string(), text.replace("\\n", " ")));
    }
}

/// Returns the words of a command as a user may type them: a value for each placeholder.
fn typed(advice: &str) -> Vec<String> {
    let mut command = String::new();
    let mut depth = 0;
    for letter in advice.chars() {
        match letter {
            '{' if depth == 0 => {
                depth = 1;
                command.push_str(if command.ends_with("--") { "mirror" } else { "1" });
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 0 => command.push(letter),
            _ => {}
        }
    }
    let command = command.replace("ADDRESS:PORT", "127.0.0.1:2049").replace("SIZE", "1G");
    let command = command.replace("KIND:NEW,...", "mirror:NEW,OTHER").replace("GROUP", "1");
    command.split_whitespace().take_while(|word| *word != ">").map(str::to_owned).collect()
}

/// Returns why a command is refused, if it is.
fn refusal(advice: &str) -> Option<String> {
    let words = typed(advice);
    // A command without arguments is mentioned by its name.
    let mut named = &CliArguments::command();
    let mut rest = words[1..].iter();
    while let Some(inner) = rest.as_slice().first().and_then(|it| named.find_subcommand(it)) {
        (named, _) = (inner, rest.next());
    }
    let is_named = rest.as_slice().is_empty() && words.len() > 1;
    if is_named || advice == "holdfast {line}" {
        return None;
    }
    match CliArguments::try_parse_from(&words) {
        Err(error) => Some(error.to_string()),
        Ok(CliArguments { command: CliCommand::Serve(args), .. })
            if args.nfs.is_none() && args.listen.is_none() && args.config.is_none() =>
        {
            Some("nothing is served".to_owned())
        }
        Ok(_) => None,
    }
}

#[test]
fn commands_in_messages_are_accepted() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in `crates`");
    let mut sources = Vec::new();
    for name in CRATES {
        read_below(&crates.join(name).join("src"), &mut sources);
    }
    let (mut refused, mut count) = (Vec::new(), 0);
    for (path, text) in &sources {
        for (start, _) in text.match_indices("`holdfast ") {
            let advice = text[start + 1..].split(['`', '\n']).next().expect("split gives a part");
            count += 1;
            refused.extend(refusal(advice).map(|why| format!("{path}: {advice}: {why}")));
        }
        if text.contains("(holdfast ") && !path.ends_with("generate.rs") {
            refused.push(format!("{path}: a command in parentheses is also in backquotes"));
        }
    }
    assert!(count >= COMMANDS_MIN, "{count} commands");
    assert!(refused.is_empty(), "{} of {count}:\n{}", refused.len(), refused.join("\n"));
}

#[test]
fn a_command_with_a_wrong_argument_is_found() {
    for good in ["holdfast check", "holdfast device list {pool}", "holdfast send {} > FILE"] {
        assert_eq!(refusal(good), None, "{good}");
    }
    for bad in ["holdfast receive --abort", "holdfast serve {pool}", "holdfast devices {pool}"] {
        assert!(refusal(bad).is_some(), "{bad}");
    }
}
