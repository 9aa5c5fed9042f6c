//! Tests of scheduled scrubs, and of configured schedules.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::hub::config::PoolConfig;
use crate::hub::schedule::ConfiguredSchedule;
use crate::hub::scrubs::ScrubScheduleSource;
use control::{ScrubEvery, ScrubFacts, ScrubSchedule, SnapshotCounts};

const DAY: u64 = 24 * 3600;

/// A pool that reports to be a mirror, and records scrubs and listings of filesets.
pub(super) struct FakeMirrorPool {
    pool: Arc<dyn OpenPool>,
    is_degraded: AtomicBool,
    refuses: AtomicBool,
    scrub: Mutex<Option<ScrubFacts>>,
    begun: Mutex<u64>,
    pub(super) lists: AtomicUsize,
}

impl FakeMirrorPool {
    pub(super) fn new(pool: &Arc<dyn OpenPool>) -> Arc<FakeMirrorPool> {
        Arc::new(FakeMirrorPool {
            pool: Arc::clone(pool),
            is_degraded: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            scrub: Mutex::default(),
            begun: Mutex::default(),
            lists: AtomicUsize::new(0),
        })
    }

    fn begun(&self) -> u64 {
        *self.begun.lock().expect("nobody panicked")
    }

    fn end(&self) {
        let (ended_seconds, repaired) = (Some(now()), 3);
        let ended = ScrubFacts { is_done: true, ended_seconds, repaired, ..ScrubFacts::default() };
        *self.scrub.lock().expect("nobody panicked") = Some(ended);
    }
}

impl OpenPool for FakeMirrorPool {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.pool.file_system()
    }

    fn hold_fileset(
        &self,
        name: Option<&FilesetName>,
        snapshot: Option<&NamePart>,
    ) -> Result<FilesetUuid, BackendError> {
        self.pool.hold_fileset(name, snapshot)
    }

    fn release_fileset(&self, fileset: FilesetUuid) {
        self.pool.release_fileset(fileset);
    }

    fn fileset_name(&self, fileset: FilesetUuid) -> Option<String> {
        self.pool.fileset_name(fileset)
    }

    fn secret(&self) -> [u8; 16] {
        self.pool.secret()
    }

    fn status(&self) -> Value {
        let mut status = self.pool.status();
        status["layout"] = json!("mirror");
        status["is_degraded"] = json!(self.is_degraded.load(Ordering::Relaxed));
        status
    }

    fn explain(&self, target: &ExplainTarget) -> Result<Vec<ExplainStep>, BackendError> {
        self.pool.explain(target)
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "the pool's own")]
    fn control(&self, request: &Request, peer: Peer) -> Result<Answer, BackendError> {
        let mut scrub = self.scrub.lock().expect("nobody panicked");
        match request {
            Request::Scrub {} if self.refuses.load(Ordering::Relaxed) => {
                let (device, cause) = ("/srv/m".into(), "it refuses".to_owned());
                Err(BackendError::Failed { device, cause })
            }
            Request::Scrub {} => {
                *self.begun.lock().expect("nobody panicked") += 1;
                *scrub = Some(ScrubFacts::default());
                Ok(Answer::Done)
            }
            Request::ScrubStatus {} => Ok(Answer::Scrub(scrub.clone())),
            Request::JobList {} => {
                let id = 1;
                let goes_on = scrub.as_ref().is_some_and(|it| !it.is_done);
                let job = JobFacts {
                    id,
                    name: "scrub".to_owned(),
                    done: 0,
                    total: 1,
                    ends_in_seconds: None,
                    is_paused: false,
                    pace_percent: None,
                    failure: None,
                };
                Ok(Answer::Jobs(goes_on.then_some(job).into_iter().collect()))
            }
            other => {
                drop(scrub);
                if matches!(other, Request::FilesetList { .. }) {
                    self.lists.fetch_add(1, Ordering::Relaxed);
                }
                self.pool.control(other, peer)
            }
        }
    }

    fn transfer(
        &self,
        request: &Transfer,
        peer: Peer,
        file: &mut File,
        fronts: Option<Arc<dyn FileSystem>>,
        progress: OnTransfer<'_>,
    ) -> Result<Value, BackendError> {
        self.pool.transfer(request, peer, file, fronts, progress)
    }

    fn close(&self) -> Result<(), BackendError> {
        self.pool.close()
    }
}

