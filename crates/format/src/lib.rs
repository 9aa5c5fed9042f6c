//! Bytes on disk. No I/O, no clock, no lock. Shared by the engine and the checker.
//!
//! Each module holds one structure: its bytes (private to it), the verified value, and the rules
//! that make bytes a value. `docs/FORMAT.md` is the only description of the bytes.

pub mod acl;
pub mod anode;
pub mod attributes;
pub mod bitmap;
pub mod bytes;
pub mod checksum;
pub mod defect;
pub mod directory;
pub mod disk_group;
pub mod double_write;
pub mod fileset;
pub mod geometry;
pub mod group;
pub mod hash;
pub mod heartbeat;
pub mod ids;
pub mod journal;
pub mod lanes;
pub mod lsn_page;
pub mod map;
pub mod members;
pub mod missed;
pub mod page;
pub mod placement;
pub mod pointer;
pub mod quota;
pub mod reshape;
pub mod slots;
pub mod stream;
pub mod stripes;
pub mod summary;
pub mod superblock;
pub mod text;
