//! Failures of a lab.

/// Why a lab has no report: a bug of the lab or of the engine.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A simulated disk failed.
    #[error("the simulated disk failed: {0}")]
    Device(#[from] storage::device::DeviceError),
    /// The pool could not be created or opened.
    #[error("the simulated pool cannot be made: {0}")]
    Open(#[from] engine::PoolOpenError),
    /// A pool operation failed.
    #[error("the simulated pool failed: {0}")]
    Pool(#[from] engine::api::FsError),
}