fn hub_at(mirrors: &[Arc<FakeMirrorPool>; 2], state: &Path, now: u64) -> Hub {
    let paths = ["/srv/one.hf", "/srv/two.hf"].into_iter().zip(mirrors);
    let pools = paths.map(|(path, pool)| {
        let pool: Arc<dyn OpenPool> = Arc::<FakeMirrorPool>::clone(pool);
        ServedPool::new(path.into(), pool)
    });
    let state = StateDirectory::find(Some(state)).expect("it is given");
    let hub = Hub::new(pools.collect(), None, state);
    hub.read_scrubs(now);
    hub
}

fn begun(mirrors: &[Arc<FakeMirrorPool>; 2]) -> [u64; 2] {
    mirrors.each_ref().map(|it| it.begun())
}

fn said(hub: &Hub, now: u64) -> ScrubSchedule {
    hub.scrub_schedule(0, now)
}

fn now() -> u64 {
    crate::events::now_seconds()
}

/// Goal: no pool is scrubbed when it is first seen. A month later one pool is scrubbed, then the
/// other. A scrub that the end of its server interrupts is due at once at the next server. One that
/// has ended is not, and its result is known to the next server.
#[test]
fn pools_are_scrubbed_one_by_one_and_what_a_restart_cut_is_due_again() {
    let two = TwoPoolServer::new("scrubs");
    let mirrors = two.pools.each_ref().map(FakeMirrorPool::new);
    let first = now() - 31 * DAY;
    let hub = hub_at(&mirrors, &two.state, first);
    for at in [first, first + 29 * DAY] {
        assert_eq!(hub.keep_scrubs(at), []);
        assert_eq!(begun(&mirrors), [0, 0], "{at}");
    }
    assert_eq!(said(&hub, first).due_seconds, Some(first + 30 * DAY));
    drop(hub);
    let hub = hub_at(&mirrors, &two.state, now());
    for _ in 0..3 {
        assert_eq!(hub.keep_scrubs(now()), []);
        assert_eq!(begun(&mirrors), [1, 0], "one at a time");
    }
    let on = said(&hub, now());
    assert_eq!((on.due_seconds, on.is_ended), (None, false), "{on:?}");
    mirrors[0].end();
    hub.keep_scrubs(now());
    assert_eq!(begun(&mirrors), [1, 1]);
    drop(hub);
    // The server crashes. The second pool is opened again, and does not continue its scrub.
    *mirrors[1].scrub.lock().expect("nobody panicked") = None;
    *mirrors[0].scrub.lock().expect("nobody panicked") = None;
    let hub = hub_at(&mirrors, &two.state, now());
    hub.keep_scrubs(now());
    assert_eq!(begun(&mirrors), [1, 2], "one was cut, one has ended");
    assert_eq!(said(&hub, now()).result.map(|it| (it.repaired, it.damaged)), Some((3, 0)));
    mirrors[1].end();
    for _ in 0..2 {
        hub.keep_scrubs(now());
    }
    assert_eq!(begun(&mirrors), [1, 2]);
    drop(hub);
    two.close();
}

