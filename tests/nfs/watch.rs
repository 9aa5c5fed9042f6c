//! Who looks sees which client asks about which directories, and what was slow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::api::FileSystem;
use front::nfs::{Export, ExportRules};
use front::watch::{PrefixTally, Watch, by_prefix};

use super::client::{Client, UNSTABLE, Words};
use super::{Direct, loopback, new_device, open_pool, service_of};

const LASTS: Duration = Duration::from_secs(60);

fn rows(watch: &Watch, depth: usize) -> Vec<(String, String, u64)> {
    let looked = watch.look(7, LASTS, Instant::now()).expect("there is room");
    let row = |it: PrefixTally| {
        let client = it.address.map(|address| address.to_string()).unwrap_or_default();
        (client, it.path.unwrap_or_else(|| format!("{} (others)", it.place)), it.tally.answered)
    };
    let mut rows: Vec<_> = by_prefix(&looked, depth).into_iter().map(row).collect();
    rows.sort();
    rows
}

/// Goal: requests are counted by the first directories of what they are about, by client, whatever
/// connection they come on; a directory that moves is counted where it is, and what is not below
/// an export has no path there. Nothing is counted before anybody looks.
#[test]
fn requests_are_counted_by_client_and_directory() {
    let pool = open_pool(&new_device(), 1);
    let service = service_of(&pool, &["/home:rw,squash=none"]);
    let watch = Arc::new(Watch::default());
    service.watched_by(&watch);
    let at = |address: [u8; 4], port| SocketAddr::from((address, port));
    let mut one = Client::new(Direct::new(&service, loopback(900)));
    let mut same = Client::new(Direct::new(&service, loopback(901)));
    let mut other = Client::new(Direct::new(&service, at([127, 0, 0, 2], 900)));
    let root = one.mount("/home").expect("it is exported");
    let a = one.mkdir(&root, "a").expect("it is new");
    let b = one.mkdir(&a, "b").expect("it is new");
    let deep = one.create(&b, "deep").expect("it is new");
    let top = one.create(&root, "top").expect("it is new");
    assert_eq!(rows(&watch, 1), [], "nobody has looked");

    for _ in 0..3 {
        one.getattr(&deep).expect("it is there");
        same.getattr(&a).expect("it is there");
        other.getattr(&top).expect("it is there");
    }
    let row = |client: &str, path: &str, count| (client.to_owned(), path.to_owned(), count);
    assert_eq!(rows(&watch, 1), [row("127.0.0.1", "/home/a", 6), row("127.0.0.2", "/home", 3)]);
    one.getattr(&deep).expect("it is there");
    one.getattr(&a).expect("it is there");
    assert_eq!(rows(&watch, 8), [row("127.0.0.1", "/home/a", 1), row("127.0.0.1", "/home/a/b", 1)]);

    let rules: ExportRules = "/only:rw,squash=none,dir=/a".parse().expect("a test writes rules");
    let fs: Arc<dyn FileSystem> = pool;
    service.add(Export::new(rules, fs).expect("it is there")).expect("it has a name of its own");
    let only = one.mount("/only").expect("it is exported");
    let (through, _) = one.lookup(&only, "b").expect("it is there");
    let names = Words::default().opaque(&a).opaque(b"b").opaque(&root).opaque(b"away");
    one.nfs(14, names).expect("nothing is in the way");
    rows(&watch, 1);
    one.getattr(&deep).expect("it is there");
    let _ = one.getattr(&through);
    let moved = rows(&watch, 2);
    assert!(moved.contains(&row("127.0.0.1", "/home/away", 1)), "{moved:?}");
    assert!(moved.contains(&row("127.0.0.1", "/only (others)", 1)), "{moved:?}");
}

/// Goal: a slow request is told with who asked, what, and the path of the file, which is looked for
/// when somebody wants to know.
#[test]
fn slow_requests_are_told_with_their_paths() {
    let pool = open_pool(&new_device(), 1);
    let service = service_of(&pool, &["/home:rw,squash=none"]);
    let watch = Arc::new(Watch::default());
    service.watched_by(&watch);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let root = client.mount("/home").expect("it is exported");
    let a = client.mkdir(&root, "a").expect("it is new");
    watch.keep_slow(1, Duration::ZERO, LASTS, Instant::now()).expect("there is room");
    let file = client.create(&a, "f").expect("it is new");
    client.write(&file, 0, b"bytes", UNSTABLE).expect("there is room");
    let gone = client.create(&a, "gone").expect("it is new");
    client.remove(&a, "gone").expect("it is there");
    assert!(client.getattr(&gone).is_err());
    let slow = watch.slow(0, Duration::ZERO, 100);
    let told: Vec<_> = slow
        .list
        .iter()
        .map(|it| (it.operation, it.path.as_deref().unwrap_or(""), it.is_failed))
        .collect();
    let number = told.last().map(|(_, path, _)| (*path).to_owned()).unwrap_or_default();
    assert_eq!(
        told,
        [
            ("CREATE", "/home/a", false),
            ("WRITE", "/home/a/f", false),
            ("CREATE", "/home/a", false),
            ("REMOVE", "/home/a", false),
            ("GETATTR", &*number, true),
        ]
    );
    assert!(number.starts_with("/home/(inode "), "{number}");
    let asker = slow.list[0].asker;
    assert_eq!((asker.address, asker.uid), (Some(loopback(900)), Some(0)));
}
