//! Direction of use between the crates.
//!
//! The manifests draw the arrows, and the table here has the ones that are allowed. A crate that
//! is not in the table is a finding. Between the modules of a crate: see `layers.rs`.

use std::fs;
use std::io;
use std::path::Path;

/// The crates that a package may use.
struct Arrows {
    package: &'static str,
    code: &'static [&'static str],
    /// Those that its tests may use as well.
    tests: &'static [&'static str],
}

/// Crates, lowest first; then the packages that ship nothing. Only `lab` and tests use `testkit`,
/// and nothing uses `lab`.
const ARROWS: [Arrows; 16] = [
    Arrows { package: "runtime", code: &[], tests: &[] },
    Arrows { package: "format", code: &["runtime"], tests: &[] },
    Arrows { package: "storage", code: &["runtime", "format"], tests: &[] },
    Arrows { package: "engine", code: &["runtime", "format", "storage"], tests: &[] },
    // Never the engine: a defect of the engine must not hide itself.
    Arrows { package: "check", code: &["runtime", "format", "storage"], tests: &["inspect"] },
    Arrows { package: "inspect", code: &["format", "storage", "check"], tests: &[] },
    Arrows { package: "front", code: &["runtime", "engine"], tests: &["storage"] },
    Arrows { package: "control", code: &["format"], tests: &["runtime"] },
    Arrows {
        package: "server",
        code: &["runtime", "format", "storage", "engine", "check", "inspect", "front", "control"],
        tests: &["testkit"],
    },
    Arrows { package: "bench", code: &["runtime", "storage", "engine"], tests: &[] },
    Arrows {
        package: "testkit",
        code: &["runtime", "format", "storage", "engine", "check"],
        tests: &[],
    },
    Arrows {
        package: "cli",
        code: &["runtime", "format", "storage", "engine", "front", "control", "server"],
        tests: &["testkit"],
    },
    Arrows {
        package: "lab",
        code: &[
            "runtime", "format", "storage", "engine", "check", "inspect", "front", "control",
            "server", "bench", "testkit", "cli",
        ],
        tests: &[],
    },
    Arrows {
        package: "tests",
        code: &["runtime", "format", "storage", "engine", "check", "inspect", "testkit"],
        tests: &["front"],
    },
    Arrows {
        package: "benches",
        code: &["runtime", "format", "storage", "engine", "check", "front", "testkit"],
        tests: &[],
    },
    Arrows { package: "xtask", code: &[], tests: &[] },
];

/// Checks the arrows in the manifests of all packages.
pub(crate) fn check(root: &Path, findings: &mut Vec<String>) -> io::Result<()> {
    let crates = crates(root)?;
    for name in crates.iter().filter(|&name| ARROWS.iter().all(|it| it.package != name)) {
        findings.push(format!("crate {name} is not in the arrows of xtask"));
    }
    for arrows in &ARROWS {
        if let Some(manifest) = manifest_of(root, arrows.package)? {
            arrows.check(&manifest, &crates, findings);
        }
    }
    Ok(())
}

/// Returns the names of the crates, which are those of their folders, in order.
pub(crate) fn crates(root: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("crates"))? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn manifest_of(root: &Path, package: &str) -> io::Result<Option<String>> {
    let paths = [root.join("crates").join(package), root.join(package)];
    let path = paths.iter().map(|folder| folder.join("Cargo.toml")).find(|path| path.is_file());
    path.map(fs::read_to_string).transpose()
}

impl Arrows {
    fn check(&self, manifest: &str, crates: &[String], findings: &mut Vec<String>) {
        let package = self.package;
        for (depended, is_for_tests) in dependencies(manifest) {
            let name = depended.as_str();
            let is_allowed =
                self.code.contains(&name) || (is_for_tests && self.tests.contains(&name));
            if crates.contains(&depended) && !is_allowed {
                findings.push(format!("{package} must not depend on {name}"));
            }
        }
    }
}

/// Returns what `manifest` depends on, and whether for tests only.
fn dependencies(manifest: &str) -> Vec<(String, bool)> {
    let mut is_for_tests = None;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(section) = line.trim().strip_prefix('[') {
            // `[dependencies]`, `[target.'cfg(...)'.dependencies]`, `[dependencies.x]`.
            let (kind, name) = match section.split_once("dependencies") {
                Some((kind, name)) => (Some(kind), name.trim_matches(['.', ']'])),
                None => (None, ""),
            };
            is_for_tests = kind.filter(|_| name.is_empty()).map(|kind| kind.ends_with("dev-"));
            if let Some(kind) = kind.filter(|_| !name.is_empty()) {
                found.push((name.to_owned(), kind.ends_with("dev-")));
            }
        } else if let Some(is_for_tests) = is_for_tests {
            let name = line.split(['.', '=', ' ']).next().unwrap_or("");
            if !name.is_empty() && !name.starts_with('#') {
                found.push((name.to_owned(), is_for_tests));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_with_their_kind() {
        let manifest = "[dependencies]\n# Why.\nformat.workspace = true\n\
                        engine = { path = \"x\" }\n\n[dev-dependencies]\ntestkit.workspace = true\n\
                        [dependencies.check]\npath = \"y\"\n[lints]\nworkspace = true\n";
        let found = dependencies(manifest);
        let found: Vec<(&str, bool)> =
            found.iter().map(|(name, is)| (name.as_str(), *is)).collect();
        assert_eq!(
            found,
            [("format", false), ("engine", false), ("testkit", true), ("check", false)]
        );
    }

    /// Plants an arrow to each crate that is not allowed in the manifest of every package.
    #[test]
    fn tidy_fails_for_each_arrow_that_is_not_allowed() {
        let root = crate::root();
        let crates = crates(&root).expect("the folder is read");
        for arrows in &ARROWS {
            let manifest = manifest_of(&root, arrows.package).expect("the manifest is read");
            let manifest = manifest.expect("the package has a manifest");
            let never = crates.iter().filter(|name| !arrows.code.contains(&name.as_str()));
            for name in never.filter(|&name| name != arrows.package) {
                let planted = format!("[dependencies]\n{name}.workspace = true\n{manifest}");
                let mut findings = Vec::new();
                arrows.check(&planted, &crates, &mut findings);
                assert_eq!(findings, [format!("{} must not depend on {name}", arrows.package)]);
            }
        }
    }

    #[test]
    fn arrows_form_no_circle() {
        for (at, arrows) in ARROWS.iter().enumerate() {
            let before: Vec<&str> = ARROWS.iter().take(at).map(|it| it.package).collect();
            for used in arrows.code {
                assert!(before.contains(used), "{} uses {used}", arrows.package);
            }
        }
    }
}
