//! Steps as lines of text.
//!
//! ```text
//! u7 create /a/b file 644
//! u0 write /a/b 4096 100 17
//! u0 rename /a/b /c noreplace
//! ```
//!
//! Words are divided by one space. In names, bytes other than letters, digits, `.`, `_` and `-`
//! are `%` and two hexadecimal digits; a long run of one byte is `%{6e*255}`. A slot is `@3`.

use std::fmt;
use std::str::FromStr;

use engine::api::{Fallocate, FileKind, RenameMode, Seek, SetTime, Timestamp, XattrMode};

use super::{Op, Place, Route, SLOTS, Step};

/// Runs of one byte from this length on are written as a count.
const RUN_MIN: usize = 8;

/// Why a line is no step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: not a step: {text:?}")]
pub struct ParseError {
    /// Which line of a history, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
}

/// Returns `history` as lines.
#[must_use]
pub fn history_to_text(history: &[Step]) -> String {
    history.iter().map(|step| format!("{step}\n")).collect()
}

/// Returns the history that `text` says; empty lines and lines that begin with `#` are left out.
///
/// # Errors
///
/// With the first line that is no step.
pub fn history_from_text(text: &str) -> Result<Vec<Step>, ParseError> {
    let mut history = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let step = line.parse().map_err(|error| ParseError { line: index + 1, ..error })?;
        history.push(step);
    }
    Ok(history)
}

struct Bytes<'a>(&'a [u8]);

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for run in self.0.chunk_by(|a, b| a == b) {
            let byte = run[0];
            if run.len() >= RUN_MIN {
                write!(f, "%{{{byte:02x}*{}}}", run.len())?;
                continue;
            }
            for _ in run {
                if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
                    write!(f, "{}", char::from(byte))?;
                } else {
                    write!(f, "%{byte:02x}")?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        self.0.iter().try_for_each(|name| write!(f, "/{}", Bytes(name)))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::At(route) => route.fmt(f),
            Place::Slot(slot) => write!(f, "@{slot}"),
        }
    }
}

const KINDS: [(&str, FileKind); 6] = [
    ("file", FileKind::Regular),
    ("directory", FileKind::Directory),
    ("block", FileKind::BlockDevice),
    ("char", FileKind::CharDevice),
    ("fifo", FileKind::Fifo),
    ("socket", FileKind::Socket),
];
const FALLOCATES: [(&str, Fallocate); 7] = [
    ("punch", Fallocate::PunchHole),
    ("zero", Fallocate::ZeroRange { keep_size: false }),
    ("zero-keep", Fallocate::ZeroRange { keep_size: true }),
    ("allocate", Fallocate::Allocate { keep_size: false }),
    ("allocate-keep", Fallocate::Allocate { keep_size: true }),
    ("collapse", Fallocate::CollapseRange),
    ("insert", Fallocate::InsertRange),
];
const SEEKS: [(&str, Seek); 2] = [("data", Seek::Data), ("hole", Seek::Hole)];
const RENAME_MODES: [(&str, RenameMode); 5] = [
    ("replace", RenameMode::Replace),
    ("noreplace", RenameMode::NoReplace),
    ("exchange", RenameMode::Exchange),
    ("whiteout", RenameMode::Whiteout),
    ("whiteout-noreplace", RenameMode::WhiteoutNoReplace),
];
const ACL_SORTS: [(&str, bool); 2] = [("access", false), ("default", true)];
const XATTR_MODES: [(&str, XattrMode); 4] = [
    ("set", XattrMode::Set),
    ("create", XattrMode::Create),
    ("replace", XattrMode::Replace),
    ("both", XattrMode::CreateAndReplace),
];

fn word_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    let found = table.iter().find(|(_, known)| known == value);
    found.map(|&(word, _)| word).expect("the table has every value that a step may hold")
}

