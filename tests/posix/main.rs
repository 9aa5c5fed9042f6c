//! Does each operation do what SEMANTICS says?

mod acl;
mod around;
mod attr;
mod create;
mod handle;
mod hole;
mod limits;
mod link;
mod lookup;
mod orphan;
mod permission;
mod read_write;
mod readdir;
mod rename;
mod rmdir;
mod symlink;
mod times;
mod tiny;
mod tmpfile;
mod truncate;
mod unlink;
mod xattr;
