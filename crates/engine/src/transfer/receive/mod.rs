//! Receiving a node: a stream is applied to an invisible fileset. When the stream is complete, one
//! transaction makes the result visible (decision 0056).
//!
//! # Invariants
//!
//! - RV1: Only the receiving fileset is changed until the last record is applied, and all names
//!   have been compared with all anodes.
//! - RV2: Everything before the position in the receiving fileset's entry is durable.
//! - RV3: Each record may be applied twice, the second time after a crash.
//!
//! # Crashes
//!
//! The stream resumes at the position in the entry. The sender repeats the records after it, which
//! may be applied in part.
//!
//! Not here: verification (`verify.rs`), completion (`shown.rs`).

mod shown;
mod target;
mod verify;

use crate::file::Transfers;
use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE, ROOT_ANODE, StorageMode};
use format::directory;
use format::fileset::{Cursor, FilesetState, MoveToken, NamePart};
use format::ids::{AnodeNo, FilesetId, PoolId};
use format::page::{PAGE_BYTES, PageKind, read_u64};
use format::placement::Placement;
use format::stream::{AnodeFlags, StreamBegin, StreamPage, StreamRecord, StreamTotals};

use runtime::{if_planted, unless_planted};

use crate::alloc::Urgency;
use crate::api::{Caller, Fallocate, SetAttr};
use crate::container::{ContainerContent, is_one_file};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::file::{Capabilities, Core, Files, Vnode};
use crate::journal::LogCredits;
use crate::store::Change;
use crate::stream::{ReceiveError, ResumeToken, StreamReader};

/// After this many anodes, a receive makes its resume position durable.
const ANODES_KEPT: u64 = 4096;
/// After this many bytes of data, a receive makes its resume position durable.
const BYTES_KEPT: u64 = 256 << 20;

/// A completed receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Totals of the stream.
    pub totals: StreamTotals,
    /// The snapshot made of the received state.
    pub snapshot: NamePart,
}

/// A failed receive.
#[derive(Debug)]
pub struct ReceiveFailure {
    /// The cause.
    pub error: ReceiveError,
    /// Position for `send` to resume at; `None` if the partial state is discarded.
    pub token: Option<ResumeToken>,
}

impl From<ReceiveError> for ReceiveFailure {
    fn from(error: ReceiveError) -> ReceiveFailure {
        ReceiveFailure { error, token: None }
    }
}

impl From<FsError> for ReceiveFailure {
    fn from(error: FsError) -> ReceiveFailure {
        ReceiveError::from(error).into()
    }
}

type ReceiveResult<T> = Result<T, ReceiveError>;

fn senseless(what: impl Into<String>) -> ReceiveError {
    ReceiveError::Senseless { what: what.into() }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FilesetArrival {
    pub(crate) token: MoveToken,
    /// Set for the last stream of the move.
    pub(crate) end: Option<ArrivalEnd>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalEnd {
    pub(crate) from: PoolId,
    pub(crate) uuid: [u8; 16],
    pub(crate) is_read_only: bool,
    pub(crate) quota_bytes: u64,
}

struct ReceiveState<'c> {
    core: &'c Core,
    arrival: Option<FilesetArrival>,
    files: Files<'c>,
    target: Vec<NamePart>,
    begin: StreamBegin,
    current: Option<ReceivedAnode>,
    /// Last anode applied in order.
    last: Option<AnodeNo>,
    /// For the last file in order, if incomplete: the bytes applied.
    data_end: u64,
    anodes: u64,
    bytes: u64,
}

struct ReceivedAnode {
    sent: Anode,
    is_extra: bool,
}

impl Drop for ReceiveState<'_> {
    fn drop(&mut self) {
        self.files.fileset.anodes.usage.end_borrowing();
        // The lock succeeds, since pinning has loaded the index.
        if let Ok(mut index) = self.core.filesets.table.lock(&self.core.store) {
            index.unpin(self.files.fileset.anodes.slot);
        }
    }
}

