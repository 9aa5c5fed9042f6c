//! What is done with the filesets and snapshots of a pool, and what it tells of them.

use std::collections::BTreeSet;

use engine::api::{FileSystem, FilesetUuid, FsError, FsResult};
use engine::{FilesetChange, NewFileset, Pool, ReceiveError, SendError};
use format::fileset::{FilesetName, NamePart};
use runtime::prng::Prng;

use super::owners::{self, Quotas};
use super::world::{Listed, NodeId, NodeOp, World};
use crate::canon::{Times, differences, walk_below};

pub(super) fn name(text: &str) -> FilesetName {
    text.parse().expect("the names are of letters")
}

pub(super) fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("the names are of letters")
}

pub(super) fn words<T>(what: &str, result: Result<T, impl std::fmt::Display>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Does `op` on a pool.
///
/// # Errors
///
/// Why the pool refuses it.
pub fn apply(pool: &Pool, op: &NodeOp, random: &mut Prng) -> FsResult<()> {
    let mut bits = || {
        let mut some = [0; 16];
        some[..8].copy_from_slice(&random.next_u64().to_le_bytes());
        some[8..].copy_from_slice(&random.next_u64().to_le_bytes());
        some
    };
    match op {
        NodeOp::Create { fileset } => {
            let mut random = [0; 32];
            random[..16].copy_from_slice(&bits());
            random[16..].copy_from_slice(&bits());
            let new = NewFileset { random, ..NewFileset::default() };
            pool.fileset_admin().create_fileset(&name(fileset), &new).map(drop)
        }
        NodeOp::Take { fileset, snapshot } => {
            pool.fileset_admin().create_snapshot(&name(fileset), &part(snapshot), bits()).map(drop)
        }
        NodeOp::TakeBelow { fileset, snapshot } => pool
            .fileset_admin()
            .create_snapshots_below(&name(fileset), &part(snapshot), &mut bits)
            .map(drop),
        NodeOp::Clone { fileset, snapshot, clone } => {
            let from = (&name(fileset), &part(snapshot));
            pool.fileset_admin().create_clone(from, &name(clone), bits()).map(drop)
        }
        NodeOp::Restore { fileset, snapshot } => {
            pool.fileset_admin().restore_fileset(&name(fileset), &part(snapshot)).map(drop)
        }
        NodeOp::Promote { fileset } => {
            pool.fileset_admin().promote_fileset(&name(fileset)).map(drop)
        }
        NodeOp::Receive { fileset, snapshot, from, into } => {
            let (sent, from) = ((fileset, snapshot), from.as_ref());
            let mut random = [0; 32];
            random[..16].copy_from_slice(&bits());
            random[16..].copy_from_slice(&bits());
            match from {
                Some(from) => {
                    receive(pool, (fileset, from), None, (into, random))?;
                    random.reverse();
                    receive(pool, sent, Some(from), (into, random))
                }
                None => receive(pool, sent, None, (into, random)),
            }
        }
        NodeOp::DeleteSnapshot { fileset, snapshot } => {
            pool.fileset_admin().delete_snapshot(&name(fileset), &part(snapshot))
        }
        NodeOp::DeleteFileset { fileset } => pool.fileset_admin().delete_fileset(&name(fileset)),
        NodeOp::Hold { fileset, snapshot, hold } => {
            pool.fileset_admin().set_hold((&name(fileset), &part(snapshot)), &part(hold), true)
        }
        NodeOp::Release { fileset, snapshot, hold } => {
            pool.fileset_admin().set_hold((&name(fileset), &part(snapshot)), &part(hold), false)
        }
        NodeOp::SetQuota { fileset, bytes } => {
            let change = FilesetChange { quota_bytes: Some(*bytes), ..FilesetChange::default() };
            pool.fileset_admin().change_fileset(&name(fileset), &change)
        }
        NodeOp::Switch { fileset, is_on: true } => {
            pool.fileset_admin().switch_quotas_on(&name(fileset)).map(drop)
        }
        NodeOp::Switch { fileset, is_on: false } => {
            pool.fileset_admin().switch_quotas_off(&name(fileset))
        }
        NodeOp::Limit { fileset, who, limits } => {
            pool.fileset_admin().set_quota(&name(fileset), *who, &limits.change())
        }
        NodeOp::SetGraces { fileset, seconds } => {
            pool.fileset_admin().set_quota_graces(&name(fileset), [Some(*seconds); 2])
        }
    }
}

/// Sends a snapshot of a pool, and receives it in the same pool.
fn receive(
    pool: &Pool,
    (fileset, snapshot): (&String, &String),
    from: Option<&String>,
    (into, random): (&String, [u8; 32]),
) -> FsResult<()> {
    let refused = |why: String| FsError::FilesetInUse { name: into.clone(), by: why };
    let (from, mut stream) = (from.map(|from| part(from)), Vec::new());
    let sent = (&name(fileset), &part(snapshot));
    pool.fileset_admin().send(sent, from.as_ref(), None, &mut stream, &mut |_, _| ()).map_err(
        |error| {
            if let SendError::Fs(error) = error { error } else { refused(error.to_string()) }
        },
    )?;
    let received =
        pool.fileset_admin().receive(&name(into), &mut &stream[..], random, &mut |_, _| ());
    received.map(drop).map_err(|failure| {
        let error = failure.error;
        if let ReceiveError::Fs(error) = error { error } else { refused(error.to_string()) }
    })
}

/// Gives up what has come of streams that a power cut has ended.
pub(super) fn give_up_streams(pool: &Pool) -> Result<(), String> {
    for it in words("the filesets can't be listed", pool.fileset_admin().filesets())? {
        if it.is_receiving {
            words(&it.name, pool.fileset_admin().abort_receiving(&name(&it.name)))?;
        }
    }
    Ok(())
}

/// Whether what the model does not know of excuses an answer: what is being freed in the
/// background, and how many of a family the log can move together.
///
/// # Errors
///
/// In words, if the pool can't tell.
pub fn is_excused(pool: &Pool, error: &FsError) -> Result<bool, String> {
    let FsError::FilesetInUse { by, .. } = error else { return Ok(false) };
    let is_freeing = words("is anything being freed", pool.fileset_admin().is_freeing())?;
    let is_of_freed = by.contains("being freed") || by.contains("go back to it");
    Ok(is_freeing && is_of_freed || by.contains("can move together"))
}

/// What the pool tells of its filesets and snapshots; `world` says what to ask.
pub(super) fn listed(pool: &Pool, world: &World) -> Result<BTreeSet<Listed>, String> {
    let all = words("the filesets can't be listed", pool.fileset_admin().filesets())?;
    let mut found = BTreeSet::new();
    for it in all.into_iter().filter(|it| it.freed_permille.is_none() && !it.is_receiving) {
        let known = world.filesets().find(|(_, node)| node.name == it.name);
        let quotas = match known {
            Some((_, node)) => owners::listed(pool, &it.name, &node.quotas)?,
            None => Quotas::default(),
        };
        found.insert(Listed {
            name: it.name,
            quota_bytes: it.quota_bytes,
            holds: it.holds.into_iter().collect(),
            origin: it.origin,
            quotas,
        });
    }
    Ok(found)
}

/// Compares what there is with what there is to be.
///
/// # Errors
///
/// Both, in words.
pub fn compare_lists(pool: &Pool, world: &World) -> Result<(), String> {
    let (found, expected) = (listed(pool, world)?, world.listed());
    if found == expected { Ok(()) } else { Err(format!("there are {found:?}, not {expected:?}")) }
}

/// Takes hold of a fileset or a snapshot by its name.
///
/// # Errors
///
/// As `PoolFilesets::hold_fileset`.
pub fn enter(pool: &Pool, what: &str) -> FsResult<FilesetUuid> {
    match what.split_once('@') {
        Some((fileset, snapshot)) => {
            pool.fileset_admin().hold_snapshot(&name(fileset), &part(snapshot))
        }
        None => pool.fileset_admin().hold_fileset(&name(what)),
    }
}

/// Compares a fileset or a snapshot with what it is to hold, whole (NT3); returns what is held
/// since.
///
/// # Errors
///
/// How they differ, in words.
///
/// # Panics
///
/// If `world` has no such node.
pub fn compare(
    pool: &Pool,
    world: &World,
    id: NodeId,
    times: Times,
) -> Result<FilesetUuid, String> {
    let what = world.name_of(id);
    let uuid = words(&what, enter(pool, &what))?;
    let root = words(&what, pool.root_of(uuid))?;
    let model = &world.node(id).expect("it is of this world").model;
    let expected = walk_below(&**model, model.root(), times);
    let expected = words("the model", expected)?;
    let found = words(&what, walk_below(pool, root, times))?;
    match differences(&expected, &found).first() {
        Some(differ) => Err(format!("{what}: {differ}")),
        None => Ok(uuid),
    }
}
