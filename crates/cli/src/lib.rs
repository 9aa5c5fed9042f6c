//! The program `holdfast`: arguments, configuration, wiring, signals.
//!
//! ```text
//!   main -> run -> args (what was asked)
//!                   -> command::* (one file a command)
//!                        -> backend (all that needs the engine), front (FUSE, NFS)
//!                        -> output (human text or JSON, progress)
//! ```
//!
//! A library only so that tests can run commands on a backend of their own.

mod args;
pub mod backend;
mod bugs;
mod command;
pub mod control;
mod copies;
pub mod daemon;
mod events;
mod exit;
#[cfg(test)]
mod fuzz;
mod holders;
mod mounts;
mod named;
mod output;
mod patience;
mod places;
mod roles;
mod run_directory;
mod server;
pub mod size;
mod status;
mod summary;
pub mod transfer;
mod tree;
mod until;
mod uses;
pub mod wiring;

use std::ffi::OsString;

use clap::Parser;

use args::{Arguments, Command};
use backend::Backend;
use daemon::Relaunch;
use output::Output;

/// Runs the program with `arguments` (without its name) and returns its exit code.
#[must_use]
pub fn run(arguments: &[OsString], backend: &dyn Backend, relaunch: &Relaunch) -> u8 {
    let with_name = std::iter::once(OsString::from("holdfast")).chain(arguments.iter().cloned());
    let parsed = match Arguments::try_parse_from(with_name) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error, arguments),
    };
    let output = Output::new(parsed.json).quiet(parsed.quiet);
    match dispatch(&parsed.command, backend, relaunch, &output) {
        Ok(code) => code,
        Err(error) => {
            let code = exit::code_of(&error, &parsed.command);
            output.failure(&error, code);
            code
        }
    }
}

/// Returns the arguments of the program: of `mount --daemon` where `given` are those by which
/// mount.fuse3(8) calls the program of a type `fuse.holdfast`, `SOURCE DIRECTORY -o OPTIONS`.
#[must_use]
pub fn arguments_of(given: Vec<OsString>) -> Vec<OsString> {
    let is_source = |source: &OsString| source.as_encoded_bytes().contains(&b'/');
    match &*given {
        [source, _, option, _] if option == "-o" && is_source(source) => {
            ["mount".into(), "--daemon".into()].into_iter().chain(given).collect()
        }
        _ => given,
    }
}

fn dispatch(
    command: &Command,
    backend: &dyn Backend,
    relaunch: &Relaunch,
    output: &Output,
) -> anyhow::Result<u8> {
    for path in command.paths() {
        status::check_way(path)?;
    }
    match command {
        Command::Create(args) => command::create::run(args, backend, output),
        Command::Mount(args) => command::mount::run(args, backend, relaunch, output),
        Command::Unmount(args) => command::unmount::run(args, backend, output),
        Command::Serve(args) => command::serve::run(args, backend, output),
        Command::Status(args) => command::status::run(args, output),
        Command::Fileset(args) => command::fileset::run(args, backend, output),
        Command::Scrub(args) => command::scrub::run(args, backend, output),
        Command::Trim(args) => command::trim::run(args, backend, output),
        Command::Device(args) => command::device::run(args, backend, output),
        Command::Group(args) => command::group::run(args, backend, output),
        Command::Clone(args) => command::clone::run(args, backend, output),
        Command::Export(args) => command::export::run(args, backend, output),
        Command::Reload(args) => command::export::reload(args, backend, output),
        Command::Diff(args) => command::diff::run(args, backend, output),
        Command::Import(args) => command::tree::import(args, backend, output),
        Command::ExportTree(args) => command::tree::export(args, backend, output),
        Command::Quota(args) => command::quota::run(args, backend, output),
        Command::Placement(args) => command::placement::run(args, backend, output),
        Command::Schedule(args) => command::schedule::run(args, backend, output),
        Command::Notify(args) => command::schedule::notify(args, backend, output),
        Command::Top(args) => command::top::top(args, backend, output),
        Command::Trace(args) => command::top::trace(args, backend, output),
        Command::Send(args) => command::send::run(args, backend, output),
        Command::Receive(args) => command::receive::run(args, backend, output),
        Command::Job(args) => command::job::run(args, backend, output),
        Command::Check(args) => command::check::run(args, backend, output),
        Command::Dump(args) => command::dump::run(args, backend, output),
        Command::Explain(args) => command::explain::run(args, backend, output),
        Command::Torture(args) => command::torture::run(args, backend, output),
        Command::Prove(args) => command::prove::run(args, backend, output),
        Command::Bench(args) => command::bench::run(args, backend, relaunch, output),
        Command::Lab(args) => command::lab::run(args, output),
        Command::Generate(args) => command::generate::run(args, output),
        Command::Demo(args) => command::demo::run(args, backend, output),
    }
}

/// Says why the arguments were not understood, or shows the help that was asked for.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> u8 {
    let is_given = |word: &str| arguments.iter().take_while(|&a| a != "--").any(|a| a == word);
    let code = match (error.use_stderr(), is_given("check")) {
        (false, _) => exit::DONE,
        (true, true) => exit::CHECK_USAGE,
        (true, false) => exit::USAGE,
    };
    if code != exit::DONE && is_given("--json") {
        let text = error.render().to_string();
        let text = text.trim().trim_start_matches("error: ").to_owned();
        Output::new(true).failure(&anyhow::Error::msg(text), code);
    } else {
        // Nothing can be said where even this fails.
        let _ = error.print();
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what mount.fuse3(8) calls the program with mounts, and nothing else is taken for it.
    #[test]
    fn the_arguments_of_mount_fuse_are_those_of_mount() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let mounts = arguments_of(words("/srv/pool.hf:a /home -o rw,dev,suid"));
        assert_eq!(mounts, words("mount --daemon /srv/pool.hf:a /home -o rw,dev,suid"));
        for own in ["mount /srv/pool.hf /home -o ro", "mount pool -o ro", "status --json"] {
            assert_eq!(arguments_of(words(own)), words(own));
        }
    }
}
