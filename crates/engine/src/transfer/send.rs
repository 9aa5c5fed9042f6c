//! Sending a node: the records that produce it from an earlier node of its family, or from nothing.
//!
//! Anodes are sent by rising number, each as its own difference, so a stream can resume at any of
//! them. Preallocations are omitted. So are unlinked files, unless they are open in a move. Of
//! these, the ones missing in the earlier node come last.

use crate::file::Transfers;
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::{ControlFlow, Range};

use format::anode::{Anode, AnodeKind, StorageMode};
use format::fileset::Fileset as Entry;
use format::ids::{AnodeNo, Epoch};
use format::page::PageKind;
use format::placement::Placement;
use format::stream::{
    AnodeFlags, STREAM_DATA_BYTES_MAX, StreamBegin, StreamPage, StreamRecord, StreamTotals,
};
use runtime::planted;

use crate::container::{
    ChangedPage, ChangedRange, ContainerContent, ContainerVersions, content_owner, is_one_file,
};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::file::{Core, VnodeState};
use crate::fileset::pin::SnapshotPin;
use crate::fileset_table::diff::{ChangedAnode, NodeView};
use crate::stream::{ResumeToken, SendError, StreamWriter};

/// Returns the identity of a node's content in all pools: its UUID, or that of the node it was
/// received from.
pub(crate) fn identity_of(entry: &Entry) -> [u8; 16] {
    if entry.origin == [0; 16] { entry.uuid } else { entry.origin }
}

/// Data records read together, each a megabyte of memory.
const RECORDS_AT_ONCE: usize = 8;

struct SendState<'s> {
    core: &'s Core,
    from: Option<&'s SnapshotPin<'s>>,
    to: &'s SnapshotPin<'s>,
    resume: (u64, u64),
    out: StreamWriter<'s>,
    failed: Option<SendError>,
    nameless: BTreeMap<AnodeNo, Anode>,
}

impl Transfers<'_> {
    /// Sends `to` as a change of `from`, or whole. `progress` gets the current anode number and the
    /// end of numbers.
    pub(crate) fn send(
        &self,
        from: Option<&SnapshotPin<'_>>,
        to: &SnapshotPin<'_>,
        resume: Option<ResumeToken>,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<StreamTotals, SendError> {
        if let Some(from) = from {
            self.check_forward(from, to)?;
        }
        self.send_with((from, to), (resume, &[]), out, progress)
    }

    pub(crate) fn send_with(
        &self,
        (from, to): (Option<&SnapshotPin<'_>>, &SnapshotPin<'_>),
        (resume, nameless): (Option<ResumeToken>, &[AnodeNo]),
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<StreamTotals, SendError> {
        if from.is_some_and(|from| from.node.family != to.node.family) {
            return Err(FsError::Invalid.into());
        }
        let begin = begin_of(self, from, to, resume)?;
        let mut sending = SendState {
            core: self,
            from,
            to,
            resume: begin.resume,
            out: StreamWriter::new(out, begin.stream()),
            failed: None,
            nameless: self.nameless_in(to, nameless)?,
        };
        let (first, end) = (AnodeNo(begin.resume.0), begin.anodes_end);
        sending.out.write(&StreamRecord::Begin(Box::new(begin)))?;
        let nodes = (from.map(|from| &from.node), &to.node);
        let _ = self.store.differing_anodes(nodes.0, nodes.1, first, &mut |changed| {
            progress(changed.number.0, end);
            match sending.changed(changed) {
                Ok(()) => Ok(ControlFlow::Continue(())),
                Err(SendError::Fs(error)) => Err(error),
                Err(error) => {
                    sending.failed = Some(error);
                    Ok(ControlFlow::Break(()))
                }
            }
        })?;
        if let Some(error) = sending.failed {
            return Err(error);
        }
        // The remaining unlinked files: they are missing in the earlier node, or unchanged since.
        for after in std::mem::take(&mut sending.nameless).values() {
            let flags = AnodeFlags { is_new: true, is_extra: true, is_resumed: false };
            sending.anode((None, after), flags)?;
        }
        sending.out.end()
    }

    fn nameless_in(
        &self,
        node: &SnapshotPin<'_>,
        numbers: &[AnodeNo],
    ) -> FsResult<BTreeMap<AnodeNo, Anode>> {
        let (whole, mut found) = (NodeView::whole(&node.entry), BTreeMap::new());
        for number in numbers {
            let file = whole.anode(&self.store, *number)?;
            let is_nameless = |file: &Anode| file.kind != AnodeKind::Internal && file.nlink == 0;
            let Some(file) = file.filter(is_nameless) else { continue };
            for container in [file.xattr, file.acl].into_iter().filter(|number| number.0 != 0) {
                found.extend(whole.anode(&self.store, container)?.map(|it| (container, it)));
            }
            found.insert(*number, file);
        }
        Ok(found)
    }
}

impl Transfers<'_> {
    /// Refuses a base that is `to` itself or later. Another branch is permitted, as after a
    /// restore.
    fn check_forward(&self, from: &SnapshotPin<'_>, to: &SnapshotPin<'_>) -> Result<(), SendError> {
        let index = self.filesets.table.lock(&self.store)?;
        let (earlier, later) = (index.path_of(to.slot), index.path_of(from.slot));
        if from.slot == to.slot {
            return Err(SendError::Backward { what: format!("{later} is sent from itself") });
        }
        if index.goes_back_to(from.slot, to.slot) {
            let what = format!("{earlier} is earlier than {later}");
            return Err(SendError::Backward { what });
        }
        Ok(())
    }
}

