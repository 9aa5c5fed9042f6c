use engine::api::{FileKind, FsError};
use whole_system::{Ground, behaviours};

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

    fn a_whiteout_takes_the_place_of_what_moved(at) {
        at.does("create /d directory 2755\nowner /d 0 9\ncreate /f file 644\ncreate /d/g file 600");
        let (f, inodes) = (at.ino("/f"), inode_count(at));
        at.does("rename /f /h whiteout\nrename /d/g /f replace");
        assert_eq!((at.names("/"), at.names("/d")), (names(&["d", "f", "h"]), names(&[])));
        at.does("rename /f /d/g whiteout");
        assert_eq!((at.names("/"), at.names("/d")), (names(&["d", "f", "h"]), names(&["g"])));
        assert_eq!(at.ino("/h"), f);
        expect_whiteout(at, "/f", 0);
        at.does("rename /d/g /h whiteout");
        expect_whiteout(at, "/d/g", 9);
        assert_eq!(inode_count(at), inodes + 1, "two whiteouts came, and a file went");
        at.does("unlink /d/g\nunlink /f");
        assert_eq!(inode_count(at), inodes - 1, "nobody holds a whiteout that was left");
    }

    fn a_directory_that_moves_leaves_a_whiteout_and_no_link(at) {
        at.does("create /a directory 755\ncreate /a/d directory 755\ncreate /b directory 755");
        at.does("create /b/e directory 755\nrename /a/d /b/e whiteout");
        assert_eq!((at.attr("/a").nlink, at.attr("/b").nlink), (2, 3));
        expect_whiteout(at, "/a/d", 0);
        at.refuses("rmdir /a", &FsError::NotEmpty);
        at.does("rename /b/e /b/f whiteout\nunlink /b/e\nrmdir /b/f\nrmdir /b");
        at.does("unlink /a/d\nrmdir /a");
    }

    fn a_rename_that_does_nothing_leaves_no_whiteout(at) {
        at.does("create /f file 644\nlink /f /g\ncreate /h file 644");
        let (f, inodes) = (at.ino("/f"), inode_count(at));
        at.does("rename /f /g whiteout\nrename /f /f whiteout");
        at.refuses("rename /f /h whiteout-noreplace", &FsError::Exists);
        at.refuses("rename /none /h whiteout", &FsError::NotFound);
        assert_eq!((at.ino("/f"), at.ino("/g"), inode_count(at)), (f, f, inodes));
        at.does("rename /f /i whiteout-noreplace");
        assert_eq!(at.ino("/i"), f);
        expect_whiteout(at, "/f", 0);
    }

    fn who_may_rename_may_leave_a_whiteout(at) {
        at.does("create /d directory 777\nu7 create /d/f file 644\nu7 rename /d/f /d/g whiteout");
        let whiteout = at.attr("/d/f");
        assert_eq!((whiteout.kind, whiteout.uid), (FileKind::CharDevice, 7));
        at.does("create /guarded directory 755\ncreate /guarded/f file 666");
        at.refuses("u7 rename /guarded/f /d/h whiteout", &FsError::AccessDenied);
        assert_eq!((at.names("/guarded"), at.names("/d")), (names(&["f"]), names(&["f", "g"])));
    }

    /// So that pages are split beside the name that stays.
    fn whiteouts_stay_by_the_hundred(at) {
        for nth in 0..400 {
            at.does(&format!("create /f{nth} file 644\nrename /f{nth} /g{nth} whiteout"));
        }
        for nth in 0..400 {
            expect_whiteout(at, &format!("/f{nth}"), 0);
            at.does(&format!("rename /g{nth} /f{nth} replace"));
        }
        assert_eq!(at.names("/").len(), 400);
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn inode_count(at: &Ground<'_>) -> u64 {
    at.sizes().inode_count
}

#[track_caller]
fn expect_whiteout(at: &Ground<'_>, place: &str, gid: u32) {
    let attr = at.attr(place);
    let told = (attr.kind, attr.mode, attr.rdev, attr.nlink, attr.uid, attr.gid);
    assert_eq!(told, (FileKind::CharDevice, 0, 0, 1, 0, gid), "{place}");
}
