//! Finds pools by name, and lists those that can be found.
//!
//! The label of a pool holds its name. A name is looked for among the pools of running servers and
//! in [`default_places`]; a command that gets one goes on with the path of the pool's device. An
//! argument that exists as a path is a path, and `./x` is always one.
//!
//! # Invariants
//!
//! - PN1: A name that two pools have, or that is a path too, opens neither. Without an open
//!   pool of the name, `/dev` is searched too; otherwise not, because disks may be in standby.
//! - PN2: Of several copies of a pool, only one has the name: the open one, or the one that alone
//!   lies where its labels say, if no other is newer. In doubt none has it. The number of writes
//!   proves nothing: a copy may have been written more often than the original.
//! - PN3: A device that does not answer may be the original, or another pool of the name. So its
//!   silence is a doubt too.
//! - PN4: A server has the device at a path only while the label there has the id of the server's
//!   pool, or cannot be read. The device that the server opened may have moved, and another pool
//!   may be at its path.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use control::UsageError;
use format::superblock::{name_in, verify_pool_name};
use front::fuse::mountpoint;
use serde::Serialize;
use serde_json::Value;

use crate::backend::{Backend, PoolScan, ScannedDevice};
use crate::hub::config::Config;
use crate::run_directory;
use crate::status::{self, DiscoveredServer};

/// Replaces the default places of a scan: folders and devices, with colons between.
const PLACES_VARIABLE: &str = "HOLDFAST_SCAN";
const DEVICES: &str = "/dev";
const CONFIG: &str = "/etc/holdfast/holdfast.toml";

/// A pool, or a copy of one, of which devices were found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundPool {
    /// Name, if the label holds a valid one.
    pub name: Option<String>,
    /// The pool's id, 32 hexadecimal digits.
    pub id: String,
    /// `mounted`, `served`, `closed`, `not closed`, or `incomplete`.
    pub state: &'static str,
    /// Whether another set of devices has the same id, and has the name.
    pub is_copy: bool,
    /// Sum of the devices that belong to the pool.
    pub size_bytes: u64,
    /// Number of devices that belong to the pool, without spares.
    pub device_count: usize,
    /// The devices found.
    pub devices: Vec<PathBuf>,
    #[serde(skip)]
    is_original: bool,
}

impl FoundPool {
    fn is_called(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name)
    }

    /// Returns a device of the pool, for messages and to open it.
    pub fn path(&self) -> &Path {
        self.devices.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

/// An argument with the path of a device in place of the pool's name.
#[derive(Debug, PartialEq, Eq)]
pub struct ResolvedName {
    /// The name that was given.
    pub name: String,
    /// `PATH`, `PATH:a/b` or `PATH:a/b@monday`.
    pub argument: PathBuf,
}

/// Splits an argument into what may be the name of a pool and the rest. `None` for a path.
fn split(argument: &Path) -> Option<(&str, &[u8])> {
    let bytes = argument.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|&byte| byte == b':').unwrap_or(bytes.len());
    let (name, rest) = bytes.split_at(end);
    let name = std::str::from_utf8(name).ok()?;
    verify_pool_name(name).ok().map(|()| (name, rest))
}

/// Resolves the name of a pool in `argument`. `None` if it is a path.
///
/// # Errors
///
/// No pool has the name, or several have it, or it is a path too (PN1).
pub fn resolve(argument: &Path, backend: &dyn Backend) -> anyhow::Result<Option<ResolvedName>> {
    let Some((name, rest)) = split(argument) else { return Ok(None) };
    if let Some(path) = [argument, Path::new(name)].into_iter().find(|path| is_there(path)) {
        let found = scanned(&default_folders(), &[], backend).devices;
        // Which set is a copy is known when the open ones are.
        let is_other = |it: &FoundPool| it.is_called(name) && !is_of(it, path, &[]);
        // Servers are asked only where their mounts matter, because one that is stopped is slow.
        if merged(&[], found.clone()).iter().any(is_other) {
            let servers = status::all()?;
            let all = merged(&servers, found);
            refuse_path(name, path, &all, |it| is_of(it, path, &servers))?;
        }
        return Ok(None);
    }
    let servers = status::all()?;
    let mut scan = scanned(&default_folders(), &servers, backend);
    let mut all = merged(&servers, std::mem::take(&mut scan.devices));
    // Disks may be in standby, so they are read only if no open pool has the name.
    if !all.iter().any(|it| it.is_called(name) && it.is_served()) {
        scan = scanned(&default_places(), &servers, backend);
        all = merged(&servers, std::mem::take(&mut scan.devices));
    }
    let found = choose(name, &all)?;
    if let Some(unread) = scan.unread.first().filter(|_| !found.is_served()) {
        anyhow::bail!(
            "{}: it does not answer, and may be of a pool called {name}: name the pool by its \
             path, {}",
            unread.display(),
            found.path().display()
        );
    }
    let mut bytes = found.path().as_os_str().as_bytes().to_vec();
    bytes.extend(rest);
    Ok(Some(ResolvedName { name: name.to_owned(), argument: OsString::from_vec(bytes).into() }))
}

