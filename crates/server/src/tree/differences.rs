//! Differences found by a comparison with an archive. They are held until the archive ends, because
//! a later entry of the same name replaces an earlier one.

use std::collections::BTreeMap;

use super::TreeError;

/// Most bytes of held differences. Above it, differences are reported at once.
const DIFFERENCES_BYTES_MAX: usize = if cfg!(test) { 64 << 10 } else { 64 << 20 };

/// Differences by path. The difference of a hard link is dropped when its target's name has another
/// entry: the archive may have linked a second name to a file and then reused the first name.
#[derive(Default)]
pub(crate) struct Differences {
    found: BTreeMap<Vec<u8>, ArchivePathDifference>,
    leading: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    held_bytes: usize,
}

type ArchivePathDifference = (TreeError, Option<Vec<u8>>);

fn found_bytes(path: &[u8], (error, target): &ArchivePathDifference) -> usize {
    let target = target.as_ref().map_or(0, Vec::len);
    size_of::<(Vec<u8>, ArchivePathDifference)>() + path.len() + target + error.cause.len()
}

fn leading_bytes(target: &[u8], link: &[u8]) -> usize {
    2 * size_of::<Vec<u8>>() + target.len() + link.len()
}

impl Differences {
    pub(crate) fn begins(&mut self, path: &[u8]) {
        self.remove(path);
        for link in self.leading.remove(path).unwrap_or_default() {
            self.held_bytes -= leading_bytes(path, &link);
            let leads_here = |it: &ArchivePathDifference| it.1.as_deref() == Some(path);
            if self.found.get(&link).is_some_and(leads_here) {
                self.remove(&link);
            }
        }
    }

    fn remove(&mut self, path: &[u8]) {
        if let Some(found) = self.found.remove(path) {
            self.held_bytes -= found_bytes(path, &found);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.held_bytes >= DIFFERENCES_BYTES_MAX
    }

    pub(crate) fn add(&mut self, path: &[u8], error: TreeError, target: Option<Vec<u8>>) {
        self.remove(path);
        if let Some(target) = &target {
            self.held_bytes += leading_bytes(target, path);
            self.leading.entry(target.clone()).or_default().push(path.to_vec());
        }
        let found = (error, target);
        self.held_bytes += found_bytes(path, &found);
        self.found.insert(path.to_vec(), found);
    }

    pub(crate) fn take(&mut self) -> impl Iterator<Item = (Vec<u8>, TreeError)> + use<> {
        let found = std::mem::take(self).found;
        found.into_iter().map(|(path, (error, _))| (path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the bytes held are bounded, for long paths and repeated links too, and dropped
    /// differences do not count.
    #[test]
    fn differences_are_held_up_to_a_bound() {
        let mut differences = Differences::default();
        let mut last = 0;
        for number in 0..10_000 {
            let path = vec![b'a'; 1000 + number % 7];
            differences.begins(&path);
            if differences.is_full() {
                last = number;
                break;
            }
            differences.add(&path, TreeError::of_file("it differs"), Some(b"target".to_vec()));
        }
        assert!(last > 7 && last < 100, "{last} differences of 1,000 bytes");
        differences.begins(b"target");
        assert_eq!((differences.held_bytes, differences.found.len()), (0, 0));
        differences.add(b"a", TreeError::of_file("it differs"), None);
        differences.add(b"a", TreeError::of_file("it is missing"), None);
        let left: Vec<_> = differences.take().collect();
        assert_eq!(left, [(b"a".to_vec(), TreeError::of_file("it is missing"))]);
    }
}
