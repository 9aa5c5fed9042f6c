//! Tests of the lifetime of sockets, and of roles.

use control::wire::ExplainStep;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use engine::api::{FileSystem, FilesetUuid};
use format::fileset::{FilesetName, NamePart};

use super::others::{OTHERS_MAX, OTHERS_OF_ONE_MAX, OTHERS_TIME};
use super::sockets::StatusListener;
use super::*;
use crate::backend::{Backend, BackendError};
use crate::messages::{LINE_BYTES_MAX, receive_answer};
use crate::roles::{Grant, MountGrant};
use crate::wiring::EngineBackend;

/// Goal: a server can end after the file of its socket was removed or replaced, and removes no
/// other server's.
#[test]
fn a_server_ends_though_its_path_is_gone_or_anothers() {
    let directory = std::env::temp_dir().join(format!("holdfast-ends-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("it can be made");
    let path = directory.join("socket");
    let start = || StatusListener::start(path.clone(), "status", |_| Ok(())).expect("it listens");
    let ends = |server: StatusListener| {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(server);
            let _ = tell.send(());
        });
        told.recv_timeout(CLIENT_TIME).expect("the server ends");
    };
    ends(start());
    let server = start();
    std::fs::remove_file(&path).expect("the socket is there");
    ends(server);
    let first = start();
    std::fs::remove_file(&path).expect("the socket is there");
    let second = start();
    ends(first);
    assert!(UnixStream::connect(&path).is_ok(), "the end of one took the socket of another");
    ends(second);
    std::fs::remove_dir(&directory).expect("no socket is left");
}

