//! What takes effect after its time, whether or not anybody still waits for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{RequestKind, SharedBytes};

/// What a late request does when its time has come.
#[derive(Debug)]
pub(super) enum Effect {
    /// A read, or a discard.
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
pub(super) struct Late {
    at_ns: u64,
    pub(super) kind: RequestKind,
    pub(super) effect: Effect,
    /// Whether its waiter has left.
    pub(super) is_overdue: Arc<AtomicBool>,
}

/// Requests that are late. Few: each is a planned fault.
#[derive(Debug, Default)]
pub(super) struct LateEffects(Vec<Late>);

impl LateEffects {
    pub(super) fn push(
        &mut self,
        (at_ns, kind): (u64, RequestKind),
        effect: Effect,
        is_overdue: &Arc<AtomicBool>,
    ) {
        self.0.push(Late { at_ns, kind, effect, is_overdue: Arc::clone(is_overdue) });
    }

    /// Takes what is due at `now_ns` out, the earliest first.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Vec<Late> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut due: Vec<Late> = self.0.extract_if(.., |late| late.at_ns <= now_ns).collect();
        due.sort_by_key(|late| late.at_ns);
        due
    }
}
