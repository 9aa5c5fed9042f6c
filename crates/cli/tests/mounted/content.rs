//! Ways to the content of a file: mapped, direct, appended by several, without a name.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{AtFlags, FallocateFlags, StatxFlags, XattrFlags};

use crate::calls::{Mapping, become_user, write_async};
use crate::{Mounted, Over, can_mount, errno, write};

const PAGE: usize = 4096;
/// Offset of the second page.
const PAGE_OFFSET: u64 = 4096;

#[test]
fn a_shared_mapping_is_the_file_and_a_private_one_is_not() {
    if !can_mount("a_shared_mapping_is_the_file_and_a_private_one_is_not") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("file");
    write(&path, &vec![b'a'; 3 * PAGE]);
    let file = File::options().read(true).write(true).open(&path).expect("open");
    let mut shared = Mapping::new(&file, 3 * PAGE, true);
    let mut private = Mapping::new(&file, 3 * PAGE, false);
    shared.set(PAGE, b's');
    private.set(0, b'p');
    file.write_all_at(b"w", 7).expect("write");
    assert_eq!((shared.get(7), private.get(0)), (b'w', b'p'));
    let mut seen = [0; 1];
    file.read_exact_at(&mut seen, PAGE_OFFSET).expect("read");
    assert_eq!(&seen, b"s");
    shared.sync();
    drop((shared, private, file));
    mounted.remount(&[]);
    let bytes = fs::read(&path).expect("read");
    assert_eq!((bytes[0], bytes[7], bytes[PAGE]), (b'a', b'w', b's'));
    mounted.finish();
}

#[test]
fn direct_and_buffered_access_see_each_other() {
    if !can_mount("direct_and_buffered_access_see_each_other") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("file");
    write(&path, &vec![b'a'; 4 * PAGE]);
    let buffered = File::options().read(true).write(true).open(&path).expect("open");
    let mut options = File::options();
    let direct =
        options.read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
    let mut bytes = vec![0; 2 * PAGE];
    buffered.read_exact_at(&mut bytes, 0).expect("read");
    direct.write_all_at(&vec![b'd'; PAGE], PAGE_OFFSET).expect("direct write");
    buffered.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!((bytes[PAGE - 1], bytes[PAGE]), (b'a', b'd'), "the cache let go of what changed");
    buffered.write_all_at(b"b", 0).expect("write");
    direct.read_exact_at(&mut bytes, 0).expect("direct read");
    assert_eq!((bytes[0], bytes[1]), (b'b', b'a'));
    drop((direct, buffered));
    mounted.finish();
}

/// Goal: who reads beside asynchronous direct writes keeps nothing of what was there before.
#[test]
fn asynchronous_direct_writes_leave_no_stale_page() {
    const PIECES: usize = 16;
    if !can_mount("asynchronous_direct_writes_leave_no_stale_page") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("file");
    write(&path, &vec![0; PIECES * PAGE]);
    let mut options = File::options();
    let buffered = options.read(true).write(true).open(&path).expect("open");
    let direct = options.custom_flags(libc::O_DIRECT).open(&path).expect("open");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut bytes = vec![0; PIECES * PAGE];
                while !is_over.load(Ordering::Relaxed) {
                    buffered.read_exact_at(&mut bytes, 0).expect("read");
                }
            });
        }
        for round in 1..=u8::MAX {
            let at = |piece: usize| i64::try_from(piece * PAGE).expect("it is short");
            let pieces: Vec<_> = (0..PIECES).map(|piece| (at(piece), vec![round; PAGE])).collect();
            write_async(&direct, &pieces);
            let mut bytes = vec![0; PIECES * PAGE];
            buffered.read_exact_at(&mut bytes, 0).expect("read");
            let stale = bytes.iter().filter(|byte| **byte != round).count();
            assert_eq!(stale, 0, "bytes from before round {round}");
        }
    });
    drop((direct, buffered));
    mounted.finish();
}

