//! Placement and cleaning policies: pure functions from numbers to a preference. A wrong answer
//! costs speed, never data.
//!
//! | policy | data | metadata |
//! |---|---|---|
//! | `log` (default) | the next free segment, round and round the pool | near its targets |
//! | `ffs` | the group of the file's directory; directories are spread over all groups | the same |
//! | `hotspot` | strictly forward, one group at a time | the hot group, always |

use crate::alloc::SegmentId;
use crate::convert::narrow;

/// A segment, by group and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// Allocation group.
    pub group: u32,
    /// Segment in the group.
    pub segment: u32,
}

impl From<SegmentId> for SegmentName {
    fn from(id: SegmentId) -> SegmentName {
        SegmentName { group: id.group, segment: id.segment }
    }
}

impl From<SegmentName> for SegmentId {
    fn from(name: SegmentName) -> SegmentId {
        SegmentId { group: name.group, segment: name.segment }
    }
}

/// Chooses where new data and metadata go.
pub trait PlacementPolicy: Send + Sync + std::fmt::Debug {
    /// The name in configuration and statistics.
    fn name(&self) -> &'static str;

    /// Returns where to start the search for a free segment, for data with home group `home`. The
    /// previous data segment was `last`.
    fn next_segment(&self, last: SegmentName, home: Option<u32>) -> SegmentName;

    /// Returns where to start the search for a page that should be near group `near`, while data
    /// goes to group `hot`.
    fn metadata_group(&self, near: u32, hot: u32, group_count: u32) -> u32;

    /// Returns the home group of a directory and its data. `None` if the policy has no home groups.
    fn home_group(&self, directory: u64, group_count: u32) -> Option<u32>;
}

/// The next free segment, round and round the pool. Writes are sequential, and freed segments stay
/// unused the longest.
#[derive(Debug)]
pub struct LogPlacement;

impl PlacementPolicy for LogPlacement {
    fn name(&self) -> &'static str {
        "log"
    }

    fn next_segment(&self, last: SegmentName, _home: Option<u32>) -> SegmentName {
        SegmentName { segment: last.segment.saturating_add(1), ..last }
    }

    fn metadata_group(&self, near: u32, _hot: u32, group_count: u32) -> u32 {
        near % group_count.max(1)
    }

    fn home_group(&self, _directory: u64, _group_count: u32) -> Option<u32> {
        None
    }
}

/// Files of one directory in one group, the lowest free segment first; directories in all groups.
/// (McKusick and others, "A Fast File System for UNIX", 1984.)
#[derive(Debug)]
pub struct FfsPlacement;

impl PlacementPolicy for FfsPlacement {
    fn name(&self) -> &'static str {
        "ffs"
    }

    fn next_segment(&self, last: SegmentName, home: Option<u32>) -> SegmentName {
        SegmentName { segment: 0, group: home.unwrap_or(last.group) }
    }

    fn metadata_group(&self, near: u32, _hot: u32, group_count: u32) -> u32 {
        near % group_count.max(1)
    }

    /// Neighbouring numbers get distant groups, and all groups equal shares.
    fn home_group(&self, directory: u64, group_count: u32) -> Option<u32> {
        let mixed = directory.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        Some(narrow((mixed * u64::from(group_count)) >> 32))
    }
}

/// Strictly forward, one group at a time, so that few groups are in transition. (Peacock and
/// others, "Fast Consistency Checking for the Solaris File System", 1998.)
#[derive(Debug)]
pub struct HotspotPlacement;

impl PlacementPolicy for HotspotPlacement {
    fn name(&self) -> &'static str {
        "hotspot"
    }

    fn next_segment(&self, last: SegmentName, _home: Option<u32>) -> SegmentName {
        SegmentName { segment: last.segment.saturating_add(1), ..last }
    }

    fn metadata_group(&self, _near: u32, hot: u32, group_count: u32) -> u32 {
        hot % group_count.max(1)
    }

    fn home_group(&self, _directory: u64, _group_count: u32) -> Option<u32> {
        None
    }
}

/// Returns the policy with the name `name`.
#[must_use]
pub fn placement(name: &str) -> Option<Box<dyn PlacementPolicy>> {
    match name {
        "log" => Some(Box::new(LogPlacement)),
        "ffs" => Some(Box::new(FfsPlacement)),
        "hotspot" => Some(Box::new(HotspotPlacement)),
        _ => None,
    }
}

/// Input of a cleaning policy about one segment.
#[derive(Clone, Copy, Debug)]
pub struct SegmentView {
    /// The segment.
    pub segment: SegmentName,
    /// Live fragments, which cleaning must copy.
    pub live_fragments: u32,
    /// All fragments of the segment.
    pub size_fragments: u32,
    /// Fragments that a copy loses to summaries and a short tail.
    pub lost_fragments: u32,
    /// Epoch in which the segment was opened.
    pub newest: u64,
}

/// Chooses the segment to clean next.
pub trait CleaningPolicy: Send + Sync + std::fmt::Debug {
    /// The name in configuration and statistics.
    fn name(&self) -> &'static str;

    /// Returns one of `candidates`, or `None` if none is worth cleaning.
    ///
    /// Must be deterministic: ties go to the lowest segment.
    fn choose(&self, candidates: &[SegmentView]) -> Option<SegmentName>;
}

/// Prefers freed space and age over the cost of reading and copying: old segments go before young
/// ones, which empty by themselves. (Rosenblum and Ousterhout, "The Design and Implementation of a
/// Log-Structured File System", 1992, section 3.6.)
#[derive(Debug)]
pub struct CostBenefit;

