//! Streams whose records are right, each for itself, and that somebody has made to do harm.

use std::collections::BTreeSet;

use engine::api::{Caller, FileKind, FileSystem, NewInode, SetAttr, XattrMode};
use engine::{Pool, ReceiveError};
use format::anode::{Anode, AnodeKind, StorageMode};
use format::directory::{dirents, head_at, retarget};
use format::ids::{AnodeNo, FilesetId, Generation};
use format::page::{AUX_OFFSET, COUNT_OFFSET, PAGE_BYTES, PAGE_HEADER_BYTES, read_u64};
use format::stream::{
    AnodeFlags, RECORD_HEAD_BYTES, StreamPage, StreamRecord, StreamRecordHead, StreamTotals,
};
use runtime::prng::Prng;
use storage::device::SharedDevice;

use super::send::{POOL_BYTES, mend, open, pool_of, receive, records, send_from, source, take};
use super::{assert_clean, expect_clean, free_all, name, work};

/// Streams that a run makes, unless `HOLDFAST_FUZZ` says another number.
const LIES: u64 = 1000;

/// Returns the records of a stream.
fn decoded(stream: &[u8]) -> Vec<StreamRecord> {
    let starts = records(stream);
    let mut known = None;
    let decode = |(sequence, &start): (u64, &usize)| {
        let head =
            StreamRecordHead::decode(*stream[start..].first_chunk().expect("a head"), sequence);
        let head = head.expect("it was sent");
        let body = &stream[start + RECORD_HEAD_BYTES..][..head.body_bytes];
        let record = head.record(body, sequence, known).expect("it was sent");
        if let StreamRecord::Begin(begin) = &record {
            known = Some(begin.stream());
        }
        record
    };
    (0..).zip(&starts).map(decode).collect()
}

/// Returns the stream of these records, with totals that are theirs.
fn encoded(records: &[StreamRecord]) -> Vec<u8> {
    let (mut totals, mut stream) = (StreamTotals::default(), 0);
    let mut out = Vec::new();
    for record in records {
        let sequence = totals.records;
        totals.records += 1;
        match record {
            StreamRecord::Begin(begin) => stream = begin.stream(),
            StreamRecord::Anode(..) => totals.anodes += 1,
            StreamRecord::Remove(..) => totals.removed += 1,
            StreamRecord::Data(_, data) => {
                totals.data_bytes += u64::try_from(data.len()).expect("small")
            }
            StreamRecord::End(_) => {
                let counted = StreamTotals { records: sequence, ..totals };
                out.extend(StreamRecord::End(counted).encode(sequence, stream));
                break;
            }
            StreamRecord::Hole(..)
            | StreamRecord::Page(_)
            | StreamRecord::NoPage(_)
            | StreamRecord::AnodeEnd => {}
        }
        out.extend(record.encode(sequence, stream));
    }
    out
}

fn anode_in(bytes: &[u8; 512]) -> Anode {
    let (number, family) = (AnodeNo(read_u64(bytes, 8)), FilesetId(read_u64(bytes, 16)));
    Anode::decode(bytes, family, number).expect("it was sent").expect("it is in use")
}

/// Makes lies of true streams.
struct Liar<'l> {
    prng: Prng,
    /// Streams of the same fileset, whose records stand in for others.
    others: &'l [Vec<StreamRecord>],
    /// Numbers of files.
    numbers: Vec<u64>,
    told: Vec<String>,
}

