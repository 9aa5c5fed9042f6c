//! A directory of the bench's own, in a place that was given: nothing else is touched there.
//!
//! The directory is `holdfast-bench` and has a file in it that says whose it is. One that has not
//! is somebody else's and is refused; one that has, and that nobody holds a lock on, was left by a
//! run that was killed, and is removed first.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The directory that is made.
pub const CLAIM_NAME: &str = "holdfast-bench";
/// What says whose it is.
const MARKER: &str = ".made-by-holdfast-bench";
/// What a new file system may have in its root.
const ALLOWED: [&str; 1] = ["lost+found"];

/// Why a place cannot be used. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Give an empty one.
    #[error(
        "{}: not empty (`{name}` is in it): give the bench a directory of its own",
        place.display()
    )]
    NotEmpty {
        /// The place.
        place: PathBuf,
        /// Something that is there.
        name: String,
    },
    /// Move it away.
    #[error("{}: not made by the bench: move it away, or give another place", directory.display())]
    Foreign {
        /// The directory that stands where the bench's would.
        directory: PathBuf,
    },
    /// Wait.
    #[error(
        "{}: another bench is at work there: wait for it, or give another place",
        directory.display()
    )]
    InUse {
        /// The other's directory.
        directory: PathBuf,
    },
    /// The cause says what to do.
    #[error("{}: {cause}", path.display())]
    Failed {
        /// Where.
        path: PathBuf,
        /// What happened.
        cause: io::Error,
    },
}

/// A directory that is removed when this is dropped, with all that is in it.
#[derive(Debug)]
pub struct Claim {
    directory: PathBuf,
    /// Holds the lock.
    _marker: File,
}

impl Claim {
    /// Makes a directory of the bench's own in `place`. `must_be_empty` refuses a place with
    /// anything else in it. `release` is called with what a killed run left, before that is
    /// removed: it may have mounts in it.
    pub fn new(
        place: &Path,
        must_be_empty: bool,
        release: &dyn Fn(&Path),
    ) -> Result<Claim, ClaimError> {
        let failed = |cause| ClaimError::Failed { path: place.to_owned(), cause };
        let place = fs::canonicalize(place).map_err(failed)?;
        if must_be_empty {
            for entry in fs::read_dir(&place).map_err(failed)? {
                let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
                if name != CLAIM_NAME && !ALLOWED.contains(&name.as_str()) {
                    return Err(ClaimError::NotEmpty { place, name });
                }
            }
        }
        let directory = place.join(CLAIM_NAME);
        remove_left_over(&directory, release)?;
        let failed = |cause| ClaimError::Failed { path: directory.clone(), cause };
        fs::create_dir(&directory).map_err(failed)?;
        let marker = File::create_new(directory.join(MARKER)).map_err(failed)?;
        // A file system without locks is used all the same.
        let _ = flock(&marker, FlockOperation::NonBlockingLockExclusive);
        Ok(Claim { directory, _marker: marker })
    }

    /// Returns the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What cannot be removed is found by the next run, which says why.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn remove_left_over(directory: &Path, release: &dyn Fn(&Path)) -> Result<(), ClaimError> {
    let failed = |cause| ClaimError::Failed { path: directory.to_owned(), cause };
    match fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(_) => {}
    }
    let Ok(marker) = File::open(directory.join(MARKER)) else {
        return Err(ClaimError::Foreign { directory: directory.to_owned() });
    };
    if flock(&marker, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        return Err(ClaimError::InUse { directory: directory.to_owned() });
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
        let refused = Claim::new(&place, true, &|_| {});
        assert!(matches!(refused, Err(ClaimError::NotEmpty { .. })), "{refused:?}");
        fs::create_dir(place.join(CLAIM_NAME)).expect("writable");
        fs::write(place.join(CLAIM_NAME).join("photos"), "of a life").expect("writable");
        let refused = Claim::new(&place, false, &|_| {});
        assert!(matches!(refused, Err(ClaimError::Foreign { .. })), "{refused:?}");
        assert_eq!(fs::read(place.join("thesis")).expect("there"), b"years");
        assert!(place.join(CLAIM_NAME).join("photos").exists());
        fs::remove_dir_all(place).expect("ours");
    }

    #[test]
    fn what_was_made_is_removed_also_after_a_kill() {
        let place = place("ours");
        fs::create_dir(place.join("lost+found")).expect("writable");
        let claim = Claim::new(&place, true, &|_| {}).expect("it is empty");
        fs::write(claim.directory().join("work"), "some").expect("writable");
        let refused = Claim::new(&place, true, &|_| {});
        assert!(matches!(refused, Err(ClaimError::InUse { .. })), "{refused:?}");
        let directory = claim.directory().to_owned();
        drop(claim);
        assert!(!directory.exists());
        // A killed run leaves its directory, and nobody's lock.
        fs::create_dir(&directory).expect("writable");
        fs::write(directory.join(MARKER), "").expect("writable");
        drop(Claim::new(&place, true, &|_| {}).expect("left over"));
        assert!(!directory.exists());
        fs::remove_dir_all(place).expect("ours");
    }
}
