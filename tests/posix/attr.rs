use engine::api::{Caller, FsError, SetAttr};
use whole_system::behaviours;

behaviours! {
    fn chmod_sets_twelve_bits_and_nothing_else(at) {
        at.does("create /f file 644\nmode /f 7777");
        let attr = at.attr("/f");
        assert_eq!((attr.mode, attr.uid, attr.gid, attr.nlink), (0o7777, 0, 0, 1));
        at.does("mode /f 0\ncreate /d directory 755\nmode /d 1770");
        assert_eq!((at.attr("/f").mode, at.attr("/d").mode), (0, 0o1770));
    }

    fn chown_sets_owner_and_group_each_for_itself(at) {
        at.does("create /f file 644\nowner /f 6 -");
        assert_eq!((at.attr("/f").uid, at.attr("/f").gid), (6, 0));
        at.does("owner /f 7 8");
        assert_eq!((at.attr("/f").uid, at.attr("/f").gid), (7, 8));
        at.does("owner /f - 9");
        assert_eq!((at.attr("/f").uid, at.attr("/f").gid), (7, 9));
        // chown(2) takes it for "leave it".
        at.refuses("owner /f 4294967295 -", &FsError::Invalid);
        at.refuses("owner /f - 4294967295", &FsError::Invalid);
        at.does("owner /f 4294967294 -\nsymlink /s =t\nowner /s 5 5");
        assert_eq!((at.attr("/f").uid, at.attr("/s").uid), (4_294_967_294, 5));
    }

    fn several_attributes_are_set_at_once(at) {
        at.does("create /f file 644");
        let change = SetAttr {
            mode: Some(0o600),
            uid: Some(3),
            gid: Some(4),
            size_bytes: Some(77),
            ..SetAttr::default()
        };
        let told = at.fs().setattr(&Caller::root(), at.ino("/f"), &change, None);
        let attr = at.attr("/f");
        assert_eq!(told, Ok(attr.clone()));
        assert_eq!((attr.mode, attr.uid, attr.gid, attr.size_bytes), (0o600, 3, 4, 77));
    }

    fn a_refused_change_changes_nothing(at) {
        at.does("mode / 777\nu7 create /f file 644");
        let before = at.attr("/f");
        at.pass_time();
        let caller = Caller::checked(7, 7, Vec::new());
        let change =
            SetAttr { mode: Some(0o600), uid: Some(8), size_bytes: Some(9), ..SetAttr::default() };
        let refused = at.fs().setattr(&caller, at.ino("/f"), &change, None);
        assert_eq!(refused, Err(FsError::NotPermitted));
        assert_eq!(at.attr("/f"), before);
    }

    fn the_mode_of_a_symbolic_link_cannot_be_set(at) {
        at.does("symlink /s =t");
        at.refuses("mode /s 600", &FsError::NotSupported);
    }

    fn statfs_adds_up(at) {
        let sizes = at.sizes();
        assert!(sizes.available_bytes <= sizes.free_bytes);
        assert!(sizes.free_bytes <= sizes.total_bytes);
        let fragment = u64::from(sizes.fragment_bytes);
        for bytes in [sizes.total_bytes, sizes.free_bytes, sizes.available_bytes] {
            assert_eq!(bytes % fragment, 0);
        }
        at.does("create /f file 644");
        let after = at.sizes();
        assert_eq!(after.inode_count, sizes.inode_count + 1);
    }

    fn setting_owner_takes_setuid_and_setgid_away(at) {
        at.does("create /f file 755\nmode /f 6755\nowner /f 0 -");
        assert_eq!(at.attr("/f").mode, 0o755);
        at.does("create /d directory 755\nmode /d 6755\nowner /d 3 3");
        assert_eq!(at.attr("/d").mode, 0o6755);
    }

    fn a_change_of_owner_that_names_nobody_is_one_all_the_same(at) {
        at.does("create /f file 755\nowner /f 7 7\nmode /f 6755\nu8 owner /f - -");
        assert_eq!(at.attr("/f").mode, 0o6755);
        for who in ["u7 ", ""] {
            at.does(&format!("mode /f 6755\n{who}owner /f - -"));
            let attr = at.attr("/f");
            assert_eq!((attr.mode, attr.uid, attr.gid), (0o755, 7, 7), "{who}");
        }
        at.does("create /d directory 755\nmode /d 6755\nowner /d - -");
        assert_eq!(at.attr("/d").mode, 0o6755);
    }

    fn writing_takes_setuid_and_setgid_away_from_a_checked_caller(at) {
        at.does("create /f file 666\nmode /f 6777\nwrite /f 0 1 1");
        assert_eq!(at.attr("/f").mode, 0o6777);
        at.does("u7 write /f 0 1 1");
        assert_eq!(at.attr("/f").mode, 0o777);
        at.does("mode /f 6777\nu7 truncate /f 0");
        assert_eq!(at.attr("/f").mode, 0o777);
    }
}
