//! Direction of use between the modules of a crate.
//!
//! A crate names its layers in the header of its root (`lib.rs`, or `main.rs` of a program):
//!
//! ```text
//!   Layers, lowest first: `error`, `buffer`, `journal` ...
//! ```
//!
//! 1. A root with several modules has such a list, and each of its modules is in it.
//! 2. A file uses its own layer and those before it in the list, never a later one: as `crate::x`,
//!    as `super::x`, or by a name that the root re-exports from `x`.
//! 3. No file uses an item that the root itself defines: the root uses every layer.
//!
//! So the modules of a crate form no circle. Tests are left out: modules under `#[cfg(test)]`,
//! files `tests.rs` and folders `tests`. Arrows between crates: see `arrows.rs`.

use crate::sources::Source;

const CRATES: &str = "crates/";
/// Keywords that begin an item with a name.
const ITEMS: [&str; 7] = ["fn", "struct", "enum", "const", "static", "trait", "type"];
/// How a header begins the list of layers.
const LIST: &str = "Layers, lowest first:";

/// Checks the order of the layers in every crate.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<String>) {
    for root in Root::all(sources) {
        root.check(sources, findings);
    }
}

/// A root of a crate, with its modules and layers.
struct Root<'a> {
    path: &'a str,
    /// Folder of the crate's sources, with a slash at its end.
    folder: &'a str,
    modules: Vec<String>,
    /// Empty if the header has no list.
    layers: Vec<String>,
    /// Names that the root takes from its modules, and from which.
    names: Vec<(String, String)>,
    /// Names of the items that the root defines.
    items: Vec<String>,
}

impl Root<'_> {
    fn all(sources: &[Source]) -> Vec<Root<'_>> {
        let root = |source| Root::of(source).filter(|root| !root.modules.is_empty());
        sources.iter().filter_map(root).collect()
    }

    fn of(source: &Source) -> Option<Root<'_>> {
        let (folder, file) = source.path.split_at(source.path.rfind('/')? + 1);
        let (_, inner) = folder.strip_prefix(CRATES)?.split_once('/')?;
        if inner != "src/" || !matches!(file, "lib.rs" | "main.rs") {
            return None;
        }
        let modules = modules_of(source);
        let layers = layers_of(source);
        let code = code_of(source);
        let (names, items) = (names_of(&code, &modules), items_of(&code));
        Some(Root { path: &source.path, folder, modules, layers, names, items })
    }

    fn check(&self, sources: &[Source], findings: &mut Vec<String>) {
        let path = self.path;
        if self.layers.is_empty() {
            if self.modules.len() > 1 {
                findings.push(format!("{path}: several modules, and no `{LIST}` in its header"));
            }
            return;
        }
        for module in self.modules.iter().filter(|module| !self.layers.contains(module)) {
            findings.push(format!("{path}: module {module} is not in the layers"));
        }
        for layer in self.layers.iter().filter(|layer| !self.modules.contains(layer)) {
            findings.push(format!("{path}: layer {layer} is no module"));
        }
        let of_tests: Vec<String> = sources.iter().flat_map(test_modules_of).collect();
        for source in sources {
            let module = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
            let is_inside = |test: &String| {
                module
                    .strip_prefix(test.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            if !of_tests.iter().any(is_inside) {
                self.check_uses(source, findings);
            }
        }
    }

    fn check_uses(&self, source: &Source, findings: &mut Vec<String>) {
        let Some((own, depth)) = self.own_layer(source) else { return };
        let code = code_of(source);
        for (at, used) in used_names(&code, depth) {
            let (path, number) = (&source.path, line_of(&code, at));
            let module = self.module_of(&used);
            let is_above = |used| Some(used) > self.position(own);
            if self.position(module).is_some_and(is_above) {
                findings.push(format!("{path}:{number}: layer {own} uses {module}, above it"));
            } else if self.items.contains(&used) {
                findings.push(format!("{path}:{number}: layer {own} uses {used} of the root"));
            }
        }
    }

    /// Returns the layer of `source`, and how many `super` lead from it to the root; `None` for a
    /// file of tests, of another root, or outside the layers.
    fn own_layer<'a>(&self, source: &'a Source) -> Option<(&'a str, usize)> {
        let inner = source.path.strip_prefix(self.folder)?.strip_suffix(".rs")?;
        let parts: Vec<&str> = inner.split('/').collect();
        let own = *parts.first()?;
        self.position(own)?;
        if parts.iter().any(|&part| part == "tests" || part.ends_with("_test")) {
            return None;
        }
        let is_interface = parts.last() == Some(&"mod");
        Some((own, parts.len() - usize::from(is_interface)))
    }

    fn position(&self, layer: &str) -> Option<usize> {
        self.layers.iter().position(|it| it == layer)
    }

    /// Returns the module behind `name` in the root.
    fn module_of<'a>(&'a self, name: &'a str) -> &'a str {
        let taken = self.names.iter().find(|(taken, _)| taken == name);
        taken.map_or(name, |(_, module)| module)
    }
}

