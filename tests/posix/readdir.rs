use std::collections::BTreeSet;

use engine::api::{Attr, Caller, DirEntry, FileKind, FsError, Ino, SetAttr};
use whole_system::{Ground, behaviours};

/// More names than any test here makes.
const NAMES_MAX: usize = 10_000;

/// Entries after `cookie`, at most `count`.
fn some(at: &Ground<'_>, ino: Ino, cookie: u64, count: usize) -> Vec<DirEntry> {
    let mut entries = Vec::new();
    let mut each = |entry: &DirEntry| {
        entries.push(entry.clone());
        entries.len() < count
    };
    at.fs().readdir(&Caller::root(), ino, cookie, &mut each).expect("a directory can be listed");
    entries
}

/// The same with attributes; gives back the references that this took.
fn some_with_attributes(
    at: &Ground<'_>,
    caller: &Caller,
    (ino, cookie): (Ino, u64),
    count: usize,
) -> Vec<(DirEntry, Option<Attr>)> {
    let mut entries = Vec::new();
    let listed = at.fs().readdir_plus(caller, ino, cookie, &mut |entry, attr| {
        let wants = entries.len() < count;
        if wants {
            entries.push((entry.clone(), attr.cloned()));
        }
        wants
    });
    listed.expect("a directory can be listed");
    let files = entries.iter().filter_map(|(_, attr)| attr.as_ref());
    files.for_each(|attr| at.fs().forget(attr.ino, 1));
    entries
}

