//! Messages to the service manager (sd_notify(3)): the server is ready, or ends.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state`, such as `READY=1`, to the socket in `NOTIFY_SOCKET`, if it is set.
pub fn tell(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
        return;
    };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let send = |address: SocketAddr| -> io::Result<()> {
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(|_| ())
    };
    if let Err(error) = address.and_then(send) {
        tracing::warn!(%error, state, "the service manager is not told");
    }
}
