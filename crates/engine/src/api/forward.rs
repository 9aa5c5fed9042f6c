//! Methods of [`FileSystem`] that call the same method of another file system, made by
//! [`forward!`](crate::forward) from one table of signatures.
//!
//! The implementer has a method that runs one request, for example
//! `fn request<T>(&self, run: impl FnOnce(&Target) -> FsResult<T>) -> FsResult<T>`, where `Target`
//! is a [`ForwardTarget`]. A target may translate inode numbers: those of arguments before the
//! call, those of results and of attribute changes after it.

use std::sync::Arc;

use super::{
    AccessRights, Attr, AttributeChange, Caller, Fallocate, FileHandle, FileKind, FileSystem,
    FsResult, Ino, NewInode, RenameMode, Seek, SetAttr, Stability, WriteData, XattrMode,
};

/// The file system that gets the calls.
pub trait ForwardTarget {
    /// Returns the file system.
    fn fs(&self) -> &dyn FileSystem;

    /// Translates an inode number of the caller.
    fn below(&self, ino: Ino) -> FsResult<Ino> {
        Ok(ino)
    }

    /// Translates an inode number of the file system.
    fn shown(&self, ino: Ino) -> Ino {
        ino
    }
}

impl<F: FileSystem> ForwardTarget for F {
    fn fs(&self) -> &dyn FileSystem {
        self
    }
}

impl ForwardTarget for Arc<dyn FileSystem> {
    fn fs(&self) -> &dyn FileSystem {
        self.as_ref()
    }
}

/// An argument of a call.
pub trait ForwardArgument: Sized {
    /// Translates inode numbers of the caller.
    fn below(self, _target: &impl ForwardTarget) -> FsResult<Self> {
        Ok(self)
    }
}

/// A result of a call.
pub trait ForwardResult {
    /// Translates inode numbers of the file system.
    fn show(&mut self, _target: &impl ForwardTarget) {}
}

macro_rules! have_no_number {
    ($as:ident: $($type:ty),*) => { $(impl $as for $type {})* };
}