/// Goal: connecting to a server that accepts no client ends in time, and such a server does not
/// count as dead. Method: a full listen queue.
#[test]
fn a_queue_that_is_full_is_waited_for_no_longer_than_said() {
    let path = std::env::temp_dir().join(format!("holdfast-full-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener =
        rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
    let address = SocketAddrUnix::new(&path).expect("short");
    rustix::net::bind(&listener, &address).expect("nothing is there");
    rustix::net::listen(&listener, 0).expect("it listens");
    let mut waiting = Vec::new();
    let begun = Instant::now();
    let refused = loop {
        match connect(&path, Duration::from_millis(20)) {
            Ok(client) => waiting.push(client),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100, "the queue is never full");
    };
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    assert!(!waiting.is_empty() && begun.elapsed() < CLIENT_TIME);
    let taken = StatusListener::start(path.clone(), "status", |_| Ok(())).map(drop);
    let taken = taken.expect_err("the socket is another's").to_string();
    assert!(taken.contains("answers already"), "{taken}");
    drop(listener);
    let gone = connect(&path, CLIENT_TIME).expect_err("nobody listens").kind();
    assert_eq!(gone, ErrorKind::ConnectionRefused);
    std::fs::remove_file(&path).expect("the socket is there");
}

fn with_roles(pool: &Arc<dyn OpenPool>) -> Arc<StatusService> {
    let roles = PoolGrants::default();
    let mounts = MountGrant { filesets: vec!["a".to_owned()], directories: vec!["/mnt/a".into()] };
    roles.set(vec![
        Grant { uids: vec![1001, 1011, 1012, 1013, 1014], mounts: None },
        Grant { uids: vec![1002], mounts: Some(mounts) },
    ]);
    let served = ServerContext {
        pool: PathBuf::from("/secret/pool"),
        mounts: PoolMounts::new(Path::new("/secret/pool"), pool),
        lasts: true,
        pid: std::process::id(),
        log: Some("/secret/log".into()),
        nfs: None,
        http: None,
        roles: Some(Arc::new(roles)),
    };
    Arc::new(StatusService {
        served: Arc::new(served),
        pool: Arc::clone(pool),
        transfers: Transfers::default(),
        long: ConcurrencyLimit::new(LONG_MAX),
        others: UserRequestLimiter::default(),
    })
}

fn ask_as(answering: &Arc<StatusService>, uid: u32, question: &Value) -> WireAnswer {
    let (here, there) = UnixStream::pair().expect("a pair");
    send(&here, question).expect("there is room");
    let (peer, own) = (Peer { uid, gid: uid }, Peer { uid: 1000, gid: 1000 });
    let served = match uid {
        0 | 1000 => serve(&there, answering, (peer, own)),
        _ => answering.serve_other(&there, (peer, own)),
    };
    served.expect("it answers");
    receive_answer(&here).expect("it is an answer")
}

/// Goal: each role permits its own requests only, and refusals give advice (CO1, TF1, RO1, RO3).
#[test]
fn each_role_does_what_it_may_and_nothing_else() {
    let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
    let answering = with_roles(&pool);
    let ask = |uid: u32, question: Value| ask_as(&answering, uid, &question);
    let control = |request: Value| json!({ "ask": "control", "version": 1, "request": request });
    let create = || control(json!({ "do": "fileset-create", "name": "a", "properties": {} }));
    let list = || control(json!({ "do": "fileset-list", "from": 0 }));
    let diff =
        json!({ "do": "send", "fileset": "a", "snapshot": "c", "from": null, "resume": null });
    let questions = [
        create(),
        list(),
        json!({ "ask": "explain", "node": 1, "range": null }),
        json!({ "ask": "transfer", "version": 1, "request": diff }),
    ];
    for question in &questions {
        for (uid, words) in
            [(1001, "a reader here"), (1002, "a mounter here"), (1003, "[[reader]] or [[mounter]]")]
        {
            let answer = ask(uid, question.clone());
            let is_told = matches!(&answer, WireAnswer::Error(told) if told.contains(words));
            assert!(is_told, "{uid}: {question}: {answer:?}");
        }
    }
    let count = || {
        let answer = ask(0, list());
        let WireAnswer::Control(control::Answer::Filesets { list, next: None }) = answer else {
            panic!("{answer:?}")
        };
        list.len()
    };
    assert_eq!(count(), 1, "what was refused was done");
    assert!(matches!(ask(1000, create()), WireAnswer::Control(control::Answer::Done)));
    assert_eq!(count(), 2);
    let status = || json!({ "ask": "status" });
    for uid in [1001, 1002] {
        let WireAnswer::Status(told) = ask(uid, status()) else { panic!("{uid} may ask for that") };
        assert!(!told.to_string().contains("secret"), "{told}");
        assert_eq!(
            (&told["pool"]["health"], &told["server"]["lasts"]),
            (&json!("ok"), &json!(true))
        );
    }
    assert!(matches!(ask(1003, status()), WireAnswer::Error(_)), "he has no role");
    let WireAnswer::Status(told) = ask(0, status()) else { panic!("root may ask for that") };
    assert_eq!(told["server"]["pool"], "/secret/pool");
    pool.close().expect("memory does not fail");
}

/// Goal: administrators and mounters can hand over permitted mounts. Method: each gets `ready`, and
/// passes no descriptor.
#[test]
fn a_mount_is_handed_over_by_who_may() {
    let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
    let answering = with_roles(&pool);
    let create = json!({ "do": "fileset-create", "name": "a", "properties": {} });
    let created = json!({ "ask": "control", "version": 1, "request": create });
    assert!(matches!(ask_as(&answering, 0, &created), WireAnswer::Control(_)));
    let mount = |uid: u32, fileset: Option<&str>, directory: &str| {
        let spec = MountSpec::plain(fileset, Path::new(directory));
        let request = serde_json::to_value(spec).expect("it is plain");
        ask_as(&answering, uid, &json!({ "ask": "mount", "version": 1, "request": request }))
    };
    // The fileset stays reserved until the server notices that this client has gone.
    let is_ready = |uid: u32, directory: &str| {
        let begun = Instant::now();
        loop {
            let answer = mount(uid, Some("a"), directory);
            if matches!(answer, WireAnswer::Ready) {
                return true;
            }
            let is_held = matches!(&answer,
                WireAnswer::Error(told) if told.contains("it is mounted on")
                    || told.contains("it may be in use"));
            // RO3: the refusal does not name mounts of others.
            let is_told = matches!(&answer, WireAnswer::Error(told) if told.contains("/mnt/a"));
            assert!(uid != 1002 || !is_told, "{answer:?}");
            assert!(is_held && begun.elapsed() < CLIENT_TIME, "{answer:?}");
        }
    };
    for (uid, directory) in [(1002, "/mnt/a"), (0, "/x"), (1002, "/mnt/a/b"), (1000, "/x")] {
        assert!(is_ready(uid, directory), "{uid}");
    }
    for (uid, fileset, directory, words) in [
        (1002, Some("a"), "/mnt/b", "only a below /mnt/a"),
        (1002, Some("root"), "/mnt/a", "only a below /mnt/a"),
        (1002, None, "/mnt/a", "name the fileset"),
        (1001, Some("a"), "/mnt/a", "a reader here"),
        (1003, Some("a"), "/mnt/a", "may ask nothing here"),
    ] {
        let answer = mount(uid, fileset, directory);
        let is_told = matches!(&answer, WireAnswer::Error(told) if told.contains(words));
        assert!(is_told, "{uid}: {directory}: {answer:?}");
    }
    drop(answering);
}

/// Goal: slow clients with few rights delay no other client (RO1).
#[test]
fn who_asks_slowly_keeps_nobody_waiting() {
    let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
    let answering = with_roles(&pool);
    let (begun, mut silent) = (Instant::now(), Vec::new());
    let own = Peer { uid: 1000, gid: 1000 };
    let mut asks = |uid: u32| {
        let (here, there) = UnixStream::pair().expect("a pair");
        let peer = Peer { uid, gid: uid };
        answering.serve_other(&there, (peer, own)).expect("it is not waited for");
        here.set_read_timeout(Some(Duration::from_millis(1))).expect("it is a socket");
        let mut told = [0; 1];
        let is_refused = std::io::Read::read(&mut &here, &mut told).is_ok_and(|count| count == 1);
        silent.push(here);
        is_refused
    };
    let readers = [1001, 1011, 1012, 1013];
    assert_eq!(readers.len() * OTHERS_OF_ONE_MAX, OTHERS_MAX);
    for uid in readers {
        assert!((0..OTHERS_OF_ONE_MAX).all(|_| !asks(uid)), "{uid} is listened to");
        assert!(asks(uid) && asks(1003), "one more of {uid} is not");
    }
    assert!(asks(1014), "all places are taken");
    let status = json!({ "ask": "status" });
    assert!(matches!(ask_as(&answering, 0, &status), WireAnswer::Status(_)));
    assert!(begun.elapsed() < OTHERS_TIME, "somebody was waited for");
    while answering.others.take(1014).is_none() {
        for mut stream in &silent {
            let _ = stream.write_all(b" ");
        }
        std::thread::park_timeout(Duration::from_millis(100));
        assert!(begun.elapsed() < OTHERS_TIME * 4, "a reader is listened to for ever");
    }
    pool.close().expect("memory does not fail");
}

/// Goal: other users cannot delay an administrator (RO4). Method: threads connect to the users'
/// socket in a loop.
#[test]
fn who_connects_again_and_again_keeps_no_administrator_waiting() {
    const THREADS: usize = 64;
    /// Bound of the median wait. With one socket for all users, the wait was three times as long.
    const PATIENCE: Duration = Duration::from_millis(50);
    let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
    let name = format!("holdfast-flood-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).expect("it can be made");
    let path = directory.join("pool.sock");
    let served = ServerContext::clone(&with_roles(&pool).served);
    let server = StatusServer::start(path.clone(), served, Arc::clone(&pool)).expect("it listens");
    let of_users = directory.join("pool.users.sock");
    let mode = |path: &Path| std::fs::metadata(path).map(|it| it.permissions().mode() & 0o777);
    assert_eq!([&path, &of_users].map(|it| mode(it).expect("it is there")), [0o600, 0o666]);
    let answer = ask(&of_users, &WireRequest::Status).expect("it answers");
    assert!(matches!(answer, WireAnswer::Error(_)), "{answer:?}");
    let (is_over, mut waits) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = connect(&of_users, AT_ONCE);
                }
            });
        }
        for _ in 0..20 {
            let since = Instant::now();
            let answer = ask(&path, &WireRequest::Status).expect("it answers");
            assert!(matches!(answer, WireAnswer::Status(_)), "{answer:?}");
            waits.push(since.elapsed());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    waits.sort_unstable();
    assert!(waits[waits.len() / 2] < PATIENCE, "{waits:?}");
    drop(server);
    std::fs::remove_dir(&directory).expect("no socket is left");
    pool.close().expect("memory does not fail");
}

