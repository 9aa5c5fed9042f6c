//! Numbers and states of an open pool for `status --json`.

use serde_json::{Value, json};

use super::{devices, groups};

pub(super) fn is_degraded(status: &engine::PoolStatus) -> bool {
    status.lost_with.is_some() || status.members.iter().any(|it| !it.member.is_online())
}

pub(super) fn status_of(status: &engine::PoolStatus, health: &str) -> Value {
    let geometry = &status.geometry;
    let bytes = |fragments: u64| fragments << geometry.fragment_shift;
    json!({
        "label": status.label,
        "pool_id": status.pool_id.to_string(),
        "device": status.device,
        "layout": status.layout.word(),
        "is_degraded": is_degraded(status),
        "members": status
            .members
            .iter()
            .map(|member| json!(devices::facts_of(member, status)))
            .collect::<Vec<Value>>(),
        "groups": status.groups.iter().map(groups::space_of).collect::<Vec<Value>>(),
        "spares": devices::spares_of(status),
        "failures": super::failures::facts_of(status),
        "spares_available": status.spares.iter().filter(|spare| spare.is_there).count(),
        "transport": status.transport,
        "mount_count": status.mount_count,
        "health": health,
        "space": {
            "total_bytes": bytes(status.space.capacity),
            "used_bytes": bytes(status.space.used),
            "promised_bytes": bytes(status.space.promised),
            "reserved_bytes": bytes(status.space.reserved),
            "pending_bytes": bytes(status.space.pending),
            "reserve_bytes": bytes(status.space.reserve),
            "available_bytes": bytes(status.space.available),
            "inodes": status.inodes,
        },
        "full": status.full.as_ref().map(fullness_of),
        "journal": {
            "transactions": status.journal.transactions,
            "commits": status.journal.commits,
            "checkpoints": status.journal.checkpoints,
            "home_pages": status.journal.home_pages,
            "lsn_pages": status.journal.lsn_pages,
            "merges": status.journal.merges,
            "open_classes": status.journal.open_classes,
            "record_bytes": status.journal.record_bytes,
            "active_bytes": status.journal.active_bytes,
            "active_bytes_max": status.journal.active_bytes_max,
            "dirty_pages": status.journal.dirty_pages,
            "dirty_pages_max": status.journal.dirty_pages_max,
        },
        "cache": {
            "pages": status.cache.pages,
            "pages_max": status.cache.limit_pages,
            "hits": status.cache.hits,
            "misses": status.cache.misses,
            "ahead": status.cache.ahead,
            "ahead_used": status.cache.ahead_used,
        },
        "segment_cache": {
            "held_bytes": status.segment_cache.held_bytes,
            "held_bytes_max": status.segment_cache.limit_bytes,
            "hits": status.segment_cache.hits,
            "misses": status.segment_cache.misses,
            "ahead_bytes": status.segment_cache.ahead_bytes,
            "used_bytes": status.segment_cache.used_bytes,
            "refused": status.segment_cache.refused,
        },
        "readahead": {
            "held_bytes": status.readahead.held_bytes,
            "held_bytes_max": status.readahead.limit_bytes,
            "read_bytes": status.readahead.read_bytes,
            "used_bytes": status.readahead.used_bytes,
            "waits": status.readahead.waits,
            "refused": status.readahead.refused,
        },
        "mended": status
            .mended
            .iter()
            .map(|file| {
                json!({ "fileset": file.fileset, "path": file.path, "bytes": file.bytes })
            })
            .collect::<Vec<Value>>(),
        "cleaner": {
            "since_mount": cleaner_counts_of(&status.cleaner.since_mount, bytes),
            "recent": cleaner_counts_of(&status.cleaner.recent, bytes),
            "recent_seconds": status.cleaner.recent_ns / 1_000_000_000,
        },
        "discards": {
            "discards": status.discards.discards,
            "bytes": status.discards.bytes,
            "refused": status.discards.refused,
            "failed": status.discards.failed,
            "withheld_bytes": status.discards.withheld_bytes,
        },
        "files": { "dirty": status.dirty_files, "referenced": status.referenced_files },
        "recovery": {
            "was_needed": status.recovery.was_needed,
            "log_bytes": status.recovery.log_bytes,
            "pages": status.recovery.pages,
            "classes_kept": status.recovery.classes_kept,
            "updates_undone": status.recovery.updates_undone,
            "log_data_blocks": status.recovery.log_data,
            "double_writes": status.recovery.double_writes,
            "lost_blocks": status.recovery.lost_blocks,
        },
    })
}

fn fullness_of(full: &engine::Fullness) -> Value {
    let seconds = |ns: u64| ns / 1_000_000_000;
    let heaviest = full.heaviest.as_ref();
    let named = heaviest.map_or(&[][..], |heaviest| &heaviest.snapshots);
    let named = named.iter().map(|it| json!({ "name": it.name, "unique_bytes": it.bytes }));
    json!({
        "refused_seconds_ago": seconds(full.refused_ago_ns),
        "snapshots": full.snapshots,
        "weighed_seconds_ago": heaviest.map(|heaviest| seconds(heaviest.ago_ns)),
        "is_all_weighed": heaviest.map(|heaviest| heaviest.is_all),
        "heaviest": named.collect::<Vec<Value>>(),
    })
}

fn cleaner_counts_of(counts: &engine::CleanerCounts, bytes: impl Fn(u64) -> u64) -> Value {
    let hundredths = counts.written_hundredths().and_then(|count| u32::try_from(count).ok());
    json!({
        "segments": counts.segments,
        "user_bytes": bytes(counts.user_fragments),
        "moved_bytes": bytes(counts.moved_fragments),
        "written_bytes": bytes(counts.written_fragments),
        "read_bytes": bytes(counts.read_fragments),
        "amplification": hundredths.map(|hundredths| f64::from(hundredths) / 100.0),
    })
}
