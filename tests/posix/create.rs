use engine::vnode::api::{Caller, FileKind, FsError, NewInode};
use whole_system::behaviours;

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
            let new = NewInode { kind, mode: 0o600, umask: 0, rdev: 0x0801_2345 };
            let made = at.fs().create(&Caller::root(), at.fs().root(), name, new);
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
}
