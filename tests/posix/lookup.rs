use engine::api::{Caller, FileKind, FsError};
use whole_system::behaviours;

behaviours! {
    fn an_empty_file_system_is_one_directory(at) {
        let attr = at.attr("/");
        assert_eq!((attr.kind, attr.mode, attr.nlink), (FileKind::Directory, 0o755, 2));
        assert_eq!((attr.uid, attr.gid), (0, 0));
        assert!(at.names("/").is_empty());
    }

    fn lookup_finds_what_create_made(at) {
        at.does("create /d directory 755\ncreate /d/f file 640");
        let found = at.fs().lookup(&Caller::root(), at.ino("/d"), b"f").expect("it is there");
        assert_eq!(found, at.attr("/d/f"));
        at.fs().forget(found.ino, 1);
    }

    fn lookup_of_a_missing_name_says_so(at) {
        at.refuses("getattr /missing", &FsError::NotFound);
        at.does("create /d directory 755");
        at.refuses("getattr /d/missing", &FsError::NotFound);
        at.refuses("getattr /missing/deeper", &FsError::NotFound);
    }

    fn lookup_below_a_file_says_it_is_no_directory(at) {
        at.does("create /f file 644\nsymlink /s =d");
        at.refuses("getattr /f/x", &FsError::NotDirectory);
        at.refuses("getattr /s/x", &FsError::NotDirectory);
    }

    fn dot_and_dot_dot_are_names_to_look_up(at) {
        at.does("create /d directory 755\ncreate /d/e directory 755");
        let (root, d, e) = (at.ino("/"), at.ino("/d"), at.ino("/d/e"));
        for (directory, name, expected) in [(e, &b"."[..], e), (e, b"..", d), (d, b"..", root),
            (root, b"..", root), (root, b".", root)]
        {
            let found = at.fs().lookup(&Caller::root(), directory, name).expect("it is there");
            assert_eq!(found.ino, expected);
            if expected != root {
                at.fs().forget(expected, 1);
            }
        }
    }

    fn dot_dot_follows_a_directory_that_moves(at) {
        at.does("create /a directory 755\ncreate /b directory 755\ncreate /a/d directory 755");
        at.does("rename /a/d /b/d replace");
        let found = at.fs().lookup(&Caller::root(), at.ino("/b/d"), b"..").expect("it is there");
        assert_eq!(found.ino, at.ino("/b"));
        at.fs().forget(found.ino, 1);
    }

    fn names_are_bytes_and_case_matters(at) {
        at.does("create /name file 644\ncreate /Name file 644\ncreate /%ff%fe file 644");
        at.does("create /caf%e9 file 644\ncreate /%01%7f%20 file 644");
        assert_eq!(at.names("/"), ["\\x01\\x7f ", "Name", "caf\\xe9", "name", "\\xff\\xfe"]);
        assert_ne!(at.ino("/name"), at.ino("/Name"));
    }
}
