//! Users of client processes, and their rights on a server.

use std::fmt::Display;
use std::sync::OnceLock;

use control::{Answer, Request};

/// The user of a client process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Peer {
    /// Returns the user of this process.
    pub fn own() -> Peer {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Peer { uid: uid.as_raw(), gid: gid.as_raw() }
    }
}

/// Returns whether a process of user `uid` may change the state of a server of user `own` (CO1).
pub fn may_change(uid: u32, own: u32) -> bool {
    uid == 0 || (uid == own && uid != u32::MAX && (!is_of_many(uid) || has_all_users()))
}

/// Returns whether this user namespace maps every user id. Then the overflow id stands only for the
/// user of that number.
fn has_all_users() -> bool {
    static ALL: OnceLock<bool> = OnceLock::new();
    *ALL.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_whitespace().eq(["0", "0", "4294967295"])
    })
}

/// Returns whether `uid` is the overflow id. The kernel reports it for every user without a number
/// in this user namespace, so it can stand for any of them.
pub fn is_of_many(uid: u32) -> bool {
    /// The kernel's default overflow id, if the setting cannot be read.
    const USUAL: u32 = 65_534;
    static OVERFLOW: OnceLock<u32> = OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL)
    };
    uid == u32::MAX || uid == *OVERFLOW.get_or_init(read)
}

/// Runs `work`. If `request` is a change, logs it with its user and result.
pub fn audited<E: Display>(
    who: &str,
    request: &Request,
    work: impl FnOnce() -> Result<Answer, E>,
) -> Result<Answer, E> {
    let done = work();
    if request.is_change() {
        let result = done.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        tracing::info!(target: "holdfast::audit", who, ?request, result, "change");
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_servers_own_user_change_anything() {
        assert!(may_change(0, 1000) && may_change(1000, 1000) && may_change(0, 0));
        assert!(!may_change(1000, 0) && !may_change(1000, 1001));
    }
}
