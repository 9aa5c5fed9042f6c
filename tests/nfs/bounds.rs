//! Requests that come twice, clients that misbehave, and what they may cost.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::client::{self, Client, FILE_SYNC, NFS, Trouble, Words};
use super::{Direct, Served, direct, loopback, new_device, open_pool, service_of};

/// How often what happens soon is looked for.
const TRIES_MAX: usize = 4000;
const EXPORTS: [&str; 1] = ["/:rw,squash=none,insecure"];

fn served() -> Served {
    Served::new(service_of(&open_pool(&new_device(), 1), &EXPORTS))
}

/// Goal: a change that is asked twice is done once, and answered the same.
#[test]
fn a_request_that_comes_twice_is_done_once() {
    let (mut client, root) = direct();
    let args = Words::default().opaque(&root).opaque(b"d").set(Some(0o755), None);
    let record = client.record(NFS, 9, &args);
    let first = client::Wire::exchange(&mut client.wire, &record);
    let again = client::Wire::exchange(&mut client.wire, &record);
    assert_eq!(first, again);
    // Another request with the same number is another.
    client.xid -= 1;
    assert!(client.mkdir(&root, "e").is_ok());
    assert_eq!(client.mkdir(&root, "d").err(), Some(Trouble::Status(17)));
}

/// Goal: a request that comes again while it is being done is not done again; who asked last is
/// answered.
#[test]
fn a_request_that_is_being_done_is_answered_once() {
    let service = service_of(&open_pool(&new_device(), 1), &EXPORTS);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let mut other = Direct::new(&service, loopback(900));
    let root = client.mount("/").expect("it is exported");
    let args = Words::default().opaque(&root).opaque(b"d").set(Some(0o755), None);
    let record = client.record(NFS, 9, &args);
    let (reply, commit) = client.wire.start(&record);
    assert!(reply.is_none() && commit.is_some(), "it waits for its commit");
    let (reply, second) = other.start(&record);
    assert!(reply.is_none() && second.is_none(), "it is being done");
    commit.expect("it is there").run();
    assert!(client.wire.told().is_none());
    let mut answer = client::open(client.xid, other.told().expect("it asked last"));
    assert_eq!(answer.as_mut().expect("it is one").u32(), 0);
}

/// Goal: no message that is cut or is no call ends the server; what is a call is answered.
#[test]
fn garbage_is_refused_and_others_are_served() {
    let served = served();
    let mut good = served.client();
    let root = good.mount("/").expect("it is exported");
    let whole =
        good.record(NFS, 7, &Words::default().opaque(&root).u64(0).u32(4).u32(2).opaque(b"abcd"));
    for end in (0..whole.len()).step_by(3) {
        let mut bad = served.client();
        bad.wire.0.set_read_timeout(Some(Duration::from_secs(20))).expect("it is long");
        bad.wire.send(&whole[..end]);
        let mut head = [0; 4];
        // An answer that refuses it, or the end.
        let _ = bad.wire.0.read(&mut head).expect("the server says something");
        assert!(good.getattr(&root).is_ok());
    }
    for bytes in [&[255; 64][..], b"GET / HTTP/1.1\r\n\r\n", &[0x80, 0, 0, 0], &[0; 5000]] {
        let mut bad = TcpStream::connect(served.address).expect("it listens");
        bad.write_all(bytes).expect("it reads");
        bad.set_read_timeout(Some(Duration::from_secs(20))).expect("it is long");
        assert_eq!(bad.read(&mut [0; 4]).ok(), Some(0), "it is closed");
    }
    assert_eq!(good.call((7, 1), 0, Words::default()).err(), Some(Trouble::Rpc(17)));
    assert_eq!(good.call((100_003, 4), 0, Words::default()).err(), Some(Trouble::Rpc(18)));
    assert_eq!(good.call(NFS, 22, Words::default()).err(), Some(Trouble::Rpc(19)));
    assert_eq!(good.call(NFS, 1, Words::default()).err(), Some(Trouble::Rpc(20)));
    assert!(good.getattr(&root).is_ok());
    assert_eq!(served.server.panic_count(), 0);
}

