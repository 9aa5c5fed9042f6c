//! The cost of fixed scenarios against what is recorded of them.
//!
//! The program `guard` of `benches` does one scenario and says what it asked of the device;
//! callgrind counts its instructions. Neither depends on how busy a machine is. Each count must be
//! within [`TOLERANCE_PERCENT`] of the record, in both directions: what became cheaper is recorded,
//! so that it stays so.
//!
//! Instructions are those of x86-64 and of the compiler that `rust-toolchain.toml` names. The C
//! library is told to leave out what only some processors have, so that its copies cost the same
//! everywhere.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// How far a count may be from its record.
const TOLERANCE_PERCENT: u64 = 3;
/// What is recorded.
const RECORD: &str = "benches/guard/x86_64.toml";
/// The function that is counted, as callgrind is asked for it.
const MEASURED: &str = "*guard_measured*";
/// Scenarios that run at a time: valgrind uses one processor each.
const AT_A_TIME: usize = 2;
/// Says how to record.
const ADVICE: &str = "cargo run -p xtask -- guard --record";
/// Processors' extras that glibc's copies are not to use.
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-ERMS,-FSRM,\
                        -AVX2_Usable,-AVX_Fast_Unaligned_Load,-Prefer_No_VZEROUPPER";
const INSTRUCTIONS: &str = "instructions";
const OPERATIONS: &str = "operations";

/// Counts of a scenario, by name.
type Counts = BTreeMap<String, u64>;
/// Scenarios, by name.
type Record = BTreeMap<String, Counts>;

/// How a guard ended.
#[derive(Debug)]
pub(crate) enum Guarded {
    /// It cannot run here, and this is why.
    Skipped(String),
    /// What is not as it was recorded.
    Findings(Vec<String>),
}

/// Measures every scenario, and compares with the record or, with `is_recording`, writes it.
pub(crate) fn run(root: &Path, is_recording: bool) -> io::Result<Guarded> {
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Guarded::Skipped("instructions are recorded for x86-64 only".to_owned()));
    }
    let valgrind = Command::new("valgrind").arg("--version").output();
    if !valgrind.is_ok_and(|output| output.status.success()) {
        return Ok(Guarded::Skipped("valgrind is not installed".to_owned()));
    }
    build(root)?;
    let program = root.join("target/release/guard");
    let list = Command::new(&program).arg("--list").output()?;
    let names: Vec<String> =
        String::from_utf8_lossy(&list.stdout).lines().map(str::to_owned).collect();
    let measured = measure_all(&program, &names)?;
    let path = root.join(RECORD);
    if is_recording {
        fs::write(&path, text_of(&measured))?;
        println!("recorded in {RECORD}");
        return Ok(Guarded::Findings(Vec::new()));
    }
    let recorded = parse(&fs::read_to_string(&path)?);
    print!("{}", table(&measured, &recorded));
    Ok(Guarded::Findings(compare(&measured, &recorded)))
}

/// Builds the scenarios as the program is built that ships.
fn build(root: &Path) -> io::Result<()> {
    let built = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["build", "--quiet", "--release", "-p", "benches", "--bin", "guard"])
        .status()?;
    if built.success() { Ok(()) } else { Err(io::Error::other("the scenarios cannot be built")) }
}

fn measure_all(program: &Path, names: &[String]) -> io::Result<Record> {
    let mut measured = Record::new();
    for some in names.chunks(AT_A_TIME) {
        let results: Vec<io::Result<Counts>> = std::thread::scope(|scope| {
            let running: Vec<_> =
                some.iter().map(|name| scope.spawn(|| measure(program, name))).collect();
            let panicked = || Err(io::Error::other("a thread panicked"));
            running.into_iter().map(|one| one.join().unwrap_or_else(|_| panicked())).collect()
        });
        for (name, counts) in some.iter().zip(results) {
            measured.insert(name.clone(), counts?);
        }
    }
    Ok(measured)
}

fn measure(program: &Path, name: &str) -> io::Result<Counts> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={MEASURED}"))
        .arg(program)
        .arg(name)
        // Nothing of the user's: a longer environment moves the stack.
        .env_clear()
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .env("GLIBC_TUNABLES", TUNABLES)
        .stdin(Stdio::null())
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let instructions = told
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse::<u64>().ok())
        .filter(|&count| count > 0);
    let (true, Some(instructions)) = (output.status.success(), instructions) else {
        return Err(io::Error::other(format!("{name} was not counted:\n{told}")));
    };
    let mut counts = Counts::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some((name, count)) = number(line) {
            counts.insert(name, count);
        }
    }
    counts.insert(INSTRUCTIONS.to_owned(), instructions);
    Ok(counts)
}