/// Goal: a scrub started by hand counts. None starts while a device is absent. After a refusal,
/// another is tried after an hour. A clock that was ahead does not delay the next one.
#[test]
fn a_scrub_waits_for_devices_and_one_by_hand_counts() {
    let two = TwoPoolServer::new("waits");
    let mirrors = two.pools.each_ref().map(FakeMirrorPool::new);
    let hub = hub_at(&mirrors, &two.state, now() - 31 * DAY);
    let set = |every| asked(&hub, &Request::ScrubScheduleSet { every });
    assert_eq!(asked(&hub, &Request::Scrub {}), Ok(Answer::Done));
    mirrors[0].end();
    mirrors[1].is_degraded.store(true, Ordering::Relaxed);
    let at = now();
    hub.keep_scrubs(at);
    assert_eq!(begun(&mirrors), [1, 0]);
    let waits = hub.scrub_schedule(1, at);
    assert!(waits.line().contains("a device is away"), "{}", waits.line());
    mirrors[1].is_degraded.store(false, Ordering::Relaxed);
    mirrors[1].refuses.store(true, Ordering::Relaxed);
    assert_eq!(hub.keep_scrubs(at).len(), 1);
    assert_eq!(hub.keep_scrubs(at + 10), []);
    assert_eq!(hub.keep_scrubs(at + 3600).len(), 1);
    mirrors[1].refuses.store(false, Ordering::Relaxed);
    hub.keep_scrubs(at + 7200);
    assert_eq!(begun(&mirrors), [1, 1]);
    mirrors[1].end();
    hub.keep_scrubs(at);
    assert_eq!(set(Some(ScrubEvery::Daily)), Ok(Answer::Done));
    hub.keep_scrubs(at + DAY / 2);
    assert_eq!(begun(&mirrors), [1, 1]);
    hub.keep_scrubs(at + DAY + 60);
    assert_eq!(begun(&mirrors), [2, 1]);
    mirrors[0].end();
    hub.keep_scrubs(at);
    assert_eq!(set(Some(ScrubEvery::None)), Ok(Answer::Done));
    hub.keep_scrubs(at + 29 * DAY);
    assert_eq!(begun(&mirrors), [2, 1]);
    assert_eq!(
        (said(&hub, at).said_by, said(&hub, at).due_seconds),
        (ScrubScheduleSource::Command, None)
    );
    assert_eq!(set(None), Ok(Answer::Done));
    assert_eq!(said(&hub, at).every, ScrubEvery::Monthly);
    // The clock was a year ahead when the scrub started.
    let record =
        std::fs::read_to_string(two.state.join(format!("scrubs-{}.toml", hub.pools[0].id)));
    let ahead = record.expect("it is kept").replace("begun_seconds = 1", "begun_seconds = 9");
    std::fs::write(two.state.join(format!("scrubs-{}.toml", hub.pools[0].id)), ahead)
        .expect("it is ours");
    let next = hub_at(&mirrors, &two.state, at);
    next.keep_scrubs(at);
    assert_eq!(next.scrub_schedule(0, at).due_seconds, Some(at + 30 * DAY));
    drop((hub, next));
    two.close();
}

