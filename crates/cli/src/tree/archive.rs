//! The heads of a tar: one block of 512 bytes, and before it what does not fit there.
//!
//! Written is pax (POSIX.1-2001), which GNU tar, bsdtar and others read: each file has a head of
//! its own with its times to the nanosecond, and whatever of its name, owner, size and extended
//! attributes the old head has no room for. Read is that, GNU's form and the old one.
//!
//! The crate `tar` has the fields of a block. The stream is read here, for nothing that comes from
//! it may be believed: a head says how long it is, and is held in memory.

use std::io::{ErrorKind, Read};

use engine::vnode::api::{FileKind, Timestamp};
use format::attributes::ATTRIBUTE_LIST_BYTES_MAX;
use tar::{EntryType, Header};

use super::{ATTRIBUTE_BYTES_MAX, Attributes, Meta};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 512;
/// Longest head of one file: its names, and its extended attributes.
pub(crate) const HEAD_BYTES_MAX: u64 = 4 << 20;
/// Most ranges of a file with holes; tests have fewer.
pub(crate) const RANGES_MAX: usize = if cfg!(test) { 64 } else { 1 << 20 };
/// Most digits of a number in a map of holes: those of 2^64.
const DIGITS_MAX: usize = 20;
/// How extended attributes are named in a head.
const ATTRIBUTE_PREFIX: &[u8] = b"SCHILY.xattr.";

/// What of a file is no hole: offsets and lengths.
pub(crate) type Ranges = Vec<(u64, u64)>;

/// Why a tar is read no further.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArchiveError {
    /// Whoever writes it has stopped.
    #[error("the archive breaks off in the middle: get all of it, and begin again")]
    Ends,
    /// It cannot be read.
    #[error("the archive cannot be read: {0}")]
    Unread(std::io::Error),
    /// It is none, or is damaged.
    #[error("{0}")]
    Wrong(String),
    /// TE3: one file of it cannot be had; those behind it can.
    #[error("{cause}")]
    OfFile {
        /// Its path, as far as it can be read.
        path: Vec<u8>,
        /// What is wrong with it.
        cause: String,
    },
}

impl From<std::io::Error> for ArchiveError {
    fn from(error: std::io::Error) -> ArchiveError {
        if error.kind() == ErrorKind::UnexpectedEof {
            ArchiveError::Ends
        } else {
            ArchiveError::Unread(error)
        }
    }
}

/// What a name of an archive stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A file of this kind.
    File(FileKind),
    /// One more name of a file that came before.
    Link,
    /// Something that has no place in a file system.
    Other(u8),
}

/// The head of a file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) what: What,
    pub(crate) meta: Meta,
    /// Of a symbolic or hard link.
    pub(crate) target: Vec<u8>,
    pub(crate) attributes: Attributes,
    /// Bytes that follow.
    pub(crate) stored_bytes: u64,
    /// Whether what follows begins with a map of what is no hole.
    has_map: bool,
    /// What is no hole, from the head; `None`: all.
    ranges: Option<Ranges>,
    /// What of it was left out, in words.
    pub(crate) left_out: Option<&'static str>,
}

/// Reads the heads of an archive.
pub(crate) struct Archive<R> {
    reader: R,
    /// Bytes of the current file that were not read, and those that fill its last block.
    left: (u64, u64),
    /// Whether anything was read yet.
    has_begun: bool,
    /// Bytes read.
    pub(crate) position: u64,
}

/// The records of a pax head: keys and values.
type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// What heads before a file's own have said.
#[derive(Default)]
struct Before {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    records: Records,
    /// Why they cannot be read.
    wrong: Option<String>,
}

impl Before {
    fn get(&self, key: &str) -> Option<&[u8]> {
        let found = self.records.iter().rev().find(|(name, _)| name == key.as_bytes());
        found.map(|(_, value)| &value[..])
    }

    fn number(&self, key: &str) -> Option<u64> {
        std::str::from_utf8(self.get(key)?).ok()?.parse().ok()
    }
}

impl<R: Read> Archive<R> {
    pub(crate) fn new(reader: R) -> Archive<R> {
        Archive { reader, left: (0, 0), has_begun: false, position: 0 }
    }

    /// Reads all of `into`.
    fn fill(&mut self, into: &mut [u8]) -> Result<(), ArchiveError> {
        self.reader.read_exact(into)?;
        self.position = self.position.saturating_add(u64::try_from(into.len()).unwrap_or(0));
        Ok(())
    }