/// Returns the name and the number of a line `name = number`.
fn number(line: &str) -> Option<(String, u64)> {
    let (name, number) = line.split_once('=')?;
    Some((name.trim().to_owned(), number.trim().replace('_', "").parse().ok()?))
}

/// Reads a record: sections of numbers, the part of TOML that is written.
fn parse(text: &str) -> Record {
    let mut record = Record::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
            record.entry(section.clone()).or_default();
        } else if let (Some(counts), Some((name, count))) = (record.get_mut(&section), number(line))
        {
            counts.insert(name, count);
        }
    }
    record
}

fn text_of(record: &Record) -> String {
    let mut text = format!(
        "# What scenarios cost: written by `{ADVICE}`, checked within {TOLERANCE_PERCENT} %.\n\
         # A commit that changes a number says why.\n"
    );
    for (name, counts) in record {
        let _ = writeln!(text, "\n[{name}]");
        for (name, count) in counts {
            let _ = writeln!(text, "{name} = {count}");
        }
    }
    text
}

/// Returns what is not within the tolerance.
fn compare(measured: &Record, recorded: &Record) -> Vec<String> {
    let mut findings = Vec::new();
    for name in recorded.keys().filter(|name| !measured.contains_key(*name)) {
        findings.push(format!("{name}: recorded, but no scenario: {ADVICE}"));
    }
    for (scenario, counts) in measured {
        let Some(before) = recorded.get(scenario) else {
            findings.push(format!("{scenario}: not recorded: {ADVICE}"));
            continue;
        };
        for (name, &count) in counts {
            let Some(&was) = before.get(name) else {
                findings.push(format!("{scenario}: {name} is not recorded: {ADVICE}"));
                continue;
            };
            if count.abs_diff(was) * 100 > was * TOLERANCE_PERCENT {
                let what = if count > was {
                    "more: find out why, or say why in the commit that records it"
                } else {
                    "less: record it, so that it stays so"
                };
                let change = change(count, was);
                findings.push(format!(
                    "{scenario}: {count} {name}, recorded {was} ({change}), {what}: {ADVICE}"
                ));
            }
        }
    }
    findings
}

/// Returns a change in tenths of a percent, as text.
fn change(count: u64, was: u64) -> String {
    let sign = if count < was { '-' } else { '+' };
    match (count.abs_diff(was) * 1000).checked_div(was) {
        Some(tenths) => format!("{sign}{}.{} %", tenths / 10, tenths % 10),
        None => "new".to_owned(),
    }
}

fn table(measured: &Record, recorded: &Record) -> String {
    let mut text = format!(
        "{:<20} {:>14} {:>8} {:>7} {:>7} {:>8}\n",
        "scenario", "instr. each", "change", "reads", "writes", "flushes"
    );
    for (name, counts) in measured {
        let of = |name: &str| counts.get(name).copied().unwrap_or(0);
        let was = recorded.get(name).and_then(|counts| counts.get(INSTRUCTIONS)).copied();
        let _ = writeln!(
            text,
            "{name:<20} {:>14} {:>8} {:>7} {:>7} {:>8}",
            of(INSTRUCTIONS) / of(OPERATIONS).max(1),
            change(of(INSTRUCTIONS), was.unwrap_or(0)),
            of("reads"),
            of("writes"),
            of("flushes")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(instructions: u64, writes: u64) -> Record {
        let counts = [(INSTRUCTIONS, instructions), ("writes", writes)];
        let counts = counts.map(|(name, count)| (name.to_owned(), count));
        Record::from([("create".to_owned(), Counts::from(counts))])
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let written = record(12_345, 0);
        assert_eq!(parse(&text_of(&written)), written);
        assert!(parse("operations = 1\n# [x]\n").is_empty());
    }

    #[test]
    fn three_percent_are_let_through_and_more_are_not_in_either_direction() {
        let findings = |instructions, writes| {
            compare(&record(instructions, writes), &record(10_000, 10)).len()
        };
        assert_eq!(findings(10_000, 10), 0);
        assert_eq!((findings(10_300, 10), findings(9700, 10)), (0, 0));
        assert_eq!((findings(10_301, 10), findings(9699, 10)), (1, 1));
        assert_eq!(findings(20_000, 11), 2);
        assert_eq!(compare(&record(1, 1), &record(1, 0)).len(), 1, "none was recorded");
    }

    #[test]
    fn a_scenario_that_is_on_one_side_only_is_found() {
        assert_eq!(compare(&record(1, 1), &Record::new()).len(), 1);
        assert_eq!(compare(&Record::new(), &record(1, 1)).len(), 1);
    }

    #[test]
    fn changes_are_shown_in_percent() {
        assert_eq!(change(1031, 1000), "+3.1 %");
        assert_eq!(change(995, 1000), "-0.5 %");
        assert_eq!(change(5, 0), "new");
    }
}
