//! The NFS front on a pool: by the service alone, and over loopback.

#![expect(clippy::big_endian_bytes, reason = "XDR is big-endian")]

mod attacks;
mod bounds;
mod client;
mod cost;
mod crowd;
mod fuzz;
mod histories;
mod procedures;
mod readers;
mod rules;
mod shared;
mod torture;
mod waiting;
mod watch;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use engine::api::FileSystem;
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use front::nfs::{Export, ExportRules, HandleKey, NfsServer, ServerOptions, Service};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

use client::{Client, Direct, Socket};

const POOL_BYTES: u64 = 64 << 20;
const KEY: HandleKey = HandleKey([7; 16]);

fn new_device() -> SharedDevice {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    make_pool(&device, POOL_BYTES);
    device
}

fn make_pool(device: &SharedDevice, bytes: u64) {
    let create = PoolCreateOptions::new(bytes, [3; 64]);
    Pool::create(device, &ManualClock::new(), &create).expect("a pool fits");
}

fn open_pool(device: &SharedDevice, random: u64) -> Arc<Pool> {
    let options = PoolOpenOptions { random, ..PoolOpenOptions::default() };
    let pool = Pool::open(Arc::clone(device), Arc::new(ManualClock::new()), options);
    Arc::new(pool.expect("the pool opens"))
}

/// Returns a service of `pool` with these exports.
fn service_of(pool: &Arc<Pool>, exports: &[&str]) -> Arc<Service> {
    let service = Service::new(KEY, 2049);
    for rules in exports {
        let rules: ExportRules = rules.parse().expect("a test writes rules");
        let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(pool);
        let export = Export::new(rules, fs).expect("it is there");
        service.add(export).expect("it has a name of its own");
    }
    Arc::new(service)
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Returns a client of a new pool that may do everything, and the handle of the root.
fn direct() -> (Client<Direct>, Vec<u8>) {
    let service = service_of(&open_pool(&new_device(), 1), &["/:rw,squash=none"]);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let root = client.mount("/").expect("it is exported");
    (client, root)
}

/// A server on a port of its own.
struct Served {
    server: NfsServer,
    address: SocketAddr,
}

impl Served {
    fn new(service: Arc<Service>) -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let server = NfsServer::start(service, vec![listener], &ServerOptions::default());
        Served { server: server.expect("it starts"), address }
    }

    fn client(&self) -> Client<Socket> {
        Client::new(Socket::connect(self.address))
    }
}
