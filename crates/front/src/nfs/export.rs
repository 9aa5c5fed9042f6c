//! Exports: access rules, and the mapping of users.
//!
//! Every request is checked, not only MOUNT: a handle grants no access.

use std::any::Any;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use engine::api::{
    Attr, Caller, FileHandle, FileKind, FileSystem, FilesetUuid, FsError, FsResult, Ino,
};

use super::handle::{ExportId, HandleKey};
use super::rpc::Credentials;
use super::turns::ThreadPermits;
use crate::watch::AccessPoint;

/// Default user and group for squashed users (`nobody`, `nogroup` on Linux).
const NOBODY: u32 = 65_534;
/// An invalid id. Linux takes it for "unchanged" or for an unmapped user.
const NO_ID: u32 = u32::MAX;
/// Ports below this can be used only by a machine's superuser.
const SECURE_PORTS_END: u16 = 1024;
/// Most parent directories visited to reach the exported directory, as in a path of `PATH_MAX`.
const ASCENT_MAX: usize = 2048;
const NAME_BYTES_MAX: usize = 1024;

/// A malformed rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}: {cause}")]
pub struct RuleError {
    text: String,
    cause: String,
}

impl RuleError {
    fn new(text: &str, cause: impl Into<String>) -> RuleError {
        RuleError { text: text.to_owned(), cause: cause.into() }
    }
}

/// A range of addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Returns whether `address` is in the network.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        // A dual-stack socket reports IPv4 clients as IPv6 addresses.
        let shift = u32::from(self.bits);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(32 - shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(128 - shift).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// Returns the loopback networks.
    #[must_use]
    pub fn loopback() -> Vec<Network> {
        let v4 = Network { address: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), bits: 8 };
        let v6 = Network { address: IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), bits: 128 };
        vec![v4, v6]
    }
}

impl FromStr for Network {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Network, RuleError> {
        let wrong = || RuleError::new(text, "no network: write it as 10.0.0.0/8 or fd00::/8");
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(bits_max), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > bits_max {
            return Err(wrong());
        }
        Ok(Network { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Which client users are mapped to the `nobody` user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squash {
    /// None, the client's root is root here.
    None,
    /// Root.
    Root,
    /// All.
    All,
}

/// The rules of one export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRules {
    /// Name for MOUNT, an absolute path.
    pub name: String,
    /// Name of the exported fileset, or `None` for the server's default.
    pub fileset: Option<String>,
    /// Exported directory within the fileset, empty for all of it.
    pub directory: Vec<u8>,
    /// Networks of admitted clients.
    pub networks: Vec<Network>,
    /// Whether changes are allowed.
    pub is_writable: bool,
    /// Users mapped to `nobody`.
    pub squash: Squash,
    /// User and group ids of `nobody`.
    pub nobody: (u32, u32),
    /// Requires a reserved source port. Without it any user of a client can claim any identity.
    pub needs_secure_port: bool,
    /// Answers changes of names and attributes before they are durable, so a crash may lose them.
    /// WRITE and COMMIT stay safe.
    pub is_async: bool,
}

impl ExportRules {
    /// Most networks of one export.
    pub const NETWORKS_MAX: usize = 64;

    /// Returns a read-only export for this machine alone.
    #[must_use]
    pub fn new(name: &str) -> ExportRules {
        ExportRules {
            name: name.to_owned(),
            fileset: None,
            directory: Vec::new(),
            networks: Network::loopback(),
            is_writable: false,
            squash: Squash::Root,
            nobody: (NOBODY, NOBODY),
            needs_secure_port: true,
            is_async: false,
        }
    }

    fn is_of_directory(&self) -> bool {
        self.directory.iter().any(|&byte| byte != b'/')
    }

    fn apply(&mut self, option: &str, is_first_network: &mut bool) -> Result<(), RuleError> {
        let (word, value) = option.split_once('=').unwrap_or((option, ""));
        match (word, value) {
            ("rw", "") => self.is_writable = true,
            ("ro", "") => self.is_writable = false,
            ("secure", "") => self.needs_secure_port = true,
            ("insecure", "") => self.needs_secure_port = false,
            ("sync", "") => self.is_async = false,
            ("async", "") => self.is_async = true,
            ("squash", "none") => self.squash = Squash::None,
            ("squash", "root") => self.squash = Squash::Root,
            ("squash", "all") => self.squash = Squash::All,
            ("anon", ids) => {
                let ids = ids
                    .split_once(':')
                    .and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
                self.nobody = ids.ok_or_else(|| RuleError::new(option, "write it as anon=U:G"))?;
            }
            ("to", network) => {
                if std::mem::take(is_first_network) {
                    self.networks.clear();
                }
                if self.networks.len() == Self::NETWORKS_MAX {
                    let cause = format!("an export has at most {} networks", Self::NETWORKS_MAX);
                    return Err(RuleError::new(option, cause));
                }
                self.networks.push(network.parse()?);
            }
            ("fileset", name) if !name.is_empty() => self.fileset = Some(name.to_owned()),
            ("dir", path) => self.directory = path.as_bytes().to_vec(),
            _ => {
                let cause = "no option of an export: there are rw, ro, to=NETWORK, \
                             squash=none|root|all, anon=U:G, fileset=A/B, dir=PATH, secure, \
                             insecure, sync and async";
                return Err(RuleError::new(option, cause));
            }
        }
        Ok(())
    }
}

impl FromStr for ExportRules {
    type Err = RuleError;

    /// Parses `NAME` or `NAME:OPTION,...`.
    fn from_str(text: &str) -> Result<ExportRules, RuleError> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        if !name.starts_with('/') || name.len() > NAME_BYTES_MAX {
            let cause = "the name of an export is a path from /, as in /home:rw,to=10.0.0.0/8";
            return Err(RuleError::new(text, cause));
        }
        let mut rules = ExportRules::new(trimmed(name));
        let mut is_first_network = true;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            rules.apply(option, &mut is_first_network)?;
        }
        Ok(rules)
    }
}

fn trimmed(path: &str) -> &str {
    match path.trim_end_matches('/') {
        "" => "/",
        path => path,
    }
}

/// An exported directory of a fileset, with its rules.
pub struct Export {
    rules: ExportRules,
    fs: Arc<dyn FileSystem>,
    fileset: FilesetUuid,
    root: FileHandle,
    id: ExportId,
    /// Key that seals handles, or `None` for the server's.
    key: Option<HandleKey>,
    /// Keys of pools that the fileset was in before.
    earlier_keys: Vec<HandleKey>,
    turns: Arc<ThreadPermits>,
    place: Arc<AccessPoint>,
    /// Dropped after the last request of the export.
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

impl Export {
    /// Exports a directory of the main fileset of `fs`. Fails if it does not exist.
    pub fn new(rules: ExportRules, fs: Arc<dyn FileSystem>) -> FsResult<Export> {
        let fileset = fs.main_fileset();
        Export::of(rules, fs, fileset)
    }