/// Goal: a panic in one answer ends neither the thread nor the connection, and the next request is
/// answered.
#[test]
fn a_bug_in_an_answer_is_told_and_the_next_is_answered() {
    let path = std::env::temp_dir().join(format!("holdfast-bug-{}", std::process::id()));
    let server = StatusListener::start(path.clone(), "status", |stream| {
        let line = receive_line(stream, LINE_BYTES_MAX, CLIENT_TIME)?;
        let question = serde_json::from_slice(&line)?;
        match question {
            WireRequest::Status => send(stream, &WireAnswer::Error("well".to_owned())),
            WireRequest::Explain { node, .. } => panic!("a bug that the test planted: {node}"),
            WireRequest::Control { .. }
            | WireRequest::Transfer { .. }
            | WireRequest::Mount { .. }
            | WireRequest::Remount { .. } => send(stream, &WireAnswer::Error("no".to_owned())),
        }
    });
    let server = server.expect("it listens");
    let explain = WireRequest::Explain { mount: 0, node: 7, range: None };
    for (question, words) in [(explain, "met a bug"), (WireRequest::Status, "well")] {
        let answer = ask(&path, &question).expect("it answers");
        let is_said = matches!(&answer, WireAnswer::Error(said) if said.contains(words));
        assert!(is_said, "{answer:?}");
    }
    drop(server);
}

