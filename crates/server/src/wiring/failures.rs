//! The part of `status` about devices that have failed or have errors.
//!
//! After a spare has replaced a failed device, the pool is whole and its members do not show the
//! failure. Failed devices are therefore listed separately until an administrator clears them
//! (`device clear`).

use std::path::Path;

use engine::{MemberStatus, PoolStatus};
use serde_json::{Value, json};
use storage::volume::MemberFailure;

pub(super) fn facts_of(status: &PoolStatus) -> Vec<Value> {
    let facts = |failure: &MemberFailure| {
        json!({
            "number": failure.number,
            "slot": failure.slot,
            "device": failure.device,
            "cause": cause_of(failure),
            "replaced_by": failure.replaced_by,
        })
    };
    status.failures.iter().map(facts).collect()
}

/// Returns why the device in `slot` has failed. `None` if it has not, or if a spare has replaced
/// it.
pub(super) fn cause_in(status: &PoolStatus, slot: usize) -> Option<&str> {
    let of_slot = |failure: &&MemberFailure| failure.slot == slot && failure.replaced_by.is_none();
    status.failures.iter().rev().find(of_slot).map(cause_of)
}

fn cause_of(failure: &MemberFailure) -> &str {
    let rest = failure.cause.strip_prefix(&failure.device);
    rest.map_or(&*failure.cause, |rest| rest.trim_start_matches([':', ' ']))
}

pub(super) fn warnings(pool: &Path, status: &PoolStatus) -> Vec<String> {
    let pool = pool.display();
    let left = spares_left(status);
    let replaced = status.failures.iter().filter_map(|failure| {
        let MemberFailure { slot, device, .. } = failure;
        let spare = failure.replaced_by.as_ref()?;
        let cause = cause_of(failure);
        Some(format!(
            "{device} (slot {slot}) has failed ({cause}), and the spare {spare} has replaced it; \
             {left}. Remove the failed device, then run `holdfast device clear {pool} {slot}`"
        ))
    });
    let bad = status.members.iter().filter_map(|member| errors_of(&pool.to_string(), member));
    replaced.chain(bad).collect()
}

fn spares_left(status: &PoolStatus) -> String {
    match status.spares.iter().filter(|spare| spare.is_there).count() {
        0 => "no spare is left (add one: `holdfast device add POOL DEVICE --spare`)".to_owned(),
        1 => "1 spare is left".to_owned(),
        count => format!("{count} spares are left"),
    }
}

fn errors_of(
    pool: &str,
    MemberStatus { slot, member, counts, .. }: &MemberStatus,
) -> Option<String> {
    let (reads, writes) = (counts.read_errors, counts.write_errors);
    let (bad, repaired) = (counts.checksum_errors, counts.repaired);
    if (reads, writes, bad) == (0, 0, 0) {
        return None;
    }
    let path = format::text::shown(&member.path);
    Some(format!(
        "{path} (slot {slot}) has errors: {reads} reads and {writes} writes failed, {bad} ranges \
         did not verify, {repaired} of them were repaired. Replace it (`holdfast device replace \
         {pool} {slot} NEW`), or fix the cause and run `holdfast device clear {pool} {slot}`"
    ))
}
