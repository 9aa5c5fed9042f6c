use engine::api::{Attr, Caller, FileKind, FsError, NewInode, XattrMode};
use testkit::ops::AclText;
use whole_system::{Ground, behaviours};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Returns a list as a program gets it; `None`: there is none.
fn list(at: &Ground<'_>, place: &str, name: &[u8]) -> Option<Vec<u8>> {
    match at.fs().getxattr(&Caller::root(), at.ino(place), name) {
        Err(FsError::NoAttribute) => None,
        other => Some(other.expect("anybody may ask")),
    }
}

/// Expects `place` to have the lists that `access` and `default` say (`-`: none), and this mode.
#[track_caller]
fn expect(at: &Ground<'_>, place: &str, mode: u16, access: &str, default: &str) {
    for (name, expected) in [(ACCESS, access), (DEFAULT, default)] {
        let expected: AclText = expected.parse().expect("the test writes a list");
        let value = Some(expected.to_value()).filter(|_| !expected.0.is_empty());
        assert_eq!(list(at, place, name), value, "{place}: {expected}");
    }
    assert_eq!(at.attr(place).mode, mode, "{place}: {:o}", at.attr(place).mode);
}

/// Makes a file of `kind` as user 7, and gives the reference back.
#[track_caller]
fn make(at: &Ground<'_>, parent: &str, name: &str, new: NewInode) -> Attr {
    let caller = Caller::checked(7, 7, Vec::new());
    let made = at.fs().create(&caller, at.ino(parent), name.as_bytes(), new, None).expect("it may");
    at.fs().forget(made.ino, 1);
    made
}

