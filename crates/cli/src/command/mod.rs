//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod clone;
pub(crate) mod controlled;
pub(crate) mod create;
pub(crate) mod demo;
pub(crate) mod device;
pub(crate) mod diff;
pub(crate) mod dump;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod fileset;
pub(crate) mod generate;
pub(crate) mod job;
pub(crate) mod mount;
pub(crate) mod prove;
pub(crate) mod quota;
pub(crate) mod receive;
pub(crate) mod schedule;
pub(crate) mod scrub;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod torture;
pub(crate) mod tree;
pub(crate) mod unmount;
