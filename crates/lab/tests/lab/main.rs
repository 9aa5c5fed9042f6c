//! The program `holdfast-lab`, run as a process.

mod bench;
mod nfs;
mod program;
mod usage;
