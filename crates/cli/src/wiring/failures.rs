//! What `status` tells of devices that have failed, or are about to.
//!
//! A spare takes the slot of a failed device, and the pool is whole again. So the failed device
//! is listed apart, until an administrator clears it (`device clear`).

use std::path::Path;

use engine::{MemberStatus, PoolStatus};
use serde_json::{Value, json};
use storage::volume::MemberFailure;

/// Returns the devices that have failed since the pool was opened, the first first.
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

/// Returns why the device in `slot`, which no other stands for, has failed.
pub(super) fn cause_in(status: &PoolStatus, slot: usize) -> Option<&str> {
    let of_slot = |failure: &&MemberFailure| failure.slot == slot && failure.replaced_by.is_none();
    status.failures.iter().rev().find(of_slot).map(cause_of)
}

/// Returns what was said of a device, without its name in front.
fn cause_of(failure: &MemberFailure) -> &str {
    let rest = failure.cause.strip_prefix(&failure.device);
    rest.map_or(&*failure.cause, |rest| rest.trim_start_matches([':', ' ']))
}

/// Says which devices have failed and were replaced by a spare, and which have errors.
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

/// Says how many spares are left.
fn spares_left(status: &PoolStatus) -> String {
    match status.spares.iter().filter(|spare| spare.is_there).count() {
        0 => "no spare is left (add one: `holdfast device add POOL DEVICE --spare`)".to_owned(),
        1 => "1 spare is left".to_owned(),
        count => format!("{count} spares are left"),
    }
}

/// Says that a device has errors: it may be about to fail.
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
