mod exports;
mod schedules;
mod scrubs;

use crate::facts::export_spec;
use front::nfs::{ExportRules, HandleKey};

use super::schedule::SchedulePassResult;
use super::*;
use crate::backend::Backend;
use crate::wiring::{EngineBackend, moves};
use control::{ExportSource, ExportSpec};

#[test]
fn the_line_that_mounts_names_port_and_host() {
    let line = |address: &str| mount_line(address.parse().expect("it is one"), "/a");
    let options = "mount -t nfs -o vers=3,tcp,nolock,port=2049,mountport=2049";
    assert_eq!(line("127.0.0.1:2049"), format!("{options} 127.0.0.1:/a DIRECTORY"));
    assert_eq!(line("[::1]:2049"), format!("{options} [::1]:/a DIRECTORY"));
    assert_eq!(line("0.0.0.0:2049"), format!("{options} SERVER:/a DIRECTORY"));
}

/// Returns a server of a pool in memory, which does not listen, with its state directory.
fn hub_of(pool: &Arc<dyn OpenPool>, state: &Path) -> Hub {
    let service = Arc::new(Service::new(HandleKey([7; 16]), 2049));
    let nfs = Nfs::new(
        service,
        "127.0.0.1:2049".parse().expect("it is one"),
        ExportedFilesets::forgetful(),
    );
    let pools = vec![ServedPool::new("/srv/pool.hf".into(), Arc::clone(pool))];
    Hub::new(pools, Some(nfs), StateDirectory::find(Some(state)).expect("it is given"))
}

fn new_directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn spec(name: &str, fileset: Option<&str>) -> ExportSpec {
    export_spec(&ExportRules::new(name), fileset.map(str::to_owned))
}

fn asked(hub: &Hub, request: &Request) -> Result<Answer, String> {
    hub.control(0, request, Peer::own()).map_err(|error| error.to_string())
}

fn names(hub: &Hub) -> Vec<(String, Option<String>)> {
    let list = asked(hub, &Request::ExportList { after: String::new() });
    let Ok(Answer::Exports { list, has_more: false }) = list else { panic!("{list:?}") };
    list.into_iter().map(|it| (it.export.name, it.export.fileset)).collect()
}

/// Goal: SV1. The next server serves the exports that were added, by the current names of their
/// filesets, and not those removed. An export that fails does not stop the server.
#[test]
fn exports_outlive_their_server() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("exports");
    let hub = hub_of(&pool, &state);
    assert!(!hub.export_kept().expect("nothing is there"));
    let create = |name: &str| Request::FilesetCreate {
        name: name.to_owned(),
        properties: control::Properties::default(),
    };
    assert_eq!(asked(&hub, &create("a")), Ok(Answer::Done));
    assert_eq!(asked(&hub, &create("b")), Ok(Answer::Done));
    for (name, fileset) in [("/a", Some("a")), ("/b", Some("b")), ("/all", None)] {
        let request = Request::ExportAdd { export: spec(name, fileset) };
        assert_eq!(asked(&hub, &request), Ok(Answer::Done));
        let again = asked(&hub, &request).expect_err("the name is taken");
        assert!(again.contains("already"), "{again}");
    }
    let to = "home".to_owned();
    let rename = Request::FilesetRename { name: "a".to_owned(), to };
    assert_eq!(asked(&hub, &rename), Ok(Answer::Done));
    let remove = Request::ExportRemove { name: "/b".to_owned() };
    assert_eq!(asked(&hub, &remove), Ok(Answer::Done));
    let gone = asked(&hub, &remove).expect_err("it is gone");
    assert!(gone.contains("export list"), "{gone}");
    let of = |name: &str, fileset: &str| (name.to_owned(), Some(fileset.to_owned()));
    let kept = [of("/a", "home"), of("/all", "root")];
    assert_eq!(names(&hub), kept);
    let next = hub_of(&pool, &state);
    // Configured exports come first, so this one takes the name.
    next.export(0, &spec("/all", Some("b")), ExportSource::Configuration).expect("it is there");
    assert!(next.export_kept().expect("it is whole"));
    assert_eq!(names(&next), [of("/a", "home"), of("/all", "b"), of("/all", "root")]);
    // The first request removes the unserved kept export. The second finds none.
    let remove = Request::ExportRemove { name: "/all".to_owned() };
    assert_eq!(asked(&next, &remove), Ok(Answer::Done));
    assert_eq!(names(&next), [of("/a", "home"), of("/all", "b")]);
    let refused = asked(&next, &remove);
    assert!(refused.is_err_and(|words| words.contains("holdfast.toml")));
    let mode = std::fs::metadata(state.join(format!("exports-{}.toml", next.pools[0].id)));
    let mode = std::os::unix::fs::PermissionsExt::mode(&mode.expect("it is kept").permissions());
    assert_eq!(mode & 0o777, 0o600);
    pool.close().expect("memory does not fail");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

