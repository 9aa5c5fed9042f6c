//! Bytes that nobody has written so: every decoder answers, and none panics.
//!
//! `bolero` gives the bytes, at random. They fail at the first check, so each page is tried as it
//! is and with a good checksum, which leads behind that check. `HOLDFAST_FUZZ` is the number of
//! inputs of each test.

mod decoders;
mod images;
mod requests;

/// Inputs of each test in CI.
const ITERATIONS: usize = 2000;

fn iterations() -> usize {
    let wanted = std::env::var("HOLDFAST_FUZZ").ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or(ITERATIONS)
}
