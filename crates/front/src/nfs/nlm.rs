//! A lock manager (NLM version 4: RFC 1813, appendix II) that grants no lock, and says so at once.
//!
//! A client that mounts without `nolock` asks the server for each lock. Where no lock manager
//! answers it asks for ever, and the program hangs; here it gets ENOLCK. Mounted with `nolock` a
//! client keeps its locks itself.
//!
//! Not here: the asynchronous procedures (`_MSG`, `_RES`), by which clients of NFSv2 asked.

use std::net::SocketAddr;

use super::rpc::{Call, Unserved};
use super::service::Service;
use super::xdr::{Garbage, Reader, Writer};

pub(super) const PROGRAM: u32 = 100_021;
pub(super) const VERSION: u32 = 4;

const NULL: u32 = 0;
const TEST: u32 = 1;
const LOCK: u32 = 2;
const CANCEL: u32 = 3;
const UNLOCK: u32 = 4;
const SHARE: u32 = 20;
const UNSHARE: u32 = 21;
const NM_LOCK: u32 = 22;
const FREE_ALL: u32 = 23;

/// Longest cookie, by which a client finds the call that an answer is to (`LM_MAXSTRLEN`).
const COOKIE_BYTES_MAX: usize = 1024;

/// How a request ended (`nlm4_stats`).
const GRANTED: u32 = 0;
const DENIED_NOLOCKS: u32 = 2;

/// Answers a call.
pub(super) fn answer(
    _service: &Service,
    _peer: SocketAddr,
    call: &Call,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<(), Unserved> {
    let status = match call.procedure {
        NULL | FREE_ALL => return Ok(()),
        TEST | LOCK | NM_LOCK | SHARE => DENIED_NOLOCKS,
        // There is nothing to cancel and nothing to unlock.
        CANCEL | UNLOCK | UNSHARE => GRANTED,
        _ => return Err(Unserved::Procedure),
    };
    let cookie = args.opaque(COOKIE_BYTES_MAX).map_err(|Garbage| Unserved::Arguments)?;
    out.opaque(cookie);
    out.u32(status);
    if matches!(call.procedure, SHARE | UNSHARE) {
        // The sequence, which no client uses.
        out.u32(0);
    }
    Ok(())
}
