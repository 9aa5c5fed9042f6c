//! Late requests, which take effect even if abandoned.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{RequestKind, SharedBytes};

#[derive(Debug)]
pub(super) enum LateEffect {
    /// A read or a discard: no further effect.
    Nothing,
    Write {
        offset: u64,
        data: Vec<SharedBytes>,
    },
    WriteThrough {
        offset: u64,
        data: Vec<SharedBytes>,
    },
    Flush,
}

#[derive(Debug)]
pub(super) struct LateRequest {
    at_ns: u64,
    pub(super) kind: RequestKind,
    pub(super) effect: LateEffect,
    pub(super) is_overdue: Arc<AtomicBool>,
}

/// Late requests, which are few, because each is a planned fault.
#[derive(Debug, Default)]
pub(super) struct LateRequests(Vec<LateRequest>);

impl LateRequests {
    pub(super) fn push(
        &mut self,
        (at_ns, kind): (u64, RequestKind),
        effect: LateEffect,
        is_overdue: &Arc<AtomicBool>,
    ) {
        self.0.push(LateRequest { at_ns, kind, effect, is_overdue: Arc::clone(is_overdue) });
    }

    /// Removes and returns the requests due at `now_ns`, in order of time.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Vec<LateRequest> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut due: Vec<LateRequest> =
            self.0.extract_if(.., |late| late.at_ns <= now_ns).collect();
        due.sort_by_key(|late| late.at_ns);
        due
    }
}