behaviours! {
    fn a_list_comes_back_as_it_was_set(at) {
        at.does("create /f file 600\ncreate /d directory 755\ncreate /p fifo 600");
        let access = "u:7,u7:6,u9:0,g:5,g100:4,m:6,o:1";
        for place in ["/f", "/d", "/p"] {
            at.does(&format!("setacl {place} access {access}"));
            expect(at, place, 0o761, access, "-");
        }
        at.does("setacl /d default u:7,g:5,g8:7,m:5,o:0");
        expect(at, "/d", 0o761, access, "u:7,g:5,g8:7,m:5,o:0");
        let names = at.fs().listxattr(&Caller::root(), at.ino("/d")).expect("anybody may");
        assert_eq!(names, [ACCESS, DEFAULT]);
    }

    fn long_lists_are_kept_too(at) {
        at.does("create /f file 600\ncreate /d directory 755");
        for count in [9, 10, 11, 200, 1000, 8187] {
            let users: Vec<String> = (0..count).map(|n| format!("u{n}:5")).collect();
            let long = format!("u:7,{},g:5,m:7,o:0", users.join(","));
            at.does(&format!("setacl /f access {long}\nsetacl /d default {long}"));
            expect(at, "/f", 0o770, &long, "-");
            expect(at, "/d", 0o755, "-", &long);
            at.does(&format!("create /d/s{count} directory 750"));
            let handed = format!("u:7,{},g:5,m:5,o:0", users.join(","));
            expect(at, &format!("/d/s{count}"), 0o750, &handed, &long);
            at.does("removexattr /f system.posix_acl_access\nsetacl /d default u:7,g:5,o:0");
            expect(at, "/f", 0o770, "-", "-");
        }
    }

    fn a_list_that_says_no_more_than_the_mode_is_the_mode(at) {
        at.does("create /f file 600\nsetacl /f access u:6,u7:4,g:0,m:4,o:0");
        at.does("setacl /f access u:7,g:5,o:1");
        expect(at, "/f", 0o751, "-", "-");
        at.does("setacl /f access u:7,g:5,m:4,o:1");
        expect(at, "/f", 0o741, "u:7,g:5,m:4,o:1", "-");
        at.refuses("getxattr /f system.posix_acl_default", &FsError::NoAttribute);
    }

    fn chmod_and_the_list_say_the_same(at) {
        at.does("create /f file 600\nsetacl /f access u:6,u7:7,g:5,g9:7,m:7,o:0");
        at.does("mode /f 4715");
        expect(at, "/f", 0o4715, "u:7,u7:7,g:5,g9:7,m:1,o:5", "-");
        at.does("setacl /f access u:4,u7:7,g:5,m:6,o:0");
        expect(at, "/f", 0o4460, "u:4,u7:7,g:5,m:6,o:0", "-");
    }

    fn removing_a_list_leaves_the_mode(at) {
        at.does("create /d directory 755\nsetacl /d access u:7,u8:7,g:5,m:6,o:0");
        at.does("setacl /d default u:7,g:5,o:0");
        at.does("removexattr /d system.posix_acl_access");
        expect(at, "/d", 0o760, "-", "u:7,g:5,o:0");
        at.does("setacl /d default -");
        expect(at, "/d", 0o760, "-", "-");
        let before = at.attr("/d");
        at.pass_time();
        // There is none: that is no error, and changes nothing.
        at.does("removexattr /d system.posix_acl_access\nsetacl /d default -");
        assert_eq!(at.attr("/d").ctime, before.ctime);
        at.does("setacl /d access u:7,g:5,o:0");
        assert!(at.attr("/d").ctime > before.ctime);
    }

    fn what_is_no_list_is_refused(at) {
        at.does("create /f file 640\ncreate /d directory 755\nsymlink /s =t");
        for wrong in ["u:7", "u:7,g:5", "g:5,u:7,o:0", "u:7,g:5,o:0,o:0", "u:7,u8:5,g:5,o:0",
            "u:7,g:5,g8:5,o:0", "u:7,g:5,u8:5,m:5,o:0", "u:10,g:5,o:0", "u:7,g:5,m:5,m:5,o:0",
            "u:7,u4294967295:5,g:5,m:5,o:0"]
        {
            at.refuses(&format!("setacl /f access {wrong}"), &FsError::Invalid);
            at.refuses(&format!("setacl /d default {wrong}"), &FsError::Invalid);
        }
        at.refuses("setxattr /f system.posix_acl_access 3 1 set", &FsError::Invalid);
        at.refuses("setxattr /f system.posix_acl_access 12 1 set", &FsError::NotSupported);
        at.refuses("setxattr /f system.posix_acl_access 65537 1 set", &FsError::TooBig);
        at.refuses("setacl /f default u:7,g:5,o:0", &FsError::AccessDenied);
        at.does("setacl /f default -");
        at.refuses("setacl /s access u:7,g:5,o:0", &FsError::NotSupported);
        at.refuses("getxattr /s system.posix_acl_access", &FsError::NotSupported);
        expect(at, "/f", 0o640, "-", "-");
    }

    fn only_the_owner_sets_a_list_and_anybody_reads_it(at) {
        at.does("mode / 777\nu7 create /f file 600\nu7 setacl /f access u:6,u8:7,g:0,m:7,o:0");
        at.refuses("u8 setacl /f access u:7,g:7,o:7", &FsError::NotPermitted);
        at.refuses("u8 removexattr /f system.posix_acl_access", &FsError::NotPermitted);
        at.does("u9 getxattr /f system.posix_acl_access\nsetacl /f access u:6,g:4,o:0");
    }

    fn setting_a_list_takes_setgid_from_who_is_no_member(at) {
        at.does("mode / 777\nu7 create /f file 755\nowner /f - 55\nmode /f 2755");
        at.does("u7 setacl /f access u:7,g:5,o:5");
        assert_eq!(at.attr("/f").mode, 0o755);
        at.does("owner /f - 100\nmode /f 2755\nu7 setacl /f access u:7,u8:5,g:5,m:5,o:5");
        assert_eq!(at.attr("/f").mode, 0o2755);
    }

    /// Goal: the kernel knows the groups of whom it has checked, and says what becomes of setgid.
    fn a_list_takes_setgid_where_the_kernel_says_so(at) {
        at.does("create /f file 755");
        let value = "u:7,g:5,o:5".parse::<AclText>().expect("the test writes a list").to_value();
        for (loses_set_bits, mode) in [(false, 0o2755), (true, 0o755)] {
            at.does("mode /f 2700");
            let caller = Caller { loses_set_bits, ..Caller::checked_by_kernel(0, 0) };
            let (ino, name) = (at.ino("/f"), b"system.posix_acl_access");
            let set = at.fs().setxattr(&caller, ino, name, &value, XattrMode::Set, None);
            set.expect("it is a list");
            assert_eq!(at.attr("/f").mode, mode);
        }
    }

    /// Goal: the decisions of acl(5), for each class of caller. Every step is one right asked for.
    fn the_list_decides_for_named_users_and_groups(at) {
        // The common group of checked callers is 100; user 7 is in groups 7 and 100, and so on.
        at.does("create /f file 600\nowner /f 6 50\nsetxattr /f user.a 5 1 set");
        let (read, write) = ("getxattr /f user.a", "setxattr /f user.a 5 1 set");
        let cases = [
            // List, who, may read, may write.
            ("u:6,g:0,o:0", 6, true, true),
            ("u:0,u6:7,g:7,m:7,o:7", 6, false, false),
            ("u:6,u7:4,g:6,m:7,o:6", 7, true, false),
            ("u:6,u7:6,g:6,m:4,o:6", 7, true, false),
            ("u:6,u7:0,g:6,g7:6,m:7,o:6", 7, false, false),
            ("u:6,u8:6,g:0,m:6,o:4", 7, true, false),
            ("u:6,g:0,g7:6,m:6,o:0", 7, true, true),
            ("u:6,g:0,g100:4,m:6,o:6", 7, true, false),
            ("u:6,g:0,g7:0,m:6,o:6", 7, false, false),
            ("u:6,g:0,g7:2,g100:4,m:6,o:0", 7, true, true),
            ("u:6,g:0,g7:6,m:2,o:4", 7, false, true),
            ("u:6,g:6,m:6,o:0", 50, true, true),
            ("u:6,g:6,m:4,o:6", 50, true, false),
            ("u:6,g:0,g7:6,m:6,o:6", 50, false, false),
            // As Linux: a mask that gives nothing leaves the question to the mode.
            ("u:6,u7:6,g:6,m:0,o:4", 7, true, false),
        ];
        for (acl, uid, may_read, may_write) in cases {
            at.does(&format!("setacl /f access {acl}"));
            for (line, may) in [(read, may_read), (write, may_write)] {
                let line = format!("u{uid} {line}");
                if may { at.does(&line) } else { at.refuses(&line, &FsError::AccessDenied) }
            }
        }
    }

    fn the_list_of_a_directory_decides_on_its_names(at) {
        at.does("create /d directory 700\ncreate /d/f file 644\ncreate /e directory 777");
        at.refuses("u7 getattr /d/f", &FsError::AccessDenied);
        at.does("setacl /d access u:7,u7:5,g:0,m:7,o:0\nu7 getattr /d/f");
        for line in ["create /d/g file 644", "unlink /d/f", "rename /d/f /e/f replace",
            "link /d/f /d/h"]
        {
            at.refuses(&format!("u7 {line}"), &FsError::AccessDenied);
        }
        at.does("setacl /d access u:7,u7:7,g:0,m:7,o:0\nu7 create /d/g file 644\nu7 unlink /d/f");
        at.does("mode /d 1770\ncreate /d/r file 644");
        at.refuses("u7 unlink /d/r", &FsError::NotPermitted);
        at.does("setacl /d/g access u:4,u8:6,g:0,m:6,o:0\nsetacl /d access u:7,u8:1,g:0,m:7,o:0");
        at.does("u8 truncate /d/g 10\nu8 times /d/g now now");
        at.refuses("u8 times /d/g 1.0 now", &FsError::NotPermitted);
    }

    fn a_default_list_is_handed_down(at) {
        at.does("mode / 777\ncreate /d directory 777");
        at.does("setacl /d default u:7,u8:7,g:5,m:7,o:4");
        let full = "u:7,u8:7,g:5,m:7,o:4";
        at.does("u7 create /d/f file 666\nu7 create /d/s directory 775\nu7 symlink /d/l =t");
        at.does("u7 create /d/p fifo 640");
        expect(at, "/d/f", 0o664, "u:6,u8:7,g:5,m:6,o:4", "-");
        expect(at, "/d/s", 0o774, "u:7,u8:7,g:5,m:7,o:4", full);
        expect(at, "/d/p", 0o640, "u:6,u8:7,g:5,m:4,o:0", "-");
        assert_eq!(at.attr("/d/l").mode, 0o777);
        assert_eq!(list(at, "/d/s", DEFAULT), list(at, "/d", DEFAULT));
        at.does("u7 create /d/s/f file 600");
        expect(at, "/d/s/f", 0o600, "u:6,u8:7,g:5,m:0,o:0", "-");
        // One of three entries only limits the mode.
        at.does("setacl /d default u:7,g:4,o:0\nu7 create /d/g file 666");
        expect(at, "/d/g", 0o640, "-", "-");
        at.does("removexattr /d system.posix_acl_default\nu7 create /d/h file 666");
        expect(at, "/d/h", 0o666, "-", "-");
    }

    fn the_umask_counts_only_without_a_default_list(at) {
        at.does("create /d directory 777");
        let new = |kind, mode| NewInode { umask: 0o027, ..NewInode::new(kind, mode) };
        assert_eq!(make(at, "/d", "f", new(FileKind::Regular, 0o4666)).mode, 0o4640);
        assert_eq!(make(at, "/d", "s", new(FileKind::Directory, 0o777)).mode, 0o750);
        at.does("setacl /d default u:7,u9:7,g:7,m:7,o:7");
        assert_eq!(make(at, "/d", "g", new(FileKind::Regular, 0o666)).mode, 0o666);
        assert_eq!(make(at, "/d", "t", new(FileKind::Directory, 0o777)).mode, 0o777);
    }

    fn lists_and_other_attributes_live_side_by_side(at) {
        at.does("create /f file 644\nsetxattr /f user.a 5000 1 set");
        let users: Vec<String> = (0..60).map(|n| format!("u{n}:5")).collect();
        let long = format!("u:6,{},g:5,m:4,o:0", users.join(","));
        at.does(&format!("setacl /f access {long}\nsetxattr /f user.b 10 2 set"));
        at.does("removexattr /f user.a");
        expect(at, "/f", 0o640, &long, "-");
        at.does("getxattr /f user.b\nsetacl /f access u:6,u7:4,g:0,m:4,o:0");
        expect(at, "/f", 0o640, "u:6,u7:4,g:0,m:4,o:0", "-");
        at.does("link /f /g\nunlink /f\nrename /g /h replace\nopen @0 /h\nunlink /h");
        expect(at, "@0", 0o640, "u:6,u7:4,g:0,m:4,o:0", "-");
    }

    fn a_whiteout_is_handed_down_what_a_new_file_is(at) {
        at.does("create /d directory 755\nsetacl /d default u:7,g:5,g8:7,m:5,o:4");
        at.does("create /d/f file 644\nrename /d/f /g whiteout");
        expect(at, "/d/f", 0, "u:0,g:5,g8:7,m:0,o:0", "-");
        let users: Vec<String> = (0..8187).map(|n| format!("u{n}:5")).collect();
        let users = users.join(",");
        at.does(&format!("setacl /d default u:7,{users},g:5,m:7,o:5\nrename /d/f /d/h whiteout"));
        expect(at, "/d/f", 0, &format!("u:0,{users},g:5,m:0,o:0"), "-");
        expect(at, "/d/h", 0, "u:0,g:5,g8:7,m:0,o:0", "-");
        // Names so long that the pages of the other directory split: with the list that is as much
        // as such a rename ever logs (the journal holds it against what it reserved).
        at.does("create /t directory 755");
        for n in 0..350 {
            at.does("unlink /d/f\ncreate /d/f file 644");
            at.does(&format!("rename /d/f /t/{n:0>250} whiteout"));
        }
        at.does("unlink /d/f\nunlink /d/h");
    }
}