impl Liar<'_> {
    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).expect("small");
        usize::try_from(self.prng.below(end)).expect("small")
    }

    fn number(&mut self) -> u64 {
        let at = self.below(self.numbers.len());
        self.numbers.get(at).copied().unwrap_or(16)
    }

    /// Returns where a record is that is so, any of them.
    fn find(
        &mut self,
        records: &[StreamRecord],
        is_it: impl Fn(&StreamRecord) -> bool,
    ) -> Option<usize> {
        let found: Vec<usize> = (0..records.len()).filter(|&at| is_it(&records[at])).collect();
        let at = self.below(found.len());
        found.get(at).copied()
    }

    /// Tells one lie.
    fn lie(&mut self, records: &mut Vec<StreamRecord>) {
        let is_anode = |record: &StreamRecord| matches!(record, StreamRecord::Anode(..));
        let is_page = |record: &StreamRecord| matches!(record, StreamRecord::Page(_));
        let what = self.below(18);
        let at = match what {
            0..=6 => self.find(records, is_anode),
            7..=12 => self.find(records, is_page),
            13 | 14 => self.find(records, is_anode),
            15 | 16 => self.find(
                records,
                |record| matches!(record, StreamRecord::Anode(_, flags) if !flags.is_new),
            ),
            _ => Some(0),
        };
        let Some(at) = at else { return };
        match what {
            0..=4 => self.change_anode(records, at),
            5 => self.leave_out(records, at),
            6 => self.remove_instead(records, at),
            7..=10 => self.change_page(records, at),
            11 => {
                records.remove(at);
                self.told.push(format!("no page at {at}"));
            }
            12 => {
                let StreamRecord::Page(page) = &records[at] else { return };
                let index = page.index();
                records[at] = StreamRecord::NoPage(index);
                self.told.push(format!("page {index} at {at} is gone"));
            }
            13 => self.remove_more(records, at),
            14 => self.stand_in(records, at),
            15 | 16 => self.another_file(records, at),
            _ => self.change_begin(records),
        }
    }

    /// Where the records of an anode end that begin at `at`.
    fn end_of(records: &[StreamRecord], at: usize) -> usize {
        let of = |record: &StreamRecord| matches!(record, StreamRecord::AnodeEnd);
        at + records[at..].iter().position(of).map_or(1, |length| length + 1)
    }

    fn leave_out(&mut self, records: &mut Vec<StreamRecord>, at: usize) {
        let end = Self::end_of(records, at);
        if let StreamRecord::Anode(bytes, _) = &records[at] {
            self.told.push(format!("{} is left out", anode_in(bytes).number));
        }
        records.drain(at..end);
    }

    fn remove_instead(&mut self, records: &mut Vec<StreamRecord>, at: usize) {
        let end = Self::end_of(records, at);
        let StreamRecord::Anode(bytes, flags) = &records[at] else { return };
        let number = anode_in(bytes).number;
        self.told.push(format!("{number} is removed"));
        let gone = StreamRecord::Remove(number, flags.is_extra);
        records.splice(at..end, [gone]);
    }

    fn remove_more(&mut self, records: &mut Vec<StreamRecord>, at: usize) {
        let number = self.number();
        let is_extra = self.below(2) == 0;
        self.told.push(format!("{number} is removed too, out of turn: {is_extra}"));
        records.insert(at, StreamRecord::Remove(AnodeNo(number), is_extra));
    }

    /// An anode of another stream, with all that belongs to it, comes as well or in its place.
    fn stand_in(&mut self, records: &mut Vec<StreamRecord>, at: usize) {
        let which = self.below(self.others.len());
        let other = self.others[which].clone();
        let is_anode = |record: &StreamRecord| matches!(record, StreamRecord::Anode(..));
        let Some(from) = self.find(&other, is_anode) else { return };
        let mut whole = other[from..Self::end_of(&other, from)].to_vec();
        let is_instead = self.below(2) == 0;
        if let Some(StreamRecord::Anode(bytes, flags)) = whole.first_mut() {
            *flags = AnodeFlags { is_extra: self.prng.one_in(2), ..*flags };
            let number = anode_in(bytes).number;
            self.told.push(format!("{number} of another stream, {flags:?}, {is_instead}"));
        }
        let end = if is_instead { Self::end_of(records, at) } else { at };
        records.splice(at..end, whole);
    }

    /// Another file of the same number comes in place of one, and the names stay.
    fn another_file(&mut self, records: &mut [StreamRecord], at: usize) {
        let is_older = self.prng.one_in(2);
        let Some(StreamRecord::Anode(bytes, flags)) = records.get_mut(at) else { return };
        let mut anode = anode_in(bytes);
        if is_older {
            anode.generation = Generation(anode.generation.0.saturating_sub(1));
        } else {
            anode.kind = AnodeKind::Fifo;
        }
        flags.is_new = true;
        **bytes = anode.encode();
        self.told.push(format!("{} is another file, older: {is_older}", anode.number));
    }

    fn change_begin(&mut self, records: &mut [StreamRecord]) {
        let which = self.below(3);
        let Some(StreamRecord::Begin(begin)) = records.first_mut() else { return };
        match which {
            0 => begin.generation_max = self.prng.below(begin.generation_max + 2),
            1 => begin.anodes_end = self.prng.below(begin.anodes_end + 20),
            _ => begin.block_shift = u8::try_from(12 + self.prng.below(9)).expect("small"),
        }
        self.told.push(format!("{begin:?}"));
    }

    fn change_anode(&mut self, records: &mut [StreamRecord], at: usize) {
        let other = self.number();
        let (which, small) = (self.below(24), self.prng.below(4));
        let more = self.prng.one_in(2);
        let turned = self.prng.one_in(2);
        let Some(StreamRecord::Anode(bytes, flags)) = records.get_mut(at) else { return };
        let mut anode = anode_in(bytes);
        let step = |value: u32| if more { value.wrapping_add(1) } else { value.wrapping_sub(1) };
        match which {
            0 | 1 => anode.generation = Generation(anode.generation.0.wrapping_add(1 + small)),
            2 | 3 => {
                let kinds = AnodeKind::ALL;
                anode.kind = kinds[usize::try_from(other).expect("small") % kinds.len()];
            }
            4 => anode.nlink = step(anode.nlink),
            5 | 6 => anode.parent = AnodeNo(other),
            7 => anode.xattr = AnodeNo(if more { 0 } else { other }),
            8 => anode.acl = AnodeNo(if more { 0 } else { other }),
            9 => anode.key[0] ^= 1 << (other % 64),
            10 => anode.depth = if more { anode.depth.saturating_sub(1) } else { anode.depth + 1 },
            11 => anode.entries = step(anode.entries),
            12 => anode.pages = u64::from(step(u32::try_from(anode.pages).expect("small"))),
            13 => anode.size_bytes = [0, 1, 70_000, 1 << 33][usize::try_from(small).expect("4")],
            14 => anode.mode ^= 1 << (other % 12),
            15 => (anode.uid, anode.gid) = (step(anode.uid), step(anode.gid)),
            16 => anode.project = step(anode.project),
            17 => anode.block_shift = u8::try_from(12 + small).expect("small"),
            18 => {
                anode.storage = match anode.storage {
                    StorageMode::Inline => StorageMode::Blocked,
                    StorageMode::Blocked => StorageMode::Inline,
                };
            }
            19 => anode.rdev ^= 77,
            20 => anode.number = AnodeNo(other),
            21 => anode.attributes.0[0] ^= u8::try_from(other % 256).expect("a byte"),
            22 => anode.nlink = 0,
            _ => anode.entries = 0,
        }
        let flags_before = *flags;
        if turned {
            flags.is_new = !flags.is_new;
        }
        let encoded = anode.verify().is_ok().then(|| anode.encode());
        let decodes = |it: &[u8; 512]| Anode::decode(it, anode.fileset, anode.number).is_ok();
        if let Some(encoded) = encoded.filter(decodes) {
            **bytes = encoded;
        }
        let told = format!("{} field {which}: {anode:?}, {flags_before:?}", anode.number);
        self.told.push(told);
    }

    fn change_page(&mut self, records: &mut [StreamRecord], at: usize) {
        let (which, small) = (self.below(9), self.prng.below(5));
        let other = self.number();
        let Some(StreamRecord::Page(sent)) = records.get(at) else { return };
        let mut index = sent.index();
        let mut page = [0; PAGE_BYTES];
        sent.put(&mut page);
        let all: Vec<_> =
            dirents(&page).map(|it| (it.offset, it.anode, it.generation, it.kind)).collect();
        let dirent = all.get(usize::try_from(other).expect("small") % all.len().max(1));
        match (which, dirent) {
            // Which file, of which age and kind.
            (0..=2, Some(&(offset, anode, generation, kind))) => {
                let kinds = AnodeKind::ALL;
                let kind = if which == 2 { kinds[at % kinds.len()] } else { kind };
                let anode = if which == 0 { AnodeNo(other) } else { anode };
                let generation = Generation(generation.0 ^ u64::from(which == 1));
                retarget(&mut page[head_at(offset)], anode, generation, kind);
            }
            (3, _) => index = index.wrapping_add(1 + small),
            // Depth, or the next page of attributes.
            (4 | 5, _) => page[AUX_OFFSET + 8] ^= u8::try_from(1 + small).expect("small"),
            (6, _) => page[AUX_OFFSET] ^= u8::try_from(1 + small).expect("small"),
            (7, _) => page[COUNT_OFFSET] ^= u8::try_from(1 + small).expect("small"),
            (_, _) => page[PAGE_HEADER_BYTES + usize::try_from(other % 64).expect("small")] ^= 1,
        }
        records[at] = StreamRecord::Page(StreamPage::of(&page, index));
        self.told.push(format!("page {index} at {at}: change {which}"));
    }
}