/// Goal: a record may come in any pieces: fragments of it, and packets of those.
#[test]
fn a_record_may_come_in_pieces() {
    let served = served();
    let mut client = served.client();
    let root = client.mount("/").expect("it is exported");
    let record = client.record(NFS, 1, &Words::default().opaque(&root));
    let mut bytes = Vec::new();
    for (at, piece) in record.chunks(7).enumerate() {
        let last = if (at + 1) * 7 >= record.len() { 1_u32 << 31 } else { 0 };
        bytes.extend((last | u32::try_from(piece.len()).expect("it is short")).to_be_bytes());
        bytes.extend(piece);
    }
    client.wire.0.set_nodelay(true).expect("it is a socket");
    for piece in bytes.chunks(5) {
        client.wire.0.write_all(piece).expect("the server reads");
    }
    let reply = client.wire.receive();
    assert!(client::open(client.xid, reply).is_ok());
    // And many of them in one packet.
    let one = client.record(NFS, 1, &Words::default().opaque(&root));
    let mark = (1_u32 << 31 | u32::try_from(one.len()).expect("it is short")).to_be_bytes();
    let many = [&mark[..], &one].concat().repeat(300);
    client.wire.0.write_all(&many).expect("the server reads");
    for _ in 0..300 {
        assert!(client::open(client.xid, client.wire.receive()).is_ok());
    }
}

/// Goal: a client that asks and never reads costs a bounded number of bytes, and others are served.
#[test]
fn a_client_that_takes_no_answers_costs_little() {
    let served = served();
    let mut good = served.client();
    let root = good.mount("/").expect("it is exported");
    let file = good.create(&root, "f").expect("it is new");
    let block = vec![7; 1 << 20];
    good.write(&file, 0, &block, FILE_SYNC).expect("there is room");
    let mut deaf = served.client();
    deaf.wire.0.set_write_timeout(Some(Duration::from_millis(300))).expect("it is a socket");
    let read = deaf.record(NFS, 6, &Words::default().opaque(&file).u64(0).u32(1 << 20));
    let mark = (1_u32 << 31 | u32::try_from(read.len()).expect("it is short")).to_be_bytes();
    let asked = [&mark[..], &read].concat();
    let mut asked_bytes = 0;
    while asked_bytes < 64 << 20 {
        match deaf.wire.0.write(&asked) {
            Ok(count) => asked_bytes += count,
            Err(_) => break,
        }
        assert!(served.server.held_bytes() < 96 << 20, "{}", served.server.held_bytes());
    }
    assert!(asked_bytes < 64 << 20, "the server reads no more");
    assert_eq!(good.read(&file, 0, 9), Ok((vec![7; 9], false)));
    drop(deaf);
    assert_eq!(good.read(&file, 0, 9), Ok((vec![7; 9], false)));
}

