//! Directory of a server's sockets and logs. Only its owner may write to it: another user could
//! impersonate a server, or redirect what the server writes to its log.
//!
//! The directory is closed to other users (0700) until a server with roles runs. Then other users
//! may search it (0755) and use that server's second socket (0666), but no other file.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

const OTHERS_WRITE: u32 = 0o022;
const OTHERS_ANYTHING: u32 = 0o077;
const ENTERED: u32 = 0o755;
const SYSTEM: &str = "/run/holdfast";
/// Ending of the symbolic link that a pool's name is, to its device.
const OF_POOLS: &str = ".pool";
/// Most recorded pools that are looked at.
const RECORDS_MAX: usize = 1 << 12;

/// Returns the run directory, and makes it if missing: `HOLDFAST_RUN_DIR`, or `/run/holdfast` for
/// root, or `holdfast` in `XDG_RUNTIME_DIR`.
pub fn run_directory() -> anyhow::Result<PathBuf> {
    let is_own = std::env::var_os("HOLDFAST_RUN_DIR").is_none();
    let directory = path();
    let made = std::fs::DirBuilder::new().mode(0o700).create(&directory);
    let is_there = |error: &std::io::Error| error.kind() == std::io::ErrorKind::AlreadyExists;
    if let Some(error) = made.err().filter(|error| !is_there(error)) {
        let shown = directory.display();
        return Err(error).with_context(|| {
            format!("cannot make {shown}: set HOLDFAST_RUN_DIR to a directory that can be made")
        });
    }
    check(&directory, rustix::process::geteuid().as_raw(), is_own)?;
    Ok(directory)
}

fn path() -> PathBuf {
    if let Some(chosen) = std::env::var_os("HOLDFAST_RUN_DIR") {
        PathBuf::from(chosen)
    } else if rustix::process::geteuid().is_root() {
        PathBuf::from(SYSTEM)
    } else if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR") {
        PathBuf::from(runtime).join("holdfast")
    } else {
        let user = rustix::process::geteuid().as_raw();
        std::env::temp_dir().join(format!("holdfast-{user}"))
    }
}

/// Returns the run directory in which to look for servers. If its parent is gone, as
/// `/run/user/UID` after logout, the directory is not made, because no server can be in it.
fn to_ask_in() -> anyhow::Result<PathBuf> {
    let directory = path();
    let is_gone = directory.parent().is_some_and(|parent| {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        parent.metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    });
    if is_gone { Ok(directory) } else { run_directory() }
}

/// Returns the directories in which to look for servers: this user's, and root's if other users may
/// search it. Only the owner of a directory can put a server there.
pub(crate) fn to_ask() -> anyhow::Result<Vec<PathBuf>> {
    let is_of_root = |directory: &Path| {
        let is_root = rustix::process::geteuid().is_root();
        !is_root && directory.exists() && check(directory, 0, false).is_ok()
    };
    match std::env::var_os("HOLDFAST_RUN_DIR").map(PathBuf::from) {
        Some(chosen) if is_of_root(&chosen) => Ok(vec![chosen]),
        Some(_) => Ok(vec![to_ask_in()?]),
        None => {
            let system = PathBuf::from(SYSTEM);
            let is_open = is_of_root(&system) && std::fs::read_dir(&system).is_ok();
            Ok([to_ask_in()?].into_iter().chain(is_open.then_some(system)).collect())
        }
    }
}

/// Records in this user's run directory that the pool `name` is at `pool`. Unlike a scan, the
/// record leads to a mount's pool when its server is gone.
pub fn record_name(name: &str, pool: &Path) -> anyhow::Result<()> {
    let directory = run_directory()?;
    let new = directory.join(format!("{name}-{}.new", std::process::id()));
    std::os::unix::fs::symlink(pool, &new)?;
    Ok(std::fs::rename(&new, directory.join(format!("{name}{OF_POOLS}")))?)
}

/// Returns the directories of [`to_ask`], and makes none.
fn existing() -> Vec<PathBuf> {
    let is_there = path().is_dir() || Path::new(SYSTEM).is_dir();
    if is_there { to_ask().unwrap_or_default() } else { Vec::new() }
}

