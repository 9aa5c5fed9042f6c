//! Writes a tree as a tar archive.
//!
//! Files come in the order of a walk ([`super::walk`]). A file with several names is written once,
//! then its other names as hard links to the first. Holes are kept in GNU's sparse format 1.0,
//! which GNU tar and bsdtar read. Sockets have no form in a tar, and are left out. An archive stays
//! within the limits of the reader ([`HEAD_BYTES_MAX`], [`RANGES_MAX`]).

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::sync::atomic::Ordering;

use engine::api::FileKind;
use tar::{EntryType, Header};

use super::archive::{
    BLOCK_BYTES, HEAD_BYTES_MAX, RANGES_MAX, attribute_key, checksum, record_of, text_of_time,
};
use super::totals::count;
use super::walk::{TreeWalk, TreeWalkEntry};
use super::{
    ExtendedAttributes, FileMetadata, FileTree, PIECE_BYTES, TreeCopyTotals, TreeError, TreeResult,
};

/// Largest value of seven octal digits. A larger number goes to the pax header.
const OCTAL_MAX: u64 = 0o777_7777;
const BUFFER_BYTES: usize = 1 << 20;
/// Most bytes of a file's extended attributes. The rest of the header is for names.
const ATTRIBUTES_BYTES_MAX: usize = 4_000_000;
const LINKS_MAX: usize = 10_000_000;

pub(crate) fn run<S: FileTree>(source: &S, into: impl Write, totals: &TreeCopyTotals) {
    let into = BufWriter::with_capacity(BUFFER_BYTES, into);
    let mut packing = PackJob { source, into, totals, links: HashMap::new() };
    if let Err(error) = packing.all() {
        totals.fail(b"the archive", &TreeError { is_final: true, ..error });
    }
}

struct PackJob<'p, S: FileTree, W: Write> {
    source: &'p S,
    into: BufWriter<W>,
    totals: &'p TreeCopyTotals,
    links: HashMap<(u64, u64), Vec<u8>>,
}

fn unwritten(error: &std::io::Error) -> TreeError {
    TreeError::of_all(format!("it cannot be written: {error}"))
}

