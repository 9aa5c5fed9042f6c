use engine::api::{FileKind, FsError};
use whole_system::behaviours;

behaviours! {
    fn a_symbolic_link_keeps_its_target(at) {
        at.does("symlink /s =..%2fsomewhere%ff");
        let attr = at.attr("/s");
        assert_eq!((attr.kind, attr.mode, attr.nlink), (FileKind::Symlink, 0o777, 1));
        assert_eq!(attr.size_bytes, 13);
        assert_eq!(at.target("/s"), Ok(b"../somewhere\xff".to_vec()));
    }

    fn targets_of_every_length_are_kept(at) {
        for length in [1_usize, 59, 60, 61, 255, 256, 1000, 4094, 4095] {
            at.does(&format!("symlink /s =%{{78*{length}}}"));
            assert_eq!(at.target("/s"), Ok(vec![b'x'; length]));
            assert_eq!(at.attr("/s").size_bytes, u64::try_from(length).expect("small"));
            at.does("unlink /s");
        }
    }

    fn a_target_that_is_too_long_or_empty_is_refused(at) {
        at.refuses("symlink /s =%{78*4096}", &FsError::NameTooLong);
        at.refuses("symlink /s =", &FsError::NotFound);
        assert!(at.names("/").is_empty());
    }

    fn only_symbolic_links_lead_somewhere(at) {
        at.does("create /f file 644\ncreate /d directory 755");
        at.refuses("readlink /f", &FsError::Invalid);
        at.refuses("readlink /d", &FsError::Invalid);
    }
}