/// Goal: what several append is all there, each piece whole.
#[test]
fn several_writers_append_without_loss() {
    const WRITERS: u8 = 4;
    const PIECES: usize = 200;
    const PIECE: usize = 700;
    if !can_mount("several_writers_append_without_loss") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("log");
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mut file = File::options().append(true).create(true).open(&path).expect("open");
            scope.spawn(move || {
                for _ in 0..PIECES {
                    file.write_all(&[b'a' + writer; PIECE]).expect("append");
                }
            });
        }
    });
    let bytes = fs::read(&path).expect("read");
    let mut counts = [0; 4];
    for piece in bytes.chunks(PIECE) {
        assert!(piece.iter().all(|byte| *byte == piece[0]), "a piece is torn");
        counts[usize::from(piece[0] - b'a')] += 1;
    }
    assert_eq!(counts, [PIECES; 4]);
    mounted.finish();
}

/// Goal: the same of programs, each of which opens the file for itself.
#[test]
fn several_programs_append_without_loss() {
    const LINES: usize = 300;
    if !can_mount("several_programs_append_without_loss") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("log");
    let script = "i=0; while [ $i -lt $1 ]; do echo $2-$i >> $3; i=$((i + 1)); done";
    let programs: Vec<_> = (0..4)
        .map(|program| {
            let mut shell = Command::new("sh");
            shell.args(["-c", script, "sh", &LINES.to_string(), &program.to_string()]).arg(&path);
            shell.spawn().expect("a shell starts")
        })
        .collect();
    for mut program in programs {
        assert!(program.wait().expect("it is our child").success());
    }
    let text = fs::read_to_string(&path).expect("read");
    for program in 0..4 {
        let begins = format!("{program}-");
        let lines = text.lines().filter(|line| line.starts_with(&begins));
        assert!(lines.eq((0..LINES).map(|number| format!("{program}-{number}"))), "{program}");
    }
    assert_eq!(text.lines().count(), 4 * LINES);
    mounted.finish();
}

/// Goal: `O_TMPFILE` and its first name, as linkat(2) gives it; none with `O_EXCL`.
#[test]
fn a_file_without_a_name_gets_one_unless_it_is_exclusive() {
    if !can_mount("a_file_without_a_name_gets_one_unless_it_is_exclusive") {
        return;
    }
    let mounted = Mounted::new();
    let nameless = |flags| {
        let mut options = File::options();
        options.write(true).mode(0o640).custom_flags(libc::O_TMPFILE | flags);
        options.open(mounted.root()).expect("O_TMPFILE")
    };
    let link = |file: &File, name: &str| {
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        let target = mounted.path(name);
        let (here, flags) = (rustix::fs::CWD, AtFlags::SYMLINK_FOLLOW);
        rustix::fs::linkat(here, &source, here, &target, flags).map_err(std::io::Error::from)
    };
    let mut file = nameless(0);
    file.write_all(b"data").expect("write");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
    assert_eq!(fs::read_dir(mounted.root()).expect("readdir").count(), 0);
    link(&file, "named").expect("its first name");
    assert_eq!(file.metadata().expect("stat").nlink(), 1);
    let exclusive = nameless(libc::O_EXCL);
    assert_eq!(errno(link(&exclusive, "other")), libc::ENOENT);
    drop((file, exclusive));
    mounted.remount(&[]);
    assert_eq!(fs::read(mounted.path("named")).expect("read"), b"data");
    assert_eq!(fs::read_dir(mounted.root()).expect("readdir").count(), 1);
    mounted.finish();
}

