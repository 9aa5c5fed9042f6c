//! A model of what another implementation holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode, SetAttr, XattrMode};
use runtime::clock::Clock;

use super::{Model, ROOT, acl};
use crate::canon::{Data, Identity, Inode, PAGE_BYTES, Times, WalkError, walk_identified_below};
use crate::number::{u64_of, usize_of};

impl Model {
    /// Walks `fs` and returns a model that holds the same, but for times, and which inode of `fs`
    /// each inode of the model stands for.
    ///
    /// # Errors
    ///
    /// What is wrong with `fs`.
    pub fn copy_of(
        fs: &dyn FileSystem,
        clock: Arc<dyn Clock>,
    ) -> Result<(Model, BTreeMap<Ino, Identity>), WalkError> {
        Model::copy_below(fs, fs.root(), clock)
    }

    /// As [`Model::copy_of`], of the fileset whose root directory is `root`.
    ///
    /// # Errors
    ///
    /// As [`Model::copy_of`].
    pub fn copy_below(
        fs: &dyn FileSystem,
        root: Ino,
        clock: Arc<dyn Clock>,
    ) -> Result<(Model, BTreeMap<Ino, Identity>), WalkError> {
        let (tree, identities) = walk_identified_below(fs, root, Times::Ignored)?;
        let model = Model::new(clock);
        let mut made: Vec<Option<Ino>> = vec![None; tree.inodes.len()];
        let mut by_path = BTreeMap::new();
        // A path sorts after the path of its directory.
        for (path, &index) in &tree.names {
            let ino = match (path.split(), made[index]) {
                (None, _) => ROOT,
                (Some((parent, name)), Some(ino)) => {
                    let linked = model.link(&Caller::root(), ino, by_path[&parent], name, None);
                    linked.expect("the walk counted no more names than an inode may have");
                    ino
                }
                (Some((parent, name)), None) => {
                    model.made_as(by_path[&parent], name, &tree.inodes[index])
                }
            };
            if made[index].is_none() {
                model.set_as(ino, &tree.inodes[index]);
            }
            made[index] = Some(ino);
            by_path.insert(path.clone(), ino);
        }
        // When all have their names: nobody is kept out of a directory by the project of it.
        for (inode, ino) in tree.inodes.iter().zip(&made) {
            let change = SetAttr { project: Some(inode.attr.project), ..SetAttr::default() };
            let ino = ino.expect("every inode of a tree has a name");
            let set = model.setattr(&Caller::root(), ino, &change, None);
            set.expect("the superuser may set what was there");
        }
        let named = made.into_iter().map(|ino| ino.expect("every inode of a tree has a name"));
        let map = named.zip(identities).collect();
        Ok((model.reopened(), map))
    }

    fn made_as(&self, parent: Ino, name: &[u8], inode: &Inode) -> Ino {
        let caller = Caller::root();
        let attr = match &inode.data {
            Data::Target(target) => {
                self.symlink(&caller, parent, name, target, NewInode::SYMLINK, None)
            }
            Data::Pages(_) | Data::Nothing => {
                let attr = &inode.attr;
                let new = NewInode { rdev: attr.rdev, ..NewInode::new(attr.kind, attr.mode) };
                self.create(&caller, parent, name, new, None)
            }
        };
        attr.expect("the walk saw this name once, in a directory").ino
    }

    fn set_as(&self, ino: Ino, inode: &Inode) {
        let caller = Caller::root();
        let attr = &inode.attr;
        if let Data::Pages(pages) = &inode.data {
            for (number, page) in pages {
                let offset = number * u64_of(PAGE_BYTES);
                let length = usize_of((attr.size_bytes - offset).min(u64_of(PAGE_BYTES)));
                let written = self.write(&caller, ino, offset, &page[..length]);
                written.expect("the walk read this far");
            }
        }
        let change = SetAttr {
            mode: (attr.kind != FileKind::Symlink).then_some(attr.mode),
            uid: Some(attr.uid),
            gid: Some(attr.gid),
            size_bytes: (attr.kind == FileKind::Regular).then_some(attr.size_bytes),
            ..SetAttr::default()
        };
        // What it was made with may come from a default list of its directory.
        for name in [acl::ACCESS, acl::DEFAULT] {
            if attr.kind != FileKind::Symlink {
                self.removexattr(&caller, ino, name, None).expect("the superuser may");
            }
        }
        self.setattr(&caller, ino, &change, None).expect("the superuser may set what was there");
        for (name, value) in &inode.attributes {
            let set = self.setxattr(&caller, ino, name, value, XattrMode::Set, None);
            set.expect("the superuser may set what was there");
        }
    }
}
