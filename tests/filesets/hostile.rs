//! Streams whose records are right, each for itself, and that somebody has made to do harm.

use format::directory::dirents;
use format::page::PAGE_BYTES;
use format::stream::{RECORD_HEAD_BYTES, Record, RecordHead};

use super::send::{POOL_BYTES, mend, open, pool_of, records, send_from, source};
use super::{assert_clean, free_all, name};

/// Goal: a stream with a name that lies where another belongs is refused: nobody would find it, nor
/// remove it. Method: a letter of a name is changed, and the checksum made right.
#[test]
fn a_stream_with_a_name_that_nobody_finds_is_refused() {
    let source = source(83, 1);
    let whole = send_from(&source.pool, None, "c0", None);
    let starts = records(&whole);
    let end = |at: usize| starts.get(at + 1).copied().unwrap_or(whole.len());
    let is_directory = |at: &usize| whole[starts[*at] + 4] == 2 && whole[starts[*at] + 36] == 2;
    let (mut stream, mut changed) = (whole.clone(), 0);
    for of in (0..starts.len()).filter(is_directory) {
        let (record, sequence) = (starts[of + 1]..end(of + 1), u64::try_from(of + 1));
        let front = whole[record.clone()].first_chunk().expect("it has a head");
        let sequence = sequence.expect("small");
        let Ok(head) = RecordHead::decode(*front, sequence) else { continue };
        let body = &whole[record.clone()][RECORD_HEAD_BYTES..];
        let Ok(Record::Page(page)) = head.record(body, sequence, None) else { continue };
        let mut bytes = [0; PAGE_BYTES];
        page.put(&mut bytes);
        let Some(name) = dirents(&bytes).map(|it| it.name.to_vec()).find(|it| it.len() > 3) else {
            continue;
        };
        let at = body.windows(name.len()).position(|part| part == name).expect("it is there");
        let record = &mut stream[record];
        record[RECORD_HEAD_BYTES + at] ^= 0x40;
        mend(record, sequence, &whole);
        changed += 1;
        break;
    }
    assert_eq!(changed, 1, "a directory has a name");
    let device = pool_of(POOL_BYTES, 9);
    let pool = open(&device, "root", None);
    for is_dry_run in [true, false] {
        let random = [7; 32];
        let received = match is_dry_run {
            true => pool.verify_stream(&name("copy"), &mut &stream[..], &mut |_, _| ()),
            false => pool.receive(&name("copy"), &mut &stream[..], random, &mut |_, _| ()),
        };
        let failure = received.expect_err("a name lies where another belongs");
        assert!(failure.error.to_string().contains("not where it belongs"), "{failure:?}");
    }
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}