/// Whether something has this path, even if it cannot be reached: a dead mount, or a link to a
/// device that is gone.
fn is_there(path: &Path) -> bool {
    use std::io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    let is_none =
        |error: &std::io::Error| matches!(error.kind(), NotFound | NotADirectory | InvalidFilename);
    std::fs::symlink_metadata(path).map_or_else(|error| !is_none(&error), |_| true)
}

/// Whether `path` is a device of the pool, or in a mount of it.
fn is_of(pool: &FoundPool, path: &Path, servers: &[DiscoveredServer]) -> bool {
    let Ok(path) = std::fs::canonicalize(path) else { return false };
    let is_mount = |server: &DiscoveredServer| {
        server.may_have(&pool.id)
            && pool.devices.iter().any(|it| is_device_of(server, it))
            && server.mounts().iter().any(|(directory, _)| path.starts_with(directory))
    };
    pool.devices.contains(&path) || servers.iter().any(is_mount)
}

/// Refuses a path that is the name of another pool too (PN1).
fn refuse_path(
    name: &str,
    path: &Path,
    all: &[FoundPool],
    is_same: impl Fn(&FoundPool) -> bool,
) -> anyhow::Result<()> {
    let is_other = |it: &&FoundPool| it.is_called(name) && !it.is_copy && !is_same(it);
    let Some(other) = all.iter().find(is_other) else { return Ok(()) };
    let (path, id, other) = (path.display(), &other.id, other.path().display());
    let message = format!(
        "{path} is a path, and the name of the pool {id} on {other} too: write ./{path} for the \
         path, or {other} for the pool. Nothing was changed"
    );
    Err(UsageError::new(message).into())
}

/// Returns the only pool of this name (PN1, PN2).
fn choose<'a>(name: &str, all: &'a [FoundPool]) -> anyhow::Result<&'a FoundPool> {
    let called: Vec<&FoundPool> =
        all.iter().filter(|it| it.is_called(name) && !it.is_copy).collect();
    match called.as_slice() {
        [] => anyhow::bail!(
            "{name}: there is no such path, and no pool of that name was found: find it with \
             `holdfast pool list -d FOLDER`, and use the path that it shows"
        ),
        [only] => {
            let is_copy = |it: &&FoundPool| it.is_copy && it.id == only.id;
            match all.iter().find(is_copy).filter(|_| !only.is_original && !only.is_served()) {
                Some(copy) => Err(two(name, only, copy)),
                None => Ok(only),
            }
        }
        [one, other, ..] => Err(two(name, one, other)),
    }
}

fn two(name: &str, one: &FoundPool, other: &FoundPool) -> anyhow::Error {
    let shown = |it: &FoundPool| format!("{} on {}", it.id, it.path().display());
    if one.id == other.id {
        let (id, one, other) = (&one.id, one.path().display(), other.path().display());
        return UsageError::new(format!(
            "{name} is on two copies of one pool, {id}: {one} and {other}. Which one is the \
             original is not known: name one by its path. Nothing was changed"
        ))
        .into();
    }
    let message = format!(
        "two pools are called {name}: {} and {}. Name one by its path, or give it another name: \
         `holdfast pool rename {} NEW`. Nothing was changed",
        shown(one),
        shown(other),
        other.path().display()
    );
    UsageError::new(message).into()
}

/// Refuses `name` for another pool than `id` if a pool of that name is or was open, or lies in the
/// current folder or beside a configured pool. One server could not serve both.
pub fn refuse_taken(name: &str, id: &str, backend: &dyn Backend) -> anyhow::Result<()> {
    let servers = status::all()?;
    let all = merged(&servers, scanned(&default_folders(), &servers, backend).devices);
    let is_taken = |it: &&FoundPool| it.is_called(name) && !it.is_copy && it.id != id;
    let Some(other) = all.iter().find(is_taken) else { return Ok(()) };
    anyhow::bail!(
        "the pool {} on {} is called {name} already, so {id} keeps its name: choose another",
        other.id,
        other.path().display()
    )
}