/// Goal: small questions with long answers that come together cost no more than what a batch may:
/// the bounds are asked while they are answered, not behind. Who may use nothing is told of no
/// mount. Method: EXPORT of exports with long names, by one who reads nothing.
#[test]
fn long_answers_to_small_questions_are_bounded() {
    const MOUNT: (u32, u32) = (100_005, 3);
    const ASKED: usize = 64;
    let names = (0..1000).map(|number| format!("/{}{number}:insecure", "x".repeat(900)));
    let names: Vec<String> = names.collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let served = Served::new(service_of(&open_pool(&new_device(), 1), &names));
    let mut deaf = served.client();
    let mut asked = Vec::new();
    for _ in 0..ASKED {
        let record = deaf.record(MOUNT, 5, &Words::default());
        let mark = 1_u32 << 31 | u32::try_from(record.len()).expect("it is short");
        asked.extend([&mark.to_be_bytes()[..], &record].concat());
    }
    deaf.wire.0.write_all(&asked).expect("the server reads");
    for _ in 0..200 {
        assert!(served.server.held_bytes() < 16 << 20, "{}", served.server.held_bytes());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    // Who reads is answered all the same.
    for _ in 0..ASKED {
        assert!(deaf.wire.receive().len() > 900 * 1000);
    }
}

/// Goal: whoever may use an export is told who has mounted what, and a stranger is not.
#[test]
fn strangers_are_told_of_no_mounts() {
    const MOUNT: (u32, u32) = (100_005, 3);
    let service = service_of(&open_pool(&new_device(), 1), &["/:to=10.0.0.0/8"]);
    let client = |address: [u8; 4]| Client::new(Direct::new(&service, (address, 900).into()));
    let mut known = client([10, 0, 0, 1]);
    known.mount("//").expect("it may");
    let mut told = known.call(MOUNT, 2, Words::default()).expect("it is answered");
    assert_eq!((told.u32(), told.opaque(), told.opaque()), (1, b"10.0.0.1".into(), b"/".into()));
    let mut told = client([11, 0, 0, 1]).call(MOUNT, 2, Words::default()).expect("it is answered");
    assert!(told.u32() == 0 && told.is_at_end());
}

/// Goal: connections that say nothing, or begin a record and do not end it, keep nobody from being
/// served, and cost what they have sent.
#[test]
fn idle_and_half_open_connections_keep_nobody_out() {
    const COUNT: usize = 300;
    let served = served();
    let mut idle = Vec::new();
    for number in 0..COUNT {
        let mut socket = TcpStream::connect(served.address).expect("it listens");
        let begun = [0x80, 0x0f, 0, 0, 1, 2, 3];
        socket.write_all(&begun[..number % 8]).expect("it reads");
        idle.push(socket);
    }
    let mut good = served.client();
    let root = good.mount("/").expect("it is exported");
    let file = good.create(&root, "f").expect("it is new");
    good.write(&file, 0, b"x", FILE_SYNC).expect("there is room");
    assert_eq!(served.server.connection_count(), COUNT + 1);
    assert!(served.server.held_bytes() < COUNT * 8 + 1000, "{}", served.server.held_bytes());
    drop(idle);
    for _ in 0..TRIES_MAX {
        if served.server.connection_count() == 1 {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert_eq!(served.server.connection_count(), 1);
    assert_eq!(good.read(&file, 0, 9), Ok((b"x".to_vec(), true)));
}

/// Goal: a full pool says so, makes nothing half, and has room again for who removes.
#[test]
fn a_full_pool_says_so_and_takes_removals() {
    const FULL: Trouble = Trouble::Status(28);
    let (mut client, root) = direct();
    let file = client.create(&root, "big").expect("it is new");
    let block = vec![7; 1 << 20];
    let mut offset = 0;
    let refused = loop {
        match client.write_some(&file, offset, &block) {
            Ok(count) => offset += u64::try_from(count).expect("it is small"),
            Err(error) => break error,
        }
        assert!(offset < 64 << 20, "the pool is no larger");
    };
    assert_eq!(refused, FULL);
    let names =
        |client: &mut client::Client<Direct>| client.list(&root, 65_536).expect("it is one").len();
    let mut made = names(&mut client);
    for number in 0..5000 {
        match client.create(&root, &format!("small{number}")) {
            Ok(_) => made += 1,
            Err(error) => {
                assert_eq!(error, FULL);
                break;
            }
        }
    }
    assert_eq!(names(&mut client), made, "what was refused is not there");
    client.remove(&root, "big").expect("removing always works");
    let file = client.create(&root, "again").expect("there is room again");
    client.write(&file, 0, &block, FILE_SYNC).expect("there is room again");
    assert_eq!(client.read(&file, 0, 4), Ok((vec![7; 4], false)));
}

/// Goal: many clients at once, each with its own files; nothing is lost, nothing is held after.
#[test]
fn many_clients_at_once() {
    let served = served();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let served = &served;
            scope.spawn(move || {
                let mut client = served.client();
                let root = client.mount("/").expect("it is exported");
                let dir = client.mkdir(&root, &format!("d{number}")).expect("it is new");
                for round in 0..20 {
                    let file = client.create(&dir, &format!("f{round}")).expect("it is new");
                    let bytes = vec![u8::try_from(number).expect("small"); 5000];
                    client.write(&file, 0, &bytes, FILE_SYNC).expect("there is room");
                    assert_eq!(client.read(&file, 0, 9000), Ok((bytes, true)));
                }
                assert_eq!(client.list(&dir, 4096).expect("it is one").len(), 22);
            });
        }
    });
    assert_eq!(served.server.panic_count(), 0);
    // Who sends an answer counts it a moment after the client has it.
    for _ in 0..TRIES_MAX {
        if served.server.held_bytes() == 0 {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("{} bytes are held for nobody", served.server.held_bytes());
}
