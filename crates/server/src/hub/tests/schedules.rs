//! Tests of schedules of filesets that move, and of snapshots taken again under an old name.

use super::*;

fn set(hub: &Hub, index: usize, fileset: &str, hourly: u32) {
    let keep = control::SnapshotCounts { hourly, ..Default::default() };
    let request = Request::ScheduleSet { fileset: fileset.to_owned(), keep, is_gone: false };
    hub.control(index, &request, Peer::own()).expect("it is there");
}

fn all(hub: &Hub) -> [Vec<(String, bool)>; 2] {
    [0, 1].map(|index| {
        let list = hub.control(index, &Request::ScheduleList {}, Peer::own());
        let Ok(Answer::Schedules(list)) = list else { panic!("{list:?}") };
        list.into_iter().map(|it| (it.fileset, it.is_gone)).collect()
    })
}

fn snapshots_in(hub: &Hub, index: usize) -> Vec<String> {
    let list = hub.control(index, &Request::FilesetList { from: 0 }, Peer::own());
    let Ok(Answer::Filesets { list, .. }) = list else { panic!("{list:?}") };
    let there = list.into_iter().filter(|it| it.is_snapshot && it.freed_permille.is_none());
    there.map(|it| it.name).collect()
}

/// Goal: a schedule takes no snapshot of a fileset that moves, because that would end the move. It
/// follows the fileset, and takes the due snapshot after the move. Method: a pass of all schedules
/// in each progress callback.
#[test]
fn a_schedule_waits_while_its_fileset_moves_and_goes_along() {
    let two = TwoPoolServer::new("follows");
    let hub = two.hub();
    hub.read_schedules().expect("there is none");
    set(&hub, 0, "a", 2);
    set(&hub, 0, "root", 1);
    let (root, mut told) = (("root".to_owned(), false), 0);
    let root_snapshot = "root@hourly-2026-11-23_19-00".to_owned();
    // How many callbacks a move makes is random.
    while told < 3 {
        for [from, to] in [[(0, "a"), (1, "b")], [(1, "b"), (0, "a")]] {
            let tell = &mut |_| {
                told += 1;
                assert_eq!(hub.keep_schedules(NOW), SchedulePassResult::default());
                assert!(snapshots_in(&hub, 0).contains(&root_snapshot));
                true
            };
            move_between(&hub, [from, to], tell);
            let mut wanted = [vec![], vec![]];
            wanted[to.0].push((to.1.to_owned(), false));
            wanted[0].push(root.clone());
            assert_eq!(all(&hub), wanted);
        }
    }
    move_on(&hub, &mut |_| true);
    assert_eq!(hub.keep_schedules(NOW), SchedulePassResult::default());
    assert_eq!(snapshots_in(&hub, 1), ["b@hourly-2026-11-23_19-00"]);
    assert_eq!(snapshots_in(&hub, 0), [root_snapshot]);
    drop(hub);
    two.close();
}

/// Goal: after a crash at any step of a move, the next server has the fileset's schedule once, in
/// the pool that has the fileset. Method: the files of schedules as they are before the move, after
/// it, and between the two writes, and with one unwritable.
#[test]
fn schedules_are_found_where_their_fileset_is() {
    let two = TwoPoolServer::new("found");
    let hub = two.hub();
    hub.read_schedules().expect("there is none");
    set(&hub, 0, "a", 2);
    set(&hub, 0, "root", 1);
    let names = [0, 1].map(|index| format!("schedules-{}.toml", hub.pools[index].id));
    let files = names.each_ref().map(|name| two.state.join(name));
    let texts = || files.each_ref().map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let before = texts();
    move_on(&hub, &mut |_| true);
    let after = texts();
    assert!(after[0] != before[0] && after[1].contains("\"b\""), "{after:?}");
    drop(hub);
    let wanted = [vec![("root".to_owned(), false)], vec![("b".to_owned(), false)]];
    for killed in [[&before[0], &before[1]], [&before[0], &after[1]], [&after[0], &after[1]]] {
        for (file, text) in files.iter().zip(killed) {
            std::fs::write(file, text).expect("it is ours");
        }
        let next = two.hub();
        next.read_schedules().expect("both are whole");
        assert_eq!((all(&next), texts()), (wanted.clone(), after.clone()));
    }
    // If the target's file cannot be written, the source's file must keep the schedule.
    for (blocked, name) in names.iter().enumerate() {
        for (file, text) in files.iter().zip(&before) {
            std::fs::write(file, text).expect("it is ours");
        }
        let block = two.state.join(format!(".{name}.new"));
        std::fs::create_dir(&block).expect("nothing is there");
        two.hub().read_schedules().expect("both are whole");
        assert_eq!(texts()[0], before[0], "{blocked}");
        std::fs::remove_dir(&block).expect("it is ours");
        let next = two.hub();
        next.read_schedules().expect("both are whole");
        assert_eq!((all(&next), texts()), (wanted.clone(), after.clone()), "{blocked}");
    }
    two.close();
}

