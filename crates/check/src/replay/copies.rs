//! Of a pool on several devices: the log that goes furthest, as a mount takes it, and pages whose
//! bytes at home are good on another device.
//!
//! What one device has in its fixed regions must not decide what the pool is: rot in the log of one
//! would be damage, or worse, an end of the log before what was acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use format::ids::Place;
use format::page::PageHeader;
use storage::volume::Volume;

use super::log::{Heads, Log, Lost, read_heads};
use super::{Classes, Replay};
use crate::reader::Reader;

/// A copy of the fixed regions, and the log in it.
type OnDevice = (Volume, Log);

/// Finds the log that a mount takes, and has `reader` read it from then on. Tells in `notes` of
/// copies that are not taken.
pub(super) fn find(reader: &mut Reader, notes: &mut Vec<String>) -> Result<Log, Lost> {
    let copies = reader.fixed_copies(reader.geometry.journal_offset);
    if copies.is_empty() {
        return Log::find(reader);
    }
    let (mut best, mut broken): (Option<OnDevice>, Option<OnDevice>) = (None, None);
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
        let log = Log::from_head(reader, &Heads { newest: newest.unwrap_or(own.newest), ..own });
        failures.extend(log.lost.clone().map(|lost| (copy.name().to_owned(), lost)));
        let furthest = if log.lost.is_some() { &mut broken } else { &mut best };
        let has_other_end = |(_, found): &OnDevice| found.end != log.end;
        let is_older = own.newest.sequence < log.head.sequence;
        others += u64::from(is_older || furthest.as_ref().is_some_and(has_other_end));
        if furthest.as_ref().is_none_or(|(_, found)| log.end > found.end) {
            *furthest = Some((copy, log));
        }
    }
    // As a mount does: where a whole log ends before the unreadable sector of a longer log, nothing
    // behind that sector was acknowledged, and the longer log has all of the whole one.
    let is_further = |end| broken.as_ref().is_some_and(|(_, it)| it.is_cut && it.end > end);
    if best.as_ref().is_some_and(|(_, whole)| is_further(whole.end)) {
        best = broken.take().map(|(copy, cut)| (copy, Log { lost: None, ..cut }));
    }
    let Some((copy, mut log)) = best.or(broken) else {
        return Err(worst_of(failures).expect("there is at least one copy"));
    };
    reader.fixed = Some(copy);
    if log.lost.is_none() {
        let tells = |(_, lost): &(String, Lost)| lost.tells_of_more_than(&log);
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

/// As [`Log::is_at_rest`], on each copy: one that goes on decides, and one that is at rest is
/// enough.
pub(super) fn is_at_rest(reader: &mut Reader) -> Result<bool, Lost> {
    let copies = reader.fixed_copies(reader.geometry.journal_offset);
    if copies.is_empty() {
        return Log::is_at_rest(reader);
    }
    let (mut is_at_rest, mut failures, mut newest) = (None, Vec::new(), None);
    for copy in copies {
        let name = copy.name().to_owned();
        reader.fixed = Some(copy);
        match Log::is_at_rest(reader) {
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

/// Of several failures one that proves what is lost.
fn worst_of(failures: Vec<(String, Lost)>) -> Option<Lost> {
    let proves = |(_, lost): &(String, Lost)| (lost.proven.0, lost.proven.1.0) != (0, 0);
    let at = failures.iter().position(proves).unwrap_or(0);
    failures.into_iter().nth(at).map(|(_, lost)| lost)
}

impl Replay<'_> {
    /// Looks for pages that do not verify now, because what the log does not change of them does
    /// not, and begins them as another device has them.
    pub(super) fn take_from_copies(&mut self, log: &Log, classes: &Classes) -> Result<(), Lost> {
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

    /// Writes to a page that begins as another device has it, if that is what is being done.
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