fn layers_of(root: &Source) -> Vec<String> {
    let header = root.header().join("\n");
    let Some((_, list)) = header.split_once(LIST) else { return Vec::new() };
    let list = list.split("\n//!\n").next().unwrap_or("");
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the modules that `root` declares, without those of tests.
fn modules_of(root: &Source) -> Vec<String> {
    let module = |line: &str| {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    };
    let lines: Vec<&str> = root.text.lines().collect();
    let is_test = |at: usize| at > 0 && lines.get(at - 1).is_some_and(|l| l.contains("cfg(test)"));
    let modules = lines.iter().enumerate().filter(|&(at, _)| !is_test(at));
    modules.filter_map(|(_, line)| module(line)).collect()
}

/// Returns the names that the `use` lines of a root take from its `modules`.
fn names_of(code: &str, modules: &[String]) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for statement in code.split(';') {
        let Some((_, tree)) = statement.rsplit_once("use ") else { continue };
        let tree = tree.trim().trim_start_matches("crate::").trim_start_matches("self::");
        let Some((module, tree)) = tree.split_once("::") else { continue };
        if modules.iter().any(|it| it == module) {
            let leaves = tree.split(['{', '}', ',']).filter_map(|leaf| {
                let name = leaf.rsplit(" as ").next().unwrap_or(leaf);
                let name = name.rsplit("::").next().unwrap_or(name).trim();
                (!name.is_empty()).then(|| (name.to_owned(), module.to_owned()))
            });
            names.extend(leaves);
        }
    }
    names
}

/// Returns the names of the items in the code of a root.
fn items_of(code: &str) -> Vec<String> {
    let item = |line: &str| {
        let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        let line = line.strip_prefix("const fn ").or_else(|| {
            line.split_once(' ').and_then(|(kind, rest)| ITEMS.contains(&kind).then_some(rest))
        })?;
        Some(line.chars().take_while(|&c| is_name(c)).collect())
    };
    code.lines().filter_map(item).collect()
}

/// Returns the paths, without extension, of the modules that `source` has under `#[cfg(test)]`.
fn test_modules_of(source: &Source) -> Vec<String> {
    let path = source.path.trim_end_matches(".rs");
    let folder = ["/mod", "/lib", "/main"].iter().find_map(|end| path.strip_suffix(end));
    let folder = folder.unwrap_or(path);
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let module = |pair: &[&str]| match pair {
        ["#[cfg(test)]", second] => {
            let name = second.trim_start_matches("pub(crate) ").strip_prefix("mod ")?;
            Some(format!("{folder}/{}", name.strip_suffix(';')?))
        }
        _ => None,
    };
    lines.windows(2).filter_map(module).collect()
}

/// Returns the lines outside tests, without comments.
fn code_of(source: &Source) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or("").to_owned();
    source.lines_before_tests().map(|(_, line)| code(line)).collect::<Vec<_>>().join("\n")
}

