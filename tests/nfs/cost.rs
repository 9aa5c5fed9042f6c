//! What calls cost, counted in requests to the device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{CountingDevice, MemoryDevice, RequestKind, SharedDevice};

use whole_system::gate::{Gate, GateDevice};

use super::client::{self, Client, FILE_SYNC, NFS, Socket, UNSTABLE, Wire as _, Words};
use super::{Direct, POOL_BYTES, Served, loopback, service_of};

const PATIENCE: Duration = Duration::from_secs(20);

struct Counted {
    device: Arc<CountingDevice>,
    pool: Arc<Pool>,
}

impl Counted {
    fn new() -> Counted {
        Counted::behind(&Arc::default())
    }

    /// Returns one whose device writes while `gate` is open.
    fn behind(gate: &Arc<Gate>) -> Counted {
        let inner = GateDevice::new(MemoryDevice::new("memory", POOL_BYTES), gate);
        let device = CountingDevice::new(inner);
        let shared: SharedDevice = Arc::<CountingDevice>::clone(&device);
        let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
        Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
        let clock = Arc::new(ManualClock::new());
        let pool = Pool::open(shared, clock, PoolOpenOptions::default()).expect("a pool opens");
        Counted { device, pool: Arc::new(pool) }
    }

    /// Returns how many writes `work` asks of the device; none of it waits for a flush.
    fn writes(&self, work: impl FnOnce()) -> u64 {
        let before = self.device.counts();
        work();
        let cost = self.device.counts() - before;
        assert_eq!(cost.flushes(), 0, "{cost:?}");
        cost.of_kind(RequestKind::Write).requests
    }
}

/// Goal: a durable write of at most 32 KiB is one write of the device, and so is a change of names.
/// What is UNSTABLE costs nothing until COMMIT.
#[test]
fn what_is_answered_as_durable_costs_one_write() {
    let counted = Counted::new();
    let service = service_of(&counted.pool, &["/:rw,squash=none"]);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let root = client.mount("/").expect("it is exported");
    let file = client.create(&root, "f").expect("it is new");
    for bytes in [1, 4096, 20_000, 32 << 10] {
        let data = vec![7; bytes];
        let durable = counted.writes(|| {
            client.write(&file, 0, &data, FILE_SYNC).expect("there is room");
        });
        assert_eq!(durable, 1, "{bytes} bytes at once");
        let unstable = counted.writes(|| {
            client.write(&file, 0, &data, UNSTABLE).expect("there is room");
        });
        let commit = counted.writes(|| {
            client.commit(&file).expect("it is there");
        });
        assert_eq!((unstable, commit), (0, 1), "{bytes} bytes, then COMMIT");
    }
    let made = counted.writes(|| {
        client.create(&root, "g").expect("it is new");
    });
    assert_eq!(made, 1);
    let removed = counted.writes(|| {
        client.remove(&root, "g").expect("it is there");
    });
    assert_eq!(removed, 1);
    let read = counted.writes(|| {
        client.list(&root, 4096).expect("it is one");
        client.getattr(&file).expect("it is there");
    });
    assert_eq!(read, 0);
}

/// Goal: changes that a client asks for together share writes.
#[test]
fn changes_that_come_together_share_writes() {
    const COUNT: u32 = 64;
    let counted = Counted::new();
    let served = Served::new(service_of(&counted.pool, &["/:rw,squash=none,insecure"]));
    let mut client = served.client();
    let root = client.mount("/").expect("it is exported");
    let mut asked = Vec::new();
    for number in 0..COUNT {
        let name = format!("f{number}");
        let args = Words::default().opaque(&root).opaque(name.as_bytes());
        let record = client.record(NFS, 8, &args.u32(1).set(Some(0o644), None));
        let mark = 1 << 31 | u32::try_from(record.len()).expect("it is short");
        asked.extend(mark.to_be_bytes());
        asked.extend(record);
    }
    let writes = counted.writes(|| {
        std::io::Write::write_all(&mut client.wire.0, &asked).expect("the server reads");
        (0..COUNT).for_each(|_| _ = client.wire.receive());
    });
    println!("{COUNT} files, {writes} writes");
    assert!(writes <= u64::from(COUNT) / 4, "{writes} writes for {COUNT} files");
    let null = client.record(NFS, 0, &Words::default());
    assert_eq!(client.wire.exchange(&null).len(), 24);
}

/// Goal: clients share writes: what 64 of them ask while a write is under way is durable with the
/// next. Method: a device that is slow at one moment.
#[test]
fn clients_that_ask_meanwhile_share_writes() {
    const COUNT: usize = 64;
    /// The one under way, that of those who came meanwhile, and of who was late for it.
    const WRITES_MAX: u64 = 4;
    let gate = Arc::<Gate>::default();
    let counted = Counted::behind(&gate);
    let served = Served::new(service_of(&counted.pool, &["/:rw,squash=none,insecure"]));
    let root = served.client().mount("/").expect("it is exported");
    let mut clients: Vec<Client<Socket>> = (0..COUNT).map(|_| served.client()).collect();
    let in_flight = || served.server.clients().iter().map(|client| client.in_flight).sum::<usize>();
    let writes = counted.writes(|| {
        let shut = gate.keep_shut();
        for (number, client) in clients.iter_mut().enumerate() {
            let name = format!("f{number}");
            let args = Words::default().opaque(&root).opaque(name.as_bytes());
            let record = client.record(NFS, 8, &args.u32(1).set(Some(0o644), None));
            client.wire.send(&record);
        }
        let begun = Instant::now();
        // Each is begun, and then done in memory.
        while in_flight() < COUNT {
            assert!(begun.elapsed() < PATIENCE, "{} are begun", in_flight());
            std::thread::yield_now();
        }
        std::thread::park_timeout(Duration::from_millis(300));
        drop(shut);
        for client in &mut clients {
            let reply = client.wire.receive();
            assert_eq!(client::open(client.xid, reply).expect("it is answered").u32(), 0);
        }
    });
    println!("{COUNT} clients, {writes} writes");
    assert!(writes <= WRITES_MAX, "{writes} writes for {COUNT} clients");
}
