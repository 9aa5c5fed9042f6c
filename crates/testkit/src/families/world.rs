//! The reference of a pool's filesets and snapshots: whole trees, and what may be done with them.
//!
//! A snapshot is a copy of a tree, a clone one more, a restore puts one in the place of another. So
//! what a node is never depends on how the engine shares it; and what is refused follows from names
//! and from who goes back to whom.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use engine::api::FsError;
use format::quota::QuotaKind;
use runtime::clock::Clock;

use super::owners::{Limits, Quotas};
use crate::model::Model;

/// What the first fileset of a pool is called.
pub const ROOT: &str = "root";

/// A fileset or a snapshot, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// A fileset or a snapshot.
#[derive(Clone, Debug)]
pub struct Node {
    /// Of a fileset its name from the top; of a snapshot its own.
    pub name: String,
    /// Of a snapshot: the fileset that it is called after.
    pub of: Option<NodeId>,
    /// The snapshot that it goes back to.
    pub parent: Option<NodeId>,
    /// What it holds.
    pub model: Arc<Model>,
    /// Of a snapshot: who keeps it from being deleted.
    pub holds: BTreeSet<String>,
    /// Most that a fileset may reference; 0: no limit.
    pub quota_bytes: u64,
    /// Limits of its users and groups.
    pub quotas: Quotas,
}

/// Something that is done with filesets and snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are the words of the command that each stands for")]
pub enum NodeOp {
    /// Makes a fileset.
    Create { fileset: String },
    /// Takes a snapshot.
    Take { fileset: String, snapshot: String },
    /// Takes snapshots of a fileset and of all below it at one moment.
    TakeBelow { fileset: String, snapshot: String },
    /// Makes a fileset of a snapshot.
    Clone { fileset: String, snapshot: String, clone: String },
    /// Makes a fileset what a snapshot holds.
    Restore { fileset: String, snapshot: String },
    /// Calls the snapshots that a clone goes back to after it.
    Promote { fileset: String },
    /// Makes a fileset of the stream of a snapshot; `from`: of the stream of an earlier one, and of
    /// what differs.
    Receive { fileset: String, snapshot: String, from: Option<String>, into: String },
    /// Deletes a snapshot.
    DeleteSnapshot { fileset: String, snapshot: String },
    /// Deletes a fileset.
    DeleteFileset { fileset: String },
    /// Keeps a snapshot from being deleted.
    Hold { fileset: String, snapshot: String, hold: String },
    /// Takes that back.
    Release { fileset: String, snapshot: String, hold: String },
    /// Sets the most that a fileset may reference.
    SetQuota { fileset: String, bytes: u64 },
    /// Switches quotas of users and groups on, or off.
    Switch { fileset: String, is_on: bool },
    /// Limits a user or a group.
    Limit { fileset: String, who: (QuotaKind, u32), limits: Limits },
    /// Sets for how long soft limits may be passed.
    SetGraces { fileset: String, seconds: u64 },
}

impl fmt::Display for NodeOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeOp::Create { fileset } => write!(f, "fileset create {fileset}"),
            NodeOp::Take { fileset, snapshot } => write!(f, "snapshot create {fileset}@{snapshot}"),
            NodeOp::TakeBelow { fileset, snapshot } => {
                write!(f, "snapshot create --recursive {fileset}@{snapshot}")
            }
            NodeOp::Clone { fileset, snapshot, clone } => {
                write!(f, "clone create {fileset}@{snapshot} {clone}")
            }
            NodeOp::Restore { fileset, snapshot } => {
                write!(f, "fileset restore {fileset}@{snapshot}")
            }
            NodeOp::Promote { fileset } => write!(f, "fileset promote {fileset}"),
            NodeOp::Receive { fileset, snapshot, from, into } => {
                write!(f, "receive {into} of {fileset}@{snapshot}")?;
                from.iter().try_for_each(|from| write!(f, " by way of @{from}"))
            }
            NodeOp::DeleteSnapshot { fileset, snapshot } => {
                write!(f, "snapshot delete {fileset}@{snapshot}")
            }
            NodeOp::DeleteFileset { fileset } => write!(f, "fileset delete {fileset}"),
            NodeOp::Hold { fileset, snapshot, hold } => {
                write!(f, "snapshot hold {fileset}@{snapshot} {hold}")
            }
            NodeOp::Release { fileset, snapshot, hold } => {
                write!(f, "snapshot release {fileset}@{snapshot} {hold}")
            }
            NodeOp::SetQuota { fileset, bytes } => {
                write!(f, "fileset set {fileset} quota={bytes}")
            }
            NodeOp::Switch { fileset, is_on } => {
                write!(f, "quota {} {fileset}", if *is_on { "on" } else { "off" })
            }
            NodeOp::Limit { fileset, who: (kind, id), limits } => {
                write!(f, "quota set {fileset} {kind:?} {id} {:?}", limits.0)
            }
            NodeOp::SetGraces { fileset, seconds } => {
                write!(f, "quota set {fileset} grace {seconds}")
            }
        }
    }
}

