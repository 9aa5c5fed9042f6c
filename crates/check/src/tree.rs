//! One fileset while it is checked: what its passes learn of each anode.

use format::anode::Anode;
use format::defect::{DefectCode, Subject};
use format::fileset::Fileset;
use format::ids::AnodeNo;

use crate::Check;
use crate::facts::{Facts, FactsByAnode};
use crate::pass::quota::Quotas;

/// One fileset while it is checked.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) fileset: Fileset,
    pub(crate) table: Anode,
    pub(crate) facts: FactsByAnode,
    /// Anodes in use.
    pub(crate) used: u64,
    /// Fragments that the anodes say they take.
    pub(crate) fragments: u64,
    pub(crate) anode_map: Option<Anode>,
    pub(crate) orphans: Option<Anode>,
    /// What users, groups and projects have.
    pub(crate) quotas: Quotas,
    /// Anodes of filesets before it that say wrong counts of fragments.
    pub(crate) wrong_before: u64,
    /// Whether memory for facts ran out.
    pub(crate) is_over: bool,
}

/// Returns how many anodes were found that say a wrong count of fragments.
pub(crate) fn wrong_anodes(check: &Check<'_>) -> u64 {
    check.report.counts.get(&DefectCode::AN004).copied().unwrap_or(0)
}

impl Tree {
    pub(crate) fn new(fileset: Fileset) -> Tree {
        Tree {
            table: fileset.table_anode(),
            fileset,
            facts: FactsByAnode::default(),
            used: 0,
            fragments: 0,
            anode_map: None,
            orphans: None,
            quotas: Quotas::default(),
            wrong_before: 0,
            is_over: false,
        }
    }

    /// Gives back the memory of its facts.
    pub(crate) fn release(self, check: &mut Check<'_>) {
        check.memory_bytes -= self.facts.memory_bytes();
    }

    /// Whether its anodes say rightly what they have: where one does not, no sum of them is right.
    pub(crate) fn is_sound(&self, check: &Check<'_>) -> bool {
        wrong_anodes(check) == self.wrong_before
    }

    pub(crate) fn subject(&self, anode: u64) -> Subject {
        Subject { fileset: self.fileset.family, anode: AnodeNo(anode) }
    }

    /// Returns the facts of `number`, new ones if there are none yet.
    pub(crate) fn facts_of(&mut self, check: &mut Check<'_>, number: u64) -> &mut Facts {
        let (facts, added) = self.facts.entry(number);
        if added > 0 {
            self.is_over |= check.take_memory(added).is_err();
        }
        facts
    }
}