/// Goal: exports that make no sense, and missing filesets, are refused with a message.
#[test]
fn what_cannot_be_exported_is_refused() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("refused");
    let hub = hub_of(&pool, &state);
    let dir = Some("/none".to_owned());
    for (export, words) in [
        (spec("/a", Some("none")), "none"),
        (spec("/a", Some("../x")), "name a fileset as a/b"),
        (ExportSpec { dir, ..spec("/a", None) }, "no directory to export"),
        (ExportSpec { to: vec!["10/8".to_owned()], ..spec("/a", None) }, "no network"),
        (spec("a", None), "path from /"),
    ] {
        let refused = asked(&hub, &Request::ExportAdd { export }).expect_err("it is refused");
        assert!(refused.contains(words), "{refused}");
    }
    std::fs::write(&state, "a file").expect("nothing is there");
    let add = Request::ExportAdd { export: spec("/a", None) };
    let refused = asked(&hub, &add).expect_err("it cannot be kept");
    assert!(refused.contains("cannot keep"), "{refused}");
    assert_eq!(names(&hub), []);
    pool.close().expect("memory does not fail");
    std::fs::remove_file(&state).expect("it is ours");
}

/// Goal: `fileset here` is refused while a fileset moves.
#[test]
fn nobody_says_where_a_fileset_is_while_one_is_moved() {
    let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
    let state = new_directory("here");
    let hub = hub_of(&pool, &state);
    let here = Request::FilesetHere { name: "root".to_owned() };
    let moving = hub.no_move(0).expect("nothing is moved");
    let refused = asked(&hub, &here).expect_err("one is moved");
    assert!(refused.contains("is being moved: try again"), "{refused}");
    drop(moving);
    let refused = asked(&hub, &here).expect_err("it is not on its way");
    assert!(refused.contains("neither leaves nor has arrived"), "{refused}");
    pool.close().expect("memory does not fail");
}

fn create(name: &str) -> Request {
    let properties = control::Properties::default();
    Request::FilesetCreate { name: name.to_owned(), properties }
}

fn filesets(hub: &Hub) -> Vec<FilesetFacts> {
    let list = asked(hub, &Request::FilesetList { from: 0 });
    let Ok(Answer::Filesets { list, .. }) = list else { panic!("{list:?}") };
    list.into_iter().filter(|it| it.freed_permille.is_none()).collect()
}

fn schedules(hub: &Hub) -> Vec<(String, bool)> {
    let list = asked(hub, &Request::ScheduleList {});
    let Ok(Answer::Schedules(list)) = list else { panic!("{list:?}") };
    list.into_iter().map(|it| (it.fileset, it.is_gone)).collect()
}

/// 2026-11-23 19:42 UTC.
const NOW: u64 = 1_795_462_920;