fn optional<T: fmt::Display>(value: Option<T>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn time(value: Option<SetTime>) -> String {
    optional(value.map(|time| match time {
        SetTime::Now => "now".to_owned(),
        SetTime::To(time) => format!("{}.{}", time.seconds, time.nanoseconds),
    }))
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{} ", self.uid)?;
        match &self.op {
            Op::Create { at, kind, mode } => {
                write!(f, "create {at} {} {mode:o}", word_of(&KINDS, kind))
            }
            Op::Symlink { at, target } => write!(f, "symlink {at} ={}", Bytes(target)),
            Op::Link { file, at } => write!(f, "link {file} {at}"),
            Op::Unlink { at } => write!(f, "unlink {at}"),
            Op::Rmdir { at } => write!(f, "rmdir {at}"),
            Op::Rename { source, target, mode } => {
                write!(f, "rename {source} {target} {}", word_of(&RENAME_MODES, mode))
            }
            Op::Open { slot, at } => write!(f, "open @{slot} {at}"),
            Op::Nameless { slot, directory, mode } => {
                write!(f, "nameless @{slot} {directory} {mode:o}")
            }
            Op::Close { slot } => write!(f, "close @{slot}"),
            Op::Write { file, offset, length, fill } => {
                write!(f, "write {file} {offset} {length} {fill}")
            }
            Op::Read { file, offset, length } => write!(f, "read {file} {offset} {length}"),
            Op::Truncate { file, size_bytes } => write!(f, "truncate {file} {size_bytes}"),
            Op::SetMode { file, mode } => write!(f, "mode {file} {mode:o}"),
            Op::SetOwner { file, uid, gid } => {
                write!(f, "owner {file} {} {}", optional(*uid), optional(*gid))
            }
            Op::SetProject { file, project } => write!(f, "project {file} {project}"),
            Op::SetTimes { file, atime, mtime } => {
                write!(f, "times {file} {} {}", time(*atime), time(*mtime))
            }
            Op::GetAttr { file } => write!(f, "getattr {file}"),
            Op::ReadLink { file } => write!(f, "readlink {file}"),
            Op::SetXattr { file, name, length, fill, mode } => {
                let (name, mode) = (Bytes(name), word_of(&XATTR_MODES, mode));
                write!(f, "setxattr {file} {name} {length} {fill} {mode}")
            }
            Op::SetAcl { file, is_default, list } => {
                write!(f, "setacl {file} {} {list}", word_of(&ACL_SORTS, is_default))
            }
            Op::GetXattr { file, name } => write!(f, "getxattr {file} {}", Bytes(name)),
            Op::ListXattr { file } => write!(f, "listxattr {file}"),
            Op::RemoveXattr { file, name } => write!(f, "removexattr {file} {}", Bytes(name)),
            Op::List { directory } => write!(f, "list {directory}"),
            Op::Fallocate { file, offset, length, mode } => {
                write!(f, "{} {file} {offset} {length}", word_of(&FALLOCATES, mode))
            }
            Op::Seek { file, offset, what } => {
                write!(f, "seek {file} {offset} {}", word_of(&SEEKS, what))
            }
            Op::Copy { source, from, target, to, length } => {
                write!(f, "copy {source} {from} {target} {to} {length}")
            }
            Op::Fsync { file, data_only: false } => write!(f, "fsync {file}"),
            Op::Fsync { file, data_only: true } => write!(f, "fdatasync {file}"),
            Op::Sync => f.write_str("sync"),
        }
    }
}

/// The words of a line, taken one by one; `None` where one is missing or wrong.
struct Words<'a>(std::str::Split<'a, char>);

