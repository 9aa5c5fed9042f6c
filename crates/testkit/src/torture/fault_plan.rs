//! The fault plan of a life: what goes wrong besides the power, and which answers that excuses.
//!
//! # What is asked of a pool that meets it
//!
//! - TR1: An error is told only where something went wrong, and is one of those that say so.
//! - TR2: After a write or a flush failed, no fsync or sync that began later is acknowledged; once
//!   the pool says that it has failed, no change is.
//! - TR3: What was refused did not happen; of writes and truncations, which are chains, a part may
//!   have. Of a write for which there is no space that part is at its beginning.
//! - TR4: A full pool answers `ENOSPC` only to what takes space: deleting always works.
//! - TR5: A device that lies (rot, lost and misdirected writes) is told of or changes nothing: no
//!   answer is another one than the reference gives. The check finds what a read tells of.
//! - TR6: With the device well again the pool opens, and has all that was acknowledged.

use engine::api::FsError;
use runtime::prng::Prng;
use storage::device::sim::{Fault as DeviceFault, FaultPlan, Image};
use storage::device::{IoPurpose, RequestKind};

use crate::number::usize_of;
use crate::ops::{Op, Session};

/// The request that fails is below 2 to a power below this; every exponent is as likely.
const READ_POWER_MAX: u64 = 8;
const WRITE_POWER_MAX: u64 = 9;
const FLUSH_POWER_MAX: u64 = 7;
/// There is room for less than 2 to a power below this, in bytes, on a device that runs full.
const ROOM_POWER_MAX: u64 = 23;
/// As the others, of writes of data that are lost or misdirected.
const LIE_POWER_MAX: u64 = 7;
/// Pools larger than this are not filled: it takes too long.
const FULL_BYTES_MAX: u64 = 24 << 20;
/// Bytes that rot in one life, at most.
const ROTS_MAX: u64 = 8;
/// No write that may go astray is longer.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// A misdirected write is aimed this often before it is given up.
const AIMS_MAX: u64 = 64;

/// What goes wrong in one life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LifeFault {
    /// Nothing but the power.
    None,
    /// Requests to the device fail.
    Requests(DeviceFault),
    /// The pool is full before the clients begin.
    FullPool,
    /// The device lies. Such a life ends in order, and is the last of its pool.
    Lies(Vec<DeviceFault>),
}

impl LifeFault {
    /// Draws the fault of a life that begins on `image`; the log is where no lie reaches: one at
    /// its end looks like a cut.
    pub(super) fn draw(
        random: &mut Prng,
        image: &Image,
        is_last: bool,
        log: std::ops::Range<u64>,
    ) -> LifeFault {
        if is_last && random.one_in(3) {
            return LifeFault::Lies(lies(random, image, log));
        }
        let persists = random.one_in(2);
        let fail = |kind, nth| LifeFault::Requests(DeviceFault::Fail { kind, nth, persists });
        match random.below(12) {
            0 => fail(RequestKind::Read, random.below_power(READ_POWER_MAX)),
            1 => fail(RequestKind::Write, random.below_power(WRITE_POWER_MAX)),
            2 => fail(RequestKind::Flush, random.below_power(FLUSH_POWER_MAX)),
            3 => {
                let nth = random.below_power(WRITE_POWER_MAX);
                LifeFault::Requests(DeviceFault::NoRoom { nth, persists })
            }
            4 => {
                let allocated_bytes = image.allocated_bytes() + random.below_power(ROOM_POWER_MAX);
                LifeFault::Requests(DeviceFault::Full { allocated_bytes })
            }
            5 | 6 if image.size_bytes() <= FULL_BYTES_MAX => LifeFault::FullPool,
            _ => LifeFault::None,
        }
    }

    /// Draws whether a life begins with a full pool, and nothing else.
    pub(super) fn draw_space(random: &mut Prng, image: &Image) -> LifeFault {
        let is_small = image.size_bytes() <= FULL_BYTES_MAX;
        if random.below(12) < 2 && is_small { LifeFault::FullPool } else { LifeFault::None }
    }