/// Goal: a schedule stays with a renamed fileset, whether or not a server runs, and does not apply
/// to a fileset that gets the old name. The schedule of a deleted fileset is listed as gone, and
/// can be removed by name.
#[test]
fn a_schedule_belongs_to_a_fileset_and_not_to_its_name() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("schedules");
    let hub = hub_of(&pool, &state);
    hub.read_schedules().expect("there is none");
    assert_eq!(asked(&hub, &create("a")), Ok(Answer::Done));
    let set = |fileset: &str, hourly: u32| Request::ScheduleSet {
        fileset: fileset.to_owned(),
        keep: control::SnapshotCounts { hourly, ..Default::default() },
        is_gone: false,
    };
    let rename =
        |name: &str, to: &str| Request::FilesetRename { name: name.to_owned(), to: to.to_owned() };
    assert_eq!(asked(&hub, &set("a", 2)), Ok(Answer::Done));
    assert_eq!(asked(&hub, &rename("a", "b")), Ok(Answer::Done));
    assert_eq!(asked(&hub, &create("a")), Ok(Answer::Done));
    assert_eq!(schedules(&hub), [("b".to_owned(), false)]);
    // Like a command that finds no server.
    pool.control(&rename("b", "home"), Peer::own()).expect("nobody has the name");
    let next = hub_of(&pool, &state);
    next.read_schedules().expect("it is whole");
    assert_eq!(next.keep_schedules(NOW), SchedulePassResult::default());
    let snapshots: Vec<String> =
        filesets(&next).into_iter().filter(|it| it.is_snapshot).map(|it| it.name).collect();
    assert_eq!(snapshots, ["home@hourly-2026-11-23_19-00"]);
    let delete = Request::SnapshotDelete {
        fileset: "home".to_owned(),
        snapshot: "hourly-2026-11-23_19-00".to_owned(),
        uuid: None,
    };
    assert_eq!(asked(&next, &delete), Ok(Answer::Done));
    let delete = Request::FilesetDelete { name: "home".to_owned() };
    assert_eq!(asked(&next, &delete), Ok(Answer::Done));
    assert_eq!(schedules(&next), [("home".to_owned(), true)]);
    let failed = next.keep_schedules(NOW).failed;
    assert_eq!(failed, [(0, "the fileset home is gone".to_owned())]);
    assert_eq!(asked(&next, &set("home", 0)), Ok(Answer::Done));
    assert_eq!(schedules(&next), []);
    pool.close().expect("memory does not fail");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

/// Goal: setting or removing a schedule by name affects only the fileset that has the name, and not
/// one that had it before.
#[test]
fn a_schedule_that_is_taken_away_is_that_of_the_fileset_which_has_the_name() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("twins");
    let hub = hub_of(&pool, &state);
    hub.read_schedules().expect("there is none");
    let set = |hourly: u32, is_gone: bool| {
        let keep = control::SnapshotCounts { hourly, ..Default::default() };
        asked(&hub, &Request::ScheduleSet { fileset: "a".to_owned(), keep, is_gone })
    };
    let twin = |is_gone| ("a".to_owned(), is_gone);
    for _ in 0..2 {
        assert_eq!(asked(&hub, &create("a")), Ok(Answer::Done));
        assert_eq!(set(2, false), Ok(Answer::Done));
        let delete = Request::FilesetDelete { name: "a".to_owned() };
        assert_eq!(asked(&hub, &delete), Ok(Answer::Done));
    }
    assert_eq!(asked(&hub, &create("a")), Ok(Answer::Done));
    let refused = set(0, false).expect_err("only those that are gone have one");
    assert!(refused.contains("none --gone"), "{refused}");
    assert_eq!(set(2, false), Ok(Answer::Done));
    assert_eq!(schedules(&hub), [twin(false), twin(true), twin(true)]);
    assert_eq!(set(0, false), Ok(Answer::Done));
    assert_eq!(schedules(&hub), [twin(true), twin(true)]);
    assert_eq!(set(2, false), Ok(Answer::Done));
    let refused = set(2, true).expect_err("it takes none");
    assert!(refused.contains("write none"), "{refused}");
    assert_eq!(set(0, true), Ok(Answer::Done));
    assert_eq!(schedules(&hub), [twin(false)]);
    let refused = set(0, true).expect_err("they are taken away");
    assert!(refused.contains("no fileset a that is gone"), "{refused}");
    let next = hub_of(&pool, &state);
    next.read_schedules().expect("it is whole");
    assert_eq!(schedules(&next), [twin(false)]);
    pool.close().expect("memory does not fail");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

