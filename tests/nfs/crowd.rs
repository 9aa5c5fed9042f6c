//! Ten thousand connections at once.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use whole_system::soak::memory_bytes_peak;

use super::client::{FILE_SYNC, NFS, Words};
use super::{Served, new_device, open_pool, service_of};

const COUNT: usize = 10_000;
/// Machines, each an address of its own, for one may have 1,024 connections.
const MACHINES: usize = 10;
/// One end of each, and the rest of a process.
const DESCRIPTORS: u64 = 10_500;
/// Names the server to the process that is the crowd.
const SERVER: &str = "HOLDFAST_CROWD";
/// What a connection may cost while it holds nothing but its own bytes: its record, its place in
/// the tables, and the half record that it has sent.
const BYTES_OF_ONE: u64 = 6 << 10;
/// What the one costs that takes no answers, those who are served, and what other tests of this
/// process take meanwhile.
const BYTES_OF_OTHERS: u64 = 320 << 20;
/// As [`BYTES_OF_OTHERS`], of what the server counts, with the 900 bytes of each.
const HELD_BYTES_MAX: usize = 96 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// How long anybody may wait for an answer meanwhile.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Returns whether this process may have so many descriptors.
fn may_have(descriptors: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= descriptors) {
        return true;
    }
    // Only some may raise what nobody else may go beyond.
    let maximum = limit.maximum.map(|maximum| maximum.max(descriptors));
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).is_ok()
}

/// Connects from an address of loopback.
fn connect_from(machine: u8, to: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
    let socket = socket.expect("there are descriptors");
    let from = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, machine), 0);
    rustix::net::bind(&socket, &from).expect("all of 127.0.0.0/8 is here");
    rustix::net::connect(&socket, &to).expect("the server listens");
    TcpStream::from(socket)
}

/// The crowd, where the environment names the server: in a process of its own, for one process may
/// not have so many descriptors everywhere. Says how many have connected, and goes with its input.
#[test]
fn the_crowd() {
    let Ok(server) = std::env::var(SERVER) else { return };
    let server: SocketAddr = server.parse().expect("it is an address");
    assert!(may_have(DESCRIPTORS), "whoever began this may have them");
    let mut crowd = Vec::with_capacity(COUNT);
    for number in 0..COUNT {
        let machine = u8::try_from(number % MACHINES).expect("few") + 1;
        let mut socket = connect_from(machine, server);
        // A third asks nothing, a third begins a record, and a third is in the middle of one.
        let begun = [0x80, 0x0f, 0, 0].into_iter().chain([1; 1000]);
        let begun: Vec<u8> = begun.take([0, 7, 900][number % 3]).collect();
        socket.write_all(&begun).expect("the server reads");
        crowd.push(socket);
    }
    let _ = std::io::stdin().read(&mut [0]);
}

/// Goal: ten thousand connections that ask nothing, or half of something, and one that takes no
/// answers, cost a bounded number of bytes, and others are served at once.
#[test]
fn ten_thousand_connections_cost_little_and_others_are_served() {
    if !may_have(DESCRIPTORS) {
        println!("skipped: a process may not have {DESCRIPTORS} descriptors here (`ulimit -Hn`)");
        return;
    }
    let pool = open_pool(&new_device(), 1);
    let served = Served::new(service_of(&pool, &["/:rw,squash=none,insecure"]));
    let mut good = served.client();
    let root = good.mount("/").expect("it is exported");
    let file = good.create(&root, "f").expect("it is new");
    good.write(&file, 0, &vec![7; 1 << 20], FILE_SYNC).expect("there is room");

    let mut deaf = served.client();
    deaf.wire.0.set_write_timeout(Some(Duration::from_millis(300))).expect("it is a socket");
    let read = deaf.record(NFS, 6, &Words::default().opaque(&file).u64(0).u32(1 << 20));
    let mark = (1_u32 << 31 | u32::try_from(read.len()).expect("it is short")).to_be_bytes();
    let asked = [&mark[..], &read].concat().repeat(1000);
    let _ = deaf.wire.0.write(&asked).expect("the server reads some of it");

    let before = memory_bytes_peak();
    let program = std::env::current_exe().expect("it has a path");
    let mut crowd = Command::new(program);
    crowd.args(["--exact", "crowd::the_crowd"]).env(SERVER, served.address.to_string());
    crowd.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut crowd = crowd.spawn().expect("it starts");
    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    while served.server.connection_count() < COUNT + 2 {
        assert!(begun.elapsed() < PATIENCE, "{} are there", served.server.connection_count());
        let since = Instant::now();
        assert_eq!(good.read(&file, 0, 9), Ok((vec![7; 9], false)));
        good.write(&file, 0, &[7; 5], FILE_SYNC).expect("there is room");
        longest = longest.max(since.elapsed());
    }
    assert!(longest < ANSWER_TIME_MAX, "{longest:?}");
    let mut late = served.client();
    assert_eq!(late.read(&file, 0, 9), Ok((vec![7; 9], false)), "one more is served");
    let cost = memory_bytes_peak() - before;
    let held = served.server.held_bytes();
    println!("{COUNT} connections: {held} bytes held, {} KiB more, {longest:?}", cost >> 10);
    assert!(cost < u64::try_from(COUNT).expect("few") * BYTES_OF_ONE + BYTES_OF_OTHERS, "{cost}");
    assert!(held < HELD_BYTES_MAX, "{held}");
    drop(deaf);
    drop(crowd.stdin.take());
    assert!(crowd.wait().expect("it ends").success());
    let since = Instant::now();
    while served.server.connection_count() > 2 {
        assert!(since.elapsed() < PATIENCE, "{} are left", served.server.connection_count());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert_eq!(good.read(&file, 0, 9), Ok((vec![7; 9], false)));
    assert_eq!(served.server.panic_count(), 0);
}