#[test]
fn statx_tells_the_time_of_birth() {
    if !can_mount("statx_tells_the_time_of_birth") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("file");
    write(&path, b"data");
    let statx = || {
        let here = rustix::fs::CWD;
        rustix::fs::statx(here, &path, AtFlags::empty(), StatxFlags::BTIME | StatxFlags::MTIME)
            .expect("statx")
    };
    let first = statx();
    assert!(StatxFlags::from_bits_retain(first.stx_mask).contains(StatxFlags::BTIME));
    // Long ago, by all but the birth.
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
    File::options().write(true).open(&path).expect("open").set_modified(long_ago).expect("utimes");
    mounted.remount(&[]);
    let second = statx();
    assert_eq!(second.stx_mtime.tv_sec, 1);
    assert_eq!(second.stx_btime.tv_sec, first.stx_btime.tv_sec);
    assert_eq!(second.stx_btime.tv_nsec, first.stx_btime.tv_nsec);
    assert!(second.stx_btime.tv_sec > 1_700_000_000);
    mounted.finish();
}

/// Goal: a change by who lacks the capability takes setuid, setgid and file capabilities away, at
/// the first write and at each later one, and a change by the superuser leaves the bits.
#[test]
fn changes_of_content_take_setuid_setgid_and_capabilities_away() {
    if !can_mount("changes_of_content_take_setuid_setgid_and_capabilities_away") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("program");
    write(&path, &vec![b'a'; 4 * PAGE]);
    let file = File::options().write(true).open(&path).expect("open");
    let set_to = |mode| {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    };
    let set = || set_to(0o6777);
    let mode = || fs::metadata(&path).expect("stat").mode() & 0o7777;
    let by_user_from = |from, change: &(dyn Fn() + Sync)| {
        set_to(from);
        thread::scope(|scope| {
            let user = scope.spawn(|| {
                become_user(1234, 1234, &[]);
                change();
            });
            user.join().expect("the user's thread");
        });
        mode()
    };
    let by_user = |change: &(dyn Fn() + Sync)| by_user_from(0o6777, change);
    let write_all = || file.write_all_at(b"b", 5).expect("write");
    set();
    write_all();
    assert_eq!(mode(), 0o6777);
    for round in 0..3 {
        assert_eq!(by_user(&write_all), 0o777, "write {round}");
    }
    assert_eq!(by_user(&|| file.set_len(PAGE_OFFSET).expect("truncate")), 0o777);
    set();
    let before = fs::metadata(&path).expect("stat");
    std::os::unix::fs::chown(&path, None, None).expect("it names nobody");
    let after = fs::metadata(&path).expect("stat");
    assert_eq!((mode(), after.uid()), (0o777, before.uid()));
    let changed = |of: &fs::Metadata| (of.ctime(), of.ctime_nsec());
    assert!(changed(&after) > changed(&before));
    // Setgid without group execution: the user is not in the file's group.
    assert_eq!(by_user_from(0o2767, &write_all), 0o767);
    assert_eq!(by_user_from(0o2767, &|| file.set_len(PAGE_OFFSET).expect("truncate")), 0o767);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let hole = || rustix::fs::fallocate(&file, punch, 0, 1).expect("punch a hole");
    assert_eq!(by_user(&hole), 0o777);
    let name = c"security.capability";
    // Revision 2: `cap_net_raw` may be had.
    let value = [0, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for round in 0..2 {
        rustix::fs::setxattr(&path, name, &value, XattrFlags::empty()).expect("setxattr");
        write_all();
        let left = rustix::fs::getxattr(&path, name, &mut [0; 20]);
        assert_eq!(left, Err(rustix::io::Errno::NODATA), "round {round}");
    }
    drop(file);
    mounted.finish();
}

#[test]
fn an_attribute_that_must_be_new_and_replaced_is_neither() {
    if !can_mount("an_attribute_that_must_be_new_and_replaced_is_neither") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("file");
    write(&path, b"content");
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    for name in [c"user.a", c"trusted.a", c"security.a"] {
        let set = |flags| rustix::fs::setxattr(&path, name, b"value", flags);
        assert_eq!(set(both), Err(rustix::io::Errno::NODATA), "{name:?}");
        set(XattrFlags::CREATE).expect("it is new");
        assert_eq!(set(both), Err(rustix::io::Errno::EXIST), "{name:?}");
    }
    mounted.finish();
}