    /// Exports a directory of a fileset of `fs`. Fails if it does not exist.
    pub fn of(
        rules: ExportRules,
        fs: Arc<dyn FileSystem>,
        fileset: FilesetUuid,
    ) -> FsResult<Export> {
        let root = find(&*fs, fs.root_of(fileset)?, &rules.directory)?;
        let root = fs.handle_of(&root, fileset);
        // Another name or directory gives another number. So old handles, maybe to files no longer
        // exported, become stale.
        let mut named = [&fileset.0.to_le_bytes()[..], rules.name.as_bytes()].concat();
        if rules.is_of_directory() {
            // Separates the name, which cannot contain this byte.
            named.push(0);
            named.extend(root.ino.0.to_le_bytes());
            named.extend(root.generation.to_le_bytes());
        }
        let hash = HandleKey([0; 16]).hash(&named);
        let id = ExportId(u32::try_from(hash >> 32).expect("32 bits"));
        let place = Arc::new(AccessPoint::new("nfs", rules.name.clone(), &fs, root.ino));
        let turns = Arc::default();
        Ok(Export {
            rules,
            fs,
            fileset,
            root,
            id,
            key: None,
            earlier_keys: Vec::new(),
            turns,
            place,
            _kept: None,
        })
    }

    /// Seals handles by a key of the pool, so that they stay valid when another server opens the
    /// pool.
    #[must_use]
    pub fn sealed_by(self, key: HandleKey) -> Export {
        Export { key: Some(key), ..self }
    }

    /// Also accepts handles sealed by `keys`, those of the fileset's earlier pools.
    #[must_use]
    pub fn believing(self, keys: Vec<HandleKey>) -> Export {
        Export { earlier_keys: keys, ..self }
    }

    /// Shares thread permits with exports in `others` of the same pool: of the same file system or
    /// the same key.
    pub(super) fn beside(self, others: &[Arc<Export>]) -> Export {
        let is_beside = |other: &&Arc<Export>| {
            let is_same_key = self.key.is_some() && self.key == other.key;
            is_same_key || std::ptr::addr_eq(Arc::as_ptr(&self.fs), Arc::as_ptr(&other.fs))
        };
        let found = others.iter().find(is_beside).map(|other| Arc::clone(&other.turns));
        Export { turns: found.unwrap_or_default(), ..self }
    }

    pub(super) fn place(&self) -> &Arc<AccessPoint> {
        &self.place
    }

    pub(super) fn turns(&self) -> &Arc<ThreadPermits> {
        &self.turns
    }

    pub(super) fn key(&self) -> Option<&HandleKey> {
        self.key.as_ref()
    }

    pub(super) fn earlier_keys(&self) -> &[HandleKey] {
        &self.earlier_keys
    }

