//! What the documents say of the program: commands, options and exit codes exist, and the commands
//! run.

mod run;

use std::collections::BTreeSet;
use std::path::Path;

use crate::program::holdfast;

/// Options in OPERATIONS that are those of other programs, `holdfast-lab` among them.
const FOREIGN_OPTIONS: [&str; 15] = [
    "--release",
    "--device=/dev/fuse",
    "--cap-add",
    "--OPTION",
    "--test",
    "--",
    "--locked",
    "--setrw",
    "--offline",
    "--now",
    "--seeds",
    "--against",
    "--rounds",
    "--out",
    "--mix",
];

/// Documents whose command lines are tried against the help.
const WITH_COMMANDS: [&str; 7] = [
    "README.md",
    "docs/OPERATIONS.md",
    "docs/NAS.md",
    "docs/FROM-ZFS.md",
    "docs/UPGRADES.md",
    "docs/TESTING.md",
    "docs/CHECK.md",
];

fn document(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn commands() -> BTreeSet<String> {
    let help = holdfast(&["--help"]).expect(0).stdout();
    let list = help.split_once("Commands:").expect("there is a list").1;
    let list = list.split_once("\n\n").expect("it ends").0;
    list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Returns what follows `holdfast` wherever a document has it as code.
fn invocations(text: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for behind in text.split("holdfast ").skip(1) {
        let line = behind.lines().next().unwrap_or("");
        let line = line.split(['`', '|', ')', ';', '&']).next().unwrap_or("");
        found.push(line.split_whitespace().collect());
    }
    found
}

/// Goal: whoever tries the program waits for no optimisation across crates, and runs what was
/// built.
#[test]
fn the_demo_is_built_by_its_own_profile() {
    let demo = document("demo");
    assert!(demo.contains("cargo build --profile demo -p cli\n"), "{demo}");
    assert!(demo.contains("exec target/demo/holdfast demo"), "{demo}");
    let manifest = document("Cargo.toml");
    let profile = manifest.split_once("[profile.demo]\n").expect("there is one").1;
    let profile = profile.split("\n[").next().unwrap_or_default();
    assert!(profile.contains("inherits = \"release\"") && profile.contains("lto = \"off\""));
    assert!(document("README.md").contains("profile `demo`"));
}

/// Goal: a command line in a document is one that the program understands.
#[test]
fn commands_and_options_in_the_documents_exist() {
    let commands = commands();
    let mut count = 0;
    for path in WITH_COMMANDS {
        for words in invocations(&document(path)) {
            let Some((command, rest)) = words.split_first() else { continue };
            if *command == "COMMAND" || command.starts_with("--") {
                continue;
            }
            assert!(commands.contains(*command), "{path}: holdfast {command} is no command");
            let help = holdfast(&[command, "--help"]).expect(0).stdout();
            // The second word may be a command of the first, with options of its own.
            let act = rest.first().filter(|word| !word.starts_with('-'));
            let help_of_act =
                || act.map_or(String::new(), |act| holdfast(&[command, act, "--help"]).stdout());
            for option in rest.iter().filter(|word| word.starts_with("--")) {
                let is_there = help.contains(option) || help_of_act().contains(option);
                assert!(is_there, "{path}: {command} has no option {option}");
                count += 1;
            }
        }
    }
    assert!(count > 10, "only {count} options in command lines");
}

/// Goal: an option that a document explains is some command's, and none of `mount` is left out.
#[test]
fn options_that_are_explained_exist() {
    let all: String = commands().iter().map(|name| holdfast(&[name, "--help"]).stdout()).collect();
    let text = document("docs/OPERATIONS.md");
    for option in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')) {
        let is_option = option.starts_with("--") && !FOREIGN_OPTIONS.contains(&option);
        if is_option && option.trim_matches('-').len() > 1 {
            let is_table = option.bytes().all(|byte| byte == b'-');
            assert!(is_table || all.contains(option) || option == "--device", "{option}");
        }
    }
    let help = holdfast(&["mount", "--help"]).expect(0).stdout();
    let bare =
        |word: &'_ str| word.split(['[', ',', '.', ']']).next().unwrap_or_default().to_owned();
    let words = help.split_whitespace().map(bare);
    for option in words.filter(|word| word.starts_with("--")) {
        let is_general = ["--json", "--help", "--options"].contains(&&*option);
        assert!(is_general || text.contains(&option), "OPERATIONS does not explain {option}");
    }
}

/// Goal: the exit codes in the document are those in the help.
#[test]
fn exit_codes_are_those_of_the_help() {
    let text = document("docs/OPERATIONS.md");
    let section = text.split_once("## Exit codes").expect("it has one").1;
    let section = section.split("\n## ").next().unwrap_or("");
    let codes = |text: &str, prefix: &str| -> BTreeSet<u32> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
        let first = lines.filter_map(|line| line.split_whitespace().next());
        first.filter_map(|word| word.parse().ok()).collect()
    };
    let told = codes(section, "| ");
    let help = holdfast(&["--help"]).stdout() + &holdfast(&["check", "--help"]).stdout();
    assert_eq!(told, codes(&help, "  "));
    assert!(told.len() > 4, "{told:?}");
}