#[test]
fn keys_are_short_safe_and_tell_paths_apart() {
    let key = key_of(Path::new("/srv/my pool.hf"));
    assert!(key.starts_with("my_pool.hf-"), "{key}");
    assert_ne!(key, key_of(Path::new("/other/my pool.hf")));
    assert_eq!(key, key_of(Path::new("/srv/my pool.hf")));
    assert!(key_of(Path::new(&format!("/{}", "n".repeat(255)))).len() <= 32 + 17);
    assert!(key_of(Path::new("/")).starts_with('-'));
}

/// Goal: a mount is found by the pool that has its fileset now, not by the pool at the time of
/// mounting.
#[test]
fn mounts_are_found_where_their_fileset_has_moved() {
    let mount = |directory: &str, moved_to: Option<&str>| {
        let bytes = directory.as_bytes();
        serde_json::json!({ "directory_bytes": bytes, "fileset": "a", "moved_to": moved_to })
    };
    let mounts = [mount("/stays", None), mount("/moved", Some("/two.hf"))];
    let status = serde_json::json!({ "server": { "pool": "/one.hf", "mounts": mounts } });
    let found = DiscoveredServer { status, socket: PathBuf::new(), silence: None };
    let of = |pool: &str, fileset: &str| found.directories_of(Path::new(pool), fileset);
    assert_eq!(of("/one.hf", "a"), [Path::new("/stays")]);
    assert_eq!(of("/two.hf", "a"), [Path::new("/moved")]);
    assert!(of("/two.hf", "b").is_empty() && of("/three.hf", "a").is_empty());
}

/// A pool whose changes block until the test lets them proceed.
struct BlockedPool {
    pool: Arc<dyn OpenPool>,
    goes_on: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
}

impl OpenPool for BlockedPool {
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
        self.pool.status()
    }

    fn explain(&self, target: &ExplainTarget) -> Result<Vec<ExplainStep>, BackendError> {
        self.pool.explain(target)
    }

    fn control(&self, request: &Request, peer: Peer) -> Result<control::Answer, BackendError> {
        let goes_on = self.goes_on.lock().expect("no test panics with it");
        goes_on.recv_timeout(Duration::from_secs(60)).expect("the test lets it go on");
        self.pool.control(request, peer)
    }

    fn transfer(
        &self,
        request: &Transfer,
        peer: Peer,
        file: &mut File,
        fronts: Option<Arc<dyn FileSystem>>,
        progress: transfer::OnTransfer<'_>,
    ) -> Result<Value, BackendError> {
        self.pool.transfer(request, peer, file, fronts, progress)
    }

    fn close(&self) -> Result<(), BackendError> {
        self.pool.close()
    }
}

