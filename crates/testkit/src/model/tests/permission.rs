use engine::api::{
    AccessRights, Caller, Fallocate, FileKind, FileSystem, FsError, NewInode, RenameMode, Seek,
    SetAttr, SetTime, Timestamp,
};

use super::{ROOT, directory, file, file_of, mode_of, model, try_make, user};

fn set(change: impl FnOnce(&mut SetAttr)) -> SetAttr {
    let mut wanted = SetAttr::default();
    change(&mut wanted);
    wanted
}

#[test]
fn owner_group_and_others_each_have_their_own_bits() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    // Write for one class only; the class that fits first decides.
    for (mode, allowed) in [
        (0o400, [false, false, false]),
        (0o200, [true, false, false]),
        (0o020, [false, true, false]),
        (0o002, [false, false, true]),
    ] {
        let ino = file_of(&fs, &user(7), open, &format!("f{mode:o}"), mode);
        let member = Caller { groups: vec![3, 7], ..user(8) };
        let truncate = set(|change| change.size_bytes = Some(0));
        let answers = [user(7), member, user(9)]
            .map(|caller| fs.setattr(&caller, ino, &truncate, None).is_ok());
        assert_eq!(answers, allowed, "{mode:o}");
        assert!(fs.setattr(&ROOT, ino, &truncate, None).is_ok());
    }
}

#[test]
fn a_caller_whom_a_kernel_has_checked_is_refused_nothing() {
    let fs = model();
    let closed = directory(&fs, fs.root(), "closed", 0);
    let unchecked = Caller { loses_set_bits: false, ..Caller::checked_by_kernel(7, 7) };
    let ino = file_of(&fs, &unchecked, closed, "f", 0);
    assert_eq!(fs.getattr(&Caller::root(), ino).map(|attr| (attr.uid, attr.gid)), Ok((7, 7)));
    let device = NewInode { rdev: 259, ..NewInode::new(FileKind::CharDevice, 0) };
    assert_eq!(fs.create(&unchecked, closed, b"n", device, None).map(|attr| attr.rdev), Ok(259));
    assert_eq!(fs.create(&user(7), closed, b"o", device, None), Err(FsError::AccessDenied));
}

#[test]
fn only_the_superuser_makes_devices() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    for kind in [FileKind::BlockDevice, FileKind::CharDevice] {
        assert_eq!(try_make(&fs, &user(7), (open, b"n"), kind, 0), Err(FsError::NotPermitted));
    }
    assert!(try_make(&fs, &user(7), (open, b"n"), FileKind::Fifo, 0).is_ok());
}

#[test]
fn the_sticky_bit_keeps_names_for_their_owners() {
    let fs = model();
    let sticky = directory(&fs, fs.root(), "sticky", 0o1777);
    let open = directory(&fs, fs.root(), "open", 0o777);
    file_of(&fs, &user(7), sticky, "f", 0o666);
    file_of(&fs, &user(8), sticky, "g", 0o666);
    let refused = Err(FsError::NotPermitted);
    let rename = |caller: u32, source: &[u8], target: &[u8]| {
        fs.rename(&user(caller), (sticky, source), (sticky, target), RenameMode::Replace, None)
    };
    assert_eq!(fs.unlink(&user(8), sticky, b"f", None), refused);
    assert_eq!(rename(8, b"f", b"h"), refused, "moving it away");
    assert_eq!(rename(8, b"g", b"f"), refused, "replacing it");
    assert_eq!(rename(7, b"f", b"g"), refused, "replacing another's");
    let out = (open, &b"f"[..]);
    assert_eq!(fs.rename(&user(8), (sticky, b"f"), out, RenameMode::Replace, None), refused);
    assert_eq!(rename(7, b"f", b"h"), Ok(()));
    let change = set(|change| change.uid = Some(9));
    fs.setattr(&ROOT, sticky, &change, None).expect("the superuser may");
    assert_eq!(fs.unlink(&user(9), sticky, b"h", None), Ok(()), "the owner of the directory may");
}

