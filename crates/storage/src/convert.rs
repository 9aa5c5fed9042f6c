//! Integer conversions that cannot fail on 64-bit machines.

const _: () = assert!(usize::BITS == 64, "offsets of 16 TiB must fit in a usize");

pub(crate) fn to_u64(number: usize) -> u64 {
    u64::try_from(number).expect("usize has 64 bits")
}

pub(crate) fn to_usize(number: u64) -> usize {
    usize::try_from(number).expect("usize has 64 bits")
}
