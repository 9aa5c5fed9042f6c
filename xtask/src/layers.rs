//! Who may use whom.
//!
//! Between crates the manifests say it, and this checks the arrows that must never be drawn.
//! Inside the engine its `lib.rs` names the layers, lowest first, in its header:
//!
//! ```text
//!   Layers, lowest first: `error`, `buffer`, `journal` ...
//! ```
//!
//! A file may name `crate::x` only where `x` is its own layer or an earlier one. Without such a
//! header the order of the modules counts.

use std::fs;
use std::io;
use std::path::Path;

use crate::sources::Source;

const ENGINE: &str = "crates/engine/src/";
/// Crates, and the crates of the workspace that they may depend on.
const ARROWS: [(&str, &[&str]); 6] = [
    ("runtime", &[]),
    ("format", &["runtime"]),
    ("storage", &["runtime", "format"]),
    ("engine", &["runtime", "format", "storage"]),
    ("check", &["runtime", "format", "storage"]),
    ("inspect", &["runtime", "format", "storage", "check"]),
];
const CRATES: [&str; 10] = [
    "runtime", "format", "storage", "engine", "check", "inspect", "hsm", "front", "cli", "testkit",
];

/// Checks the order of the engine's layers.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<String>) {
    let library = sources.iter().find(|source| source.path == format!("{ENGINE}lib.rs"));
    let Some(library) = library else { return };
    let layers = layers_of(library);
    let position = |name: &str| layers.iter().position(|layer| layer == name);
    for module in modules_of(library) {
        if position(&module).is_none() {
            findings.push(format!("{}: module {module} is not in the layers", library.path));
        }
    }
    for source in sources {
        let Some(inner) = source.path.strip_prefix(ENGINE) else { continue };
        let own = inner.split('/').next().unwrap_or("").trim_end_matches(".rs");
        let Some(own_position) = position(own) else { continue };
        for (number, line) in source.code_lines() {
            for used in used_modules(line) {
                if position(&used).is_some_and(|used| used > own_position) {
                    let path = &source.path;
                    findings.push(format!("{path}:{number}: layer {own} uses {used}, above it"));
                }
            }
        }
    }
}

fn layers_of(library: &Source) -> Vec<String> {
    let header = library.header().join("\n");
    let listed: Vec<String> = match header.split_once("Layers, lowest first:") {
        Some((_, list)) => {
            let list = list.split("\n//!\n").next().unwrap_or("");
            list.split('`').skip(1).step_by(2).map(last).collect()
        }
        None => Vec::new(),
    };
    if listed.is_empty() { modules_of(library) } else { listed }
}

fn last(path: &str) -> String {
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

fn modules_of(library: &Source) -> Vec<String> {
    let module = |line: &str| {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    };
    let lines: Vec<&str> = library.text.lines().collect();
    let is_test = |at: usize| at > 0 && lines.get(at - 1).is_some_and(|l| l.contains("cfg(test)"));
    let modules = lines.iter().enumerate().filter(|&(at, _)| !is_test(at));
    modules.filter_map(|(_, line)| module(line)).collect()
}

/// Returns the modules that `line` names as `crate::x` or `crate::{x, y}`.
fn used_modules(line: &str) -> Vec<String> {
    let code = line.split("//").next().unwrap_or("");
    let mut used = Vec::new();
    for behind in code.split("crate::").skip(1) {
        let parts: Vec<&str> = match behind.strip_prefix('{') {
            Some(list) => list.split(',').collect(),
            None => vec![behind],
        };
        for part in parts {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let part = part.trim();
            let name = part.split(|c: char| !is_name(c)).next().unwrap_or("");
            used.push(name.to_owned());
        }
    }
    used
}

/// Checks the arrows between crates in their manifests; what only tests need is left out.
pub(crate) fn check_manifests(root: &Path, findings: &mut Vec<String>) -> io::Result<()> {
    for (name, allowed) in ARROWS {
        let path = root.join("crates").join(name).join("Cargo.toml");
        if !path.is_file() {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        for depended in dependencies(&text) {
            if CRATES.contains(&depended.as_str()) && !allowed.contains(&depended.as_str()) {
                findings.push(format!("crate {name} must not depend on {depended}"));
            }
        }
    }
    Ok(())
}

fn dependencies(manifest: &str) -> Vec<String> {
    let mut is_inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_inside = line.trim() == "[dependencies]";
        } else if is_inside {
            let name = line.split(['.', '=', ' ']).next().unwrap_or("");
            if !name.is_empty() {
                found.push(name.to_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: format!("{ENGINE}{path}"), text: text.to_owned() }
    }

    fn findings(library: &str, path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(&[source("lib.rs", library), source(path, text)], &mut findings);
        findings.len()
    }

    #[test]
    fn a_use_of_a_higher_layer_is_found() {
        let modules = "//! E.\npub mod buffer;\npub mod journal;\n";
        let listed = "//! E.\n//!\n//! Layers, lowest first: [`journal`],\n//! [`buffer`].\n//!\n\
                      //! More on [`other`].\nmod buffer;\nmod journal;\n";
        let upward = "//! B.\nuse crate::journal::Log;\n";
        assert_eq!(findings(modules, "buffer.rs", upward), 1);
        assert_eq!(findings(modules, "buffer/mod.rs", "//! B.\nuse crate::{a, journal};\n"), 1);
        assert_eq!(findings(modules, "journal.rs", "//! J.\nuse crate::buffer::B;\n"), 0);
        assert_eq!(findings(listed, "buffer.rs", upward), 0);
        assert_eq!(findings(listed, "journal/log.rs", "//! J.\nlet x = crate::buffer::b();\n"), 1);
        assert_eq!(findings("//! Layers, lowest first: `a`\nmod b;\n", "a.rs", "//! A.\n"), 1);
    }

    #[test]
    fn dependencies_for_tests_are_not_arrows() {
        let manifest = "[dependencies]\nformat.workspace = true\nengine = { path = \"x\" }\n\
                        [dev-dependencies]\ntestkit.workspace = true\n";
        assert_eq!(dependencies(manifest), ["format", "engine"]);
    }
}
