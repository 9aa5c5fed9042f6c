//! What of a server outlives it beside its pools: a directory with what was exported by command,
//! and the token of its HTTP interface.
//!
//! # Crashes
//!
//! A file is written under another name, made durable, and renamed: after a crash it is the old or
//! the new one, whole.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Longest file that is read: 1,024 exports take a tenth of it.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The directory. It is made when something is first kept there.
#[derive(Clone, Debug)]
pub(crate) struct StateDirectory {
    path: PathBuf,
}

impl StateDirectory {
    /// Returns the directory that `chosen` says, or `STATE_DIRECTORY` (systemd), or
    /// `/var/lib/holdfast` for root, or `holdfast` in `XDG_STATE_HOME` or `~/.local/state`.
    pub(crate) fn find(chosen: Option<&Path>) -> anyhow::Result<StateDirectory> {
        let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = if let Some(chosen) = chosen {
            std::path::absolute(chosen)?
        } else if let Some(given) = from("STATE_DIRECTORY") {
            // The first of those that a unit may have.
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

    /// Returns the path of a file in it.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the text in a file; `None`: there is none.
    pub(crate) fn read(&self, name: &str) -> anyhow::Result<Option<String>> {
        let path = self.path.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let owner = file.metadata()?.uid();
        let own = rustix::process::geteuid().as_raw();
        anyhow::ensure!(
            owner == own || owner == 0,
            "{}: it belongs to user {owner}, and the server is user {own}: `chown` it",
            path.display()
        );
        let mut text = String::new();
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .with_context(|| path.display().to_string())?;
        Ok(Some(text))
    }

    /// Puts `text` into a file that only its owner may read. It is durable when this returns.
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

fn write_synced(path: &Path, text: &str) -> std::io::Result<()> {
    // One that a crash has left may have another mode.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
