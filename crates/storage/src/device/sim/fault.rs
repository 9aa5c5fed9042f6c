//! Planned faults of a simulated device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{IoPurpose, RequestKind};
use runtime::prng::Prng;
use runtime::sync::sim;

/// A planned fault. `nth` counts the admitted requests of the named kind from 0, since the opening
/// or [`super::SimDevice::arm`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A request fails. A failing flush fails the device.
    Fail {
        /// Request kind.
        kind: RequestKind,
        /// Index among these.
        nth: u64,
        /// Whether all later ones fail too.
        persists: bool,
    },
    /// A request never completes.
    Hang {
        /// Request kind.
        kind: RequestKind,
        /// Index among these.
        nth: u64,
        /// Whether a write or flush still takes effect.
        takes_effect: bool,
        /// Whether all later ones hang too.
        persists: bool,
    },
    /// A request takes effect and completes late.
    Delay {
        /// Request kind.
        kind: RequestKind,
        /// Index among these.
        nth: u64,
        /// Delay.
        delay_ns: u64,
    },
    /// A write returns `Ok` without effect.
    LoseWrite {
        /// Purpose, or `None` for all writes.
        purpose: Option<IoPurpose>,
        /// Index among these.
        nth: u64,
    },
    /// A write returns `Ok` and goes to `offset` instead, or as near as fits.
    MisdirectWrite {
        /// Purpose, or `None` for all writes.
        purpose: Option<IoPurpose>,
        /// Index among these.
        nth: u64,
        /// Where the write goes.
        offset: u64,
    },
    /// Bits on the medium flip before a request of any kind.
    Rot {
        /// Index of the request.
        nth: u64,
        /// Offset of the byte.
        offset: u64,
        /// Bits to flip.
        mask: u8,
    },
    /// Reads of the page fail until it is rewritten.
    BadSector {
        /// A multiple of 4 KiB.
        offset: u64,
    },
    /// A write fails with [`crate::device::DeviceError::NoSpace`], without effect.
    NoRoom {
        /// Index of the write.
        nth: u64,
        /// Whether all later ones fail too.
        persists: bool,
    },
    /// Writes to unallocated pages fail with [`crate::device::DeviceError::NoSpace`] beyond a
    /// limit.
    Full {
        /// The limit.
        allocated_bytes: u64,
    },
    /// The power fails while a write or flush is in flight.
    CutPower {
        /// Index among writes and flushes together.
        nth: u64,
    },
    /// From a write on, writes and discards of an extent return `Ok` but are never stored: a lying
    /// cache, or a virtual disk reverted to a snapshot. Lasts over [`super::SimDevice::reboot`].
    /// Exempts late and failing writes.
    StopsStoring {
        /// Index of the write.
        nth: u64,
        /// Extent not stored.
        extent: StoppedExtent,
        /// Contents returned by reads of it.
        reads: StoppedReads,
    },
}

/// The extent that a device no longer stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoppedExtent {
    /// The whole device, labels included.
    All,
    /// Metadata pages and LSN pages, but not labels, journal and data.
    Metadata,
    /// A byte range of whole pages.
    Range(Range<u64>),
}

/// Contents returned by reads of unstored writes until the device is reopened. Real devices do
/// either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedReads {
    /// The old contents.
    Old,
    /// The written contents.
    Written,
}

/// Range not stored, and the contents of reads.
pub(super) type UnstoredRange = (Range<u64>, StoppedReads);