/// Returns the recorded paths of the pool `name`. Nothing is looked up at a path, because a dead
/// mount could block.
pub(crate) fn pools_named(name: &str) -> Vec<PathBuf> {
    let directories = existing().into_iter();
    let record = |directory: PathBuf| directory.join(format!("{name}{OF_POOLS}"));
    directories.filter_map(|it| std::fs::read_link(record(it)).ok()).collect()
}

/// Returns the recorded paths of all pools.
pub(crate) fn named_pools() -> Vec<PathBuf> {
    let directories = existing().into_iter();
    let entries = directories.filter_map(|it| std::fs::read_dir(it).ok()).flatten().flatten();
    let records = entries.filter(|it| it.file_name().as_bytes().ends_with(OF_POOLS.as_bytes()));
    records.take(RECORDS_MAX).filter_map(|it| std::fs::read_link(it.path()).ok()).collect()
}

/// Whether this user is an administrator of the servers in a directory.
pub(crate) fn is_own(directory: &Path) -> bool {
    let user = rustix::process::geteuid();
    let is_owner = |it: std::fs::Metadata| it.uid() == user.as_raw();
    user.is_root() || std::fs::symlink_metadata(directory).is_ok_and(is_owner)
}

/// Opens `socket` to other users, or closes it. Before it is opened, the logs beside it are closed
/// to other users and the directory becomes searchable.
pub(crate) fn set_socket(socket: &Path, is_open: bool) -> anyhow::Result<()> {
    let shown = socket.display();
    let set = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
            .with_context(|| format!("cannot set who may use {}", path.display()))
    };
    if !is_open {
        return set(socket, 0o600);
    }
    let directory = socket.parent().with_context(|| format!("{shown} is in no directory"))?;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        // A server without roles leaves its logs readable, so close them. Other files keep their
        // mode, because they may belong to other programs.
        let found = std::fs::symlink_metadata(&path);
        let is_open = found.is_ok_and(|it| it.is_file() && it.mode() & OTHERS_ANYTHING != 0);
        // Another server may have removed the log.
        if is_open
            && is_log(&path)
            && let Err(error) = set(&path, 0o600)
            && path.exists()
        {
            return Err(error);
        }
    }
    if std::fs::metadata(directory)?.mode() & OTHERS_ANYTHING == 0 {
        set(directory, ENTERED)?;
    }
    set(socket, 0o666)
}