/// Goal: a change that takes long delays neither `status` nor the end of the server.
#[test]
fn a_long_change_keeps_neither_the_status_nor_the_end_waiting() {
    let path = std::env::temp_dir().join(format!("holdfast-long-{}", std::process::id()));
    let inner = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
    let (go_on, goes_on) = std::sync::mpsc::channel();
    let pool: Arc<dyn OpenPool> =
        Arc::new(BlockedPool { pool: Arc::clone(&inner), goes_on: std::sync::Mutex::new(goes_on) });
    let served = ServerContext {
        pool: PathBuf::from("pool"),
        mounts: PoolMounts::new(Path::new("pool"), &pool),
        lasts: true,
        pid: std::process::id(),
        log: None,
        nfs: None,
        http: None,
        roles: None,
    };
    let server = StatusServer::start(path.clone(), served, pool).expect("it listens");
    let create = json!({ "do": "fileset-create", "name": "a", "properties": {} });
    let change = WireRequest::Control { version: control::VERSION, request: create };
    let asking = std::thread::spawn({
        let path = path.clone();
        move || ask(&path, &change).map_err(|error| error.to_string())
    });
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(300) {
        let answer = ask(&path, &WireRequest::Status).expect("it answers");
        assert!(matches!(answer, WireAnswer::Status(_)), "{answer:?}");
    }
    assert!(!asking.is_finished(), "the change waits");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(server);
        let _ = tell.send(());
    });
    told.recv_timeout(CLIENT_TIME).expect("the server ends");
    go_on.send(()).expect("somebody waits");
    let answer = asking.join().expect("it does not panic");
    assert!(matches!(answer, Ok(WireAnswer::Control(control::Answer::Done))), "{answer:?}");
    inner.close().expect("memory does not fail");
    let request = Request::FilesetDelete { name: "a".to_owned() };
    let refused = inner.control(&request, Peer::own());
    assert!(refused.is_err_and(|error| error.to_string().contains("being closed")));
}

#[test]
fn a_long_answer_is_read_to_its_end() {
    let path = std::env::temp_dir().join(format!("holdfast-list-{}", std::process::id()));
    let names = vec!["n".repeat(1000); 3000];
    let answer = WireAnswer::Control(control::Answer::Names(names.clone()));
    let server = StatusListener::start(path.clone(), "status", move |stream| {
        receive_line(stream, LINE_BYTES_MAX, CLIENT_TIME)?;
        send(stream, &answer)
    });
    let server = server.expect("it listens");
    let read = ask(&path, &WireRequest::Status).expect("it answers");
    let is_same =
        |read| matches!(read, WireAnswer::Control(control::Answer::Names(list)) if list == names);
    assert!(is_same(read));
    drop(server);
}

/// Goal: the error says so if a server ends before it answers. Method: a listener that reads the
/// request and closes.
#[test]
fn a_server_that_ends_before_it_answers_is_told_as_that() {
    let path = std::env::temp_dir().join(format!("holdfast-ended-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("nothing is there");
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("somebody asks");
        receive_line(&stream, LINE_BYTES_MAX, CLIENT_TIME).expect("a question");
    });
    let error = ask(&path, &WireRequest::Status).expect_err("it has ended");
    let words = error.to_string();
    assert!(words.contains("ended before it answered"), "{words}");
    server.join().expect("it has ended");
    std::fs::remove_file(&path).expect("it is ours");
}

/// Goal: the device number of a mount that the mount table lacks is accepted only if the server
/// lists exactly one live mount on the directory, which is not a mounter's.
#[test]
fn the_device_of_a_mount_is_that_of_its_directory_and_no_mounters_word() {
    let mount = |directory: &str, device: &str, mounter: Option<u32>, has_gone: bool| {
        let bytes = directory.as_bytes();
        json!({ "directory_bytes": bytes, "device": device, "mounter": mounter,
                "has_gone": has_gone })
    };
    let device = |mounts: &[Value], directory: &str| {
        let server = json!({ "device": "0:1", "mounts": mounts });
        let found = DiscoveredServer {
            status: json!({ "server": server }),
            socket: PathBuf::new(),
            silence: None,
        };
        found.device_on(Path::new(directory))
    };
    let own = mount("/a", "0:1", None, false);
    let two = [own.clone(), mount("/b", "0:2", None, false)];
    assert_eq!(device(&two, "/b"), Ok("0:2".to_owned()));
    assert_eq!(device(&two, "/a"), Ok("0:1".to_owned()));
    assert!(device(&two, "/c").is_err(), "it has none there");
    let refused = |other: Value| {
        let found = device(&[own.clone(), other.clone()], "/b");
        assert!(found.is_err(), "{other}");
    };
    refused(mount("/b", "0:2", Some(1000), false));
    refused(mount("/b", "0:1", Some(1000), false));
    refused(mount("/b", "0:1", None, false));
    refused(mount("/b", "0:2", None, true));
    let twice = [mount("/b", "0:2", None, false), mount("/b", "0:3", None, false)];
    assert!(device(&twice, "/b").is_err(), "which of them?");
}
