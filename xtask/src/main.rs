//! What compilers do not check and a reader should not have to.
//!
//! ```text
//!   cargo run -p xtask -- tidy                  rules of style, layers, defect codes
//!   cargo run -p xtask -- format-doc --check    docs/FORMAT.md against crates/format
//!   cargo run -p xtask -- format-doc --print    the tables as the structs have them
//! ```

mod codes;
mod constants;
mod format_doc;
mod layers;
mod layout;
mod sources;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let findings = match arguments.as_slice() {
        ["tidy"] => tidy::run(&root),
        ["format-doc", "--check"] => format_doc::check(&root),
        ["format-doc", "--print"] => format_doc::print(&root).map(|()| Vec::new()),
        _ => {
            eprintln!(
                "usage: cargo run -p xtask -- tidy | format-doc --check | format-doc --print"
            );
            return ExitCode::from(2);
        }
    };
    match findings {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            for finding in &findings {
                eprintln!("{finding}");
            }
            eprintln!("{} findings", findings.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Returns the root of the workspace, wherever this is run from.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}
