//! A history repeated on a model: the life of each inode.

use std::collections::BTreeMap;

use engine::api::{Caller, DirEntry, FileKind, FileSystem, Ino};

use super::history::{Event, History};
use crate::canon::{Attributes, CanonAttr, Identity, PAGE_BYTES, Page, Path, Times};
use crate::model::Model;
use crate::number::{u64_of, usize_of};
use crate::ops::{Op, Place, Route, Session};

/// What an inode is at one moment, but for content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeState {
    pub(super) attr: CanonAttr,
    /// Names of a directory, and the inodes of the model that they name.
    pub(super) names: BTreeMap<Vec<u8>, Ino>,
    pub(super) target: Vec<u8>,
    pub(super) attributes: Attributes,
}

/// How an operation touched an inode.
#[derive(Clone, Debug)]
pub(super) enum Touch {
    /// Names: made, linked, moved, removed, or a directory that holds them.
    Names,
    /// Attributes but the size.
    Attr,
    /// A truncation to this size.
    Truncated(u64),
    /// A write: the pages as they are after it, and the size.
    Wrote { pages: Vec<(u64, Page)>, size_bytes: u64 },
}

impl Touch {
    /// Whether the operation is ordered by the inode (C2); writes are ordered by C5.
    pub(super) fn is_ordered(&self) -> bool {
        !matches!(self, Touch::Wrote { .. })
    }
}

/// An inode after an operation that touched it.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    /// Which event.
    pub(super) event: usize,
    pub(super) touch: Touch,
    /// `None`: it has no name.
    pub(super) after: Option<NodeState>,
}

/// What an inode was at the beginning.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) state: NodeState,
    pub(super) size_bytes: u64,
    pub(super) pages: BTreeMap<u64, Page>,
}

/// The life of one inode.
#[derive(Clone, Debug)]
pub(super) struct Life {
    /// A name it had, for reports.
    pub(super) path: Path,
    /// `None`: made by an operation in flight.
    pub(super) identity: Option<Identity>,
    /// `None`: it was made in this history.
    pub(super) start: Option<Start>,
    pub(super) moments: Vec<Moment>,
}

/// An acknowledged fsync or sync.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncPoint {
    /// Which inode; `None`: all.
    pub(super) ino: Option<Ino>,
    pub(super) data_only: bool,
    pub(super) begun: u64,
}

/// All that the history says.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pub(super) lives: BTreeMap<Ino, Life>,
    pub(super) syncs: Vec<SyncPoint>,
    /// An acknowledged operation that the model refuses.
    pub(super) unbelievable: Option<usize>,
}

/// Repeats `history`.
pub(super) fn replay(history: &History) -> Replay {
    let model = history.base().reopened();
    let mut replay = Replay::default();
    for (&ino, &identity) in history.identities() {
        replay.lives.insert(ino, life_at_start(&model, ino, identity));
    }
    name_paths(&model, &mut replay.lives);
    let client_count = history.events().iter().map(|event| event.client + 1).max().unwrap_or(0);
    let mut sessions: Vec<Session<'_>> =
        (0..client_count).map(|_| Session::new(&model, Times::Ignored)).collect();
    for (number, event) in history.events().iter().enumerate() {
        if event.ended.is_none_or(|ended| ended.is_done) {
            replay.step(&model, &mut sessions[event.client], number, event);
        }
    }
    replay
}

impl Replay {
    fn step(&mut self, model: &Model, session: &mut Session<'_>, number: usize, event: &Event) {
        let touched = touched(session, &event.step.op);
        let sync_of = |place: &Place| session.probe(place).map(|attr| attr.ino);
        let sync = if let Op::Fsync { file, data_only } = &event.step.op {
            Some((sync_of(file), *data_only))
        } else {
            (event.step.op == Op::Sync).then_some((None, false))
        };
        let applied = session.apply(&event.step);
        if !applied.outcome.is_done() {
            if event.ended.is_some() {
                self.unbelievable.get_or_insert(number);
            }
            return;
        }
        if let Some((ino, data_only)) = sync
            && event.ended.is_some()
        {
            self.syncs.push(SyncPoint { ino, data_only, begun: event.begun });
        }
        if let Some(made) = applied.made {
            self.lives.insert(made.ino, life_made(event));
        }
        for ino in touched.into_iter().chain(applied.made.map(|made| made.ino)) {
            let touch = touch_of(model, ino, &event.step.op);
            let after = state_of(model, ino).filter(|state| state.attr.nlink > 0);
            let life = self.lives.get_mut(&ino).expect("every inode of the model has a life");
            life.moments.push(Moment { event: number, touch, after });
        }
    }
}

fn life_at_start(model: &Model, ino: Ino, identity: Identity) -> Life {
    let state = state_of(model, ino).expect("the base has its inodes");
    let size_bytes =
        model.getattr(&Caller::root(), ino).expect("the base has its inodes").size_bytes;
    let pages = model.pages_of(ino).into_iter().collect();
    let start = Some(Start { state, size_bytes, pages });
    Life { path: Path::default(), identity: Some(identity), start, moments: Vec::new() }
}

fn life_made(event: &Event) -> Life {
    let made = event.step.op.made_at();
    let path = made.map_or_else(Path::default, |made| Path(made.0.join(&b'/')));
    let identity = event.ended.and_then(|ended| ended.made);
    Life { path, identity, start: None, moments: Vec::new() }
}

