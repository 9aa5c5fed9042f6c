//! Which error comes first. Each case holds several reasons to refuse; Linux names the first.

use engine::api::{
    Caller, FileKind, FileSystem, FsError, LINKS_MAX, NAME_BYTES_MAX, NewInode, RenameMode,
    SYMLINK_BYTES_MAX, SetAttr,
};

use super::{ROOT, directory, file, file_of, model, try_make, user};

const TOO_LONG: [u8; NAME_BYTES_MAX + 1] = [b'n'; NAME_BYTES_MAX + 1];
const FILE: NewInode = NewInode::new(FileKind::Regular, 0o644);

#[test]
fn the_walk_fails_before_the_name_is_looked_at() {
    let fs = model();
    let closed = directory(&fs, fs.root(), "closed", 0o700);
    let plain = file(&fs, fs.root(), "f");
    let gone = directory(&fs, fs.root(), "gone", 0o777);
    fs.rmdir(&ROOT, fs.root(), b"gone", None).expect("it is empty");
    for (parent, expected) in [
        (plain, FsError::NotDirectory),
        (closed, FsError::AccessDenied),
        (gone, FsError::NotFound),
        (fs.root(), FsError::NameTooLong),
    ] {
        let at = (parent, &TOO_LONG[..]);
        assert_eq!(fs.lookup(&user(7), parent, &TOO_LONG).err(), Some(expected.clone()));
        assert_eq!(fs.create(&user(7), at.0, at.1, FILE, None).err(), Some(expected.clone()));
        assert_eq!(fs.link(&user(7), plain, at.0, at.1, None).err(), Some(expected.clone()));
        assert_eq!(fs.unlink(&user(7), at.0, at.1, None).err(), Some(expected.clone()));
        assert_eq!(fs.rmdir(&user(7), at.0, at.1, None).err(), Some(expected.clone()));
        let renamed = fs.rename(&user(7), at, at, RenameMode::Replace, None);
        assert_eq!(renamed.err(), Some(expected));
    }
}

#[test]
fn a_name_that_is_there_comes_before_permission_to_add_one() {
    let fs = model();
    let guarded = directory(&fs, fs.root(), "guarded", 0o755);
    let inside = file(&fs, guarded, "f");
    let create = |name: &[u8]| fs.create(&user(7), guarded, name, FILE, None).err();
    assert_eq!(create(b"f"), Some(FsError::Exists));
    assert_eq!(create(b"g"), Some(FsError::AccessDenied));
    assert_eq!(fs.unlink(&user(7), guarded, b"g", None), Err(FsError::NotFound));
    assert_eq!(fs.unlink(&user(7), guarded, b"f", None), Err(FsError::AccessDenied));
    assert_eq!(fs.link(&user(7), inside, guarded, b"f", None).err(), Some(FsError::Exists));
    let device = NewInode { kind: FileKind::CharDevice, ..FILE };
    assert_eq!(fs.create(&user(7), guarded, b"n", device, None).err(), Some(FsError::AccessDenied));
}

#[test]
fn permission_and_the_sticky_bit_come_before_the_kind() {
    let fs = model();
    let guarded = directory(&fs, fs.root(), "guarded", 0o755);
    directory(&fs, guarded, "d", 0o777);
    file(&fs, guarded, "f");
    assert_eq!(fs.unlink(&user(7), guarded, b"d", None), Err(FsError::AccessDenied));
    assert_eq!(fs.rmdir(&user(7), guarded, b"f", None), Err(FsError::AccessDenied));
    let change = SetAttr { mode: Some(0o1777), ..SetAttr::default() };
    fs.setattr(&ROOT, guarded, &change, None).expect("the superuser may");
    assert_eq!(fs.unlink(&user(7), guarded, b"d", None), Err(FsError::NotPermitted));
    assert_eq!(fs.rmdir(&user(7), guarded, b"f", None), Err(FsError::NotPermitted));
    assert_eq!(fs.unlink(&ROOT, guarded, b"d", None), Err(FsError::IsDirectory));
    assert_eq!(fs.rmdir(&ROOT, guarded, b"f", None), Err(FsError::NotDirectory));
}