impl NodeOp {
    /// Whether it makes something for which a full pool may have no room. Whatever gives room back
    /// must never be refused for want of it.
    pub(super) fn takes_space(&self) -> bool {
        matches!(
            self,
            NodeOp::Create { .. }
                | NodeOp::Take { .. }
                | NodeOp::TakeBelow { .. }
                | NodeOp::Clone { .. }
                | NodeOp::Restore { .. }
                | NodeOp::Receive { .. }
                | NodeOp::Hold { .. }
                | NodeOp::Switch { .. }
                | NodeOp::Limit { .. }
                | NodeOp::SetGraces { .. }
        )
    }
}

/// Why something is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name is taken.
    Exists,
    /// There is none of that name.
    Missing,
    /// Others need it, or it is mounted.
    InUse,
}

impl Refusal {
    /// Whether `error` says so.
    #[must_use]
    pub fn is(self, error: &FsError) -> bool {
        match self {
            Refusal::Exists => matches!(error, FsError::FilesetExists { .. }),
            Refusal::Missing => matches!(error, FsError::NoFileset { .. }),
            Refusal::InUse => matches!(error, FsError::FilesetInUse { .. }),
        }
    }
}

/// What a list of filesets tells of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) quota_bytes: u64,
    pub(super) holds: BTreeSet<String>,
    /// The snapshot that it goes back to.
    pub(super) origin: Option<String>,
    /// Of a fileset: limits of its users and groups.
    pub(super) quotas: Quotas,
}

/// All filesets and snapshots of a pool.
#[derive(Clone, Debug)]
pub struct World {
    nodes: BTreeMap<NodeId, Node>,
    next: u32,
    /// What new filesets go by.
    clock: Arc<dyn Clock>,
}

