//! Each rule of the header, kept and broken. The survivors are made from the model itself: a state
//! between two operations, or one that somebody changed by hand.

use std::sync::Arc;

use engine::api::{FileSystem, Ino};
use runtime::clock::ManualClock;

use super::{Finding, History, Reason, Verdict, judge};
use crate::canon::{Identity, Times, compare_trees};
use crate::model::Model;
use crate::ops::{
    Applied, Generator, Outcome, Profile, Session, Step, bytes_of, history_from_text,
};

/// A history that was done, and what was there after each of its steps.
struct Case {
    history: History,
    after: Vec<Model>,
}

fn steps(text: &str) -> Vec<Step> {
    let lines: Vec<String> = text.lines().map(|line| format!("u0 {}\n", line.trim())).collect();
    history_from_text(&lines.concat()).expect("the test writes steps")
}

impl Case {
    /// Does `text`, a step a line; of the last `in_flight` steps nobody heard.
    fn new(text: &str, in_flight: usize) -> Case {
        Case::of(&steps(text), in_flight)
    }

    fn of(steps: &[Step], in_flight: usize) -> Case {
        let fs = Model::new(Arc::new(ManualClock::new()));
        let mut history = History::after(&fs).expect("the model is sound");
        let mut after = vec![fs.reopened()];
        let mut session = Session::new(&fs, Times::Ignored);
        for (index, step) in steps.iter().enumerate() {
            let number = history.begin(0, step.clone());
            let applied = session.apply(step);
            if index + in_flight < steps.len() {
                history.end(number, &applied);
            }
            after.push(fs.reopened());
        }
        Case { history, after }
    }

    /// Judges what was there after `count` steps, changed by the steps of `text`.
    fn judged(&self, count: usize, text: &str) -> Result<Verdict, Vec<Finding>> {
        let survivor = self.after[count].fork();
        let mut session = Session::new(&survivor, Times::Ignored);
        for step in steps(text) {
            let outcome = session.apply(&step).outcome;
            assert!(outcome.is_done(), "{step}: {outcome:?}");
        }
        session.close_all();
        judge(&self.history, &survivor)
    }

    fn is_legal(&self, count: usize, text: &str) {
        if let Err(findings) = self.judged(count, text) {
            panic!("after {count} steps and {text:?}: {}", findings[0]);
        }
    }

    /// Returns the reasons for which it is not.
    fn is_illegal(&self, count: usize, text: &str) -> Vec<Reason> {
        match self.judged(count, text) {
            Ok(verdict) => panic!("after {count} steps and {text:?}: {verdict:?}"),
            Err(findings) => findings.into_iter().map(|finding| finding.reason).collect(),
        }
    }
}