#[test]
fn a_link_to_a_directory_is_refused_after_the_name_is() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    assert_eq!(fs.link(&ROOT, open, fs.root(), b"open", None).err(), Some(FsError::Exists));
    assert_eq!(fs.link(&ROOT, open, fs.root(), b"new", None).err(), Some(FsError::NotPermitted));
}

#[test]
fn a_file_has_at_most_65535_names() {
    let fs = model();
    let ino = file(&fs, fs.root(), "f");
    for number in 1..LINKS_MAX {
        let name = format!("l{number}");
        fs.link(&ROOT, ino, fs.root(), name.as_bytes(), None).expect("below the limit");
    }
    assert_eq!(fs.getattr(&Caller::root(), ino).map(|attr| attr.nlink), Ok(LINKS_MAX));
    let more = fs.link(&ROOT, ino, fs.root(), b"more", None).err();
    assert_eq!(more, Some(FsError::TooManyLinks));
    fs.unlink(&ROOT, fs.root(), b"l1", None).expect("a name");
    fs.link(&ROOT, ino, fs.root(), b"more", None).expect("below the limit again");
}

#[test]
fn directories_past_the_limit_of_links_report_one() {
    let fs = model();
    let many = directory(&fs, fs.root(), "many", 0o755);
    for number in 0..LINKS_MAX - 2 {
        directory(&fs, many, &format!("d{number}"), 0o755);
    }
    assert_eq!(fs.getattr(&Caller::root(), many).map(|attr| attr.nlink), Ok(LINKS_MAX));
    directory(&fs, many, "more", 0o755);
    assert_eq!(fs.getattr(&Caller::root(), many).map(|attr| attr.nlink), Ok(1));
    fs.rmdir(&ROOT, many, b"more", None).expect("it is empty");
    assert_eq!(fs.getattr(&Caller::root(), many).map(|attr| attr.nlink), Ok(LINKS_MAX));
}

#[test]
fn the_target_of_a_symbolic_link_is_looked_at_first() {
    let fs = model();
    let plain = file(&fs, fs.root(), "f");
    let long = [b't'; SYMLINK_BYTES_MAX + 1];
    let symlink = |parent, name: &[u8], target: &[u8]| {
        fs.symlink(&ROOT, parent, name, target, NewInode::SYMLINK, None).map(drop)
    };
    assert_eq!(symlink(plain, b"s", b""), Err(FsError::NotFound));
    assert_eq!(symlink(plain, b"s", &long), Err(FsError::NameTooLong));
    assert_eq!(symlink(plain, b"s", b"t"), Err(FsError::NotDirectory));
    assert_eq!(symlink(fs.root(), b"f", b"t"), Err(FsError::Exists));
    assert_eq!(symlink(fs.root(), b"s", &long[1..]), Ok(()));
}

#[test]
fn rename_looks_the_source_up_first_and_judges_modes_before_permission() {
    let fs = model();
    let guarded = directory(&fs, fs.root(), "guarded", 0o755);
    let inner = directory(&fs, guarded, "inner", 0o755);
    file(&fs, guarded, "f");
    let rename = |source: &[u8], target, mode| {
        fs.rename(&user(7), (guarded, source), target, mode, None).err()
    };
    let no = RenameMode::NoReplace;
    assert_eq!(rename(b"none", (guarded, &TOO_LONG), no), Some(FsError::NotFound));
    assert_eq!(rename(b"f", (guarded, &TOO_LONG), no), Some(FsError::NameTooLong));
    assert_eq!(rename(b"f", (guarded, b"inner"), no), Some(FsError::Exists));
    assert_eq!(rename(b"f", (guarded, b"f"), no), Some(FsError::Exists));
    let exchange = RenameMode::Exchange;
    assert_eq!(rename(b"f", (guarded, b"none"), exchange), Some(FsError::NotFound));
    assert_eq!(rename(b"f", (guarded, b"inner"), exchange), Some(FsError::AccessDenied));
    let replace = RenameMode::Replace;
    assert_eq!(rename(b"inner", (inner, b"x"), replace), Some(FsError::Invalid));
    assert_eq!(rename(b"f", (fs.root(), b"guarded"), replace), Some(FsError::NotEmpty));
    assert_eq!(rename(b"f", (fs.root(), b"guarded"), exchange), Some(FsError::Invalid));
    assert_eq!(rename(b"f", (guarded, b"f"), replace), None, "a name onto itself is nothing");
    assert_eq!(rename(b"f", (guarded, b"inner"), replace), Some(FsError::AccessDenied));
}

