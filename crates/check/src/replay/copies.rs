//! Pools on several devices: chooses the log that a mount would choose, and takes pages from
//! another device where their home copy is bad.
//!
//! No single device may decide: bad sectors in its log would look like damage or, worse, like an
//! end of the log before acknowledged records.

use std::collections::{BTreeMap, BTreeSet};

use format::ids::Place;
use format::page::PageHeader;
use storage::volume::Volume;

use super::log::{DeviceLog, LogHeads, LogLoss, read_heads};
use super::{Classes, OverlayReplay};
use crate::reader::PoolReader;

type VolumeLog = (Volume, DeviceLog);

/// Selects the log that a mount would choose. Notes in `notes` why others were not chosen.
pub(super) fn find(reader: &mut PoolReader, notes: &mut Vec<String>) -> Result<DeviceLog, LogLoss> {
    let copies = reader.fixed_copies(reader.geometry.journal_offset);
    if copies.is_empty() {
        return DeviceLog::find(reader);
    }
    let (mut best, mut broken): (Option<VolumeLog>, Option<VolumeLog>) = (None, None);
    let (mut all_heads, mut failures, mut others) = (Vec::new(), Vec::new(), 0);
    for copy in copies {
        reader.fixed = Some(Volume::clone(&copy));
        match read_heads(reader) {
            Ok(heads) => all_heads.push((copy, heads)),
            Err(lost) => failures.push((copy.name().to_owned(), lost)),
        }
    }
    let newest = all_heads.iter().map(|(_, heads)| heads.newest).max_by_key(|head| head.sequence);
    for (copy, own) in all_heads {
        reader.fixed = Some(Volume::clone(&copy));
        let log =
            DeviceLog::from_head(reader, &LogHeads { newest: newest.unwrap_or(own.newest), ..own });
        failures.extend(log.lost.clone().map(|lost| (copy.name().to_owned(), lost)));
        let furthest = if log.lost.is_some() { &mut broken } else { &mut best };
        let has_other_end = |(_, found): &VolumeLog| found.end != log.end;
        let is_older = own.newest.sequence < log.head.sequence;
        others += u64::from(is_older || furthest.as_ref().is_some_and(has_other_end));
        if furthest.as_ref().is_none_or(|(_, found)| log.end > found.end) {
            *furthest = Some((copy, log));
        }
    }
    // A whole log ends before the unreadable sector, so its device never acknowledged what follows:
    // the cut log suffices.
    let is_further = |end| broken.as_ref().is_some_and(|(_, it)| it.is_cut && it.end > end);
    if best.as_ref().is_some_and(|(_, whole)| is_further(whole.end)) {
        best = broken.take().map(|(copy, cut)| (copy, DeviceLog { lost: None, ..cut }));
    }
    let Some((copy, mut log)) = best.or(broken) else {
        return Err(worst_of(failures).expect("there is at least one copy"));
    };
    reader.fixed = Some(copy);
    if log.lost.is_none() {
        let tells = |(_, lost): &(String, LogLoss)| lost.tells_of_more_than(&log);
        log.lost = failures.iter().find(|failure| tells(failure)).map(|(_, lost)| lost.clone());
        for (name, lost) in failures {
            let code = lost.code.name();
            notes.push(format!("the log of {name} is not taken ({code}): {}", lost.what));
        }
        if others > 0 {
            notes.push(
                "the log goes on further on one device than on others: it is taken".to_owned(),
            );
        }
    } else {
        log.lost = worst_of(failures);
    }
    Ok(log)
}

/// [`DeviceLog::is_at_rest`] over all copies of the log: false if any readable copy continues, an
/// error if none is readable.
pub(super) fn is_at_rest(reader: &mut PoolReader) -> Result<bool, LogLoss> {
    let copies = reader.fixed_copies(reader.geometry.journal_offset);
    if copies.is_empty() {
        return DeviceLog::is_at_rest(reader);
    }
    let (mut is_at_rest, mut failures, mut newest) = (None, Vec::new(), None);
    for copy in copies {
        let name = copy.name().to_owned();
        reader.fixed = Some(copy);
        match DeviceLog::is_at_rest(reader) {
            Ok(is) => {
                is_at_rest = Some(is && is_at_rest.unwrap_or(true));
                let head = read_heads(reader).ok().map(|heads| heads.newest);
                newest = newest.max(head.map(|head| (head.sequence, head.tail)));
            }
            Err(lost) => failures.push((name, lost)),
        }
    }
    reader.fixed = None;
    if let Some((_, end)) = newest {
        reader.log_end = end;
    }
    is_at_rest.ok_or_else(|| worst_of(failures).expect("there is at least one copy"))
}

fn worst_of(failures: Vec<(String, LogLoss)>) -> Option<LogLoss> {
    let proves = |(_, lost): &(String, LogLoss)| (lost.proven.0, lost.proven.1.0) != (0, 0);
    let at = failures.iter().position(proves).unwrap_or(0);
    failures.into_iter().nth(at).map(|(_, lost)| lost)
}

impl OverlayReplay<'_> {
    /// Replays pages that do not verify again, from other copies.
    pub(super) fn take_from_copies(
        &mut self,
        log: &DeviceLog,
        classes: &Classes,
    ) -> Result<(), LogLoss> {
        if !self.reader.has_copies() {
            return Ok(());
        }
        let logged = self.reader.logged.iter().copied();
        let mut bad: BTreeSet<Place> = logged.filter(|place| !self.is_good(*place)).collect();
        for copy in 0.. {
            let mut is_any = false;
            let mut bases = BTreeMap::new();
            for place in &bad {
                let Some(read) = self.reader.page_of_copy(copy, *place) else { continue };
                is_any = true;
                bases.extend(read.ok().map(|page| (*place, page)));
            }
            if !is_any {
                break;
            }
            self.bases = Some(bases);
            let done = self.redo_all(log, classes);
            let bases = self.bases.take().unwrap_or_default();
            done?;
            for (place, page) in bases {
                let offset = self.reader.page_offset(place);
                let is_good = PageHeader::decode(&page, self.reader.pool_id, place).is_ok();
                let Some(offset) = offset.filter(|_| is_good) else { continue };
                self.overwrite(offset, &page[..], false);
                self.reader.count_from_copy();
                bad.remove(&place);
            }
        }
        Ok(())
    }

    fn is_good(&self, place: Place) -> bool {
        let page = self.reader.read_raw_page(place);
        page.is_ok_and(|page| PageHeader::decode(&page, self.reader.pool_id, place).is_ok())
    }

    /// Writes to a page of `bases` during such a replay. Returns false if none is running.
    pub(super) fn is_for_copy(&mut self, place: Place, offset: usize, bytes: &[u8]) -> bool {
        let Some(bases) = &mut self.bases else { return false };
        let page = bases.get_mut(&place);
        let target = page.and_then(|page| page.get_mut(offset..offset + bytes.len()));
        if let Some(target) = target {
            target.copy_from_slice(bytes);
        }
        true
    }
}
