//! Who may do what: exports, networks, squashing, handles that are not to be believed.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use engine::api::{FileSystem, FsError};
use engine::{NewFileset, Pool, QuotaLimitsChange, QuotaProgress};
use format::fileset::FilesetName;
use format::quota::QuotaKind;
use front::nfs::{Export, HandleKey, Portmapper, Service};

use super::client::{Client, FILE_SYNC, Trouble, Words};
use super::{Direct, direct, loopback, new_device, open_pool, service_of};

const ACCES: Trouble = Trouble::Status(13);
const ROFS: Trouble = Trouble::Status(30);

#[test]
fn a_made_up_handle_is_refused() {
    let (mut client, root) = direct();
    for at in 0..root.len() {
        let mut changed = root.clone();
        changed[at] ^= 1;
        assert_eq!(client.getattr(&changed), Err(Trouble::Status(10_001)), "byte {at}");
    }
    assert_eq!(client.getattr(&root[..40]), Err(Trouble::Status(10_001)));
    assert_eq!(client.getattr(&[]), Err(Trouble::Status(10_001)));
    assert_eq!(client.getattr(&[0; 65]), Err(Trouble::Rpc(16 + 4)));
}

#[test]
fn a_handle_of_one_export_is_none_of_another_and_dies_with_its_export() {
    let pool = open_pool(&new_device(), 1);
    let service = service_of(&pool, &["/a:rw,squash=none", "/b:rw,squash=none", "/c:to=192.0.2.1"]);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let (a, b) = (client.mount("/a").expect("it is"), client.mount("/b").expect("it is"));
    assert_ne!(a, b);
    client.create(&a, "f").expect("it is new");
    let across = Words::default().opaque(&a).opaque(b"f").opaque(&b).opaque(b"g");
    assert_eq!(client.nfs(14, across).err(), Some(Trouble::Status(18)));
    assert_eq!(client.mount("/c").err(), Some(ACCES));
    assert_eq!(client.mount("/d").err(), Some(Trouble::Status(2)));
    assert!(service.remove("/a"));
    assert_eq!(client.getattr(&a), Err(Trouble::Status(70)));
    assert!(client.getattr(&b).is_ok());
}

#[test]
fn a_handle_is_no_permission_networks_and_ports_are_asked_at_each_request() {
    let service = service_of(&open_pool(&new_device(), 1), &["/:rw,squash=none,to=10.0.0.0/8"]);
    let client =
        |address: [u8; 4], port: u16| Client::new(Direct::new(&service, (address, port).into()));
    let root = client([10, 1, 2, 3], 900).mount("/").expect("it may");
    assert!(client([10, 9, 9, 9], 700).getattr(&root).is_ok());
    assert_eq!(client([11, 1, 2, 3], 900).getattr(&root), Err(ACCES));
    assert_eq!(client([10, 1, 2, 3], 1024).getattr(&root), Err(ACCES));
    assert_eq!(client([11, 1, 2, 3], 900).mount("/"), Err(ACCES));
}

/// Goal: whoever may use an export gets the list of programs by UDP.
#[test]
fn the_portmapper_lists_programs_by_udp_to_who_may_use_an_export() {
    let service = service_of(&open_pool(&new_device(), 1), &["/"]);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("there is a port");
    let address = socket.local_addr().expect("it has one");
    let _portmapper = Portmapper::start(service, socket).expect("it starts");
    let asker = UdpSocket::bind("127.0.0.1:0").expect("there is a port");
    asker.set_read_timeout(Some(Duration::from_secs(20))).expect("it is long");
    let head = Words::default().u32(7).u32(0).u32(2).u32(100_000).u32(2).u32(4);
    let call = head.u32(0).u32(0).u32(0).u32(0);
    asker.send_to(&call.0, address).expect("it can be sent");
    let mut bytes = [0; 1024];
    // A head, and of each of ten programs, by transport, five words.
    assert_eq!(asker.recv(&mut bytes).ok(), Some(24 + 10 * 20 + 4));
}

