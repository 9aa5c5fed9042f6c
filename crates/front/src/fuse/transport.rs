//! The interface between a [`FuseServer`] and its transport. The `kernel` transport uses /dev/fuse.
//! Tests use a list of requests, without a kernel.

use std::sync::Arc;

use parking_lot::Mutex;

use super::FuseServer;

/// The transport that a mount uses, and why.
#[derive(Debug)]
pub struct TransportUsed(Mutex<Option<String>>);

impl TransportUsed {
    /// Returns io_uring, or /dev/fuse for the reason `refused`.
    pub(super) fn new(refused: Option<&String>) -> TransportUsed {
        TransportUsed(Mutex::new(refused.cloned()))
    }

    pub(super) fn fall_back(&self, reason: String) {
        tracing::warn!(reason, "requests come by /dev/fuse");
        *self.0.lock() = Some(reason);
    }

    /// Returns the name of the transport.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.0.lock().is_some() { "/dev/fuse" } else { "io_uring" }
    }

    /// Returns the reason for using this transport.
    #[must_use]
    pub fn reason(&self) -> String {
        self.0.lock().clone().unwrap_or_else(|| "the kernel has it".to_owned())
    }
}

/// Error that ended a transport early.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The connection to the kernel failed: unmount, resolve the cause, mount again.
    #[error("the connection to the kernel failed: {0}")]
    Connection(#[from] std::io::Error),
}

/// Carries requests in and replies out.
pub trait FuseTransport: Send {
    /// Passes each request to `server` and sends its reply, until the peer ends the connection.
    ///
    /// May call the server from several threads. Each request gets one reply, unless it is
    /// [`Silence`](super::protocol::Reply::Silence).
    fn serve(self: Box<Self>, server: Arc<FuseServer>) -> Result<(), TransportError>;
}
