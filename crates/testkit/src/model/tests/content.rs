use engine::api::{Caller, FILE_BYTES_MAX, FileSystem, FsError, SetAttr};

use super::super::content::Content;
use super::{ROOT, file, model};
use crate::canon::PAGE_BYTES;

fn bytes_of(content: &Content) -> Vec<u8> {
    let mut bytes = Vec::new();
    content.read(0, usize::MAX, &mut bytes);
    bytes
}

/// Goal: pages are no part of what content is. Method: the same steps on a plain vector.
#[test]
fn sparse_content_equals_a_vector_of_bytes() {
    let mut random = runtime::prng::Prng::from_seed(7);
    let (mut content, mut plain) = (Content::default(), Vec::new());
    for step in 0..400_u64 {
        let offset = random.below(5 * u64::try_from(PAGE_BYTES).expect("small"));
        let at = usize::try_from(offset).expect("small");
        if random.one_in(3) {
            content.resize(offset);
            plain.resize(at, 0);
        } else {
            let length = usize::try_from(random.below(9000)).expect("small");
            let data = vec![u8::try_from(1 + step % 255).expect("a byte"); length];
            content.write(offset, &data);
            plain.resize(plain.len().max(at + length), 0);
            plain[at..at + length].copy_from_slice(&data);
        }
        assert_eq!(bytes_of(&content), plain, "step {step}");
    }
}

#[test]
fn a_copy_does_not_see_later_writes() {
    let mut content = Content::default();
    content.write(5, b"old");
    let copy = content.clone();
    content.write(5, b"new");
    assert_eq!(bytes_of(&copy), b"\0\0\0\0\0old");
}

#[test]
fn the_largest_file_ends_at_the_limit_and_not_past_it() {
    let fs = model();
    let ino = file(&fs, fs.root(), "f");
    fs.write(&ROOT, ino, FILE_BYTES_MAX - 1, b"x").expect("the last byte there is");
    let past = fs.write(&ROOT, ino, FILE_BYTES_MAX, b"x");
    assert_eq!(past, Err(FsError::FileTooLarge));
    assert_eq!(fs.write(&ROOT, ino, u64::MAX, b"x"), Err(FsError::FileTooLarge));
    assert_eq!(fs.write(&ROOT, ino, u64::MAX, b""), Ok(()));
    let change = SetAttr { size_bytes: Some(FILE_BYTES_MAX + 1), ..SetAttr::default() };
    assert_eq!(fs.setattr(&ROOT, ino, &change, None), Err(FsError::FileTooLarge));
    let attr = fs.getattr(&Caller::root(), ino).expect("it is there");
    assert_eq!((attr.size_bytes, attr.blocks_512), (FILE_BYTES_MAX, 8));
}

#[test]
fn restart_drops_orphans_and_references_and_keeps_the_rest() {
    let fs = model();
    let (kept, orphan) = (file(&fs, fs.root(), "kept"), file(&fs, fs.root(), "orphan"));
    fs.unlink(&ROOT, fs.root(), b"orphan", None).expect("the name is there");
    assert_eq!(fs.fork().getattr(&Caller::root(), orphan).map(|attr| attr.nlink), Ok(0));
    let reopened = fs.reopened();
    assert_eq!(reopened.getattr(&Caller::root(), orphan), Err(FsError::NotFound));
    reopened.unlink(&ROOT, fs.root(), b"kept", None).expect("the name is there");
    assert_eq!(reopened.getattr(&Caller::root(), kept), Err(FsError::NotFound));
}

#[test]
#[should_panic(expected = "2 given back of 1")]
fn giving_back_a_reference_too_many_is_a_bug_of_the_test() {
    let fs = model();
    let ino = file(&fs, fs.root(), "f");
    fs.forget(ino, 2);
}
