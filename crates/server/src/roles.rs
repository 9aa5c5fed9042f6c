//! Roles: the requests that each user may send to a server's socket.
//!
//! ```text
//!   administrator   all requests: root and the user who runs the server, fixed
//!   mounter         hand-over of mounts of listed filesets below listed directories, and status
//!   reader          the status, without names and paths
//!   nobody          no requests
//! ```
//!
//! Mounters and readers are listed in the configuration (`[[mounter]]`, `[[reader]]`), and change
//! with a reload. Existing mounts stay.
//!
//! # Invariants
//!
//! - RO1: A request of another user than an administrator is read only after the user's role is
//!   known, and delays no other client.
//! - RO2: Requests through a mounter's mount run with the mounter's user and groups, and the file
//!   system checks permissions itself: in a user namespace, the mounter controls the IDs that the
//!   kernel reports.
//! - RO3: A reader gets numbers, and of texts only the fields in [`WORDS`]. So a text field that is
//!   added to the status is hidden until it is listed there.
//! - RO4: Administrators have a socket that no other user can open. On the other socket, no client
//!   is an administrator. So no user can delay an administrator, nor gain administrators' rights by
//!   an error in the check of roles.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};

use crate::backend::{DAMAGED, DEGRADED};
use crate::mount_spec::MountSpec;
use crate::peer::{Peer, is_of_many, may_change};
use control::text::printable;

/// Text fields of a status that contain no names or paths.
const WORDS: [&str; 6] = ["layout", "state", "kind", "roles", "pool_id", "id"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) uids: Vec<u32>,
    /// Permitted mounts. `None` for a reader.
    pub(crate) mounts: Option<MountGrant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountGrant {
    /// Names of filesets. Their snapshots are permitted too, because `.snapshots` shows them
    /// anyway.
    pub(crate) filesets: Vec<String>,
    pub(crate) directories: Vec<PathBuf>,
}

impl MountGrant {
    fn has(&self, fileset: &str, directory: &Path) -> bool {
        // A path with `..` could lead out of the permitted directories.
        let is_plain = directory
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        // The directory appears in line-based text (log, commands, metrics), where a newline could
        // forge lines.
        let is_one_line = !directory.as_os_str().as_bytes().iter().any(u8::is_ascii_control);
        is_plain
            && is_one_line
            && self.filesets.iter().any(|it| it == fileset)
            && self.directories.iter().any(|it| directory.starts_with(it))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerRole {
    Administrator,
    Mounter(Vec<MountGrant>),
    Reader,
    Nobody,
}

/// Roles that a server grants to users, for one pool.
#[derive(Debug, Default)]
pub struct PoolGrants(Mutex<Arc<[Grant]>>);

impl PoolGrants {
    pub(crate) fn set(&self, grants: Vec<Grant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = grants.into();
    }

    pub(crate) fn of(&self, peer: Peer, own: Peer) -> PeerRole {
        if may_change(peer.uid, own.uid) {
            return PeerRole::Administrator;
        }
        if is_of_many(peer.uid) {
            return PeerRole::Nobody;
        }
        let grants = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let his = || grants.iter().filter(|grant| grant.uids.contains(&peer.uid));
        let mounts: Vec<MountGrant> = his().filter_map(|grant| grant.mounts.clone()).collect();
        match (mounts.is_empty(), his().next()) {
            (false, _) => PeerRole::Mounter(mounts),
            (true, Some(_)) => PeerRole::Reader,
            (true, None) => PeerRole::Nobody,
        }
    }
}

impl PeerRole {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            PeerRole::Administrator => "administrator",
            PeerRole::Mounter(_) => "mounter",
            PeerRole::Reader => "reader",
            PeerRole::Nobody => "nobody",
        }
    }