impl World {
    /// A pool that was just made; filesets go by `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> World {
        let mut world = World { nodes: BTreeMap::new(), next: 0, clock };
        world.add_fileset(ROOT, None, world.empty());
        world
    }

    /// What an empty fileset holds.
    fn empty(&self) -> Arc<Model> {
        Arc::new(Model::new(Arc::clone(&self.clock)))
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.next);
        self.next += 1;
        self.nodes.insert(id, node);
        id
    }

    fn add_fileset(&mut self, name: &str, parent: Option<NodeId>, model: Arc<Model>) -> NodeId {
        let (name, holds) = (name.to_owned(), BTreeSet::new());
        let quotas = parent.map_or_else(Quotas::default, |id| self.nodes[&id].quotas.clone());
        self.add(Node { name, of: None, parent, model, holds, quota_bytes: 0, quotas })
    }

    /// All of them.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// One of them.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// The filesets, by name.
    pub fn filesets(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes().filter(|(_, node)| node.of.is_none())
    }

    /// The snapshots, each with the name of its fileset.
    pub fn snapshots(&self) -> impl Iterator<Item = (NodeId, &str, &Node)> {
        self.nodes().filter_map(|(id, node)| {
            let of = node.of?;
            Some((id, self.nodes[&of].name.as_str(), node))
        })
    }

    /// What it is called.
    ///
    /// # Panics
    ///
    /// If it is none of these.
    #[must_use]
    pub fn name_of(&self, id: NodeId) -> String {
        let node = &self.nodes[&id];
        match node.of {
            Some(of) => format!("{}@{}", self.nodes[&of].name, node.name),
            None => node.name.clone(),
        }
    }

    /// What a list of filesets tells.
    pub(super) fn listed(&self) -> BTreeSet<Listed> {
        let tell = |(id, node): (NodeId, &Node)| Listed {
            name: self.name_of(id),
            quota_bytes: node.quota_bytes,
            holds: node.holds.iter().cloned().collect(),
            origin: node.parent.map(|parent| self.name_of(parent)),
            quotas: if node.of.is_none() { node.quotas.told() } else { Quotas::default() },
        };
        self.nodes().map(tell).collect()
    }

    /// Sets what a node holds.
    pub fn set_model(&mut self, id: NodeId, model: Arc<Model>) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.model = model;
        }
    }

    fn fileset(&self, name: &str) -> Result<NodeId, Refusal> {
        let found = self.filesets().find(|(_, node)| node.name == name);
        found.map(|(id, _)| id).ok_or(Refusal::Missing)
    }

    fn snapshot_of(&self, fileset: NodeId, name: &str) -> Option<NodeId> {
        let is_it = |(_, node): &(NodeId, &Node)| node.of == Some(fileset) && node.name == name;
        self.nodes().find(is_it).map(|(id, _)| id)
    }

    fn snapshot_named(&self, fileset: &str, snapshot: &str) -> Result<NodeId, Refusal> {
        self.snapshot_of(self.fileset(fileset)?, snapshot).ok_or(Refusal::Missing)
    }

    fn check_free(&self, fileset: &str) -> Result<(), Refusal> {
        if let Some((above, _)) = fileset.rsplit_once('/') {
            self.fileset(above)?;
        }
        if self.fileset(fileset).is_ok() { Err(Refusal::Exists) } else { Ok(()) }
    }

    fn children(&self, id: NodeId) -> usize {
        self.nodes().filter(|(_, node)| node.parent == Some(id)).count()
    }

    /// Takes a node out: whoever goes back to it goes back to what it went back to.
    fn remove(&mut self, id: NodeId) {
        let parent = self.nodes.remove(&id).and_then(|node| node.parent);
        for node in self.nodes.values_mut().filter(|node| node.parent == Some(id)) {
            node.parent = parent;
        }
    }

    fn take(&mut self, fileset: NodeId, snapshot: &str) {
        let node = &self.nodes[&fileset];
        let (parent, model) = (node.parent, Arc::new(node.model.reopened()));
        let (name, holds) = (snapshot.to_owned(), BTreeSet::new());
        let (of, quotas) = (Some(fileset), node.quotas.clone());
        let taken = self.add(Node { name, of, parent, model, holds, quota_bytes: 0, quotas });
        self.nodes.get_mut(&fileset).expect("it is there").parent = Some(taken);
    }

    /// The filesets at and below one.
    pub(super) fn at_and_below(&self, fileset: &str) -> Vec<NodeId> {
        let below = format!("{fileset}/");
        let is_it =
            |(_, node): &(NodeId, &Node)| node.name == fileset || node.name.starts_with(&below);
        self.filesets().filter(is_it).map(|(id, _)| id).collect()
    }

    /// The snapshots on the path of a fileset that are called after others, the oldest first.
    fn snapshots_of_others(&self, fileset: NodeId) -> Vec<NodeId> {
        let (mut path, mut next) = (Vec::new(), self.nodes[&fileset].parent);
        while let Some(id) = next {
            let node = &self.nodes[&id];
            if node.of != Some(fileset) {
                path.push(id);
            }
            next = node.parent;
        }
        path.reverse();
        path
    }

    /// Returns the world after `op`, where `entered` are mounted or served.
    ///
    /// # Errors
    ///
    /// Why it is refused.
    pub fn after(&self, op: &NodeOp, entered: &Entered) -> Result<World, Refusal> {
        let mut world = self.clone();
        match op {
            NodeOp::Create { fileset } => {
                world.check_free(fileset)?;
                world.add_fileset(fileset, None, world.empty());
            }
            NodeOp::Take { fileset, snapshot } => {
                let of = world.fileset(fileset)?;
                if world.snapshot_of(of, snapshot).is_some() {
                    return Err(Refusal::Exists);
                }
                world.take(of, snapshot);
            }
            NodeOp::TakeBelow { fileset, snapshot } => {
                world.fileset(fileset)?;
                let all = world.at_and_below(fileset);
                if all.iter().any(|of| world.snapshot_of(*of, snapshot).is_some()) {
                    return Err(Refusal::Exists);
                }
                all.into_iter().for_each(|of| world.take(of, snapshot));
            }
            NodeOp::Clone { fileset, snapshot, clone } => {
                let parent = world.snapshot_named(fileset, snapshot)?;
                world.check_free(clone)?;
                let model = Arc::new(world.nodes[&parent].model.reopened());
                world.add_fileset(clone, Some(parent), model);
            }
            NodeOp::Restore { fileset, snapshot } => {
                let parent = world.snapshot_named(fileset, snapshot)?;
                let id = world.fileset(fileset)?;
                if entered.has(id) {
                    return Err(Refusal::InUse);
                }
                let model = Arc::new(world.nodes[&parent].model.reopened());
                let quotas = world.nodes[&parent].quotas.clone();
                let node = world.nodes.get_mut(&id).expect("it is there");
                (node.parent, node.model, node.quotas) = (Some(parent), model, quotas);
            }
            NodeOp::Promote { fileset } => world.promote(fileset)?,
            NodeOp::Receive { fileset, snapshot, from, into } => {
                world.receive((fileset, snapshot), from.as_deref(), into)?;
            }
            NodeOp::DeleteSnapshot { fileset, snapshot } => {
                let id = world.snapshot_named(fileset, snapshot)?;
                let is_held = !world.nodes[&id].holds.is_empty();
                if is_held || entered.has(id) || world.children(id) > 1 {
                    return Err(Refusal::InUse);
                }
                world.remove(id);
            }
            NodeOp::DeleteFileset { fileset } => {
                let id = world.fileset(fileset)?;
                let has_snapshots = world.nodes().any(|(_, node)| node.of == Some(id));
                let has_below = world.at_and_below(fileset).len() > 1;
                if fileset == ROOT || entered.has(id) || has_snapshots || has_below {
                    return Err(Refusal::InUse);
                }
                world.remove(id);
            }
            NodeOp::Hold { fileset, snapshot, hold } => {
                let id = world.snapshot_named(fileset, snapshot)?;
                let node = world.nodes.get_mut(&id).expect("it is there");
                if !node.holds.insert(hold.clone()) {
                    return Err(Refusal::Exists);
                }
            }
            NodeOp::Release { fileset, snapshot, hold } => {
                let id = world.snapshot_named(fileset, snapshot)?;
                let node = world.nodes.get_mut(&id).expect("it is there");
                if !node.holds.remove(hold) {
                    return Err(Refusal::Missing);
                }
            }
            NodeOp::SetQuota { fileset, bytes } => {
                let id = world.fileset(fileset)?;
                world.nodes.get_mut(&id).expect("it is there").quota_bytes = *bytes;
            }
            NodeOp::Switch { fileset, is_on } => {
                world.quotas_of(fileset)?.is_on = *is_on;
            }
            NodeOp::Limit { fileset, who, limits } => {
                let quotas = world.quotas_of(fileset)?;
                if !quotas.is_on {
                    return Err(Refusal::InUse);
                }
                quotas.limits.insert(*who, *limits);
            }
            NodeOp::SetGraces { fileset, seconds } => {
                let quotas = world.quotas_of(fileset)?;
                if !quotas.is_on {
                    return Err(Refusal::InUse);
                }
                quotas.grace_seconds = Some(*seconds);
            }
        }
        Ok(world)
    }

    /// What is received goes back to nothing that is here, and has no limits.
    fn receive(
        &mut self,
        (fileset, snapshot): (&str, &str),
        from: Option<&str>,
        into: &str,
    ) -> Result<(), Refusal> {
        let sent = self.snapshot_named(fileset, snapshot)?;
        let first = from.map(|from| self.snapshot_named(fileset, from)).transpose()?;
        self.check_free(into).map_err(|refusal| match refusal {
            // What is there is no state that the stream begins from.
            Refusal::Exists => Refusal::InUse,
            Refusal::Missing | Refusal::InUse => refusal,
        })?;
        let target = self.add_fileset(into, None, self.empty());
        for id in first.into_iter().chain([sent]) {
            let (model, name) = (self.nodes[&id].model.reopened(), self.nodes[&id].name.clone());
            self.set_model(target, Arc::new(model));
            self.take(target, &name);
        }
        Ok(())
    }

    /// The snapshots of the same fileset that a snapshot goes back to.
    pub(super) fn earlier(&self, id: NodeId) -> Vec<String> {
        let (of, mut names, mut next) = (self.nodes[&id].of, Vec::new(), self.nodes[&id].parent);
        while let Some(node) = next.and_then(|id| self.nodes.get(&id)) {
            names.extend((node.of == of).then(|| node.name.clone()));
            next = node.parent;
        }
        names
    }

    fn quotas_of(&mut self, fileset: &str) -> Result<&mut Quotas, Refusal> {
        let id = self.fileset(fileset)?;
        Ok(&mut self.nodes.get_mut(&id).expect("it is there").quotas)
    }

    fn promote(&mut self, fileset: &str) -> Result<(), Refusal> {
        let id = self.fileset(fileset)?;
        let others = self.snapshots_of_others(id);
        if others.is_empty() {
            return Err(Refusal::InUse);
        }
        let mut names = BTreeSet::new();
        for other in &others {
            let name = self.nodes[other].name.clone();
            if self.snapshot_of(id, &name).is_some() || !names.insert(name) {
                return Err(Refusal::Exists);
            }
        }
        for other in others {
            self.nodes.get_mut(&other).expect("it is there").of = Some(id);
        }
        Ok(())
    }
}

