//! On-disk format: bytes and their verification. No I/O, no clock, no lock.
//!
//! The engine and the checker share this crate. Each module has one structure: private bytes, the
//! verified value, and its rules. `docs/FORMAT.md` describes the bytes.
//!
//! Layers, lowest first: `ids`, `hash`, `checksum`, `text`, `defect`, `slots`, `pointer`, `page`,
//! `bytes`, `bitmap`, `acl`, `attributes`, `lsn_page`, `map`, `heartbeat`, `summary`, `group`,
//! `stripes`, `reshape`, `superblock_error`, `layout`, `geometry`, `journal`, `double_write`,
//! `lanes`, `disk_group`, `missed`, `members`, `superblock`, `placement`, `anode`, `directory`,
//! `fileset`, `quota`, `stream`.

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
pub mod layout;
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
pub mod superblock_error;
pub mod text;