impl Transfers<'_> {
    /// Receives a stream as a new fileset, or as the next state of a fileset. `progress` gets the
    /// current anode number and the end of numbers. Partial state of another stream is removed if
    /// `discards`, and is an error otherwise.
    pub(crate) fn receive(
        &self,
        path: &[NamePart],
        (input, arrival, discards): (&mut dyn Read, Option<FilesetArrival>, bool),
        random: [u8; 32],
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Received, ReceiveFailure> {
        self.check_writable().map_err(ReceiveError::from)?;
        let mut reader = StreamReader::new(input);
        let begin = first_of(&mut reader)?;
        if discards && self.is_of_another(path, &begin)? {
            self.abort_receiving(path)?;
        }
        // Fronts wait for the last stream of a move, so that stream is not resumed.
        let is_last = arrival.as_ref().is_some_and(|it| it.end.is_some());
        let mut receiving = self.begin_receiving(path, (begin, arrival), random)?;
        let done = receiving.take_all(&mut reader, progress).and_then(|totals| {
            unless_planted!(ReceivedLinksNotVerified, receiving.verify(&random)?);
            receiving.show(&random)?;
            Ok(Received { totals, snapshot: receiving.begin.to_name.clone() })
        });
        let error = match done {
            Ok(received) => return Ok(received),
            Err(error) => error,
        };
        if_planted!(PartialShown, receiving.show(&random)?);
        if error.is_resumable() && is_last {
            return Err(error.into());
        }
        if error.is_resumable() {
            let token = receiving.keep().ok().map(|at| ResumeToken {
                from: receiving.begin.from,
                to: receiving.begin.to,
                at,
            });
            return Err(ReceiveFailure { error, token });
        }
        drop(receiving);
        // The partial state stays usable if the target returns to its earlier state.
        let is_kept = matches!(
            error,
            ReceiveError::Target { .. }
                | ReceiveError::Fs(FsError::TryLater | FsError::FilesetInUse { .. })
        );
        if !is_kept {
            self.abort_receiving(path)?;
        }
        Err(error.into())
    }

    /// Verifies a stream and the target, without changes.
    pub(crate) fn verify_stream(
        &self,
        path: &[NamePart],
        input: &mut dyn Read,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Received, ReceiveFailure> {
        let mut reader = StreamReader::new(input);
        let begin = first_of(&mut reader)?;
        self.check_target(path, &begin, None)?;
        let (mut current, mut last): (Option<Anode>, _) = (None, None);
        loop {
            let record = reader.next_record()?;
            let content = current.as_ref().map(ContainerContent::of);
            match (&record, content) {
                (StreamRecord::Anode(bytes, flags), None) => {
                    let sent = anode_of(self, &begin, bytes, false)?;
                    if !flags.is_extra {
                        in_turn(last, sent.number)?;
                        last = Some(sent.number);
                        progress(sent.number.0, begin.anodes_end);
                    }
                    current = Some(sent);
                }
                (StreamRecord::AnodeEnd, Some(_)) => current = None,
                (StreamRecord::Page(page), Some(ContainerContent::Pages(kind))) => {
                    current.iter().try_for_each(|of| page_of(of, kind, page).map(drop))?;
                }
                (StreamRecord::NoPage(_), Some(ContainerContent::Pages(_))) => {}
                (StreamRecord::Data(..) | StreamRecord::Hole(..), Some(ContainerContent::Data)) => {
                }
                (StreamRecord::Remove(number, is_extra), None) => {
                    check_number(&begin, *number)?;
                    if !is_extra {
                        in_turn(last, *number)?;
                        last = Some(*number);
                    }
                }
                (StreamRecord::End(totals), None) => {
                    let snapshot = begin.to_name.clone();
                    return Ok(Received { totals: *totals, snapshot });
                }
                _ => return Err(senseless("a record stands where it can't be").into()),
            }
        }
    }
}

fn first_of(reader: &mut StreamReader<'_>) -> ReceiveResult<StreamBegin> {
    let StreamRecord::Begin(begin) = reader.next_record()? else {
        return Err(senseless("it has no beginning"));
    };
    Ok(*begin)
}

fn in_turn(last: Option<AnodeNo>, number: AnodeNo) -> ReceiveResult<()> {
    match last {
        Some(last) if number <= last => Err(senseless(format!("{number} comes behind {last}"))),
        _ => Ok(()),
    }
}

fn check_number(begin: &StreamBegin, number: AnodeNo) -> ReceiveResult<()> {
    let is_possible = number == ROOT_ANODE || number >= FIRST_FILE_ANODE;
    if is_possible && number.0 < begin.anodes_end {
        return Ok(());
    }
    Err(senseless(format!("no file has {number}")))
}

fn anode_of(
    core: &Core,
    begin: &StreamBegin,
    bytes: &[u8; 512],
    may_be_nameless: bool,
) -> ReceiveResult<Anode> {
    let (number, family) = (AnodeNo(read_u64(bytes, 8)), FilesetId(read_u64(bytes, 16)));
    let decoded =
        Anode::decode(bytes, family, number).map_err(|error| senseless(format!("{error}")))?;
    let anode = decoded.ok_or_else(|| senseless("an anode is empty"))?;
    check_number(begin, number)?;
    let target_bytes = 1..=wide(crate::api::SYMLINK_BYTES_MAX);
    let holds = [
        (anode.generation.0 <= begin.generation_max, "generation"),
        (
            (anode.kind == AnodeKind::Internal) == (anode.nlink == 0)
                || (may_be_nameless && number != ROOT_ANODE),
            "count of names",
        ),
        (number != ROOT_ANODE || anode.kind == AnodeKind::Directory, "kind"),
        (anode.residency.0 == 0, "residency"),
        (anode.orphan_slot.is_none() && anode.fragments == 0 && anode.height == 0, "place"),
        (anode.storage == StorageMode::Inline || anode.root == [0; 256], "map"),
        (core.store.geometry().can_have_blocks(anode.block_shift), "block size in this pool"),
        (
            ContainerContent::of(&anode) == ContainerContent::Data || anode.block_shift == 12,
            "block size",
        ),
        (
            ContainerContent::of(&anode) == ContainerContent::Data
                || anode.storage == StorageMode::Blocked,
            "storage",
        ),
        (anode.size_bytes <= crate::api::FILE_BYTES_MAX, "size"),
        (anode.xattr.0 == 0 || anode.xattr != anode.acl, "containers of its own"),
        (anode.kind != AnodeKind::Internal || (anode.xattr.0, anode.acl.0) == (0, 0), "container"),
        (anode.kind != AnodeKind::Symlink || target_bytes.contains(&anode.size_bytes), "target"),
        (anode.nlink > 0 || anode.entries == 0, "names"),
    ];
    match holds.iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(senseless(format!("{number} has no such {what}"))),
        None => Ok(anode),
    }
}

