//! What it costs to write a file from its front to its end, however short the writes are.

use engine::api::{Caller, FileKind, FileSystem};
use storage::device::{IoPurpose, RequestKind};

use super::Counted;

/// Goal: a file that is appended to takes each block once, so that programs that write a line or a
/// page at a time fill a pool with their bytes and nothing else.
///
/// Method: 16 MiB in writes of 500 bytes to 64 KiB, in blocks of every size; bytes of data that
/// the device was asked to write.
#[test]
fn appending_writes_each_block_once() {
    const BYTES: u64 = 16 << 20;
    for (block_shift, length) in
        [(14, 500), (14, 4096), (14, 5000), (14, 65_536), (12, 500), (16, 4096)]
    {
        let counted = Counted::new(1 << 30, block_shift);
        let ino = counted.make(counted.pool.root(), "file", FileKind::Regular);
        let data = vec![9; usize::try_from(length).expect("small")];
        let cost = counted.cost(|| {
            for at in 0..BYTES / length {
                counted.pool.write(&Caller::root(), ino, at * length, &data).expect("room");
            }
            counted.pool.sync().expect("there is room");
        });
        let written = cost.of(IoPurpose::Data, RequestKind::Write).bytes
            + cost.of(IoPurpose::Summary, RequestKind::Write).bytes;
        let thousandths = written * 1000 / BYTES;
        println!("{length} at a time, blocks of {}: {thousandths} thousandths", 1 << block_shift);
        // A block that finds the end of its segment begins again in the next one, where what it
        // leaves has no room for a block: that is an end that none can have.
        let most = if block_shift > 14 { 1070 } else { 1020 };
        assert!(thousandths <= most, "{length} at a time: {cost:?}");
    }
}