/// Gives the inodes of the base a name for reports.
fn name_paths(model: &Model, lives: &mut BTreeMap<Ino, Life>) {
    let mut pending = vec![(model.root(), Path::default())];
    while let Some((ino, path)) = pending.pop() {
        let life = lives.get_mut(&ino).expect("the base has its inodes");
        if let Some(start) = &life.start {
            let names = start.state.names.iter();
            pending.extend(names.map(|(name, &ino)| (ino, path.join(name))));
        }
        life.path = path;
    }
}

/// The inodes that are there before `op` and that it will touch.
fn touched(session: &Session<'_>, op: &Op) -> Vec<Ino> {
    let at = |route: &Route| session.probe(&Place::At(route.clone())).map(|attr| attr.ino);
    let parent = |route: &Route| {
        let (parents, _) = route.split()?;
        at(&Route(parents.to_vec()))
    };
    let place = |place: &Place| session.probe(place).map(|attr| attr.ino);
    let found = match op {
        Op::Create { at, .. } | Op::Symlink { at, .. } => vec![parent(at)],
        Op::Link { file, at } => vec![place(file), parent(at)],
        Op::Unlink { at: name } | Op::Rmdir { at: name } => vec![parent(name), at(name)],
        Op::Rename { source, target, .. } if at(source) == at(target) => Vec::new(),
        Op::Rename { source, target, .. } => {
            vec![parent(source), parent(target), at(source), at(target)]
        }
        Op::Write { length: 0, .. } => Vec::new(),
        Op::Write { file, .. }
        | Op::Truncate { file, .. }
        | Op::SetMode { file, .. }
        | Op::SetOwner { file, .. }
        | Op::SetProject { file, .. }
        | Op::SetTimes { file, .. }
        | Op::SetXattr { file, .. }
        | Op::SetAcl { file, .. }
        | Op::Fallocate { file, .. }
        | Op::RemoveXattr { file, .. } => vec![place(file)],
        Op::Copy { target, .. } => vec![place(target)],
        Op::Open { .. }
        | Op::Nameless { .. }
        | Op::Close { .. }
        | Op::Read { .. }
        | Op::GetAttr { .. }
        | Op::ReadLink { .. }
        | Op::GetXattr { .. }
        | Op::ListXattr { .. }
        | Op::List { .. }
        | Op::Seek { .. }
        | Op::Fsync { .. }
        | Op::Sync => Vec::new(),
    };
    let mut inodes: Vec<Ino> = found.into_iter().flatten().collect();
    inodes.sort_unstable();
    inodes.dedup();
    inodes
}

fn touch_of(model: &Model, ino: Ino, op: &Op) -> Touch {
    if let Op::Truncate { size_bytes, .. } = op {
        return Touch::Truncated(*size_bytes);
    }
    if let Op::SetMode { .. }
    | Op::SetOwner { .. }
    | Op::SetProject { .. }
    | Op::SetTimes { .. }
    | Op::SetXattr { .. }
    | Op::SetAcl { .. }
    | Op::RemoveXattr { .. } = op
    {
        return Touch::Attr;
    }
    let (offset, length) = if let Op::Write { offset, length, .. } = op {
        (*offset, u64_of(*length))
    } else if let Op::Fallocate { offset, length, .. } | Op::Copy { to: offset, length, .. } = op {
        (*offset, *length)
    } else {
        return Touch::Names;
    };
    let size_bytes = model.getattr(&Caller::root(), ino).expect("it was just written").size_bytes;
    let first = offset / u64_of(PAGE_BYTES);
    let end = (offset + length).min(size_bytes).div_ceil(u64_of(PAGE_BYTES));
    let pages = (first..end).map(|number| (number, page_of(model, ino, number)));
    Touch::Wrote { pages: pages.collect(), size_bytes }
}

/// One page of a file; past its end, zeros.
pub(super) fn page_of(model: &Model, ino: Ino, number: u64) -> Page {
    let mut bytes = Vec::new();
    let read =
        model.read(&Caller::root(), ino, number * u64_of(PAGE_BYTES), PAGE_BYTES, &mut bytes);
    read.expect("a regular file can be read");
    let mut page = [0; PAGE_BYTES];
    page[..bytes.len()].copy_from_slice(&bytes);
    Page::new(page)
}

fn state_of(model: &Model, ino: Ino) -> Option<NodeState> {
    let attr = model.getattr(&Caller::root(), ino).ok()?;
    let mut names = BTreeMap::new();
    if attr.kind == FileKind::Directory && attr.nlink > 0 {
        let mut each = |entry: &DirEntry| {
            if entry.name != b"." && entry.name != b".." {
                names.insert(entry.name.clone(), entry.ino);
            }
            true
        };
        model.readdir(&Caller::root(), ino, 0, &mut each).expect("a directory can be listed");
    }
    let target = model.readlink(&Caller::root(), ino).unwrap_or_default();
    let mut attr = CanonAttr::of(&attr, Times::Ignored);
    if attr.kind == FileKind::Regular {
        // Judged with the content.
        attr.size_bytes = 0;
    }
    let attributes = model.attributes_of(ino);
    Some(NodeState { attr, names, target, attributes })
}

/// `page` as a file of `size_bytes` shows it.
pub(super) fn page_within(number: u64, page: &Page, size_bytes: u64) -> Page {
    let shown = size_bytes.saturating_sub(number * u64_of(PAGE_BYTES));
    if shown >= u64_of(PAGE_BYTES) {
        return Page::clone(page);
    }
    let mut cut = **page;
    cut[usize_of(shown)..].fill(0);
    Page::new(cut)
}