fn page_of(of: &Anode, kind: PageKind, sent: &StreamPage) -> ReceiveResult<Box<[u8; PAGE_BYTES]>> {
    let mut page = Box::new([0; PAGE_BYTES]);
    sent.put(&mut page);
    let verified = if kind == PageKind::Directory {
        let verified = directory::verify(&page[..], sent.index());
        verified.map_err(|error| error.to_string()).and_then(|()| check_names(of, &page[..]))
    } else {
        format::attributes::verify(&page).map_err(|error| error.to_string())
    };
    verified.map_err(|error| senseless(format!("page {}: {error}", sent.index())))?;
    Ok(page)
}

/// Refuses names that lookups would not find: on the wrong page, or duplicates.
fn check_names(of: &Anode, page: &[u8]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for dirent in directory::dirents(page) {
        let is_there = directory::hash_in(dirent.cookie) == directory::hash_of(of.key, dirent.name);
        if !is_there || !names.insert(dirent.name) {
            return Err(format!("a name of directory {} is not where it belongs", of.number));
        }
    }
    Ok(())
}

impl ReceiveState<'_> {
    fn take_all(
        &mut self,
        reader: &mut StreamReader<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> ReceiveResult<StreamTotals> {
        loop {
            let record = reader.next_record()?;
            let of = self.current.take();
            self.current = match (record, of) {
                (StreamRecord::Anode(bytes, flags), None) => {
                    // The last stream of a move has the open unlinked files.
                    let is_last = self.arrival.is_some_and(|arrival| arrival.end.is_some());
                    let sent = anode_of(self.core, &self.begin, &bytes, is_last)?;
                    progress(sent.number.0, self.begin.anodes_end);
                    Some(self.begin_anode(sent, flags)?)
                }
                (StreamRecord::Remove(number, is_extra), None) => {
                    check_number(&self.begin, number)?;
                    self.arrive(number, is_extra)?;
                    if number == ROOT_ANODE {
                        return Err(senseless("it takes the root away"));
                    }
                    self.remove(number)?;
                    None
                }
                (StreamRecord::End(totals), None) => return Ok(totals),
                (StreamRecord::AnodeEnd, Some(of)) => {
                    self.end_anode(&of)?;
                    None
                }
                (record, Some(of)) => {
                    self.content(record, &of)?;
                    Some(of)
                }
                _ => return Err(senseless("a record stands where it can't be")),
            };
        }
    }

    /// Notes an anode in order: all before it are complete. Makes the position durable at
    /// intervals.
    fn arrive(&mut self, number: AnodeNo, is_extra: bool) -> ReceiveResult<()> {
        if is_extra {
            return Ok(());
        }
        in_turn(self.last, number)?;
        self.anodes += 1;
        if self.anodes >= ANODES_KEPT || self.bytes >= BYTES_KEPT {
            (self.last, self.data_end) = (Some(number), 0);
            self.keep()?;
        }
        (self.last, self.data_end) = (Some(number), 0);
        Ok(())
    }

    /// Makes the applied records durable, then the position. Returns the position.
    fn keep(&mut self) -> FsResult<(u64, u64)> {
        (self.anodes, self.bytes) = (0, 0);
        let at = (self.last.map_or(self.begin.resume.0, |last| last.0), self.data_end);
        // RV2: the records come first.
        unless_planted!(ReceivedNotSynced, self.core.writeback().sync_all()?);
        let mut change = self.files.begin(LogCredits::SMALL)?;
        let mut guard = self.files.fileset.anodes.lock();
        let cursor = Cursor { container: at.0, end: at.1, height: 0 };
        guard.change_entry(&mut change, |entry| entry.state = FilesetState::Receiving(cursor))?;
        let applied = change.end();
        guard.settle(applied.lsn);
        self.core.store.journal.commit(applied.class)?;
        Ok(at)
    }

    fn existing(&self, number: AnodeNo) -> FsResult<Option<Anode>> {
        self.files.fileset.anodes.read_anode(&self.core.store, number)
    }

    fn begin_anode(&mut self, sent: Anode, flags: AnodeFlags) -> ReceiveResult<ReceivedAnode> {
        let number = sent.number;
        self.arrive(number, flags.is_extra)?;
        let existing = self.existing(number)?;
        let same = existing.as_ref().filter(|it| is_one_file(it, &sent));
        if !flags.is_new && same.is_none() {
            return Err(senseless(format!("it changes {number}, which is not there")));
        }
        let is_kept = (!flags.is_new || flags.is_resumed)
            && same.is_some_and(|it| it.storage == sent.storage)
            && sent.storage == StorageMode::Blocked;
        let base = self.base_of(&sent);
        match &existing {
            None => self.make(&base)?,
            Some(_) if !is_kept => self.empty(number, Some(&base))?,
            Some(old) if ContainerContent::of(old) == ContainerContent::Data => {
                self.shrink(&sent)?
            }
            Some(_) => {}
        }
        self.data_end = if flags.is_resumed { self.begin.resume.1 } else { 0 };
        Ok(ReceivedAnode { sent, is_extra: flags.is_extra })
    }

    /// Returns the anode that is stored before the content is applied.
    fn base_of(&self, sent: &Anode) -> Anode {
        let mut base = sent.clone();
        base.fileset = self.files.fileset.anodes.family;
        (base.pages, base.placement) = (0, Placement::Any);
        if is_nameless(&base) {
            // Counted as named until the file enters the orphan list.
            base.nlink = 1;
        }
        if base.kind == AnodeKind::Directory {
            (base.entries, base.depth) = (0, 0);
        }
        if base.storage == StorageMode::Blocked {
            base.size_bytes = 0;
        }
        base
    }

    fn changing<T>(&self, operation: impl FnMut() -> FsResult<T>) -> FsResult<T> {
        self.files.unsharing(Urgency::User, operation)
    }

    fn make(&self, base: &Anode) -> FsResult<()> {
        let store = &self.core.store;
        if self.files.fileset.anodes.is_pending(base.number) {
            // F3: the number is free only once its deletion is written back.
            store.journal.checkpoint()?;
        }
        self.files.names().check_space(4, Urgency::User)?;
        self.changing(|| {
            let mut change = self.files.begin(LogCredits::LARGE)?;
            let mut guard = self.files.fileset.anodes.lock();
            guard.allocate_number(store, &mut change, base.number)?;
            let base = Anode { birth: change.epoch(), ..base.clone() };
            guard.write_anode(store, &mut change, &base)?;
            let applied = change.end();
            guard.settle(applied.lsn);
            Ok(())
        })
    }

    /// Frees the content of an anode, which then becomes `base`, or is freed.
    fn empty(&self, number: AnodeNo, base: Option<&Anode>) -> FsResult<()> {
        while !self.changing(|| self.empty_some(number, base))? {}
        Ok(())
    }

    fn empty_some(&self, number: AnodeNo, base: Option<&Anode>) -> FsResult<bool> {
        let (store, fileset) = (&self.core.store, self.files.fileset);
        let mut change = self.files.begin(LogCredits::LARGE)?;
        let vnode = self.core.table.find(self.files.ino(number));
        let mut state = vnode.as_ref().map(|vnode| vnode.state.write());
        let known = state.as_ref().and_then(|state| state.anode.clone());
        let found = match known {
            Some(anode) => Some(anode),
            None => fileset.anodes.read_anode_of(store, &change, number)?,
        };
        let Some(mut anode) = found else { return Ok(true) };
        let content = ContainerContent::of(&anode);
        let is_done = anode.storage == StorageMode::Inline
            || store.truncate_blocks(&mut change, &mut anode, 0, content)?;
        anode.size_bytes = 0;
        if anode.kind == AnodeKind::Directory {
            (anode.entries, anode.depth) = (0, 0);
        }
        let mut guard = fileset.anodes.lock();
        match base {
            _ if !is_done => guard.write_anode(store, &mut change, &anode)?,
            Some(base) => {
                let base = Anode { birth: change.epoch(), ..base.clone() };
                guard.write_anode(store, &mut change, &base)?;
            }
            None => guard.free_anode(store, &mut change, number)?,
        }
        let applied = change.end();
        guard.settle(applied.lsn);
        if let Some(state) = &mut state {
            self.core.kill_pending(state);
            (state.size_bytes, state.class) = (0, applied.class);
            // While unfinished, the cleaner leaves the blocks in place. At the end the vnode is
            // removed.
            state.is_being_cut = !is_done;
            state.anode = (!is_done).then_some(anode);
            if let (true, Some(vnode)) = (is_done, &vnode) {
                self.core.table.remove(vnode);
            }
        }
        Ok(is_done)
    }

    fn remove(&self, number: AnodeNo) -> FsResult<()> {
        match self.existing(number)? {
            Some(_) => self.empty(number, None),
            None => Ok(()),
        }
    }

    fn vnode(&self, number: AnodeNo) -> FsResult<Arc<Vnode>> {
        self.files.vnode_of(number)
    }

    fn shrink(&self, sent: &Anode) -> FsResult<()> {
        if sent.kind != AnodeKind::Regular {
            return Ok(());
        }
        let vnode = self.vnode(sent.number)?;
        let size = vnode.state.read().size_bytes;
        if size <= sent.size_bytes {
            return Ok(());
        }
        let set = SetAttr::default();
        self.changing(|| {
            self.files.truncate(&Caller::root(), &vnode, sent.size_bytes, &set, None).map(drop)
        })
    }

    fn content(&mut self, record: StreamRecord, of: &ReceivedAnode) -> ReceiveResult<()> {
        let sent = &of.sent;
        let in_file = |offset: u64, length: u64| {
            let end = offset.checked_add(length).filter(|end| *end <= sent.size_bytes);
            let is_blocked = sent.storage == StorageMode::Blocked;
            end.filter(|_| is_blocked)
                .ok_or_else(|| senseless(format!("{} holds no bytes at {offset}", sent.number)))
        };
        match (record, ContainerContent::of(sent), sent.kind) {
            (StreamRecord::Data(offset, data), ContainerContent::Data, AnodeKind::Regular) => {
                let end = in_file(offset, wide(data.len()))?;
                let (ino, caller) = (self.files.ino(sent.number), Caller::root());
                self.files.write_file(&caller, ino, offset, (&data, Capabilities::Keep))?;
                self.bytes = self.bytes.saturating_add(wide(data.len()));
                self.data_end = if of.is_extra { 0 } else { end };
                if self.bytes >= BYTES_KEPT && !of.is_extra {
                    self.keep()?;
                }
                Ok(())
            }
            (StreamRecord::Data(0, data), ContainerContent::Data, AnodeKind::Symlink) => {
                let is_whole = in_file(0, wide(data.len()))? == sent.size_bytes;
                if !is_whole || data.len() > crate::api::SYMLINK_BYTES_MAX {
                    return Err(senseless(format!("{} has half a target", sent.number)));
                }
                if self.existing(sent.number)?.is_some_and(|it| it.fragments > 0) {
                    return Err(senseless(format!("{} gets a second target", sent.number)));
                }
                Ok(self
                    .changing(|| self.files.names().put_long_target(&self.base_of(sent), &data))?)
            }
            (StreamRecord::Hole(offset, length), ContainerContent::Data, AnodeKind::Regular) => {
                let end = in_file(offset, length)?;
                let block = sent.block_bytes();
                let end = hole_end(end, sent.size_bytes, block);
                let (ino, caller) = (self.files.ino(sent.number), Caller::root());
                let mode = Fallocate::PunchHole;
                Ok(self.changing(|| {
                    self.files.fallocate_file(&caller, ino, offset, end - offset, mode)
                })?)
            }
            (StreamRecord::Page(page), ContainerContent::Pages(kind), _) => {
                let bytes = page_of(sent, kind, &page)?;
                self.files.names().check_space(4, Urgency::User)?;
                Ok(self.changing(|| self.put_page(sent.number, kind, &page, &bytes))?)
            }
            (StreamRecord::NoPage(index), ContainerContent::Pages(kind), _) => {
                Ok(self.changing(|| self.drop_page(sent.number, kind, index))?)
            }
            _ => Err(senseless(format!("{} has no such content", sent.number))),
        }
    }

    fn put_page(
        &self,
        number: AnodeNo,
        kind: PageKind,
        page: &StreamPage,
        bytes: &[u8; PAGE_BYTES],
    ) -> FsResult<()> {
        let (store, anodes) = (&self.core.store, &self.files.fileset.anodes);
        let mut change = self.files.begin(LogCredits::LARGE)?;
        let found = anodes.read_anode_of(store, &change, number)?;
        let mut anode = found.ok_or(FsError::Stale)?;
        let names = if kind == PageKind::Directory { directory::count(bytes) } else { 0 };
        let mut before = 0;
        match store.edit_content(&mut change, &anode, page.index(), kind)? {
            Some(old) => {
                before = if kind == PageKind::Directory { directory::count(old) } else { 0 };
                page.put(old);
            }
            None => page.put(store.add_content(&mut change, &mut anode, page.index(), kind)?),
        }
        anode.entries = anode.entries.saturating_sub(before).saturating_add(names);
        // The split hint describes the page's old contents: drop it.
        let pointer = store.block(Some(&change), &anode, page.index())?;
        if let Some(pointer) = pointer.filter(|it| it.split_hint().is_some()) {
            let bare = pointer.with_split_hint(None);
            store.set_block(&mut change, &mut anode, page.index(), Some(&bare))?;
        }
        anodes.write_anode(store, &mut change, &anode)?;
        change.end();
        Ok(())
    }

    fn drop_page(&self, number: AnodeNo, kind: PageKind, index: u64) -> FsResult<()> {
        let (store, anodes) = (&self.core.store, &self.files.fileset.anodes);
        let mut change = self.files.begin(LogCredits::LARGE)?;
        let found = anodes.read_anode_of(store, &change, number)?;
        let mut anode = found.ok_or(FsError::Stale)?;
        let Some(page) = store.content(Some(&change), &anode, index, kind)? else { return Ok(()) };
        let names = if kind == PageKind::Directory { directory::count(&page[..]) } else { 0 };
        drop(page);
        store.remove_content(&mut change, &mut anode, index, kind)?;
        anode.entries = anode.entries.saturating_sub(names);
        anodes.write_anode(store, &mut change, &anode)?;
        change.end();
        Ok(())
    }

    fn end_anode(&mut self, of: &ReceivedAnode) -> ReceiveResult<()> {
        let sent = &of.sent;
        if sent.kind == AnodeKind::Regular {
            self.end_file(sent)?;
        } else {
            let (store, anodes) = (&self.core.store, &self.files.fileset.anodes);
            let (counts, is_empty) = self.changing(|| {
                let change = self.files.begin(LogCredits::LARGE)?;
                let found = anodes.read_anode_of(store, &change, sent.number)?;
                let anode = found.ok_or(FsError::Stale)?;
                let counts = (anode.pages, anode.entries, anode.storage);
                let finished = finished(sent, &anode, sent.size_bytes);
                let is_empty = finished.fragments == 0;
                self.write_finished(change, finished)?;
                Ok((counts, is_empty))
            })?;
            if is_empty && sent.kind == AnodeKind::Symlink && sent.storage == StorageMode::Blocked {
                return Err(senseless(format!("{} has no target", sent.number)));
            }
            if counts != (sent.pages, sent.entries, sent.storage) {
                let (pages, entries, _) = counts;
                return Err(senseless(format!(
                    "{} says {} pages and {} names, and {pages} and {entries} came",
                    sent.number, sent.pages, sent.entries
                )));
            }
        }
        self.data_end = 0;
        Ok(())
    }

    /// Writes a completed anode; an unlinked file enters the orphan list (F2).
    fn write_finished(&self, mut change: Change<'_>, mut anode: Anode) -> FsResult<(Anode, u64)> {
        let (store, anodes) = (&self.core.store, &self.files.fileset.anodes);
        let mut guard = None;
        if is_nameless(&anode) {
            let guard = guard.insert(anodes.lock());
            self.files.orphan(guard, &mut change, &mut anode)?;
        }
        anodes.write_anode(store, &mut change, &anode)?;
        let applied = change.end();
        if let Some(guard) = guard {
            guard.settle(applied.lsn);
        }
        Ok((anode, applied.class))
    }

    fn end_file(&self, sent: &Anode) -> FsResult<()> {
        let vnode = self.vnode(sent.number)?;
        let (caller, set) = (Caller::root(), SetAttr::default());
        let size = vnode.state.read().size_bytes;
        if size < sent.size_bytes {
            self.changing(|| {
                self.files.extend(&caller, &vnode, sent.size_bytes, &set, None).map(drop)
            })?;
        }
        self.changing(|| {
            let (change, mut state) = self.files.begin_settled(&vnode)?;
            let anode = state.anode()?;
            // V3: the size on disk is raised only when the blocks are mapped.
            let anode = finished(sent, anode, anode.size_bytes);
            let (anode, class) = self.write_finished(change, anode)?;
            state.anode = Some(anode);
            state.class = class;
            Ok(())
        })
    }
}

