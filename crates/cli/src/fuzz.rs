//! Command lines that nobody has written so: each is refused in words, or does what comes before a
//! pool is touched; none panics.
//!
//! Good lines (`corpus/commands.txt`) with words changed, by seed. `HOLDFAST_FUZZ` is their number.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use clap::Parser;
use runtime::prng::Prng;

use super::*;
use crate::backend::{
    BackendError, CheckReport, CreateOptions, CreateReport, DumpReport, ExplainStep, ExplainTarget,
    Members, OnProgress, OpenOptions, OpenPool, ProveOptions, ProveReport, TortureOptions,
    TortureReport,
};

const CORPUS: &str = include_str!("../corpus/commands.txt");
/// Lines of a run without the variable.
const LINES: u64 = 20_000;
/// Words that are at an edge of what a number, a size, a time, a range, a list or a name may be.
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
/// Commands that do something without a pool, and words that start another program.
const LEFT_OUT: [&[u8]; 7] =
    [b"unmount", b"status", b"bench", b"demo", b"help", b"--daemon", b"--answer-parent"];

/// No pool is there, whatever is asked for.
struct NoPools;

fn missing<T>(device: &Path) -> Result<T, BackendError> {
    Err(BackendError::Missing { device: device.to_owned() })
}

impl Backend for NoPools {
    fn create(&self, options: &CreateOptions) -> Result<CreateReport, BackendError> {
        missing(options.devices.first().map_or(Path::new(""), |path| path))
    }

    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn OpenPool>, BackendError> {
        missing(&options.device)
    }

    fn open_in_memory(&self, _size_bytes: u64) -> Result<Arc<dyn OpenPool>, BackendError> {
        missing(Path::new("memory"))
    }

    fn check(
        &self,
        device: &Path,
        _members: &Members,
        _memory_bytes_max: u64,
        _progress: OnProgress<'_>,
    ) -> Result<CheckReport, BackendError> {
        missing(device)
    }

    fn dump(
        &self,
        device: &Path,
        _members: &Members,
        _what: &str,
    ) -> Result<DumpReport, BackendError> {
        missing(device)
    }

    fn explain(
        &self,
        device: &Path,
        _members: &Members,
        _target: &ExplainTarget,
    ) -> Result<Vec<ExplainStep>, BackendError> {
        missing(device)
    }

    fn torture(
        &self,
        _options: &TortureOptions,
        _progress: OnProgress<'_>,
    ) -> Result<TortureReport, BackendError> {
        missing(Path::new("memory"))
    }

    fn prove(
        &self,
        _options: &ProveOptions,
        _progress: OnProgress<'_>,
    ) -> Result<ProveReport, BackendError> {
        missing(Path::new("memory"))
    }
}

fn index_below(prng: &mut Prng, end: usize) -> usize {
    let end = u64::try_from(end).expect("a line is short");
    usize::try_from(prng.below(end)).expect("below a usize")
}

/// Changes a word, or which words there are.
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

/// Parses a line and does what needs no pool; returns whether it was understood.
fn answer(words: &[OsString]) -> bool {
    let with_name = std::iter::once(OsString::from("holdfast")).chain(words.iter().cloned());
    match Arguments::try_parse_from(with_name) {
        Ok(parsed) => {
            let (relaunch, output) = (Relaunch::of_this_program(words), Output::new(parsed.json));
            let done = if let Command::Mount(args) = &parsed.command {
                // No further: what follows catches signals.
                command::mount::options_of(args).map(|_| exit::DONE)
            } else {
                dispatch(&parsed.command, &NoPools, &relaunch, &output)
            };
            if let Err(error) = done {
                assert!(!format!("{error:#}").is_empty());
                assert_ne!(exit::code_of(&error, &parsed.command), exit::DONE);
            }
            true
        }
        Err(error) => {
            assert!(!error.render().to_string().is_empty());
            false
        }
    }
}

/// Goal: any line gets an answer in words, and the code of a failure where nothing was done.
/// Method: see the module.
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
