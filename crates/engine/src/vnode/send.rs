//! Sending a node: the records that make a copy of it from an earlier node of its family, or from
//! nothing.
//!
//! Anodes go by rising number, each with what the earlier node has differently, so the parts of a
//! stream need nothing of each other and a stream that broke off goes on at any of them. Room that
//! is only kept is left out, and files without a name, but for those that a move has to take along:
//! who has them open goes on in the other pool. What the earlier node did not have of these comes
//! at the end.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::{ControlFlow, Range};

use format::anode::{Anode, AnodeKind, StorageMode};
use format::fileset::Fileset as Entry;
use format::ids::{AnodeNo, Epoch};
use format::page::PageKind;
use format::placement::Placement;
use format::stream::{AnodeFlags, Begin, Record, STREAM_DATA_BYTES_MAX, SentPage, Totals};
use runtime::planted::{self, Planted};

use super::diff::Pinned;
use super::{Core, VnodeState};
use crate::container::{ChangedPage, ChangedRange, Content, Versions, content_owner, is_one_file};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::fileset::diff::{ChangedAnode, NodeView};
use crate::stream::{ResumeToken, SendError, StreamWriter};

/// Returns what identifies the content of a node in every pool: its own name for handles, or that
/// of the node it was received from.
pub(crate) fn identity_of(entry: &Entry) -> [u8; 16] {
    if entry.origin == [0; 16] { entry.uuid } else { entry.origin }
}

/// Records of data that are read at a time: so many megabytes are in memory.
const RECORDS_AT_ONCE: usize = 8;

/// A stream under way.
struct Sending<'s> {
    core: &'s Core,
    from: Option<&'s Pinned<'s>>,
    to: &'s Pinned<'s>,
    resume: (u64, u64),
    out: StreamWriter<'s>,
    failed: Option<SendError>,
    /// Files without a name that are sent all the same, with their attributes, by number.
    nameless: BTreeMap<AnodeNo, Anode>,
}