/// Returns the server of the pool on the device `path`, or of the mount on exactly `path` (PN4).
/// Waits for a server that is closing its pool, as [`status::find`] does.
///
/// # Errors
///
/// As [`verified`].
pub fn server_at(path: &Path, backend: &dyn Backend) -> anyhow::Result<Option<DiscoveredServer>> {
    let socket = status::socket_to(path)?;
    let is_meant =
        |it: &DiscoveredServer| it.is_on(path) || it.is_called(&socket) || it.has_member(path);
    status::find(path)?.filter(is_meant).map_or(Ok(None), |found| verified(found, path, backend))
}

/// Returns `found`, the server that was found by `path`. If `path` is a device with the label of
/// another pool (PN4), returns the server of that other pool, or `None` if that pool has no server.
///
/// # Errors
///
/// The server opened its pool by this path, and another pool is there now: name the served pool by
/// its mount point.
pub fn verified(
    found: DiscoveredServer,
    path: &Path,
    backend: &dyn Backend,
) -> anyhow::Result<Option<DiscoveredServer>> {
    let path = &mountpoint::absolute(path).with_context(|| format!("{}", path.display()))?;
    let socket = status::socket_to(path)?;
    let has_device = |it: &DiscoveredServer| it.is_called(&socket) || it.has_member(path);
    let is_known = found.is_on(path) || found.pool_id().is_empty() || !has_device(&found);
    if is_known || holds_disk(&found, path) {
        return Ok(Some(found));
    }
    let label = backend.scan(&[], &[path.to_owned()]).devices.pop().map(|it| it.label);
    let Some(id) = label.map(|it| it.pool_id.to_string()).filter(|id| id != found.pool_id()) else {
        return Ok(Some(found));
    };
    if let Some(own) = status::all()?.into_iter().find(|it| it.pool_id() == id && has_device(it)) {
        return Ok(Some(own));
    }
    if !found.is_called(&socket) {
        // A member that is absent from the served pool had this path.
        return Ok(None);
    }
    let (shown, own) = (path.display(), found.pool_name().unwrap_or(found.pool_id()));
    let process = found.pid().map_or_else(String::new, |pid| format!(" (process {pid})"));
    let message = format!(
        "{shown}: the pool {id} is there now, but a server{process} opened this path as the pool \
         {own} and still serves it. Name the served pool by its mount point; the pool on {shown} \
         can be opened when that server has ended. Nothing was changed"
    );
    Err(UsageError::new(message).into())
}

/// Whether `path` is a disk that the server has open. The kernel gives its path to no other disk,
/// and reading it would wake one in standby, or wait for one that hangs.
fn holds_disk(found: &DiscoveredServer, path: &Path) -> bool {
    let is_disk = std::fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device());
    let mut members = found.status["pool"]["members"].as_array().into_iter().flatten().peekable();
    let is_only = members.peek().is_none();
    let is_online =
        |member: &Value| member["path"].as_str() == path.to_str() && member["state"] == "online";
    is_disk && (is_only || members.any(is_online))
}

/// Lists the pools in `places`, or in the default places if there are none.
pub fn list(places: &[PathBuf], backend: &dyn Backend) -> anyhow::Result<Vec<FoundPool>> {
    let servers = status::all()?;
    if !places.is_empty() {
        for place in places {
            status::check_way(place)?;
            place.metadata().with_context(|| {
                format!("{}: check the path of the folder or device", place.display())
            })?;
        }
        return Ok(merged(&servers, backend.scan(places, &[]).devices));
    }
    Ok(merged(&servers, scanned(&default_places(), &servers, backend).devices))
}

fn default_folders() -> Vec<PathBuf> {
    if let Some(places) = std::env::var_os(PLACES_VARIABLE) {
        return std::env::split_paths(&places).collect();
    }
    let config = Config::read(Path::new(CONFIG)).map(|config| config.pools).unwrap_or_default();
    let folders = config.iter().filter_map(|pool| pool.path.parent().map(Path::to_owned));
    std::iter::once(PathBuf::from(".")).chain(folders).collect()
}

/// Returns the places of a scan: those in `HOLDFAST_SCAN`, or else the current folder, the folders
/// of the configured pools, and the block devices.
fn default_places() -> Vec<PathBuf> {
    let is_chosen = std::env::var_os(PLACES_VARIABLE).is_some();
    let devices = (!is_chosen).then(|| PathBuf::from(DEVICES));
    default_folders().into_iter().chain(devices).collect()
}