/// Files whose attributes lie in containers, some with values of several pages; and in a directory
/// whose names stay what they are, files and directories that change.
fn with_attributes(pool: &Pool, round: u8) {
    let (caller, root) = (Caller::root(), pool.root());
    let steady = match pool.lookup(&caller, root, b"steady") {
        Ok(found) => found.ino,
        Err(_) => {
            let new = NewInode::new(FileKind::Directory, 0o755);
            pool.create(&caller, root, b"steady", new, None).expect("there is room").ino
        }
    };
    for number in 0..6 {
        let kind = if number % 3 == 0 { FileKind::Directory } else { FileKind::Regular };
        let called = format!("steady-{number}");
        let ino = match pool.lookup(&caller, steady, called.as_bytes()) {
            Ok(found) => found.ino,
            Err(_) => {
                let new = NewInode::new(kind, 0o755);
                pool.create(&caller, steady, called.as_bytes(), new, None).expect("it fits").ino
            }
        };
        let set = SetAttr { mode: Some(0o700 + u16::from(round)), ..SetAttr::default() };
        pool.setattr(&caller, ino, &set, None).expect("it is there");
        if kind == FileKind::Regular {
            pool.write(&caller, ino, 5_000 * u64::from(round), &[round; 9_000]).expect("it fits");
        }
    }
    for number in 0..4 {
        let kind = if number % 2 == 0 { FileKind::Regular } else { FileKind::Directory };
        let called = format!("with-{number}-{round}");
        let made = pool.create(&caller, root, called.as_bytes(), NewInode::new(kind, 0o755), None);
        let made = made.expect("there is room").ino;
        for (name, bytes) in [("user.a", 900), ("user.b", 9_000), ("user.c", 3_000)] {
            let value = vec![round; bytes];
            let mode = XattrMode::Set;
            pool.setxattr(&caller, made, name.as_bytes(), &value, mode, None).expect("it fits");
        }
        if round > 0 {
            let earlier = format!("with-{number}-{}", round - 1);
            let found = pool.lookup(&caller, root, earlier.as_bytes()).expect("it is there").ino;
            let mode = XattrMode::Set;
            pool.setxattr(&caller, found, b"user.a", b"now short", mode, None).expect("it fits");
            if number == 0 {
                pool.removexattr(&caller, found, b"user.b", None).expect("it is there");
            }
        }
    }
}

