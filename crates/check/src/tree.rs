//! One fileset: its anodes, counts and quotas, collected by the passes over it.

use std::collections::BTreeMap;

use format::anode::Anode;
use format::defect::{DefectCode, Subject};
use format::fileset::Fileset;
use format::ids::AnodeNo;
use format::quota::{QuotaHead, QuotaKind};

use crate::context::Check;
use crate::facts::{AnodeFacts, AnodeFactsTable};

#[derive(Debug)]
pub(crate) struct FilesetCheck {
    pub(crate) fileset: Fileset,
    pub(crate) table: Anode,
    pub(crate) facts: AnodeFactsTable,
    pub(crate) used: u64,
    /// Sum of the anodes' own counts of fragments.
    pub(crate) fragments: u64,
    pub(crate) anode_map: Option<Anode>,
    pub(crate) orphans: Option<Anode>,
    pub(crate) quotas: QuotaComparison,
    /// Wrong counts of fragments (AN004) reported before this fileset.
    pub(crate) wrong_before: u64,
    pub(crate) is_over: bool,
}

/// Fragments and inodes by user, group or project.
type Usages = BTreeMap<(QuotaKind, u32), (u64, u64)>;

/// Quota records of a fileset, and the counts of its anodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaComparison {
    /// Exists once quotas were switched on.
    pub(crate) container: Option<Anode>,
    pub(crate) head: Option<QuotaHead>,
    pub(crate) stated: Usages,
    pub(crate) counted: Usages,
    pub(crate) is_incomplete: bool,
    pub(crate) memory_bytes: u64,
}

pub(crate) fn wrong_anodes(check: &Check<'_>) -> u64 {
    check.report.counts.get(&DefectCode::AN004).copied().unwrap_or(0)
}

impl FilesetCheck {
    pub(crate) fn new(fileset: Fileset) -> FilesetCheck {
        FilesetCheck {
            table: fileset.table_anode(),
            fileset,
            facts: AnodeFactsTable::default(),
            used: 0,
            fragments: 0,
            anode_map: None,
            orphans: None,
            quotas: QuotaComparison::default(),
            wrong_before: 0,
            is_over: false,
        }
    }

    pub(crate) fn release(self, check: &mut Check<'_>) {
        check.memory_bytes -= self.facts.memory_bytes();
    }

    /// Returns whether each anode's count of fragments is right. Otherwise sums of these counts
    /// prove nothing.
    pub(crate) fn is_sound(&self, check: &Check<'_>) -> bool {
        wrong_anodes(check) == self.wrong_before
    }

    pub(crate) fn subject(&self, anode: u64) -> Subject {
        Subject { fileset: self.fileset.family, anode: AnodeNo(anode) }
    }

    pub(crate) fn facts_of(&mut self, check: &mut Check<'_>, number: u64) -> &mut AnodeFacts {
        let (facts, added) = self.facts.entry(number);
        if added > 0 {
            self.is_over |= check.take_memory(added).is_err();
        }
        facts
    }
}