/// Scans `places`, and the devices that servers have or had open.
fn scanned(places: &[PathBuf], servers: &[DiscoveredServer], backend: &dyn Backend) -> PoolScan {
    let known = run_directory::named_pools().into_iter();
    let open = servers.iter().flat_map(DiscoveredServer::devices);
    // A path below a server that has stopped would block, so the way is checked before the path.
    let is_reachable = |place: &&PathBuf| status::check_way(place).is_ok() && place.exists();
    let places: Vec<PathBuf> = places.iter().filter(is_reachable).cloned().collect();
    backend.scan(&places, &known.chain(open).collect::<Vec<PathBuf>>())
}

fn is_device_of(server: &DiscoveredServer, path: &Path) -> bool {
    server.devices().iter().any(|device| device == path)
}

impl FoundPool {
    fn is_served(&self) -> bool {
        matches!(self.state, "mounted" | "served")
    }
}

/// Returns the pools of `found`, with the states that servers report.
fn merged(servers: &[DiscoveredServer], found: Vec<ScannedDevice>) -> Vec<FoundPool> {
    // Only of its own pool (PN4), if the server has told its id.
    let server_of = |id: &str, path: &Path| {
        servers.iter().find(|server| server.may_have(id) && is_device_of(server, path))
    };
    let mut pools = pools_of(found, &|device| {
        let server = server_of(&device.label.pool_id.to_string(), &device.path)?;
        Some(if server.mounts().is_empty() { "served" } else { "mounted" })
    });
    // A server is found by the device by which it has opened the pool.
    for pool in &mut pools {
        let server = pool.devices.iter().find_map(|path| server_of(&pool.id, path));
        let own = server.map(DiscoveredServer::pool);
        let is_own = |path: &PathBuf| own.is_some_and(|own| path == Path::new(own));
        pool.devices.sort_by_key(|path| !is_own(path));
    }
    pools
}

/// Groups devices to pools. Of sets of devices with one id, the first is the likeliest original,
/// and the others are copies (PN2).
fn pools_of(
    found: Vec<ScannedDevice>,
    state_of: &dyn Fn(&ScannedDevice) -> Option<&'static str>,
) -> Vec<FoundPool> {
    let mut by_id: BTreeMap<String, Vec<ScannedDevice>> = BTreeMap::new();
    for device in found {
        by_id.entry(device.label.pool_id.to_string()).or_default().push(device);
    }
    let mut pools = Vec::new();
    for (id, mut devices) in by_id {
        // The first set gets the best device for each member.
        devices.sort_by_cached_key(|it| {
            let newest = std::cmp::Reverse(it.label.sequence);
            let created = std::fs::metadata(&it.path).and_then(|stat| stat.created()).ok();
            (state_of(it).is_none(), !is_home(it), newest, created, it.path.clone())
        });
        let mut sets: Vec<Vec<ScannedDevice>> = Vec::new();
        for device in devices {
            let member = device.label.device_id();
            let folder = device.path.parent();
            let lacks =
                |set: &&mut Vec<ScannedDevice>| set.iter().all(|it| it.label.device_id() != member);
            let is_near =
                |set: &Vec<ScannedDevice>| set.iter().any(|it| it.path.parent() == folder);
            match sets.iter_mut().filter(lacks).max_by_key(|set| is_near(set)) {
                Some(set) => set.push(device),
                None => sets.push(vec![device]),
            }
        }
        let newest = |set: &[ScannedDevice]| set.iter().map(|it| it.label.sequence).max();
        let is_at_home = |set: &[ScannedDevice]| set.iter().all(is_home);
        let is_original = sets.split_first().is_some_and(|(first, copies)| {
            let is_lesser =
                |copy: &Vec<ScannedDevice>| !is_at_home(copy) && newest(copy) <= newest(first);
            is_at_home(first) && copies.iter().all(is_lesser)
        });
        let set_of = |(at, set): (usize, Vec<ScannedDevice>)| {
            let pool = pool_of(&id, set, state_of)?;
            Some(FoundPool { is_copy: at > 0, is_original: at == 0 && is_original, ..pool })
        };
        pools.extend(sets.into_iter().enumerate().filter_map(set_of));
    }
    pools.sort_by(|a, b| (&a.name, &a.id, a.is_copy).cmp(&(&b.name, &b.id, b.is_copy)));
    pools
}

