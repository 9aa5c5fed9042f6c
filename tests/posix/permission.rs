use engine::api::{AccessRights, Caller, FsError};
use whole_system::behaviours;

behaviours! {
    fn only_who_may_write_a_directory_changes_its_names(at) {
        at.does("create /d directory 755\ncreate /d/f file 666\nmode / 777");
        for line in ["create /d/g file 644", "symlink /d/s =t", "unlink /d/f",
            "rename /d/f /g replace", "link /d/f /d/g"]
        {
            at.refuses(&format!("u7 {line}"), &FsError::AccessDenied);
        }
        at.does("owner /d 7 -\nu7 create /d/g file 644\nu7 rename /d/f /f replace");
    }

    fn only_who_may_search_a_directory_finds_its_names(at) {
        at.does("create /d directory 755\ncreate /d/f file 666\nmode /d 600");
        at.refuses("u7 getattr /d/f", &FsError::AccessDenied);
        at.refuses("u7 getattr /d/none", &FsError::AccessDenied);
        at.does("getattr /d/f\nowner /d 7 -");
        at.refuses("u7 getattr /d/f", &FsError::AccessDenied);
        at.does("mode /d 100\nu7 getattr /d/f");
    }

    fn groups_count_the_supplementary_ones_too(at) {
        at.does("create /d directory 770\nowner /d - 100\nu7 create /d/f file 644");
        at.does("owner /d - 101");
        at.refuses("u7 create /d/g file 644", &FsError::AccessDenied);
    }

    fn the_sticky_bit_keeps_names_for_their_owners(at) {
        at.does("create /t directory 777\nmode /t 1777\nu7 create /t/f file 666");
        at.refuses("u8 unlink /t/f", &FsError::NotPermitted);
        at.refuses("u8 rename /t/f /t/g replace", &FsError::NotPermitted);
        at.does("u8 create /t/g file 666");
        at.refuses("u8 rename /t/g /t/f replace", &FsError::NotPermitted);
        at.does("u7 create /t/d directory 755");
        at.refuses("u8 rmdir /t/d", &FsError::NotPermitted);
        at.does("u7 unlink /t/f\nowner /t 8 -\nu8 rmdir /t/d");
    }

    fn a_setgid_directory_gives_its_group_to_what_is_made_in_it(at) {
        at.does("create /d directory 777\nowner /d - 100\nmode /d 2777");
        at.does("u7 create /d/f file 644\nu7 create /d/e directory 755\nu7 symlink /d/s =t");
        assert_eq!([at.attr("/d/f").gid, at.attr("/d/e").gid, at.attr("/d/s").gid], [100; 3]);
        assert_eq!((at.attr("/d/f").mode, at.attr("/d/e").mode), (0o644, 0o2755));
        at.does("mode /d 777\nu7 create /d/g file 644");
        assert_eq!(at.attr("/d/g").gid, 7);
    }

    fn only_the_owner_changes_attributes(at) {
        at.does("mode / 777\nu7 create /f file 666");
        at.refuses("u8 mode /f 777", &FsError::NotPermitted);
        at.refuses("u8 owner /f 8 -", &FsError::NotPermitted);
        at.refuses("u7 owner /f 8 -", &FsError::NotPermitted);
        at.refuses("u7 owner /f - 55", &FsError::NotPermitted);
        at.refuses("u8 times /f 1.0 -", &FsError::NotPermitted);
        at.does("u7 mode /f 622\nu7 owner /f - 100\nu8 times /f now now");
        at.does("u7 mode /f 600");
        at.refuses("u8 times /f now now", &FsError::AccessDenied);
        at.refuses("u8 truncate /f 0", &FsError::AccessDenied);
    }

    fn only_the_superuser_makes_devices(at) {
        at.does("mode / 777");
        at.refuses("u7 create /c char 600", &FsError::NotPermitted);
        at.refuses("u7 create /b block 600", &FsError::NotPermitted);
        at.does("u7 create /p fifo 600\nu7 create /s socket 600");
    }

    fn a_directory_that_moves_must_be_writable(at) {
        at.does("create /a directory 777\ncreate /b directory 777\ncreate /a/d directory 755");
        at.refuses("u7 rename /a/d /b/d replace", &FsError::AccessDenied);
        at.does("u7 rename /a/d /a/e replace\nowner /a/e 7 -\nu7 rename /a/e /b/d replace");
    }

    fn only_who_may_read_reads_content(at) {
        at.does("mode / 777\ncreate /f file 640\nowner /f 7 20\nwrite /f 0 100 1");
        at.does("u7 read /f 0 9\nu7 seek /f 0 data\nu7 seek /f 0 hole");
        for line in ["read /f 0 9", "seek /f 0 data", "seek /f 0 hole", "read /f 0 0"] {
            at.refuses(&format!("u8 {line}"), &FsError::AccessDenied);
        }
        at.does("mode /f 200\nu7 fsync /f");
        at.refuses("u7 read /f 0 9", &FsError::AccessDenied);
        at.refuses("u8 fsync /f", &FsError::AccessDenied);
        // As open(2) has it: what the file is comes first.
        at.does("create /d directory 700");
        at.refuses("u7 read /d 0 9", &FsError::IsDirectory);
    }

    fn only_who_may_write_changes_content(at) {
        at.does("mode / 777\ncreate /f file 644\nowner /f 7 -\nwrite /f 0 9000 1\nmode /f 4644");
        for line in ["write /f 0 9 2", "write /f 0 0 2", "allocate /f 0 9",
            "punch /f 0 9", "zero-keep /f 0 9", "truncate /f 3"]
        {
            at.refuses(&format!("u8 {line}"), &FsError::AccessDenied);
        }
        assert_eq!((at.attr("/f").mode, at.attr("/f").size_bytes), (0o4644, 9000));
        assert_eq!(at.content("/f"), testkit::ops::bytes_of(1, 9000));
        at.does("u7 write /f 0 9 2\nu7 punch /f 0 9");
        assert_eq!(at.attr("/f").mode, 0o644);
    }

    fn a_copy_reads_one_file_and_writes_the_other(at) {
        at.does("mode / 777\ncreate /from file 600\ncreate /to file 666\nwrite /from 0 100 1");
        at.refuses("u7 copy /from 0 /to 0 100", &FsError::AccessDenied);
        at.does("mode /from 644\nu7 copy /from 0 /to 0 100\nmode /to 644");
        at.refuses("u7 copy /from 0 /to 0 100", &FsError::AccessDenied);
    }

    fn only_who_may_read_a_directory_lists_it(at) {
        at.does("create /d directory 711\ncreate /d/f file 644\nu7 getattr /d/f");
        at.refuses("u7 list /d", &FsError::AccessDenied);
        let (fs, user) = (at.fs(), Caller::checked(7, 7, Vec::new()));
        let listed = fs.readdir_plus(&user, at.ino("/d"), 0, &mut |_, _| true);
        assert_eq!(listed, Err(FsError::AccessDenied));
        at.does("mode /d 744\nu7 list /d");
    }

    fn who_was_refused_has_not_read(at) {
        at.does("mode / 777\ncreate /f file 600\nwrite /f 0 9 1");
        let before = at.attr("/f").atime;
        at.pass_time();
        at.refuses("u7 read /f 0 9", &FsError::AccessDenied);
        assert_eq!(at.attr("/f").atime, before);
        at.does("read /f 0 9");
        assert!(at.attr("/f").atime > before);
    }

    fn access_tells_what_the_bits_and_lists_give(at) {
        at.does("create /f file 640\nowner /f 7 20\ncreate /d directory 751\ncreate /x file 711");
        let may = |caller: &Caller, place: &str| {
            let AccessRights { reads, writes, executes } =
                at.fs().access(caller, at.ino(place)).expect("it is there");
            [(reads, 'r'), (writes, 'w'), (executes, 'x')]
                .map(|(is_given, letter)| if is_given { letter } else { '-' })
                .iter()
                .collect::<String>()
        };
        let user = |uid| Caller::checked(uid, uid, Vec::new());
        let member = Caller { groups: vec![20], ..user(8) };
        assert_eq!([may(&user(7), "/f"), may(&member, "/f"), may(&user(9), "/f")],
            ["rw-", "r--", "---"]);
        assert_eq!([may(&user(7), "/d"), may(&user(7), "/x")], ["--x", "--x"]);
        let root = Caller::root();
        assert_eq!([may(&root, "/f"), may(&root, "/d"), may(&root, "/x")], ["rw-", "rwx", "rwx"]);
        assert_eq!(may(&Caller::checked_by_kernel(9, 9), "/f"), "rwx");
    }
}