    /// Reads what is left of a file's content into `into`, as much as there is room.
    pub(crate) fn content(&mut self, into: &mut [u8]) -> Result<usize, ArchiveError> {
        let length = into.len().min(usize::try_from(self.left.0).unwrap_or(usize::MAX));
        self.fill(&mut into[..length])?;
        self.left.0 -= u64::try_from(length).unwrap_or(0);
        Ok(length)
    }

    fn skip(&mut self) -> Result<(), ArchiveError> {
        let mut dropped = [0; 16 << 10];
        while self.left.0 > 0 {
            self.content(&mut dropped)?;
        }
        let length = usize::try_from(std::mem::take(&mut self.left.1)).unwrap_or(0);
        self.fill(&mut dropped[..length])
    }

    fn begin_content(&mut self, bytes: u64) {
        let block = u64::try_from(BLOCK_BYTES).unwrap_or(512);
        self.left = (bytes, (block - bytes % block) % block);
    }

    /// Returns the next block that is a head; `None`: the archive ends.
    fn block(&mut self) -> Result<Option<Header>, ArchiveError> {
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        let first = self.reader.read(&mut bytes[..1])?;
        if first == 0 {
            // A tar ends with blocks of zeros, and some writers leave them out.
            return if self.has_begun { Ok(None) } else { Err(not_a_tar(&[])) };
        }
        let mut rest = [0; BLOCK_BYTES - 1];
        self.position += 1;
        self.fill(&mut rest)?;
        header.as_mut_bytes()[1..].copy_from_slice(&rest);
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        if header.cksum().ok() != Some(checksum(&header)) {
            return Err(if self.has_begun {
                let at = self.position;
                ArchiveError::Wrong(format!(
                    "the archive is damaged: the head before byte {at} has another checksum"
                ))
            } else {
                not_a_tar(header.as_bytes())
            });
        }
        self.has_begun = true;
        Ok(Some(header))
    }

