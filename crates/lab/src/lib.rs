//! Measurements from the papers behind Holdfast, repeated on simulated disks.
//!
//! A lab models the paper's disks in virtual time, runs the paper's load, and compares the figures.
//! Processor time is free. Holdfast is the real engine on the real volume.
//!
//! - LA1: A lab of the same size yields the same report, byte for byte, on any machine: time is
//!   virtual, and a seed determines scheduling and random choices.
//!
//! Not here: the simulated disks ([`storage::device::sim`]), and measurements of this machine
//! (`bench`).
//!
//! Layers, lowest first: `error`, `report`, `table`, `plot`, `disks`, `rig`, `target`, `load`,
//! `qfs`, `sawmill`.

mod disks;
mod error;
mod load;
mod plot;
mod qfs;
mod report;
mod rig;
mod sawmill;
mod table;
mod target;

pub use error::LabError;
pub use plot::svg_of;
pub use qfs::qfs;
pub use report::{Goal, Grid, LabReport, PaperComparison, Series};
pub use sawmill::{SawmillSize, sawmill};
pub use table::text_of;