#[test]
fn rename_judges_kinds_before_it_looks_into_a_directory() {
    let fs = model();
    let full = directory(&fs, fs.root(), "full", 0o755);
    file(&fs, full, "f");
    file(&fs, fs.root(), "g");
    directory(&fs, fs.root(), "empty", 0o755);
    let rename = |source: &[u8], target: &[u8]| {
        fs.rename(&ROOT, (fs.root(), source), (fs.root(), target), RenameMode::Replace, None)
    };
    assert_eq!(rename(b"g", b"full"), Err(FsError::IsDirectory));
    assert_eq!(rename(b"full", b"g"), Err(FsError::NotDirectory));
    assert_eq!(rename(b"empty", b"full"), Err(FsError::NotEmpty));
    assert_eq!(fs.rmdir(&ROOT, fs.root(), b"full", None), Err(FsError::NotEmpty));
    assert_eq!(rename(b"full", b"empty"), Ok(()));
}

#[test]
fn what_is_no_name_is_refused_everywhere() {
    let fs = model();
    file(&fs, fs.root(), "f");
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        let at = (fs.root(), name);
        let invalid = Err(FsError::Invalid);
        assert_eq!(try_make(&fs, &ROOT, at, FileKind::Regular, 0).map(drop), invalid);
        assert_eq!(fs.unlink(&ROOT, at.0, name, None), invalid);
        assert_eq!(fs.rmdir(&ROOT, at.0, name, None), invalid);
        assert_eq!(fs.rename(&ROOT, at, (at.0, b"g"), RenameMode::Replace, None), invalid);
        assert_eq!(fs.rename(&ROOT, (at.0, b"f"), at, RenameMode::Replace, None), invalid);
    }
}

#[test]
fn kinds_come_before_limits_and_permission_in_content() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    let fifo = try_make(&fs, &ROOT, (open, b"p"), FileKind::Fifo, 0).expect("a new name");
    let link =
        fs.symlink(&ROOT, open, b"s", b"t", NewInode::SYMLINK, None).expect("a new name").ino;
    let huge = SetAttr { size_bytes: Some(u64::MAX), ..SetAttr::default() };
    for (ino, expected) in
        [(open, FsError::IsDirectory), (fifo, FsError::Invalid), (link, FsError::Invalid)]
    {
        assert_eq!(fs.write(&ROOT, ino, u64::MAX, b"x").err(), Some(expected.clone()));
        assert_eq!(fs.setattr(&user(7), ino, &huge, None).err(), Some(expected.clone()));
        assert_eq!(fs.read(&Caller::root(), ino, 0, 1, &mut Vec::new()).err(), Some(expected));
    }
    let plain = file_of(&fs, &ROOT, open, "f", 0o600);
    assert_eq!(fs.readlink(&Caller::root(), plain), Err(FsError::Invalid));
    let listed = fs.readdir(&Caller::root(), plain, 0, &mut |_| true);
    assert_eq!(listed, Err(FsError::NotDirectory));
    let mode = SetAttr { mode: Some(0), ..SetAttr::default() };
    assert_eq!(fs.setattr(&ROOT, link, &mode, None).err(), Some(FsError::NotSupported));
}
