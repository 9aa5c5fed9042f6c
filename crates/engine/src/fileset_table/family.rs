//! A family: filesets and snapshots of one origin, as a tree. Finds the nodes that hold a block.
//!
//! The parent of a node is the snapshot that it was taken after. Parent and child share the blocks
//! born in the parent's epoch or earlier, unless one of them has dropped the block. So the nodes
//! that hold a block are adjacent in the tree.
//!
//! # Invariants
//!
//! - FA1: A node that holds a block born in its parent's epoch or earlier has it from the parent,
//!   which holds it too.
//! - FA2: A node holds no block born after its epoch.
//!
//! Deleted nodes are not in the tree. The blocks that a deleted node still holds are past the
//! cursor of its deletion; callers check them separately.

use std::collections::BTreeMap;

use format::fileset::Cursor;
use format::ids::{Epoch, FilesetId};
use runtime::if_planted;

use super::table::{FilesetIndex, FilesetNode};
use crate::error::FsResult;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FamilyNode {
    pub(crate) slot: u32,
    /// No block of the node was born later.
    pub(crate) epoch: Epoch,
    /// Blocks born in this epoch or earlier come from the parent.
    pub(crate) shared_epoch: Epoch,
    /// Nearest ancestor in use.
    parent: Option<u32>,
    pub(crate) is_writable: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Family {
    members: BTreeMap<u32, FamilyNode>,
    below: BTreeMap<u32, Vec<u32>>,
    deleted: Vec<(u32, Cursor)>,
}

impl Family {
    pub(crate) fn of(index: &FilesetIndex, family: FilesetId) -> Family {
        let nodes: BTreeMap<u32, &FilesetNode> =
            index.family(family).map(|it| (it.slot, it)).collect();
        let mut found = Family::default();
        for node in nodes.values() {
            match node.state.cursor() {
                Some(cursor) => found.deleted.push((node.slot, cursor)),
                None => found.add(member_of(node, &nodes)),
            }
        }
        found
    }

    fn add(&mut self, member: FamilyNode) {
        if let Some(parent) = member.parent {
            self.below.entry(parent).or_default().push(member.slot);
        }
        self.members.insert(member.slot, member);
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &FamilyNode> {
        self.members.values()
    }

    pub(crate) fn has(&self, slot: u32) -> bool {
        self.members.contains_key(&slot)
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len() + self.deleted.len()
    }

    pub(crate) fn deleted(&self) -> impl Iterator<Item = (u32, Cursor)> {
        self.deleted.iter().copied()
    }

    /// Returns the topmost nodes that may hold a block of this birth. If any node holds the block,
    /// one of these does.
    pub(crate) fn tops(&self, birth: Epoch) -> impl Iterator<Item = &FamilyNode> {
        let is_top = move |it: &&FamilyNode| it.shared_epoch < birth && birth <= it.epoch;
        self.members.values().filter(is_top)
    }

    /// Returns the results of `look` for all nodes that hold a block of this birth. `look` returns
    /// `None` for nodes without it.
    pub(crate) fn holders<T>(
        &self,
        birth: Epoch,
        mut look: impl FnMut(&FamilyNode) -> FsResult<Option<T>>,
    ) -> FsResult<Vec<T>> {
        let mut to_look: Vec<&FamilyNode> = self.tops(birth).collect();
        let mut found = Vec::new();
        while let Some(member) = to_look.pop() {
            // Children cannot have a block that this node lacks (FA1).
            let Some(holds) = look(member)? else { continue };
            found.push(holds);
            let below = self.below.get(&member.slot).map_or(&[][..], |below| below);
            to_look.extend(below.iter().filter_map(|slot| self.members.get(slot)));
        }
        if_planted!(MoveMissesAHolder, found.truncate(1));
        Ok(found)
    }
}

fn member_of(node: &FilesetNode, nodes: &BTreeMap<u32, &FilesetNode>) -> FamilyNode {
    let (mut parent, mut shared_epoch) = (node.parent, node.shared_epoch);
    // Bounded, because a damaged table may have a cycle.
    for _ in 0..nodes.len() {
        let above = parent.and_then(|slot| nodes.get(&slot)).filter(|above| above.is_deleted());
        let Some(above) = above else { break };
        (parent, shared_epoch) = (above.parent, above.shared_epoch);
    }
    let is_writable = node.is_live() || node.is_receiving();
    FamilyNode { slot: node.slot, epoch: node.epoch, shared_epoch, parent, is_writable }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use format::ids::EPOCH_MAX;
    use runtime::prng::Prng;

    use super::*;
    use crate::convert::{index_wide, wide};

    /// A family in a test: the births of the blocks that each node holds.
    #[derive(Default)]
    struct Model {
        family: Family,
        holds: BTreeMap<u32, BTreeSet<u64>>,
        clock: u64,
    }

    impl Model {
        fn add(&mut self, member: FamilyNode, holds: BTreeSet<u64>) {
            self.family.add(member);
            self.holds.insert(member.slot, holds);
        }

        fn next_slot(&self) -> u32 {
            u32::try_from(self.holds.len()).expect("few")
        }

        fn member(&self, slot: u32) -> FamilyNode {
            self.family.members[&slot]
        }

        fn snapshot_of(&mut self, slot: u32) {
            self.clock += 1;
            let (of, snapshot) = (self.member(slot), self.next_slot());
            let epoch = Epoch(self.clock);
            let siblings = of.parent.and_then(|parent| self.family.below.get_mut(&parent));
            if let Some(siblings) = siblings {
                siblings.retain(|other| *other != slot);
            }
            self.add(
                FamilyNode { slot: snapshot, epoch, is_writable: false, ..of },
                self.holds[&slot].clone(),
            );
            self.family.add(FamilyNode { parent: Some(snapshot), shared_epoch: epoch, ..of });
        }

        fn clone_of(&mut self, slot: u32) {
            let (of, clone) = (self.member(slot), self.next_slot());
            let member = FamilyNode {
                slot: clone,
                epoch: Epoch(EPOCH_MAX),
                shared_epoch: of.epoch,
                parent: Some(slot),
                is_writable: true,
            };
            self.add(member, self.holds[&slot].clone());
        }

        fn change(&mut self, slot: u32, prng: &mut Prng) {
            self.clock += 1;
            let holds = self.holds.get_mut(&slot).expect("it is there");
            let dropped = holds.iter().copied().nth(index_wide(prng.below(wide(holds.len()) + 1)));
            holds.insert(self.clock);
            if let Some(dropped) = dropped {
                holds.remove(&dropped);
            }
        }
    }

    /// Goal: `holders` finds each node that holds a block, and examines few others. Method: random
    /// families, compared with a model for each birth.
    #[test]
    fn whoever_holds_a_block_is_found() {
        let mut most = 0;
        for seed in 0..200 {
            let mut prng = Prng::from_seed(seed);
            let mut model = Model::default();
            let first = FamilyNode {
                slot: 0,
                epoch: Epoch(EPOCH_MAX),
                shared_epoch: Epoch(0),
                parent: None,
                is_writable: true,
            };
            model.add(first, BTreeSet::new());
            for _ in 0..120 {
                let slot = u32::try_from(prng.below(wide(model.holds.len()))).expect("few");
                match (prng.below(6), model.member(slot).is_writable) {
                    (0, true) => model.snapshot_of(slot),
                    (0, false) => model.clone_of(slot),
                    (_, true) => model.change(slot, &mut prng),
                    (_, false) => {}
                }
            }
            for birth in 1..=model.clock {
                let holders: BTreeSet<u32> = (model.holds.iter())
                    .filter(|(_, holds)| holds.contains(&birth))
                    .map(|(slot, _)| *slot)
                    .collect();
                let mut asked = 0;
                let found = model.family.holders(Epoch(birth), |member| {
                    asked += 1;
                    Ok(holders.contains(&member.slot).then_some(member.slot))
                });
                let found = found.expect("nothing fails");
                assert_eq!(found.iter().copied().collect::<BTreeSet<_>>(), holders, "seed {seed}");
                assert_eq!(found.len(), holders.len(), "seed {seed}: each once");
                let below = |slot: &u32| model.family.below.get(slot).map_or(0, Vec::len);
                let bound: usize = holders.iter().map(below).sum::<usize>()
                    + model.family.tops(Epoch(birth)).count();
                assert!(asked <= bound, "seed {seed}: {asked} were asked of {}", holders.len());
                most = most.max(holders.len());
            }
        }
        assert!(most > 10, "{most} hold a block at most");
    }
}
