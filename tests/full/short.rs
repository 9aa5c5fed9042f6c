//! What a full pool takes of a write, it says.

use engine::api::{Caller, FileKind, FileSystem, FsError, Ino, Stability, WriteData};

use super::{Ground, Shape};

const SHAPE: Shape = Shape::new(16, 4096, 128, 14);
/// No multiple of anything.
const PIECE_BYTES: usize = 777_777;

fn size_of(ground: &Ground, ino: Ino) -> u64 {
    ground.pool.getattr(&Caller::root(), ino).expect("it is there").size_bytes
}

/// Byte `at` of the files here.
fn byte_at(at: u64) -> u8 {
    (at % 251).to_le_bytes()[0]
}

fn expect_content(ground: &Ground, ino: Ino, size: u64) {
    let mut bytes = Vec::new();
    let length = usize::try_from(size).expect("a test's file is small");
    ground
        .pool
        .read(&Caller::root(), ino, 0, length + 1, &mut bytes)
        .expect("memory does not fail");
    assert!(bytes.len() == length && (0..).zip(&bytes).all(|(at, byte)| *byte == byte_at(at)));
}

/// Appends until there is no room; returns how much was taken, and how many writes were cut short.
fn fill(ground: &Ground, ino: Ino) -> (u64, u32) {
    let (mut size, mut short) = (size_of(ground, ino), 0);
    loop {
        let piece: Vec<u8> = (size..).map(byte_at).take(PIECE_BYTES).collect();
        match ground.pool.write_some(
            &Caller::root(),
            ino,
            size,
            &WriteData::Lent(&piece),
            Stability::Unstable,
            None,
        ) {
            Ok(count) => {
                assert!(count > 0, "something is written, or why nothing is told");
                short += u32::from(count < piece.len());
                size += u64::try_from(count).expect("small");
            }
            Err(error) => {
                assert_eq!(error, FsError::NoSpace);
                return (size, short);
            }
        }
    }
}

/// Goal: a file has what was acknowledged and no byte more, however often space runs out. Method:
/// one that is appended to until the pool is full, then on in what others give back.
#[test]
fn what_a_full_pool_takes_of_a_write_is_what_it_says() {
    let ground = Ground::new(&SHAPE);
    let (pool, root) = (&ground.pool, ground.pool.root());
    let others: Vec<String> = (0..3).map(|number| format!("f{number}")).collect();
    for name in &others {
        let ino = ground.make(root, name, FileKind::Regular).expect("there is room");
        pool.write(&Caller::root(), ino, 0, &[1; 1_000_000]).expect("there is room");
    }
    let log = ground.make(root, "log", FileKind::Regular).expect("there is room");
    let mut cut = 0;
    for other in &others {
        let (size, short) = fill(&ground, log);
        assert_eq!(size_of(&ground, log), size);
        expect_content(&ground, log, size);
        cut += short;
        pool.unlink(&Caller::root(), root, other.as_bytes(), None)
            .expect("a full pool can be emptied");
    }
    assert!(cut > 0, "no write was cut short");
    assert_eq!(ground.defects(), None);
}

/// The same of a copy inside the server.
#[test]
fn what_a_full_pool_takes_of_a_copy_is_what_it_says() {
    let ground = Ground::new(&SHAPE);
    let (pool, root) = (&ground.pool, ground.pool.root());
    let source = ground.make(root, "source", FileKind::Regular).expect("there is room");
    let bytes: Vec<u8> = (0..).map(byte_at).take(PIECE_BYTES).collect();
    pool.write(&Caller::root(), source, 0, &bytes).expect("there is room");
    let length = u64::try_from(bytes.len()).expect("small");
    for number in 0.. {
        let name = format!("copy{number}");
        let Ok(copy) = ground.make(root, &name, FileKind::Regular) else { break };
        let copied = pool.copy_range(&Caller::root(), (source, 0), (copy, 0), length);
        let told = copied.as_ref().copied().unwrap_or(0);
        assert_eq!(size_of(&ground, copy), told, "{copied:?}");
        expect_content(&ground, copy, told);
        if told < length {
            assert_eq!(ground.defects(), None);
            return;
        }
    }
    panic!("the last copy was whole");
}
