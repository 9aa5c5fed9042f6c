//! A family: filesets and clones of one origin, as a tree, and who of them holds a block.
//!
//! A node is below the clone that it was taken after. What was born in the epoch of that clone or
//! before it, both have unless one of them has given it up; so the nodes that hold a block are
//! neighbours in the tree.
//!
//! # Invariants
//!
//! - FA1: Whoever holds a block that was born in the epoch of the clone above it or before it, has
//!   it from there: that clone holds it too.
//! - FA2: Nobody holds what was born after its epoch.
//!
//! A deleted node has no part in this: what it still holds lies past the cursor of the walk that
//! frees it, and is asked of it alone.

use std::collections::BTreeMap;

use format::fileset::Cursor;
use format::ids::{Epoch, FilesetId};
use runtime::planted::{self, Planted};

use super::table::{Index, Node};
use crate::error::FsResult;

/// A fileset or a clone that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) slot: u32,
    /// It holds nothing that was born later.
    pub(crate) epoch: Epoch,
    /// What was born in this epoch or before it, it has from the one above it.
    pub(crate) shared_epoch: Epoch,
    /// The one above it that is in use.
    parent: Option<u32>,
    pub(crate) is_writable: bool,
}

/// All of one family.
#[derive(Clone, Debug, Default)]
pub(crate) struct Family {
    members: BTreeMap<u32, Member>,
    below: BTreeMap<u32, Vec<u32>>,
    deleted: Vec<(u32, Cursor)>,
}

impl Family {
    /// Returns the family whose blocks name `family`.
    pub(crate) fn of(index: &Index, family: FilesetId) -> Family {
        let nodes: BTreeMap<u32, &Node> = index.family(family).map(|it| (it.slot, it)).collect();
        let mut found = Family::default();
        for node in nodes.values() {
            match node.state.cursor() {
                Some(cursor) => found.deleted.push((node.slot, cursor)),
                None => found.add(member_of(node, &nodes)),
            }
        }
        found
    }

    fn add(&mut self, member: Member) {
        if let Some(parent) = member.parent {
            self.below.entry(parent).or_default().push(member.slot);
        }
        self.members.insert(member.slot, member);
    }

    /// Returns all that are in use, by rising slot.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Whether the one in `slot` is in use.
    pub(crate) fn has(&self, slot: u32) -> bool {
        self.members.contains_key(&slot)
    }

    /// Returns how many there are, the deleted ones too.
    pub(crate) fn len(&self) -> usize {
        self.members.len() + self.deleted.len()
    }

    /// Returns the deleted ones, with how far each is freed.
    pub(crate) fn deleted(&self) -> impl Iterator<Item = (u32, Cursor)> {
        self.deleted.iter().copied()
    }

    /// Returns those of whom one holds a block of this birth, if anybody does.
    pub(crate) fn tops(&self, birth: Epoch) -> impl Iterator<Item = &Member> {
        let is_top = move |it: &&Member| it.shared_epoch < birth && birth <= it.epoch;
        self.members.values().filter(is_top)
    }

    /// Returns whoever holds a block of this birth, with what `look` says of each; it says `None`
    /// of one who does not.
    pub(crate) fn holders<T>(
        &self,
        birth: Epoch,
        mut look: impl FnMut(&Member) -> FsResult<Option<T>>,
    ) -> FsResult<Vec<T>> {
        let mut to_look: Vec<&Member> = self.tops(birth).collect();
        let mut found = Vec::new();
        while let Some(member) = to_look.pop() {
            // FA1: if this one does not, nobody below it does.
            let Some(holds) = look(member)? else { continue };
            found.push(holds);
            let below = self.below.get(&member.slot).map_or(&[][..], |below| below);
            let is_planted = planted::is(Planted::MoveStopsAtFirstFork);
            let below = &below[..if is_planted { below.len().min(1) } else { below.len() }];
            to_look.extend(below.iter().filter_map(|slot| self.members.get(slot)));
        }
        if planted::is(Planted::MoveMissesAHolder) && found.len() > 1 {
            found.pop();
        }
        Ok(found)
    }
}

fn member_of(node: &Node, nodes: &BTreeMap<u32, &Node>) -> Member {
    let (mut parent, mut shared_epoch) = (node.parent, node.shared_epoch);
    // Each is above fewer: a table that says else ends here.
    for _ in 0..nodes.len() {
        let above = parent.and_then(|slot| nodes.get(&slot)).filter(|above| above.is_deleted());
        let Some(above) = above else { break };
        (parent, shared_epoch) = (above.parent, above.shared_epoch);
    }
    let is_writable = node.is_live() || node.is_receiving();
    Member { slot: node.slot, epoch: node.epoch, shared_epoch, parent, is_writable }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use format::ids::EPOCH_MAX;
    use runtime::prng::Prng;

    use super::*;
    use crate::convert::{index_wide, wide};

    /// A family as a test makes it: what each holds, by birth.
    #[derive(Default)]
    struct Model {
        family: Family,
        holds: BTreeMap<u32, BTreeSet<u64>>,
        clock: u64,
    }

    impl Model {
        fn add(&mut self, member: Member, holds: BTreeSet<u64>) {
            self.family.add(member);
            self.holds.insert(member.slot, holds);
        }

        fn next_slot(&self) -> u32 {
            u32::try_from(self.holds.len()).expect("few")
        }

        fn member(&self, slot: u32) -> Member {
            self.family.members[&slot]
        }

        /// Takes a clone of the fileset in `slot`.
        fn clone_of(&mut self, slot: u32) {
            self.clock += 1;
            let (of, clone) = (self.member(slot), self.next_slot());
            let epoch = Epoch(self.clock);
            let siblings = of.parent.and_then(|parent| self.family.below.get_mut(&parent));
            if let Some(siblings) = siblings {
                siblings.retain(|other| *other != slot);
            }
            self.add(
                Member { slot: clone, epoch, is_writable: false, ..of },
                self.holds[&slot].clone(),
            );
            self.family.add(Member { parent: Some(clone), shared_epoch: epoch, ..of });
        }

        /// Begins a fileset from the clone in `slot`.
        fn fork_of(&mut self, slot: u32) {
            let (of, fork) = (self.member(slot), self.next_slot());
            let member = Member {
                slot: fork,
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

    /// Goal: all who hold a block are found, and few others are asked. Method: random families, of
    /// which each is asked who holds what.
    #[test]
    fn whoever_holds_a_block_is_found() {
        let mut most = 0;
        for seed in 0..200 {
            let mut prng = Prng::from_seed(seed);
            let mut model = Model::default();
            let first = Member {
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
                    (0, true) => model.clone_of(slot),
                    (0, false) => model.fork_of(slot),
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