#[test]
fn a_read_only_export_changes_nothing() {
    let pool = open_pool(&new_device(), 1);
    let service = service_of(&pool, &["/w:rw,squash=none", "/r:squash=none"]);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let write = client.mount("/w").expect("it is");
    let file = client.create(&write, "f").expect("it may");
    client.write(&file, 0, b"x", FILE_SYNC).expect("it may");
    let root = client.mount("/r").expect("it is");
    let (file, _) = client.lookup(&root, "f").expect("it is");
    assert_eq!(client.read(&file, 0, 9), Ok((b"x".to_vec(), true)));
    assert_eq!(client.create(&root, "g").err(), Some(ROFS));
    assert_eq!(client.write(&file, 0, b"y", FILE_SYNC).err(), Some(ROFS));
    assert_eq!(client.remove(&root, "f").err(), Some(ROFS));
    assert_eq!(client.mkdir(&root, "d").err(), Some(ROFS));
    let chmod = Words::default().opaque(&file).set(Some(0), None).u32(0);
    assert_eq!(client.nfs(2, chmod).err(), Some(ROFS));
    let rename = Words::default().opaque(&root).opaque(b"f").opaque(&root).opaque(b"g");
    assert_eq!(client.nfs(14, rename).err(), Some(ROFS));
    let link = Words::default().opaque(&file).opaque(&root).opaque(b"g");
    assert_eq!(client.nfs(15, link).err(), Some(ROFS));
    let mut answer = client.nfs(4, Words::default().opaque(&root).u32(63)).expect("it is");
    answer.some_attr();
    assert_eq!(answer.u32(), 1 | 2);
}

#[test]
fn users_are_squashed_as_the_export_says() {
    let pool = open_pool(&new_device(), 1);
    let exports = ["/n:rw,squash=none", "/r:rw,squash=root,anon=50:60", "/a:rw,squash=all"];
    let service = service_of(&pool, &exports);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let open = client.mount("/n").expect("it is");
    let chmod = Words::default().opaque(&open).set(Some(0o777), None).u32(0);
    client.nfs(2, chmod).expect("root may");
    for (export, uid, owner) in [
        ("/n", 0, (0, 7)),
        ("/n", 5, (5, 7)),
        ("/r", 0, (50, 7)),
        ("/r", 5, (5, 7)),
        ("/a", 5, (65_534, 65_534)),
    ] {
        (client.uid, client.gid) = (uid, 7);
        let root = client.mount(export).expect("it is");
        let file = client.create(&root, "f").expect("everybody may");
        let attr = client.getattr(&file).expect("it is there");
        assert_eq!((attr.uid, attr.gid), owner, "{export} as {uid}");
        client.remove(&root, "f").expect("its owner may");
    }
}

#[test]
fn permissions_are_asked_at_each_request_but_not_of_an_owner() {
    let (mut client, root) = direct();
    let chmod = Words::default().opaque(&root).set(Some(0o777), None).u32(0);
    client.nfs(2, chmod).expect("root may");
    (client.uid, client.gid) = (5, 5);
    let args = Words::default().opaque(&root).opaque(b"f").u32(1).set(Some(0), None);
    let file = client.nfs(8, args).expect("everybody may").made().0;
    // As after open(O_CREAT, 0): the file is open for writing, and the mode does not matter.
    client.write(&file, 0, b"mine", FILE_SYNC).expect("it is the owner's");
    assert_eq!(client.read(&file, 0, 4), Ok((b"mine".to_vec(), true)));
    let truncate = Words::default().opaque(&file).set(None, Some(1)).u32(0);
    client.nfs(2, truncate).expect("it is the owner's");
    // As ftruncate(2) of a client that says the modification time with it: the server's.
    let truncate = Words::default().opaque(&file).u32(0).u32(0).u32(0).u32(1).u64(2);
    client.nfs(2, truncate.u32(0).u32(1).u32(0)).expect("it is the owner's");
    (client.uid, client.gid) = (6, 6);
    assert_eq!(client.read(&file, 0, 4).err(), Some(ACCES));
    assert_eq!(client.write(&file, 0, b"no", FILE_SYNC).err(), Some(ACCES));
    let device = Words::default().opaque(&root).opaque(b"sda").u32(3);
    let device = device.set(Some(0o666), None).u32(8).u32(0);
    assert_eq!(client.nfs(11, device).err(), Some(Trouble::Status(1)));
}

