//! `holdfast generate`: man pages and completions, made of the definitions that parse arguments.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;

use crate::args::{Arguments, GenerateArgs};
use crate::exit;
use crate::output::Output;

const NAME: &str = "holdfast";

pub(crate) fn run(args: &GenerateArgs, output: &Output) -> anyhow::Result<u8> {
    let directory = &args.directory;
    let context = || format!("{}: cannot write there", directory.display());
    std::fs::create_dir_all(directory).with_context(context)?;
    let mut command = Arguments::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, NAME, directory).with_context(context)?;
    }
    clap_mangen::generate_to(command, directory).with_context(context)?;
    let count = std::fs::read_dir(directory).with_context(context)?.count();
    let text = format!("{count} files are in {}", directory.display());
    output.fact(&text, &json!({ "directory": directory, "files": count }));
    Ok(exit::DONE)
}

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
        for command in Arguments::command().get_subcommands() {
            let page = read(&format!("holdfast-{}.1", command.get_name()));
            assert!(page.contains(".TH"), "{page}");
        }
        assert!(read("holdfast-serve.1").contains("holdfast.toml"));
        for file in ["holdfast.bash", "_holdfast", "holdfast.fish"] {
            assert!(read(file).contains("schedule"), "{file}");
        }
        std::fs::remove_dir_all(&directory).expect("it is ours");
    }
}
