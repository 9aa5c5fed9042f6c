//! `docs/FORMAT.md` against the sources of `crates/format`.
//!
//! In the document a struct's table follows the line `<!-- struct NAME -->`, with a row for each
//! field: offset, size, name, meaning. Tables of constants follow `<!-- constants -->`, with rows
//! of name, value and what happens at it. Both must say what the sources say, and every struct
//! must have its table, under the heading that its comment names.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::constants;
use crate::layout::{Layout, layouts};
use crate::sources::{self, Source};

const DOCUMENT: &str = "docs/FORMAT.md";
const FORMAT: &str = "crates/format/src/";

/// Returns where the document and the sources differ.
pub(crate) fn check(root: &Path) -> io::Result<Vec<String>> {
    let document = fs::read_to_string(root.join(DOCUMENT))?;
    let sources = sources::all(root)?;
    let sources = format_sources(&sources);
    let layouts = match layouts(&sources) {
        Ok(layouts) => layouts,
        Err(error) => return Ok(vec![error]),
    };
    Ok(compare(&document, &layouts, &constants::values(&sources)))
}

/// Prints the tables as the structs have them: what to start from for a new one.
pub(crate) fn print(root: &Path) -> io::Result<()> {
    let sources = sources::all(root)?;
    for layout in layouts(&format_sources(&sources)).map_err(io::Error::other)? {
        println!("<!-- struct {} -->\n", layout.name);
        println!("| offset | size | name | meaning |\n|---:|---:|---|---|");
        for field in &layout.fields {
            let (offset, size, name) = (field.offset, field.size, &field.name);
            println!("| {offset} | {size} | `{name}` | {} |", field.comment);
        }
        println!();
    }
    Ok(())
}

fn format_sources(sources: &[Source]) -> Vec<&Source> {
    sources.iter().filter(|source| source.path.starts_with(FORMAT)).collect()
}

fn compare(document: &str, layouts: &[Layout], constants: &BTreeMap<String, u64>) -> Vec<String> {
    let mut findings = Vec::new();
    let tables = struct_tables(document);
    for layout in layouts {
        match tables.get(layout.name.as_str()) {
            None => findings.push(format!("{DOCUMENT}: no table of {}", layout.name)),
            Some(rows) => compare_table(layout, rows, &mut findings),
        }
        let anchors: Vec<String> = document.lines().filter_map(heading_anchor).collect();
        if let Some(anchor) = &layout.anchor
            && !anchors.contains(anchor)
        {
            findings.push(format!("{DOCUMENT}: {} names the heading #{anchor}", layout.name));
        }
    }
    for name in tables.keys() {
        if !layouts.iter().any(|layout| layout.name == *name) {
            findings.push(format!("{DOCUMENT}: a table of {name}, which is no struct"));
        }
    }
    compare_constants(document, constants, &mut findings);
    findings
}

fn compare_table(layout: &Layout, rows: &[Vec<&str>], findings: &mut Vec<String>) {
    let name = &layout.name;
    for (row, field) in rows.iter().zip(&layout.fields) {
        let expected =
            [field.offset.to_string(), field.size.to_string(), format!("`{}`", field.name)];
        let found: Vec<&str> = row.iter().take(3).copied().collect();
        if found != expected {
            let (found, expected) = (found.join(" "), expected.join(" "));
            findings.push(format!("{DOCUMENT}: {name}: says {found}, the struct {expected}"));
        }
        if row.get(3).is_none_or(|meaning| meaning.is_empty()) {
            findings.push(format!("{DOCUMENT}: {name}: `{}` has no meaning", field.name));
        }
    }
    if rows.len() != layout.fields.len() {
        let (found, expected) = (rows.len(), layout.fields.len());
        findings.push(format!("{DOCUMENT}: {name}: {found} rows, the struct has {expected}"));
    }
}

/// Returns the rows of each struct's table.
fn struct_tables(document: &str) -> BTreeMap<&str, Vec<Vec<&str>>> {
    let mut tables = BTreeMap::new();
    for part in document.split("<!-- struct ").skip(1) {
        if let Some((name, rest)) = part.split_once(" -->") {
            tables.insert(name, rows_of(rest));
        }
    }
    tables
}

/// Returns the cells of the rows of the table at the start of `text`.
fn rows_of(text: &str) -> Vec<Vec<&str>> {
    text.lines()
        .skip_while(|line| line.trim().is_empty())
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim().trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

fn compare_constants(
    document: &str,
    constants: &BTreeMap<String, u64>,
    findings: &mut Vec<String>,
) {
    for part in document.split("<!-- constants -->").skip(1) {
        for row in rows_of(part) {
            let [name, value, rest @ ..] = row.as_slice() else { continue };
            let name = name.trim_matches('`');
            let stated: String = value.chars().filter(char::is_ascii_digit).collect();
            match constants.get(name) {
                None => findings.push(format!("{DOCUMENT}: {name} is no constant of the sources")),
                Some(known) if known.to_string() != stated => {
                    findings.push(format!("{DOCUMENT}: {name} is {known}, not {value}"));
                }
                Some(_) if rest.iter().all(|cell| cell.is_empty()) => {
                    findings.push(format!("{DOCUMENT}: {name} has no meaning"));
                }
                Some(_) => {}
            }
        }
    }
}

/// Returns the anchor that a heading gets: lower case, spaces to hyphens, punctuation gone.
fn heading_anchor(line: &str) -> Option<String> {
    let text = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let letters = text.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-');
    Some(letters.collect::<String>().to_lowercase().replace(' ', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRUCT: &str = "pub const N: u64 = 5_000;\n/// Format: `docs/FORMAT.md#the-thing`.\n\
                          #[repr(C)]\nstruct ThingDisk {\n    a: U16,\n    b: U64,\n}\n";
    const DOCUMENT: &str = "## The thing\n\n<!-- struct ThingDisk -->\n\n\
                            | offset | size | name | meaning |\n|---|---|---|---|\n\
                            | 0 | 2 | `a` | First. |\n| 2 | 8 | `b` | Second. |\n\n\
                            <!-- constants -->\n| name | value | at it |\n|---|---|---|\n\
                            | `N` | 5,000 | refused |\n";

    fn findings(document: &str) -> usize {
        let source = Source { path: "a.rs".to_owned(), text: STRUCT.to_owned() };
        let sources = [&source];
        let layouts = layouts(&sources).expect("all types are known");
        compare(document, &layouts, &constants::values(&sources)).len()
    }

    #[test]
    fn the_document_says_what_the_sources_say() {
        let findings = check(&crate::root()).expect("the document and the sources can be read");
        assert_eq!(findings, Vec::<String>::new());
    }

    #[test]
    fn each_difference_is_found() {
        assert_eq!(findings(DOCUMENT), 0);
        let changes = [
            ("| 0 | 2 | `a`", "| 1 | 2 | `a`"),
            ("| 0 | 2 | `a`", "| 0 | 4 | `a`"),
            ("| 0 | 2 | `a`", "| 0 | 2 | `c`"),
            ("First.", ""),
            ("| 2 | 8 | `b` | Second. |\n", ""),
            ("## The thing", "## Another thing"),
            ("5,000", "5,001"),
            ("`N`", "`M`"),
            ("refused", ""),
            ("<!-- constants -->", "<!-- struct OtherDisk -->"),
        ];
        for (from, to) in changes {
            assert_eq!(findings(&DOCUMENT.replace(from, to)), 1, "{from} to {to}");
        }
        assert_eq!(findings("## The thing\n"), 1, "no table");
    }
}