    /// Reads a head of `length` bytes that says something of the next.
    fn long(&mut self, length: u64) -> Result<Vec<u8>, ArchiveError> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.begin_content(length);
        self.content(&mut bytes)?;
        self.skip()?;
        Ok(bytes)
    }

    /// Returns the head of the next file; `None`: that was the last.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, ArchiveError> {
        self.skip()?;
        let (mut before, mut held) = (Before::default(), 0_u64);
        loop {
            let Some(header) = self.block()? else { return Ok(None) };
            let kind = header.entry_type().as_byte();
            if !matches!(kind, b'x' | b'g' | b'L' | b'K') {
                return self.entry(&header, &before).map(Some);
            }
            let length = header.entry_size()?;
            // Of the whole archive: who packs trees says nothing there.
            let is_read = kind != b'g';
            held = held.saturating_add(if is_read { length } else { 0 });
            if !is_read || held > HEAD_BYTES_MAX {
                if is_read {
                    let most = HEAD_BYTES_MAX;
                    let cause = format!("its heads take {held} bytes; there are at most {most}");
                    before.wrong = Some(cause);
                }
                self.begin_content(length);
                self.skip()?;
                continue;
            }
            let bytes = self.long(length)?;
            match kind {
                b'L' => before.path = Some(until_zero(&bytes)),
                b'K' => before.target = Some(until_zero(&bytes)),
                _ => match records_of(&bytes) {
                    Some(records) => before.records = records,
                    None => before.wrong = Some("its pax head makes no sense".to_owned()),
                },
            }
        }
    }

    /// Reads the head of a file. Where its content ends is known whatever else is wrong with it.
    fn entry(&mut self, header: &Header, before: &Before) -> Result<Entry, ArchiveError> {
        let stored_bytes = match before.number("size") {
            Some(size) => size,
            None => header.entry_size()?,
        };
        let what = what_of(header.entry_type());
        let path = before.get("GNU.sparse.name").or_else(|| before.get("path")).map(<[u8]>::to_vec);
        let path = path.or_else(|| before.path.clone());
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        // Old archives say so of a directory and of nothing else.
        let is_directory = what == What::File(FileKind::Regular) && path.ends_with(b"/");
        let what = if is_directory { What::File(FileKind::Directory) } else { what };
        // What has no content has none, whatever its size says.
        let has_content = matches!(what, What::File(FileKind::Regular) | What::Other(_));
        let stored_bytes = if has_content { stored_bytes } else { 0 };
        let is_sparse = header.entry_type() == EntryType::GNUSparse;
        let sparse = if is_sparse { Some(self.old_sparse(header)?) } else { None };
        self.begin_content(stored_bytes);
        let described = || {
            if let Some(cause) = &before.wrong {
                return Err(cause.clone());
            }
            let target = before.get("linkpath").map(<[u8]>::to_vec);
            let target = target.or_else(|| before.target.clone());
            let target = target.or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
            let mut entry = Entry {
                what,
                path: path.clone(),
                target: target.unwrap_or_default(),
                attributes: Attributes::new(),
                stored_bytes,
                has_map: false,
                ranges: None,
                left_out: None,
                meta: meta_of(header, before, what)?,
            };
            entry.meta.size_bytes = stored_bytes;
            entry.take_records(before)?;
            if let Some(sparse) = sparse {
                let (ranges, size_bytes) = sparse?;
                entry.meta.size_bytes = size_bytes;
                entry.ranges = Some(ranges);
            }
            Ok(entry)
        };
        described().map_err(|cause| ArchiveError::OfFile { path: path.clone(), cause })
    }

    /// GNU's own form of a file with holes: its map is in the head, and in blocks behind it, which
    /// are read to their end whatever is in them. Returns what is no hole, and the size.
    fn old_sparse(
        &mut self,
        header: &Header,
    ) -> Result<Result<(Ranges, u64), String>, ArchiveError> {
        let Some(gnu) = header.as_gnu() else {
            return Err(ArchiveError::Wrong("a file with holes has no head of GNU's".to_owned()));
        };
        let mut ranges = Vec::new();
        let mut take = |sparse: &tar::GnuSparseHeader| {
            if sparse.is_empty() {
                return Ok(());
            }
            if ranges.len() == RANGES_MAX {
                return Err(too_many_ranges());
            }
            let range = sparse.offset().and_then(|offset| Ok((offset, sparse.length()?)));
            ranges.push(range.map_err(|error| nonsense(&error))?);
            Ok(())
        };
        let mut taken = gnu.sparse.iter().try_for_each(&mut take);
        let mut is_extended = gnu.is_extended();
        while is_extended {
            let mut more = tar::GnuExtSparseHeader::new();
            self.fill(more.as_mut_bytes())?;
            taken = taken.and_then(|()| more.sparse.iter().try_for_each(&mut take));
            is_extended = more.is_extended();
        }
        let size_bytes = gnu.real_size().map_err(|error| nonsense(&error));
        Ok(taken.and_then(|()| Ok((ranges, size_bytes?))))
    }

    /// Returns what of a file is no hole: ranges that rise, whose bytes are all that follows.
    pub(crate) fn ranges(&mut self, entry: &Entry) -> Result<Ranges, ArchiveError> {
        let of_file = |cause: String| ArchiveError::OfFile { path: entry.path.clone(), cause };
        let ranges = match (&entry.ranges, entry.has_map) {
            (Some(ranges), _) => ranges.clone(),
            (None, true) => self.map()?.map_err(of_file)?,
            (None, false) => return Ok(vec![(0, entry.stored_bytes)]),
        };
        let (mut end, mut sum) = (0_u64, 0_u64);
        for &(offset, length) in &ranges {
            let next = offset.checked_add(length).filter(|&next| next <= entry.meta.size_bytes);
            let Some(next) = next.filter(|_| offset >= end) else {
                return Err(of_file("the map of its holes makes no sense".to_owned()));
            };
            end = next;
            sum = sum.saturating_add(length);
        }
        if sum == self.left.0 {
            Ok(ranges)
        } else {
            Err(of_file("the map of its holes does not fit what follows".to_owned()))
        }
    }

    /// Reads the map in front of a file's content: decimal numbers, a line each, in whole blocks.
    /// The inner error is that of the map.
    fn map(&mut self) -> Result<Result<Ranges, String>, ArchiveError> {
        let (mut numbers, mut wanted, mut text) = (Vec::new(), None::<usize>, Vec::new());
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            let mut block = [0; BLOCK_BYTES];
            if self.content(&mut block)? < BLOCK_BYTES {
                return Ok(Err("the map of its holes ends".to_owned()));
            }
            for &byte in &block {
                if wanted.is_some_and(|wanted| numbers.len() == wanted) {
                    // Zeros fill the block.
                    break;
                }
                if byte != b'\n' && text.len() < DIGITS_MAX {
                    text.push(byte);
                    continue;
                }
                let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                let Some(number) = number.filter(|_| byte == b'\n') else {
                    return Ok(Err("the map of its holes has no number".to_owned()));
                };
                text.clear();
                match wanted {
                    Some(_) => numbers.push(number),
                    None => {
                        let count = usize::try_from(number).unwrap_or(usize::MAX);
                        if count > RANGES_MAX {
                            return Ok(Err(too_many_ranges()));
                        }
                        wanted = Some(2 * count);
                    }
                }
            }
        }
        Ok(Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()))
    }
}