    /// Refuses a mount that `peer` was not granted (RO2).
    pub(crate) fn check_mount(
        &self,
        spec: &MountSpec,
        directory: &Path,
        peer: Peer,
    ) -> Result<(), String> {
        let PeerRole::Mounter(mounts) = self else { return Err(self.refusal(peer, None)) };
        let Some(fileset) = &spec.fileset else {
            return Err("name the fileset: `holdfast mount POOL:a/b DIRECTORY`".to_owned());
        };
        if mounts.iter().any(|it| it.has(fileset, directory)) {
            return Ok(());
        }
        let given = mounts.iter().map(|it| {
            let directories: Vec<String> =
                it.directories.iter().map(|path| path.display().to_string()).collect();
            format!("{} below {}", it.filesets.join(", "), directories.join(", "))
        });
        let given: Vec<String> = given.collect();
        Err(format!(
            "user {} may not mount {fileset} on {}, only {}: mount one of those, or have \
             [[mounter]] of the server's configuration say more (then `holdfast reload POOL`)",
            peer.uid,
            printable(&directory.to_string_lossy()),
            given.join("; ")
        ))
    }

    pub(crate) fn refusal(&self, peer: Peer, own: Option<Peer>) -> String {
        let uid = peer.uid;
        let owner = match own {
            Some(own) if own.uid != 0 => format!("root or user {}, who runs the server,", own.uid),
            _ => "root".to_owned(),
        };
        match self {
            // Unreachable, because administrators are not refused.
            PeerRole::Administrator => format!("user {uid} may do all here"),
            PeerRole::Mounter(_) => format!(
                "user {uid} is a mounter here: he may mount what [[mounter]] names for him, and \
                 ask for the status: ask {owner} for more"
            ),
            PeerRole::Reader => format!(
                "user {uid} is a reader here: he may ask for the status, and for nothing else: ask \
                 {owner} for more"
            ),
            PeerRole::Nobody => format!(
                "user {uid} may ask nothing here: ask {owner} for a [[reader]] or [[mounter]] in \
                 the server's configuration (then `holdfast reload POOL`)"
            ),
        }
    }

    /// Returns the part of `status` for this role (RO3). `mounts` are the client's own mounts,
    /// which it may see with paths.
    pub(crate) fn told(&self, status: &Value, mounts: Vec<Value>) -> Value {
        let pool = &status["pool"];
        let mut told = nameless("", pool).unwrap_or_else(|| json!({}));
        let health = pool["health"].as_str().unwrap_or_default();
        let is_plain = ["ok", DEGRADED, DAMAGED].contains(&health);
        told["health"] = json!(if is_plain { health } else { "failed: ask an administrator" });
        let server = json!({
            "pool": format!("pool {}", pool["pool_id"].as_str().unwrap_or_default()),
            "pid": status["server"]["pid"],
            "lasts": status["server"]["lasts"],
            "is_ending": status["server"]["is_ending"],
            "role": self.word(),
            "mounts": mounts,
        });
        json!({ "server": server, "pool": told })
    }
}