/// Goal: with one client every prefix from the last sync on is legal, and none before it that
/// differs. Method: random histories, every prefix of them. What came after the sync is left out
/// where nothing before it may be right: it could lead back to what was.
#[test]
fn every_prefix_since_the_last_sync_is_legal_and_none_before() {
    let mut refused = 0;
    for seed in 0..12 {
        let mut all = Generator::history(seed, Profile::crash(), 120);
        all.retain(|step| !step.to_string().contains("sync"));
        let synced = all.len() / 2;
        all.insert(synced, steps("sync").remove(0));
        let whole = Case::of(&all, 1);
        (synced..=all.len()).for_each(|count| whole.is_legal(count, ""));
        let half = Case::of(&all[..=synced], 0);
        for before in &half.after[..synced] {
            let differs = compare_trees(before, &half.after[synced], Times::Ignored);
            if !differs.is_empty() {
                assert!(judge(&half.history, before).is_err(), "seed {seed}: {:?}", differs[0]);
                refused += 1;
            }
        }
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn every_prefix_since_the_last_fsync_is_legal() {
    for seed in 100..112 {
        let steps = Generator::history(seed, Profile::crash(), 150);
        let case = Case::of(&steps, 1);
        let is_sync = |step: &Step| step.to_string().contains("sync");
        let first = steps[..steps.len() - 1].iter().rposition(is_sync).map_or(0, |at| at + 1);
        (first..=steps.len()).for_each(|count| case.is_legal(count, ""));
    }
}

#[test]
fn c1_a_rename_leaves_one_name_and_not_two_or_none() {
    let case = Case::new("create /a file 644\nsync\nrename /a /b replace", 0);
    case.is_legal(2, "");
    case.is_legal(3, "");
    assert_eq!(case.is_illegal(2, "link /a /b"), [Reason::Names, Reason::Attr]);
    assert_eq!(case.is_illegal(2, "unlink /a"), [Reason::Names, Reason::Missing]);
}

#[test]
fn c1_an_exchange_happens_on_both_sides() {
    let text = "create /d directory 755\ncreate /a file 644\nsymlink /d/s =t\nsync\n\
                rename /a /d/s exchange";
    let case = Case::new(text, 0);
    case.is_legal(5, "");
    let half = "open @0 /d/s\nunlink /d/s\nlink /a /d/s";
    assert!(!case.is_illegal(4, half).is_empty());
}

#[test]
fn c2_a_directory_shows_one_moment_of_its_history() {
    let case = Case::new("create /a file 644\ncreate /b file 644", 0);
    case.is_legal(1, "");
    assert_eq!(case.is_illegal(2, "unlink /a"), [Reason::Names, Reason::Missing]);
}

#[test]
fn c1_a_symbolic_link_leads_where_it_was_told() {
    let case = Case::new("symlink /s =a", 0);
    let other = Case::new("symlink /s =b", 0);
    let findings = judge(&case.history, &other.after[1]).expect_err("it leads elsewhere");
    assert_eq!(findings[0].reason, Reason::Target);
}

#[test]
fn a_rename_onto_another_name_of_the_same_file_changes_nothing() {
    let case = Case::new("create /a file 644\nlink /a /b\nrename /a /b replace", 0);
    assert_eq!(case.judged(3, "").map(|verdict| verdict.changes), Ok(2));
}

#[test]
fn c2_directories_are_not_ordered_with_each_other() {
    let text = "create /d directory 755\ncreate /e directory 755\nsync\n\
                create /d/x file 644\ncreate /e/y file 644\n\
                rename /e/y /d/z replace";
    let case = Case::new(text, 0);
    case.is_legal(5, "unlink /d/x");
    case.is_legal(5, "unlink /e/y");
    assert!(!case.is_illegal(6, "unlink /d/x").is_empty(), "the rename came after it in /d");
    // Survives: the second of two changes to two files, fsync or not.
    let text = "create /a file 644\ncreate /b file 644\nsync\nmode /a 600\nmode /b 600\nfsync /b";
    let case = Case::new(text, 0);
    case.is_legal(6, "mode /a 644");
    assert_eq!(case.is_illegal(6, "mode /b 644"), [Reason::Attr]);
}

#[test]
fn c2_attributes_are_of_one_moment() {
    let case = Case::new("create /a file 644\nsync\nmode /a 600\nowner /a 7 7", 0);
    case.is_legal(3, "");
    assert_eq!(case.is_illegal(2, "owner /a 7 7\nmode /a 644"), [Reason::Attr]);
}

#[test]
fn c3_fsync_of_a_file_keeps_content_attributes_and_names() {
    let text = "create /d directory 755\ncreate /d/a file 644\nwrite /d/a 0 5000 1\n\
                mode /d/a 600\ncreate /d/b file 644\nfsync /d/a\nwrite /d/a 0 10 2";
    let case = Case::new(text, 0);
    case.is_legal(4, "");
    case.is_legal(7, "");
    let verdict = case.judged(6, "").expect("nothing is lost");
    // The directory, the file and its mode; not its neighbour, which came later.
    assert_eq!(verdict, Verdict { changes: 4, required: 3, survived: 4 });
    assert_eq!(case.is_illegal(3, ""), [Reason::Attr], "mode lost");
    assert_eq!(case.is_illegal(2, "mode /d/a 600"), [Reason::Size], "content lost");
    assert!(case.is_illegal(1, "").contains(&Reason::Missing), "name lost");
    assert!(case.is_illegal(0, "").contains(&Reason::Missing), "directory lost");
}

#[test]
fn c3_fsync_of_a_directory_keeps_names_and_not_content() {
    let text = "create /d directory 755\ncreate /d/a file 644\nwrite /d/a 0 5000 1\n\
                mode /d/a 600\nfsync /d";
    let case = Case::new(text, 0);
    case.is_legal(2, "");
    assert!(case.is_illegal(1, "").contains(&Reason::Missing));
}

#[test]
fn c3_fdatasync_keeps_content_and_not_the_mode() {
    let text = "create /a file 644\nsync\nmode /a 600\nwrite /a 0 5000 1\nfdatasync /a";
    let case = Case::new(text, 0);
    case.is_legal(5, "mode /a 644");
    assert_eq!(case.is_illegal(3, ""), [Reason::Size]);
    let case = Case::new("create /a file 644\nrename /a /b replace\nfdatasync /b", 0);
    assert!(case.is_illegal(1, "").contains(&Reason::Names), "the name is needed to find it");
}

#[test]
fn c3_an_fsync_that_was_not_acknowledged_promises_nothing() {
    let text = "create /a file 644\nwrite /a 0 5000 1\nfsync /a";
    Case::new(text, 1).is_legal(0, "");
    assert!(Case::new(text, 0).is_illegal(0, "").contains(&Reason::Missing));
}

#[test]
fn c4_sync_covers_what_other_clients_had_heard_of_and_not_what_was_in_flight() {
    let fs = Model::new(Arc::new(ManualClock::new()));
    for step in steps("create /d directory 755\ncreate /e directory 755") {
        Session::new(&fs, Times::Ignored).apply(&step);
    }
    let mut sessions = [Session::new(&fs, Times::Ignored), Session::new(&fs, Times::Ignored)];
    let mut history = History::after(&fs).expect("the model is sound");
    let start = fs.fork();
    let mut run = |history: &mut History, client: usize, text: &str| {
        let step = steps(text).remove(0);
        let number = history.begin(client, step.clone());
        (number, sessions[client].apply(&step))
    };
    let heard = run(&mut history, 0, "create /d/heard file 644");
    history.end(heard.0, &heard.1);
    let before = fs.fork();
    let in_flight = run(&mut history, 0, "create /d/flies file 644");
    let sync = run(&mut history, 1, "sync");
    // Answered after the sync was issued.
    history.end(in_flight.0, &in_flight.1);
    history.end(sync.0, &sync.1);
    assert_eq!(judge(&history, &fs).map(|verdict| verdict.required), Ok(1));
    assert_eq!(judge(&history, &before).map(|verdict| verdict.survived), Ok(1));
    assert!(judge(&history, &start).is_err());
}

/// Writes `fill`'s bytes of page `page` of the write `offset..offset + length`.
fn page_write(path: &str, fill: u32, length: usize, page: usize) -> impl Fn(&Model) {
    let bytes = bytes_of(fill, length)[page * 4096..length.min((page + 1) * 4096)].to_vec();
    let path = path.to_owned();
    move |fs: &Model| {
        let root = engine::api::Caller::root();
        let file = fs.lookup(&root, fs.root(), path.as_bytes()).expect("it is there").ino;
        let offset = u64::try_from(page * 4096).expect("small");
        fs.write(&root, file, offset, &bytes).expect("a file takes bytes");
        fs.forget(file, 1);
    }
}

#[test]
fn c5_pages_are_old_or_new_each_for_itself() {
    let text = "create /a file 644\nwrite /a 0 12288 1\nsync\nwrite /a 0 12288 2\n\
                write /a 0 12288 3";
    let case = Case::new(text, 0);
    let judged = |change: &dyn Fn(&Model)| {
        let survivor = case.after[3].fork();
        change(&survivor);
        judge(&case.history, &survivor)
    };
    let (second, third) = (page_write("a", 2, 12288, 0), page_write("a", 3, 12288, 2));
    assert!(judged(&|fs| second(fs)).is_ok());
    assert!(
        judged(&|fs| {
            second(fs);
            third(fs);
        })
        .is_ok()
    );
    let reason =
        |change: &dyn Fn(&Model)| judged(change).expect_err("it is not legal").remove(0).reason;
    let half = bytes_of(2, 2000);
    let torn = |fs: &Model| {
        let root = engine::api::Caller::root();
        let file = fs.lookup(&root, fs.root(), b"a").expect("it is there").ino;
        fs.write(&root, file, 0, &half).expect("a file takes bytes");
    };
    assert_eq!(reason(&torn), Reason::Page(0), "torn inside a page");
    assert_eq!(reason(&page_write("a", 9, 12288, 1)), Reason::Page(1), "foreign bytes");
    case.is_legal(5, "");
}

#[test]
fn c5_what_fsync_covers_does_not_go_back() {
    let case = Case::new("create /a file 644\nwrite /a 0 4096 1\nwrite /a 0 4096 2\nfsync /a", 0);
    assert_eq!(case.is_illegal(2, ""), [Reason::Page(0)], "an older version");
    assert_eq!(case.is_illegal(1, "truncate /a 4096"), [Reason::Page(0)], "zeros");
    assert_eq!(case.is_illegal(1, ""), [Reason::Size]);
}

#[test]
fn c5_a_size_may_come_before_its_data_and_no_size_between_is_right() {
    let case = Case::new("create /a file 644\nsync\nwrite /a 0 100 1\nwrite /a 8192 10 2", 0);
    case.is_legal(2, "truncate /a 100");
    case.is_legal(2, "truncate /a 8202");
    case.is_legal(3, "truncate /a 8202");
    case.is_legal(4, "truncate /a 100");
    assert_eq!(case.is_illegal(2, "truncate /a 4096"), [Reason::Size]);
    assert_eq!(case.is_illegal(4, "truncate /a 8203"), [Reason::Size]);
    // Part of a write.
    let case = Case::new("create /a file 644\nsync\nwrite /a 0 10000 1", 0);
    case.is_legal(3, "truncate /a 4096");
    case.is_legal(3, "truncate /a 8192");
    assert_eq!(case.is_illegal(3, "truncate /a 5000"), [Reason::Size]);
    let case = Case::new("create /a file 644\nwrite /a 0 9000 1\nsync\nwrite /a 0 9500 2", 0);
    assert_eq!(case.is_illegal(4, "truncate /a 4096"), [Reason::Size]);
    // The page is new, the size is old.
    let case = Case::new("create /a file 644\nwrite /a 0 100 1\nsync\nwrite /a 0 300 2", 0);
    case.is_legal(4, "truncate /a 100");
}

#[test]
fn c5_what_a_truncation_cut_off_is_not_seen_again() {
    let text = "create /a file 644\nwrite /a 0 8192 1\nsync\ntruncate /a 100\ntruncate /a 8192\n\
                write /a 4096 4096 7";
    let case = Case::new(text, 0);
    for count in 3..=6 {
        case.is_legal(count, "");
    }
    case.is_legal(5, "write /a 4096 4096 7");
    let survivor = case.after[5].fork();
    page_write("a", 1, 8192, 1)(&survivor);
    let findings = judge(&case.history, &survivor).expect_err("page 1 is from before");
    assert_eq!(findings[0].reason, Reason::Page(1));
    // And a write after a truncation that did not survive is not seen.
    let text = "create /a file 644\nwrite /a 0 8192 1\nsync\ntruncate /a 4096\nwrite /a 0 4096 2";
    let case = Case::new(text, 0);
    assert_eq!(case.is_illegal(3, "write /a 0 4096 2"), [Reason::Size]);
    case.is_legal(4, "");
    case.is_legal(5, "");
}

#[test]
fn c5_setuid_may_go_with_a_write_that_survives() {
    let mut steps = steps("create /a file 666\nmode /a 4666\nsync\nwrite /a 0 10 1");
    steps[3].uid = 7;
    let case = Case::of(&steps, 0);
    case.is_legal(3, "");
    case.is_legal(4, "");
    case.is_legal(3, "mode /a 666");
    assert_eq!(case.is_illegal(3, "mode /a 777"), [Reason::Attr]);
    steps.extend(self::steps("fsync /a"));
    let case = Case::of(&steps, 0);
    case.is_legal(4, "");
    assert_eq!(case.is_illegal(4, "mode /a 4666"), [Reason::Attr]);
}

#[test]
fn c6_what_has_no_name_is_gone_and_nothing_comes_from_nowhere() {
    let case = Case::new("create /a file 644\nopen @0 /a\nunlink /a\nwrite @0 0 10 1\nsync", 0);
    case.is_legal(5, "");
    assert_eq!(case.is_illegal(2, ""), [Reason::Names, Reason::Undead]);
    assert_eq!(case.is_illegal(5, "create /x file 644"), [Reason::Stranger]);
}

#[test]
fn what_was_in_flight_may_be_there_under_its_name_only() {
    let case = Case::new("create /d directory 755\nsync\ncreate /d/a file 640", 1);
    case.is_legal(2, "");
    case.is_legal(3, "");
    assert_eq!(case.is_illegal(3, "mode /d/a 600"), [Reason::Attr]);
    assert_eq!(case.is_illegal(3, "rename /d/a /d/b replace"), [Reason::Stranger]);
}

#[test]
fn an_acknowledged_operation_that_cannot_be_is_told() {
    let mut case = Case::new("create /a file 644", 0);
    let number = case.history.begin(0, steps("rmdir /a").remove(0));
    case.history.end(number, &Applied { outcome: Outcome::Done, made: None });
    assert_eq!(case.is_illegal(1, ""), [Reason::Unbelievable]);
}

#[test]
fn a_number_used_twice_with_one_generation_is_told() {
    let mut case = Case::new("create /a file 644", 0);
    let step = steps("create /b file 644").remove(0);
    let number = case.history.begin(0, step);
    let made = Some(Identity { ino: Ino(2), generation: 1 });
    case.history.end(number, &Applied { outcome: Outcome::Done, made });
    assert_eq!(case.is_illegal(1, ""), [Reason::Reused]);
}

#[test]
fn a_second_life_begins_with_what_the_first_left() {
    let case = Case::of(&Generator::history(4, Profile::crash(), 200), 0);
    let survivor = case.after[150].fork();
    let mut history = History::after(&survivor).expect("the model is sound");
    assert_eq!(compare_trees(history.base(), &survivor, Times::Ignored), []);
    assert!(judge(&history, &survivor).is_ok());
    let before = survivor.fork();
    let mut session = Session::new(&survivor, Times::Ignored);
    for step in steps("create /new file 644\nwrite /new 0 100 1\nfsync /new") {
        let number = history.begin(0, step.clone());
        history.end(number, &session.apply(&step));
    }
    assert_eq!(judge(&history, &survivor).map(|verdict| verdict.required), Ok(1));
    assert!(judge(&history, &before).is_err());
}
