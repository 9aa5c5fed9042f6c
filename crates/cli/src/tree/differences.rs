//! What a comparison with an archive has found, until the archive ends: the last of a name counts.

use std::collections::BTreeMap;

use super::TreeError;

/// Differences that are held; those past it are told at once.
const DIFFERENCES_MAX: usize = 100_000;

/// Differences by path. One of a hard link counts no more where the name comes again that it
/// leads to: an archive may give a file a second name, and then its first to another file.
#[derive(Default)]
pub(crate) struct Differences {
    /// With the path of what it is a link to.
    found: BTreeMap<Vec<u8>, (TreeError, Option<Vec<u8>>)>,
    /// Paths of links, by what they lead to.
    leading: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
}

impl Differences {
    /// An entry of this path comes.
    pub(crate) fn begins(&mut self, path: &[u8]) {
        self.found.remove(path);
        for link in self.leading.remove(path).unwrap_or_default() {
            let leads_here = |it: &(TreeError, Option<Vec<u8>>)| it.1.as_deref() == Some(path);
            if self.found.get(&link).is_some_and(leads_here) {
                self.found.remove(&link);
            }
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= DIFFERENCES_MAX
    }

    /// Holds what is wrong with an entry, which may be a link to `target`.
    pub(crate) fn add(&mut self, path: &[u8], error: TreeError, target: Option<Vec<u8>>) {
        if let Some(target) = &target {
            self.leading.entry(target.clone()).or_default().push(path.to_vec());
        }
        self.found.insert(path.to_vec(), (error, target));
    }

    /// Returns those that are left.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (Vec<u8>, TreeError)> + use<> {
        let found = std::mem::take(&mut self.found);
        found.into_iter().map(|(path, (error, _))| (path, error))
    }
}