/// The planned faults of a device between two opens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Unordered.
    pub faults: Vec<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    InTime,
    /// Takes effect and completes late.
    Late {
        delay_ns: u64,
    },
    Never {
        takes_effect: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFate {
    Lands { offset: u64 },
    IsLost,
    HasNoRoom,
    Fails,
}

impl FaultPlan {
    /// Returns an empty plan.
    #[must_use]
    pub fn none() -> FaultPlan {
        FaultPlan::default()
    }

    /// Adds a fault.
    #[must_use]
    pub fn with(mut self, fault: Fault) -> FaultPlan {
        self.faults.push(fault);
        self
    }

    /// Returns one random fault, except a power cut, within the first `request_count` requests.
    #[must_use]
    pub fn random(prng: &mut Prng, request_count: u64, size_bytes: u64) -> FaultPlan {
        let nth = prng.below(request_count);
        let page = prng.below(size_bytes / 4096) * 4096;
        let persists = prng.one_in(2);
        let fault = match prng.below(7) {
            0 => Fault::Fail { kind: RequestKind::Read, nth, persists },
            1 => Fault::Fail { kind: RequestKind::Write, nth, persists },
            2 => Fault::Fail { kind: RequestKind::Flush, nth, persists },
            3 => Fault::LoseWrite { purpose: None, nth },
            4 => Fault::MisdirectWrite { purpose: None, nth, offset: page },
            5 => {
                let (offset, mask) = (page + prng.below(4096), 1 << prng.below(8));
                Fault::Rot { nth, offset, mask }
            }
            _ => Fault::Full { allocated_bytes: nth * 4096 },
        };
        FaultPlan { faults: vec![fault] }
    }

    pub(super) fn fails(&self, of_kind: RequestKind, index: u64) -> bool {
        let hits = |fault: &Fault| {
            matches!(*fault, Fault::Fail { kind, nth, persists }
                if kind == of_kind && (nth == index || persists && nth < index))
        };
        self.faults.iter().any(hits)
    }

    fn is_bad_in(fault: &Fault, start: u64, length_bytes: u64) -> bool {
        matches!(*fault, Fault::BadSector { offset }
            if offset < start + length_bytes && start < offset + 4096)
    }

    pub(super) fn has_bad_sector(&self, start: u64, length_bytes: u64) -> bool {
        self.faults.iter().any(|fault| FaultPlan::is_bad_in(fault, start, length_bytes))
    }

    /// Removes bad sectors that are rewritten.
    pub(super) fn mend_sectors(&mut self, start: u64, length_bytes: u64) {
        self.faults.retain(|fault| !FaultPlan::is_bad_in(fault, start, length_bytes));
    }

    pub(super) fn timing(&self, of_kind: RequestKind, index: u64) -> Timing {
        let hit = self.faults.iter().find_map(|fault| {
            if let Fault::Hang { kind, nth, takes_effect, persists } = *fault
                && kind == of_kind
                && (nth == index || persists && nth < index)
            {
                return Some(Timing::Never { takes_effect });
            }
            if let Fault::Delay { kind, nth, delay_ns } = *fault
                && (kind, nth) == (of_kind, index)
            {
                return Some(Timing::Late { delay_ns });
            }
            None
        });
        hit.unwrap_or(Timing::InTime)
    }

    /// Determines the outcome of write `index`, which is number `of_purpose` among those for
    /// `for_purpose`.
    pub(super) fn fate_of_write(
        &self,
        index: u64,
        (for_purpose, of_purpose): (IoPurpose, u64),
        offset: u64,
    ) -> WriteFate {
        if self.fails(RequestKind::Write, index) {
            return WriteFate::Fails;
        }
        let is_meant = |purpose: Option<IoPurpose>, nth: u64| match purpose {
            None => nth == index,
            Some(purpose) => purpose == for_purpose && nth == of_purpose,
        };
        for fault in &self.faults {
            match *fault {
                Fault::NoRoom { nth, persists } if nth == index || persists && nth < index => {
                    return WriteFate::HasNoRoom;
                }
                Fault::LoseWrite { purpose, nth } if is_meant(purpose, nth) => {
                    return WriteFate::IsLost;
                }
                Fault::MisdirectWrite { purpose, nth, offset } if is_meant(purpose, nth) => {
                    return WriteFate::Lands { offset };
                }
                Fault::Fail { .. }
                | Fault::Hang { .. }
                | Fault::Delay { .. }
                | Fault::LoseWrite { .. }
                | Fault::MisdirectWrite { .. }
                | Fault::Rot { .. }
                | Fault::BadSector { .. }
                | Fault::NoRoom { .. }
                | Fault::Full { .. }
                | Fault::CutPower { .. }
                | Fault::StopsStoring { .. } => {}
            }
        }
        WriteFate::Lands { offset }
    }

    /// Returns the range that write `index`, or a discard just before it, does not store.
    pub(super) fn unstored(&self, index: u64, purpose: IoPurpose) -> Option<UnstoredRange> {
        self.faults.iter().find_map(|fault| {
            let Fault::StopsStoring { nth, extent, reads } = fault else { return None };
            let range = match extent {
                StoppedExtent::All => 0..u64::MAX,
                StoppedExtent::Metadata if purpose == IoPurpose::Home => 0..u64::MAX,
                StoppedExtent::Metadata => return None,
                StoppedExtent::Range(range) => range.clone(),
            };
            (*nth <= index).then_some((range, *reads))
        })
    }

    /// Returns the faults that persist over a reboot after `writes_begun` writes.
    pub(super) fn after_reboot(&self, writes_begun: u64) -> FaultPlan {
        let lasting = self.faults.iter().filter_map(|fault| {
            let Fault::StopsStoring { nth, extent, reads } = fault else { return None };
            let lasts = Fault::StopsStoring { nth: 0, extent: extent.clone(), reads: *reads };
            (*nth <= writes_begun).then_some(lasts)
        });
        FaultPlan { faults: lasting.collect() }
    }

    /// Returns offset and mask of bits that flip before request `index`.
    pub(super) fn rots_before(&self, index: u64) -> impl Iterator<Item = (u64, u8)> {
        self.faults.iter().filter_map(move |fault| {
            if let Fault::Rot { nth, offset, mask } = *fault
                && nth == index
            {
                return Some((offset, mask));
            }
            None
        })
    }

    pub(super) fn room_bytes(&self) -> u64 {
        let rooms = self.faults.iter().filter_map(|fault| {
            if let Fault::Full { allocated_bytes } = *fault { Some(allocated_bytes) } else { None }
        });
        rooms.min().unwrap_or(u64::MAX)
    }

    pub(super) fn cuts_power_at(&self, index: u64) -> bool {
        self.faults.contains(&Fault::CutPower { nth: index })
    }
}

/// The power supply of a set of devices.
#[derive(Clone, Debug, Default)]
pub struct PowerSupply {
    is_cut: Arc<AtomicBool>,
}

impl PowerSupply {
    /// Returns a supply that is on.
    #[must_use]
    pub fn new() -> PowerSupply {
        PowerSupply::default()
    }

    /// Cuts the power, and stops the calling thread's scheduler.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        if let Some(scheduler) = sim::current() {
            scheduler.cut_power();
        }
    }

    /// Whether the power is cut, here or in the calling thread's scheduler.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
            || sim::current().is_some_and(|scheduler| scheduler.is_cut())
    }
}
