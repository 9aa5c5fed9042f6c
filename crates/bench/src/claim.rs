//! Exclusive use of the subdirectory `holdfast-bench` of a directory. Nothing else in that
//! directory is touched.
//!
//! The bench keeps a locked marker file in the subdirectory. A subdirectory without the marker is
//! foreign and refused. An unlocked marker means that the run was killed: the subdirectory is
//! removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Name of the subdirectory.
pub const CLAIM_NAME: &str = "holdfast-bench";
const MARKER: &str = ".made-by-holdfast-bench";
/// Permitted contents of an empty file system.
const ALLOWED: [&str; 1] = ["lost+found"];

/// Why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BenchDirectoryError {
    /// The directory is not empty. Choose an empty one.
    #[error(
        "{}: not empty (`{name}` is in it): give the bench a directory of its own",
        place.display()
    )]
    NotEmpty {
        /// The directory.
        place: PathBuf,
        /// A name found in the directory.
        name: String,
    },
    /// The subdirectory is foreign. Move it away.
    #[error("{}: not made by the bench: move it away, or give another place", directory.display())]
    Foreign {
        /// The subdirectory.
        directory: PathBuf,
    },
    /// Another run is in progress.
    #[error(
        "{}: another bench is at work there: wait for it, or give another place",
        directory.display()
    )]
    InUse {
        /// The subdirectory.
        directory: PathBuf,
    },
    /// A system call failed.
    #[error("{}: {cause}", path.display())]
    Failed {
        /// Path.
        path: PathBuf,
        /// System error.
        cause: io::Error,
    },
}

/// A subdirectory, removed with its contents on drop.
#[derive(Debug)]
pub struct BenchDirectory {
    directory: PathBuf,
    /// Holds the lock.
    _marker: File,
}

impl BenchDirectory {
    /// Creates the subdirectory in `place`. Calls `release` on the leftovers of a killed run before
    /// their removal, as they may contain mounts.
    pub fn new(
        place: &Path,
        must_be_empty: bool,
        release: &dyn Fn(&Path),
    ) -> Result<BenchDirectory, BenchDirectoryError> {
        let failed = |cause| BenchDirectoryError::Failed { path: place.to_owned(), cause };
        let place = fs::canonicalize(place).map_err(failed)?;
        if must_be_empty {
            for entry in fs::read_dir(&place).map_err(failed)? {
                let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
                if name != CLAIM_NAME && !ALLOWED.contains(&name.as_str()) {
                    return Err(BenchDirectoryError::NotEmpty { place, name });
                }
            }
        }
        let directory = place.join(CLAIM_NAME);
        remove_left_over(&directory, release)?;
        let failed = |cause| BenchDirectoryError::Failed { path: directory.clone(), cause };
        fs::create_dir(&directory).map_err(failed)?;
        let marker = File::create_new(directory.join(MARKER)).map_err(failed)?;
        // A file system without locks is acceptable.
        let _ = flock(&marker, FlockOperation::NonBlockingLockExclusive);
        Ok(BenchDirectory { directory, _marker: marker })
    }

    /// Returns the subdirectory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for BenchDirectory {
    fn drop(&mut self) {
        // The next run removes the rest, or reports an error.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn remove_left_over(directory: &Path, release: &dyn Fn(&Path)) -> Result<(), BenchDirectoryError> {
    let failed = |cause| BenchDirectoryError::Failed { path: directory.to_owned(), cause };
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(_) => {}
    }
    let Ok(marker) = File::open(directory.join(MARKER)) else {
        return Err(BenchDirectoryError::Foreign { directory: directory.to_owned() });
    };
    if flock(&marker, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        return Err(BenchDirectoryError::InUse { directory: directory.to_owned() });
    }
    release(directory);
    fs::remove_dir_all(directory).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("claim-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).expect("a new directory");
        place
    }

    #[test]
    fn what_is_not_ours_is_refused_and_left_alone() {
        let place = place("foreign");
        fs::write(place.join("thesis"), "years").expect("writable");
        let refused = BenchDirectory::new(&place, true, &|_| {});
        assert!(matches!(refused, Err(BenchDirectoryError::NotEmpty { .. })), "{refused:?}");
        fs::create_dir(place.join(CLAIM_NAME)).expect("writable");
        fs::write(place.join(CLAIM_NAME).join("photos"), "of a life").expect("writable");
        let refused = BenchDirectory::new(&place, false, &|_| {});
        assert!(matches!(refused, Err(BenchDirectoryError::Foreign { .. })), "{refused:?}");
        assert_eq!(fs::read(place.join("thesis")).expect("there"), b"years");
        assert!(place.join(CLAIM_NAME).join("photos").exists());
        fs::remove_dir_all(place).expect("ours");
    }

    #[test]
    fn what_was_made_is_removed_also_after_a_kill() {
        let place = place("ours");
        fs::create_dir(place.join("lost+found")).expect("writable");
        let claim = BenchDirectory::new(&place, true, &|_| {}).expect("it is empty");
        fs::write(claim.directory().join("work"), "some").expect("writable");
        let refused = BenchDirectory::new(&place, true, &|_| {});
        assert!(matches!(refused, Err(BenchDirectoryError::InUse { .. })), "{refused:?}");
        let directory = claim.directory().to_owned();
        drop(claim);
        assert!(!directory.exists());
        // A killed run leaves its directory, unlocked.
        fs::create_dir(&directory).expect("writable");
        fs::write(directory.join(MARKER), "").expect("writable");
        drop(BenchDirectory::new(&place, true, &|_| {}).expect("left over"));
        assert!(!directory.exists());
        fs::remove_dir_all(place).expect("ours");
    }
}