    /// Drops `kept` after the last request.
    #[must_use]
    pub fn keeping(self, kept: Box<dyn Any + Send + Sync>) -> Export {
        Export { _kept: Some(kept), ..self }
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &ExportRules {
        &self.rules
    }

    pub(super) fn id(&self) -> ExportId {
        self.id
    }

    pub(super) fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// Returns the exported fileset.
    #[must_use]
    pub fn fileset(&self) -> FilesetUuid {
        self.fileset
    }

    pub(super) fn is_root(&self, ino: Ino) -> bool {
        ino == self.root.ino
    }

    /// Refuses a lookup of `..` in a directory that was moved out of the exported one.
    pub(super) fn check_inside(&self, directory: Ino) -> FsResult<()> {
        if !self.rules.is_of_directory() {
            return Ok(());
        }
        let superuser = Caller::root();
        let mut at = self.fs.lookup(&superuser, directory, b".")?.ino;
        for _ in 0..ASCENT_MAX {
            if at == self.root.ino {
                break;
            }
            let above = self.fs.lookup(&superuser, at, b"..");
            self.fs.forget(at, 1);
            let above = above?.ino;
            if std::mem::replace(&mut at, above) == above {
                break;
            }
        }
        self.fs.forget(at, 1);
        if at == self.root.ino { Ok(()) } else { Err(FsError::Stale) }
    }

    pub(super) fn handle_of(&self, attr: &Attr) -> FileHandle {
        self.fs.handle_of(attr, self.fileset)
    }

    pub(super) fn find(&self, below: &[u8]) -> FsResult<FileHandle> {
        let root = self.fs.resolve(&Caller::root(), self.root)?;
        let found = find(&*self.fs, root.ino, below);
        self.fs.forget(root.ino, 1);
        found.map(|attr| self.handle_of(&attr))
    }

    pub(super) fn admits(&self, peer: SocketAddr) -> bool {
        self.is_for(peer.ip()) && (!self.rules.needs_secure_port || peer.port() < SECURE_PORTS_END)
    }

    pub(super) fn is_for(&self, address: IpAddr) -> bool {
        self.rules.networks.iter().any(|network| network.holds(address))
    }

    /// Returns the mapped caller, or `None` for unsupported credentials.
    pub(super) fn caller(&self, credentials: &Credentials) -> Option<Caller> {
        let (nobody, nogroup) = self.rules.nobody;
        match credentials {
            Credentials::Other => None,
            Credentials::Sys { uid, gid, groups } if self.rules.squash != Squash::All => {
                let is_squashed = self.rules.squash == Squash::Root;
                let is_nobody = |id| id == NO_ID || is_squashed && id == 0;
                let user = |uid| if is_nobody(uid) { nobody } else { uid };
                let group = |gid| if is_nobody(gid) { nogroup } else { gid };
                let groups = groups.iter().map(|&gid| group(gid)).collect();
                Some(Caller::checked(user(*uid), group(*gid), groups))
            }
            Credentials::None | Credentials::Sys { .. } => {
                Some(Caller::checked(nobody, nogroup, Vec::new()))
            }
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("rules", &self.rules).field("id", &self.id).finish()
    }
}

/// Returns the directory at `path` below `from`, without a reference.
fn find(fs: &dyn FileSystem, from: Ino, path: &[u8]) -> FsResult<Attr> {
    let mut at = fs.lookup(&Caller::root(), from, b".")?;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let is_climbing = name == b"..";
        let next = if is_climbing {
            Err(FsError::NotFound)
        } else {
            fs.lookup(&Caller::root(), at.ino, name)
        };
        fs.forget(at.ino, 1);
        at = next?;
    }
    fs.forget(at.ino, 1);
    if at.kind == FileKind::Directory { Ok(at) } else { Err(FsError::NotDirectory) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_holds_the_addresses_that_begin_with_its_bits() {
        for (network, address, is_in) in [
            ("10.0.0.0/8", "10.255.3.4", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
        ] {
            let parsed: Network = network.parse().expect("it is one");
            let address = address.parse().expect("it is one");
            assert_eq!(parsed.holds(address), is_in, "{address} in {network}");
        }
        for network in ["10.0.0.0/33", "10.0.0/8", "", "::/129", "10.0.0.0/", "a/8"] {
            assert!(network.parse::<Network>().is_err(), "{network}");
        }
    }

    #[test]
    fn rules_are_read_and_nonsense_is_refused() {
        let rules: ExportRules = "/a/".parse().expect("it is one");
        assert_eq!(rules, ExportRules::new("/a"));
        let text = "/a:rw,to=10.0.0.0/8,to=::1,squash=all,anon=7:8,dir=/x/y,insecure,async";
        let rules: ExportRules = text.parse().expect("it is one");
        assert!(rules.is_writable && rules.is_async && !rules.needs_secure_port);
        assert_eq!(rules.networks.len(), 2);
        assert_eq!((rules.squash, rules.nobody), (Squash::All, (7, 8)));
        assert_eq!(rules.directory, b"/x/y");
        for text in ["a", "", "/a:rx", "/a:squash=some", "/a:to=", "/a:anon=5", "/a:rw=1"] {
            assert!(text.parse::<ExportRules>().is_err(), "{text}");
        }
    }
}
