//! Who waits while a thread of the server is kept by a device, and for how long peers may keep what
//! is others'.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::api::FileSystem;
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use front::nfs::{Export, ExportRules, Service};
use runtime::clock::ManualClock;
use storage::device::{DeadlineDevice, MemoryDevice, SharedDevice};
use whole_system::gate::{Gate, GateDevice};

use super::client::{self, Client, FILE_SYNC, NFS, Socket, Trouble, Words};
use super::{KEY, POOL_BYTES, Served, new_device, open_pool, service_of};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// As `STRANGERS_MAX` and `STRANGER_IDLE_MAX` of the server.
const STRANGERS_MAX: usize = 64;
const STRANGER_IDLE: Duration = Duration::from_secs(11);

/// Exports a new pool of a device with this gate.
fn add(service: &Service, rules: &str, gate: &Arc<Gate>) {
    let device: SharedDevice = GateDevice::new(MemoryDevice::new("memory", POOL_BYTES), gate);
    let random = [u8::try_from(rules.len()).expect("it is short"); 64];
    let create = PoolCreateOptions::new(POOL_BYTES, random);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    let pool = Pool::open(device, Arc::new(ManualClock::new()), PoolOpenOptions::default());
    let fs: Arc<dyn FileSystem> = Arc::new(pool.expect("the pool opens"));
    let rules: ExportRules = rules.parse().expect("a test writes rules");
    service.add(Export::new(rules, fs).expect("it is there")).expect("it has a name of its own");
}

fn create(client: &mut Client<Socket>, directory: &[u8], name: &str) -> (u32, Vec<u8>) {
    let args = Words::default().opaque(directory).opaque(name.as_bytes());
    let record = client.record(NFS, 8, &args.u32(1).set(Some(0o644), None));
    (client.xid, record)
}

/// Sends records together, so that they are served together.
fn send(client: &mut Client<Socket>, records: &[&[u8]]) {
    let mut all = Vec::new();
    for record in records {
        let mark = 1_u32 << 31 | u32::try_from(record.len()).expect("it is short");
        all.extend([&mark.to_be_bytes()[..], record].concat());
    }
    client.wire.0.write_all(&all).expect("the server reads");
}

/// Expects the answer to `xid` to come next, and the call to be done.
#[track_caller]
fn assert_next(client: &mut Client<Socket>, xid: u32) {
    let reply = client.wire.receive();
    assert_eq!(client::open(xid, reply).expect("it is answered").u32(), 0, "it is done");
}

/// Goal: a batch that changes two pools is answered by each as it is durable there: who is kept by
/// the one does not keep the answers of the other. Method: a device that does not answer.
#[test]
fn a_pool_that_hangs_keeps_no_answers_of_another() {
    let (hangs, works) = (Arc::<Gate>::default(), Arc::<Gate>::default());
    let service = Service::new(KEY, 2049);
    add(&service, "/a:rw,squash=none,insecure", &hangs);
    add(&service, "/bb:rw,squash=none,insecure", &works);
    let served = Served::new(Arc::new(service));
    let mut client = served.client();
    client.wire.0.set_read_timeout(Some(PATIENCE)).expect("it is long");
    let (a, b) = (client.mount("/a").expect("it is there"), client.mount("/bb").expect("too"));
    for round in 0..4 {
        let shut = hangs.keep_shut();
        let (first, record) = create(&mut client, &a, &format!("f{round}"));
        let (second, other) = create(&mut client, &b, &format!("f{round}"));
        // Whichever comes first.
        match round % 2 {
            0 => send(&mut client, &[&record, &other]),
            _ => send(&mut client, &[&other, &record]),
        }
        assert_next(&mut client, second);
        drop(shut);
        assert_next(&mut client, first);
    }
    assert_eq!(served.server.panic_count(), 0);
}

/// Goal: nobody waits for ever for a device that hangs: what was begun is answered with an error of
/// the device within two of its deadlines (decision 0098), and what comes behind it too. Method: a
/// device whose writes do not return, with a deadline.
#[test]
fn a_device_that_hangs_is_told_within_its_deadline() {
    const DEADLINE: Duration = Duration::from_secs(1);
    /// Two deadlines, and what a machine that does other things takes.
    const TIME_MAX: Duration = Duration::from_secs(10);
    /// `NFS3ERR_IO`, `NFS3ERR_ROFS` of a pool that has stopped, and `NFS3ERR_JUKEBOX`.
    const TOLD: [u32; 3] = [5, 30, 10_008];
    let gate = Arc::<Gate>::default();
    let hangs = GateDevice::new(MemoryDevice::new("memory", POOL_BYTES), &gate);
    let device: SharedDevice = DeadlineDevice::new(hangs, DEADLINE);
    let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    let pool = open_pool(&device, 1);
    let served = Served::new(service_of(&pool, &["/:rw,squash=none,insecure"]));
    let mut clients: [Client<Socket>; 3] = std::array::from_fn(|_| served.client());
    for client in &clients {
        client.wire.0.set_read_timeout(Some(TIME_MAX)).expect("it is long");
    }
    let root = clients[0].mount("/").expect("it is exported");
    let file = clients[0].create(&root, "file").expect("it is new");
    clients[0].create(&root, "other").expect("it is new");
    let shut = gate.keep_shut();
    let since = Instant::now();
    let [first, second, third] = &mut clients;
    let refused = std::thread::scope(|scope| {
        let asked = [
            scope.spawn(|| first.create(&root, "new").map(drop)),
            scope.spawn(|| second.write(&file, 0, b"data", FILE_SYNC).map(drop)),
            scope.spawn(|| third.remove(&root, "other").map(drop)),
        ];
        asked.map(|thread| thread.join().expect("it is answered in time"))
    });
    assert!(since.elapsed() < TIME_MAX, "{:?}", since.elapsed());
    for told in refused {
        let is_told = matches!(told, Err(Trouble::Status(status)) if TOLD.contains(&status));
        assert!(is_told, "{told:?}");
    }
    // Who comes now is told at once, and so is who only looks.
    let since = Instant::now();
    assert!(clients[0].create(&root, "later").is_err());
    assert!(since.elapsed() < TIME_MAX, "{:?}", since.elapsed());
    assert_eq!(served.server.panic_count(), 0);
    drop(shut);
}

