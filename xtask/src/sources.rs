//! The Rust sources of the workspace, and which of their lines are tests.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders of the workspace that hold sources.
const FOLDERS: [&str; 4] = ["crates", "xtask", "tests", "benches"];

/// One source file.
#[derive(Debug)]
pub(crate) struct Source {
    /// Relative to the root of the workspace, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// Whether the whole file is tests.
    pub(crate) fn is_test(&self) -> bool {
        let is_named = |part: &str| part == "tests" || part == "tests.rs" || part == "testkit";
        self.path.split('/').any(is_named) || self.path.ends_with("_test.rs")
    }

    /// Steps over the lines outside tests: number and text.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let count = if self.is_test() { 0 } else { usize::MAX };
        self.lines_before_tests().take(count)
    }

    /// Steps over the lines before the tests of the file, which are at its end, behind
    /// `#[cfg(test)]` and a module with a body.
    pub(crate) fn lines_before_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines: Vec<&str> = self.text.lines().collect();
        let is_module = |line: &str| {
            let line = line.trim();
            let line = line.trim_start_matches("pub(super) ").trim_start_matches("pub(crate) ");
            line.starts_with("mod ") && line.ends_with('{')
        };
        let is_start = |pair: &[&str]| match pair {
            [first, second] => first.trim() == "#[cfg(test)]" && is_module(second),
            _ => false,
        };
        let end = lines.windows(2).position(is_start).unwrap_or(lines.len());
        (1..).zip(lines).take(end)
    }

    /// Returns the lines of the module's header.
    pub(crate) fn header(&self) -> Vec<&str> {
        self.text.lines().take_while(|line| line.starts_with("//!")).collect()
    }
}

/// Returns every source, in order of path.
pub(crate) fn all(root: &Path) -> io::Result<Vec<Source>> {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        let folder = root.join(folder);
        if folder.is_dir() {
            collect(&folder, &mut paths)?;
        }
    }
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path)?;
            let relative = path.strip_prefix(root).unwrap_or(&path);
            Ok(Source { path: relative.to_string_lossy().replace('\\', "/"), text })
        })
        .collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, paths)?;
        } else if name.ends_with(".rs") {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_from_code() {
        let text = "//! Header.\nfn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        let source = |path: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let code = source("crates/x/src/a.rs");
        let lines: Vec<_> = code.code_lines().collect();
        assert_eq!(lines, [(1, "//! Header."), (2, "fn f() {}")]);
        assert_eq!(source("crates/x/src/tests/a.rs").code_lines().count(), 0);
        assert_eq!(source("a.rs").header(), ["//! Header."]);
    }
}
