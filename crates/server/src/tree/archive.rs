//! Reader of tar archives: a header block of 512 bytes per file, with extension headers before it.
//!
//! Archives are written as pax (POSIX.1-2001), which GNU tar, bsdtar and others read. An extension
//! header holds times to the nanosecond, and any name, owner, size or extended attribute that does
//! not fit the old header. Archives in pax, GNU's and the old form are read.
//!
//! The crate `tar` only decodes the fields of a block. The stream is parsed here, because the crate
//! would allocate memory for headers by lengths that an untrusted archive contains.

use std::io::{ErrorKind, Read};

use engine::api::{FileKind, Timestamp};
use format::attributes::ATTRIBUTE_LIST_BYTES_MAX;
use tar::{EntryType, Header};

use super::numbers::TarNumber;
use super::{ACCESS_ACL, ATTRIBUTE_BYTES_MAX, DEFAULT_ACL, ExtendedAttributes, FileMetadata};

pub(crate) const BLOCK_BYTES: usize = 512;
/// Most bytes of one file's headers, names and extended attributes included.
pub(crate) const HEAD_BYTES_MAX: u64 = 4 << 20;
/// Most data ranges of a sparse file. Smaller in tests.
pub(crate) const RANGES_MAX: usize = if cfg!(test) { 64 } else { 1 << 20 };
/// Most digits of a number in a map of data ranges, enough for 2^64.
const DIGITS_MAX: usize = 20;
const ATTRIBUTE_PREFIX: &[u8] = b"SCHILY.xattr.";

/// Data ranges of a sparse file, as offsets and lengths.
pub(crate) type Ranges = Vec<(u64, u64)>;

