//! One fileset while it is checked: what its passes learn of each anode.

use std::collections::BTreeMap;

use format::anode::{Anode, AnodeKind};
use format::defect::Subject;
use format::fileset::Fileset;
use format::ids::AnodeNo;

use crate::Check;
use crate::convert::to_u64;
use crate::pass::quota::Quotas;

/// Bytes of memory for each anode of the fileset in hand: its facts, and its share of the tree
/// that holds them.
pub(crate) const FACTS_BYTES: u64 = 160;
/// What the walk learns of one anode, from its slot and from the names that lead to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// `None`: the slot is free.
    pub(crate) kind: Option<AnodeKind>,
    pub(crate) generation: u64,
    pub(crate) nlink: u32,
    pub(crate) parent: u64,
    pub(crate) orphan_slot: Option<u32>,
    /// Names that lead to it.
    pub(crate) names: u32,
    /// What the first of them says.
    pub(crate) named_kind: Option<AnodeKind>,
    pub(crate) named_generation: u64,
    pub(crate) named_in: u64,
    /// Whether a later name says something else.
    pub(crate) names_differ: bool,
    /// Names of directories in it.
    pub(crate) subdirectories: u32,
    /// Whether the orphan list has it.
    pub(crate) is_listed: bool,
    /// Whether it is known to lead to the root, or to a defect that was reported.
    pub(crate) is_rooted: bool,
    /// Containers of its attributes; 0: none.
    pub(crate) containers: [u64; 2],
    /// Whether it is a container of attributes whose pages do not add up.
    pub(crate) is_scrambled: bool,
}

/// One fileset while it is checked.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) fileset: Fileset,
    pub(crate) table: Anode,
    pub(crate) facts: BTreeMap<u64, Facts>,
    /// Anodes in use.
    pub(crate) used: u64,
    /// Fragments that the anodes say they take.
    pub(crate) fragments: u64,
    pub(crate) anode_map: Option<Anode>,
    pub(crate) orphans: Option<Anode>,
    /// What users, groups and projects have.
    pub(crate) quotas: Quotas,
    /// Whether memory for facts ran out.
    pub(crate) is_over: bool,
}

impl Tree {
    pub(crate) fn new(fileset: Fileset) -> Tree {
        Tree {
            table: fileset.table_anode(),
            fileset,
            facts: BTreeMap::new(),
            used: 0,
            fragments: 0,
            anode_map: None,
            orphans: None,
            quotas: Quotas::default(),
            is_over: false,
        }
    }

    /// Gives back the memory of its facts.
    pub(crate) fn release(self, check: &mut Check<'_>) {
        check.memory_bytes -= FACTS_BYTES * to_u64(self.facts.len());
    }

    pub(crate) fn subject(&self, anode: u64) -> Subject {
        Subject { fileset: self.fileset.family, anode: AnodeNo(anode) }
    }

    /// Returns the facts of `number`, new ones if there are none yet.
    pub(crate) fn facts_of(&mut self, check: &mut Check<'_>, number: u64) -> &mut Facts {
        if !self.facts.contains_key(&number) {
            self.is_over |= check.take_memory(FACTS_BYTES).is_err();
        }
        self.facts.entry(number).or_default()
    }
}