fn snapshots(hub: &Hub) -> Vec<String> {
    filesets(hub).into_iter().filter(|it| it.is_snapshot).map(|it| it.name).collect()
}

/// Goal: one run deletes all surplus snapshots without a failure. Those in use stay, are listed,
/// and do not block the others. Method: old snapshots, of which the oldest is held, the next
/// cloned, the third mounted.
#[test]
fn a_schedule_deletes_what_nothing_needs_whatever_stays() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("surplus");
    let hub = hub_of(&pool, &state);
    hub.read_schedules().expect("there is none");
    let fileset = || "root".to_owned();
    let own = |hour: u64| format!("hourly-2026-11-23_{hour:02}-00");
    for hour in 4..14 {
        let take = Request::SnapshotCreate { fileset: fileset(), snapshot: own(hour) };
        assert_eq!(asked(&hub, &take), Ok(Answer::Done));
    }
    let (snapshot, hold) = (own(4), "me".to_owned());
    let hold = Request::SnapshotHold { fileset: fileset(), snapshot, hold, is_held: true };
    assert_eq!(asked(&hub, &hold), Ok(Answer::Done));
    let clone =
        Request::CloneCreate { fileset: fileset(), snapshot: own(5), to: "clone".to_owned() };
    assert_eq!(asked(&hub, &clone), Ok(Answer::Done));
    let (name, part) = ("root".parse().expect("a name"), NamePart::new(&own(6)).expect("a part"));
    let mount = crate::uses::FilesetUse::Mount("/mnt".into());
    let uses = &hub.pools[0].mounts.uses;
    let claim = uses.claim(Some(&name), Some(&part), mount).expect("it is there");
    let keep = control::SnapshotCounts { hourly: 1, ..Default::default() };
    let set = Request::ScheduleSet { fileset: fileset(), keep, is_gone: false };
    assert_eq!(asked(&hub, &set), Ok(Answer::Done));
    // The snapshots must be named by the current time, because the run uses the clock.
    let failed = timetable::keep(&hub, &std::sync::atomic::AtomicBool::new(false));
    assert_eq!(failed, []);
    let left = snapshots(&hub);
    let wanted: Vec<String> = [4, 5, 6].map(|hour| format!("root@{}", own(hour))).into();
    assert!(left.starts_with(&wanted) && left.len() == 4, "{left:?}");
    let list = asked(&hub, &Request::ScheduleList {});
    let Ok(Answer::Schedules(list)) = list else { panic!("{list:?}") };
    let stays = &list[0].stays;
    for (at, word) in ["held by me", "clone", "mounted on /mnt"].iter().enumerate() {
        assert!(stays[at].starts_with(&wanted[at]) && stays[at].contains(word), "{stays:?}");
    }
    let status = hub.schedule_status(0).expect("there is a schedule");
    assert_eq!(status, json!({ "filesets": 1, "stays": stays }));
    drop(claim);
    assert_eq!(timetable::keep(&hub, &std::sync::atomic::AtomicBool::new(false)), []);
    assert_eq!(snapshots(&hub).len(), 3);
    pool.close().expect("memory does not fail");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