impl CleaningPolicy for CostBenefit {
    fn name(&self) -> &'static str {
        "cost-benefit"
    }

    fn choose(&self, candidates: &[SegmentView]) -> Option<SegmentName> {
        let now = candidates.iter().map(|view| view.newest).max()?;
        let score = |view: &SegmentView| {
            let (live, size) = (u128::from(view.live_fragments), u128::from(view.size_fragments));
            let age = u128::from(now - view.newest) + 1;
            // Reading costs the size, copying the live part.
            size.saturating_sub(live) * age * SCORE_SCALE / (size + live).max(1)
        };
        let worthwhile = |view: &&SegmentView| view.live_fragments < worth_below(view);
        let best = candidates.iter().filter(worthwhile);
        best.max_by_key(|view| (score(view), std::cmp::Reverse(view.segment)))
            .map(|view| view.segment)
    }
}

/// Cleans the emptiest segment at any cost, so that a pool can keep its promises.
#[derive(Debug)]
pub struct Thorough;

impl CleaningPolicy for Thorough {
    fn name(&self) -> &'static str {
        "thorough"
    }

    fn choose(&self, candidates: &[SegmentView]) -> Option<SegmentName> {
        let gives =
            |view: &&SegmentView| view.live_fragments + view.lost_fragments < view.size_fragments;
        let emptiest = candidates.iter().filter(gives);
        emptiest.min_by_key(|view| (view.live_fragments, view.segment)).map(|view| view.segment)
    }
}

/// Scales scores up, so that integers can tell young segments apart.
const SCORE_SCALE: u128 = 1 << 20;

/// Live fragments from which cleaning frees too little: under an eighth of the segment, as copies
/// need summaries too.
fn worth_below(view: &SegmentView) -> u32 {
    view.size_fragments - narrow(u64::from(view.size_fragments) / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(segment: u32, live_fragments: u32) -> SegmentView {
        let segment = SegmentName { group: 0, segment };
        SegmentView { segment, live_fragments, size_fragments: 256, lost_fragments: 4, newest: 1 }
    }

    #[test]
    fn every_cleaning_policy_keeps_the_contract() {
        let policies: [&dyn CleaningPolicy; 2] = [&CostBenefit, &Thorough];
        for policy in policies {
            let name = policy.name();
            assert_eq!(policy.choose(&[]), None, "{name}");
            assert_eq!(policy.choose(&[view(1, 252)]), None, "{name}: a full segment is chosen");
            let tie = [view(8, 50), view(3, 50), view(9, 60)];
            let lowest = SegmentName { group: 0, segment: 3 };
            assert_eq!(policy.choose(&tie), Some(lowest), "{name}: tie");
        }
        assert_eq!(CostBenefit.choose(&[view(1, 251)]), None, "hardly anything is won");
        assert!(Thorough.choose(&[view(1, 251)]).is_some(), "something is won");
    }

    #[test]
    fn an_old_segment_is_cleaned_before_a_young_one_that_is_a_little_emptier() {
        let old = SegmentView { newest: 100, ..view(1, 200) };
        let young = SegmentView { newest: 990, ..view(2, 190) };
        let now = SegmentView { newest: 1000, ..view(3, 240) };
        assert_eq!(CostBenefit.choose(&[young, old, now]), Some(old.segment));
        assert_eq!(Thorough.choose(&[young, old, now]), Some(young.segment));
        let empty = SegmentView { newest: 990, ..view(2, 0) };
        let hardly_older = SegmentView { newest: 985, ..view(1, 200) };
        assert_eq!(CostBenefit.choose(&[empty, hardly_older, now]), Some(empty.segment));
    }

    #[test]
    fn placement_is_a_table() {
        let last = SegmentName { group: 3, segment: 7 };
        let name = |group, segment| SegmentName { group, segment };
        let (log, ffs, hotspot) = (LogPlacement, FfsPlacement, HotspotPlacement);
        let policies: [&dyn PlacementPolicy; 3] = [&log, &ffs, &hotspot];
        // After `last`, with home group 5 and without. Metadata near 2, with hot group 3.
        let expected =
            [(name(3, 8), name(3, 8), 2), (name(5, 0), name(3, 0), 2), (name(3, 8), name(3, 8), 3)];
        for (policy, expected) in policies.into_iter().zip(expected) {
            let found = (
                policy.next_segment(last, Some(5)),
                policy.next_segment(last, None),
                policy.metadata_group(2, 3, 8),
            );
            assert_eq!(found, expected, "{}", policy.name());
            let absurd = policy.metadata_group(u32::MAX, u32::MAX, 8);
            assert!(absurd < 8, "{}: a group that is not there", policy.name());
        }
    }

    #[test]
    fn ffs_spreads_directories_over_all_groups() {
        for group_count in [1, 7, 64, 1000] {
            let mut counts = vec![0_u32; usize::try_from(group_count).expect("small")];
            for directory in 0..u64::from(group_count) * 20 {
                let group = FfsPlacement.home_group(directory, group_count).expect("a group");
                counts[usize::try_from(group).expect("small")] += 1;
            }
            assert!(counts.iter().all(|count| (10..=30).contains(count)), "{counts:?}");
        }
        assert_eq!(LogPlacement.home_group(5, 8), None);
        assert_eq!(HotspotPlacement.home_group(5, 8), None);
    }

    #[test]
    fn every_policy_has_its_name() {
        for name in ["log", "ffs", "hotspot"] {
            assert_eq!(placement(name).map(|policy| policy.name()), Some(name));
        }
        assert!(placement("nonsense").is_none());
    }
}