/// Who is mounted or served.
#[derive(Clone, Debug, Default)]
pub struct Entered(BTreeSet<NodeId>);

impl Entered {
    /// One more is.
    pub fn add(&mut self, id: NodeId) {
        self.0.insert(id);
    }

    fn has(&self, id: NodeId) -> bool {
        self.0.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use runtime::clock::ManualClock;

    use super::*;

    fn does(world: &mut World, op: NodeOp) {
        let after = world.after(&op, &Entered::default());
        *world = after.unwrap_or_else(|refusal| panic!("{op}: {refusal:?}"));
    }

    fn take(fileset: &str, snapshot: &str) -> NodeOp {
        NodeOp::Take { fileset: fileset.to_owned(), snapshot: snapshot.to_owned() }
    }

    fn delete(fileset: &str, snapshot: &str) -> NodeOp {
        NodeOp::DeleteSnapshot { fileset: fileset.to_owned(), snapshot: snapshot.to_owned() }
    }

    fn make_clone(fileset: &str, snapshot: &str, clone: &str) -> NodeOp {
        let [fileset, snapshot, clone] = [fileset, snapshot, clone].map(str::to_owned);
        NodeOp::Clone { fileset, snapshot, clone }
    }

    #[test]
    fn who_goes_back_to_whom_says_what_is_refused() {
        let mut world = World::new(Arc::new(ManualClock::new()));
        does(&mut world, take(ROOT, "x"));
        does(&mut world, make_clone(ROOT, "x", "a"));
        let none = Entered::default();
        assert_eq!(world.after(&delete(ROOT, "x"), &none).err(), Some(Refusal::InUse));
        assert_eq!(world.after(&take(ROOT, "x"), &none).err(), Some(Refusal::Exists));
        does(&mut world, NodeOp::Promote { fileset: "a".to_owned() });
        let names: Vec<_> = world.listed().into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["a", "a@x", "root"]);
        does(&mut world, take("a", "y"));
        does(&mut world, delete("a", "y"));
        assert_eq!(world.snapshots().count(), 1);
    }

    /// Two snapshots of one name lie on the path of a clone: it can't have both.
    #[test]
    fn a_promotion_gives_no_name_twice() {
        let mut world = World::new(Arc::new(ManualClock::new()));
        does(&mut world, take(ROOT, "x"));
        does(&mut world, make_clone(ROOT, "x", "a"));
        does(&mut world, take("a", "x"));
        does(&mut world, make_clone("a", "x", "b"));
        let promote = NodeOp::Promote { fileset: "b".to_owned() };
        assert_eq!(world.after(&promote, &Entered::default()).err(), Some(Refusal::Exists));
    }
}
