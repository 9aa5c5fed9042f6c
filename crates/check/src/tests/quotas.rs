//! Plants defects in the quotas of a fileset.

use format::anode::QUOTA_ANODE;
use format::defect::DefectCode;
use format::page::PageBytes;
use format::quota::{USED_FRAGMENTS_OFFSET, USED_INODES_OFFSET, record_offset};

use super::check;
use super::image::TestImage;

/// Expects exactly one defect, in a pool with quotas switched on.
#[track_caller]
fn expect_in_quotas(code: DefectCode, plant: impl FnOnce(&mut PageBytes)) {
    let image = TestImage::with_quotas();
    assert!(check(&image).is_clean(), "{}", check(&image).to_text());
    image.edit(image.places[&(QUOTA_ANODE.0, 0)], plant);
    let report = check(&image);
    let found: Vec<_> = report.findings.iter().map(|finding| finding.defect.code).collect();
    assert_eq!(found, [code], "{}", report.to_text());
}

#[test]
fn quotas_are_held_against_the_anodes() {
    let first = record_offset(1);
    expect_in_quotas(DefectCode::FS015, |page| page[first + USED_FRAGMENTS_OFFSET] ^= 1);
    expect_in_quotas(DefectCode::FS015, |page| page[first + USED_INODES_OFFSET] ^= 1);
    expect_in_quotas(DefectCode::FS015, |page| page[first..first + 64].fill(0));
    expect_in_quotas(DefectCode::FS016, |page| page[first] = 9);
    expect_in_quotas(DefectCode::FS016, |page| page[record_offset(0) + 1] = 9);
    expect_in_quotas(DefectCode::FS016, |page| {
        let record: Vec<u8> = page[first..first + 64].to_vec();
        page[record_offset(9)..record_offset(10)].copy_from_slice(&record);
    });
}
