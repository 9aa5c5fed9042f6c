use engine::api::{Caller, FileKind, FsError, NewInode, XattrMode};
use testkit::ops::bytes_of;
use whole_system::{Ground, behaviours};

/// Returns the value of an attribute, as the superuser.
fn value(at: &Ground<'_>, place: &str, name: &str) -> Vec<u8> {
    let value = at.fs().getxattr(&Caller::root(), at.ino(place), name.as_bytes());
    value.expect("it was set")
}

/// Returns the names that user `uid` sees, sorted.
fn names(at: &Ground<'_>, place: &str, uid: u32) -> Vec<String> {
    let caller = if uid == 0 { Caller::root() } else { Caller::checked(uid, uid, Vec::new()) };
    let mut names = at.fs().listxattr(&caller, at.ino(place)).expect("anybody may list");
    names.sort_unstable();
    names.into_iter().map(|name| String::from_utf8_lossy(&name).into_owned()).collect()
}

behaviours! {
    fn attributes_are_set_read_listed_and_removed(at) {
        at.does("create /f file 644\ncreate /d directory 755");
        for place in ["/f", "/d", "/"] {
            at.does(&format!("setxattr {place} user.b 10 1 set\nsetxattr {place} user.a 0 2 set"));
            assert_eq!(names(at, place, 0), ["user.a", "user.b"]);
            assert_eq!(value(at, place, "user.b"), bytes_of(1, 10));
            assert_eq!(value(at, place, "user.a"), b"");
            at.does(&format!("setxattr {place} user.b 12 3 set\nremovexattr {place} user.a"));
            assert_eq!((names(at, place, 0), value(at, place, "user.b")),
                (vec!["user.b".to_owned()], bytes_of(3, 12)));
            at.does(&format!("removexattr {place} user.b"));
            assert!(names(at, place, 0).is_empty());
        }
    }

    fn values_of_every_length_are_kept(at) {
        at.does("create /f file 644");
        let lengths =
            [0, 1, 49, 50, 255, 256, 959, 960, 961, 3967, 3968, 3969, 7936, 65_535, 65_536];
        for (fill, length) in (1..).zip(lengths) {
            at.does(&format!("setxattr /f user.v{length} {length} {fill} create"));
        }
        let check = |at: &Ground<'_>| {
            for (fill, length) in (1..).zip(lengths) {
                assert_eq!(value(at, "/f", &format!("user.v{length}")), bytes_of(fill, length));
            }
        };
        check(at);
        // Each becomes each other: from the anode into pages and back.
        for (first, second) in [(0, 14), (14, 1), (5, 13), (8, 2), (13, 14), (14, 13)] {
            at.does(&format!("setxattr /f user.x {} 77 set", lengths[first]));
            at.does(&format!("setxattr /f user.x {} 78 replace", lengths[second]));
            assert_eq!(value(at, "/f", "user.x"), bytes_of(78, lengths[second]));
        }
        at.does("removexattr /f user.x");
        check(at);
        for length in lengths {
            at.does(&format!("removexattr /f user.v{length}"));
        }
        assert!(names(at, "/f", 0).is_empty());
    }

    fn a_value_has_at_most_65536_bytes(at) {
        at.does("create /f file 644");
        at.refuses("setxattr /f user.a 65537 1 set", &FsError::TooBig);
        at.does("setxattr /f user.a 65536 1 set");
        at.refuses("setxattr /f user.a 65537 1 set", &FsError::TooBig);
        assert_eq!(value(at, "/f", "user.a"), bytes_of(1, 65_536));
    }

    fn a_name_has_at_most_255_bytes_and_a_known_prefix(at) {
        at.does("create /f file 644");
        let (longest, longer) = ("n".repeat(250), "n".repeat(251));
        at.does(&format!("setxattr /f user.{longest} 5 1 set\ngetxattr /f user.{longest}"));
        for operation in ["setxattr /f {} 5 1 set", "getxattr /f {}", "removexattr /f {}"] {
            let line = |name: &str| operation.replace("{}", name);
            at.refuses(&line(&format!("user.{longer}")), &FsError::Range);
            at.refuses(&line(""), &FsError::Range);
            at.refuses(&line("user."), &FsError::Invalid);
            at.refuses(&line("trusted."), &FsError::Invalid);
            at.refuses(&line("user.a%00b"), &FsError::Invalid);
            for name in ["user", "other.a", "system.a", "USER.a"] {
                at.refuses(&line(name), &FsError::NotSupported);
            }
        }
    }

    fn create_and_replace_say_whether_it_must_be_there(at) {
        at.does("create /f file 644");
        at.refuses("setxattr /f user.a 5 1 replace", &FsError::NoAttribute);
        at.does("setxattr /f user.a 5 1 create");
        at.refuses("setxattr /f user.a 5 2 create", &FsError::Exists);
        at.does("setxattr /f user.a 2000 3 replace");
        at.refuses("setxattr /f user.a 5 4 create", &FsError::Exists);
        assert_eq!(value(at, "/f", "user.a"), bytes_of(3, 2000));
        at.refuses("setxattr /f user.a 5 5 both", &FsError::Exists);
        at.refuses("setxattr /f user.b 5 5 both", &FsError::NoAttribute);
        assert_eq!(value(at, "/f", "user.a"), bytes_of(3, 2000));
        at.refuses("getxattr /f user.b", &FsError::NoAttribute);
        at.refuses("removexattr /f user.b", &FsError::NoAttribute);
    }

    fn user_attributes_go_by_the_permission_bits(at) {
        at.does("create /f file 640\nowner /f 7 8\nsetxattr /f user.a 5 1 set");
        at.does("u7 getxattr /f user.a\nu8 getxattr /f user.a\nu7 setxattr /f user.a 5 2 set");
        at.refuses("u8 setxattr /f user.a 5 3 set", &FsError::AccessDenied);
        at.refuses("u8 removexattr /f user.a", &FsError::AccessDenied);
        at.refuses("u9 getxattr /f user.a", &FsError::AccessDenied);
        assert_eq!(names(at, "/f", 9), ["user.a"]);
        at.does("u7 removexattr /f user.a");
    }

    fn user_attributes_are_for_files_and_directories(at) {
        at.does("create /p fifo 666\nsymlink /s =t\ncreate /c char 666");
        for place in ["/p", "/s", "/c"] {
            at.refuses(&format!("setxattr {place} user.a 5 1 set"), &FsError::NotPermitted);
            at.refuses(&format!("removexattr {place} user.a"), &FsError::NotPermitted);
            at.refuses(&format!("getxattr {place} user.a"), &FsError::NoAttribute);
            at.does(&format!("setxattr {place} trusted.a 5 1 set"));
            at.does(&format!("setxattr {place} security.a 500 1 set"));
            assert_eq!(names(at, place, 0), ["security.a", "trusted.a"]);
        }
    }

    fn in_a_sticky_directory_only_its_owner_sets_user_attributes(at) {
        at.does("create /t directory 777\nmode /t 1777\nowner /t 7 -");
        at.does("u7 setxattr /t user.a 5 1 set\nu8 getxattr /t user.a");
        at.refuses("u8 setxattr /t user.a 5 1 set", &FsError::NotPermitted);
        at.refuses("u8 removexattr /t user.a", &FsError::NotPermitted);
    }

    fn trusted_attributes_are_the_superusers(at) {
        at.does("create /f file 666\nowner /f 7 -\nsetxattr /f trusted.a 5 1 set");
        at.does("setxattr /f user.a 5 1 set");
        at.refuses("u7 getxattr /f trusted.a", &FsError::NoAttribute);
        at.refuses("u7 setxattr /f trusted.a 5 1 set", &FsError::NotPermitted);
        at.refuses("u7 removexattr /f trusted.a", &FsError::NotPermitted);
        assert_eq!(names(at, "/f", 7), ["user.a"]);
        assert_eq!(names(at, "/f", 0), ["trusted.a", "user.a"]);
    }

    fn security_attributes_are_read_by_all_and_set_by_the_superuser(at) {
        at.does("create /f file 600\nowner /f 7 -\nsetxattr /f security.a 5 1 set");
        at.does("u9 getxattr /f security.a");
        at.refuses("u7 setxattr /f security.a 5 1 set", &FsError::NotPermitted);
        at.refuses("u7 removexattr /f security.a", &FsError::NotPermitted);
        let set = |at: &Ground<'_>, value: &[u8]| {
            let name = b"security.capability";
            at.fs().setxattr(&Caller::root(), at.ino("/f"), name, value, XattrMode::Set, None)
        };
        let mut capability = [0; 24];
        capability[3] = 3;
        assert_eq!(set(at, &capability), Ok(()));
        assert_eq!(set(at, &capability[..20]), Err(FsError::Invalid));
        capability[3] = 2;
        assert_eq!(set(at, &capability[..20]), Ok(()));
        assert_eq!(set(at, &capability[..19]), Err(FsError::Invalid));
    }

    fn attributes_set_ctime_and_nothing_else(at) {
        at.does("create /f file 644");
        for line in ["setxattr /f user.a 5 1 set", "setxattr /f user.a 5000 1 set",
            "removexattr /f user.a"]
        {
            let before = at.attr("/f");
            at.pass_time();
            at.does(line);
            let after = at.attr("/f");
            assert!(after.ctime > before.ctime, "{line}");
            assert_eq!((after.mtime, after.size_bytes), (before.mtime, 0), "{line}");
            at.pass_time();
            at.does("listxattr /f");
            at.is_refused("getxattr /f user.none");
            at.is_refused("setxattr /f user.none 1 1 replace");
            assert_eq!(at.attr("/f").ctime, after.ctime, "{line}");
        }
    }

    fn attributes_stay_with_the_inode(at) {
        at.does("create /f file 644\nsetxattr /f user.a 3000 1 set\nlink /f /g");
        at.does("rename /f /h replace\nopen @0 /g\nunlink /g\nunlink /h");
        at.does("setxattr @0 user.b 4000 2 set");
        at.does("create /f file 644");
        assert!(names(at, "/f", 0).is_empty());
        assert_eq!(names(at, "@0", 0), ["user.a", "user.b"]);
        assert_eq!(value(at, "@0", "user.a"), bytes_of(1, 3000));
    }

    fn names_of_all_attributes_have_at_most_65536_bytes(at) {
        at.does("create /f file 644");
        // Names of 255 bytes and a NUL; what is left over is kept for two access lists.
        let name = |n: usize| format!("user.{n:0250}");
        for n in 0..255 {
            at.does(&format!("setxattr /f {} 0 1 set", name(n)));
        }
        at.refuses(&format!("setxattr /f user.{} 0 1 set", "a".repeat(202)), &FsError::NoSpace);
        at.does(&format!("setxattr /f user.{} 0 1 set", "a".repeat(201)));
        at.refuses("setxattr /f user.a 0 1 set", &FsError::NoSpace);
        at.does(&format!("setxattr /f {} 100 1 replace", name(9)));
        at.does("setacl /f access u:6,u7:6,g:6,m:6,o:0");
        assert_eq!(names(at, "/f", 0).len(), 257);
        at.does(&format!("removexattr /f {}\nsetxattr /f user.a 0 1 set", name(200)));
        for n in (0..255).filter(|&n| n != 200) {
            at.does(&format!("removexattr /f {}", name(n)));
        }
        assert_eq!(names(at, "/f", 0).len(), 3);
    }

    fn user_attributes_of_a_file_have_at_most_256_kib(at) {
        at.does("create /f file 666\ncreate /d directory 777");
        for place in ["/f", "/d"] {
            // Names of 6 bytes: so much is left for the fourth.
            for (fill, name) in ["a", "b", "c"].iter().enumerate() {
                at.does(&format!("u5 setxattr {place} user.{name} 65536 {fill} create"));
            }
            let left = (256 << 10) - 3 * (65_536 + 6) - 6;
            for user in ["u5 ", ""] {
                let past = format!("{user}setxattr {place} user.d {} 1 set", left + 1);
                at.refuses(&past, &FsError::NoSpace);
            }
            at.does(&format!("u5 setxattr {place} user.d {left} 1 set"));
            at.refuses(&format!("u5 setxattr {place} user.e 0 1 set"), &FsError::NoSpace);
            // What is no longer than before, what is the superuser's, and what was taken away.
            at.does(&format!("u5 setxattr {place} user.d {left} 2 replace"));
            at.does(&format!("setxattr {place} trusted.e 65536 1 set"));
            at.does(&format!("setxattr {place} security.e 65536 1 set"));
            at.does(&format!("u5 setxattr {place} user.a 65529 1 set"));
            at.refuses(&format!("u5 setxattr {place} user.e 2 1 set"), &FsError::NoSpace);
            at.does(&format!("u5 setxattr {place} user.e 1 1 set"));
        }
    }

    fn a_changed_program_loses_its_capabilities(at) {
        const NAME: &[u8] = b"security.capability";
        // Revision 2: `cap_net_raw` may be had.
        let granted = [0, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        at.does("create /f file 755\nwrite /f 0 100 1");
        let grant = |at: &Ground<'_>| {
            let (root, file) = (Caller::root(), at.ino("/f"));
            let set = at.fs().setxattr(&root, file, NAME, &granted, XattrMode::Set, None);
            set.expect("there is room");
        };
        let has = |at: &Ground<'_>| at.fs().getxattr(&Caller::root(), at.ino("/f"), NAME).is_ok();
        // In the anode, and in a container, for there is no room in the anode.
        for beside in ["removexattr /f user.a", "setxattr /f user.a 200 1 set"] {
            at.does("setxattr /f user.a 1 1 set");
            at.does(beside);
            for change in ["write /f 10 1 2", "truncate /f 50", "truncate /f 100", "owner /f 7 7",
                "owner /f 0 0", "punch /f 0 10"]
            {
                grant(at);
                at.does("mode /f 700\nsetxattr /f user.b 1 1 set");
                assert!(has(at), "before {change}");
                at.does(change);
                assert!(!has(at), "after {change}");
            }
            grant(at);
            at.refuses("u5 owner /f 9 9", &FsError::NotPermitted);
            assert!(has(at), "what is refused takes nothing away");
        }
    }

    fn attributes_give_their_space_back(at) {
        let used = |at: &Ground<'_>| {
            at.fs().sync().expect("it syncs");
            at.sizes().inode_count
        };
        at.does("create /f file 644\ncreate /g file 644");
        let before = used(at);
        at.does("setxattr /f user.a 65536 1 set\nsetxattr /f user.b 65536 1 set");
        at.does("setxattr /g user.a 3000 1 set\nremovexattr /g user.a\nunlink /g\nunlink /f");
        assert_eq!(used(at), before - 2);
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made = at.fs().create(&Caller::root(), at.fs().root(), b"h", new, None);
        let made = made.expect("it is made");
        assert_eq!(at.fs().listxattr(&Caller::root(), made.ino), Ok(Vec::new()));
        at.fs().forget(made.ino, 1);
    }
}
