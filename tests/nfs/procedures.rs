//! What each procedure does.

use super::client::{Client, FILE_SYNC, Names, Socket, Trouble, UNSTABLE, Wire, Words};
use super::{Served, direct, new_device, open_pool, service_of};

fn fh(handle: &[u8]) -> Words {
    Words::default().opaque(handle)
}

/// Goal: the whole life of a tree, by every procedure. Called on each wire.
fn lives<W: Wire>(client: &mut Client<W>, root: &[u8]) {
    let dir = client.mkdir(root, "d").expect("it is new");
    let file = client.create(&dir, "f").expect("it is new");
    assert_eq!(client.create(&dir, "f"), Err(Trouble::Status(17)));
    let (stable, verifier) = client.write(&file, 0, b"hello", UNSTABLE).expect("there is room");
    assert_eq!(stable, UNSTABLE);
    assert_eq!(client.commit(&file), Ok(verifier));
    let durable = client.write(&file, 5, b" world", FILE_SYNC).expect("there is room");
    assert_eq!(durable, (FILE_SYNC, verifier));
    assert_eq!(client.read(&file, 0, 5), Ok((b"hello".to_vec(), false)));
    assert_eq!(client.read(&file, 6, 100), Ok((b"world".to_vec(), true)));
    assert_eq!(client.read(&file, 100, 5), Ok((Vec::new(), true)));
    let attr = client.getattr(&file).expect("it is there");
    assert_eq!((attr.kind, attr.mode, attr.size, attr.nlink), (1, 0o644, 11, 1));

    // SETATTR with a guard that is right, and with one that is not.
    let (seconds, nanoseconds) = attr.ctime;
    let guarded =
        |nanoseconds| fh(&file).set(Some(0o600), Some(5)).u32(1).u32(seconds).u32(nanoseconds);
    assert_eq!(client.nfs(2, guarded(nanoseconds + 1)).err(), Some(Trouble::Status(10_002)));
    let wcc = client.nfs(2, guarded(nanoseconds)).expect("it is the owner").wcc();
    assert_eq!(wcc.size_before, Some(11));
    assert_eq!(wcc.after.expect("it is told").size, 5);

    // ACCESS: all of a file but lookup, delete and, for there are no such bits, execute.
    let mut answer = client.nfs(4, fh(&file).u32(63)).expect("it is there");
    answer.some_attr();
    assert_eq!(answer.u32(), 1 | 4 | 8);

    // LINK, SYMLINK, READLINK, RENAME.
    let mut answer = client.nfs(15, fh(&file).opaque(root).opaque(b"g")).expect("it is new");
    assert_eq!(answer.some_attr().expect("it is told").nlink, 2);
    let link = fh(root).opaque(b"s").set(None, None).opaque(b"d/f");
    let (symlink, attr, _) = client.nfs(10, link).expect("it is new").made();
    assert_eq!(attr.kind, 5);
    let mut answer = client.nfs(5, fh(&symlink)).expect("it is a link");
    answer.some_attr();
    assert_eq!(answer.opaque(), b"d/f");
    assert_eq!(client.nfs(5, fh(&file)).err(), Some(Trouble::Status(22)));
    let mut answer =
        client.nfs(14, fh(&dir).opaque(b"f").opaque(root).opaque(b"h")).expect("it is");
    let (from, to) = (answer.wcc(), answer.wcc());
    assert!(from.size_before.is_some() && to.size_before.is_some());
    assert!(answer.is_at_end());
    assert_eq!(client.lookup(&dir, "f"), Err(Trouble::Status(2)));
    assert_eq!(client.lookup(root, "h").expect("it is there").0, file);

    // MKNOD: a fifo, a device, and what is neither.
    let node = |kind: u32| fh(root).opaque(b"n").u32(kind).set(Some(0o600), None);
    assert_eq!(client.nfs(11, node(7)).expect("it is new").made().1.kind, 7);
    client.remove(root, "n").expect("it is there");
    assert_eq!(client.nfs(11, node(4).u32(8).u32(1)).expect("root may").made().1.kind, 4);
    assert_eq!(client.nfs(11, node(1)).err(), Some(Trouble::Status(10_007)));

    // Listing: in one answer, and in many; going on with a wrong verifier.
    let names = |mut all: Names| {
        all.sort();
        all.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(client.list(root, 65_536).expect("it is one")), ". .. d g h n s");
    assert_eq!(names(client.list(root, 512).expect("it is one")), ". .. d g h n s");
    assert_eq!(client.list(root, 100).err(), Some(Trouble::Status(10_005)));
    let wrong = fh(root).u64(7).u64(1 << 50).u32(4096);
    assert_eq!(client.nfs(16, wrong).err(), Some(Trouble::Status(10_003)));
    let mut answer = client.nfs(16, fh(root).u64(0).u64(0).u32(4096)).expect("it is one");
    answer.some_attr();
    answer.u64();
    let mut count = 0;
    while answer.u32() == 1 {
        let _ = (answer.u64(), answer.opaque(), answer.u64());
        count += 1;
    }
    assert_eq!((count, answer.u32()), (7, 1));

    // REMOVE, RMDIR.
    assert_eq!(client.remove(root, "d").err(), Some(Trouble::Status(21)));
    assert_eq!(client.nfs(13, fh(root).opaque(b"g")).err(), Some(Trouble::Status(20)));
    for name in ["g", "h", "s", "n"] {
        client.remove(root, name).expect("it is there");
    }
    client.nfs(13, fh(root).opaque(b"d")).expect("it is empty");
    assert_eq!(client.getattr(&file), Err(Trouble::Status(70)));

    // FSSTAT, FSINFO, PATHCONF.
    for (number, words) in [(18, 13), (19, 12), (20, 6)] {
        let mut answer = client.nfs(number, fh(root)).expect("it is there");
        answer.some_attr();
        (0..words).for_each(|_| _ = answer.u32());
        assert!(answer.is_at_end(), "procedure {number}");
    }
}