/// The names of a directory, taken `count` at a time, with `between` done after each time.
fn names_by(
    at: &mut Ground<'_>,
    count: usize,
    mut between: impl FnMut(&mut Ground<'_>, usize),
) -> Vec<Vec<u8>> {
    let (ino, mut cookie, mut names) = (at.ino("/d"), 0, Vec::new());
    loop {
        let entries = some(at, ino, cookie, count);
        let Some(last) = entries.last() else { return names };
        cookie = last.cookie;
        names.extend(entries.into_iter().map(|entry| entry.name));
        assert!(names.len() < NAMES_MAX, "it comes to an end");
        between(at, names.len());
    }
}

fn fill(at: &mut Ground<'_>, count: usize) {
    at.does("create /d directory 755");
    for number in 0..count {
        at.does(&format!("create /d/f{number} file 644"));
    }
}

behaviours! {
    fn readdir_begins_with_itself_and_its_parent(at) {
        fill(at, 3);
        let entries = some(at, at.ino("/d"), 0, usize::MAX);
        assert_eq!((&entries[0].name[..], entries[0].ino), (&b"."[..], at.ino("/d")));
        assert_eq!((&entries[1].name[..], entries[1].ino), (&b".."[..], at.ino("/")));
        assert_eq!(entries.len(), 5);
    }

    fn readdir_tells_number_and_kind(at) {
        at.does("create /d directory 755\ncreate /d/f file 644\ncreate /d/e directory 755");
        at.does("symlink /d/s =t\ncreate /d/p fifo 600\ncreate /d/c char 600");
        let kinds = [("f", FileKind::Regular), ("e", FileKind::Directory),
            ("s", FileKind::Symlink), ("p", FileKind::Fifo), ("c", FileKind::CharDevice)];
        let entries = some(at, at.ino("/d"), 0, usize::MAX);
        for (name, kind) in kinds {
            let found = entries.iter().find(|entry| entry.name == name.as_bytes());
            let entry = found.expect("it is listed");
            assert_eq!((entry.kind, entry.ino), (kind, at.ino(&format!("/d/{name}"))));
        }
    }

    fn a_listing_with_attributes_tells_what_lookups_tell(at) {
        fill(at, 300);
        at.does("symlink /d/s =t\ncreate /d/e directory 700\nlink /d/f7 /d/other");
        at.write("/d/f9", 0, &[1; 5000]);
        for count in [1, 7, 1000] {
            let (ino, mut cookie, mut told) = (at.ino("/d"), 0, Vec::new());
            loop {
                let entries = some_with_attributes(at, &Caller::root(), (ino, cookie), count);
                let Some((last, _)) = entries.last() else { break };
                cookie = last.cookie;
                told.extend(entries);
            }
            let names: Vec<_> = told.iter().map(|(entry, _)| entry.clone()).collect();
            assert_eq!(names, some(at, ino, 0, usize::MAX));
            let (dots, rest) = told.split_at(2);
            assert!(dots.iter().all(|(_, attr)| attr.is_none()));
            for (entry, attr) in rest {
                let name = String::from_utf8(entry.name.clone()).expect("the test's own name");
                assert_eq!(attr.as_ref(), Some(&at.attr(&format!("/d/{name}"))), "{name}");
            }
        }
    }

    /// Goal: attributes are those of the moment of the answer, though their inodes were read behind
    /// the one before. Method: of the next three names one is written, one changed, one taken away
    /// between the two.
    fn a_listing_with_attributes_tells_what_was_changed_since_the_last_answer(at) {
        fill(at, 400);
        let (ino, mut cookie, mut told, mut gone) = (at.ino("/d"), 0, 0, 0);
        loop {
            let entries = some_with_attributes(at, &Caller::root(), (ino, cookie), 20);
            let Some((last, _)) = entries.last() else { break };
            for (entry, attr) in entries.iter().filter(|(entry, _)| entry.name[0] == b'f') {
                let name = String::from_utf8(entry.name.clone()).expect("the test's own name");
                assert_eq!(attr.as_ref(), Some(&at.attr(&format!("/d/{name}"))), "{name}");
                told += 1;
            }
            cookie = last.cookie;
            at.fs().run_deferred_work();
            let next = some(at, ino, cookie, 3).into_iter().map(|entry| entry.name);
            let next: Vec<_> = next.map(|name| String::from_utf8(name).expect("its own")).collect();
            if let [written, chosen, other] = &next[..] {
                at.write(&format!("/d/{written}"), 0, &vec![7; 100 + told]);
                at.does(&format!("mode /d/{chosen} 600\nunlink /d/{other}"));
                gone += 1;
            }
        }
        assert_eq!((told + gone, at.names("/d").len()), (400, told));
        assert!(gone > 15, "{gone}");
    }

    /// Method: what was listed is unlinked. Were a reference left, it would stay.
    fn a_listing_with_attributes_leaves_no_reference_on_what_is_not_told(at) {
        let before = at.sizes().inode_count;
        fill(at, 100);
        for count in [0, 1, 3, 30, 1000] {
            some_with_attributes(at, &Caller::root(), (at.ino("/d"), 0), count);
        }
        for number in 0..100 {
            at.does(&format!("unlink /d/f{number}"));
        }
        at.does("rmdir /d");
        assert_eq!(at.sizes().inode_count, before);
    }

    fn who_may_not_search_a_directory_is_told_no_attributes(at) {
        fill(at, 3);
        let change = SetAttr { mode: Some(0o744), ..SetAttr::default() };
        at.fs().setattr(&Caller::root(), at.ino("/d"), &change, None).expect("it is root's");
        let stranger = Caller::checked(1000, 1000, Vec::new());
        let entries = some_with_attributes(at, &stranger, (at.ino("/d"), 0), usize::MAX);
        assert_eq!(entries.len(), 5);
        assert!(entries.iter().all(|(_, attr)| attr.is_none()));
    }

    fn cookies_rise_and_are_never_zero(at) {
        fill(at, 300);
        let mut before = 0;
        for entry in some(at, at.ino("/d"), 0, usize::MAX) {
            assert!(entry.cookie > before);
            assert!(entry.cookie < 1 << 63);
            before = entry.cookie;
        }
    }

    fn readdir_goes_on_where_it_stopped_however_little_is_taken(at) {
        fill(at, 200);
        for count in [1, 2, 7, 100] {
            let names = names_by(at, count, |_, _| ());
            assert_eq!(names.len(), 202);
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 202, "each once");
        }
    }

    fn names_that_stay_are_told_once_while_others_come_and_go(at) {
        fill(at, 120);
        let mut round = 0;
        let names = names_by(at, 5, |at, _| {
            // Every third of the first names goes, and as many come.
            if round < 20 {
                at.does(&format!("unlink /d/f{}\ncreate /d/n{round} file 644", round * 3));
            }
            round += 1;
        });
        let mut told = BTreeSet::new();
        assert!(names.iter().all(|name| told.insert(name.clone())), "none twice");
        for number in (0..120).filter(|number| number % 3 != 0 || *number >= 60) {
            assert!(told.contains(format!("f{number}").as_bytes()), "f{number}");
        }
    }

    fn a_directory_can_be_emptied_while_it_is_listed(at) {
        fill(at, 150);
        let mut left = 150;
        let names = names_by(at, 10, |at, told| {
            for _ in (150 - left)..told.saturating_sub(2).min(150) {
                let name = at.names("/d").first().cloned();
                at.does(&format!("unlink /d/{}", name.expect("more were told than are gone")));
                left -= 1;
            }
        });
        assert!(names.len() <= 152);
        assert_eq!(at.names("/d").len(), left);
    }

    fn a_cookie_outlives_the_name_it_came_with(at) {
        fill(at, 20);
        let entries = some(at, at.ino("/d"), 0, 12);
        let (last, rest) = (&entries[11], some(at, at.ino("/d"), entries[11].cookie, 99));
        let name = String::from_utf8(last.name.clone()).expect("the test's own name");
        at.does(&format!("unlink /d/{name}"));
        assert_eq!(some(at, at.ino("/d"), last.cookie, 99), rest);
    }

    fn past_the_last_cookie_there_is_nothing(at) {
        fill(at, 3);
        let entries = some(at, at.ino("/d"), 0, usize::MAX);
        let last = entries.last().expect("there are five");
        assert!(some(at, at.ino("/d"), last.cookie, 99).is_empty());
        assert!(some(at, at.ino("/d"), i64::MAX.unsigned_abs(), 99).is_empty());
    }

    fn what_is_no_directory_cannot_be_listed(at) {
        at.does("create /f file 644");
        at.refuses("list /f", &FsError::NotDirectory);
    }
}
