//! What compilers do not check and a reader should not have to.
//!
//! ```text
//!   cargo run -p xtask -- tidy                  rules of style, layers, defect codes, citations
//!   cargo run -p xtask -- format-doc --check    docs/FORMAT.md against crates/format
//!   cargo run -p xtask -- format-doc --print    the tables as the structs have them
//!   cargo run -p xtask -- results               tables of documents, from docs/results
//!   cargo run -p xtask -- guard                 what fixed scenarios cost, against benches/guard/
//!   cargo run -p xtask -- guard --record        records what they cost now
//! ```

mod arrows;
mod citations;
mod codes;
mod constants;
mod format_doc;
mod guard;
mod invariants;
mod layers;
mod layout;
mod results;
mod sources;
mod tidy;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use guard::Guarded;

/// What `./test` takes for skipped.
const EXIT_SKIPPED: u8 = 77;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let findings = match arguments.as_slice() {
        ["tidy"] => tidy::run(&root),
        ["format-doc", "--check"] => format_doc::check(&root),
        ["format-doc", "--print"] => format_doc::print(&root).map(|()| Vec::new()),
        ["results"] => results::write(&root),
        ["guard"] => return guarded(guard::run(&root, false)),
        ["guard", "--record"] => return guarded(guard::run(&root, true)),
        _ => {
            eprintln!(
                "usage: cargo run -p xtask -- tidy | format-doc --check | format-doc --print | \
                 results | guard [--record]"
            );
            return ExitCode::from(2);
        }
    };
    ended(findings)
}

fn ended(findings: io::Result<Vec<String>>) -> ExitCode {
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

/// As [`ended`]; what cannot run here is skipped, loudly.
fn guarded(guarded: io::Result<Guarded>) -> ExitCode {
    match guarded {
        Ok(Guarded::Skipped(why)) => {
            eprintln!("\n*** SKIPPED: guard: {why} ***\n");
            ExitCode::from(EXIT_SKIPPED)
        }
        Ok(Guarded::Findings(findings)) => ended(Ok(findings)),
        Err(error) => ended(Err(error)),
    }
}

/// Returns the root of the workspace, wherever this is run from.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}
