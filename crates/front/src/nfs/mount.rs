//! MOUNT (RFC 1813, appendix I): returns the handle of an export.
//!
//! Version 1 only lists and forgets mounts, as its handles are too short. The list depends on
//! clients and has no effect.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::export::Export;
use super::rpc::{Call, RpcError};
use super::service::Service;
use super::xdr::{XdrError, XdrReader, XdrWriter};

pub(super) const PROGRAM: u32 = 100_005;
pub(super) const VERSION_FIRST: u32 = 1;
pub(super) const VERSION_LAST: u32 = 3;

const NULL: u32 = 0;
const MNT: u32 = 1;
const DUMP: u32 = 2;
const UMNT: u32 = 3;
const UMNTALL: u32 = 4;
const EXPORT: u32 = 5;

const PATH_BYTES_MAX: usize = 1024;
/// Most mounts remembered. The oldest are forgotten first.
const MOUNTS_MAX: usize = 1024;
const DUMP_BYTES_MAX: usize = 64 << 10;
const AUTH_SYS: u32 = 1;

const OK: u32 = 0;
const NOENT: u32 = 2;
const ACCES: u32 = 13;
const NAMETOOLONG: u32 = 63;

/// Mounts by client and normalized path.
#[derive(Debug, Default)]
pub(super) struct ClientMounts(VecDeque<(IpAddr, Vec<u8>)>);

impl ClientMounts {
    fn add(&mut self, peer: IpAddr, path: &[u8]) {
        self.remove(peer, Some(path));
        if self.0.len() == MOUNTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((peer, plain(path)));
    }

    fn remove(&mut self, peer: IpAddr, path: Option<&[u8]>) {
        let path = path.map(plain);
        self.0.retain(|(by, what)| *by != peer || path.as_ref().is_some_and(|path| path != what));
    }

    fn dump(&self, out: &mut XdrWriter) {
        let begun = out.len();
        for (by, what) in &self.0 {
            if out.len() - begun > DUMP_BYTES_MAX {
                break;
            }
            out.bool(true);
            out.opaque(by.to_canonical().to_string().as_bytes());
            out.opaque(what);
        }
        out.bool(false);
    }
}

/// Removes empty and `.` components.
fn plain(path: &[u8]) -> Vec<u8> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let plain: Vec<u8> = names.flat_map(|name| [b"/", name].concat()).collect();
    if plain.is_empty() { b"/".to_vec() } else { plain }
}

pub(super) fn answer(
    service: &Service,
    peer: SocketAddr,
    call: &Call,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<(), RpcError> {
    match call.procedure {
        NULL => {}
        MNT if call.version == VERSION_LAST => mount(service, peer, path_of(args)?, out),
        // The list is hidden from clients without an export.
        DUMP if !service.knows(peer.ip()) => out.bool(false),
        DUMP => service.mounts().lock().dump(out),
        UMNT => service.mounts().lock().remove(peer.ip(), Some(path_of(args)?)),
        UMNTALL => service.mounts().lock().remove(peer.ip(), None),
        EXPORT => list(service, peer.ip(), out),
        _ => return Err(RpcError::Procedure),
    }
    Ok(())
}

fn path_of<'m>(args: &mut XdrReader<'m>) -> Result<&'m [u8], RpcError> {
    args.opaque(PATH_BYTES_MAX).map_err(|XdrError| RpcError::Arguments)
}

fn mount(service: &Service, peer: SocketAddr, path: &[u8], out: &mut XdrWriter) {
    let found = handle_of(service, peer, path);
    match &found {
        Ok(_) => tracing::info!(%peer, path = %path.escape_ascii(), "mounted by NFS"),
        Err(status) => {
            if let Some(others) = service.refused_mounts().pass(Instant::now()) {
                let path = path.escape_ascii();
                tracing::warn!(%peer, %path, status, others, "NFS mount refused");
            }
        }
    }
    match found {
        Ok(handle) => {
            service.mounts().lock().add(peer.ip(), path);
            out.u32(OK);
            out.opaque(&handle);
            out.u32(1);
            out.u32(AUTH_SYS);
        }
        Err(status) => out.u32(status),
    }
}