/// Goal: a fileset is listed with its uses, and is not deleted while it has any. The message names
/// the use.
#[test]
fn what_a_fileset_is_used_for_is_told() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("used");
    let hub = hub_of(&pool, &state);
    assert_eq!(asked(&hub, &create("a")), Ok(Answer::Done));
    let add = Request::ExportAdd { export: spec("/a", Some("a")) };
    assert_eq!(asked(&hub, &add), Ok(Answer::Done));
    let mount = crate::uses::FilesetUse::Mount("/mnt".into());
    let claim = hub.pools[0].mounts.uses.claim(None, None, mount).expect("it is free");
    let used: Vec<(String, bool, Vec<String>)> = filesets(&hub)
        .into_iter()
        .map(|it| (it.name, it.is_mounted, it.used_by.iter().map(|it| it.words()).collect()))
        .collect();
    let of =
        |name: &str, is_mounted, words: &str| (name.to_owned(), is_mounted, vec![words.to_owned()]);
    assert_eq!(used, [of("root", true, "mounted on /mnt"), of("a", false, "exported as /a")]);
    let delete = Request::FilesetDelete { name: "a".to_owned() };
    let refused = asked(&hub, &delete).expect_err("it is exported");
    assert!(refused.contains("`holdfast export remove /srv/pool.hf /a` first"), "{refused}");
    drop(claim);
    let remove = Request::ExportRemove { name: "/a".to_owned() };
    assert_eq!(asked(&hub, &remove), Ok(Answer::Done));
    assert!(filesets(&hub).iter().all(|it| it.used_by.is_empty() && !it.is_mounted));
    assert_eq!(asked(&hub, &delete), Ok(Answer::Done));
    pool.close().expect("memory does not fail");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

/// Goal: the default export stays when another is added, and can be removed.
#[test]
fn the_default_export_is_kept_with_the_first_that_is_added() {
    let pool = EngineBackend.open_in_memory(64 << 20).expect("there is memory");
    let state = new_directory("default");
    let hub = hub_of(&pool, &state);
    hub.export(0, &spec("/", None), ExportSource::Default).expect("it is there");
    let add = Request::ExportAdd { export: spec("/b", None) };
    assert_eq!(asked(&hub, &add), Ok(Answer::Done));
    let next = hub_of(&pool, &state);
    assert!(next.export_kept().expect("it is whole"));
    let all: Vec<String> = names(&next).into_iter().map(|(name, _)| name).collect();
    assert_eq!(all, ["/", "/b"]);
    let remove = Request::ExportRemove { name: "/".to_owned() };
    assert_eq!(asked(&next, &remove), Ok(Answer::Done));
    let last = hub_of(&pool, &state);
    assert!(last.export_kept().expect("it is whole"));
    assert_eq!(names(&last).len(), 1);
    pool.close().expect("memory does not fail");
    std::fs::remove_dir_all(&state).expect("it is ours");
}

struct TwoPoolServer {
    pools: [Arc<dyn OpenPool>; 2],
    state: PathBuf,
}

impl TwoPoolServer {
    fn new(name: &str) -> TwoPoolServer {
        let pool = |_| EngineBackend.open_in_memory(64 << 20).expect("there is memory");
        let pools = [0, 1].map(pool);
        pools[0].control(&create("a"), Peer::own()).expect("there is room");
        TwoPoolServer { pools, state: new_directory(name) }
    }

    fn hub(&self) -> Hub {
        let service = Arc::new(Service::new(HandleKey([7; 16]), 2049));
        let nfs = Nfs::new(
            service,
            "127.0.0.1:2049".parse().expect("it is one"),
            ExportedFilesets::forgetful(),
        );
        let paths = ["/srv/one.hf", "/srv/two.hf"].into_iter();
        let pools = paths
            .zip(&self.pools)
            .map(|(path, pool)| ServedPool::new(path.into(), Arc::clone(pool)));
        let state = StateDirectory::find(Some(&self.state)).expect("it is given");
        Hub::new(pools.collect(), Some(nfs), state)
    }

