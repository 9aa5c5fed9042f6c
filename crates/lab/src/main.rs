//! `holdfast-lab`: the second program, for measurements and torture.

mod program;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    ExitCode::from(program::run(&arguments))
}
