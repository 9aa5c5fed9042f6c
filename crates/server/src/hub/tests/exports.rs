//! Tests of unserved exports, and of the order in which files of exports are written.

use super::*;

fn add(hub: &Hub, name: &str, fileset: &str) -> Result<Answer, String> {
    asked(hub, &Request::ExportAdd { export: spec(name, Some(fileset)) })
}

fn remove(hub: &Hub, name: &str) -> Result<Answer, String> {
    asked(hub, &Request::ExportRemove { name: name.to_owned() })
}

fn unserved(hub: &Hub, index: usize) -> Vec<(String, String)> {
    let list = hub.control(index, &Request::ExportList { after: String::new() }, Peer::own());
    let Ok(Answer::Exports { list, .. }) = list else { panic!("{list:?}") };
    let mut all = Vec::new();
    for it in list {
        assert_eq!(it.mount.is_empty(), it.not_served.is_some(), "{it:?}");
        all.extend(it.not_served.map(|why| (it.export.name, why)));
    }
    all
}

fn leave(hub: &Hub, last: engine::MoveStep) {
    let lent = hub.pools.iter().map(|served| served.pool.lend().expect("it is open"));
    let lent: Vec<_> = lent.collect();
    let ended = moves::run_until((&lent[0], "a"), (&lent[1], "b"), last);
    assert!(matches!(ended, Err(engine::MoveError::Ended)), "{ended:?}");
}

/// Goal: an export that cannot be served at a start is kept while others are added and removed, is
/// listed with the reason, and is served as soon as that is possible. Method: a fileset whose move
/// was interrupted.
#[test]
fn what_can_not_be_served_is_kept_and_served_once_it_can_be() {
    let two = TwoPoolServer::new("unserved");
    let hub = two.hub();
    assert_eq!(add(&hub, "/a", "a"), Ok(Answer::Done));
    drop(hub);
    let hub = Arc::new(two.hub());
    leave(&hub, engine::MoveStep::Leaves);
    assert!(hub.export_kept().expect("it is whole"));
    let of = |name: &str, fileset: &str| (name.to_owned(), Some(fileset.to_owned()));
    assert_eq!(exported(&hub, 0), []);
    let told = unserved(&hub, 0);
    assert!(told.len() == 1 && told[0].0 == "/a" && told[0].1.contains("on its way"), "{told:?}");
    let status = HubPool::about(&hub, 0).status();
    assert_eq!(status["nfs"]["exports_not_served"], json!(1));
    assert_eq!(add(&hub, "/root", "root"), Ok(Answer::Done));
    assert_eq!(add(&hub, "/more", "root"), Ok(Answer::Done));
    assert_eq!(remove(&hub, "/more"), Ok(Answer::Done));
    let refused = add(&hub, "/a", "root").expect_err("the name is kept");
    assert!(refused.contains("`holdfast export remove /srv/one.hf /a`"), "{refused}");
    hub.serve_unserved();
    assert_eq!((exported(&hub, 0), unserved(&hub, 0)), (vec![of("/root", "root")], told.clone()));
    drop(hub);
    let hub = two.hub();
    assert!(hub.export_kept().expect("it is whole"));
    assert_eq!((exported(&hub, 0), unserved(&hub, 0)), (vec![of("/root", "root")], told));
    // Now the other pool is served too, so the server finds that the fileset has stayed.
    hub.settle_moves();
    hub.serve_unserved();
    assert_eq!(exported(&hub, 0), [of("/a", "a"), of("/root", "root")]);
    assert_eq!(unserved(&hub, 0), []);
    drop(hub);
    two.close();
}

