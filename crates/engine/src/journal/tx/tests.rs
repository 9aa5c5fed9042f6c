//! Tests of transactions.

use format::page::{PageKind, PageOwner};

use super::*;
use crate::journal::testing::new_pool;
use crate::store::Change;

fn differing_runs(old: &[u8], new: &[u8], range: Range<usize>) -> Vec<(usize, usize)> {
    let mut runs = vec![(range.start, range.start)];
    let (old, new) = (&old[range.clone()], &new[range.clone()]);
    RunFinder::new(&mut runs, old).compare(old, new, range.start);
    runs.split_off(1)
}

#[test]
fn runs_cover_every_difference_and_small_gaps() {
    let old = [7; PAGE_BYTES];
    let mut new = old;
    for offset in [12, 13, 20, 300, 304, 4095] {
        new[offset] = 1;
    }
    let runs = differing_runs(&old, &new, 0..PAGE_BYTES);
    assert_eq!(runs, [(12, 14), (20, 21), (300, 305), (4095, 4096)]);
    let inside = differing_runs(&old, &new, 16..24);
    assert_eq!(inside, [(20, 21)], "a window shorter than a line");
    let behind = differing_runs(&old, &new, 304..4096);
    assert_eq!(behind, [(304, 305), (4095, 4096)], "a window that ends with part of a line");
}

#[test]
fn runs_go_on_over_longer_gaps_where_nothing_was() {
    let old = [0; PAGE_BYTES];
    let mut new = old;
    for offset in [12, 21, 31, 300] {
        new[offset] = 1;
    }
    let runs = differing_runs(&old, &new, 0..512);
    assert_eq!(runs, [(12, 22), (31, 32), (300, 301)]);
}

#[test]
fn deltas_apply_to_the_page_as_it_is() {
    let mut page = [0; PAGE_BYTES];
    page[200] = 5;
    let subtract = Delta::AddU32 { offset: 200, delta: -2 };
    assert_eq!(subtract.apply(&mut page, &[]), Some(()));
    assert_eq!((page[200], subtract.range()), (3, (200, 204)));
    let set = Delta::Bits { first: 3, count: 10, is_set: true };
    assert_eq!(set.apply(&mut page, &[]), Some(()));
    assert_eq!((format::bitmap::count_set(&page) - 2, set.range()), (10, (128, 130)));
    let put = Delta::Put { offset: 300, bytes: 1..3 };
    assert_eq!(put.apply(&mut page, b"abcd"), Some(()));
    assert_eq!((&page[299..303], put.range()), (&b"\0bc\0"[..], (300, 302)));
    let mut ranges = [(5, 8), (1, 2), (8, 9), (6, 7)];
    let count = join(&mut ranges);
    assert_eq!(ranges[..count], [(1, 2), (5, 9)]);
}

#[test]
fn a_place_given_out_twice_and_a_count_below_zero_are_refused() {
    let mut page = [0; PAGE_BYTES];
    let set = Delta::Bits { first: 3, count: 1, is_set: true };
    assert!(set.apply(&mut page, &[]).is_some());
    assert_eq!(set.apply(&mut page, &[]), None);
    assert_eq!(Delta::AddU32 { offset: 200, delta: -1 }.apply(&mut page, &[]), None);
    assert_eq!(Delta::AddU64 { offset: 200, delta: -1 }.apply(&mut page, &[]), None);
}

/// Goal: a transaction with windows of a page sees and edits the current bytes outside of them.
/// Method: after the windows were copied, another transaction changes other bytes, and the first
/// sets these back. Cases: one window, the most windows of a page, and one window before the whole
/// page is taken.
#[test]
fn a_window_has_the_page_as_it_is_when_the_window_is_taken() {
    const MARK: usize = PAGE_BYTES - WORD_BYTES;
    for (windows, takes_page) in [(1, false), (PAGE_WINDOWS_MAX, false), (1, true)] {
        let pool = new_pool();
        let store = &pool.core().store;
        let (place, kind) = (store.geometry().group_layout().root_place(), PageKind::Anode);
        let owner = PageOwner::default();
        let put = |change: &mut Change<'_>, offset: usize, value: u8| {
            let range = offset..offset + WORD_BYTES;
            let own = change.edit_range(place, kind, owner, range).expect("it is there");
            std::mem::replace(&mut own[0], value)
        };
        let begin = || store.begin_pool(LogCredits::SMALL).expect("there is room");
        let mut early = begin();
        for window in 1..=windows {
            put(&mut early, MARK - 2 * window * WORD_BYTES, 1);
        }
        let mut between = begin();
        assert_eq!(put(&mut between, MARK, 9), 0, "nothing is there");
        between.end();
        let what = format!("{windows} windows, {takes_page}");
        let seen = store.view(Some(&early), place, kind, owner).expect("it is there")[MARK];
        assert_eq!(seen, 9, "{what}: what it sees");
        assert_eq!(put(&mut early, MARK, 0), 9, "{what}: what it changes");
        if takes_page {
            early.edit(place, kind, owner).expect("it is there");
        }
        early.end();
        let page = store.cache.bytes(place, kind, owner).expect("it is there");
        assert_eq!((page[MARK], page[MARK - 2 * WORD_BYTES]), (0, 1), "{what}: the page");
    }
}