/// Goal: who may write to his file whatever its mode, because it is open, is held to his limits all
/// the same.
#[test]
fn limits_hold_for_an_owner_whose_file_is_closed_to_him() {
    const DQUOT: Trouble = Trouble::Status(69);
    let pool = open_pool(&new_device(), 1);
    let name = "root".parse::<FilesetName>().expect("it is a name");
    assert_eq!(pool.fileset_admin().switch_quotas_on(&name), Ok(QuotaProgress::On));
    let service = service_of(&pool, &["/:rw,squash=none"]);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let root = client.mount("/").expect("it is exported");
    let chmod = Words::default().opaque(&root).set(Some(0o777), None).u32(0);
    client.nfs(2, chmod).expect("root may");
    (client.uid, client.gid) = (5, 5);
    let args = Words::default().opaque(&root).opaque(b"f").u32(1).set(Some(0o444), None);
    let file = client.nfs(8, args).expect("everybody may").made().0;
    let hard = QuotaLimitsChange { bytes_hard: Some(1 << 20), ..QuotaLimitsChange::default() };
    pool.fileset_admin().set_quota(&name, (QuotaKind::User, 5), &hard).expect("quotas are on");
    let block = vec![7; 256 << 10];
    let mut offset = 0;
    let refused = loop {
        match client.write_some(&file, offset, &block) {
            Ok(count) => offset += u64::try_from(count).expect("it is small"),
            Err(error) => break error,
        }
        assert!(offset <= 1 << 20, "{offset} bytes of a megabyte");
    };
    assert_eq!(refused, DQUOT);
}

#[test]
fn nothing_above_an_exported_directory_is_seen() {
    let pool = open_pool(&new_device(), 1);
    let service = service_of(&pool, &["/:rw,squash=none"]);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let top = client.mount("/").expect("it is");
    let dir = client.mkdir(&top, "dir").expect("it is new");
    client.mkdir(&dir, "sub").expect("it is new");
    let service = service_of(&pool, &["/x:rw,squash=none,dir=/dir"]);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let root = client.mount("/x").expect("it is");
    let fileid = client.getattr(&root).expect("it is").fileid;
    let (above, attr) = client.lookup(&root, "..").expect("it has one");
    assert_eq!((&above, attr.fileid), (&root, fileid));
    let sub = client.mount("/x/sub").expect("it is below");
    assert_eq!(client.lookup(&sub, "..").expect("it has one").0, root);
    assert_eq!(client.mount("/x/..").err(), Some(Trouble::Status(2)));
    for (_, handle) in client.list(&root, 4096).expect("it is one").iter().take(2) {
        assert_eq!(*handle, None, "no handle of what may be above");
    }
}

/// Goal: an export that is made narrower takes back the handles of what it exports no more, and
/// nothing leads from what was moved out of it to the rest of the fileset.
#[test]
fn a_narrower_export_takes_handles_back_and_nothing_leads_out_of_it() {
    const STALE: Trouble = Trouble::Status(70);
    let pool = open_pool(&new_device(), 1);
    let service = service_of(&pool, &["/all:rw,squash=none", "/x:rw,squash=none"]);
    let mut client = Client::new(Direct::new(&service, loopback(900)));
    let all = client.mount("/all").expect("it is");
    let dir = client.mkdir(&all, "dir").expect("it is new");
    let below = client.mkdir(&dir, "sub").expect("it is new");
    client.mkdir(&below, "deep").expect("it is new");
    client.create(&all, "secret").expect("it is new");
    let wide = client.mount("/x").expect("it is");
    let (secret, _) = client.lookup(&wide, "secret").expect("it is there");
    let narrow = |rules: &str| {
        let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(&pool);
        let rules = rules.parse().expect("a test writes rules");
        service.replace(&["/x"], vec![Export::new(rules, fs).expect("it is")])
    };
    narrow("/x:rw,squash=none,dir=/dir").expect("its name is free");
    for handle in [&wide, &secret] {
        assert_eq!(client.getattr(handle), Err(STALE));
    }
    let root = client.mount("/x").expect("it is");
    let (sub, _) = client.lookup(&root, "sub").expect("it is below");
    let (deep, _) = client.lookup(&sub, "deep").expect("it is below");
    // The same export once more: its handles stay.
    narrow("/x:ro,squash=none,dir=dir/").expect("its name is free");
    assert_eq!(client.lookup(&deep, "..").expect("it has one").0, sub);
    assert_eq!(client.lookup(&sub, "..").expect("it has one").0, root);
    let rename = Words::default().opaque(&dir).opaque(b"sub").opaque(&all).opaque(b"away");
    client.nfs(14, rename).expect("nobody has that name");
    for handle in [&deep, &sub] {
        assert!(client.getattr(handle).is_ok(), "a handle of it is good");
        assert_eq!(client.lookup(handle, "..").err(), Some(STALE));
    }
    assert!(client.lookup(&sub, "deep").is_ok());
    assert_eq!(client.lookup(&root, "..").expect("it has one").0, root);
}

