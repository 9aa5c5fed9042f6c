//! QFS, table 3: two streams on two disks, segregated or striped (*Understanding Local File System
//! Functionality*, "QFS Volume Management").

use runtime::prng::Prng;
use storage::device::sim::Image;
use storage::device::{AlignedBuffer, DeviceOperation, IoPurpose};

use crate::LabError;
use crate::disks::of_qfs;
use crate::load::LoadRate;
use crate::report::{Grid, LabReport, PaperComparison, Series, hundredths, to_u64, to_usize};
use crate::rig::Rig;

const DISKS: usize = 2;
const DISK_BYTES: u64 = 8 << 30;
const STREAM_BYTES: u64 = 32 << 20;
/// Stripe unit, not given in the paper. A longer request reads its units one after the other.
const UNIT_BYTES: u64 = 32 << 10;
/// Distance between the two files on a shared disk.
const FILES_APART: u64 = DISK_BYTES / 16;
/// KiB per request, and the paper's rates, segregated and interleaved, in hundredths of MB/s.
const PAPER: [(u64, u64, u64); 6] = [
    (8, 3700, 320),
    (32, 6670, 340),
    (64, 7140, 500),
    (128, 7140, 810),
    (512, 7140, 1320),
    (1024, 7140, 1430),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPlacement {
    /// One disk per stream: a round-robin group.
    Segregated,
    /// Alternating between the disks: a striped group.
    Interleaved,
}

/// Runs the QFS lab.
///
/// # Errors
///
/// [`LabError`].
pub fn qfs() -> Result<LabReport, LabError> {
    let mut series = [Vec::new(), Vec::new()];
    let mut beside = Vec::new();
    for (kilobytes, segregated, interleaved) in PAPER {
        let placements = [StreamPlacement::Segregated, StreamPlacement::Interleaved];
        let mut rates = [0; 2];
        for (at, placement) in placements.into_iter().enumerate() {
            rates[at] = rate_of(placement, kilobytes << 10)?;
            series[at].push(rates[at]);
        }
        beside.push(PaperComparison {
            what: format!("{kilobytes} KB, segregated / interleaved"),
            paper: ratio(segregated, interleaved),
            ours: ratio(rates[0], rates[1]),
            why: String::new(),
        });
    }
    if let Some(last) = beside.last_mut() {
        last.why = "The paper says neither its stripe unit nor how far the files lay apart; here \
                    they are 32 KB and a 16th of a disk, so ratios are alike and not equal."
            .to_owned();
    }
    let [segregated, interleaved] = series;
    let column =
        |name: &str, rates| Series { name: name.to_owned(), centimegabytes_per_second: rates };
    Ok(LabReport {
        lab: "qfs".to_owned(),
        title: "Two streams on two disks: QFS, table 3".to_owned(),
        setting: vec![
            format!("disks: {DISKS}, {}", of_qfs().name),
            "two streams read one after the other; a processor costs nothing".to_owned(),
        ],
        grids: vec![Grid {
            title: "sequential reads of two streams".to_owned(),
            request_bytes: PAPER.map(|(kilobytes, ..)| kilobytes << 10).to_vec(),
            series: vec![
                column("segregated", segregated),
                column("interleaved", interleaved),
                column("paper, segregated", PAPER.map(|(_, segregated, _)| segregated).to_vec()),
                column("paper, interleaved", PAPER.map(|(.., interleaved)| interleaved).to_vec()),
            ],
        }],
        beside,
        goals: Vec::new(),
    })
}

fn ratio(segregated: u64, interleaved: u64) -> String {
    let by = hundredths(segregated * 100 / interleaved.max(1));
    format!("{} / {} = {by}", hundredths(segregated), hundredths(interleaved))
}

fn rate_of(placement: StreamPlacement, request_bytes: u64) -> Result<u64, LabError> {
    let rig = Rig::new(of_qfs(), &[const { DISK_BYTES }; DISKS].map(Image::blank));
    let requests = STREAM_BYTES / request_bytes;
    let took_ns = rig.run(DISKS, &|stream, _: &mut Prng| {
        let start = to_u64(stream) * FILES_APART;
        let bytes = match placement {
            StreamPlacement::Segregated => request_bytes,
            StreamPlacement::Interleaved => request_bytes.min(UNIT_BYTES),
        };
        (0..STREAM_BYTES / bytes).try_for_each(|nth| {
            let (disk, at) = match placement {
                StreamPlacement::Segregated => (stream, nth * bytes),
                StreamPlacement::Interleaved => {
                    (to_usize(nth % to_u64(DISKS)), nth / to_u64(DISKS) * bytes)
                }
            };
            let buffer = AlignedBuffer::for_reading(to_usize(bytes));
            let read = DeviceOperation::Read { offset: start + at, buffer };
            rig.disks[disk].submit(IoPurpose::Data, read).wait()?;
            Ok(())
        })
    })?;
    let requests = requests * to_u64(DISKS);
    Ok(LoadRate::new(requests, requests * request_bytes, took_ns).centimegabytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: LA1, and the paper's finding that segregated streams are 5 to 20 times as fast.
    #[test]
    fn segregated_streams_are_several_times_as_fast() {
        let report = qfs().expect("nothing fails");
        assert_eq!(report, qfs().expect("nothing fails"));
        let [segregated, interleaved, ..] = &report.grids[0].series[..] else {
            panic!("two columns, and the paper's")
        };
        let rates = |of: &Series| of.centimegabytes_per_second.clone();
        let pairs: Vec<_> = rates(segregated).into_iter().zip(rates(interleaved)).collect();
        assert!(pairs.iter().all(|(alone, mixed)| *alone > 3 * mixed), "{pairs:?}");
        assert!(pairs[0].0 > 8 * pairs[0].1, "{pairs:?}");
    }
}