impl Entry {
    /// Takes what a pax head says. `Err`: what is wrong with it.
    fn take_records(&mut self, before: &Before) -> Result<(), String> {
        for (key, value) in &before.records {
            if let Some(name) = key.strip_prefix(ATTRIBUTE_PREFIX) {
                self.attributes.push((attribute_name(name), value.clone()));
            } else if key.starts_with(b"SCHILY.acl.") {
                self.left_out = Some("its access list is written in words, which are not read");
            }
        }
        let most = ATTRIBUTE_BYTES_MAX;
        if let Some((name, value)) = self.attributes.iter().find(|(_, it)| it.len() > most) {
            let (name, bytes) = (super::shown(name), value.len());
            return Err(format!(
                "its attribute {name} has {bytes} bytes; there are at most {most}"
            ));
        }
        let bytes: usize = self.attributes.iter().map(|(name, _)| name.len() + 1).sum();
        if bytes > ATTRIBUTE_LIST_BYTES_MAX {
            let most = ATTRIBUTE_LIST_BYTES_MAX;
            return Err(format!("names of its attributes take {bytes} bytes; at most {most} do"));
        }
        self.attributes.sort();
        self.attributes.dedup_by(|a, b| a.0 == b.0);
        if before.get("GNU.sparse.major").is_some_and(|major| major == b"1") {
            self.has_map = true;
            self.meta.size_bytes = before.number("GNU.sparse.realsize").unwrap_or(0);
        } else if before.records.iter().any(|(key, _)| key.starts_with(b"GNU.sparse.")) {
            return Err("its holes are in a form that is not read: make the archive with `tar \
                        --sparse --sparse-version=1.0 --format=posix`"
                .to_owned());
        }
        Ok(())
    }
}

fn meta_of(header: &Header, before: &Before, what: What) -> Result<Meta, String> {
    let read = |number: std::io::Result<u64>| number.map_err(|error| nonsense(&error));
    let id = |key: &str, number: u64| {
        let number = before.number(key).unwrap_or(number);
        u32::try_from(number)
            .map_err(|_| format!("it has {key} {number}, which Linux does not have"))
    };
    let seconds = i64::try_from(read(header.mtime())?).unwrap_or(0);
    let mtime = Timestamp { seconds, nanoseconds: 0 };
    let mtime = before.get("mtime").and_then(time_of).unwrap_or(mtime);
    let kind = match what {
        What::File(kind) => kind,
        What::Link | What::Other(_) => FileKind::Regular,
    };
    let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
    let rdev = if is_device {
        let major = header.device_major().map_err(|error| nonsense(&error))?;
        let minor = header.device_minor().map_err(|error| nonsense(&error))?;
        let number = rustix::fs::makedev(major.unwrap_or(0), minor.unwrap_or(0));
        u32::try_from(number).unwrap_or(u32::MAX)
    } else {
        0
    };
    Ok(Meta {
        kind,
        mode: u16::try_from(header.mode().map_err(|error| nonsense(&error))? & 0o7777).unwrap_or(0),
        uid: id("uid", read(header.uid())?)?,
        gid: id("gid", read(header.gid())?)?,
        rdev,
        size_bytes: 0,
        atime: before.get("atime").and_then(time_of).unwrap_or(mtime),
        mtime,
        links: 1,
        id: (0, 0),
    })
}

