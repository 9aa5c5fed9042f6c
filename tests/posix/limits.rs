use engine::api::FsError;
use whole_system::behaviours;

const DEEP: usize = 100;

behaviours! {
    fn a_name_has_at_most_255_bytes(at) {
        at.does("create /%{6e*255} file 644\ncreate /%{ff*255} directory 755");
        assert!(at.is_there("/%{6e*255}"));
        for line in ["create /%{6e*256} file 644", "getattr /%{6e*256}", "unlink /%{6e*256}",
            "rmdir /%{6e*256}", "symlink /%{6e*256} =t", "link /%{6e*255} /%{6e*256}",
            "rename /%{6e*255} /%{6e*256} replace", "rename /%{6e*256} /x replace"]
        {
            at.refuses(line, &FsError::NameTooLong);
        }
    }

    fn directories_lie_deep_in_one_another(at) {
        let mut route = String::new();
        for _ in 0..DEEP {
            route.push_str("/d");
            at.does(&format!("create {route} directory 755"));
        }
        at.does(&format!("create {route}/f file 644\nrename /d/d /e replace"));
        assert!(at.is_there(&format!("{}/f", route.replacen("/d/d", "/e", 1))));
        at.refuses("rename /e /e/d/d/d/d/x replace", &FsError::Invalid);
    }

    fn a_directory_holds_thousands_of_names(at) {
        at.does("create /d directory 755");
        for number in 0..3000 {
            at.does(&format!("create /d/a-rather-long-name-{number} file 644"));
        }
        assert_eq!(at.names("/d").len(), 3000);
        for number in (0..3000).filter(|number| number % 10 != 0) {
            at.does(&format!("unlink /d/a-rather-long-name-{number}"));
        }
        assert_eq!(at.names("/d").len(), 300);
        for number in (0..3000).step_by(10) {
            at.does(&format!("unlink /d/a-rather-long-name-{number}"));
        }
        at.does("rmdir /d");
    }

    fn a_file_has_hundreds_of_names(at) {
        at.does("create /f file 644");
        for number in 0..500 {
            at.does(&format!("link /f /l{number}"));
        }
        assert_eq!(at.attr("/f").nlink, 501);
        for number in 0..500 {
            at.does(&format!("unlink /l{number}"));
        }
        assert_eq!(at.attr("/f").nlink, 1);
    }

    fn what_is_no_name_is_refused(at) {
        use engine::api::{Caller, FileKind, NewInode};
        let new = NewInode::new(FileKind::Regular, 0o644);
        for name in [&b""[..], b"a/b", b"a\0b", b".", b".."] {
            let made = at.fs().create(&Caller::root(), at.fs().root(), name, new, None);
            assert_eq!(made, Err(FsError::Invalid), "{}", name.escape_ascii());
        }
    }
}