have_no_number!(ForwardArgument: &Caller, &[u8], u64, usize, bool, NewInode, &SetAttr, RenameMode,
    &mut Vec<u8>, &WriteData<'_>, Stability, XattrMode, Fallocate, Seek);
have_no_number!(ForwardResult: (), u64, usize, AccessRights, Vec<u8>, Vec<Vec<u8>>);

impl ForwardArgument for Ino {
    fn below(self, target: &impl ForwardTarget) -> FsResult<Ino> {
        target.below(self)
    }
}

impl<T> ForwardArgument for (Ino, T) {
    fn below(self, target: &impl ForwardTarget) -> FsResult<(Ino, T)> {
        Ok((target.below(self.0)?, self.1))
    }
}

impl ForwardArgument for FileHandle {
    fn below(self, target: &impl ForwardTarget) -> FsResult<FileHandle> {
        Ok(FileHandle { ino: target.below(self.ino)?, ..self })
    }
}

impl ForwardResult for Attr {
    fn show(&mut self, target: &impl ForwardTarget) {
        self.ino = target.shown(self.ino);
    }
}

impl ForwardResult for (Ino, FileKind) {
    fn show(&mut self, target: &impl ForwardTarget) {
        self.0 = target.shown(self.0);
    }
}

impl ForwardResult for AttributeChange {
    fn show(&mut self, target: &impl ForwardTarget) {
        let attrs = [&mut self.before, &mut self.after].into_iter().flatten();
        attrs.for_each(|attr| attr.show(target));
    }
}

impl ForwardResult for [AttributeChange; 2] {
    fn show(&mut self, target: &impl ForwardTarget) {
        self.iter_mut().for_each(|change| change.show(target));
    }
}

/// Makes methods of [`FileSystem`] that forward through the method `REQUEST` of the implementer, as
/// in `forward! { REQUEST: getattr access }`. Methods with callbacks are not in the table.
#[macro_export]
macro_rules! forward {
    ($request:ident: $($method:ident)*) => { $($crate::forward! { @$method $request })* };
    (@resolve $request:ident) => { $crate::forward! { @one $request
        resolve(caller: &Caller, handle: FileHandle) -> Attr } };
    (@lookup $request:ident) => { $crate::forward! { @one $request
        lookup(caller: &Caller, parent: Ino, name: &[u8]) -> Attr } };
    (@tmpfile $request:ident) => { $crate::forward! { @one $request
        tmpfile(caller: &Caller, parent: Ino, new: NewInode) -> Attr } };
    (@getattr $request:ident) => { $crate::forward! { @one $request
        getattr(caller: &Caller, ino: Ino) -> Attr } };
    (@access $request:ident) => { $crate::forward! { @one $request
        access(caller: &Caller, ino: Ino) -> AccessRights } };
    (@parent_of $request:ident) => { $crate::forward! { @one $request
        parent_of(ino: Ino) -> (Ino, FileKind) } };
    (@name_in $request:ident) => { $crate::forward! { @one $request
        name_in(directory: Ino, ino: Ino) -> Vec<u8> } };
    (@readlink $request:ident) => { $crate::forward! { @one $request
        readlink(caller: &Caller, ino: Ino) -> Vec<u8> } };
    (@read $request:ident) => { $crate::forward! { @one $request
        read(caller: &Caller, ino: Ino, offset: u64, length_bytes: usize, into: &mut Vec<u8>)
        -> usize } };
    (@seek $request:ident) => { $crate::forward! { @one $request
        seek(caller: &Caller, ino: Ino, offset: u64, what: Seek) -> u64 } };
    (@cookie_verifier $request:ident) => { $crate::forward! { @one $request
        cookie_verifier(caller: &Caller, ino: Ino) -> u64 } };
    (@getxattr $request:ident) => { $crate::forward! { @one $request
        getxattr(caller: &Caller, ino: Ino, name: &[u8]) -> Vec<u8> } };
    (@listxattr $request:ident) => { $crate::forward! { @one $request
        listxattr(caller: &Caller, ino: Ino) -> Vec<Vec<u8>> } };
    (@setattr $request:ident) => { $crate::forward! { @one $request
        setattr(caller: &Caller, ino: Ino, change: &SetAttr) around(AttributeChange) -> Attr } };
    (@create $request:ident) => { $crate::forward! { @one $request
        create(caller: &Caller, parent: Ino, name: &[u8], new: NewInode)
        around(AttributeChange) -> Attr } };
    (@symlink $request:ident) => { $crate::forward! { @one $request
        symlink(caller: &Caller, parent: Ino, name: &[u8], target: &[u8], new: NewInode)
        around(AttributeChange) -> Attr } };
    (@link $request:ident) => { $crate::forward! { @one $request
        link(caller: &Caller, ino: Ino, parent: Ino, name: &[u8])
        around(AttributeChange) -> Attr } };
    (@link_over $request:ident) => { $crate::forward! { @one $request
        link_over(caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Attr } };
    (@unlink $request:ident) => { $crate::forward! { @one $request
        unlink(caller: &Caller, parent: Ino, name: &[u8]) around(AttributeChange) -> () } };
    (@rmdir $request:ident) => { $crate::forward! { @one $request
        rmdir(caller: &Caller, parent: Ino, name: &[u8]) around(AttributeChange) -> () } };
    (@rename $request:ident) => { $crate::forward! { @one $request
        rename(caller: &Caller, source: (Ino, &[u8]), target: (Ino, &[u8]), mode: RenameMode)
        around([AttributeChange; 2]) -> () } };
    (@write_some $request:ident) => { $crate::forward! { @one $request
        write_some(caller: &Caller, ino: Ino, offset: u64, data: &WriteData<'_>,
        stability: Stability) around(AttributeChange) -> usize } };
    (@setxattr $request:ident) => { $crate::forward! { @one $request
        setxattr(caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode)
        around(AttributeChange) -> () } };
    (@removexattr $request:ident) => { $crate::forward! { @one $request
        removexattr(caller: &Caller, ino: Ino, name: &[u8]) around(AttributeChange) -> () } };
    (@fallocate $request:ident) => { $crate::forward! { @one $request
        fallocate(caller: &Caller, ino: Ino, offset: u64, length_bytes: u64, mode: Fallocate)
        -> () } };
    (@copy_range $request:ident) => { $crate::forward! { @one $request
        copy_range(caller: &Caller, source: (Ino, u64), target: (Ino, u64), length_bytes: u64)
        -> u64 } };
    (@fsync $request:ident) => { $crate::forward! { @one $request
        fsync(caller: &Caller, ino: Ino, data_only: bool) -> () } };
    (@sync $request:ident) => { $crate::forward! { @one $request
        sync() -> () } };
    (@one $request:ident $name:ident($($argument:ident: $type:ty),*) -> $result:ty) => {
        fn $name(&self, $($argument: $type),*) -> $crate::api::FsResult<$result> {
            self.$request(|target| {
                use $crate::api::forward::{ForwardArgument, ForwardResult, ForwardTarget};
                $(let $argument = ForwardArgument::below($argument, target)?;)*
                let mut done = ForwardTarget::fs(target).$name($($argument),*)?;
                ForwardResult::show(&mut done, target);
                Ok(done)
            })
        }
    };
    (@one $request:ident $name:ident($($argument:ident: $type:ty),*)
        around($change:ty) -> $result:ty) => {
        fn $name(&self, $($argument: $type,)* mut around: Option<&mut $change>)
            -> $crate::api::FsResult<$result> {
            self.$request(|target| {
                use $crate::api::forward::{ForwardArgument, ForwardResult, ForwardTarget};
                $(let $argument = ForwardArgument::below($argument, target)?;)*
                let fs = ForwardTarget::fs(target);
                let done = fs.$name($($argument,)* around.as_deref_mut());
                if let Some(around) = around {
                    ForwardResult::show(around, target);
                }
                let mut done = done?;
                ForwardResult::show(&mut done, target);
                Ok(done)
            })
        }
    };
}
