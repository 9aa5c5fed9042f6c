//! Fuzzing of command lines. Mutated lines of `corpus/commands.txt` are run up to the first access
//! to a pool, and none may panic. `HOLDFAST_FUZZ` sets the number of lines.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use clap::Parser;
use runtime::prng::Prng;

use super::*;
use control::wire::ExplainStep;
use server::backend::{
    BackendCreateOptions, BackendError, BackendOpenOptions, CheckReport, CreateReport, DumpReport,
    ExplainTarget, MemberSearchOptions, OnProgress, OpenPool,
};

const CORPUS: &str = include_str!("../corpus/commands.txt");
const LINES: u64 = 20_000;
const EDGES: [&str; 28] = [
    "",
    "-",
    "--",
    "-o",
    "=",
    ",",
    ":",
    "0",
    "-1",
    "00000000000000000000000000001",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "16E",
    "15.999999999E",
    "1.9999999999K",
    "18446744073709551615ms",
    "307445734561825861m",
    "1e9",
    "\u{bd}K",
    "0.0K",
    "x:18446744073709551615+18446744073709551615",
    "x:0-",
    "x:16E-16E",
    "max_read=4294967296",
    "ro,,rw,ro=1",
    "page:18446744073709551615:0:0",
    "--no-such-option",
];
/// Commands that do something without a pool, or start another program.
const LEFT_OUT: [&[u8]; 6] =
    [b"unmount", b"status", b"demo", b"help", b"--daemon", b"--answer-parent"];

struct MissingPoolBackend;

fn missing<T>(device: &Path) -> Result<T, BackendError> {
    Err(BackendError::Missing { device: device.to_owned() })
}

impl Backend for MissingPoolBackend {
    fn create(&self, options: &BackendCreateOptions) -> Result<CreateReport, BackendError> {
        missing(options.devices.first().map_or(Path::new(""), |path| path))
    }

    fn open(&self, options: &BackendOpenOptions) -> Result<Arc<dyn OpenPool>, BackendError> {
        missing(&options.device)
    }

    fn open_in_memory(&self, _size_bytes: u64) -> Result<Arc<dyn OpenPool>, BackendError> {
        missing(Path::new("memory"))
    }

    fn check(
        &self,
        device: &Path,
        _members: &MemberSearchOptions,
        _memory_bytes_max: u64,
        _progress: OnProgress<'_>,
    ) -> Result<CheckReport, BackendError> {
        missing(device)
    }

    fn dump(
        &self,
        device: &Path,
        _members: &MemberSearchOptions,
        _what: &str,
    ) -> Result<DumpReport, BackendError> {
        missing(device)
    }

    fn explain(
        &self,
        device: &Path,
        _members: &MemberSearchOptions,
        _target: &ExplainTarget,
    ) -> Result<Vec<ExplainStep>, BackendError> {
        missing(device)
    }
}

fn index_below(prng: &mut Prng, end: usize) -> usize {
    let end = u64::try_from(end).expect("a line is short");
    usize::try_from(prng.below(end)).expect("below a usize")
}

fn mutate(prng: &mut Prng, words: &mut Vec<OsString>, all: &[&str]) {
    let at = index_below(prng, words.len() + 1);
    let edge = EDGES[index_below(prng, EDGES.len())];
    let other = all[index_below(prng, all.len())];
    let Some(word) = words.get_mut(at) else {
        words.push(if prng.one_in(2) { edge.into() } else { other.into() });
        return;
    };
    match prng.below(6) {
        0 => *word = edge.into(),
        1 => *word = other.into(),
        2 => word.push(edge),
        3 => drop(words.remove(at)),
        4 => {
            let copy = word.clone();
            words.insert(at, copy);
        }
        _ => {
            let mut bytes = word.as_bytes().to_vec();
            let byte = prng.next_u64().to_le_bytes()[0];
            match bytes.len() {
                0 => bytes.push(byte),
                length => bytes[index_below(prng, length)] = byte,
            }
            *word = OsString::from_vec(bytes);
        }
    }
}

/// Parses a line, and runs it as far as it needs no pool. Returns whether it parsed.
fn answer(words: &[OsString]) -> bool {
    let with_name = std::iter::once(OsString::from("holdfast")).chain(words.iter().cloned());
    match CliArguments::try_parse_from(with_name) {
        Ok(mut parsed) => {
            let (relaunch, output) =
                (Relaunch::of_this_program(words), Output::new(parsed.json.is_some()));
            let done = if let CliCommand::Mount(args) = &parsed.command {
                // `mount` would catch signals next.
                command::mount::options_of(args).map(|_| exit::DONE)
            } else {
                dispatch(&mut parsed.command, &MissingPoolBackend, &relaunch, &output)
            };
            if let Err(error) = done {
                assert!(!format!("{error:#}").is_empty());
                assert_ne!(
                    exit::code_of(&error, matches!(parsed.command, CliCommand::Check(_))),
                    exit::DONE
                );
            }
            true
        }
        Err(error) => {
            assert!(!error.render().to_string().is_empty());
            false
        }
    }
}

/// Goal: every line gets a message, and a failed one an exit code other than 0.
#[test]
fn any_change_of_a_command_line_is_answered() {
    let lines: Vec<Vec<&str>> =
        CORPUS.lines().map(|line| line.split_whitespace().collect()).collect();
    let all: Vec<&str> = lines.iter().flatten().copied().collect();
    for line in &lines {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        assert!(answer(&words), "a good line is refused: {line:?}");
    }
    let count = std::env::var("HOLDFAST_FUZZ").ok().and_then(|text| text.parse().ok());
    let mut understood = 0;
    for seed in 0..count.unwrap_or(LINES) {
        let mut prng = Prng::from_seed(seed);
        let line = &lines[index_below(&mut prng, lines.len())];
        let mut words: Vec<OsString> = line.iter().map(OsString::from).collect();
        for _ in 0..=prng.below(3) {
            mutate(&mut prng, &mut words, &all);
        }
        if words.iter().any(|word| LEFT_OUT.contains(&word.as_bytes())) {
            continue;
        }
        understood += u64::from(answer(&words));
    }
    assert!(understood > 0, "no line was understood");
}
