use engine::api::FsError;
use whole_system::behaviours;

behaviours! {
    fn a_link_is_another_name_of_the_same_file(at) {
        at.does("create /d directory 755\ncreate /f file 644\nlink /f /d/g");
        assert_eq!(at.ino("/f"), at.ino("/d/g"));
        assert_eq!(at.attr("/f").nlink, 2);
        at.write("/f", 0, b"seen by both");
        assert_eq!(at.content("/d/g"), b"seen by both");
        at.does("mode /d/g 600");
        assert_eq!(at.attr("/f").mode, 0o600);
    }

    fn a_file_lives_as_long_as_one_of_its_names(at) {
        at.does("create /f file 644\nlink /f /g");
        at.write("/f", 0, b"still here");
        at.does("unlink /f");
        assert_eq!(at.attr("/g").nlink, 1);
        assert_eq!(at.content("/g"), b"still here");
    }

    fn directories_have_no_second_name(at) {
        at.does("create /d directory 755");
        at.refuses("link /d /e", &FsError::NotPermitted);
        assert_eq!(at.names("/"), ["d"]);
    }

    fn a_link_does_not_replace(at) {
        at.does("create /f file 644\ncreate /g file 644");
        at.refuses("link /f /g", &FsError::Exists);
        at.refuses("link /f /f", &FsError::Exists);
        assert_eq!(at.attr("/f").nlink, 1);
    }

    fn symbolic_links_and_fifos_can_be_linked(at) {
        at.does("symlink /s =t\ncreate /p fifo 600\nlink /s /s2\nlink /p /p2");
        assert_eq!((at.attr("/s2").nlink, at.attr("/p2").nlink), (2, 2));
        assert_eq!(at.target("/s2"), Ok(b"t".to_vec()));
    }

    fn a_file_of_another_is_linked_by_who_may_use_it_fully(at) {
        at.does("create /d directory 777\ncreate /secret file 600\ncreate /read file 644");
        at.does("create /open file 666\ncreate /suid file 4777\ncreate /sgid file 2777");
        at.does("create /locked file 2767\nsymlink /s =t\ncreate /p fifo 666");
        for name in ["secret", "read", "suid", "sgid", "s", "p"] {
            at.refuses(&format!("u1 link /{name} /d/{name}"), &FsError::NotPermitted);
        }
        at.does("u1 link /open /d/open\nu1 link /locked /d/locked");
        at.does("u1 create /d/own file 400\nu1 link /d/own /d/more");
        assert_eq!(at.attr("/secret").nlink, 1);
        assert_eq!(at.attr("/d/own").nlink, 2);
    }

    fn what_has_lost_its_last_name_gets_no_other(at) {
        at.does("create /f file 644\nopen @0 /f\nunlink /f");
        at.refuses("link @0 /g", &FsError::NotFound);
        assert!(at.names("/").is_empty());
    }
}