fn begin_of(
    core: &Core,
    from: Option<&SnapshotPin<'_>>,
    to: &SnapshotPin<'_>,
    resume: Option<ResumeToken>,
) -> Result<StreamBegin, SendError> {
    let identity = from.map_or([0; 16], |from| identity_of(&from.entry));
    let begin = StreamBegin {
        pool_id: core.store.pool_id(),
        block_shift: to.entry.block_shift,
        from: identity,
        to: identity_of(&to.entry),
        anodes_end: to.entry.anodes_end.max(from.map_or(0, |from| from.entry.anodes_end)),
        // The snapshot's epoch is later than that of every file in it.
        generation_max: to.entry.id.0.saturating_add(to.entry.generation_base),
        resume: resume.map_or((0, 0), |token| token.at),
        from_name: from.map(|from| from.entry.name.clone()),
        to_name: to.entry.name.clone(),
    };
    match resume {
        Some(token) if (token.from, token.to) != (begin.from, begin.to) => {
            Err(SendError::ForeignToken)
        }
        _ => Ok(begin),
    }
}

impl SendState<'_> {
    fn changed(&mut self, changed: &ChangedAnode) -> Result<(), SendError> {
        let number = changed.number;
        let nameless = self.nameless.remove(&number);
        let after = changed.after.clone().or(nameless);
        let changed = &ChangedAnode { after, ..changed.clone() };
        match &changed.after {
            None => self.out.write(&StreamRecord::Remove(number, false))?,
            Some(after) => {
                let is_resumed = number.0 == self.resume.0 && self.resume.1 > 0;
                let before = changed.before.as_ref().filter(|before| is_one_file(before, after));
                let flags = AnodeFlags { is_new: before.is_none(), is_extra: false, is_resumed };
                self.anode((before, after), flags)?;
            }
        }
        self.containers(changed)
    }

    /// Sends the unchanged attribute containers of a file that is new in the node, or was removed.
    fn containers(&mut self, changed: &ChangedAnode) -> Result<(), SendError> {
        let store = &self.core.store;
        let (Some(file), Some(from)) =
            (changed.after.as_ref().or(changed.before.as_ref()), self.from)
        else {
            return Ok(());
        };
        if changed.before.is_some() == changed.after.is_some() {
            return Ok(());
        }
        for number in [file.xattr, file.acl].into_iter().filter(|number| number.0 != 0) {
            let both = (from.node.anode(store, number)?, self.to.node.anode(store, number)?);
            match both {
                (_, Some(after)) if changed.after.is_some() => {
                    let flags = AnodeFlags { is_new: true, is_extra: true, is_resumed: false };
                    self.anode((None, &after), flags)?;
                }
                (Some(_), None) => self.out.write(&StreamRecord::Remove(number, true))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn anode(
        &mut self,
        (before, after): (Option<&Anode>, &Anode),
        flags: AnodeFlags,
    ) -> Result<(), SendError> {
        self.out.write(&StreamRecord::Anode(Box::new(sent(after).encode()), flags))?;
        let versions = ContainerVersions::new(before, Some(after));
        match ContainerContent::of(after) {
            ContainerContent::Pages(kind) => self.pages(versions, after, kind)?,
            ContainerContent::Data => self.data(versions, before, after, flags)?,
        }
        self.out.write(&StreamRecord::AnodeEnd)
    }

    fn pages(
        &mut self,
        versions: ContainerVersions<'_>,
        after: &Anode,
        kind: PageKind,
    ) -> Result<(), SendError> {
        let core = self.core;
        self.told(|sending, fail| {
            core.store.differing_pages(versions, 0, &mut |page: &ChangedPage| {
                let record = match page.after {
                    Some(pointer) => {
                        let owner = content_owner(after, page.index);
                        let view = core.store.view(None, pointer.place, kind, owner)?;
                        StreamRecord::Page(StreamPage::of(&view, page.index))
                    }
                    None => StreamRecord::NoPage(page.index),
                };
                Ok(keep(sending.out.write(&record), fail))
            })
        })
    }

    fn data(
        &mut self,
        versions: ContainerVersions<'_>,
        before: Option<&Anode>,
        after: &Anode,
        flags: AnodeFlags,
    ) -> Result<(), SendError> {
        let first = if flags.is_resumed { self.resume.1 } else { 0 };
        let has_blocks = before.is_some_and(|before| before.storage == StorageMode::Blocked);
        let core = self.core;
        self.told(|sending, fail| {
            core.store.differing_ranges(versions, first, &mut |range: ChangedRange| {
                if !range.is_hole {
                    return Ok(keep(sending.bytes(after, range.bytes), fail));
                }
                if !has_blocks || planted!(HoleNotSent) {
                    return Ok(ControlFlow::Continue(()));
                }
                let length = range.bytes.end - range.bytes.start;
                Ok(keep(sending.out.write(&StreamRecord::Hole(range.bytes.start, length)), fail))
            })
        })
    }

    fn bytes(&mut self, file: &Anode, range: Range<u64>) -> Result<(), SendError> {
        let mut at = range.start;
        while at < range.end {
            at = self.records(file, at..range.end)?;
        }
        Ok(())
    }

    /// Sends some records of file data, reading ahead. Returns the end of the sent bytes.
    fn records(&mut self, file: &Anode, range: Range<u64>) -> Result<u64, SendError> {
        let record_bytes = STREAM_DATA_BYTES_MAX;
        let starts = (range.start..range.end).step_by(record_bytes).take(RECORDS_AT_ONCE);
        let until = |start: u64| range.end.min(start.saturating_add(wide(record_bytes)));
        let ranges: Vec<Range<u64>> = starts.map(|start| start..until(start)).collect();
        let (mut written, mut at) = (Ok(()), range.start);
        let (core, out) = (self.core, &mut self.out);
        let state = VnodeState::of(self.to.slot, file.clone());
        core.reader().read_ranges(&state, &ranges, &mut |index, parts| {
            // Records are sent in order: those after an unreadable one must wait for it.
            let is_next = ranges[index].start == at || planted!(UnreadRecordSkipped);
            if written.is_ok() && is_next {
                written = out.write_data(at, parts);
                at = ranges[index].end;
            }
        });
        written?;
        if let Some(left) = ranges.into_iter().find(|range| range.start == at) {
            let data = core.transfers().read_node(self.to, file, left.clone())?;
            self.out.write_data(at, &[&data])?;
            at = left.end;
        }
        Ok(at)
    }

    /// Runs a walk, and ends it when a record can't be written.
    fn told(
        &mut self,
        walk: impl FnOnce(&mut Self, &mut Option<SendError>) -> FsResult<ControlFlow<()>>,
    ) -> Result<(), SendError> {
        let mut failed = None;
        let _ = walk(self, &mut failed)?;
        failed.map_or(Ok(()), Err)
    }
}

fn keep(written: Result<(), SendError>, fail: &mut Option<SendError>) -> ControlFlow<()> {
    match written {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            *fail = Some(error);
            ControlFlow::Break(())
        }
    }
}

/// Returns an anode without the data that only its pool can use: places, disk groups, counts.
fn sent(anode: &Anode) -> Anode {
    let mut sent = anode.clone();
    (sent.height, sent.fragments, sent.birth) = (0, 0, Epoch(0));
    (sent.orphan_slot, sent.placement) = (None, Placement::Any);
    if sent.storage == StorageMode::Blocked {
        sent.root.fill(0);
    }
    sent
}

impl Transfers<'_> {
    /// Reads file data. If the block has moved, reads again by the present map.
    fn read_node(
        &self,
        node: &SnapshotPin<'_>,
        file: &Anode,
        range: Range<u64>,
    ) -> FsResult<Vec<u8>> {
        let mut bytes = vec![0; index_wide(range.end - range.start)];
        let first =
            self.reader().fill(&VnodeState::of(node.slot, file.clone()), range.start, &mut bytes);
        let Err(FsError::Corrupt { .. } | FsError::Io { .. }) = first else {
            return first.map(|()| bytes);
        };
        let again = node.node.anode(&self.store, file.number)?.ok_or(FsError::Stale)?;
        self.reader().fill(&VnodeState::of(node.slot, again), range.start, &mut bytes)?;
        Ok(bytes)
    }
}
