//! A lock manager (NLM version 4: RFC 1813, appendix II) that refuses all locks.
//!
//! If nothing answered locks, a client mounted without `nolock` would retry for ever and its
//! program would hang. Here the program gets ENOLCK. A client with `nolock` keeps locks locally.
//!
//! Not here: the asynchronous procedures (`_MSG`, `_RES`) of NFSv2 clients.

use std::net::SocketAddr;

use super::rpc::{Call, RpcError};
use super::service::Service;
use super::xdr::{XdrError, XdrReader, XdrWriter};

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

/// Longest cookie, which identifies the call (`LM_MAXSTRLEN`).
const COOKIE_BYTES_MAX: usize = 1024;

/// `nlm4_stats`.
const GRANTED: u32 = 0;
const DENIED_NOLOCKS: u32 = 2;

pub(super) fn answer(
    _service: &Service,
    _peer: SocketAddr,
    call: &Call,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<(), RpcError> {
    let status = match call.procedure {
        NULL | FREE_ALL => return Ok(()),
        TEST | LOCK | NM_LOCK | SHARE => DENIED_NOLOCKS,
        // No lock exists.
        CANCEL | UNLOCK | UNSHARE => GRANTED,
        _ => return Err(RpcError::Procedure),
    };
    let cookie = args.opaque(COOKIE_BYTES_MAX).map_err(|XdrError| RpcError::Arguments)?;
    out.opaque(cookie);
    out.u32(status);
    if matches!(call.procedure, SHARE | UNSHARE) {
        // The share sequence number, unused by clients.
        out.u32(0);
    }
    Ok(())
}
