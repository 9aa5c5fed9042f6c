//! The program `holdfast-lab`: measurements, and torture on simulated disks.

pub(crate) mod args;
mod bench;
mod nfs_args;
mod paper_args;
mod papers;
mod prove;
mod torture;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use cli::daemon::Relaunch;
use cli::exit;
use cli::output::Output;
use server::wiring::EngineBackend;

use self::args::{LabArguments, LabCommand};

pub(crate) fn run(arguments: &[OsString]) -> u8 {
    let with_name =
        std::iter::once(OsString::from("holdfast-lab")).chain(arguments.iter().cloned());
    let parsed = match LabArguments::try_parse_from(with_name) {
        Ok(parsed) => parsed,
        Err(error) => return cli::refuse(&error, arguments),
    };
    let output = Output::new(parsed.json).quiet(parsed.quiet);
    let done = match &parsed.command {
        LabCommand::Torture(args) => torture::run(args, &output),
        LabCommand::Prove(args) => prove::run(args, &output),
        LabCommand::Bench(args) => bench::run(args, &EngineBackend, &holdfast(), &output),
        LabCommand::Papers(args) => papers::run(args, &output),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            let code = exit::of_error(&error);
            output.failure(&error, code);
            code
        }
    }
}

/// Returns the program `holdfast`: of the variable `HOLDFAST`, else beside this program, else from
/// `PATH`.
fn holdfast() -> Relaunch {
    let named = std::env::var_os("HOLDFAST").map(PathBuf::from);
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("holdfast"));
    let found = named.or_else(|| beside.filter(|path| path.exists()));
    let program = found.unwrap_or_else(|| PathBuf::from("holdfast"));
    Relaunch { program, arguments: Vec::new(), environment: Vec::new() }
}
