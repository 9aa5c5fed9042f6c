//! Compares a tree with an archive that was made of it, to find files that the archive lacks.

use engine::api::FileKind;

use super::walk::{self, TreeWalk, TreeWalkEntry};
use super::{FileTree, TreeCopyTotals, TreeError, TreeResult};

pub(crate) struct ArchiveTreeComparison<'w, T: FileTree> {
    walk: TreeWalk<'w, T>,
    next: Option<TreeWalkEntry<T::Node>>,
}

impl<'w, T: FileTree> ArchiveTreeComparison<'w, T> {
    pub(crate) fn new(tree: &'w T) -> TreeResult<ArchiveTreeComparison<'w, T>> {
        Ok(ArchiveTreeComparison { walk: TreeWalk::new(tree)?, next: None })
    }

    /// Advances to the path of the archive's current entry, or to the end if `path` is `None`.
    /// Files of the tree that the walk passes before it are missing in the archive.
    pub(crate) fn go_to(&mut self, path: Option<&[u8]>, (target, totals): (&T, &TreeCopyTotals)) {
        loop {
            let Some(step) = self.next.take().or_else(|| self.walk.next()) else { return };
            let is_before = |path: &[u8]| walk::order(&step.path, path);
            let order = path.map_or(std::cmp::Ordering::Less, is_before);
            if order.is_gt() {
                self.next = Some(step);
                return;
            }
            if let Err(error) = self.pass(&step, order.is_eq(), target) {
                totals.fail(&step.path, &error.while_reading());
            }
            if order.is_eq() {
                return;
            }
        }
    }

    fn pass(
        &mut self,
        step: &TreeWalkEntry<T::Node>,
        is_there: bool,
        target: &T,
    ) -> TreeResult<()> {
        let Some(meta) = target.find(&step.directory, &step.name)? else { return Ok(()) };
        if meta.kind == FileKind::Directory {
            let node = target.open(&step.directory, &step.name, &meta)?;
            self.walk.enter(node, step.path.clone())?;
        }
        // A tar contains no sockets. Writing the archive has reported them as left out.
        if is_there || meta.kind == FileKind::Socket {
            Ok(())
        } else {
            Err(TreeError::of_file("the archive lacks it"))
        }
    }
}
