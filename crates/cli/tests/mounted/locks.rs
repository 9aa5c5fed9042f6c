//! Locks are the kernel's own: between programs of this machine they work as on any file system.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::calls::lock_bytes;
use crate::{Mounted, can_mount, errno, write};

fn opened(mounted: &Mounted) -> File {
    File::options().read(true).write(true).open(mounted.path("file")).expect("open")
}

#[test]
fn flock_excludes_other_open_files() {
    if !can_mount("flock_excludes_other_open_files") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), b"data");
    let (first, second) = (opened(&mounted), opened(&mounted));
    flock(&first, FlockOperation::LockExclusive).expect("nobody has it");
    let refused = flock(&second, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(Errno::WOULDBLOCK));
    flock(&first, FlockOperation::LockShared).expect("it is ours");
    flock(&second, FlockOperation::NonBlockingLockShared).expect("two may share");
    drop(first);
    flock(&second, FlockOperation::NonBlockingLockExclusive).expect("the other is closed");
    drop(second);
    mounted.finish();
}

#[test]
fn locks_of_open_files_cover_their_bytes_only() {
    if !can_mount("locks_of_open_files_cover_their_bytes_only") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), b"data");
    let (first, second) = (opened(&mounted), opened(&mounted));
    let take = |file, kind, range| lock_bytes(file, libc::F_OFD_SETLK, kind, range);
    take(&first, libc::F_WRLCK, 0..2).expect("nobody has it");
    assert_eq!(errno(take(&second, libc::F_RDLCK, 1..3)), libc::EAGAIN);
    take(&second, libc::F_WRLCK, 2..4).expect("other bytes");
    take(&first, libc::F_UNLCK, 0..2).expect("it is ours");
    take(&second, libc::F_WRLCK, 0..4).expect("it is free");
    drop((first, second));
    mounted.finish();
}

/// Goal: locks of a process exclude another process, and end when it does.
#[test]
fn locks_of_a_process_exclude_another_process() {
    if !can_mount("locks_of_a_process_exclude_another_process") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), b"data");
    let file = opened(&mounted);
    let take = |range| lock_bytes(&file, libc::F_SETLK, libc::F_WRLCK, range);
    // perl is on every Debian. `struct flock` of 64-bit Linux.
    let script = "use Fcntl; open my $f, '+<', $ARGV[0] or die; \
                  my $lock = pack 's s x4 q q i x4', F_WRLCK, 0, 0, 2, 0; \
                  fcntl($f, F_SETLK, $lock) or die $!; print qq(held\\n); close STDOUT; <STDIN>";
    let mut child = std::process::Command::new("perl")
        .args(["-e", script])
        .arg(mounted.path("file"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("perl is there");
    let mut said = String::new();
    let mut output = child.stdout.take().expect("it is piped");
    std::io::Read::read_to_string(&mut output, &mut said).expect("it speaks");
    assert_eq!(said, "held\n");
    assert_eq!(errno(take(1..3)), libc::EAGAIN);
    take(2..4).expect("other bytes");
    drop(child.stdin.take());
    assert!(child.wait().expect("it is ours").success());
    take(0..4).expect("its locks ended with it");
    drop(file);
    mounted.finish();
}
