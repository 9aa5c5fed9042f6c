//! Sizes of pools.

/// What a pool is like. All are small, so that each is soon full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) pool_bytes: u64,
    pub(crate) fragment_bytes: u32,
    pub(crate) segment_bytes: u64,
    pub(crate) block_shift: u8,
    pub(crate) active_log_bytes: u64,
    pub(crate) dirty_pages: usize,
    pub(crate) cache_bytes: usize,
}

impl Shape {
    pub(crate) const fn new(
        pool_mib: u64,
        fragment_bytes: u32,
        segment_kib: u64,
        block_shift: u8,
    ) -> Shape {
        Shape {
            pool_bytes: pool_mib << 20,
            fragment_bytes,
            segment_bytes: segment_kib << 10,
            block_shift,
            active_log_bytes: 32 << 20,
            dirty_pages: 4096,
            cache_bytes: 64 << 20,
        }
    }
}