/// Goal: a kept export follows its fileset through renames, and is not served for another fileset.
/// If the fileset is deleted, only a command removes the export. If the configuration has an export
/// of its name, both are listed, and the kept one is served once the name is free.
#[test]
fn what_is_kept_goes_by_the_identity_of_its_fileset() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("identity");
    let hub = hub_of(&pool, &state);
    for name in ["a", "b"] {
        assert_eq!(asked(&hub, &create(name)), Ok(Answer::Done));
        assert_eq!(add(&hub, &format!("/{name}"), name), Ok(Answer::Done));
    }
    drop(hub);
    // Like commands that find no server.
    let rename = |name: &str, to: &str| {
        let request = Request::FilesetRename { name: name.to_owned(), to: to.to_owned() };
        pool.control(&request, Peer::own()).expect("nobody has the name");
    };
    pool.control(&Request::FilesetDelete { name: "a".to_owned() }, Peer::own()).expect("unused");
    rename("b", "home");
    for name in ["a", "b"] {
        pool.control(&create(name), Peer::own()).expect("nobody has the name");
    }
    let hub = hub_of(&pool, &state);
    hub.export(0, &spec("/b", Some("root")), ExportSource::Configuration).expect("it is there");
    assert!(hub.export_kept().expect("it is whole"));
    let told = unserved(&hub, 0);
    let words = ["is gone: `holdfast export remove", "/b"];
    assert!(told.iter().zip(words).all(|((_, why), word)| why.contains(word)), "{told:?}");
    let named = |hub: &Hub| exported(hub, 0).into_iter().map(|it| it.1.expect("a name")).collect();
    let filesets: Vec<String> = named(&hub);
    assert_eq!((filesets, told.len()), (vec!["root".to_owned()], 2));
    assert_eq!(remove(&hub, "/a"), Ok(Answer::Done));
    assert_eq!(unserved(&hub, 0).len(), 1);
    hub.export_configured(&[]).expect("nothing is said");
    hub.serve_unserved();
    let filesets: Vec<String> = named(&hub);
    assert_eq!((filesets, unserved(&hub, 0)), (vec!["home".to_owned()], vec![]));
    let file = state.join(format!("exports-{}.toml", hub.pools[0].id));
    let text = std::fs::read_to_string(file).expect("it is kept");
    assert!(text.contains("\"home\"") && !text.contains("/a\""), "{text}");
    // A name that makes no sense is not listed, and one export too many is refused.
    for count in 0..unserved::KEPT_MAX - 1 {
        hub.serve_kept(&hub.names_of(0), &spec(&format!("/{count}"), Some("none")), None);
    }
    let refused = add(&hub, "/more", "a").expect_err("there are enough");
    assert!(refused.contains("1023 of them not served: remove one"), "{refused}");
    pool.close().expect("memory does not fail");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

/// Goal: a start with many exports lists the filesets of a pool once, and so does each retry.
#[test]
fn many_exports_list_the_filesets_of_a_pool_once() {
    const EXPORTS: usize = 40;
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("many");
    let counted = super::scrubs::FakeMirrorPool::new(&pool);
    let counting: Arc<dyn OpenPool> = Arc::<super::scrubs::FakeMirrorPool>::clone(&counted);
    let hub = hub_of(&counting, &state);
    assert_eq!(asked(&hub, &create("a")), Ok(Answer::Done));
    assert_eq!(asked(&hub, &create("gone")), Ok(Answer::Done));
    for count in 0..EXPORTS {
        let fileset = if count % 2 == 0 { "a" } else { "gone" };
        assert_eq!(add(&hub, &format!("/{count}"), fileset), Ok(Answer::Done));
    }
    drop(hub);
    pool.control(&Request::FilesetDelete { name: "gone".to_owned() }, Peer::own()).expect("unused");
    let hub = hub_of(&counting, &state);
    let lists = || counted.lists.swap(0, std::sync::atomic::Ordering::Relaxed);
    lists();
    assert!(hub.export_kept().expect("it is whole"));
    assert_eq!((exported(&hub, 0).len(), hub.unserved.count()), (EXPORTS / 2, EXPORTS / 2));
    // `exported` itself makes one listing.
    assert_eq!(lists(), 2);
    hub.serve_unserved();
    assert_eq!((lists(), hub.unserved.count()), (1, EXPORTS / 2));
    drop((hub, counting, counted));
    pool.close().expect("memory does not fail");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

/// Goal: a crash between any two writes of the files of exports loses no export, and the next
/// server puts all right. Method: one file becomes unwritable after the switch of a move, and at a
/// start that settles a move.
#[test]
fn a_crash_between_two_files_of_exports_loses_none() {
    for (is_at_start, blocked) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let context = format!("at start {is_at_start}, file {blocked}");
        let two = TwoPoolServer::new("between");
        let hub = two.hub();
        assert_eq!(add(&hub, "/a", "a"), Ok(Answer::Done));
        assert_eq!(add(&hub, "/root", "root"), Ok(Answer::Done));
        let name = format!("exports-{}.toml", hub.pools[blocked].id);
        let (file, block) = (two.state.join(&name), two.state.join(format!(".{name}.new")));
        let fileset = hub.fileset_names(0).expect("it is read").into_iter();
        let fileset = fileset.filter(|(_, name)| name == "a").map(|(uuid, _)| uuid).next();
        let fileset = fileset.expect("it is there");
        hub.exports_will_move(fileset, 1).expect("there is room");
        if is_at_start {
            hub.withdraw("/a");
        }
        let before = std::cell::RefCell::new(String::new());
        let cut = || {
            std::fs::create_dir(&block).expect("nothing is there");
            *before.borrow_mut() = std::fs::read_to_string(&file).expect("it is kept");
        };
        let [own, other] = [0, 1].map(|index| &hub.pools[index].mounts.uses);
        let moved = |fileset| {
            cut();
            hub.exports_moved(fileset, (0, 1));
        };
        let seat = own.seat_of("a");
        let fronts = seat.as_ref().map(|seat| seat.fronts(own, other, &moved));
        let by = fronts.as_ref().map(|fronts| -> &dyn engine::Fronts { fronts });
        assert_eq!(by.is_none(), is_at_start);
        let lent = hub.pools.iter().map(|served| served.pool.lend().expect("it is open"));
        let lent: Vec<_> = lent.collect();
        let (from, to) = ((&lent[0], "a"), (&lent[1], "b"));
        moves::run(from, to, by, moves::MoveTask::Run, &mut |_| true).expect("it is free");
        drop((fronts, lent));
        drop(seat);
        drop(hub);
        if is_at_start {
            cut();
            let next = two.hub();
            let refused = next.export_kept().expect_err("it can't be written");
            assert!(format!("{refused:#}").contains("cannot keep"), "{context}: {refused:#}");
        }
        assert_eq!(std::fs::read_to_string(&file).expect("it is kept"), *before.borrow());
        let of = |name: &str, fileset: &str| (name.to_owned(), Some(fileset.to_owned()));
        std::fs::remove_dir(&block).expect("it is ours");
        let next = two.hub();
        assert!(next.export_kept().expect("both are whole"));
        assert_eq!(exported(&next, 0), [of("/root", "root")], "{context}");
        assert_eq!(exported(&next, 1), [of("/a", "b")], "{context}");
        assert_eq!((unserved(&next, 0), unserved(&next, 1)), (vec![], vec![]), "{context}");
        drop(next);
        two.close();
    }
}

