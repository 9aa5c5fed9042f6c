use engine::api::{Attr, Caller, Timestamp};
use whole_system::{Ground, behaviours};

/// Which of mtime and ctime of `place` do the steps of `lines` set?
fn set_by(at: &mut Ground<'_>, place: &str, lines: &str) -> &'static str {
    at.does(&format!("open @7 {place}"));
    let before: Attr = at.attr("@7");
    at.pass_time();
    at.does(lines);
    let after = at.attr("@7");
    at.does("close @7");
    match (after.mtime > before.mtime, after.ctime > before.ctime) {
        (true, true) => "mtime and ctime",
        (false, true) => "ctime",
        (true, false) => "mtime",
        (false, false) => "",
    }
}

behaviours! {
    fn a_new_inode_is_born_now_and_so_is_the_change_of_its_directory(at) {
        let before = at.attr("/");
        at.pass_time();
        at.does("create /f file 644");
        let (file, root) = (at.attr("/f"), at.attr("/"));
        assert!(file.btime > before.btime);
        assert_eq!((file.mtime, file.ctime), (file.btime, file.btime));
        assert_eq!((root.mtime, root.ctime), (file.btime, file.btime));
    }

    fn writing_and_truncating_set_mtime_and_ctime(at) {
        at.does("create /f file 644");
        assert_eq!(set_by(at, "/f", "write /f 0 1 1"), "mtime and ctime");
        assert_eq!(set_by(at, "/f", "truncate /f 10"), "mtime and ctime");
        assert_eq!(set_by(at, "/f", "truncate /f 10"), "mtime and ctime");
        assert_eq!(set_by(at, "/f", "read /f 0 1"), "");
    }

    fn attributes_set_ctime(at) {
        at.does("create /f file 644");
        assert_eq!(set_by(at, "/f", "mode /f 600"), "ctime");
        assert_eq!(set_by(at, "/f", "mode /f 600"), "ctime");
        assert_eq!(set_by(at, "/f", "owner /f 7 -"), "ctime");
        assert_eq!(set_by(at, "/f", "owner /f - -"), "ctime");
        assert_eq!(set_by(at, "/f", "getattr /f"), "");
    }

    fn names_set_ctime_of_what_they_name(at) {
        at.does("create /f file 644\ncreate /over file 644\ncreate /d directory 755");
        assert_eq!(set_by(at, "/f", "link /f /g"), "ctime");
        assert_eq!(set_by(at, "/f", "rename /f /h replace"), "ctime");
        assert_eq!(set_by(at, "/d", "rename /d /e replace"), "ctime");
        assert_eq!(set_by(at, "/over", "rename /h /over replace"), "ctime");
        assert_eq!(set_by(at, "/g", "unlink /g"), "ctime");
    }

    fn changes_of_names_set_mtime_and_ctime_of_their_directories(at) {
        at.does("create /a directory 755\ncreate /b directory 755\ncreate /a/f file 644");
        for lines in ["create /a/g file 644", "link /a/f /a/l", "symlink /a/s =t",
            "create /a/d directory 755", "unlink /a/l", "rename /a/g /a/h replace", "rmdir /a/d",
            "rename /a/h /b/h replace", "rename /b/h /a/h replace",
            "create /b/x file 644\nrename /a/h /b/x exchange"]
        {
            assert_eq!(set_by(at, "/a", lines), "mtime and ctime", "{lines}");
        }
        assert_eq!(set_by(at, "/a", "write /a/f 0 1 1\nmode /a/f 600\nlist /a"), "");
        assert_eq!(set_by(at, "/", "create /a/deeper file 644"), "");
    }

    fn refused_operations_set_no_times(at) {
        at.does("create /f file 644\ncreate /d directory 755\ncreate /d/x file 644");
        let before = (at.attr("/"), at.attr("/f"), at.attr("/d"));
        at.pass_time();
        for line in ["create /f file 644", "rmdir /d", "unlink /d", "rename /f /d replace",
            "link /f /d", "rename /f /d noreplace"]
        {
            at.is_refused(line);
        }
        assert_eq!((at.attr("/"), at.attr("/f"), at.attr("/d")), before);
    }

    fn times_are_set_to_the_nanosecond_before_and_after_1970(at) {
        at.does("create /f file 644\ntimes /f -1.999999999 4102444800.000000001");
        let attr = at.attr("/f");
        assert_eq!(attr.atime, Timestamp { seconds: -1, nanoseconds: 999_999_999 });
        assert_eq!(attr.mtime, Timestamp { seconds: 4_102_444_800, nanoseconds: 1 });
        at.does("times /f - 5.6");
        assert_eq!(at.attr("/f").atime, attr.atime);
        assert_eq!(at.attr("/f").mtime, Timestamp { seconds: 5, nanoseconds: 6 });
    }

    fn who_asks_for_it_reads_without_a_trace(at) {
        at.does("create /f file 644\nwrite /f 0 100 1");
        at.does("symlink /l =target\ncreate /d directory 755");
        let unseen = Caller { keeps_atime: true, ..Caller::root() };
        for (caller, is_renewed) in [(&unseen, false), (&Caller::root(), true)] {
            at.pass_time();
            let before = ["/f", "/l", "/d"].map(|name| at.attr(name).atime);
            let (fs, ino) = (at.fs(), |name| at.ino(name));
            fs.read(caller, ino("/f"), 0, 9, &mut Vec::new()).expect("it is a file");
            fs.readlink(caller, ino("/l")).expect("it is a link");
            fs.readdir(caller, ino("/d"), 0, &mut |_| true).expect("it is a directory");
            let after = ["/f", "/l", "/d"].map(|name| at.attr(name).atime);
            let is_later = |index: usize| after[index] > before[index];
            assert_eq!([0, 1, 2].map(is_later), [is_renewed; 3]);
        }
    }

    fn setting_times_sets_ctime_to_now(at) {
        at.does("create /f file 644");
        at.pass_time();
        at.does("times /f now now");
        let attr = at.attr("/f");
        assert_eq!((attr.atime, attr.mtime), (attr.ctime, attr.ctime));
        at.pass_time();
        at.does("times /f 1.0 1.0");
        assert!(at.attr("/f").ctime > attr.ctime);
        assert_eq!(at.attr("/f").btime, at.attr("/").mtime);
    }
}
