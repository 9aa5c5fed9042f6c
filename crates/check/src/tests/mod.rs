//! Hand-made pools: a healthy one is clean, and each defect that is planted is found.

mod image;
mod planted;
mod replayed;

use image::Image;

use crate::{Options, run};

/// Checks `image` in full.
fn check(image: &Image) -> crate::report::Report {
    run(image.device.clone(), Options::default(), &mut |_| {})
}

#[test]
fn a_healthy_pool_is_clean_with_fragments_of_every_size() {
    for fragment_bytes in [4096, 2048, 1024] {
        let report = check(&Image::new(fragment_bytes));
        assert!(report.is_clean(), "{fragment_bytes}: {}", report.to_text());
        assert_eq!(report.totals.anodes, 13);
        assert_eq!(report.totals.names, 209);
        assert_eq!(report.totals.blocks, 23);
        assert!(report.totals.data_bytes > 20 * 16384);
    }
}

/// A code that no test plants could stop working unseen.
#[test]
fn every_code_is_planted() {
    let tests = [include_str!("planted.rs"), include_str!("replayed.rs")];
    for code in crate::defect::Code::ALL {
        let mention = format!("Code::{}", code.name());
        assert!(tests.iter().any(|test| test.contains(&mention)), "{mention} is never planted");
    }
}
