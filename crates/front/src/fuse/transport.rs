//! What carries requests to a [`Server`] and its replies back.
//!
//! Two exist: the kernel's, by way of /dev/fuse (`kernel`), and the tests' (a list of requests). So
//! the server is tested without a kernel.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Server;

/// By what the kernel's requests come to a mount, and why.
#[derive(Debug)]
pub struct TransportUsed(Mutex<Option<String>>);

impl TransportUsed {
    /// Notes that io_uring is used, or why not.
    pub(super) fn new(refused: Option<&String>) -> TransportUsed {
        TransportUsed(Mutex::new(refused.cloned()))
    }

    /// Notes that io_uring is not used after all.
    pub(super) fn fall_back(&self, reason: String) {
        tracing::warn!(reason, "requests come by /dev/fuse");
        *self.0.lock() = Some(reason);
    }

    /// Returns what the transport is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.0.lock().is_some() { "/dev/fuse" } else { "io_uring" }
    }

    /// Returns why it is used and no other.
    #[must_use]
    pub fn reason(&self) -> String {
        self.0.lock().clone().unwrap_or_else(|| "the kernel has it".to_owned())
    }
}

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