/// Goal: `fileset here` is refused if the other pool of the move cannot be read. Method: a leaving
/// fileset, with the moves of each pool unreadable in turn.
#[test]
fn a_word_is_refused_where_a_pool_can_not_be_read() {
    let two = TwoPoolServer::new("unread");
    let hub = two.hub();
    leave(&hub, engine::MoveStep::Leaves);
    let word = |name: &str, unread: Option<usize>| {
        let moves_of = |served: &ServedPool| {
            let moves = served.pool.lend().and_then(|lent| lent.moves()).expect("it is read");
            let moves = moves.into_iter().map(|(name, moving)| (name.to_string(), moving));
            unread.is_none_or(|it| hub.pools[it].id != served.id).then(|| moves.collect())
        };
        hub.check_word_by(0, name, &moves_of).map_err(|error| error.to_string())
    };
    for (unread, path) in [(0, "/srv/one.hf"), (1, "/srv/two.hf")] {
        let refused = word("a", Some(unread)).expect_err("nobody knows");
        assert!(refused.contains(&format!("filesets of {path} can't be read")), "{refused}");
        assert!(refused.contains(&format!("`holdfast check {path}`")), "{refused}");
    }
    assert_eq!(word("a", None), Ok(()), "it has not arrived");
    // A fileset that does not move does not depend on the other pool.
    assert_eq!(word("root", Some(1)), Ok(()));
    drop(hub);
    two.close();
}

fn fileset_of(hub: &Hub, index: usize, name: &str) -> FilesetUuid {
    let mut all = hub.fileset_names(index).expect("it is read").into_iter();
    all.find(|(_, own)| own == name).expect("it is there").0
}

/// Goal: unserved exports follow a fileset whose move a second request finishes. Method: a server
/// without NFS, and a move interrupted after the source was deleted.
#[test]
fn exports_that_are_not_served_go_along_when_a_move_is_finished_late() {
    let two = TwoPoolServer::new("late");
    let hub = two.hub();
    assert_eq!(add(&hub, "/a", "a"), Ok(Answer::Done));
    drop(hub);
    let hub = Hub { nfs: None, ..two.hub() };
    assert!(hub.export_kept().expect("it is whole"));
    assert_eq!(hub.unserved.of(0).len(), 1);
    leave(&hub, engine::MoveStep::Deleted);
    move_on(&hub, &mut |_| true);
    assert_eq!((hub.unserved.of(0).len(), hub.unserved.of(1).len()), (0, 1));
    drop(hub);
    let next = two.hub();
    assert!(next.export_kept().expect("both are whole"));
    assert_eq!(exported(&next, 1), [("/a".to_owned(), Some("b".to_owned()))]);
    assert_eq!(unserved(&next, 0), []);
    drop(next);
    two.close();
}