fn line_of(code: &str, at: usize) -> usize {
    code.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1
}

/// Returns the names in the root that `code` uses, and where, if `depth` times `super` lead to the
/// root.
fn used_names(code: &str, depth: usize) -> Vec<(usize, String)> {
    let mut used = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code.get(..at).unwrap_or("");
            let behind = code.get(at..).unwrap_or("");
            // Inside a path, or in the middle of a word: `pub use super::super::x`, `my_crate::x`.
            if !before.ends_with(|c: char| is_name(c) || c == ':') {
                let mut names = Vec::new();
                names_in_root(behind, depth, &mut names);
                used.extend(names.into_iter().map(|name| (at, name)));
            }
        }
    }
    used.sort();
    used
}

/// Collects the names in the root at which the paths of `tree` begin, which is at the root for a
/// `depth` of 0.
fn names_in_root(tree: &str, depth: usize, names: &mut Vec<String>) {
    let tree = tree.trim_start();
    if let Some(list) = tree.strip_prefix('{') {
        for part in parts_of(list) {
            names_in_root(part, depth, names);
        }
    } else if let Some(behind) = tree.strip_prefix("crate::") {
        names_in_root(behind, 0, names);
    } else if let Some(behind) = tree.strip_prefix("super::").filter(|_| depth > 0) {
        names_in_root(behind, depth - 1, names);
    } else if depth == 0 {
        let name: String = tree.chars().take_while(|&c| is_name(c)).collect();
        names.push(name);
    }
}