fn what_of(kind: EntryType) -> What {
    match kind.as_byte() {
        b'0' | b'\0' | b'7' | b'S' => What::File(FileKind::Regular),
        b'1' => What::Link,
        b'2' => What::File(FileKind::Symlink),
        b'3' => What::File(FileKind::CharDevice),
        b'4' => What::File(FileKind::BlockDevice),
        b'5' => What::File(FileKind::Directory),
        b'6' => What::File(FileKind::Fifo),
        other => What::Other(other),
    }
}

/// Returns the sum that a head is to have.
pub(crate) fn checksum(header: &Header) -> u32 {
    let bytes = header.as_bytes();
    let blank = |index: usize| (148..156).contains(&index);
    (0..).zip(bytes).map(|(at, &byte)| if blank(at) { 32 } else { u32::from(byte) }).sum()
}

fn until_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}

/// Returns the records of a pax head: length, blank, key, `=`, value, line feed. `None`: it is
/// none.
fn records_of(mut bytes: &[u8]) -> Option<Records> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let blank = bytes.iter().position(|&byte| byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..blank]).ok()?.parse().ok()?;
        let record = bytes.get(blank + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&byte| byte == b'=')?;
        records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
        bytes = &bytes[length..];
    }
    Some(records)
}

/// Returns the record of a pax head that says `key` is `value`.
pub(crate) fn record_of(key: impl AsRef<[u8]>, value: &[u8]) -> Vec<u8> {
    let key = key.as_ref();
    let rest = " =\n".len() + key.len() + value.len();
    // The length counts its own digits.
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    [format!("{length} ").as_bytes(), key, b"=", value, b"\n"].concat()
}

/// Returns the key of a pax head for an extended attribute: an `=` would end it, so that is written
/// as `%3D`, and `%` as `%25`, as GNU tar does. Other bytes are as they are.
pub(crate) fn attribute_key(name: &[u8]) -> Vec<u8> {
    let mut key = ATTRIBUTE_PREFIX.to_vec();
    for &byte in name {
        match byte {
            b'=' => key.extend(b"%3D"),
            b'%' => key.extend(b"%25"),
            byte => key.push(byte),
        }
    }
    key
}

/// Returns the name that [`attribute_key`] has written behind its prefix.
fn attribute_name(mut key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(key.len());
    while let Some((&byte, rest)) = key.split_first() {
        let (byte, rest) = match (rest.strip_prefix(b"3D"), rest.strip_prefix(b"25")) {
            (Some(rest), _) if byte == b'%' => (b'=', rest),
            (_, Some(rest)) if byte == b'%' => (b'%', rest),
            _ => (byte, rest),
        };
        name.push(byte);
        key = rest;
    }
    name
}

/// Returns the time that a pax head says: seconds, with any number of digits behind the point.
fn time_of(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let seconds: i64 = whole.parse().ok()?;
    let nanoseconds: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        // Counted from below.
        let seconds = seconds.checked_sub(1)?;
        return Some(Timestamp { seconds, nanoseconds: 1_000_000_000 - nanoseconds });
    }
    Some(Timestamp { seconds, nanoseconds })
}

/// Returns a time as a pax head has it.
pub(crate) fn text_of_time(time: Timestamp) -> String {
    match (time.seconds < 0, time.nanoseconds) {
        (_, 0) => time.seconds.to_string(),
        (false, nanoseconds) => format!("{}.{nanoseconds:09}", time.seconds),
        (true, nanoseconds) => {
            let whole = time.seconds.saturating_add(1).unsigned_abs();
            format!("-{whole}.{:09}", 1_000_000_000_u32.saturating_sub(nanoseconds))
        }
    }
}

fn too_many_ranges() -> String {
    format!("it has more than {RANGES_MAX} ranges between holes")
}

fn nonsense(error: &std::io::Error) -> String {
    format!("its head makes no sense: {error}")
}

fn not_a_tar(bytes: &[u8]) -> ArchiveError {
    let packed = [
        (&b"\x1f\x8b"[..], "gzip", "gzip -dc"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
        (b"\xfd7zXZ", "xz", "xz -dc"),
        (b"BZh", "bzip2", "bzip2 -dc"),
    ];
    let found = packed.iter().find(|(magic, ..)| bytes.starts_with(magic));
    ArchiveError::Wrong(match found {
        Some((_, name, command)) => format!(
            "the archive is packed by {name}: give `{command} FILE | holdfast import - POOL:a`"
        ),
        None if bytes.is_empty() => "the archive is empty".to_owned(),
        None => "it is no tar: name a directory or a tar".to_owned(),
    })
}
