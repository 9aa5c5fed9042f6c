//! Tables in documents that are made from records of runs.
//!
//! A run is a line of a file in `docs/results`, with the commit that was run. Documents show what
//! these lines come to: a table stands between two marks, and is written anew by
//! `cargo run -p xtask -- results`. `tidy` compares, so a record that is added without its table
//! does not pass.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// Where the records are.
const FOLDER: &str = "docs/results";
/// What a table in a document begins with; the name of a table and ` -->` follow.
const BEGIN: &str = "<!-- table: ";
/// What one ends with.
const END: &str = "<!-- end of table -->";
/// Says how to bring a document up to date.
const ADVICE: &str = "cargo run -p xtask -- results";

/// A table of a document.
struct Table {
    name: &'static str,
    document: &'static str,
    /// The file of records.
    records: &'static str,
    make: fn(&Records) -> Result<String, String>,
}

const TABLES: [Table; 3] = [
    Table { name: "soaks", document: "docs/TESTING.md", records: "soaks.csv", make: totals },
    Table { name: "budgets", document: "docs/TESTING.md", records: "budgets.csv", make: budgets },
    Table { name: "goals", document: "docs/PERFORMANCE.md", records: "goals.csv", make: goals },
];

/// A file of records: names of columns, and lines of as many cells.
#[derive(Debug)]
struct Records {
    columns: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Records {
    fn parse(text: &str) -> Result<Records, String> {
        let mut lines = text.lines().map(cells);
        let columns = lines.next().ok_or("no line with the names of columns")?;
        let lines: Vec<Vec<String>> = lines.collect();
        match (2..).zip(&lines).find(|(_, line)| line.len() != columns.len()) {
            Some((number, line)) => {
                Err(format!("line {number} has {} cells, not {}", line.len(), columns.len()))
            }
            None => Ok(Records { columns, lines }),
        }
    }

    /// Returns each line's cell of the column `name`.
    fn column(&self, name: &str) -> Result<impl Iterator<Item = &str>, String> {
        let at = self.columns.iter().position(|column| column == name);
        let at = at.ok_or_else(|| format!("no column {name}"))?;
        Ok(self.lines.iter().map(move |line| line.get(at).map_or("", String::as_str)))
    }
}

/// Splits a line at its commas. A cell with commas stands in quotation marks, and a mark in it is
/// written twice.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut is_quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let is_pair = is_quoted && character == '"' && characters.peek() == Some(&'"');
        match character {
            '"' if is_pair => push(&mut cells, characters.next()),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            other => push(&mut cells, Some(other)),
        }
    }
    cells
}

fn push(cells: &mut [String], character: Option<char>) {
    if let Some(cell) = cells.last_mut() {
        cell.extend(character);
    }
}

/// Writes every table anew.
pub(crate) fn write(root: &Path) -> io::Result<Vec<String>> {
    each(root, |path, text, new, _| if text == new { Ok(()) } else { fs::write(path, new) })
}

/// Finds tables that are not what the records say.
pub(crate) fn check(root: &Path) -> io::Result<Vec<String>> {
    let mut stale = Vec::new();
    let mut findings = each(root, |_, text, new, table| {
        if text != new {
            let Table { name, document, .. } = table;
            stale.push(format!("{document}: the table {name} is not its records'; {ADVICE}"));
        }
        Ok(())
    })?;
    findings.append(&mut stale);
    Ok(findings)
}

/// Hands each document to `then`, as it is and with the table as it should be; returns what is
/// wrong with records and marks.
fn each(
    root: &Path,
    mut then: impl FnMut(&Path, &str, &str, &Table) -> io::Result<()>,
) -> io::Result<Vec<String>> {
    let mut findings = Vec::new();
    for table in &TABLES {
        let path = root.join(table.document);
        let text = fs::read_to_string(&path)?;
        let records = fs::read_to_string(root.join(FOLDER).join(table.records))?;
        let made = Records::parse(&records).and_then(|records| (table.make)(&records));
        let made = made.map_err(|error| format!("{FOLDER}/{}: {error}", table.records));
        match made.and_then(|made| replaced(&text, table, &made)) {
            Ok(new) => then(&path, &text, &new, table)?,
            Err(finding) => findings.push(finding),
        }
    }
    Ok(findings)
}

/// Returns `text` with `made` between the marks of `table`.
fn replaced(text: &str, table: &Table, made: &str) -> Result<String, String> {
    let mark = format!("{BEGIN}{} -->\n", table.name);
    let missing = || format!("{}: no mark {}", table.document, mark.trim_end());
    let (before, rest) = text.split_once(&mark).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok(format!("{before}{mark}{made}{END}{after}"))
}

