//! What carries requests to a [`Server`] and its replies back.
//!
//! Two exist: the kernel's, by way of /dev/fuse (`kernel`), and the tests' (a list of requests). So
//! the server is tested without a kernel.

use std::sync::Arc;

use super::Server;

/// Why a transport ended before its peer hung up.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The connection to the kernel failed: unmount, look at the cause, mount again.
    #[error("the connection to the kernel failed: {0}")]
    Connection(#[from] std::io::Error),
}

/// Carries requests in and replies out.
pub trait Transport: Send {
    /// Gives each request to `server` and sends what it answers, until the peer hangs up.
    ///
    /// May call the server from several threads at once. Each request is answered exactly once,
    /// except those whose answer is [`Silence`](super::protocol::Reply::Silence).
    fn serve(self: Box<Self>, server: Arc<Server>) -> Result<(), TransportError>;
}