/// Goal: a schedule cannot be set before the stored ones are read, so that none of those is lost.
#[test]
fn a_schedule_that_is_set_while_the_server_starts_erases_none() {
    let two = TwoPoolServer::new("starts");
    let hub = two.hub();
    hub.read_schedules().expect("there is none");
    for name in ["b", "c"] {
        hub.control(0, &create(name), Peer::own()).expect("there is room");
    }
    set(&hub, 0, "a", 1);
    set(&hub, 0, "b", 2);
    drop(hub);
    let next = two.hub();
    let keep = control::SnapshotCounts { hourly: 3, ..Default::default() };
    let request = Request::ScheduleSet { fileset: "c".to_owned(), keep, is_gone: false };
    let refused = asked(&next, &request).expect_err("the others are not read");
    assert!(refused.contains("try again"), "{refused}");
    next.read_schedules().expect("it is whole");
    assert_eq!(asked(&next, &request), Ok(Answer::Done));
    let wanted = ["a", "b", "c"].map(|name| (name.to_owned(), false));
    assert_eq!(all(&next)[0], wanted);
    let last = two.hub();
    last.read_schedules().expect("it is whole");
    assert_eq!(all(&last)[0], wanted);
    drop((next, last));
    two.close();
}

/// Goal: a schedule does not delete a snapshot that was taken again under the same name. Method: a
/// snapshot is deleted and taken between the listing and the deletion.
#[test]
fn a_snapshot_that_is_taken_anew_is_not_deleted_by_its_name() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("anew");
    let hub = hub_of(&pool, &state);
    let (fileset, snapshot) = ("root".to_owned(), "hourly-2026-11-23_04-00".to_owned());
    let take = Request::SnapshotCreate { fileset: fileset.clone(), snapshot: snapshot.clone() };
    let delete = Request::SnapshotDelete { fileset, snapshot: snapshot.clone(), uuid: None };
    assert_eq!(asked(&hub, &take), Ok(Answer::Done));
    let seen = hub.found_of(0, "root");
    assert_eq!(asked(&hub, &delete), Ok(Answer::Done));
    assert_eq!(asked(&hub, &take), Ok(Answer::Done));
    let mut kept = SchedulePassResult::default();
    assert!(!hub.delete_one(0, &seen, vec![snapshot.clone()], &mut kept));
    let told = &kept.failed;
    assert!(told.len() == 1 && told[0].1.contains("it is another snapshot"), "{told:?}");
    assert_eq!(snapshots(&hub), [format!("root@{snapshot}")]);
    let mut kept = SchedulePassResult::default();
    hub.delete_one(0, &hub.found_of(0, "root"), vec![snapshot], &mut kept);
    assert_eq!((kept, snapshots(&hub)), (SchedulePassResult::default(), vec![]));
    pool.close().expect("memory does not fail");
    drop(std::fs::remove_dir_all(&state));
}

/// Goal: a schedule that keeps more snapshots than a fileset can have is refused, with the number.
/// If the fileset has no room, a schedule deletes its own oldest snapshot to take the due one.
/// Method: three of the schedule's snapshots, and the user's up to the limit.
#[test]
fn a_schedule_takes_what_is_due_where_there_is_no_room_for_one_more() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("most");
    let hub = hub_of(&pool, &state);
    hub.read_schedules().expect("there is none");
    let most = u32::try_from(filesets(&hub)[0].snapshots_max).expect("few");
    assert!(most >= 63, "{most}");
    let set = |hourly: u32, daily: u32| {
        let keep = control::SnapshotCounts { hourly, daily, ..Default::default() };
        asked(&hub, &Request::ScheduleSet { fileset: "root".to_owned(), keep, is_gone: false })
    };
    let refused = set(most, 1).expect_err("they don't fit");
    assert!(refused.contains(&format!("root can have {most} at most")), "{refused}");
    let take = |snapshot: String| {
        asked(&hub, &Request::SnapshotCreate { fileset: "root".to_owned(), snapshot })
    };
    let own = [1, 2, 3].map(|hour| format!("hourly-2026-11-23_0{hour}-00"));
    own.iter().for_each(|snapshot| assert_eq!(take(snapshot.clone()), Ok(Answer::Done)));
    for number in 3..most {
        assert_eq!(take(format!("mine{number}")), Ok(Answer::Done));
    }
    let refused = take("more".to_owned()).expect_err("there is no room");
    assert!(refused.contains("delete a snapshot first"), "{refused}");
    assert_eq!(set(most, 0), Ok(Answer::Done));
    let (mut kept, mut looks) = (hub.keep_schedules(NOW), 0);
    while kept.has_more && looks < 100 {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
        (kept, looks) = (hub.keep_schedules(NOW), looks + 1);
    }
    assert_eq!(kept, SchedulePassResult::default());
    let there = snapshots(&hub);
    let has = |snapshot: &str| there.contains(&format!("root@{snapshot}"));
    assert!(has("hourly-2026-11-23_19-00") && !has(&own[0]) && has(&own[1]) && has(&own[2]));
    assert_eq!(
        there.iter().filter(|it| it.contains("@mine")).count(),
        usize::try_from(most).expect("few") - 3
    );
    pool.close().expect("memory does not fail");
    drop(std::fs::remove_dir_all(&state));
}
