//! The view of a volume whose methods change its members.

use super::Volume;

runtime::view! {
    /// Changes of the members of a volume: joins, returns, spares, growth, reshapes.
    pub struct Membership of Volume;
    /// Returns the members of the volume, to change them.
    fn membership;
}