    fn close(self) {
        self.pools.iter().for_each(|pool| pool.close().expect("memory does not fail"));
        // If there were no kept exports, the directory does not exist.
        drop(std::fs::remove_dir_all(&self.state));
    }
}

fn move_on(hub: &Hub, progress: OnTransfer<'_>) {
    move_between(hub, [(0, "a"), (1, "b")], progress);
}

fn move_between(
    hub: &Hub,
    [(from, fileset), (to, name)]: [(usize, &str); 2],
    tell: OnTransfer<'_>,
) {
    let pool = hub.pools[to].path.clone();
    let (fileset, to) = (fileset.to_owned(), name.to_owned());
    let request = Transfer::Move { fileset, pool, to, gives_up: false };
    hub.move_fileset(from, &request, tell).expect("nothing is in its way");
}

fn exported(hub: &Hub, index: usize) -> Vec<(String, Option<String>)> {
    let list = hub.facts_of(index);
    list.into_iter().map(|it| (it.export.name, it.export.fileset)).collect()
}

/// Goal: a server has no two pools of one name, because its metrics tell them apart by that.
#[test]
fn a_name_that_another_pool_of_the_server_has_is_refused() {
    let two = TwoPoolServer::new("names");
    let hub = two.hub();
    let rename = Request::PoolRename { name: "tank".to_owned() };
    assert_eq!(asked(&hub, &rename), Ok(Answer::Done));
    let refused = hub.control(1, &rename, Peer::own()).expect_err("it is taken").to_string();
    assert!(hub.pools.iter().all(|pool| refused.contains(&pool.id)), "{refused}");
    assert_eq!(asked(&hub, &rename), Ok(Answer::Done), "its own name is no other's");
}

/// Goal: after a crash at any step of a move, the next server serves the kept exports from the pool
/// that has the fileset, and from no other. Method: the files of exports as they are before the
/// move, after the switch, and between the two writes after it.
#[test]
fn exports_go_along_with_a_fileset_whenever_the_server_is_killed() {
    let two = TwoPoolServer::new("along");
    let hub = two.hub();
    for (name, fileset) in [("/a", "a"), ("/root", "root")] {
        let add = Request::ExportAdd { export: spec(name, Some(fileset)) };
        assert_eq!(asked(&hub, &add), Ok(Answer::Done));
    }
    let files = [0, 1].map(|index| two.state.join(format!("exports-{}.toml", hub.pools[index].id)));
    let texts = || files.each_ref().map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let name = "a".parse().expect("a name");
    let fileset = hub.pools[0].pool.hold_fileset(Some(&name), None);
    let fileset = fileset.expect("it is there");
    hub.pools[0].pool.release_fileset(fileset);
    hub.exports_will_move(fileset, 1).expect("there is room");
    let before = texts();
    assert!(before[1].contains("arriving"), "{}", before[1]);
    let add = Request::ExportAdd { export: spec("/more", Some("a")) };
    assert_eq!(asked(&hub, &add), Ok(Answer::Done));
    assert!(texts()[1].contains("/more"));
    let remove = Request::ExportRemove { name: "/more".to_owned() };
    assert_eq!(asked(&hub, &remove), Ok(Answer::Done));
    assert_eq!(texts(), before);
    drop(hub);
    let of = |name: &str, fileset: &str| (name.to_owned(), Some(fileset.to_owned()));
    let next = two.hub();
    assert!(next.export_kept().expect("both are whole"));
    assert_eq!(exported(&next, 0), [of("/a", "a"), of("/root", "root")]);
    assert_eq!(exported(&next, 1), []);
    assert!(!texts()[1].contains("arriving"), "it has stayed");
    move_on(&next, &mut |_| true);
    let after = texts();
    assert!(!after[0].contains("\"/a\"") && after[1].contains("\"/a\""), "{after:?}");
    drop(next);
    for killed in [[&before[0], &before[1]], [&after[0], &before[1]], [&after[0], &after[1]]] {
        for (file, text) in files.iter().zip(killed) {
            std::fs::write(file, text).expect("it is ours");
        }
        let next = two.hub();
        assert!(next.export_kept().expect("both are whole"));
        assert_eq!(exported(&next, 0), [of("/root", "root")]);
        assert_eq!(exported(&next, 1), [of("/a", "b")]);
        assert_eq!(texts(), after);
    }
    two.close();
}

