//! What goes wrong on a simulated device, and when.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Purpose, RequestKind};
use runtime::prng::Prng;
use runtime::sync::sim;

/// Something that goes wrong. `nth` counts from 0, since the device was opened or
/// [`super::SimDevice::arm`] called, the requests that the variant names; refused requests do not
/// count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The `nth` request of this kind fails, and all after it if it `persists`. A flush that fails
    /// fails the device.
    Fail {
        /// Read, write, flush or discard.
        kind: RequestKind,
        /// Which.
        nth: u64,
        /// Whether later ones fail as well.
        persists: bool,
    },
    /// The `nth` request of this kind is never answered, nor any after it if it `persists`.
    Hang {
        /// Read, write, flush or discard.
        kind: RequestKind,
        /// Which.
        nth: u64,
        /// Whether a write or flush takes effect all the same.
        takes_effect: bool,
        /// Whether later ones hang as well.
        persists: bool,
    },
    /// The `nth` request of this kind takes effect and is answered only so much later.
    Delay {
        /// Read, write, flush or discard.
        kind: RequestKind,
        /// Which.
        nth: u64,
        /// How much.
        delay_ns: u64,
    },
    /// The `nth` write of this purpose is answered `Ok` and never happens.
    LoseWrite {
        /// For what; `None`: of all writes.
        purpose: Option<Purpose>,
        /// Which.
        nth: u64,
    },
    /// The `nth` write of this purpose is answered `Ok` and lands at `offset` instead (or as near
    /// as fits).
    MisdirectWrite {
        /// For what; `None`: of all writes.
        purpose: Option<Purpose>,
        /// Which.
        nth: u64,
        /// Where.
        offset: u64,
    },
    /// Before the `nth` request of any kind, bits of the medium turn over.
    Rot {
        /// Which.
        nth: u64,
        /// Which byte.
        offset: u64,
        /// Which bits of it.
        mask: u8,
    },
    /// Reads of the page at `offset` fail until it is written again.
    BadSector {
        /// A multiple of 4 KiB.
        offset: u64,
    },
    /// The `nth` write fails with [`crate::device::DeviceError::NoSpace`], and nothing of it lands.
    NoRoom {
        /// Which.
        nth: u64,
        /// Whether later ones fail as well.
        persists: bool,
    },
    /// Writes to pages never written fail with [`crate::device::DeviceError::NoSpace`] once this
    /// much is allocated.
    Full {
        /// How much there is room for.
        allocated_bytes: u64,
    },
    /// The power fails at the `nth` write or flush (counted together), while it is in flight.
    CutPower {
        /// Which.
        nth: u64,
    },
    /// From the `nth` write on, writes and discards of this extent are answered `Ok` and not
    /// stored, whatever is flushed: a cache that lies, a virtual disk that is put back to a
    /// snapshot while it is in use. Lasts over [`super::SimDevice::reboot`]. Writes that are late
    /// or fail are not meant.
    StopsStoring {
        /// Which.
        nth: u64,
        /// What is not stored.
        extent: StoppedExtent,
        /// What reads return of it.
        reads: StoppedReads,
    },
}

/// What a device no longer stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoppedExtent {
    /// Everything, labels too.
    All,
    /// Pages of metadata, LSN pages among them; labels, journal and data are stored.
    Metadata,
    /// A range of the device in bytes, of whole pages.
    Range(Range<u64>),
}

/// What reads return of writes that are not stored, until the device is opened again. Both occur,
/// and differ for the engine: what it reads back after a write may be right while the medium never
/// had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedReads {
    /// What was stored before.
    Old,
    /// What was written.
    Written,
}

/// What of a write is not stored, and what reads return of it.
pub(super) type Unstored = (Range<u64>, StoppedReads);

/// The faults of one life of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// In no order.
    pub faults: Vec<Fault>,
}

/// When a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    InTime,
    /// So much later, and takes effect then.
    Late {
        delay_ns: u64,
    },
    Never {
        takes_effect: bool,
    },
}

/// What is done with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFate {
    Lands { offset: u64 },
    IsLost,
    HasNoRoom,
    Fails,
}

impl FaultPlan {
    /// No faults.
    #[must_use]
    pub fn none() -> FaultPlan {
        FaultPlan::default()
    }

    /// Returns this plan with one more fault.
    #[must_use]
    pub fn with(mut self, fault: Fault) -> FaultPlan {
        self.faults.push(fault);
        self
    }

    /// Returns a plan with one fault, chosen by `prng` among all kinds but a power cut, within the
    /// first `request_count` requests to a device of `size_bytes`.
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

    /// Whether a sector of a range cannot be read.
    pub(super) fn has_bad_sector(&self, start: u64, length_bytes: u64) -> bool {
        self.faults.iter().any(|fault| FaultPlan::is_bad_in(fault, start, length_bytes))
    }

    /// What is written can be read again.
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

    /// Decides about the write `index` of all, `of_purpose` of those for `for_purpose`.
    pub(super) fn fate_of_write(
        &self,
        index: u64,
        (for_purpose, of_purpose): (Purpose, u64),
        offset: u64,
    ) -> WriteFate {
        if self.fails(RequestKind::Write, index) {
            return WriteFate::Fails;
        }
        let is_meant = |purpose: Option<Purpose>, nth: u64| match purpose {
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

    /// Returns what of the write `index`, or of a discard before it, is not stored.
    pub(super) fn unstored(&self, index: u64, purpose: Purpose) -> Option<Unstored> {
        self.faults.iter().find_map(|fault| {
            let Fault::StopsStoring { nth, extent, reads } = fault else { return None };
            let range = match extent {
                StoppedExtent::All => 0..u64::MAX,
                StoppedExtent::Metadata if purpose == Purpose::Home => 0..u64::MAX,
                StoppedExtent::Metadata => return None,
                StoppedExtent::Range(range) => range.clone(),
            };
            (*nth <= index).then_some((range, *reads))
        })
    }

    /// Returns what is left of the plan when the power is back after `writes_begun` writes.
    pub(super) fn after_reboot(&self, writes_begun: u64) -> FaultPlan {
        let lasting = self.faults.iter().filter_map(|fault| {
            let Fault::StopsStoring { nth, extent, reads } = fault else { return None };
            let lasts = Fault::StopsStoring { nth: 0, extent: extent.clone(), reads: *reads };
            (*nth <= writes_begun).then_some(lasts)
        });
        FaultPlan { faults: lasting.collect() }
    }

    /// Returns the bits that turn over before the request `index`: offset and mask.
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

/// What feeds a set of simulated devices: cut for one, it is cut for all.
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

    /// Cuts the power, of the calling thread's scheduler too.
    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        if let Some(scheduler) = sim::current() {
            scheduler.cut_power();
        }
    }

    /// Returns whether the power is cut, here or in the calling thread's scheduler.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
            || sim::current().is_some_and(|scheduler| scheduler.is_cut())
    }
}
