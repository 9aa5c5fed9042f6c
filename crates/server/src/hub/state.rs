//! State directory of a server: kept exports, schedules, the HTTP token.
//!
//! # Crashes
//!
//! A file is written under a temporary name, made durable, and renamed. So after a crash it has
//! either its old or its new contents.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Longest file that is read, ten times the size of 1,024 exports.
const FILE_BYTES_MAX: u64 = 16 << 20;

const STICKY: u32 = 0o1000;
const WRITE_OF_OTHERS: u32 = 0o002;

/// The state directory, which is created by the first write.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    path: PathBuf,
}

impl StateDirectory {
    /// Returns the chosen directory, or `STATE_DIRECTORY` (systemd), or `/var/lib/holdfast` for
    /// root, or `holdfast` in `XDG_STATE_HOME` or `~/.local/state`.
    pub fn find(chosen: Option<&Path>) -> anyhow::Result<StateDirectory> {
        let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = if let Some(chosen) = chosen {
            std::path::absolute(chosen)?
        } else if let Some(given) = from("STATE_DIRECTORY") {
            // systemd lists several directories if a unit has several.
            let first = given.to_string_lossy().split(':').next().unwrap_or_default().to_owned();
            PathBuf::from(first)
        } else if rustix::process::geteuid().is_root() {
            PathBuf::from("/var/lib/holdfast")
        } else if let Some(state) = from("XDG_STATE_HOME") {
            PathBuf::from(state).join("holdfast")
        } else {
            let home = from("HOME").context("there is no HOME: say --state DIRECTORY")?;
            PathBuf::from(home).join(".local/state/holdfast")
        };
        Ok(StateDirectory { path })
    }

    /// Refuses a directory that another user owns or may write to, because it has the token and the
    /// exports.
    pub fn check(&self) -> anyhow::Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(found) => {
                let danger = danger_of(&found);
                let shown = self.path.display();
                anyhow::ensure!(danger.is_none(), "{shown}: {}", danger.unwrap_or_default());
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).with_context(|| self.path.display().to_string()),
        }
    }

    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn read(&self, name: &str) -> anyhow::Result<Option<String>> {
        let path = self.path.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let danger = danger_of(&file.metadata()?);
        anyhow::ensure!(danger.is_none(), "{}: {}", path.display(), danger.unwrap_or_default());
        let mut text = String::new();
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .with_context(|| path.display().to_string())?;
        Ok(Some(text))
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let context = || format!("{}: cannot keep it", self.path.join(name).display());
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.path).with_context(context)?;
        let unfinished = self.path.join(format!(".{name}.new"));
        let written = write_synced(&unfinished, text).and_then(|()| {
            std::fs::rename(&unfinished, self.path.join(name))?;
            File::open(&self.path)?.sync_all()
        });
        written.with_context(context)
    }
}

/// Returns why a file or directory is unsafe, with the remedy: a user other than root and the
/// server's own owns it, or it is world-writable. `None` if it is safe.
pub(super) fn danger_of(found: &Metadata) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&found.uid()) {
        let owner = found.uid();
        return Some(format!(
            "it belongs to user {owner}, and the server is user {own}: `chown` it"
        ));
    }
    // In a directory with the sticky bit, such as /tmp, users cannot replace each other's files.
    let is_sticky = found.is_dir() && found.mode() & STICKY != 0;
    let all_may = found.mode() & WRITE_OF_OTHERS != 0 && !is_sticky;
    all_may.then(|| "all users may write to it: `chmod o-w`".to_owned())
}

fn write_synced(path: &Path, text: &str) -> std::io::Result<()> {
    // A file that a crash has left may have another mode.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[test]
fn what_others_could_write_is_no_state() {
    use std::os::unix::fs::PermissionsExt;

    let path = std::env::temp_dir().join(format!("holdfast-state-{}", std::process::id()));
    let state = StateDirectory { path: path.clone() };
    state.check().expect("there is none yet");
    state.write("file", "text").expect("there is room");
    let set = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    for (mode, is_safe) in [(0o700, true), (0o755, true), (0o1777, true), (0o777, false)] {
        set(&path, mode);
        let checked = state.check().map_err(|error| error.to_string());
        assert_eq!(checked.is_ok(), is_safe, "{mode:o}: {checked:?}");
        assert!(is_safe || checked.is_err_and(|words| words.contains("`chmod o-w`")));
    }
    set(&state.path_of("file"), 0o602);
    let refused = state.read("file").expect_err("all may write to it").to_string();
    assert!(refused.contains("all users may write to it"), "{refused}");
    set(&state.path_of("file"), 0o644);
    assert_eq!(state.read("file").expect("it is safe").as_deref(), Some("text"));
    std::fs::remove_dir_all(&path).expect("it is ours");
}