impl Core {
    /// Writes what makes the node `to` of `from`, or of nothing. `progress` is told which anode is
    /// sent, and below which number all are.
    pub(crate) fn send(
        &self,
        from: Option<&Pinned<'_>>,
        to: &Pinned<'_>,
        resume: Option<ResumeToken>,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Totals, SendError> {
        if let Some(from) = from {
            self.check_forward(from, to)?;
        }
        self.send_with((from, to), (resume, &[]), out, progress)
    }

    /// As [`Core::send`], with these files, which have no name.
    pub(crate) fn send_with(
        &self,
        (from, to): (Option<&Pinned<'_>>, &Pinned<'_>),
        (resume, nameless): (Option<ResumeToken>, &[AnodeNo]),
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Totals, SendError> {
        if from.is_some_and(|from| from.node.family != to.node.family) {
            return Err(FsError::Invalid.into());
        }
        let begin = begin_of(self, from, to, resume)?;
        let mut sending = Sending {
            core: self,
            from,
            to,
            resume: begin.resume,
            out: StreamWriter::new(out, begin.stream()),
            failed: None,
            nameless: self.nameless_in(to, nameless)?,
        };
        let (first, end) = (AnodeNo(begin.resume.0), begin.anodes_end);
        sending.out.write(&Record::Begin(Box::new(begin)))?;
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
        // Those that the earlier node did not have, or without a name.
        for after in std::mem::take(&mut sending.nameless).values() {
            let flags = AnodeFlags { is_new: true, is_extra: true, is_resumed: false };
            sending.anode((None, after), flags)?;
        }
        sending.out.end()
    }

    /// Returns those of `numbers` that have no name in a node, and what holds their attributes.
    fn nameless_in(
        &self,
        node: &Pinned<'_>,
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

impl Core {
    /// Refuses a stream that would bring its receiver back to what he had before, or to what he
    /// has. One to another branch of the family, as a restore makes it, goes forward.
    fn check_forward(&self, from: &Pinned<'_>, to: &Pinned<'_>) -> Result<(), SendError> {
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
    from: Option<&Pinned<'_>>,
    to: &Pinned<'_>,
    resume: Option<ResumeToken>,
) -> Result<Begin, SendError> {
    let identity = from.map_or([0; 16], |from| identity_of(&from.entry));
    let begin = Begin {
        pool_id: core.store.pool_id(),
        block_shift: to.entry.block_shift,
        from: identity,
        to: identity_of(&to.entry),
        anodes_end: to.entry.anodes_end.max(from.map_or(0, |from| from.entry.anodes_end)),
        // Whatever the node holds was made before it was taken.
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

impl Sending<'_> {
    fn changed(&mut self, changed: &ChangedAnode) -> Result<(), SendError> {
        let number = changed.number;
        let nameless = self.nameless.remove(&number);
        let after = changed.after.clone().or(nameless);
        let changed = &ChangedAnode { after, ..changed.clone() };
        match &changed.after {
            None => self.out.write(&Record::Remove(number, false))?,
            Some(after) => {
                let is_resumed = number.0 == self.resume.0 && self.resume.1 > 0;
                let before = changed.before.as_ref().filter(|before| is_one_file(before, after));
                let flags = AnodeFlags { is_new: before.is_none(), is_extra: false, is_resumed };
                self.anode((before, after), flags)?;
            }
        }
        self.containers(changed)
    }

    /// Sends the containers of a file that got its first name, or lost its last one: they did not
    /// change themselves.
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
                (Some(_), None) => self.out.write(&Record::Remove(number, true))?,
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
        self.out.write(&Record::Anode(Box::new(sent(after).encode()), flags))?;
        let versions = Versions::new(before, Some(after));
        match Content::of(after) {
            Content::Pages(kind) => self.pages(versions, after, kind)?,
            Content::Data => self.data(versions, before, after, flags)?,
        }
        self.out.write(&Record::AnodeEnd)
    }

    fn pages(
        &mut self,
        versions: Versions<'_>,
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
                        Record::Page(SentPage::of(&view, page.index))
                    }
                    None => Record::NoPage(page.index),
                };
                Ok(keep(sending.out.write(&record), fail))
            })
        })
    }

    fn data(
        &mut self,
        versions: Versions<'_>,
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
                if !has_blocks || planted::is(Planted::HoleNotSent) {
                    return Ok(ControlFlow::Continue(()));
                }
                let length = range.bytes.end - range.bytes.start;
                Ok(keep(sending.out.write(&Record::Hole(range.bytes.start, length)), fail))
            })
        })
    }

    /// Sends bytes of a file.
    fn bytes(&mut self, file: &Anode, range: Range<u64>) -> Result<(), SendError> {
        let mut at = range.start;
        while at < range.end {
            at = self.records(file, at..range.end)?;
        }
        Ok(())
    }

    /// Sends some records of bytes of a file: the device reads the next ones while one is written.
    /// Returns up to where the bytes are sent.
    fn records(&mut self, file: &Anode, range: Range<u64>) -> Result<u64, SendError> {
        let record_bytes = STREAM_DATA_BYTES_MAX;
        let starts = (range.start..range.end).step_by(record_bytes).take(RECORDS_AT_ONCE);
        let until = |start: u64| range.end.min(start.saturating_add(wide(record_bytes)));
        let ranges: Vec<Range<u64>> = starts.map(|start| start..until(start)).collect();
        let (mut written, mut at) = (Ok(()), range.start);
        let (core, out) = (self.core, &mut self.out);
        let state = VnodeState::of(self.to.slot, file.clone());
        core.read_ranges(&state, &ranges, &mut |index, parts| {
            // One that could not be read keeps those behind it from being sent before it.
            let is_next = ranges[index].start == at || planted::is(Planted::UnreadRecordSkipped);
            if written.is_ok() && is_next {
                written = out.write_data(at, parts);
                at = ranges[index].end;
            }
        });
        written?;
        if let Some(left) = ranges.into_iter().find(|range| range.start == at) {
            let data = core.read_node(self.to, file, left.clone())?;
            self.out.write_data(at, &[&data])?;
            at = left.end;
        }
        Ok(at)
    }

    /// Does a walk that may break off because a record was not taken.
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

/// Returns an anode without what is only its pool's: places and disk groups, and what is counted by
/// them.
fn sent(anode: &Anode) -> Anode {
    let mut sent = anode.clone();
    (sent.height, sent.fragments, sent.birth) = (0, 0, Epoch(0));
    (sent.orphan_slot, sent.placement) = (None, Placement::Any);
    if sent.storage == StorageMode::Blocked {
        sent.root.fill(0);
    }
    if planted::is(Planted::HardLinkLost) && sent.kind == AnodeKind::Regular {
        sent.nlink = 1;
    }
    sent
}

impl Core {
    /// Reads bytes of a file of a node that does not change. A block may have moved since its
    /// pointer was read: then the map knows where it is now.
    fn read_node(&self, node: &Pinned<'_>, file: &Anode, range: Range<u64>) -> FsResult<Vec<u8>> {
        let mut bytes = vec![0; index_wide(range.end - range.start)];
        let first = self.fill(&VnodeState::of(node.slot, file.clone()), range.start, &mut bytes);
        let Err(FsError::Corrupt { .. } | FsError::Io { .. }) = first else {
            return first.map(|()| bytes);
        };
        let again = node.node.anode(&self.store, file.number)?.ok_or(FsError::Stale)?;
        self.fill(&VnodeState::of(node.slot, again), range.start, &mut bytes)?;
        Ok(bytes)
    }
}