/// Goal: after each step of a move, the pool of the fileset is known exactly if both pools agree.
#[test]
fn where_a_fileset_is_both_pools_say_together() {
    use engine::MoveStep::{Arrived, Copied, Deleted, Leaves, Settled, SnapshotTaken};
    for (last, is_moved) in [
        (SnapshotTaken, Some(false)),
        (Copied, Some(false)),
        (Leaves, None),
        (Arrived, None),
        (Deleted, Some(true)),
        (Settled, Some(true)),
    ] {
        let two = TwoPoolServer::new("where");
        let hub = two.hub();
        let fileset = fileset_of(&hub, 0, "a");
        leave(&hub, last);
        assert_eq!(hub.is_moved(fileset, (0, 1)), is_moved, "{last:?}");
        drop(hub);
        two.close();
    }
}

/// Goal: arriving exports of a fileset whose pool is unknown stay stored while other filesets move
/// and exports are added.
#[test]
fn what_is_arriving_of_one_fileset_outlives_the_move_of_another() {
    let two = TwoPoolServer::new("others");
    let hub = two.hub();
    hub.control(0, &create("y"), Peer::own()).expect("there is room");
    assert_eq!(add(&hub, "/a", "a"), Ok(Answer::Done));
    assert_eq!(add(&hub, "/y", "y"), Ok(Answer::Done));
    hub.exports_will_move(fileset_of(&hub, 0, "a"), 1).expect("there is room");
    move_between(&hub, [(0, "y"), (1, "y")], &mut |_| true);
    let export = spec("/root", Some("root"));
    hub.control(1, &Request::ExportAdd { export }, Peer::own()).expect("it is free");
    let file = two.state.join(format!("exports-{}.toml", hub.pools[1].id));
    let text = std::fs::read_to_string(&file).expect("it is kept");
    let (_, arriving) = text.split_once("arriving").expect("something is");
    assert!(arriving.contains("\"/a\""), "{text}");
    drop(hub);
    leave(&two.hub(), engine::MoveStep::Settled);
    let next = two.hub();
    assert!(next.export_kept().expect("both are whole"));
    let of = |name: &str, fileset: &str| (name.to_owned(), Some(fileset.to_owned()));
    assert_eq!(exported(&next, 1), [of("/a", "b"), of("/root", "root"), of("/y", "y")]);
    assert_eq!((exported(&next, 0), unserved(&next, 0)), (vec![], vec![]));
    drop(next);
    two.close();
}

/// Goal: if a pool is opened with a snapshot, its export is served again by the next server that
/// opens it so, though the snapshot is not in the list of filesets.
#[test]
fn an_export_of_a_snapshot_that_is_served_is_kept() {
    let state = new_directory("of-snapshot");
    std::fs::create_dir_all(&state).expect("it is new");
    let device = state.join("pool.hf");
    let create = crate::backend::BackendCreateOptions::in_file(&device, 64 << 20, "test");
    EngineBackend.create(&create).expect("there is room");
    let open = |snapshot: Option<&str>| {
        let options = crate::backend::BackendOpenOptions {
            device: device.clone(),
            members: crate::backend::MemberSearchOptions::default(),
            is_read_only: false,
            may_replay: true,
            has_no_atime: true,
            cache_bytes: 16 << 20,
            placement: crate::backend::PlacementPolicyKind::Log,
            commit_interval: Duration::from_secs(5),
            device_deadline: Duration::from_secs(30),
            discards: crate::backend::DiscardMode::default(),
            is_forced: false,
            fileset: snapshot.map(|_| "root".parse().expect("a name")),
            snapshot: snapshot.map(|name| NamePart::new(name).expect("a name")),
        };
        EngineBackend.open(&options).expect("it opens")
    };
    let pool = open(None);
    let snapshot = Request::SnapshotCreate { fileset: "root".to_owned(), snapshot: "c".to_owned() };
    pool.control(&snapshot, Peer::own()).expect("there is room");
    pool.close().expect("nothing fails");
    drop(pool);
    for is_first in [true, false] {
        let pool = open(Some("c"));
        let hub = hub_of(&pool, &state);
        hub.export_kept().expect("it can be read");
        if is_first {
            let added = asked(&hub, &Request::ExportAdd { export: spec("/monday", None) });
            added.expect("it can be exported");
        }
        assert_eq!(unserved(&hub, 0), []);
        let names: Vec<String> = names(&hub).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["/monday"]);
        drop(hub);
        pool.close().expect("nothing fails");
    }
    std::fs::remove_dir_all(&state).expect("it is there");
}