fn is_nameless(anode: &Anode) -> bool {
    anode.kind != AnodeKind::Internal && anode.nlink == 0
}

/// Returns the sent anode with the content that is stored here.
fn finished(sent: &Anode, here: &Anode, size_bytes: u64) -> Anode {
    let mut anode = sent.clone();
    (anode.fileset, anode.birth) = (here.fileset, here.birth);
    (anode.storage, anode.height, anode.root) = (here.storage, here.height, here.root);
    (anode.fragments, anode.pages) = (here.fragments, here.pages);
    (anode.orphan_slot, anode.placement) = (here.orphan_slot, here.placement);
    anode.size_bytes = size_bytes;
    anode
}

/// Returns the end of a hole. At the end of the file, the hole includes the rest of its block.
fn hole_end(end: u64, size_bytes: u64, block_bytes: u64) -> u64 {
    if end < size_bytes {
        return end;
    }
    (end.div_ceil(block_bytes) * block_bytes).min(crate::api::FILE_BYTES_MAX)
}

const _: () = assert!(format::anode::ANODE_BYTES == 512);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_at_the_end_of_a_file_takes_the_rest_of_its_block() {
        const MAX: u64 = crate::api::FILE_BYTES_MAX;
        assert_eq!(hole_end(5000, 5000, 4096), 8192);
        assert_eq!(hole_end(4096, 5000, 4096), 4096);
        assert_eq!(hole_end(MAX, MAX, 1 << 20), MAX, "no file is longer");
    }

    #[test]
    fn anodes_come_in_turn() {
        assert!(
            in_turn(None, AnodeNo(1)).is_ok() && in_turn(Some(AnodeNo(1)), AnodeNo(16)).is_ok()
        );
        assert!(in_turn(Some(AnodeNo(16)), AnodeNo(16)).is_err());
    }
}