/// Goal: a configured export goes on after a move, whether the configuration that is reloaded is
/// unchanged or names the new pool.
#[test]
fn a_configuration_is_read_again_behind_a_move() {
    let two = TwoPoolServer::new("reload");
    let hub = two.hub();
    let said = [(0, spec("/c", Some("a")))];
    hub.export_configured(&said).expect("it is there");
    move_on(&hub, &mut |_| true);
    let moved = [("/c".to_owned(), Some("b".to_owned()))];
    for _ in 0..2 {
        hub.export_configured(&said).expect("it says what it said");
        assert_eq!((exported(&hub, 0), &exported(&hub, 1)[..]), (vec![], &moved[..]));
    }
    let other = [(0, spec("/c", Some("z")))];
    assert!(hub.export_configured(&other).is_err(), "there is no z");
    assert_eq!(exported(&hub, 1), moved);
    hub.export_configured(&[(1, spec("/c", Some("b")))]).expect("it is there");
    assert_eq!(exported(&hub, 1), moved);
    assert!(hub.export_configured(&said).is_err(), "it is not there any more");
    drop(hub);
    two.close();
}

/// Goal: a client that does not read its progress blocks no requests (MU4). Method: a request is
/// made in each progress callback and must be answered.
#[test]
fn who_asks_for_a_move_is_told_nothing_while_requests_wait() {
    let two = TwoPoolServer::new("told");
    let hub = two.hub();
    let name = "a".parse().expect("a name");
    let mount = crate::uses::FilesetUse::Mount("/mnt".into());
    let claim = hub.pools[0].mounts.uses.claim(Some(&name), None, mount).expect("it is free");
    let mut told = 0;
    let tell = &mut |_| {
        told += 1;
        let (fs, (sender, receiver)) = (claim.file_system(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let caller = engine::api::Caller::root();
            sender.send(fs.getattr(&caller, fs.root()).is_ok())
        });
        assert_eq!(receiver.recv_timeout(Duration::from_secs(2)), Ok(true), "requests wait");
        true
    };
    // How many callbacks a move makes is random.
    for _ in 0..3 {
        move_between(&hub, [(0, "a"), (1, "b")], tell);
        move_between(&hub, [(1, "b"), (0, "a")], tell);
    }
    assert!(told > 0, "he is told nothing at all");
    drop((claim, hub));
    two.close();
}

/// Goal: `fileset here` is refused if this server can finish the move. Method: a move that is
/// interrupted when the fileset has arrived.
#[test]
fn a_word_is_refused_where_both_pools_can_say_it() {
    let two = TwoPoolServer::new("word");
    let hub = two.hub();
    {
        let lent = hub.pools.iter().map(|served| served.pool.lend().expect("it is open"));
        let lent: Vec<_> = lent.collect();
        let ended = moves::run_until((&lent[0], "a"), (&lent[1], "b"), engine::MoveStep::Arrived);
        assert!(matches!(ended, Err(engine::MoveError::Ended)), "{ended:?}");
    }
    for (index, name) in [(0, "a"), (1, "b")] {
        let here = Request::FilesetHere { name: name.to_owned() };
        let refused = hub.control(index, &here, Peer::own()).expect_err("it has arrived");
        let words = "`holdfast fileset move /srv/one.hf:a /srv/two.hf:b` finishes that";
        assert!(refused.to_string().contains(words), "{refused}");
    }
    move_on(&hub, &mut |_| true);
    drop(hub);
    two.close();
}