fn handle_of(service: &Service, peer: SocketAddr, path: &[u8]) -> Result<Vec<u8>, u32> {
    let exports = service.exports();
    let inside = |export: &Arc<Export>| {
        let below = below(path, export.rules().name.as_bytes())?;
        Some((Arc::clone(export), below))
    };
    // The innermost export leaves the shortest rest of the path.
    let found = exports.iter().filter_map(inside).min_by_key(|(_, below)| below.len());
    let (export, below) = found.ok_or(NOENT)?;
    if !export.admits(peer) {
        return Err(ACCES);
    }
    let handle = export.find(below).map_err(|error| match error.errno() {
        36 => NAMETOOLONG,
        other => u32::try_from(other).unwrap_or(NOENT),
    })?;
    Ok(service.seal(&export, handle).to_vec())
}

fn below<'p>(path: &'p [u8], name: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(name)?;
    let is_inside = rest.is_empty() || rest.starts_with(b"/") || name.ends_with(b"/");
    is_inside.then_some(rest)
}

/// Lists the exports that `address` may use, and no others.
fn list(service: &Service, address: IpAddr, out: &mut XdrWriter) {
    for export in service.exports().iter().filter(|export| export.is_for(address)) {
        out.bool(true);
        out.opaque(export.rules().name.as_bytes());
        for network in &export.rules().networks {
            out.bool(true);
            out.opaque(network.to_string().as_bytes());
        }
        out.bool(false);
    }
    out.bool(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_an_export_only_at_a_slash() {
        assert_eq!(below(b"/a/b", b"/a"), Some(&b"/b"[..]));
        assert_eq!(below(b"/a", b"/a"), Some(&b""[..]));
        assert_eq!(below(b"/ab", b"/a"), None);
        assert_eq!(below(b"/ab", b"/"), Some(&b"ab"[..]));
        assert_eq!(below(b"a", b"/"), None);
    }

    #[test]
    fn mounts_are_remembered_up_to_a_bound() {
        let mut mounts = ClientMounts::default();
        for number in 0..u32::try_from(MOUNTS_MAX).expect("it is small") + 10 {
            mounts.add(IpAddr::V4(number.into()), b"/a");
            mounts.add(IpAddr::V4(number.into()), b"/a");
        }
        assert_eq!(mounts.0.len(), MOUNTS_MAX);
        mounts.remove(IpAddr::V4(20.into()), None);
        assert_eq!(mounts.0.len(), MOUNTS_MAX - 1);
    }

    /// Goal: each path has one entry in any spelling, and long paths make no long reply.
    #[test]
    fn what_is_told_of_mounts_is_bounded_however_they_are_written() {
        let mut mounts = ClientMounts::default();
        let peer = IpAddr::V4(7.into());
        for slashes in 0..100 {
            mounts.add(peer, &[b"/a", &b"/"[..].repeat(slashes + 1)[..], b"./b/"].concat());
        }
        assert!(mounts.0 == [(peer, b"/a/b".to_vec())], "{} entries", mounts.0.len());
        mounts.remove(peer, Some(b"//a/b"));
        mounts.add(peer, b"//");
        assert_eq!(mounts.0, [(peer, b"/".to_vec())]);
        for number in 0..u32::try_from(MOUNTS_MAX).expect("it is small") {
            mounts.add(IpAddr::V4(number.into()), &[b'x'; PATH_BYTES_MAX]);
        }
        let mut out = XdrWriter::default();
        mounts.dump(&mut out);
        assert!(out.len() < DUMP_BYTES_MAX + 2 * PATH_BYTES_MAX, "{}", out.len());
    }
}