impl Words<'_> {
    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn octal(&mut self) -> Option<u16> {
        u16::from_str_radix(self.0.next()?, 8).ok()
    }

    fn of<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        let word = self.0.next()?;
        table.iter().find(|&&(known, _)| known == word).map(|&(_, value)| value)
    }

    fn optional<T: FromStr>(&mut self) -> Option<Option<T>> {
        match self.0.next()? {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    fn time(&mut self) -> Option<Option<SetTime>> {
        match self.0.next()? {
            "-" => Some(None),
            "now" => Some(Some(SetTime::Now)),
            word => {
                let (seconds, nanoseconds) = word.split_once('.')?;
                let (seconds, nanoseconds) = (seconds.parse().ok()?, nanoseconds.parse().ok()?);
                Some(Some(SetTime::To(Timestamp { seconds, nanoseconds })))
            }
        }
    }

    fn route(&mut self) -> Option<Route> {
        route(self.0.next()?)
    }

    fn slot(&mut self) -> Option<usize> {
        slot(self.0.next()?)
    }

    fn place(&mut self) -> Option<Place> {
        let word = self.0.next()?;
        route(word).map(Place::At).or_else(|| slot(word).map(Place::Slot))
    }

    fn op(&mut self) -> Option<Op> {
        Some(match self.0.next()? {
            "create" => {
                Op::Create { at: self.route()?, kind: self.of(&KINDS)?, mode: self.octal()? }
            }
            "symlink" => {
                Op::Symlink { at: self.route()?, target: bytes(self.0.next()?.strip_prefix('=')?)? }
            }
            "link" => Op::Link { file: self.place()?, at: self.route()? },
            "unlink" => Op::Unlink { at: self.route()? },
            "rmdir" => Op::Rmdir { at: self.route()? },
            "rename" => Op::Rename {
                source: self.route()?,
                target: self.route()?,
                mode: self.of(&RENAME_MODES)?,
            },
            "open" => Op::Open { slot: self.slot()?, at: self.route()? },
            "nameless" => {
                Op::Nameless { slot: self.slot()?, directory: self.route()?, mode: self.octal()? }
            }
            "close" => Op::Close { slot: self.slot()? },
            "write" => Op::Write {
                file: self.place()?,
                offset: self.number()?,
                length: self.number()?,
                fill: self.number()?,
            },
            "read" => {
                Op::Read { file: self.place()?, offset: self.number()?, length: self.number()? }
            }
            "truncate" => Op::Truncate { file: self.place()?, size_bytes: self.number()? },
            "mode" => Op::SetMode { file: self.place()?, mode: self.octal()? },
            "owner" => {
                Op::SetOwner { file: self.place()?, uid: self.optional()?, gid: self.optional()? }
            }
            "project" => Op::SetProject { file: self.place()?, project: self.number()? },
            "times" => {
                Op::SetTimes { file: self.place()?, atime: self.time()?, mtime: self.time()? }
            }
            "getattr" => Op::GetAttr { file: self.place()? },
            "readlink" => Op::ReadLink { file: self.place()? },
            "setxattr" => Op::SetXattr {
                file: self.place()?,
                name: bytes(self.0.next()?)?,
                length: self.number()?,
                fill: self.number()?,
                mode: self.of(&XATTR_MODES)?,
            },
            "setacl" => Op::SetAcl {
                file: self.place()?,
                is_default: self.of(&ACL_SORTS)?,
                list: self.0.next()?.parse().ok()?,
            },
            "getxattr" => Op::GetXattr { file: self.place()?, name: bytes(self.0.next()?)? },
            "listxattr" => Op::ListXattr { file: self.place()? },
            "removexattr" => Op::RemoveXattr { file: self.place()?, name: bytes(self.0.next()?)? },
            "list" => Op::List { directory: self.place()? },
            "fsync" => Op::Fsync { file: self.place()?, data_only: false },
            "fdatasync" => Op::Fsync { file: self.place()?, data_only: true },
            "sync" => Op::Sync,
            "seek" => {
                Op::Seek { file: self.place()?, offset: self.number()?, what: self.of(&SEEKS)? }
            }
            "copy" => Op::Copy {
                source: self.place()?,
                from: self.number()?,
                target: self.place()?,
                to: self.number()?,
                length: self.number()?,
            },
            word => {
                let mode = FALLOCATES.iter().find(|(known, _)| *known == word)?.1;
                let (file, offset) = (self.place()?, self.number()?);
                Op::Fallocate { file, offset, length: self.number()?, mode }
            }
        })
    }

    fn step(&mut self) -> Option<Step> {
        let uid = self.0.next()?.strip_prefix('u')?.parse().ok()?;
        let op = self.op()?;
        self.0.next().is_none().then_some(Step { uid, op })
    }
}

fn slot(word: &str) -> Option<usize> {
    word.strip_prefix('@')?.parse().ok().filter(|&slot| slot < SLOTS)
}

fn route(word: &str) -> Option<Route> {
    let names = word.strip_prefix('/')?;
    if names.is_empty() {
        return Some(Route::default());
    }
    names.split('/').map(bytes).collect::<Option<Vec<_>>>().map(Route)
}

fn bytes(word: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        if first != '%' {
            bytes.push(u8::try_from(first).ok()?);
            rest = rest.get(1..)?;
        } else if let Some(run) = rest.strip_prefix("%{") {
            let (run, after) = run.split_once('}')?;
            let (byte, count) = run.split_once('*')?;
            let count: usize = count.parse().ok()?;
            bytes.resize(bytes.len() + count, u8::from_str_radix(byte, 16).ok()?);
            rest = after;
        } else {
            bytes.push(u8::from_str_radix(rest.get(1..3)?, 16).ok()?);
            rest = rest.get(3..)?;
        }
    }
    Some(bytes)
}

impl FromStr for Step {
    type Err = ParseError;

    fn from_str(line: &str) -> Result<Step, ParseError> {
        let step = Words(line.split(' ')).step();
        step.ok_or_else(|| ParseError { line: 1, text: line.to_owned() })
    }
}