/// Goal: a request that may take long does not wait for the commit of one before it in the same
/// packet: done a minute late, it could go over what the client has written since. Method: a read
/// behind a create whose commit a device keeps.
#[test]
fn what_is_behind_a_commit_is_not_kept_by_it() {
    let gate = Arc::<Gate>::default();
    let service = Service::new(KEY, 2049);
    add(&service, "/a:rw,squash=none,insecure", &gate);
    let served = Served::new(Arc::new(service));
    let mut client = served.client();
    client.wire.0.set_read_timeout(Some(PATIENCE)).expect("it is long");
    let root = client.mount("/a").expect("it is there");
    let file = client.create(&root, "file").expect("it is new");
    client.write(&file, 0, b"data", FILE_SYNC).expect("there is room");
    let shut = gate.keep_shut();
    let (first, record) = create(&mut client, &root, "new");
    let read = client.record(NFS, 6, &Words::default().opaque(&file).u64(0).u32(4));
    let second = client.xid;
    send(&mut client, &[&record, &read]);
    assert_next(&mut client, second);
    drop(shut);
    assert_next(&mut client, first);
}

/// Waits until the server has so many connections.
#[track_caller]
fn wait_for_connections(served: &Served, count: usize) {
    let begun = Instant::now();
    while served.server.connection_count() != count {
        assert!(begun.elapsed() < PATIENCE, "{} of {count}", served.server.connection_count());
        std::thread::yield_now();
    }
}

/// Goal: peers that may use no export have few connections, and lose those by which they ask
/// nothing; exports that come and go change who that is.
#[test]
fn strangers_have_few_connections_and_not_for_long() {
    let service = Service::new(KEY, 2049);
    add(&service, "/a:to=10.0.0.0/8", &Arc::default());
    let served = Served::new(Arc::new(service));
    let connect = || TcpStream::connect(served.address).expect("it listens");
    let is_closed = |mut socket: &TcpStream| {
        socket.set_read_timeout(Some(PATIENCE)).expect("it is long");
        socket.read(&mut [0; 1]).is_ok_and(|count| count == 0)
    };
    let sweep_after = |time| served.server.sweep(Instant::now() + time);
    // Whoever asks what there is, is answered.
    let mut asks = served.client();
    assert!(asks.call((100_005, 3), 5, Words::default()).is_ok());
    let strangers: Vec<TcpStream> = (1..STRANGERS_MAX).map(|_| connect()).collect();
    wait_for_connections(&served, STRANGERS_MAX);
    // For one more the one is closed that asks nothing for the longest time.
    let late = connect();
    assert!(is_closed(&asks.wire.0), "one too many");
    wait_for_connections(&served, STRANGERS_MAX);
    // Bytes that are no request are nothing asked.
    (&strangers[1]).write_all(&[0x80, 0, 0, 40, 0]).expect("it reads");
    sweep_after(Duration::ZERO);
    assert_eq!(served.server.connection_count(), STRANGERS_MAX);
    sweep_after(STRANGER_IDLE);
    assert_eq!(served.server.connection_count(), 0);
    assert!(strangers.iter().chain([&late]).all(is_closed));

    // A client of an export has as many as he likes, for as long as he likes.
    let pool = open_pool(&new_device(), 1);
    let rules = "/here:ro,insecure".parse::<ExportRules>().expect("a test writes rules");
    let export = Export::new(rules, pool).expect("it is there");
    let service = served.server.service();
    service.add(export).expect("its name is free");
    let known: Vec<TcpStream> = (0..=STRANGERS_MAX).map(|_| connect()).collect();
    wait_for_connections(&served, known.len());
    sweep_after(STRANGER_IDLE);
    assert_eq!(served.server.connection_count(), known.len());
    assert!(service.remove("/here"));
    sweep_after(STRANGER_IDLE);
    assert_eq!(served.server.connection_count(), 0);
}