#[test]
fn only_the_owner_changes_mode_and_times() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    let ino = file_of(&fs, &user(7), open, "f", 0o622);
    let time = SetTime::To(Timestamp::default());
    for change in [
        set(|change| change.mode = Some(0o777)),
        set(|change| change.mtime = Some(time)),
        set(|change| change.atime = Some(SetTime::Now)),
        set(|change| change.uid = Some(8)),
        set(|change| change.gid = Some(7)),
    ] {
        assert_eq!(
            fs.setattr(&user(8), ino, &change, None),
            Err(FsError::NotPermitted),
            "{change:?}"
        );
    }
    let touch = set(|change| {
        change.atime = Some(SetTime::Now);
        change.mtime = Some(SetTime::Now);
    });
    assert!(fs.setattr(&user(8), ino, &touch, None).is_ok(), "who may write may touch");
    let lock = set(|change| change.mode = Some(0o600));
    assert!(fs.setattr(&user(7), ino, &lock, None).is_ok());
    assert_eq!(fs.setattr(&user(8), ino, &touch, None), Err(FsError::AccessDenied));
}

#[test]
fn an_owner_gives_a_file_to_own_groups_and_to_nobody() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    let owner = Caller { groups: vec![20], ..user(7) };
    let ino = file_of(&fs, &owner, open, "f", 0o644);
    let chown = |uid, gid| {
        let change = set(|change| (change.uid, change.gid) = (uid, gid));
        fs.setattr(&owner, ino, &change, None).map(|attr| (attr.uid, attr.gid))
    };
    assert_eq!(chown(Some(8), None), Err(FsError::NotPermitted));
    assert_eq!(chown(None, Some(21)), Err(FsError::NotPermitted));
    assert_eq!(chown(Some(7), Some(20)), Ok((7, 20)));
}

#[test]
fn set_bits_go_when_the_owner_or_the_content_changes() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    let ino = file_of(&fs, &user(7), open, "f", 0o777);
    let with = |mode| set(|change| change.mode = Some(mode));
    let reset = || fs.setattr(&ROOT, ino, &with(0o6777), None).expect("the superuser may");
    reset();
    fs.write(&user(8), ino, 0, b"").expect("no bytes");
    assert_eq!(mode_of(&fs, ino), 0o6777, "a write of nothing");
    fs.write(&ROOT, ino, 0, b"x").expect("the superuser may");
    assert_eq!(mode_of(&fs, ino), 0o6777, "a write by the superuser");
    fs.write(&user(8), ino, 0, b"x").expect("others may write");
    assert_eq!(mode_of(&fs, ino), 0o777, "a write by another");
    reset();
    let truncate = set(|change| change.size_bytes = Some(0));
    fs.setattr(&user(8), ino, &truncate, None).expect("others may write");
    assert_eq!(mode_of(&fs, ino), 0o777, "a truncation by another");
    reset();
    fs.setattr(&ROOT, ino, &set(|change| change.uid = Some(7)), None).expect("the superuser may");
    assert_eq!(mode_of(&fs, ino), 0o777, "chown, even by the superuser");
    let change = set(|change| (change.uid, change.mode) = (Some(7), Some(0o4755)));
    fs.setattr(&ROOT, ino, &change, None).expect("the superuser may");
    assert_eq!(mode_of(&fs, ino), 0o4755, "a mode that comes along stands");
    fs.setattr(&ROOT, ino, &with(0o2767), None).expect("the superuser may");
    fs.setattr(&user(7), ino, &set(|change| change.gid = Some(7)), None).expect("own group");
    assert_eq!(mode_of(&fs, ino), 0o2767, "setgid without group execution is no privilege");
    fs.write(&user(8), ino, 0, b"x").expect("others may write");
    assert_eq!(mode_of(&fs, ino), 0o767, "but strangers do not keep it");
    fs.setattr(&ROOT, open, &with(0o2777), None).expect("the superuser may");
    fs.setattr(&ROOT, open, &set(|change| change.gid = Some(20)), None).expect("the superuser may");
    assert_eq!(mode_of(&fs, open), 0o2777, "directories keep setgid");
}

