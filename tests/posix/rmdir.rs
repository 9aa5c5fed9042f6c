use engine::api::{Caller, FileKind, FsError, NewInode};
use whole_system::behaviours;

behaviours! {
    fn rmdir_takes_an_empty_directory_away(at) {
        at.does("create /d directory 755\ncreate /d/f file 644\nunlink /d/f\nrmdir /d");
        assert!(at.names("/").is_empty());
        assert_eq!(at.attr("/").nlink, 2);
    }

    fn rmdir_of_a_directory_with_names_is_refused(at) {
        at.does("create /d directory 755\nsymlink /d/s =t");
        at.refuses("rmdir /d", &FsError::NotEmpty);
        at.does("unlink /d/s\ncreate /d/e directory 755");
        at.refuses("rmdir /d", &FsError::NotEmpty);
        at.does("rmdir /d/e\nrmdir /d");
    }

    fn rmdir_of_a_file_is_refused(at) {
        at.does("create /f file 644\nsymlink /s =f");
        at.refuses("rmdir /f", &FsError::NotDirectory);
        at.refuses("rmdir /s", &FsError::NotDirectory);
        at.refuses("rmdir /none", &FsError::NotFound);
    }

    fn nothing_is_made_in_a_directory_that_is_gone(at) {
        at.does("create /d directory 755\nopen @0 /d\nrmdir /d");
        let gone = at.ino("@0");
        let root = Caller::root();
        let new = NewInode::new(FileKind::Regular, 0o644);
        let link = NewInode::SYMLINK;
        assert_eq!(at.fs().create(&root, gone, b"f", new, None), Err(FsError::NotFound));
        let linked = at.fs().symlink(&root, gone, b"s", b"t", link, None);
        assert_eq!(linked, Err(FsError::NotFound));
        assert_eq!(at.fs().lookup(&root, gone, b"f"), Err(FsError::NotFound));
        assert_eq!(at.attr("@0").nlink, 0);
    }
}
