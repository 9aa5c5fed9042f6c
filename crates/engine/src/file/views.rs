//! Views of [`Core`] and of [`Files`]: the operations of one subject, with access to all of the
//! pool's state.
//!
//! A view borrows its base and dereferences to it. So each subject has its methods in a type of its
//! own, and all share one state.

use std::ops::Deref;

use crate::file::{Core, Files};

/// Declares a view of `Files` with its accessor.
macro_rules! view_of_files {
    ($(#[$doc:meta])* $view:ident, $accessor:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $view<'c>(pub(crate) Files<'c>);

        impl<'c> Deref for $view<'c> {
            type Target = Files<'c>;

            fn deref(&self) -> &Files<'c> {
                &self.0
            }
        }

        impl<'c> Files<'c> {
            #[doc = concat!("Returns the files as [`", stringify!($view), "`].")]
            pub(crate) fn $accessor(&self) -> $view<'c> {
                $view(*self)
            }
        }
    };
}

runtime::view! {
    /// Operations that take, delete, hold and restore snapshots, and that make clones.
    pub(crate) struct Snapshotter of Core;
    fn snapshotter;
}

runtime::view! {
    /// Quotas of users, groups and projects of the mounted filesets.
    pub(crate) struct FilesetQuotas of Core;
    fn quotas;
}

runtime::view! {
    /// Streams and moves of filesets: sending, receiving, differences, and the states of a move.
    pub(crate) struct Transfers of Core;
    fn transfers;
}

runtime::view! {
    /// Reads of file content, verified and healed.
    pub(crate) struct BlockReader of Core;
    fn reader;
}

runtime::view! {
    /// Writes of file content: dirty blocks in memory, and their way into the maps.
    pub(crate) struct Writeback of Core;
    fn writeback;
}

runtime::view! {
    /// Moves of blocks and pages for the cleaner and for evacuations.
    pub(crate) struct BlockMover of Core;
    fn mover;
}

runtime::view! {
    /// Space for a caller that found none, and the causes of a full pool.
    pub(crate) struct SpaceReclaim of Core;
    fn space_reclaim;
}

view_of_files! {
    /// Extended attributes and access lists of files.
    Xattrs, xattrs
}

view_of_files! {
    /// Names in directories: lookup, creation, links, renames, removal, listing.
    Names, names
}
