//! Who may ask a server for what on its socket, by user.
//!
//! ```text
//!   administrator   all: root, and the user who runs the server; nobody else can become one
//!   mounter         hand over mounts of the filesets that are named, on the directories that are
//!   reader          the status, without names and paths; a mounter too
//!   nobody          nothing
//! ```
//!
//! Mounters and readers are in the server's configuration (`[[mounter]]`, `[[reader]]`), and are
//! others when that is read again. What they mount stays.
//!
//! # Invariants
//!
//! - RO1: A request of somebody else than an administrator is neither read before his role is
//!   known, nor does anybody wait for it but he.
//! - RO2: What a mounter mounts is done as him, user and groups, and checked in the file system: he
//!   may have mounted in a user namespace, where he says as whom the kernel asks.
//! - RO3: A reader is told numbers, and the words of [`WORDS`]. What is added to the status is
//!   hidden until it is listed there.
//! - RO4: Administrators ask by a socket that nobody else can open, others by one by which nobody
//!   is an administrator: neither keeps the other waiting, nor gets its rights by a mistake here.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};

use crate::backend::{DAMAGED, DEGRADED};
use crate::control::{Peer, is_of_many, may_change};
use crate::mounts::MountSpec;
use crate::output::printable;

/// What of a status has words that name nothing.
const WORDS: [&str; 6] = ["layout", "state", "kind", "roles", "pool_id", "id"];

/// What somebody is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// To whom.
    pub(crate) uids: Vec<u32>,
    /// What he may mount; `None`: he is a reader.
    pub(crate) mounts: Option<Mountable>,
}

/// What may be mounted where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mountable {
    /// Names of filesets; their clones too, for those are in `.clones` of what is mounted.
    pub(crate) filesets: Vec<String>,
    /// These directories, and those below them.
    pub(crate) directories: Vec<PathBuf>,
}

impl Mountable {
    /// Whether this mount is one of them.
    fn has(&self, fileset: &str, directory: &Path) -> bool {
        // `..` would lead elsewhere.
        let is_plain = directory
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        // It is in the log, in commands' output and in metrics, each of which has lines.
        let is_one_line = !directory.as_os_str().as_bytes().iter().any(u8::is_ascii_control);
        is_plain
            && is_one_line
            && self.filesets.iter().any(|it| it == fileset)
            && self.directories.iter().any(|it| directory.starts_with(it))
    }
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// All.
    Administrator,
    /// Mount these, and what a reader may.
    Mounter(Vec<Mountable>),
    /// See the status without names and paths.
    Reader,
    /// Nothing.
    Nobody,
}

/// What a server of one pool has given to whom.
#[derive(Debug, Default)]
pub(crate) struct Roles(Mutex<Arc<[Grant]>>);

impl Roles {
    /// From now on it is this.
    pub(crate) fn set(&self, grants: Vec<Grant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = grants.into();
    }

    /// Returns what `peer` may ask of a server of `own`.
    pub(crate) fn of(&self, peer: Peer, own: Peer) -> Role {
        if may_change(peer.uid, own.uid) {
            return Role::Administrator;
        }
        if is_of_many(peer.uid) {
            return Role::Nobody;
        }
        let grants = Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let his = || grants.iter().filter(|grant| grant.uids.contains(&peer.uid));
        let mounts: Vec<Mountable> = his().filter_map(|grant| grant.mounts.clone()).collect();
        match (mounts.is_empty(), his().next()) {
            (false, _) => Role::Mounter(mounts),
            (true, Some(_)) => Role::Reader,
            (true, None) => Role::Nobody,
        }
    }
}

impl Role {
    /// Returns its word.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Role::Administrator => "administrator",
            Role::Mounter(_) => "mounter",
            Role::Reader => "reader",
            Role::Nobody => "nobody",
        }
    }

    /// RO2: refuses a mount that is not given to `peer`.
    pub(crate) fn check_mount(
        &self,
        spec: &MountSpec,
        directory: &Path,
        peer: Peer,
    ) -> Result<(), String> {
        let Role::Mounter(mounts) = self else { return Err(self.refusal(peer, None)) };
        let Some(fileset) = &spec.fileset else {
            return Err("name the fileset: holdfast mount POOL:a/b DIRECTORY".to_owned());
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

    /// Returns why something is refused to `peer`, and what to do; `own` runs the server.
    pub(crate) fn refusal(&self, peer: Peer, own: Option<Peer>) -> String {
        let uid = peer.uid;
        let owner = match own {
            Some(own) if own.uid != 0 => format!("root or user {}, who runs the server,", own.uid),
            _ => "root".to_owned(),
        };
        match self {
            // Nobody refuses him.
            Role::Administrator => format!("user {uid} may do all here"),
            Role::Mounter(_) => format!(
                "user {uid} is a mounter here: he may mount what [[mounter]] names for him, and \
                 ask for the status: ask {owner} for more"
            ),
            Role::Reader => format!(
                "user {uid} is a reader here: he may ask for the status, and for nothing else: ask \
                 {owner} for more"
            ),
            Role::Nobody => format!(
                "user {uid} may ask nothing here: ask {owner} for a [[reader]] or [[mounter]] in \
                 the server's configuration (then `holdfast reload POOL`)"
            ),
        }
    }

    /// RO3: returns what is told of a server, whose status is `status`, to somebody of this role
    /// whose own mounts are `mounts`: he knows where they are.
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

/// Returns what of a value has no names; `key` is what it is called.
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

    fn roles() -> Roles {
        let roles = Roles::default();
        let mountable = Mountable {
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
        assert_eq!(roles.of(peer(1002), peer(1000)), Role::Nobody);
        assert_eq!(roles.of(peer(1000), peer(1000)), Role::Administrator);
    }

    /// Goal: a number that the kernel says of many users is nobody's, whatever was given to it. Who
    /// runs a server as that user is its administrator only where the number is one user's.
    #[test]
    fn a_number_that_stands_for_many_users_has_no_role() {
        let roles = Roles::default();
        let many = [65_534, u32::MAX];
        roles.set(vec![Grant { uids: many.to_vec(), mounts: None }]);
        for uid in many {
            for own in [0, 1000, u32::MAX] {
                assert_eq!(roles.of(peer(uid), peer(own)), Role::Nobody, "{uid} of {own}");
            }
            assert_eq!(roles.of(peer(0), peer(uid)), Role::Administrator);
        }
    }

    /// Goal: a mounter mounts what is named, there or below, and nothing else (RO2).
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

    /// Goal: no text of a status reaches a reader but words that name nothing (RO3).
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
        let told = Role::Reader.told(&status, Vec::new());
        assert!(!told.to_string().contains("secret") && !told.to_string().contains("47"), "{told}");
        assert_eq!(told["pool"]["members"][0]["state"], "online");
        assert_eq!(told["pool"]["members"][0]["read_errors"], 2);
        assert_eq!(told["pool"]["space"]["used_bytes"], 5);
        assert_eq!(told["pool"]["full"]["heaviest"][0]["unique_bytes"], 9);
        assert_eq!((&told["server"]["pid"], &told["pool"]["health"]), (&json!(7), &json!("ok")));
        let mut failed = status;
        failed["pool"]["health"] = json!("/secret failed");
        let told = Role::Reader.told(&failed, Vec::new()).to_string();
        assert!(!told.contains("secret") && told.contains("ask an administrator"), "{told}");
    }
}
