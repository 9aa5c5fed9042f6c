//! Labels that cannot be printed.

use std::sync::Arc;

use engine::{Pool, PoolCreateOptions, PoolOpenError};
use format::superblock::{LABEL_BYTES, LabelError};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};
use storage::pool::{read_superblock, update_all_superblocks};

use super::{POOL_BYTES, create, defects, open};

/// Goal: a label is refused where it is made, whoever makes it, and the device left as it was.
#[test]
fn a_label_that_cannot_be_printed_is_not_made() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let made = |label: &str| {
        let options = PoolCreateOptions {
            label: label.to_owned(),
            ..PoolCreateOptions::new(POOL_BYTES, [5; 64])
        };
        Pool::create(&device, &ManualClock::new(), &options)
    };
    let longer = "l".repeat(LABEL_BYTES + 1);
    for (label, expected) in [
        ("two\nlines", LabelError::Character),
        ("\u{1b}[31mred", LabelError::Character),
        ("end\0", LabelError::Character),
        ("c1\u{9b}", LabelError::Character),
        ("tank:home", LabelError::Character),
        ("a/b", LabelError::Character),
        (&longer, LabelError::TooLong),
    ] {
        match made(label) {
            Err(PoolOpenError::Label(error)) => assert_eq!(error, expected, "{label:?}"),
            other => panic!("{label:?}: {other:?}"),
        }
        assert!(read_superblock(device.as_ref()).is_err(), "{label:?}: there is a pool");
    }
    made(&longer[1..]).expect("it is not too long");
    assert_eq!(open(&device).expect("it is a pool").status().label, longer[1..]);
}

/// Goal: a pool that has such a label, from whoever made it, is opened and checked all the same.
#[test]
fn a_label_that_cannot_be_printed_is_read() {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    create(&device, POOL_BYTES);
    let mut superblock = read_superblock(device.as_ref()).expect("a new pool").current;
    superblock.label[..4].copy_from_slice(b"a\nb\xff");
    update_all_superblocks(&device, &mut superblock).expect("memory takes it");
    let pool = open(&device).expect("a label is no reason not to");
    assert_eq!(pool.status().label, "a\\nb\\xff");
    pool.close().expect("memory takes it");
    drop(pool);
    assert_eq!(defects(&Arc::clone(&device)), None);
}
