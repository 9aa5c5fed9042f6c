//! Measurements of the papers that Holdfast is made of, again, on simulated disks.
//!
//! A lab builds the paper's setting out of simulated disks in virtual time, runs the paper's load
//! on it, and sets the paper's figures beside what came out. Disks are models (what a seek, a turn
//! and a byte cost); a processor costs nothing. Holdfast is the real engine on the real volume.
//!
//! - LA1: The same lab at the same size gives the same report to the byte, on any machine: time is
//!   virtual, threads take turns as a seed says, and all that is random follows from it.
//!
//! Not here: the disks ([`storage::device::sim`]), measurements of this machine (`bench`).

mod disks;
mod load;
mod plot;
mod qfs;
mod report;
mod rig;
mod sawmill;
mod table;
mod target;

pub use plot::svg_of;
pub use qfs::qfs;
pub use report::{Beside, Goal, Grid, Report, Series};
pub use sawmill::{Size, sawmill};
pub use table::text_of;

/// Why a lab has no report. It is a bug of the lab or of the engine.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A simulated disk refused.
    #[error("the simulated disk failed: {0}")]
    Device(#[from] storage::device::DeviceError),
    /// The pool could not be made.
    #[error("the simulated pool cannot be made: {0}")]
    Open(#[from] engine::OpenError),
    /// The pool refused a request.
    #[error("the simulated pool failed: {0}")]
    Pool(#[from] engine::vnode::api::FsError),
}