/// Returns `value` without texts that may be names (RO3). `key` is the name of its field.
fn nameless(key: &str, value: &Value) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Some(value.clone()),
        Value::String(_) => WORDS.contains(&key).then(|| value.clone()),
        Value::Array(list) => {
            Some(Value::Array(list.iter().filter_map(|it| nameless(key, it)).collect()))
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            let kept = fields.filter_map(|(key, it)| Some((key.clone(), nameless(key, it)?)));
            Some(Value::Object(kept.collect::<Map<_, _>>()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32) -> Peer {
        Peer { uid, gid: uid }
    }

    fn roles() -> PoolGrants {
        let roles = PoolGrants::default();
        let mountable = MountGrant {
            filesets: vec!["home/anna".to_owned()],
            directories: vec!["/home/anna/files".into()],
        };
        roles.set(vec![
            Grant { uids: vec![1001, 1002], mounts: None },
            Grant { uids: vec![1002], mounts: Some(mountable) },
        ]);
        roles
    }

    #[test]
    fn each_user_has_the_role_that_is_given() {
        let roles = roles();
        let word = |uid: u32| roles.of(peer(uid), peer(1000)).word();
        assert_eq!((word(0), word(1000)), ("administrator", "administrator"));
        assert_eq!((word(1001), word(1002), word(1003)), ("reader", "mounter", "nobody"));
        roles.set(Vec::new());
        assert_eq!(roles.of(peer(1002), peer(1000)), PeerRole::Nobody);
        assert_eq!(roles.of(peer(1000), peer(1000)), PeerRole::Administrator);
    }

    /// Goal: a UID that stands for many users has no role, even if it was granted one.
    #[test]
    fn a_number_that_stands_for_many_users_has_no_role() {
        let roles = PoolGrants::default();
        let many = [65_534, u32::MAX];
        roles.set(vec![Grant { uids: many.to_vec(), mounts: None }]);
        for uid in many {
            for own in [0, 1000, u32::MAX] {
                assert_eq!(roles.of(peer(uid), peer(own)), PeerRole::Nobody, "{uid} of {own}");
            }
            assert_eq!(roles.of(peer(0), peer(uid)), PeerRole::Administrator);
        }
    }

    /// Goal: a mounter mounts listed filesets on or below listed directories, and no others (RO2).
    #[test]
    fn a_mounter_mounts_what_is_named_where_it_is() {
        let roles = roles();
        let ask = |uid: u32, fileset: Option<&str>, directory: &str| {
            let spec = MountSpec::plain(fileset, Path::new(directory));
            let role = roles.of(peer(uid), peer(0));
            role.check_mount(&spec, Path::new(directory), peer(uid))
        };
        let own = Some("home/anna");
        assert_eq!(ask(1002, own, "/home/anna/files"), Ok(()));
        assert_eq!(ask(1002, own, "/home/anna/files/deep/er"), Ok(()));
        for (fileset, directory) in [
            (own, "/home/anna"),
            (own, "/home/anna/files2"),
            (own, "/home/anna/files/../../bob"),
            (own, "home/anna/files"),
            (own, "/home/anna/files/x\n2026-01-01 INFO holdfast::audit: who=\"user 0\""),
            (own, "/home/anna/files/\u{1b}[2J"),
            (Some("home"), "/home/anna/files"),
            (Some("home/anna/deeper"), "/home/anna/files"),
        ] {
            let refused = ask(1002, fileset, directory).expect_err(directory);
            assert!(refused.contains("only home/anna below /home/anna/files"), "{refused}");
            assert!(!refused.contains(char::is_control), "{refused:?}");
        }
        assert!(ask(1002, None, "/home/anna/files").is_err_and(|it| it.contains("name the")));
        assert!(ask(1001, own, "/home/anna/files").is_err_and(|it| it.contains("a reader")));
        assert!(ask(1003, own, "/home/anna/files").is_err_and(|it| it.contains("[[mounter]]")));
    }

    /// Goal: of texts, a reader gets only the listed fields (RO3).
    #[test]
    fn a_reader_is_told_numbers_and_no_names() {
        let status = json!({
            "server": { "pool": "/secret", "log": "/secret", "pid": 7, "lasts": true,
                "mounts": [{ "directory": "/secret", "directory_bytes": [47, 115] }] },
            "bugs": { "count": 1, "last": "/secret" },
            "pool": {
                "pool_id": "abc", "label": "secret", "health": "ok", "warnings": ["/secret"],
                "space": { "used_bytes": 5 }, "fileset": "secret", "journal": { "commits": 3 },
                "members": [{ "path": "/secret", "state": "online", "read_errors": 2 }],
                "full": { "heaviest": [{ "name": "secret", "unique_bytes": 9 }] },
            },
        });
        let told = PeerRole::Reader.told(&status, Vec::new());
        assert!(!told.to_string().contains("secret") && !told.to_string().contains("47"), "{told}");
        assert_eq!(told["pool"]["members"][0]["state"], "online");
        assert_eq!(told["pool"]["members"][0]["read_errors"], 2);
        assert_eq!(told["pool"]["space"]["used_bytes"], 5);
        assert_eq!(told["pool"]["full"]["heaviest"][0]["unique_bytes"], 9);
        assert_eq!((&told["server"]["pid"], &told["pool"]["health"]), (&json!(7), &json!("ok")));
        let mut failed = status;
        failed["pool"]["health"] = json!("/secret failed");
        let told = PeerRole::Reader.told(&failed, Vec::new()).to_string();
        assert!(!told.contains("secret") && told.contains("ask an administrator"), "{told}");
    }
}