/// Whether the name is that of a server's log or of its recorded close error. The server's key, at
/// the front of the name, ends in a dash and 16 digits.
fn is_log(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let key = name.as_deref().and_then(|name| {
        [".log", ".log.old", ".failed"].iter().find_map(|what| name.strip_suffix(what))
    });
    let digits = key.and_then(|key| key.rsplit_once('-')).map(|(_, digits)| digits);
    digits.is_some_and(|it| it.len() == 16 && it.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Refuses a directory that another user owns or may write to, and a symbolic link. The default
/// directory (`is_own`) gets mode 0700 unless it has 0755. A directory chosen by the user keeps its
/// mode.
fn check(directory: &Path, user: u32, is_own: bool) -> anyhow::Result<()> {
    let shown = directory.display();
    let found = std::fs::symlink_metadata(directory)
        .with_context(|| format!("cannot look at the run directory {shown}"))?;
    // In a world-writable parent, another user may have made the directory.
    anyhow::ensure!(
        found.uid() == user,
        "{shown} belongs to another user: remove it, or set XDG_RUNTIME_DIR"
    );
    anyhow::ensure!(
        found.is_dir(),
        "{shown} is a link or a file: name the directory itself, or remove this"
    );
    anyhow::ensure!(
        found.mode() & OTHERS_WRITE == 0,
        "others may write to {shown}: look what is in it, then chmod 700 {shown}"
    );
    let is_as_made = [0, ENTERED & OTHERS_ANYTHING].contains(&(found.mode() & OTHERS_ANYTHING));
    if is_own && !is_as_made {
        // Changing the mode by path is safe, because the directory belongs to this user and is no
        // link.
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700))
            .with_context(|| format!("cannot close {shown} to others"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_others_may_use_opens_its_directory_and_no_log() {
        let directory = with_mode("socket", 0o700);
        let (socket, log) = (directory.join("a.sock"), directory.join("a-0123456789abcdef.log"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("it is new");
        std::fs::write(&log, "secret").expect("there is room");
        let foreign = directory.join("utmp");
        std::fs::write(&foreign, "for all").expect("there is room");
        std::fs::set_permissions(&foreign, PermissionsExt::from_mode(0o644)).expect("it is ours");
        std::fs::set_permissions(&log, PermissionsExt::from_mode(0o644)).expect("it is ours");
        set_socket(&socket, false).expect("it is ours");
        assert_eq!([&directory, &socket, &log].map(|it| mode_of(it)), [0o700, 0o600, 0o644]);
        set_socket(&socket, true).expect("it is ours");
        assert_eq!([&directory, &socket, &log].map(|it| mode_of(it)), [0o755, 0o666, 0o600]);
        std::fs::set_permissions(&log, PermissionsExt::from_mode(0o644)).expect("it is ours");
        set_socket(&socket, true).expect("it is ours");
        assert_eq!([&directory, &log].map(|it| mode_of(it)), [0o755, 0o600]);
        assert_eq!(mode_of(&foreign), 0o644, "it is not a server's");
        std::fs::remove_dir_all(&directory).expect("it is ours");
    }

    fn with_mode(name: &str, mode: u32) -> PathBuf {
        let user = std::process::id();
        let directory = std::env::temp_dir().join(format!("holdfast-run-test-{user}-{name}"));
        std::fs::create_dir(&directory).expect("it is new");
        let permissions = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&directory, permissions).expect("it is ours");
        directory
    }

    fn mode_of(directory: &Path) -> u32 {
        std::fs::metadata(directory).expect("it is there").mode() & 0o7777
    }

    /// Goal: a run directory that another user could replace or write to is refused.
    #[test]
    fn a_run_directory_that_others_may_turn_or_write_to_is_refused() {
        let user = rustix::process::geteuid().as_raw();
        let said = |directory: &Path, user: u32, is_own: bool| {
            check(directory, user, is_own)
                .map_or_else(|error| error.to_string(), |()| String::new())
        };
        let closed = with_mode("closed", 0o700);
        let link = closed.join("link");
        std::os::unix::fs::symlink(&closed, &link).expect("there is room");
        let file = closed.join("file");
        std::fs::write(&file, "").expect("there is room");
        assert_eq!(said(&closed, user, true), "");
        assert!(said(&closed, user + 1, true).contains("belongs to another user"));
        assert!(said(&link, user, false).contains("is a link"));
        assert!(said(&file, user, false).contains("is a link or a file"));
        for (name, mode) in [("group", 0o770), ("others", 0o702), ("all", 0o1777)] {
            let directory = with_mode(name, mode);
            for is_own in [false, true] {
                assert!(said(&directory, user, is_own).contains("others may write"), "{name}");
            }
            assert_eq!(mode_of(&directory), mode, "{name}");
            std::fs::remove_dir(&directory).expect("it is empty");
        }
        let open = with_mode("open", 0o755);
        for is_own in [false, true] {
            assert_eq!(said(&open, user, is_own), "");
            assert_eq!(mode_of(&open), 0o755, "a server listens to others there");
        }
        std::fs::remove_dir(&open).expect("it is empty");
        let odd = with_mode("odd", 0o744);
        assert_eq!(said(&odd, user, false), "");
        assert_eq!(mode_of(&odd), 0o744, "one that somebody chose");
        assert_eq!(said(&odd, user, true), "");
        assert_eq!(mode_of(&odd), 0o700);
        std::fs::remove_dir(&odd).expect("it is empty");
        std::fs::remove_dir_all(&closed).expect("it is ours");
    }
}