/// Goal: the configuration overrides commands, which are refused as long as it has the entry. A
/// missing fileset is reported.
#[test]
fn the_configuration_says_schedules_before_commands_do() {
    let two = TwoPoolServer::new("says");
    let hub = two.hub();
    hub.read_schedules().expect("there is none");
    hub.read_scrubs(NOW);
    let keep = |hourly| SnapshotCounts { hourly, ..SnapshotCounts::default() };
    let set = |fileset: &str, hourly| {
        let (fileset, is_gone) = (fileset.to_owned(), false);
        asked(&hub, &Request::ScheduleSet { fileset, keep: keep(hourly), is_gone })
    };
    let scrub = |every| asked(&hub, &Request::ScrubScheduleSet { every: Some(every) });
    let config = |schedules: &[(&str, u32)], scrub: Option<ScrubEvery>| Config {
        pools: vec![PoolConfig { path: "/srv/one.hf".into(), cache: None }],
        schedules: schedules
            .iter()
            .map(|&(fileset, hourly)| {
                let (fileset, keep) = (fileset.to_owned(), keep(hourly));
                ConfiguredSchedule { pool: 0, fileset, keep }
            })
            .collect(),
        scrubs: scrub.map(|every| (0, every)).into_iter().collect::<BTreeMap<_, _>>(),
        ..Config::default()
    };
    let list = || {
        let list = asked(&hub, &Request::ScheduleList {});
        let Ok(Answer::Schedules(list)) = list else { panic!("{list:?}") };
        let facts = |it: control::SnapshotSchedule| {
            let aside = it.set_aside.map(|keep| keep.hourly);
            (it.fileset, it.keep.hourly, it.is_configured, it.is_gone, aside)
        };
        list.into_iter().map(facts).collect::<Vec<_>>()
    };
    let of =
        |name: &str, hourly, is_configured| (name.to_owned(), hourly, is_configured, false, None);
    assert_eq!((set("a", 2), set("root", 1)), (Ok(Answer::Done), Ok(Answer::Done)));
    assert_eq!(scrub(ScrubEvery::Daily), Ok(Answer::Done));
    let said = config(&[("a", 5), ("none", 1)], Some(ScrubEvery::Weekly));
    let path = || PathBuf::from("/etc/holdfast.toml");
    let missing = crate::hub::schedule::check_configured(&said, 0, &hub.pools[0]);
    assert!(missing.is_err_and(|it| it.to_string().contains("no fileset none in /srv/one.hf")));
    // At the start of a server, a missing fileset is no error.
    hub.configure(path(), said).expect("it exports nothing");
    let (mut a, mut none) = (of("a", 5, true), of("none", 1, true));
    (a.4, none.3) = (Some(2), true);
    assert_eq!(list(), [a, none, of("root", 1, false)]);
    let refused = set("a", 7).expect_err("it is configured");
    assert!(refused.contains("says that a keeps hourly=5: change its [[schedule]]"), "{refused}");
    let refused = scrub(ScrubEvery::None).expect_err("it is configured");
    assert!(refused.contains("says weekly: change its [[schedule]]"), "{refused}");
    let failed = hub.keep_schedules(NOW).failed;
    assert_eq!(failed.len(), 1);
    assert!(failed[0].1.contains("none, which the configuration names, is gone"), "{failed:?}");
    let taken = ["a", "root"].map(|name| format!("{name}@hourly-2026-11-23_19-00"));
    let there = || {
        let mut there = snapshots(&hub);
        there.sort();
        there
    };
    assert_eq!(there(), taken);
    let by = || (hub.scrub_schedule(0, NOW).every, hub.scrub_schedule(0, NOW).said_by);
    assert_eq!(by(), (ScrubEvery::Weekly, ScrubScheduleSource::Configuration));
    hub.configure(path(), config(&[("a", 0)], None)).expect("it exports nothing");
    hub.keep_schedules(NOW + 3600);
    let [a, root] = taken;
    let all = [a, root, "root@hourly-2026-11-23_20-00".to_owned()];
    assert_eq!(there(), all);
    assert_eq!(by(), (ScrubEvery::Daily, ScrubScheduleSource::Command));
    hub.configure(path(), config(&[], None)).expect("it exports nothing");
    assert_eq!(list(), [of("a", 2, false), of("root", 1, false)]);
    drop(hub);
    two.close();
}

/// Goal: an unreadable record does not stop a server. While the clock is not set, no scrub starts.
/// A scrub that the pool continues counts, though no server has started it.
#[test]
fn what_is_not_known_stops_nothing_and_begins_nothing() {
    let two = TwoPoolServer::new("unknown");
    let mirrors = two.pools.each_ref().map(FakeMirrorPool::new);
    let hub = hub_at(&mirrors, &two.state, now() - 31 * DAY);
    let file = two.state.join(format!("scrubs-{}.toml", hub.pools[0].id));
    drop(hub);
    assert_eq!(hub_at(&mirrors, &two.state, now()).keep_scrubs(86_400), []);
    assert_eq!(begun(&mirrors), [0, 0], "1970");
    std::fs::write(&file, "seen_seconds = soon").expect("it is ours");
    let hub = hub_at(&mirrors, &two.state, now());
    assert_eq!(said(&hub, now()).begun_seconds, None);
    *mirrors[0].scrub.lock().expect("nobody panicked") = Some(ScrubFacts::default());
    hub.note_scrubs(now());
    let on = said(&hub, now());
    assert!(on.begun_seconds.is_some_and(|it| it + 60 > now()) && !on.is_ended, "{on:?}");
    drop(hub);
    two.close();
}
