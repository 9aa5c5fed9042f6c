//! The NFS front: NFSv3 with MOUNT over TCP on one port (decision 0070).
//!
//! ```text
//!   client <-> server <-> connection <-> service <-> engine::api::FileSystem
//!              (threads)  (records,      (execution of calls, duplicate requests)
//!                          bounds)
//! ```
//!
//! `xdr` and `rpc` encode, `protocol` has the constants, `handle` seals file handles, `export` has
//! the access rules. `names`, `data`, `attributes` and `listing` are the procedures. `mount`,
//! `portmap` and `nlm` are further programs, and `rpcbind` registers them. `turns` bounds the
//! threads of one pool.
//!
//! # Promises to clients
//!
//! - NF1: An answered call is durable, except UNSTABLE writes, and changes of names and attributes
//!   on an `async` export. No thread waits for durability: replies are sent by completions.
//! - NF2: UNSTABLE writes are durable after COMMIT. If the server crashes before, the verifier
//!   changes, which is unique to each opening of the pool.
//! - NF3: A handle names one file for ever. Each request checks the seal, the export, the client's
//!   address and, under the vnode's lock, the generation.
//! - NF4: A retransmitted change is executed once, while the server runs and has its reply cached.
//! - NF5: Each request checks permissions of the caller, after mapping by the export. An owner may
//!   use its file anyway, as it may have opened it before.
//!
//! # Crashes
//!
//! Only the duplicate request cache is lost. Handles are sealed by a key of the pool, so clients
//! continue after a restart.
//!
//! Not here: locks (`nlm` grants none), Kerberos, UDP except for the portmapper.

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
pub use server::{ConnectedClient, NfsServer, ServerError, ServerOptions, THREADS_MAX};
pub use service::{DeferredReply, ExportError, NotCallError, ReplySink, Service};