#[test]
fn setgid_directories_hand_down_their_group() {
    let fs = model();
    let shared = directory(&fs, fs.root(), "shared", 0o2777);
    fs.setattr(&ROOT, shared, &set(|change| change.gid = Some(20)), None)
        .expect("the superuser may");
    let made = |name: &[u8], kind, mode| {
        let ino = try_make(&fs, &user(7), (shared, name), kind, mode).expect("a new name");
        fs.getattr(&Caller::root(), ino).map(|attr| (attr.gid, attr.mode)).expect("it is there")
    };
    assert_eq!(made(b"f", FileKind::Regular, 0o644), (20, 0o644));
    assert_eq!(made(b"d", FileKind::Directory, 0o755), (20, 0o2755));
    assert_eq!(made(b"program", FileKind::Regular, 0o2755), (20, 0o755), "no member of 20");
    assert_eq!(made(b"lock", FileKind::Regular, 0o2644), (20, 0o2644));
    let link =
        fs.symlink(&user(7), shared, b"s", b"f", NewInode::SYMLINK, None).expect("a new name");
    assert_eq!((link.gid, link.mode), (20, 0o777));
    let elsewhere = file(&fs, fs.root(), "f");
    assert_eq!(fs.getattr(&Caller::root(), elsewhere).map(|attr| attr.gid), Ok(0));
}

#[test]
fn a_stranger_to_the_group_cannot_set_setgid() {
    let fs = model();
    let shared = directory(&fs, fs.root(), "shared", 0o2777);
    fs.setattr(&ROOT, shared, &set(|change| change.gid = Some(20)), None)
        .expect("the superuser may");
    let ino = file_of(&fs, &user(7), shared, "f", 0o755);
    let change = set(|change| change.mode = Some(0o6755));
    assert_eq!(fs.setattr(&user(7), ino, &change, None).map(|attr| attr.mode), Ok(0o4755));
    let member = Caller { groups: vec![20], ..user(7) };
    assert_eq!(fs.setattr(&member, ino, &change, None).map(|attr| attr.mode), Ok(0o6755));
}

#[test]
fn a_directory_that_moves_must_be_writable_for_its_dot_dot() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    let other = directory(&fs, fs.root(), "other", 0o777);
    directory(&fs, open, "d", 0o755);
    let rename =
        |target| fs.rename(&user(7), (open, b"d"), (target, b"e"), RenameMode::NoReplace, None);
    assert_eq!(rename(other), Err(FsError::AccessDenied));
    assert_eq!(rename(open), Ok(()), "its parent stays");
}

#[test]
fn content_is_for_those_who_may_open_it() {
    let fs = model();
    let open = directory(&fs, fs.root(), "open", 0o777);
    let ino = file_of(&fs, &user(7), open, "f", 0o640);
    fs.write(&user(7), ino, 0, b"secret").expect("the owner may");
    let (owner, member, other) = (user(7), Caller { groups: vec![7], ..user(8) }, user(9));
    let refused = Err(FsError::AccessDenied);
    let may = |caller: &Caller| fs.access(caller, ino).expect("it is there");
    let read = |caller| fs.read(caller, ino, 0, 9, &mut Vec::new()).map(|_| ());
    let write = |caller| fs.write(caller, ino, 0, b"");
    let sync = |caller| fs.fsync(caller, ino, false);
    let seek = |caller| fs.seek(caller, ino, 0, Seek::Data).map(drop);
    let take = |caller| fs.fallocate(caller, ino, 0, 1, Fallocate::Allocate { keep_size: true });
    assert_eq!([read(&owner), write(&owner), sync(&owner), seek(&owner)], [const { Ok(()) }; 4]);
    assert_eq!([read(&member), sync(&member), seek(&member)], [const { Ok(()) }; 3]);
    assert_eq!([write(&member), take(&member)], [refused.clone(), refused.clone()]);
    for done in [read(&other), write(&other), sync(&other), seek(&other), take(&other)] {
        assert_eq!(done, refused);
    }
    let access = |reads, writes, executes| AccessRights { reads, writes, executes };
    assert_eq!(may(&owner), access(true, true, false));
    assert_eq!(may(&member), access(true, false, false));
    assert_eq!(may(&other), AccessRights::default());
    assert_eq!(may(&ROOT), access(true, true, false), "nobody may execute it");
    assert_eq!(may(&Caller::checked_by_kernel(9, 9)), access(true, true, true));
}

#[test]
fn names_are_for_those_who_may_read_the_directory() {
    let fs = model();
    let closed = directory(&fs, fs.root(), "d", 0o711);
    assert_eq!(fs.readdir(&user(7), closed, 0, &mut |_| true), Err(FsError::AccessDenied));
    assert_eq!(fs.readdir(&ROOT, closed, 0, &mut |_| true), Ok(()));
    let found = fs.access(&user(7), closed);
    assert_eq!(found, Ok(AccessRights { reads: false, writes: false, executes: true }));
}