/// Goal: no stream makes a pool wrong: what is received is whole, even if the stream contradicts
/// its own records or its base snapshot. Method: true streams, whole and from a snapshot on,
/// and up to three lies: fields of anodes, pages, flags, files left out, removed or taken from
/// other streams; checksums and totals are right. What is taken is checked.
#[test]
fn a_stream_that_lies_is_refused_or_harmless() {
    let source = source(41, 2);
    with_attributes(&source.pool, 0);
    take(&source.pool, "d0");
    with_attributes(&source.pool, 1);
    work(&source.pool, 4_299, 80);
    take(&source.pool, "d1");
    let whole = [("d0", None), ("d1", None), ("d1", Some("d0")), ("c1", None)];
    let whole = whole.map(|(to, from)| send_from(&source.pool, from, to, None));
    let others = whole.each_ref().map(|stream| decoded(stream));
    let numbers = others[1].iter().filter_map(|record| {
        let StreamRecord::Anode(bytes, _) = record else { return None };
        Some(anode_in(bytes).number.0)
    });
    let numbers: BTreeSet<u64> = numbers.chain([1, 2, 3, 4, 5]).collect();
    let numbers: Vec<u64> = numbers.into_iter().collect();
    let fresh = |first: Option<&[u8]>| -> (SharedDevice, Pool) {
        let device = pool_of(POOL_BYTES, 9);
        let pool = open(&device, "root", None);
        first.map(|stream| receive(&pool, stream).expect("there is room"));
        (device, pool)
    };
    let text = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first_seed, lies) = (text("HOLDFAST_SEED").unwrap_or(0), text("HOLDFAST_FUZZ"));
    let (mut taken, mut refused) = (0, 0);
    let mut pools = [fresh(None), fresh(Some(&whole[0]))];
    for seed in first_seed..first_seed + lies.unwrap_or(LIES) {
        // Two of three are differences.
        let of = [0, 2, 2][usize::try_from(seed % 3).expect("small")];
        let which = usize::from(of == 2);
        let mut stream = others[of].clone();
        let numbers = numbers.clone();
        let prng = Prng::from_seed(seed);
        let mut liar = Liar { prng, others: &others, numbers, told: Vec::new() };
        for _ in 0..1 + liar.below(3) {
            liar.lie(&mut stream);
        }
        let told = liar.told;
        let (device, pool) = &pools[which];
        match receive(pool, &encoded(&stream)) {
            Ok(_) => {
                taken += 1;
                pool.close().expect("nothing fails");
                let when = format!("seed {seed}: {told:#?}");
                expect_clean(device, &when).unwrap_or_else(|found| panic!("{found}"));
                pools[which] = fresh((which == 1).then_some(&whole[0]));
            }
            Err(failure) => {
                refused += 1;
                let is_sense = matches!(
                    failure.error,
                    ReceiveError::Senseless { .. } | ReceiveError::Bad(_) | ReceiveError::Fs(_)
                );
                assert!(is_sense, "seed {seed}: {failure:?}: {told:#?}");
                if failure.token.is_some() {
                    assert!(
                        pool.fileset_admin().abort_receiving(&name("copy")).expect("nobody sends"),
                        "{seed}"
                    );
                }
                free_all(pool);
            }
        }
    }
    assert!(taken > 5 && refused > 20, "{taken} taken, {refused} refused");
    println!("{taken} taken, {refused} refused");
    for (device, pool) in &pools {
        pool.close().expect("nothing fails");
        assert_clean(device);
    }
}

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
        let Ok(head) = StreamRecordHead::decode(*front, sequence) else { continue };
        let body = &whole[record.clone()][RECORD_HEAD_BYTES..];
        let Ok(StreamRecord::Page(page)) = head.record(body, sequence, None) else { continue };
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
            true => {
                pool.fileset_admin().verify_stream(&name("copy"), &mut &stream[..], &mut |_, _| ())
            }
            false => pool.fileset_admin().receive(
                &name("copy"),
                &mut &stream[..],
                random,
                &mut |_, _| (),
            ),
        };
        let failure = received.expect_err("a name lies where another belongs");
        assert!(failure.error.to_string().contains("not where it belongs"), "{failure:?}");
    }
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}

/// Goal: the rest of a stream does not bring files newer than its beginning said: who makes files
/// in the fileset later would give them the same generations. Method: the rest says a higher one.
#[test]
fn a_rest_with_newer_files_is_refused() {
    let source = source(85, 1);
    let whole = send_from(&source.pool, None, "c0", None);
    let starts = records(&whole);
    let device = pool_of(POOL_BYTES, 9);
    let pool = open(&device, "root", None);
    let failure = receive(&pool, &whole[..starts[starts.len() / 2]]).expect_err("it breaks off");
    let rest = send_from(&source.pool, None, "c0", failure.token);
    let mut newer = decoded(&rest);
    let Some(StreamRecord::Begin(begin)) = newer.first_mut() else { panic!("it begins") };
    begin.generation_max += 1000;
    let failure = receive(&pool, &encoded(&newer)).expect_err("it says other things than before");
    assert!(failure.error.to_string().contains("newer files"), "{failure:?}");
    receive(&pool, &rest).expect("what came is kept");
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}
