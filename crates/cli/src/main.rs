//! `holdfast`: the program.

use std::process::ExitCode;

use cli::backend::EngineBackend;
use cli::daemon::Relaunch;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    ExitCode::from(cli::run(&arguments, &EngineBackend, &Relaunch::of_this_program(&arguments)))
}