impl<S: FileTree, W: Write> PackJob<'_, S, W> {
    fn all(&mut self) -> TreeResult<()> {
        let root = self.source.root();
        let meta = self.source.meta(&root)?;
        let attributes = self.fitting(b".", self.source.attributes(&root)?);
        self.head(b"./", &meta, &attributes, &[], None)?;
        let device = meta.id.0;
        let mut walk = TreeWalk::new(self.source)?;
        while let Some(TreeWalkEntry { directory, name, path }) = walk.next() {
            match self.one(&directory, &name, &path, device) {
                Ok(Some(inner)) => {
                    if let Err(error) = walk.enter(inner, path.clone()) {
                        self.totals.fail(&path, &error.while_reading());
                    }
                }
                Ok(None) => {}
                Err(error) if error.is_final => return Err(error),
                Err(error) => self.totals.fail(&path, &error),
            }
        }
        self.put(&[0; 2 * BLOCK_BYTES])?;
        self.into.flush().map_err(|error| unwritten(&error))
    }

    fn put(&mut self, bytes: &[u8]) -> TreeResult<()> {
        self.into.write_all(bytes).map_err(|error| unwritten(&error))
    }

    fn fill(&mut self, length: u64) -> TreeResult<()> {
        let rest = usize::try_from(length % 512).unwrap_or(0);
        if rest > 0 { self.put(&[0; BLOCK_BYTES][rest..]) } else { Ok(()) }
    }

    fn one(
        &mut self,
        directory: &S::Node,
        name: &[u8],
        path: &[u8],
        device: u64,
    ) -> TreeResult<Option<S::Node>> {
        let found = self.source.find(directory, name).map_err(TreeError::while_reading)?;
        let Some(meta) = found else { return Ok(None) };
        if meta.id.0 != device {
            self.totals.leave_out(path, "another file system is mounted there");
            return Ok(None);
        }
        if meta.kind == FileKind::Socket {
            self.totals.leave_out(path, "it is a socket, which no tar holds");
            return Ok(None);
        }
        if meta.kind != FileKind::Directory && meta.links > 1 {
            if let Some(first) = self.links.get(&meta.id).cloned() {
                self.head(
                    path,
                    &FileMetadata { size_bytes: 0, ..meta },
                    &Vec::new(),
                    &first,
                    Some(b'1'),
                )?;
                count(&self.totals.links);
                return Ok(None);
            }
            if self.links.len() < LINKS_MAX {
                self.links.insert(meta.id, path.to_vec());
            }
        }
        let node = self.source.open(directory, name, &meta).map_err(TreeError::while_reading)?;
        let attributes = self.source.attributes(&node).map_err(TreeError::while_reading)?;
        let attributes = self.fitting(path, attributes);
        match meta.kind {
            FileKind::Regular => {
                self.file(path, &meta, &attributes, &node)?;
                count(&self.totals.files);
            }
            FileKind::Directory => {
                let path = [path, b"/"].concat();
                self.head(&path, &meta, &attributes, &[], None)?;
                count(&self.totals.directories);
                return Ok(Some(node));
            }
            FileKind::Symlink => {
                let target = self.source.target(&node).map_err(TreeError::while_reading)?;
                self.head(path, &meta, &attributes, &target, None)?;
                count(&self.totals.symlinks);
            }
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                self.head(path, &meta, &attributes, &[], None)?;
                count(&self.totals.others);
            }
        }
        Ok(None)
    }

    /// Returns the attributes that fit into the header. If they do not all fit, only access lists
    /// are kept: without them, other users might gain access.
    fn fitting(&self, path: &[u8], mut attributes: ExtendedAttributes) -> ExtendedAttributes {
        let bytes_of = |(name, value): &(Vec<u8>, Vec<u8>)| record_of(attribute_key(name), value);
        let bytes: usize = attributes.iter().map(|it| bytes_of(it).len()).sum();
        if bytes > ATTRIBUTES_BYTES_MAX {
            let cause = format!(
                "its extended attributes take {bytes} bytes, and a tar has room for \
                 {ATTRIBUTES_BYTES_MAX}: they are left out: export it into a directory, or \
                 `holdfast send` its fileset"
            );
            self.totals.fail(path, &TreeError::of_file(cause));
            attributes.retain(|(name, _)| name.starts_with(b"system."));
        }
        attributes
    }

    fn file(
        &mut self,
        path: &[u8],
        meta: &FileMetadata,
        attributes: &ExtendedAttributes,
        node: &S::Node,
    ) -> TreeResult<()> {
        let ranges = self.ranges(meta, node)?;
        let whole = [(0, meta.size_bytes)];
        if meta.size_bytes == 0 || ranges == whole {
            self.head(path, meta, attributes, &[], None)?;
            return self.content(node, &if meta.size_bytes == 0 { Vec::new() } else { ranges });
        }
        let mut map = format!("{}\n", ranges.len());
        for (offset, length) in &ranges {
            map.push_str(&format!("{offset}\n{length}\n"));
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK_BYTES), 0);
        let sum: u64 = ranges.iter().map(|(_, length)| length).sum();
        let stored = u64::try_from(map.len()).unwrap_or(0) + sum;
        self.sparse_head(path, meta, attributes, stored)?;
        self.put(&map)?;
        self.content(node, &ranges)
    }

    fn ranges(&self, meta: &FileMetadata, node: &S::Node) -> TreeResult<Vec<(u64, u64)>> {
        let (mut ranges, mut at) = (Vec::new(), 0);
        while let Some((start, end)) =
            self.source.data(node, at).map_err(TreeError::while_reading)?
        {
            let end = end.min(meta.size_bytes);
            if start >= end {
                break;
            }
            if ranges.len() + 1 == RANGES_MAX {
                // The last range covers the rest of the file with its holes, because no more ranges
                // are allowed.
                ranges.push((start, meta.size_bytes - start));
                break;
            }
            ranges.push((start, end - start));
            at = end;
        }
        Ok(ranges)
    }

    /// Writes ranges of a file. If the file has shrunk, zeros replace the missing bytes, because
    /// the header has the length already.
    fn content(&mut self, node: &S::Node, ranges: &[(u64, u64)]) -> TreeResult<()> {
        let (mut bytes, mut wrong, mut sum) = (Vec::new(), None, 0_u64);
        for &(start, length) in ranges {
            let (mut at, end) = (start, start.saturating_add(length));
            while at < end {
                bytes.clear();
                let most = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let read = self.source.read(node, at, most, &mut bytes);
                if let Err(error) = read {
                    wrong.get_or_insert(error.while_reading());
                } else if bytes.len() < most {
                    wrong.get_or_insert(TreeError::of_file("it became shorter while it was read"));
                }
                bytes.resize(most, 0);
                self.put(&bytes)?;
                let most = u64::try_from(most).unwrap_or(0);
                at += most;
                sum += most;
                self.totals.bytes.fetch_add(most, Ordering::Relaxed);
                self.totals.moved_bytes.fetch_add(most, Ordering::Relaxed);
            }
        }
        self.fill(sum)?;
        wrong.map_or(Ok(()), Err)
    }

    fn sparse_head(
        &mut self,
        path: &[u8],
        meta: &FileMetadata,
        attributes: &ExtendedAttributes,
        stored: u64,
    ) -> TreeResult<()> {
        let mut records = records_of(meta, attributes, &[]);
        records.extend(record_of("GNU.sparse.major", b"1"));
        records.extend(record_of("GNU.sparse.minor", b"0"));
        records.extend(record_of("GNU.sparse.name", path));
        let size = meta.size_bytes.to_string();
        records.extend(record_of("GNU.sparse.realsize", size.as_bytes()));
        // A reader that does not support the format extracts the raw ranges under this name.
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let above = path.strip_suffix(name).unwrap_or_default();
        let other = [above, b"GNUSparseFile.0/", name].concat();
        if other.len() > 100 {
            records.extend(record_of("path", &other));
        }
        let meta = FileMetadata { size_bytes: stored, ..meta.clone() };
        if stored > MAX_SIZE {
            records.extend(record_of("size", stored.to_string().as_bytes()));
        }
        self.heads(&other, &meta, &records, &[], b'0')
    }

    fn head(
        &mut self,
        path: &[u8],
        meta: &FileMetadata,
        attributes: &ExtendedAttributes,
        target: &[u8],
        kind: Option<u8>,
    ) -> TreeResult<()> {
        let kind = kind.unwrap_or(match meta.kind {
            FileKind::Regular => b'0',
            FileKind::Symlink => b'2',
            FileKind::CharDevice => b'3',
            FileKind::BlockDevice => b'4',
            FileKind::Directory => b'5',
            FileKind::Fifo | FileKind::Socket => b'6',
        });
        let has_content = kind == b'0';
        let size_bytes = if has_content { meta.size_bytes } else { 0 };
        let meta = FileMetadata { size_bytes, ..meta.clone() };
        let mut records = records_of(&meta, attributes, target);
        if path.len() > 100 || path.iter().any(|byte| !byte.is_ascii()) {
            records.extend(record_of("path", path));
        }
        if size_bytes > MAX_SIZE {
            records.extend(record_of("size", size_bytes.to_string().as_bytes()));
        }
        self.heads(path, &meta, &records, target, kind)
    }

    /// Writes a pax header and the ustar header, or neither if the pax header exceeds the limit of
    /// the reader.
    fn heads(
        &mut self,
        path: &[u8],
        meta: &FileMetadata,
        records: &[u8],
        target: &[u8],
        kind: u8,
    ) -> TreeResult<()> {
        let length = u64::try_from(records.len()).unwrap_or(u64::MAX);
        if length > HEAD_BYTES_MAX {
            let most = HEAD_BYTES_MAX;
            let cause = format!("its names take {length} bytes; a tar has room for {most}");
            return Err(TreeError::of_file(cause));
        }
        let pax = FileMetadata {
            size_bytes: length,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            ..meta.clone()
        };
        let name = [b"PaxHeaders/", path].concat();
        self.block(&name, &pax, &[], b'x')?;
        self.put(records)?;
        self.fill(length)?;
        self.block(path, meta, target, kind)
    }

    fn block(
        &mut self,
        path: &[u8],
        meta: &FileMetadata,
        target: &[u8],
        kind: u8,
    ) -> TreeResult<()> {
        let mut header = Header::new_ustar();
        let cut = |bytes: &[u8]| bytes[..bytes.len().min(100)].to_vec();
        let old = header.as_old_mut();
        let (path, target) = (cut(path), cut(target));
        old.name[..path.len()].copy_from_slice(&path);
        old.linkname[..target.len()].copy_from_slice(&target);
        header.set_mode(meta.mode.into());
        header.set_uid(u64::from(meta.uid).min(OCTAL_MAX));
        header.set_gid(u64::from(meta.gid).min(OCTAL_MAX));
        header.set_size(meta.size_bytes.min(MAX_SIZE));
        header.set_mtime(u64::try_from(meta.mtime.seconds).unwrap_or(0).min(MAX_SIZE));
        header.set_entry_type(EntryType::new(kind));
        let device = meta.rdev.into();
        let numbers = [rustix::fs::major(device), rustix::fs::minor(device)];
        let set = header.set_device_major(numbers[0]);
        set.and_then(|()| header.set_device_minor(numbers[1])).map_err(|it| unwritten(&it))?;
        let sum = checksum(&header);
        let text = format!("{sum:06o}\0 ");
        header.as_old_mut().cksum.copy_from_slice(text.as_bytes());
        self.put(header.as_bytes())
    }
}

const MAX_SIZE: u64 = 0o777_7777_7777;

fn records_of(meta: &FileMetadata, attributes: &ExtendedAttributes, target: &[u8]) -> Vec<u8> {
    let mut records = record_of("mtime", text_of_time(meta.mtime).as_bytes());
    records.extend(record_of("atime", text_of_time(meta.atime).as_bytes()));
    for (key, id) in [("uid", meta.uid), ("gid", meta.gid)] {
        if u64::from(id) > OCTAL_MAX {
            records.extend(record_of(key, id.to_string().as_bytes()));
        }
    }
    if target.len() > 100 || target.iter().any(|byte| !byte.is_ascii()) {
        records.extend(record_of("linkpath", target));
    }
    for (name, value) in attributes {
        records.extend(record_of(attribute_key(name), value));
    }
    records
}
