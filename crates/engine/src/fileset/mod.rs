//! Operations on whole filesets: creation and deletion, snapshots and clones, properties, quotas.
//!
//! The tables and pages of filesets are in `fileset_table`; files are in `file`.

pub(crate) mod clone;
pub(crate) mod lifecycle;
pub(crate) mod new_root;
pub(crate) mod pin;
pub(crate) mod properties;
pub(crate) mod quota;
pub(crate) mod snapshot;
