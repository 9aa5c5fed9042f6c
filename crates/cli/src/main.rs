//! `holdfast`: the program.

use std::process::ExitCode;

use cli::daemon::Relaunch;
use server::wiring::EngineBackend;

fn main() -> ExitCode {
    let arguments = cli::arguments_of(std::env::args_os().skip(1).collect());
    ExitCode::from(cli::run(&arguments, &EngineBackend, &Relaunch::of_this_program(&arguments)))
}
