//! A tree beside the archive that was made of it: what the archive lacks.

use engine::vnode::api::FileKind;

use super::walk::{self, Step, Walk};
use super::{Totals, Tree, TreeError, TreeResult};

/// A walk over a source tree in the order of its archive, to find names that the archive lacks.
pub(crate) struct Beside<'w, T: Tree> {
    walk: Walk<'w, T>,
    /// What the archive has not come to yet.
    next: Option<Step<T::Node>>,
}

impl<'w, T: Tree> Beside<'w, T> {
    /// Begins with what is in the root of `tree`.
    pub(crate) fn new(tree: &'w T) -> TreeResult<Beside<'w, T>> {
        Ok(Beside { walk: Walk::new(tree)?, next: None })
    }

    /// The archive has come to this path; `None`: to its end. What the tree has before that it
    /// lacks.
    pub(crate) fn go_to(&mut self, path: Option<&[u8]>, (target, totals): (&T, &Totals)) {
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

    fn pass(&mut self, step: &Step<T::Node>, is_there: bool, target: &T) -> TreeResult<()> {
        // Gone since it was listed.
        let Some(meta) = target.find(&step.directory, &step.name)? else { return Ok(()) };
        if meta.kind == FileKind::Directory {
            let node = target.open(&step.directory, &step.name, &meta)?;
            self.walk.enter(node, step.path.clone())?;
        }
        // No tar holds a socket: that is told when it is made.
        if is_there || meta.kind == FileKind::Socket {
            Ok(())
        } else {
            Err(TreeError::of_file("the archive lacks it"))
        }
    }
}