#[test]
fn every_procedure_does_its_work() {
    let (mut client, root) = direct();
    lives(&mut client, &root);
}

#[test]
fn every_procedure_does_its_work_over_a_socket() {
    let exports = ["/:rw,squash=none,insecure"];
    let served = Served::new(service_of(&open_pool(&new_device(), 1), &exports));
    let mut client: Client<Socket> = served.client();
    let root = client.mount("/").expect("it is exported");
    lives(&mut client, &root);
    assert_eq!(served.server.panic_count(), 0);
}

#[test]
fn an_exclusive_creation_that_is_asked_twice_makes_one_file() {
    let (mut client, root) = direct();
    let ask = |verifier| fh(&root).opaque(b"x").u32(2).u64(verifier);
    let first = client.nfs(8, ask(77)).expect("it is new").made().0;
    let again = client.nfs(8, ask(77)).expect("it is the same").made().0;
    assert_eq!(first, again);
    assert_eq!(client.nfs(8, ask(78)).err(), Some(Trouble::Status(17)));
}

/// Goal: what a file that another has made exclusively was made with makes nobody its owner, and
/// the number that no user has is nobody's.
#[test]
fn an_exclusive_creation_of_another_and_the_number_of_no_user_are_refused() {
    let (mut client, root) = direct();
    client.nfs(2, fh(&root).set(Some(0o777), None).u32(0)).expect("it is root's");
    let ask = || fh(&root).opaque(b"x").u32(2).u64(77);
    let made = client.nfs(8, ask()).expect("it is new").made().0;
    (client.uid, client.gid) = (7, 7);
    assert_eq!(client.nfs(8, ask()).err(), Some(Trouble::Status(17)));
    (client.uid, client.gid) = (u32::MAX, u32::MAX);
    let own = client.create(&root, "y").expect("it may");
    let attr = client.getattr(&own).expect("it is there");
    assert_eq!((attr.uid, attr.gid), (65_534, 65_534));
    (client.uid, client.gid) = (0, 0);
    // SETATTR of the owner alone, guarded by no time.
    let owner = |uid: u32| fh(&made).u32(0).u32(1).u32(uid).u64(0).u64(0).u32(0);
    assert_eq!(client.nfs(2, owner(u32::MAX)).err(), Some(Trouble::Status(22)));
    client.nfs(2, owner(7)).expect("it is root's");
}

#[test]
fn an_unchecked_creation_truncates_what_is_there() {
    let (mut client, root) = direct();
    let file = client.create(&root, "x").expect("it is new");
    client.write(&file, 0, b"long", FILE_SYNC).expect("there is room");
    let args = fh(&root).opaque(b"x").u32(0).set(Some(0o600), Some(0));
    let (again, attr, _) = client.nfs(8, args).expect("it may").made();
    assert_eq!((again, attr.size, attr.mode), (file, 0, 0o644));
}

/// Goal: handles are good after a restart, and the verifier tells clients of it. What was
/// answered is there, though the pool was not closed.
#[test]
fn after_a_death_handles_are_good_and_what_was_answered_is_there() {
    let device = new_device();
    let pool = open_pool(&device, 100);
    let service = service_of(&pool, &["/:rw,squash=none"]);
    let mut client = Client::new(super::Direct::new(&service, super::loopback(900)));
    let root = client.mount("/").expect("it is exported");
    let file = client.create(&root, "f").expect("it is new");
    let (_, before) = client.write(&file, 0, b"durable", FILE_SYNC).expect("there is room");
    let gone = client.create(&root, "gone").expect("it is new");
    client.remove(&root, "gone").expect("it is there");
    // The pool is opened as it lies, as after a death of the server.
    let image = open_pool(&device, 200);
    let service = service_of(&image, &["/:rw,squash=none"]);
    let mut client = Client::new(super::Direct::new(&service, super::loopback(900)));
    assert_eq!(client.read(&file, 0, 100), Ok((b"durable".to_vec(), true)));
    assert_eq!(client.getattr(&gone), Err(Trouble::Status(70)));
    assert_ne!(client.commit(&file), Ok(before), "the verifier is another");
}
