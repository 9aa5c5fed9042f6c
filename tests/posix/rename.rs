use engine::vnode::api::FsError;
use whole_system::behaviours;

behaviours! {
    fn rename_moves_a_file_within_and_between_directories(at) {
        at.does("create /d directory 755\ncreate /f file 644");
        let ino = at.ino("/f");
        at.does("rename /f /g replace\nrename /g /d/h replace");
        assert_eq!(at.names("/"), ["d"]);
        assert_eq!(at.ino("/d/h"), ino);
    }

    fn rename_moves_a_whole_tree(at) {
        at.does("create /a directory 755\ncreate /a/b directory 755\ncreate /a/b/f file 644");
        at.does("create /t directory 755\nrename /a /t/a replace");
        assert!(at.is_there("/t/a/b/f"));
        assert_eq!((at.attr("/").nlink, at.attr("/t").nlink), (3, 3));
    }

    fn rename_replaces_a_file(at) {
        at.does("create /f file 644\ncreate /g file 600");
        at.write("/f", 0, b"new");
        at.write("/g", 0, b"older");
        at.does("rename /f /g replace");
        assert_eq!(at.names("/"), ["g"]);
        assert_eq!(at.content("/g"), b"new");
        assert_eq!(at.attr("/g").mode, 0o644);
    }

    fn rename_over_open_file_keeps_it_readable(at) {
        at.does("create /f file 644\ncreate /g file 600\nopen @0 /g");
        at.write("/g", 0, b"still readable");
        at.does("rename /f /g replace");
        assert_eq!(at.content("@0"), b"still readable");
        assert_eq!(at.attr("@0").nlink, 0);
    }

    fn rename_replaces_an_empty_directory_only(at) {
        at.does("create /a directory 755\ncreate /a/f file 644\ncreate /b directory 755");
        at.does("create /full directory 755\ncreate /full/x file 644");
        at.refuses("rename /a /full replace", &FsError::NotEmpty);
        at.does("rename /a /b replace");
        assert_eq!(at.names("/"), ["b", "full"]);
        assert!(at.is_there("/b/f"));
        assert_eq!(at.attr("/").nlink, 4);
    }

    fn rename_does_not_mix_kinds(at) {
        at.does("create /d directory 755\ncreate /f file 644");
        at.refuses("rename /f /d replace", &FsError::IsDirectory);
        at.refuses("rename /d /f replace", &FsError::NotDirectory);
        assert_eq!(at.names("/"), ["d", "f"]);
    }

    fn a_directory_does_not_move_into_itself(at) {
        at.does("create /a directory 755\ncreate /a/b directory 755");
        at.refuses("rename /a /a/b/c replace", &FsError::Invalid);
        at.refuses("rename /a /a/c replace", &FsError::Invalid);
        at.refuses("rename /a /a/b exchange", &FsError::Invalid);
        at.refuses("rename /a/b /a replace", &FsError::NotEmpty);
        at.refuses("rename /a/b /a exchange", &FsError::Invalid);
        assert!(at.is_there("/a/b"));
    }

    fn rename_onto_itself_changes_nothing(at) {
        at.does("create /f file 644\nlink /f /g");
        at.pass_time();
        let (root, file) = (at.attr("/"), at.attr("/f"));
        at.does("rename /f /f replace\nrename /f /g replace\nrename /f /g exchange");
        assert_eq!(at.names("/"), ["f", "g"]);
        assert_eq!((at.attr("/").mtime, at.attr("/f").ctime), (root.mtime, file.ctime));
    }

    fn rename_of_a_missing_name_is_refused(at) {
        at.does("create /f file 644");
        at.refuses("rename /none /f replace", &FsError::NotFound);
        at.refuses("rename /f /none/g replace", &FsError::NotFound);
        at.refuses("rename /f /f/g replace", &FsError::NotDirectory);
    }

    fn noreplace_keeps_what_is_there(at) {
        at.does("create /f file 644\ncreate /g file 600");
        at.refuses("rename /f /g noreplace", &FsError::Exists);
        at.refuses("rename /f /f noreplace", &FsError::Exists);
        assert_eq!(at.attr("/g").mode, 0o600);
        at.does("rename /f /h noreplace");
        assert_eq!(at.names("/"), ["g", "h"]);
    }

    fn exchange_swaps_two_names_of_any_kind(at) {
        at.does("create /d directory 755\ncreate /d/e directory 755\ncreate /d/e/x file 644");
        at.does("create /f file 644\nsymlink /d/s =t");
        at.refuses("rename /f /none exchange", &FsError::NotFound);
        let (f, e) = (at.ino("/f"), at.ino("/d/e"));
        at.does("rename /f /d/e exchange");
        assert_eq!((at.ino("/d/e"), at.ino("/f")), (f, e));
        assert!(at.is_there("/f/x"));
        assert_eq!((at.attr("/").nlink, at.attr("/d").nlink), (4, 2));
        at.does("rename /d/e /d/s exchange");
        assert_eq!(at.ino("/d/s"), f);
        assert_eq!(at.target("/d/e"), Ok(b"t".to_vec()));
    }

    fn rename_moves_names_of_linked_files_one_by_one(at) {
        at.does("create /f file 644\nlink /f /g\nrename /f /h replace");
        assert_eq!(at.names("/"), ["g", "h"]);
        assert_eq!(at.attr("/g").nlink, 2);
    }
}
