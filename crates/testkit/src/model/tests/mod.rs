//! What of the reference is not plain from the behaviour tests, which run on it too: which error
//! comes first, and who may do what.

mod content;
mod permission;
mod precedence;
mod time;

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsResult, Ino, NewInode};

use super::Model;
use runtime::clock::ManualClock;

const ROOT: Caller = Caller::checked(0, 0, Vec::new());

fn user(uid: u32) -> Caller {
    Caller::checked(uid, uid, Vec::new())
}

fn model() -> Model {
    Model::new(Arc::new(ManualClock::new()))
}

fn try_make(
    fs: &Model,
    caller: &Caller,
    at: (Ino, &[u8]),
    kind: FileKind,
    mode: u16,
) -> FsResult<Ino> {
    let new = NewInode::new(kind, mode);
    fs.create(caller, at.0, at.1, new, None).map(|attr| attr.ino)
}

fn directory(fs: &Model, parent: Ino, name: &str, mode: u16) -> Ino {
    try_make(fs, &ROOT, (parent, name.as_bytes()), FileKind::Directory, mode).expect("new name")
}

fn file_of(fs: &Model, owner: &Caller, parent: Ino, name: &str, mode: u16) -> Ino {
    try_make(fs, owner, (parent, name.as_bytes()), FileKind::Regular, mode).expect("new name")
}

fn file(fs: &Model, parent: Ino, name: &str) -> Ino {
    file_of(fs, &ROOT, parent, name, 0o644)
}

fn mode_of(fs: &Model, ino: Ino) -> u16 {
    fs.getattr(&Caller::root(), ino).expect("it is there").mode
}
