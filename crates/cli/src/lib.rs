//! The program `holdfast`: arguments, configuration, wiring, signals.
//!
//! ```text
//!   main -> run -> args (parsed arguments)
//!                   -> command::* (one file per command)
//!                        -> backend (access to the engine), front (FUSE, NFS)
//!                        -> output (text or JSON, progress)
//! ```
//!
//! It is a library, so that tests can run commands with a backend of their own.
//!
//! Layers, lowest first: `exit`, `interrupt`, `old_words`, `table`, `progress`, `output`,
//! `summary`, `daemon`, `args`, `reference`, `man`, `command`.

#[cfg(test)]
mod advice;
mod args;
mod command;
pub mod daemon;
pub mod exit;
#[cfg(test)]
mod fuzz;
mod interrupt;
mod man;
mod old_words;
pub mod output;
pub mod progress;
mod reference;
mod summary;
pub mod table;

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use args::{CliArguments, CliCommand};
use daemon::Relaunch;
use output::Output;
use server::backend::Backend;
use server::pool_names;

pub use command::create::create;

/// Runs the program with `arguments` (without its name) and returns its exit code.
#[must_use]
pub fn run(arguments: &[OsString], backend: &dyn Backend, relaunch: &Relaunch) -> u8 {
    // Only for completion scripts, so that it is in no help.
    if let [first, word, line] = arguments
        && first == "names"
    {
        return command::names::run(&word.to_string_lossy(), &line.to_string_lossy());
    }
    if let Some(cause) = old_words::refusal(arguments) {
        Output::new(is_json(arguments)).failure(&anyhow::Error::msg(cause), exit::USAGE);
        return exit::USAGE;
    }
    let with_name = std::iter::once(OsString::from("holdfast")).chain(arguments.iter().cloned());
    let mut parsed = match CliArguments::try_parse_from(with_name) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error, arguments),
    };
    let output = Output::new(parsed.json.is_some()).quiet(parsed.quiet);
    match dispatch(&mut parsed.command, backend, relaunch, &output) {
        Ok(code) => code,
        Err(error) => {
            let code = exit::code_of(&error, matches!(parsed.command, CliCommand::Check(_)));
            output.failure(&error, code);
            code
        }
    }
}

/// Returns the program's arguments. `SOURCE DIRECTORY -o OPTIONS`, in which mount.fuse3(8) calls a
/// program for type `fuse.holdfast`, becomes `mount --daemon`.
#[must_use]
pub fn arguments_of(given: Vec<OsString>) -> Vec<OsString> {
    let is_command = |word: &OsString| {
        CliArguments::command().get_subcommands().any(|it| *word == *it.get_name())
    };
    // `-o` is an option of `mount` alone, so another command's name before a directory is a pool's.
    let is_source = |source: &OsString, directory: &OsString| {
        let has = |byte| source.as_encoded_bytes().contains(&byte);
        let is_pool = !source.as_encoded_bytes().starts_with(b"-") && source != "mount";
        let is_directory = directory.as_encoded_bytes().starts_with(b"/");
        has(b'/') || has(b':') || is_pool && (is_directory || !is_command(source))
    };
    match &*given {
        [source, directory, option, _] if option == "-o" && is_source(source, directory) => {
            ["mount".into(), "--daemon".into()].into_iter().chain(given).collect()
        }
        _ => given,
    }
}

