use engine::api::{Caller, FileKind, FsError, NewInode, SetTime, Timestamp};
use whole_system::behaviours;

static ROOT: Caller = Caller::root();
const FILE: NewInode = NewInode::new(FileKind::Regular, 0o644);

behaviours! {
    fn create_makes_an_empty_file_of_the_caller(at) {
        at.does("mode / 777\nu7 create /f file 640");
        let attr = at.attr("/f");
        assert_eq!((attr.kind, attr.mode, attr.nlink), (FileKind::Regular, 0o640, 1));
        assert_eq!((attr.uid, attr.gid, attr.size_bytes), (7, 7, 0));
        assert!(at.content("/f").is_empty());
    }

    fn create_over_any_name_is_refused_and_changes_nothing(at) {
        at.does("create /f file 644\ncreate /d directory 755\nsymlink /s =f");
        at.write("/f", 0, b"here");
        for name in ["f", "d", "s"] {
            at.refuses(&format!("create /{name} file 600"), &FsError::Exists);
            at.refuses(&format!("create /{name} directory 700"), &FsError::Exists);
            at.refuses(&format!("symlink /{name} =t"), &FsError::Exists);
        }
        assert_eq!(at.content("/f"), b"here");
        assert_eq!(at.attr("/d").mode, 0o755);
    }

    fn create_below_what_is_no_directory_is_refused(at) {
        at.does("create /f file 644");
        at.refuses("create /f/x file 644", &FsError::NotDirectory);
        at.refuses("create /none/x file 644", &FsError::NotFound);
    }

    fn mkdir_makes_an_empty_directory_with_two_links(at) {
        at.does("create /d directory 750");
        let attr = at.attr("/d");
        assert_eq!((attr.kind, attr.mode, attr.nlink), (FileKind::Directory, 0o750, 2));
        assert!(at.names("/d").is_empty());
    }

    fn a_directory_counts_its_subdirectories_as_links(at) {
        at.does("create /d directory 755\ncreate /d/f file 644");
        assert_eq!(at.attr("/d").nlink, 2, "files do not count");
        at.does("create /d/a directory 755\ncreate /d/b directory 755");
        at.does("create /d/a/c directory 755");
        assert_eq!(at.attr("/d").nlink, 4);
        at.does("rmdir /d/b");
        assert_eq!(at.attr("/d").nlink, 3);
    }

    fn mknod_keeps_kind_and_device_number(at) {
        let kinds =
            [FileKind::BlockDevice, FileKind::CharDevice, FileKind::Fifo, FileKind::Socket];
        for (kind, name) in kinds.into_iter().zip([b"a", b"b", b"c", b"d"]) {
            let new = NewInode { rdev: 0x0801_2345, ..NewInode::new(kind, 0o600) };
            let made = at.fs().create(&Caller::root(), at.fs().root(), name, new, None);
            let made = made.expect("the name is new");
            let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
            assert_eq!(made.kind, kind);
            assert!(!is_device || made.rdev == 0x0801_2345);
            at.fs().forget(made.ino, 1);
        }
        assert_eq!(at.attr("/a").rdev, 0x0801_2345);
    }

    fn every_new_inode_is_unlike_any_other(at) {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..50 {
            at.does("create /f file 644");
            let attr = at.attr("/f");
            assert!(seen.insert((attr.ino, attr.generation)));
            at.does("unlink /f");
        }
    }

    fn what_is_made_has_the_owner_and_the_times_that_are_asked_for(at) {
        let (fs, time) = (at.fs(), |seconds| Timestamp { seconds, nanoseconds: 5 });
        for (nth, kind) in [FileKind::Regular, FileKind::Directory, FileKind::Symlink]
            .into_iter().enumerate()
        {
            let new = NewInode {
                uid: Some(7),
                gid: Some(20),
                atime: Some(SetTime::To(time(100))),
                mtime: Some(SetTime::To(time(-3))),
                ..NewInode::new(kind, 0o2751)
            };
            let name = format!("n{nth}");
            let (root, name) = (fs.root(), name.as_bytes());
            let made = if kind == FileKind::Symlink {
                fs.symlink(&ROOT, root, name, b"t", new, None)
            } else {
                fs.create(&ROOT, root, name, new, None)
            };
            let made = made.expect("the name is new");
            assert_eq!((made.uid, made.gid, made.mode), (7, 20, 0o2751), "{kind:?}");
            assert_eq!((made.atime, made.mtime), (time(100), time(-3)));
            assert_eq!(made.ctime, made.btime);
            fs.forget(made.ino, 1);
            assert_eq!(at.attr(&format!("/n{nth}")), made);
        }
        let wrong = Timestamp { seconds: 0, nanoseconds: 1_000_000_000 };
        let new = NewInode { atime: Some(SetTime::To(wrong)), ..FILE };
        assert_eq!(fs.create(&ROOT, fs.root(), b"w", new, None), Err(FsError::Invalid));
        assert!(!at.is_there("/w"));
    }

    fn nobody_makes_files_of_others(at) {
        at.does("mode / 777");
        let (fs, root) = (at.fs(), at.fs().root());
        let user = Caller { groups: vec![20], ..Caller::checked(7, 7, Vec::new()) };
        for new in [NewInode { uid: Some(8), ..FILE }, NewInode { gid: Some(8), ..FILE }] {
            assert_eq!(fs.create(&user, root, b"f", new, None), Err(FsError::NotPermitted));
            assert_eq!(fs.tmpfile(&user, root, new), Err(FsError::NotPermitted));
        }
        assert!(!at.is_there("/f"));
        let new = NewInode { uid: Some(7), gid: Some(20), ..NewInode::new(FILE.kind, 0o2755) };
        let made = fs.create(&user, root, b"f", new, None).expect("a group of theirs");
        assert_eq!((made.uid, made.gid, made.mode), (7, 20, 0o2755));
        fs.forget(made.ino, 1);
    }

    fn an_exclusive_creation_that_is_asked_twice_makes_one_file(at) {
        const VERIFIER: u64 = 0xfedc_ba98_7654_3210;
        let (fs, root) = (at.fs(), at.fs().root());
        let new = |verifier| NewInode { verifier: Some(verifier), ..FILE };
        let create = |verifier| fs.create(&ROOT, root, b"f", new(verifier), None);
        let made = create(VERIFIER).expect("the name is new");
        at.pass_time();
        let again = create(VERIFIER).expect("asked twice");
        assert_eq!(again, made);
        fs.forget(made.ino, 2);
        assert_eq!(create(VERIFIER ^ 1), Err(FsError::Exists), "another's");
        at.does("mode / 777");
        let user = Caller::checked(7, 7, Vec::new());
        let of_user = fs.create(&user, root, b"f", new(VERIFIER), None);
        assert_eq!(of_user, Err(FsError::Exists), "the file is the superuser's");
        assert_eq!(create(VERIFIER ^ 1 << 63), Err(FsError::Exists), "another's");
        assert_eq!(fs.create(&ROOT, root, b"f", FILE, None), Err(FsError::Exists));
        at.write("/f", 0, b"x");
        assert_eq!(create(VERIFIER), Err(FsError::Exists), "it has been used since");
        at.does("create /d directory 755");
        assert_eq!(fs.create(&ROOT, root, b"d", new(VERIFIER), None), Err(FsError::Exists));
        let with_time = NewInode { mtime: Some(SetTime::Now), ..new(VERIFIER) };
        assert_eq!(fs.create(&ROOT, root, b"g", with_time, None), Err(FsError::Invalid));
        let directory = NewInode { kind: FileKind::Directory, ..new(VERIFIER) };
        assert_eq!(fs.create(&ROOT, root, b"g", directory, None), Err(FsError::Invalid));
    }
}