fn pool_of(
    id: &str,
    mut set: Vec<ScannedDevice>,
    state_of: &dyn Fn(&ScannedDevice) -> Option<&'static str>,
) -> Option<FoundPool> {
    let is_member = |it: &&ScannedDevice| !it.label.is_of_spare();
    let newest = set.iter().filter(is_member).max_by_key(|it| it.label.sequence);
    let label = newest.or(set.first())?.label.clone();
    // The first device opens the pool, so it is no member that was replaced or has failed.
    let is_online = |it: &ScannedDevice| {
        label.members.iter().any(|member| member.id == it.label.device_id() && member.is_online())
    };
    set.sort_by_key(|it| (!is_online(it), it.label.device_index));
    let members = || label.members.iter().filter(|member| !member.is_gone());
    let lacks = members().any(|it| set.iter().all(|found| found.label.device_id() != it.id));
    let state = match set.iter().find_map(state_of) {
        Some(state) => state,
        None if lacks => "incomplete",
        None if label.is_open => "not closed",
        None => "closed",
    };
    Some(FoundPool {
        name: name_in(&label.label).map(str::to_owned),
        id: id.to_owned(),
        state,
        is_copy: false,
        size_bytes: members().map(|it| it.size_bytes).sum(),
        device_count: members().count(),
        is_original: false,
        devices: set.iter().map(|it| it.path.clone()).collect(),
    })
}

/// Whether a device lies where its label says. The label of a pool on one device has no path.
fn is_home(device: &ScannedDevice) -> bool {
    let ScannedDevice { path, label } = device;
    let own = label.members.iter().find(|member| member.id == label.device_id());
    own.is_none_or(|own| own.path == path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, id: &str, path: &str) -> FoundPool {
        FoundPool {
            name: Some(name.to_owned()),
            id: id.to_owned(),
            state: "closed",
            is_copy: false,
            size_bytes: 0,
            device_count: 1,
            devices: vec![path.into()],
            is_original: true,
        }
    }

    #[test]
    fn an_argument_without_a_slash_before_its_colon_may_be_a_name() {
        for (argument, expected) in [
            ("tank", Some(("tank", ""))),
            ("tank:home", Some(("tank", ":home"))),
            ("tank:a/b@monday", Some(("tank", ":a/b@monday"))),
            ("pool.hf", Some(("pool.hf", ""))),
            ("./tank", None),
            ("/tank:home", None),
            ("a:b:c", None),
            ("mnt@monday", None),
            ("-", None),
            ("", None),
            (":a", None),
        ] {
            let expected = expected.map(|(name, rest)| (name, rest.as_bytes()));
            assert_eq!(split(Path::new(argument)), expected, "{argument}");
        }
    }

    #[test]
    fn a_name_leads_to_one_pool_or_to_none() {
        let copy = FoundPool { is_copy: true, ..pool("tank", "1", "/copy") };
        let all = [pool("tank", "1", "/a"), copy.clone(), pool("data", "2", "/b")];
        assert_eq!(choose("tank", &all).expect("one has it").path(), Path::new("/a"));
        let said = |all: &[FoundPool], name: &str| match choose(name, all) {
            Ok(found) => panic!("{name}: {found:?}"),
            Err(error) => error.to_string(),
        };
        assert!(said(&all, "other").contains("no pool of that name was found"));
        let two = said(&[pool("tank", "1", "/a"), pool("tank", "2", "/b")], "tank");
        assert!(two.contains("1 on /a") && two.contains("2 on /b"), "{two}");
        let moved = FoundPool { is_original: false, ..pool("tank", "1", "/a") };
        let two = said(&[moved.clone(), copy.clone()], "tank");
        assert!(two.contains("two copies of one pool, 1: /a and /copy"), "{two}");
        assert!(choose("tank", std::slice::from_ref(&moved)).is_ok(), "it has no copy");
        let open = FoundPool { state: "mounted", ..moved };
        assert!(choose("tank", &[open, copy]).is_ok(), "the open one has the name");
    }

    #[test]
    fn a_path_wins_unless_another_pool_has_its_name() {
        let copy = FoundPool { is_copy: true, ..pool("tank", "1", "/copy") };
        let all = [pool("tank", "1", "/a"), copy, pool("data", "2", "/b")];
        let refused = |name: &str, own: &str| {
            let is_same = |it: &FoundPool| it.path() == Path::new(own);
            let done = refuse_path(name, Path::new(name), &all, is_same);
            done.map_or_else(|error| error.to_string(), |()| String::new())
        };
        assert_eq!(refused("other", "/other"), "");
        assert_eq!(refused("tank", "/a"), "", "the copy has no name");
        for own in ["/copy", "/other"] {
            let said = refused("tank", own);
            assert!(said.contains("./tank") && said.contains("/a for the pool"), "{said}");
        }
    }
}
