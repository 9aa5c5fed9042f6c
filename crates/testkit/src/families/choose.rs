//! What is done next with filesets and snapshots: few names, so that they meet.

use format::quota::QuotaKind;
use runtime::prng::Prng;

use super::owners::Limits;
use super::world::{NodeOp, ROOT, World};
use crate::number::{u64_of, usize_of};
use crate::ops::COMMON_GID;

const FILESETS: [&str; 6] = [ROOT, "a", "b", "c", "a/d", "b/e"];
const SNAPSHOTS: [&str; 4] = ["w", "x", "y", "z"];
const HOLDS: [&str; 2] = ["h", "i"];
/// One name in so many is any, whether or not there is such a fileset or snapshot.
const ANY_ONE_IN: u64 = 10;
/// Quotas are from here to four times as much.
const QUOTA_BYTES_MIN: u64 = 1 << 20;
/// Users who are limited; limits of bytes are multiples of one of these, graces up to so many
/// seconds.
pub(super) const USERS: [u32; 2] = [7, 8];
/// Projects that files are given to, and that are limited.
pub(super) const PROJECTS: [u32; 2] = [5, 6];
const LIMIT_BYTES: [u64; 3] = [8 << 10, 32 << 10, 128 << 10];
const GRACE_SECONDS_MAX: u64 = 40;
/// Most snapshots and filesets, beyond which more are deleted than made.
const NODES_MAX: usize = 10;

/// Returns one of some; `None` of none.
pub fn one_of<T: Clone>(random: &mut Prng, from: &[T]) -> Option<T> {
    let count = u64_of(from.len());
    if count == 0 { None } else { from.get(usize_of(random.below(count))).cloned() }
}

fn any(random: &mut Prng, names: &[&str]) -> String {
    names[usize_of(random.below(u64_of(names.len())))].to_owned()
}

fn fileset(random: &mut Prng, world: &World) -> String {
    let all: Vec<String> = world.filesets().map(|(_, node)| node.name.clone()).collect();
    match one_of(random, &all) {
        Some(name) if !random.one_in(ANY_ONE_IN) => name,
        _ => any(random, &FILESETS),
    }
}

fn take_snapshot(random: &mut Prng, world: &World) -> (String, String) {
    let name = |(_, of, node): (_, &str, &super::world::Node)| (of.to_owned(), node.name.clone());
    let all: Vec<(String, String)> = world.snapshots().map(name).collect();
    match one_of(random, &all) {
        Some(names) if !random.one_in(ANY_ONE_IN) => names,
        _ => (any(random, &FILESETS), any(random, &SNAPSHOTS)),
    }
}

/// Chooses what is done next.
pub fn node_op(random: &mut Prng, world: &World) -> NodeOp {
    let is_crowded = world.nodes().count() > NODES_MAX;
    let choice = if is_crowded { 13 + random.below(7) } else { random.below(21) };
    match choice {
        0..2 => NodeOp::Create { fileset: any(random, &FILESETS) },
        2..8 => NodeOp::Take { fileset: fileset(random, world), snapshot: any(random, &SNAPSHOTS) },
        8 => {
            NodeOp::TakeBelow { fileset: fileset(random, world), snapshot: any(random, &SNAPSHOTS) }
        }
        9..11 => {
            let (fileset, snapshot) = take_snapshot(random, world);
            NodeOp::Clone { fileset, snapshot, clone: any(random, &FILESETS) }
        }
        11..13 => {
            let (fileset, snapshot) = take_snapshot(random, world);
            NodeOp::Restore { fileset, snapshot }
        }
        13 => NodeOp::Promote { fileset: fileset(random, world) },
        14..17 => {
            let (fileset, snapshot) = take_snapshot(random, world);
            NodeOp::DeleteSnapshot { fileset, snapshot }
        }
        17 => NodeOp::DeleteFileset { fileset: fileset(random, world) },
        18 => {
            let (fileset, snapshot) = take_snapshot(random, world);
            let hold = any(random, &HOLDS);
            if random.one_in(3) {
                NodeOp::Hold { fileset, snapshot, hold }
            } else {
                NodeOp::Release { fileset, snapshot, hold }
            }
        }
        20 => receive(random, world),
        _ if random.one_in(3) => {
            let bytes = QUOTA_BYTES_MIN + random.below(3 * QUOTA_BYTES_MIN);
            let bytes = if random.one_in(2) { 0 } else { bytes };
            NodeOp::SetQuota { fileset: fileset(random, world), bytes }
        }
        _ => {
            let fileset = fileset(random, world);
            owner_op(random, world, fileset)
        }
    }
}

fn receive(random: &mut Prng, world: &World) -> NodeOp {
    let (fileset, snapshot) = take_snapshot(random, world);
    let is_it =
        |(_, of, node): &(_, &str, &super::world::Node)| *of == fileset && node.name == snapshot;
    let known = world.snapshots().find(is_it).map(|(id, ..)| world.earlier(id));
    let from = one_of(random, &known.unwrap_or_default()).filter(|_| !random.one_in(4));
    NodeOp::Receive { fileset, snapshot, from, into: any(random, &FILESETS) }
}

/// Chooses what is done to the quotas of a fileset's users, groups and projects.
pub(super) fn owner_op(random: &mut Prng, world: &World, fileset: String) -> NodeOp {
    let known = world.filesets().find(|(_, node)| node.name == fileset);
    let is_on = known.is_some_and(|(_, node)| node.quotas.is_on);
    if !is_on || random.one_in(8) {
        return NodeOp::Switch { fileset, is_on: !is_on };
    }
    if random.one_in(5) {
        return NodeOp::SetGraces { fileset, seconds: 1 + random.below(GRACE_SECONDS_MAX) };
    }
    let kinds = [QuotaKind::User, QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
    let kind = one_of(random, &kinds).unwrap_or(QuotaKind::User);
    let id = match kind {
        QuotaKind::Project => one_of(random, &PROJECTS).unwrap_or(1),
        QuotaKind::Group if random.one_in(2) => COMMON_GID,
        QuotaKind::User | QuotaKind::Group => any_user(random),
    };
    let unit = one_of(random, &LIMIT_BYTES).unwrap_or(1);
    let mut soft_and_hard = |unit: u64, most: u64| {
        let hard = unit * (1 + random.below(most));
        match random.below(4) {
            0 => [0, 0],
            1 => [0, hard],
            2 => [hard, 0],
            _ => [hard.div_ceil(unit * 2) * unit, hard],
        }
    };
    let [bytes_soft, bytes_hard] = soft_and_hard(unit, 16);
    let [inodes_soft, inodes_hard] = soft_and_hard(1, 12);
    let limits = Limits([bytes_soft, bytes_hard, inodes_soft, inodes_hard]);
    NodeOp::Limit { fileset, who: (kind, id), limits }
}

fn any_user(random: &mut Prng) -> u32 {
    USERS[usize_of(random.below(u64_of(USERS.len())))]
}