fn dispatch(
    command: &mut CliCommand,
    backend: &dyn Backend,
    relaunch: &Relaunch,
    output: &Output,
) -> anyhow::Result<u8> {
    for path in command.paths() {
        server::status::check_way(path)?;
    }
    resolve_names(command, backend)?;
    match command {
        CliCommand::Create(args) => command::create::run(args, backend, output),
        CliCommand::Pool(args) => command::pool::run(args, backend, output),
        CliCommand::Mount(args) => command::mount::run(args, backend, relaunch, output),
        CliCommand::Unmount(args) => command::unmount::run(args, backend, output),
        CliCommand::Serve(args) => command::serve::run(args, backend, output),
        CliCommand::Status(args) => command::status::run(args, backend, output),
        CliCommand::Fileset(args) => command::fileset::run(args, backend, output),
        CliCommand::Scrub(args) => command::scrub::run(args, backend, output),
        CliCommand::Trim(args) => command::trim::run(args, backend, output),
        CliCommand::Device(args) => command::device::run(args, backend, output),
        CliCommand::Group(args) => command::group::run(args, backend, output),
        CliCommand::Snapshot(args) => command::snapshot::run(args, backend, output),
        CliCommand::Clone(args) => command::clone::run(args, backend, output),
        CliCommand::Export(args) => command::export::run(args, backend, output),
        CliCommand::Reload(args) => command::export::reload(args, backend, output),
        CliCommand::Diff(args) => command::diff::run(args, backend, output),
        CliCommand::CopyIn(args) => command::tree::copy_in(args, backend, output),
        CliCommand::CopyOut(args) => command::tree::copy_out(args, backend, output),
        CliCommand::Quota(args) => command::quota::run(args, backend, output),
        CliCommand::Placement(args) => command::placement::run(args, backend, output),
        CliCommand::Schedule(args) => command::schedule::run(args, backend, output),
        CliCommand::Notify(args) => command::schedule::notify(args, backend, output),
        CliCommand::Top(args) => command::top::top(args, backend, output),
        CliCommand::Trace(args) => command::top::trace(args, backend, output),
        CliCommand::Locks(args) => command::locks::run(args, backend, output),
        CliCommand::Send(args) => command::send::run(args, backend, output),
        CliCommand::Receive(args) => command::receive::run(args, backend, output),
        CliCommand::Job(args) => command::job::run(args, backend, output),
        CliCommand::Check(args) => command::check::run(args, backend, output),
        CliCommand::Dump(args) => command::dump::run(args, backend, output),
        CliCommand::Explain(args) => command::explain::run(args, backend, output),
        CliCommand::Generate(args) => command::generate::run(args, output),
        CliCommand::Demo(args) => command::demo::run(args, backend, output),
    }
}

/// Puts the path of a pool in the place of its name. From here on, commands know paths alone.
fn resolve_names(command: &mut CliCommand, backend: &dyn Backend) -> anyhow::Result<()> {
    let mut named = None;
    for pool in command.pools_mut() {
        server::status::check_way(pool)?;
        if let Some(resolved) = pool_names::resolve(pool, backend)? {
            *pool = resolved.argument;
            named = Some(resolved.name);
        }
    }
    if let CliCommand::Mount(args) = command {
        args.pool_name = named;
    }
    Ok(())
}

/// Whether `--json` is given, of any version.
fn is_json(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().take_while(|&it| it != "--").map(|it| it.to_string_lossy());
    words.any(|it| it == "--json" || it.starts_with("--json="))
}

/// Prints a parse error or the requested help, and returns the exit code.
pub fn refuse(error: &clap::Error, arguments: &[OsString]) -> u8 {
    let is_given = |word: &str| arguments.iter().take_while(|&a| a != "--").any(|a| a == word);
    let code = match (error.use_stderr(), is_given("check")) {
        (false, _) => exit::DONE,
        (true, true) => exit::CHECK_USAGE,
        (true, false) => exit::USAGE,
    };
    if code != exit::DONE && is_json(arguments) {
        let text = error.render().to_string();
        let text = text.trim().trim_start_matches("error: ").to_owned();
        Output::new(true).failure(&anyhow::Error::msg(text), code);
    } else {
        let _ = error.print();
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_mount_fuse_are_those_of_mount() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        for source in ["/srv/pool.hf:a", "tank", "tank:a/b", "pool", "check"] {
            let mounts = arguments_of(words(&format!("{source} /home -o rw,dev,suid")));
            let expected = format!("mount --daemon {source} /home -o rw,dev,suid");
            assert_eq!(mounts, words(&expected));
        }
        for own in [
            "mount /home -o remount,ro",
            "mount /srv/pool.hf /home -o ro",
            "mount pool -o ro",
            "status --json",
        ] {
            assert_eq!(arguments_of(words(own)), words(own));
        }
    }
}
