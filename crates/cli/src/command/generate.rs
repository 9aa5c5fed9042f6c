//! `holdfast generate`: man pages and shell completions from the argument definitions.

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::{Generator, Shell};
use serde_json::json;

use crate::args::{CliArguments, GenerateArgs};
use crate::exit;
use crate::man::{config_page, mount_page};
use crate::output::Output;
use crate::reference::control_reference;

const NAME: &str = "holdfast";

pub(crate) fn run(args: &GenerateArgs, output: &Output) -> anyhow::Result<u8> {
    let directory = &args.directory;
    let context = || format!("{}: cannot write there", directory.display());
    std::fs::create_dir_all(directory).with_context(context)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let path = directory.join(shell.file_name(NAME));
        std::fs::write(path, completions(shell)).with_context(context)?;
    }
    let pages = without_help(CliArguments::command());
    clap_mangen::generate_to(pages, directory).with_context(context)?;
    for (name, text) in [
        ("mount.holdfast.8", mount_page()),
        ("holdfast.toml.5", config_page()),
        ("control.md", control_reference()),
    ] {
        std::fs::write(directory.join(name), text).with_context(context)?;
    }
    let count = std::fs::read_dir(directory).with_context(context)?.count();
    let text = format!("{count} files are in {}", directory.display());
    output.fact(&text, &json!({ "directory": directory, "files": count }));
    Ok(exit::DONE)
}

/// A command without its subcommand `help`, which needs no page.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// Returns the completion script: subcommands and options as clap knows them, and names that
/// `holdfast names` prints.
fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CliArguments::command(), NAME, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Bash {
        return script + BASH_NAMES;
    }
    if shell == Shell::Fish {
        return script + FISH_NAMES;
    }
    // The script ends with a call of its first function, so the other goes before it.
    let script = script.replace(":_files", ":_holdfast_names");
    let script = script.replace(":_default", ":_holdfast_names");
    script.replacen("_holdfast() {", &format!("{ZSH_NAMES}_holdfast() {{"), 1)
}

/// Bash splits words at `:` and `@` too, and replaces only the last part of a word. Names may have
/// characters that a shell would interpret, so they are quoted.
const BASH_NAMES: &str = r#"
_holdfast_names() {
    _holdfast "$@"
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##*[[:space:]]}
    [[ $word == -* ]] && return
    local cut=${word%"$2"} name names
    mapfile -t names < <(holdfast names "$word" "$line" 2>/dev/null)
    [[ ${#names[@]} -gt 0 ]] && mapfile -t COMPREPLY < <(compgen -f -- "$word")
    for name in "${names[@]}"; do
        COMPREPLY+=("$(printf %q "${name#"$cut"}")")
    done
}
complete -F _holdfast_names -o nosort -o bashdefault -o default holdfast
"#;

const ZSH_NAMES: &str = r#"_holdfast_names() {
    local -a names
    names=(${(f)"$(holdfast names "$PREFIX" "${words[*]}" 2>/dev/null)"})
    compadd -a names
    _files
}

"#;

const FISH_NAMES: &str = r#"
complete -c holdfast -a '(holdfast names (commandline -ct) (commandline -cp) 2>/dev/null)'
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_and_each_shell_its_completions() {
        let name = format!("holdfast-generate-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let args = GenerateArgs { directory: directory.clone() };
        run(&args, &Output::new(true)).expect("there is room");
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).expect(name);
        for command in CliArguments::command().get_subcommands() {
            let page = read(&format!("holdfast-{}.1", command.get_name()));
            assert!(page.contains(".TH"), "{page}");
        }
        assert!(read("holdfast-serve.1").contains("holdfast.toml"));
        assert!(read("mount.holdfast.8").contains("noxattr"));
        assert!(read("holdfast.toml.5").contains("webhook"));
        let names = std::fs::read_dir(&directory).expect("it is there");
        let names = names.map(|entry| entry.expect("it is there").file_name());
        let help = names.filter(|name| name.to_string_lossy().contains("-help")).count();
        assert_eq!(help, 0, "`help` has a page");
        for file in ["holdfast.bash", "_holdfast", "holdfast.fish"] {
            assert!(read(file).contains("schedule"), "{file}");
            assert!(read(file).contains("holdfast names "), "{file}");
        }
        std::fs::remove_dir_all(&directory).expect("it is ours");
    }
}
