//! The directory of sockets and logs: whoever may write there could answer in a server's place, or
//! be written to by it.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// What others may do with a directory.
const OTHERS_WRITE: u32 = 0o022;
const OTHERS_ANYTHING: u32 = 0o077;

/// Returns the directory of sockets and logs, made if it is missing: `HOLDFAST_RUN_DIR`, or
/// `/run/holdfast` for root, or `holdfast` in `XDG_RUNTIME_DIR`.
pub(crate) fn run_directory() -> anyhow::Result<PathBuf> {
    let chosen = std::env::var_os("HOLDFAST_RUN_DIR");
    let is_own = chosen.is_none();
    let directory = if let Some(chosen) = chosen {
        PathBuf::from(chosen)
    } else if rustix::process::geteuid().is_root() {
        PathBuf::from("/run/holdfast")
    } else if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR") {
        PathBuf::from(runtime).join("holdfast")
    } else {
        let user = rustix::process::geteuid().as_raw();
        std::env::temp_dir().join(format!("holdfast-{user}"))
    };
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", directory.display()));
        }
        _ => {}
    }
    check(&directory, rustix::process::geteuid().as_raw(), is_own)?;
    Ok(directory)
}

/// Refuses a directory that another user has made, may turn elsewhere, or may write to. One that
/// holdfast made for itself (`is_own`) is closed to others; one that somebody chose stays as it is.
fn check(directory: &Path, user: u32, is_own: bool) -> anyhow::Result<()> {
    let shown = directory.display();
    let found = std::fs::symlink_metadata(directory)
        .with_context(|| format!("cannot look at the run directory {shown}"))?;
    // In a directory that all may write to, somebody else may have made it.
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
    if is_own && found.mode() & OTHERS_ANYTHING != 0 {
        // It is this user's, and no link: nobody else can put another in its place.
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700))
            .with_context(|| format!("cannot close {shown} to others"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Goal: no server listens, and no command asks, where another user may put something in its
    /// place. Method: directories of several modes, a link and a file.
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
        assert_eq!(said(&open, user, false), "");
        assert_eq!(mode_of(&open), 0o755, "one that somebody chose");
        assert_eq!(said(&open, user, true), "");
        assert_eq!(mode_of(&open), 0o700);
        std::fs::remove_dir(&open).expect("it is empty");
        std::fs::remove_dir_all(&closed).expect("it is ours");
    }
}
