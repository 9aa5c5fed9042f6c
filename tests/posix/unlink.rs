use engine::api::FsError;
use whole_system::behaviours;

behaviours! {
    fn unlink_takes_the_name_away(at) {
        at.does("create /f file 644\nsymlink /s =f\ncreate /p fifo 600");
        at.does("unlink /f\nunlink /s\nunlink /p");
        assert!(at.names("/").is_empty());
        at.refuses("unlink /f", &FsError::NotFound);
    }

    fn unlink_of_a_directory_is_refused(at) {
        at.does("create /d directory 755");
        at.refuses("unlink /d", &FsError::IsDirectory);
        assert_eq!(at.names("/"), ["d"]);
    }

    fn unlink_of_a_symbolic_link_leaves_what_it_leads_to(at) {
        at.does("create /f file 644\nsymlink /s =f\nunlink /s");
        assert_eq!(at.names("/"), ["f"]);
    }

    fn a_name_can_be_used_again_and_is_another_file(at) {
        at.does("create /f file 644");
        at.write("/f", 0, b"old");
        at.does("unlink /f\ncreate /f file 600");
        assert!(at.content("/f").is_empty());
        assert_eq!(at.attr("/f").mode, 0o600);
    }
}