/// The table of `shown` columns, under `heads`.
fn copied(records: &Records, heads: &[&str], shown: &[&str]) -> Result<String, String> {
    let mut columns = Vec::new();
    for name in shown {
        columns.push(records.column(name)?.collect::<Vec<_>>());
    }
    let mut table = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for at in 0..records.lines.len() {
        let line: Vec<&str> = columns.iter().filter_map(|column| column.get(at).copied()).collect();
        if line.iter().any(|cell| cell.contains('|')) {
            return Err(format!("line {}: a bar in a cell", at + 2));
        }
        writeln!(table, "| {} |", line.join(" | ")).map_err(|error| error.to_string())?;
    }
    Ok(table)
}

fn budgets(records: &Records) -> Result<String, String> {
    copied(records, &["operation", "budget", "measured"], &["operation", "budget", "measured"])
}

fn goals(records: &Records) -> Result<String, String> {
    copied(records, &["goal", "measured", ""], &["goal", "measured", "verdict"])
}

/// What all runs of one suite come to.
struct Total<'a> {
    suite: &'a str,
    runs: u64,
    findings: u64,
    /// Sums of what was tried, in the order in which they come.
    tried: Vec<(&'a str, f64)>,
}

/// The table of suites, with the sums of all their runs. What a run tried is a list of names with
/// numbers behind them: `seeds 500; crashes 12`.
fn totals(records: &Records) -> Result<String, String> {
    let mut all: Vec<Total<'_>> = Vec::new();
    let lines = records.column("suite")?.zip(records.column("tried")?);
    for ((suite, tried), findings) in lines.zip(records.column("findings")?) {
        if !all.iter().any(|total| total.suite == suite) {
            all.push(Total { suite, runs: 0, findings: 0, tried: Vec::new() });
        }
        let Some(total) = all.iter_mut().find(|total| total.suite == suite) else { continue };
        total.runs += 1;
        total.findings +=
            findings.parse::<u64>().map_err(|_| format!("{suite}: findings {findings}"))?;
        for item in tried.split("; ") {
            let parsed = item
                .rsplit_once(' ')
                .and_then(|(name, amount)| amount.parse::<f64>().ok().map(|amount| (name, amount)));
            let (name, amount) = parsed.ok_or_else(|| format!("{suite}: tried {item}"))?;
            match total.tried.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += amount,
                None => total.tried.push((name, amount)),
            }
        }
    }
    let mut table = "| suite | runs | in all | findings |\n|---|---:|---|---:|\n".to_owned();
    for Total { suite, runs, findings, tried } in all {
        let tried: Vec<String> =
            tried.into_iter().map(|(name, sum)| format!("{} {name}", grouped(sum))).collect();
        writeln!(table, "| {suite} | {runs} | {} | {findings} |", tried.join(", "))
            .map_err(|error| error.to_string())?;
    }
    Ok(table)
}

/// A number with a comma at each three digits, and with one decimal if it is not whole.
fn grouped(number: f64) -> String {
    let text = if number.fract() == 0.0 { format!("{number}") } else { format!("{number:.1}") };
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_may_have_commas_and_quotation_marks() {
        assert_eq!(cells("a,\"b, \"\"c\"\"\",,d"), ["a", "b, \"c\"", "", "d"]);
        assert!(Records::parse("a,b\n1,2,3\n").is_err(), "a cell too many");
        assert!(Records::parse("").is_err());
    }

    #[test]
    fn runs_of_a_suite_are_summed() {
        let records = "suite,tried,findings\ntorture,seeds 900; crashes 5,1\nfsx,hours 0.5,0\n\
                       torture,crashes 2; seeds 100,0\n";
        let table = totals(&Records::parse(records).expect("it is one")).expect("numbers");
        assert!(table.contains("| torture | 2 | 1,000 seeds, 7 crashes | 1 |\n"), "{table}");
        assert!(table.contains("| fsx | 1 | 0.5 hours | 0 |\n"), "{table}");
        let bad = Records::parse("suite,tried,findings\nfsx,many,0\n").expect("it is one");
        assert!(totals(&bad).is_err());
    }

    #[test]
    fn a_table_stands_between_its_marks() {
        let table = &TABLES[0];
        let text = format!("A\n{BEGIN}soaks -->\nold\n{END}\nB\n");
        let new = replaced(&text, table, "new\n").expect("the marks are there");
        assert_eq!(new, format!("A\n{BEGIN}soaks -->\nnew\n{END}\nB\n"));
        assert!(replaced("no marks", table, "new\n").is_err());
    }
}
