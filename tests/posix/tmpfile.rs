use engine::api::{Attr, Caller, FileKind, FileSystem, FsError, NewInode};
use whole_system::{Ground, behaviours};

const NEW: NewInode = NewInode::new(FileKind::Regular, 0o640);

fn nameless(at: &Ground<'_>, directory: &str) -> Attr {
    at.fs().tmpfile(&Caller::root(), at.ino(directory), NEW).expect("it is made")
}

fn content(fs: &dyn FileSystem, file: &Attr) -> Vec<u8> {
    let mut bytes = Vec::new();
    fs.read(&Caller::root(), file.ino, 0, 100, &mut bytes).expect("it is held");
    bytes
}

behaviours! {
    fn a_file_born_without_a_name_is_a_file_in_no_directory(at) {
        let before = at.attr("/");
        at.pass_time();
        let file = nameless(at, "/");
        assert_eq!((file.kind, file.mode, file.nlink), (FileKind::Regular, 0o640, 0));
        at.fs().write(&Caller::root(), file.ino, 0, b"data").expect("it is held");
        assert_eq!(content(at.fs(), &file), b"data");
        assert!(at.names("/").is_empty());
        assert_eq!(at.attr("/").mtime, before.mtime, "no name, so no change of the directory");
        at.fs().forget(file.ino, 1);
        let gone = at.fs().getattr(&Caller::root(), file.ino).map_err(|error| error.errno());
        assert!(gone == Err(FsError::NotFound.errno()) || gone == Err(FsError::Stale.errno()));
    }

    fn its_first_name_makes_it_a_file_like_any_other(at) {
        at.does("create /d directory 755");
        let file = nameless(at, "/");
        let fs = at.fs();
        fs.write(&Caller::root(), file.ino, 0, b"data").expect("it is held");
        let linked = fs.link(&Caller::root(), file.ino, at.ino("/d"), b"named", None);
        let linked = linked.expect("it is new");
        assert_eq!((linked.ino, linked.nlink), (file.ino, 1));
        fs.forget(file.ino, 2);
        assert_eq!(at.content("/d/named"), b"data");
        at.does("link /d/named /second\nunlink /d/named");
        assert_eq!(at.attr("/second").nlink, 1);
    }

    fn it_gets_a_first_name_once(at) {
        let file = nameless(at, "/");
        let (fs, root) = (at.fs(), at.ino("/"));
        let link = |name: &[u8]| fs.link(&Caller::root(), file.ino, root, name, None);
        link(b"first").expect("it never had one");
        at.does("unlink /first");
        assert_eq!(link(b"again").map_err(|error| error.errno()), Err(FsError::NotFound.errno()));
        fs.forget(file.ino, 2);
    }

    /// So many blocks that no single transaction frees them.
    fn it_is_cut_before_and_after_its_first_name(at) {
        const STLOG_DATA_BYTES: u64 = 64 << 10;
        let file = nameless(at, "/");
        let (fs, root) = (at.fs(), at.ino("/"));
        for block in 0..1200 {
            let written = fs.write(&Caller::root(), file.ino, block * STLOG_DATA_BYTES, b"x");
            written.expect("there is room");
        }
        fs.sync().expect("nothing fails");
        let cut = |size_bytes| {
            let size_bytes = Some(size_bytes);
            let change = engine::api::SetAttr { size_bytes, ..Default::default() };
            fs.setattr(&Caller::root(), file.ino, &change, None).expect("it is held");
        };
        cut(600 * STLOG_DATA_BYTES);
        fs.link(&Caller::root(), file.ino, root, b"named", None).expect("it never had a name");
        cut(1);
        assert_eq!(at.content("/named"), b"x");
        fs.forget(file.ino, 2);
        assert_eq!(at.attr("/named").size_bytes, 1);
    }

    fn who_may_not_write_the_directory_makes_none(at) {
        at.does("create /d directory 755");
        let user = Caller::checked(7, 7, Vec::new());
        let parent = at.ino("/d");
        let refused = at.fs().tmpfile(&user, parent, NEW).map_err(|error| error.errno());
        assert_eq!(refused, Err(FsError::AccessDenied.errno()));
        at.does("mode /d 2777");
        let made = at.fs().tmpfile(&user, parent, NEW).expect("everybody may");
        assert_eq!((made.uid, made.gid), (7, at.attr("/d").gid));
        at.fs().forget(made.ino, 1);
        at.does("create /f file 666");
        let refused = at.fs().tmpfile(&user, at.ino("/f"), NEW).map_err(|error| error.errno());
        assert_eq!(refused, Err(FsError::NotDirectory.errno()));
    }
}