/// Why an archive cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArchiveError {
    #[error("the archive breaks off in the middle: get all of it, and begin again")]
    Ends,
    /// Reading the stream failed.
    #[error("the archive cannot be read: {0}")]
    Unread(std::io::Error),
    /// The stream is no tar, or a malformed one.
    #[error("{0}")]
    Wrong(String),
    /// One file is unusable, but the next ones can be read (TE3).
    #[error("{cause}")]
    OfFile {
        /// Path of the file, as far as it is readable.
        path: Vec<u8>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArchiveEntryKind {
    File(FileKind),
    Link,
    /// An entry of this type, which no file system has.
    Other(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct ArchiveEntry {
    pub(crate) path: Vec<u8>,
    pub(crate) what: ArchiveEntryKind,
    pub(crate) meta: FileMetadata,
    pub(crate) target: Vec<u8>,
    pub(crate) attributes: ExtendedAttributes,
    pub(crate) stored_bytes: u64,
    /// Whether a map of the data ranges precedes the content.
    has_map: bool,
    /// Data ranges from the header. `None` for a file without holes, or with `has_map`.
    ranges: Option<Ranges>,
    /// Unsupported parts of the file, for the log.
    pub(crate) left_out: Vec<String>,
    pub(crate) wrong: Vec<String>,
    pub(crate) is_implied: bool,
}

pub(crate) struct Archive<R> {
    reader: R,
    /// Bytes left of the current file's content, and of the padding after it.
    left: (u64, u64),
    /// Whether a valid header was read, so that the stream is a tar.
    has_begun: bool,
    global: Records,
    pub(crate) position: u64,
}

type Records = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Default)]
struct ExtensionHeaders {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    records: Records,
    wrong: Option<String>,
}

impl ExtensionHeaders {
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
        Archive { reader, left: (0, 0), has_begun: false, global: Vec::new(), position: 0 }
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), ArchiveError> {
        self.reader.read_exact(into)?;
        self.position = self.position.saturating_add(u64::try_from(into.len()).unwrap_or(0));
        Ok(())
    }

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

    fn block(&mut self) -> Result<Option<Header>, ArchiveError> {
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        let first = self.reader.read(&mut bytes[..1])?;
        if first == 0 {
            // The zero blocks at the end are optional, because some writers omit them.
            return if self.has_begun { Ok(None) } else { Err(not_a_tar(&[])) };
        }
        let mut rest = [0; BLOCK_BYTES - 1];
        self.position += 1;
        self.fill(&mut rest)?;
        header.as_mut_bytes()[1..].copy_from_slice(&rest);
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let stored = TarNumber::of(&header.as_old().cksum);
        let sums = [i64::from(checksum(&header)), signed_checksum(&header)];
        if !sums.iter().any(|sum| stored == TarNumber::Number(i128::from(*sum))) {
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

    fn long(&mut self, length: u64) -> Result<Vec<u8>, ArchiveError> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.begin_content(length);
        self.content(&mut bytes)?;
        self.skip()?;
        Ok(bytes)
    }

    pub(crate) fn next(&mut self) -> Result<Option<ArchiveEntry>, ArchiveError> {
        self.skip()?;
        let (mut before, mut held) = (ExtensionHeaders::default(), 0_u64);
        loop {
            let Some(header) = self.block()? else { return Ok(None) };
            let kind = header.entry_type().as_byte();
            if !matches!(kind, b'x' | b'X' | b'g' | b'L' | b'K') {
                // Of equal keys the last counts, so a file's own records override the global ones.
                before.records.splice(0..0, self.global.iter().cloned());
                return self.entry(&header, &before).map(Some);
            }
            let length = size_of_entry(&header)?;
            held = held.saturating_add(length);
            if held > HEAD_BYTES_MAX {
                let most = HEAD_BYTES_MAX;
                let cause = format!("its headers take {held} bytes; the limit is {most}");
                before.wrong = Some(cause);
                self.begin_content(length);
                self.skip()?;
                continue;
            }
            let bytes = self.long(length)?;
            match (kind, records_of(&bytes)) {
                (b'L', _) => before.path = Some(until_zero(&bytes)),
                (b'K', _) => before.target = Some(until_zero(&bytes)),
                (b'g', Some(records)) => self.global = records,
                (_, Some(records)) => before.records = records,
                (_, None) => before.wrong = Some("its pax header is damaged".to_owned()),
            }
        }
    }

    /// Reads the stream to its end, so that a writer on a pipe is not cut off. Returns whether the
    /// rest contains anything but zeros. `goes_on` gets the position, and returns whether to
    /// continue.
    pub(crate) fn drain(
        &mut self,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, ArchiveError> {
        let (mut bytes, mut is_other) = ([0; 16 << 10], false);
        loop {
            let count = match self.reader.read(&mut bytes) {
                Ok(0) => return Ok(is_other),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            is_other |= bytes.iter().take(count).any(|&byte| byte != 0);
            self.position = self.position.saturating_add(u64::try_from(count).unwrap_or(0));
            if !goes_on(self.position) {
                return Ok(is_other);
            }
        }
    }

    /// Parses the headers of a file. If they are invalid, the end of the content is known
    /// nevertheless, so that the next file can be read.
    fn entry(
        &mut self,
        header: &Header,
        before: &ExtensionHeaders,
    ) -> Result<ArchiveEntry, ArchiveError> {
        let stored_bytes = match before.number("size") {
            Some(size) => size,
            None => size_of_entry(header)?,
        };
        let what = what_of(header.entry_type());
        let path = before.get("GNU.sparse.name").or_else(|| before.get("path")).map(<[u8]>::to_vec);
        let path = path.or_else(|| before.path.clone());
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        // In old archives, only a slash at the end of the path marks a directory.
        let is_directory =
            what == ArchiveEntryKind::File(FileKind::Regular) && path.ends_with(b"/");
        let what = if is_directory { ArchiveEntryKind::File(FileKind::Directory) } else { what };
        // Other kinds have no content, whatever their size field says, except GNU's dump
        // directories, which contain a list of names.
        let is_dump = header.entry_type().as_byte() == b'D';
        let has_content =
            matches!(what, ArchiveEntryKind::File(FileKind::Regular) | ArchiveEntryKind::Other(_));
        let stored_bytes = if has_content || is_dump { stored_bytes } else { 0 };
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
            let mut entry = ArchiveEntry {
                what,
                path: path.clone(),
                target: target.unwrap_or_default(),
                attributes: ExtendedAttributes::new(),
                stored_bytes,
                has_map: false,
                ranges: None,
                left_out: Vec::new(),
                wrong: Vec::new(),
                is_implied: false,
                meta: ArchiveEntry::implied(Vec::new()).meta,
            };
            entry.meta = meta_of(header, before, what, &mut entry.wrong);
            entry.meta.size_bytes = if has_content { stored_bytes } else { 0 };
            if is_unknown(header.entry_type().as_byte()) {
                let kind = char::from(header.entry_type().as_byte()).escape_default();
                entry.wrong.push(format!("its type `{kind}` is unknown: copied in as a file"));
            }
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

    /// Parses GNU's old sparse form, whose map is in the header and in extension blocks. The blocks
    /// are read to the end even if the map is invalid. Returns the data ranges and the file size.
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

    /// Returns the data ranges of a file, after a check that they ascend and add up to the content
    /// length.
    pub(crate) fn ranges(&mut self, entry: &ArchiveEntry) -> Result<Ranges, ArchiveError> {
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
                return Err(of_file("its map of holes is malformed".to_owned()));
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

    /// Reads the map in front of a file's content: decimal numbers, one per line, padded to whole
    /// blocks. The inner error is an invalid map, after which the archive can be read on.
    fn map(&mut self) -> Result<Result<Ranges, String>, ArchiveError> {
        let (mut numbers, mut wanted, mut text) = (Vec::new(), None::<usize>, Vec::new());
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            let mut block = [0; BLOCK_BYTES];
            if self.content(&mut block)? < BLOCK_BYTES {
                return Ok(Err("the map of its holes ends".to_owned()));
            }
            for &byte in &block {
                if wanted.is_some_and(|wanted| numbers.len() == wanted) {
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

impl ArchiveEntry {
    /// Returns the entry for a directory that has none of its own, with the attributes that
    /// mkdir(1) by root would give.
    pub(crate) fn implied(path: Vec<u8>) -> ArchiveEntry {
        let never = Timestamp { seconds: 0, nanoseconds: 0 };
        let meta = FileMetadata {
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            size_bytes: 0,
            atime: never,
            mtime: never,
            links: 1,
            id: (0, 0),
        };
        ArchiveEntry {
            path,
            what: ArchiveEntryKind::File(FileKind::Directory),
            meta,
            target: Vec::new(),
            attributes: ExtendedAttributes::new(),
            stored_bytes: 0,
            has_map: false,
            ranges: None,
            left_out: Vec::new(),
            wrong: Vec::new(),
            is_implied: true,
        }
    }

    /// Applies an access list in text form. If the list is invalid, the group bits are cleared,
    /// because they may be its mask, and would grant the owning group more than the list did.
    fn take_list(&mut self, kind: &[u8], text: &[u8]) {
        let name = match kind {
            b"access" => ACCESS_ACL,
            b"default" => DEFAULT_ACL,
            _ => {
                let kind = super::shown(kind);
                self.left_out.push(format!("access lists of type {kind} are not supported"));
                return;
            }
        };
        if text.is_empty() {
            return;
        }
        match super::acl::of_words(text) {
            Some(words) => {
                if name == ACCESS_ACL {
                    self.meta.mode = self.meta.mode & !0o777 | words.bits;
                }
                let list = words.list.or((name == DEFAULT_ACL).then_some(words.whole));
                self.attributes.extend(list.map(|list| (name.to_vec(), list)));
            }
            None if name == ACCESS_ACL => {
                self.meta.mode &= !0o070;
                let cause = "its access list is malformed or names an account that is unknown \
                             here: it is left out, and its group gets no access";
                self.wrong.push(cause.to_owned());
            }
            None => self.wrong.push(
                "its default access list is malformed or names an account that is unknown here: \
                 it is left out"
                    .to_owned(),
            ),
        }
    }

    fn take_records(&mut self, before: &ExtensionHeaders) -> Result<(), String> {
        for (key, value) in &before.records {
            if let Some(name) = key.strip_prefix(ATTRIBUTE_PREFIX) {
                self.attributes.push((attribute_name(name), value.clone()));
            } else if let Some(kind) = key.strip_prefix(b"SCHILY.acl.") {
                self.take_list(kind, value);
            }
        }
        let most = ATTRIBUTE_BYTES_MAX;
        let wrong = &mut self.wrong;
        self.attributes.retain(|(name, value)| {
            let (name, bytes) = (super::shown(name), value.len());
            if bytes > most {
                wrong.push(format!(
                    "its attribute {name} has {bytes} bytes, more than {most}: it is left out"
                ));
            }
            bytes <= most
        });
        let bytes: usize = self.attributes.iter().map(|(name, _)| name.len() + 1).sum();
        if bytes > ATTRIBUTE_LIST_BYTES_MAX {
            let most = ATTRIBUTE_LIST_BYTES_MAX;
            self.wrong.push(format!(
                "its attribute names take {bytes} bytes, more than {most}: they are left out"
            ));
            self.attributes.retain(|(name, _)| name.starts_with(b"system."));
        }
        // Of equal names the last counts.
        self.attributes.reverse();
        self.attributes.sort_by(|a, b| a.0.cmp(&b.0));
        self.attributes.dedup_by(|a, b| a.0 == b.0);
        if before.get("GNU.sparse.major").is_some_and(|major| major == b"1") {
            self.has_map = true;
            self.meta.size_bytes = before.number("GNU.sparse.realsize").unwrap_or(0);
        } else if let Some(size_bytes) = before.number("GNU.sparse.size") {
            // GNU's sparse forms 0.0 and 0.1 have the map in the header.
            let ranges = super::sparse::of_records(&before.records, RANGES_MAX)?;
            self.meta.size_bytes = size_bytes;
            self.ranges = Some(ranges);
        } else if before.records.iter().any(|(key, _)| key.starts_with(b"GNU.sparse.")) {
            return Err("its holes are in a form that is not read: make the archive with `tar \
                        --sparse --sparse-version=1.0 --format=posix`"
                .to_owned());
        }
        Ok(())
    }
}

fn size_of_entry(header: &Header) -> Result<u64, ArchiveError> {
    let size =
        TarNumber::of(&header.as_old().size).or_zero().and_then(|size| u64::try_from(size).ok());
    let cause = "the archive is damaged: a header has no valid size";
    size.ok_or_else(|| ArchiveError::Wrong(cause.to_owned()))
}

/// Builds the metadata from a file's headers. Invalid fields are reported in `wrong`, and get
/// values that grant no rights.
fn meta_of(
    header: &Header,
    before: &ExtensionHeaders,
    what: ArchiveEntryKind,
    wrong: &mut Vec<String>,
) -> FileMetadata {
    let old = header.as_old();
    let mode =
        TarNumber::of(&old.mode).or_zero().map(|mode| u16::try_from(mode & 0o7777).unwrap_or(0));
    if mode.is_none() {
        wrong.push("its header has no valid mode: only its owner gets access".to_owned());
    }
    let mut mode = mode.unwrap_or(0o600);
    let mut owners = [0; 2];
    for (owner, (key, field)) in owners.iter_mut().zip([("uid", &old.uid), ("gid", &old.gid)]) {
        let number = match before.get(key) {
            Some(_) => {
                before.number(key).map_or(TarNumber::Strange, |it| TarNumber::Number(it.into()))
            }
            None => TarNumber::of(field),
        };
        let id = match number {
            TarNumber::Number(number) => u32::try_from(number).ok().filter(|id| *id != u32::MAX),
            TarNumber::Blank | TarNumber::Strange => None,
        };
        if id.is_none() {
            // A file whose owner is invalid becomes root's, so it must not be set-id.
            mode &= !0o6000;
        }
        if let (None, TarNumber::Number(number)) = (id, number) {
            wrong.push(format!("its {key} {number} is out of range: 0 is used"));
        } else if number == TarNumber::Strange {
            wrong.push(format!("its header has no valid {key}: 0 is used"));
        }
        *owner = id.unwrap_or(0);
    }
    let seconds = TarNumber::of(&old.mtime).or_zero().and_then(|it| i64::try_from(it).ok());
    if seconds.is_none() {
        wrong.push("its header has no valid mtime".to_owned());
    }
    let mtime = Timestamp { seconds: seconds.unwrap_or(0), nanoseconds: 0 };
    let mtime = before.get("mtime").and_then(time_of).unwrap_or(mtime);
    let kind = match what {
        ArchiveEntryKind::File(kind) => kind,
        ArchiveEntryKind::Link | ArchiveEntryKind::Other(_) => FileKind::Regular,
    };
    FileMetadata {
        kind,
        mode,
        uid: owners[0],
        gid: owners[1],
        rdev: rdev_of(header, kind),
        size_bytes: 0,
        atime: before.get("atime").and_then(time_of).unwrap_or(mtime),
        mtime,
        links: 1,
        id: (0, 0),
    }
}

fn rdev_of(header: &Header, kind: FileKind) -> u32 {
    if !matches!(kind, FileKind::BlockDevice | FileKind::CharDevice) {
        return 0;
    }
    let bytes = header.as_bytes();
    let number = |field: &[u8]| {
        let number = TarNumber::of(field).or_zero().unwrap_or(0);
        u32::try_from(number).unwrap_or(0)
    };
    // Only ustar and GNU headers have device numbers at these offsets.
    let (major, minor) = match header.as_ustar().is_some() || header.as_gnu().is_some() {
        true => (number(&bytes[329..337]), number(&bytes[337..345])),
        false => (0, 0),
    };
    u32::try_from(rustix::fs::makedev(major, minor)).unwrap_or(u32::MAX)
}

/// Types of entries that are no files: a volume label, a part of another volume, an old form of
/// long names.
const NO_FILES: &[u8] = b"VMN";

/// Returns whether a type is unknown. Like GNU tar, the reader takes such an entry for a regular
/// file.
fn is_unknown(kind: u8) -> bool {
    !b"01234567\0SD".contains(&kind) && !NO_FILES.contains(&kind)
}

fn what_of(kind: EntryType) -> ArchiveEntryKind {
    match kind.as_byte() {
        b'1' => ArchiveEntryKind::Link,
        b'2' => ArchiveEntryKind::File(FileKind::Symlink),
        b'3' => ArchiveEntryKind::File(FileKind::CharDevice),
        b'4' => ArchiveEntryKind::File(FileKind::BlockDevice),
        b'5' | b'D' => ArchiveEntryKind::File(FileKind::Directory),
        b'6' => ArchiveEntryKind::File(FileKind::Fifo),
        other if NO_FILES.contains(&other) => ArchiveEntryKind::Other(other),
        _ => ArchiveEntryKind::File(FileKind::Regular),
    }
}

/// Returns the checksum as old writers computed it, of signed bytes.
fn signed_checksum(header: &Header) -> i64 {
    let high = (0..).zip(header.as_bytes()).filter(|(at, _)| !(148..156).contains(at));
    let high = high.filter(|(_, byte)| **byte >= 0x80).count();
    i64::from(checksum(header)) - 256 * i64::try_from(high).unwrap_or(0)
}

pub(crate) fn checksum(header: &Header) -> u32 {
    let bytes = header.as_bytes();
    let blank = |index: usize| (148..156).contains(&index);
    (0..).zip(bytes).map(|(at, &byte)| if blank(at) { 32 } else { u32::from(byte) }).sum()
}

fn until_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}

/// Parses the records of a pax header: length, blank, key, `=`, value, line feed. `None` if they
/// are malformed.
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

pub(crate) fn record_of(key: impl AsRef<[u8]>, value: &[u8]) -> Vec<u8> {
    let key = key.as_ref();
    let rest = " =\n".len() + key.len() + value.len();
    // The length counts its own digits too.
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    [format!("{length} ").as_bytes(), key, b"=", value, b"\n"].concat()
}

/// Returns the pax key of an extended attribute. As in GNU tar, `=` becomes `%3D`, since it would
/// end the key, and `%` becomes `%25`.
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

fn time_of(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let seconds: i64 = whole.parse().ok()?;
    let nanoseconds: u32 = digits.parse().ok()?;
    if whole.starts_with('-') && nanoseconds > 0 {
        // The fraction counts upwards, so a negative time starts from the second below.
        let seconds = seconds.checked_sub(1)?;
        return Some(Timestamp { seconds, nanoseconds: 1_000_000_000 - nanoseconds });
    }
    Some(Timestamp { seconds, nanoseconds })
}

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
    format!("its header is malformed: {error}")
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
            "the archive is packed by {name}: give `{command} FILE | holdfast copy-in - POOL:a`"
        ),
        None if bytes.is_empty() => "the archive is empty".to_owned(),
        None => "it is no tar: name a directory or a tar".to_owned(),
    })
}