/// Splits what is behind an opening brace at its commas, up to the closing one.
fn parts_of(list: &str) -> Vec<&str> {
    let (mut depth, mut start) = (0_usize, 0);
    let mut parts = Vec::new();
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' => {
                parts.extend(list.get(start..at));
                break;
            }
            ',' if depth == 0 => {
                parts.extend(list.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    parts
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{arrows, sources};

    const LISTED: &str = "//! E.\n//!\n//! Layers, lowest first: `journal`,\n//! `buffer`.\n//!\n\
                          //! More on [`other`].\nmod buffer;\nmod journal;\n\
                          pub use buffer::{Buffer, inner::{A, B as C}};\n\
                          pub struct Opened;\npub(crate) fn open() {}\n";

    fn findings(library: &str, path: &str, text: &str) -> usize {
        let source = |path: &str, text: &str| Source {
            path: format!("crates/engine/src/{path}"),
            text: text.to_owned(),
        };
        let mut findings = Vec::new();
        check(&[source("lib.rs", library), source(path, text)], &mut findings);
        findings.len()
    }

    #[test]
    fn a_use_of_a_higher_layer_is_found() {
        let upward = [
            ("journal.rs", "use crate::buffer::B;"),
            ("journal/log.rs", "let x = crate::buffer::b();"),
            ("journal.rs", "use crate::{journal::{a, b},\n    buffer};"),
            ("journal.rs", "use super::buffer;"),
            ("journal/mod.rs", "use super::{buffer::B};"),
            ("journal/log.rs", "use super::super::buffer;"),
            ("journal/log.rs", "use super::{Log, super::buffer};"),
            ("journal.rs", "use crate::Buffer;"),
            ("journal.rs", "let x: crate::C;"),
            ("buffer.rs", "use crate::{journal, Opened};"),
            ("buffer/page.rs", "super::super::open();"),
        ];
        for (path, text) in upward {
            assert_eq!(findings(LISTED, path, &format!("//! X.\n{text}\n")), 1, "{path}: {text}");
        }
    }

    #[test]
    fn other_uses_are_not_found() {
        let allowed = [
            ("buffer.rs", "use crate::journal::Log;"),
            ("buffer.rs", "use crate::{Buffer, journal};"),
            ("journal/log.rs", "use super::buffer;"),
            ("journal.rs", "let x = my_crate::buffer; // crate::buffer"),
            ("journal.rs", "let x: crate::B;"),
            ("journal/tests.rs", "use crate::buffer::B;"),
            ("journal/tests/log.rs", "use crate::buffer::B;"),
            ("journal.rs", "#[cfg(test)]\nmod tests {\n    use crate::buffer;\n}"),
        ];
        for (path, text) in allowed {
            assert_eq!(findings(LISTED, path, &format!("//! X.\n{text}\n")), 0, "{path}: {text}");
        }
    }

    #[test]
    fn a_module_of_tests_is_left_out() {
        let library = LISTED.replace("mod buffer;", "mod buffer;\n#[cfg(test)]\nmod testing;");
        assert_eq!(findings(&library, "testing/a.rs", "//! T.\nuse crate::buffer;\n"), 0);
        let source = |path: &str, text: &str| Source {
            path: format!("crates/engine/src/{path}"),
            text: text.to_owned(),
        };
        let upward = "//! T.\nuse crate::buffer;\n";
        for (declared, count) in [("#[cfg(test)]\nmod testing;\n", 0), ("mod testing;\n", 1)] {
            let sources = [
                source("lib.rs", LISTED),
                source("journal/mod.rs", declared),
                source("journal/testing.rs", upward),
            ];
            let mut findings = Vec::new();
            check(&sources, &mut findings);
            assert_eq!(findings.len(), count, "{declared}: {findings:?}");
        }
    }

    #[test]
    fn a_list_has_each_module_once_there_are_several() {
        assert_eq!(findings("//! E.\nmod a;\n", "a.rs", "//! A.\n"), 0);
        assert_eq!(findings("//! E.\nmod a;\npub mod b;\n", "a.rs", "//! A.\n"), 1);
        let listed = "//! Layers, lowest first: `a`\nmod a;\n";
        assert_eq!(findings(listed, "a.rs", "//! A.\n"), 0);
        assert_eq!(findings(&format!("{listed}mod b;\n"), "a.rs", "//! A.\n"), 1);
        assert_eq!(findings(&format!("{listed}#[cfg(test)]\nmod b;\n"), "a.rs", "//! A.\n"), 0);
        let without = "//! Layers, lowest first: `a`, `b`\nmod a;\n";
        assert_eq!(findings(without, "a.rs", "//! A.\n"), 1);
    }

    /// Plants an upward arrow in the sources of every crate.
    #[test]
    fn tidy_fails_for_an_upward_arrow_in_each_crate() {
        let mut sources = sources::all(&crate::root()).expect("the sources are read");
        let planted: Vec<(usize, String)> = Root::all(&sources)
            .iter()
            .filter_map(|root| {
                let (lowest, highest) = (root.layers.first()?, root.layers.last()?);
                let is_lowest =
                    |source| root.own_layer(source).is_some_and(|(own, _)| own == lowest);
                let file = sources.iter().position(is_lowest)?;
                Some((file, highest.clone()))
            })
            .collect();
        let mut crates = Vec::new();
        for (file, highest) in planted {
            let Source { path, text } = &mut sources[file];
            let header = text.lines().take_while(|line| line.starts_with("//!")).count();
            let own = std::mem::take(text);
            let mut lines: Vec<&str> = own.lines().collect();
            let line = format!("use crate::{highest}::x;");
            lines.insert(header, &line);
            *text = lines.join("\n");
            crates.extend(path.split('/').nth(1).map(str::to_owned));
            let start = format!("{path}:{}: layer ", header + 1);
            let end = format!("uses {highest}, above it");
            let mut findings = Vec::new();
            check(&sources, &mut findings);
            let is_it = |finding: &String| finding.starts_with(&start) && finding.ends_with(&end);
            assert!(findings.iter().any(is_it), "{start}... {end}: {findings:?}");
            sources[file].text = own;
        }
        crates.sort();
        assert_eq!(crates, arrows::crates(&crate::root()).expect("the folder is read"));
    }
}
