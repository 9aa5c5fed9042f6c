//! The NFS front: NFSv3 with MOUNT, over TCP, on one port.
//!
//! ```text
//!   client <-> server <-> connection <-> service <-> engine::vnode::api::FileSystem
//!              (threads)  (records,      (what each call means, duplicate requests)
//!                          bounds)
//! ```
//!
//! `xdr` and `rpc` have the bytes, `protocol` the words; `handle` seals what clients keep;
//! `export` says who may do what; `names`, `data`, `attributes` and `listing` are the procedures,
//! `mount`, `portmap` and `nlm` the programs beside, `rpcbind` enters them where clients ask,
//! `counts` what is counted, `turns` bounds the threads that one pool keeps. Why it is so: decision
//! 0070.
//!
//! # What clients are promised
//!
//! - NF1: What is answered is durable, but for UNSTABLE writes, and on an `async` export for
//!   changes of names and attributes. No thread waits for that: the answer is a completion.
//! - NF2: UNSTABLE writes are durable after COMMIT; where the server has died in between, the
//!   verifier differs, which is one for each opening of the pool.
//! - NF3: A handle names one file for ever. It is checked at each request: the seal, the export,
//!   the client's address, and under the vnode's lock the generation.
//! - NF4: A request that comes twice is done once, for as long as the server lives and remembers.
//! - NF5: Permissions are checked at each request, as the caller that the export makes of the
//!   client's user; an owner is not refused what he has open.
//!
//! # Crashes
//!
//! Nothing is kept here but answers to requests that may come twice. Handles are sealed by a key of
//! the pool, so clients go on after a restart.
//!
//! Not here: locks (`nlm` grants none), Kerberos, UDP but for the portmapper.

mod attributes;
mod connection;
mod counts;
mod data;
mod duplicate;
mod export;
mod handle;
mod listing;
mod mount;
mod names;
mod nlm;
mod peers;
mod portmap;
mod protocol;
mod rpc;
mod rpcbind;
mod server;
mod service;
mod turns;
mod unfinished;
mod used;
mod xdr;

pub use export::{Export, ExportRules, Network, RuleError, Squash};
pub use handle::HandleKey;
pub use portmap::Portmapper;
pub use rpcbind::{RPCBIND_SOCKET, Registration};
pub use server::{Client, Server, ServerError, ServerOptions, THREADS_MAX};
pub use service::{Commit, ExportError, NoCall, ReplySink, Service};