    /// Returns what the device is armed with.
    pub(super) fn plan(&self) -> FaultPlan {
        match self {
            LifeFault::None | LifeFault::FullPool => FaultPlan::none(),
            LifeFault::Requests(fault) => FaultPlan::none().with(fault.clone()),
            LifeFault::Lies(faults) => FaultPlan { faults: faults.clone() },
        }
    }

    /// Whether the device may fail or lie.
    pub(super) fn is_of_device(&self) -> bool {
        matches!(self, LifeFault::Requests(_) | LifeFault::Lies(_))
    }

    /// Whether a device that did harm excuses this answer (TR1). A pool that has failed may have
    /// placed blocks that never came to the device, and finds them damaged.
    pub(super) fn excuses(&self, error: &FsError, has_pool_failed: bool) -> bool {
        let is_damage = matches!(error, FsError::Corrupt { .. });
        let has_failed = matches!(error, FsError::Io { .. } | FsError::ReadOnly { .. });
        match self {
            LifeFault::None | LifeFault::FullPool => false,
            LifeFault::Requests(_) => has_failed || is_damage && has_pool_failed,
            LifeFault::Lies(_) => has_failed || is_damage,
        }
    }
}

fn lies(random: &mut Prng, image: &Image, log: std::ops::Range<u64>) -> Vec<DeviceFault> {
    let purpose = Some(IoPurpose::Data);
    match random.below(4) {
        0 => vec![DeviceFault::LoseWrite { purpose, nth: random.below_power(LIE_POWER_MAX) }],
        1 => {
            let nth = random.below_power(LIE_POWER_MAX);
            let aims = (0..AIMS_MAX).map(|_| random.below(image.size_bytes() / 4096) * 4096);
            let is_clear = |at: &u64| *at >= log.end || at + WRITE_BYTES_MAX <= log.start;
            let hit = aims.into_iter().find(is_clear);
            hit.map(|offset| DeviceFault::MisdirectWrite { purpose, nth, offset })
                .into_iter()
                .collect()
        }
        _ => {
            let mut pages = Vec::new();
            image.for_each_page(|offset, bytes| {
                if !log.contains(&offset) && bytes.iter().any(|&byte| byte != 0) {
                    pages.push(offset);
                }
            });
            let nth = random.below_power(READ_POWER_MAX);
            let rot = |_| {
                let page = pages[usize_of(random.below(crate::number::u64_of(pages.len())))];
                let (offset, mask) = (page + random.below(4096), 1 << random.below(8));
                DeviceFault::Rot { nth, offset, mask }
            };
            (0..if pages.is_empty() { 0 } else { ROTS_MAX }).map(rot).collect()
        }
    }
}

/// Whether `op` changes something.
pub(crate) fn is_change(op: &Op) -> bool {
    let only_asks = matches!(
        op,
        Op::Open { .. }
            | Op::Close { .. }
            | Op::Read { .. }
            | Op::GetAttr { .. }
            | Op::ReadLink { .. }
            | Op::List { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::Seek { .. }
    );
    !only_asks && !is_sync(op)
}

/// Whether `op` makes something durable.
pub(super) fn is_sync(op: &Op) -> bool {
    matches!(op, Op::Fsync { .. } | Op::Sync)
}

/// TR4: whether `op` may take space; of a truncation `expected` tells which way it goes.
pub(crate) fn takes_space(op: &Op, expected: &Session<'_>) -> bool {
    if let Op::Truncate { file, size_bytes } = op {
        return expected.probe(file).is_none_or(|attr| attr.size_bytes < *size_bytes);
    }
    let is_free = matches!(
        op,
        Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::SetMode { .. }
            | Op::SetOwner { .. }
            | Op::SetProject { .. }
            | Op::SetTimes { .. }
            | Op::RemoveXattr { .. }
    );
    is_change(op) && !is_free
}

/// TR3: whether a part of `op` may have happened when it was refused.
pub(crate) fn is_chain(op: &Op) -> bool {
    matches!(op, Op::Write { .. } | Op::Truncate { .. } | Op::Fallocate { .. } | Op::Copy { .. })
}