/// Goal: a handle is good wherever its export's pool is served, whatever is served beside it, and
/// of an export whose fileset came from another pool by the key of that pool. The key of a pool
/// makes no handle of an export of another pool, also where both are served.
#[test]
fn a_handle_goes_by_the_key_of_its_pool_and_not_of_the_first() {
    let pool = open_pool(&new_device(), 1);
    let [first, own, other] = [1, 2, 3].map(|number| HandleKey([number; 16]));
    let client = |service: Service, key: HandleKey, earlier: Vec<HandleKey>| {
        for (name, key, earlier) in [("/beside", first, Vec::new()), ("/", key, earlier)] {
            let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(&pool);
            let export = Export::new(name.parse().expect("a test writes rules"), fs);
            let export = export.expect("it is there").sealed_by(key).believing(earlier);
            service.add(export).expect("its name is free");
        }
        Client::new(Direct::new(&Arc::new(service), loopback(900)))
    };
    let mut before = client(Service::new(first, 2049), own, Vec::new());
    let root = before.mount("/").expect("it is exported");
    assert!(before.getattr(&root).is_ok());
    assert!(
        client(Service::new(other, 2049), own, Vec::new()).getattr(&root).is_ok(),
        "another is first"
    );
    let mut moved = client(Service::new(other, 2049), other, vec![first, own]);
    assert!(moved.getattr(&root).is_ok(), "its fileset is in another pool");
    let unknown = client(Service::new(own, 2049), other, vec![first]).getattr(&root);
    assert_eq!(unknown, Err(Trouble::Status(10_001)), "of a pool that the fileset never was in");
    let of_beside = client(Service::new(own, 2049), first, Vec::new()).getattr(&root);
    assert_eq!(of_beside, Err(Trouble::Status(10_001)));
}

/// Goal: filesets of one pool are served by one server, each with files of its own, and none is
/// deleted that is served.
#[test]
fn filesets_of_one_pool_are_served_together() {
    let (device, text) = (new_device(), "home/ann");
    let pool = open_pool(&device, 100);
    let name: FilesetName = text.parse().expect("it is one");
    let above: FilesetName = "home".parse().expect("it is one");
    for (name, number) in [(&above, 1), (&name, 2)] {
        let new = NewFileset { random: [number; 32], ..NewFileset::default() };
        pool.fileset_admin().create_fileset(name, &new).expect("there is room");
    }
    let serve = |pool: &Arc<Pool>| {
        let service = service_of(pool, &["/:rw,squash=none"]);
        let uuid = pool.fileset_admin().hold_fileset(&name).expect("it is there");
        let rules = "/ann:rw,squash=none,fileset=home/ann".parse().expect("it is one");
        let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(pool);
        service.add(Export::of(rules, fs, uuid).expect("it is")).expect("it has another name");
        Client::new(Direct::new(&service, loopback(900)))
    };
    let mut client = serve(&pool);
    let (main, ann) = (client.mount("/").expect("it is"), client.mount("/ann").expect("it is"));
    let fsids = [&main, &ann].map(|root| client.getattr(root).expect("it is there").fsid);
    assert_ne!(fsids[0], fsids[1]);
    let file = client.create(&ann, "f").expect("it is new");
    client.write(&file, 0, b"of ann", FILE_SYNC).expect("there is room");
    assert_eq!(client.lookup(&main, "f").err(), Some(Trouble::Status(2)));
    assert_eq!(client.list(&ann, 4096).expect("it is one").len(), 3);
    let rename = Words::default().opaque(&ann).opaque(b"f").opaque(&main).opaque(b"f");
    assert_eq!(client.nfs(14, rename).err(), Some(Trouble::Status(18)));
    let refused = pool.fileset_admin().delete_fileset(&name);
    assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{refused:?}");
    // As after a death: what was answered is there, in a fileset that nobody closed.
    let again = open_pool(&device, 200);
    let mut client = serve(&again);
    assert_eq!(client.read(&file, 0, 100), Ok((b"of ann".to_vec(), true)));
    client.remove(&ann, "f").expect("it is there");
    drop(client);
    again.close().expect("nothing fails");
    let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{}", report.to_text());
}

#[test]
fn names_that_are_none_are_refused() {
    let (mut client, root) = direct();
    let file = |name: &[u8]| Words::default().opaque(&root).opaque(name).u32(1).set(None, None);
    for (name, status) in
        [(&b""[..], 22), (b"a/b", 22), (b"a\0b", 22), (b".", 17), (b"..", 17), (&[b'x'; 256], 63)]
    {
        assert_eq!(client.nfs(8, file(name)).err(), Some(Trouble::Status(status)), "{name:?}");
    }
    let remove = Words::default().opaque(&root).opaque(b"..");
    assert_eq!(client.nfs(13, remove).err(), Some(Trouble::Status(22)));
    assert_eq!(client.lookup(&root, "a/b"), Err(Trouble::Status(22)));
}
