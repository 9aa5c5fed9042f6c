//! Credentials of the peer of a unix socket.
//!
//! Unsafe code: `getsockopt(2)`. Other crates' wrappers require a peer pid above 0, and the kernel
//! reports 0 for a process in a pid namespace invisible from here (another container, or the host
//! seen from inside one).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Most supplementary groups of a process: `NGROUPS_MAX` of linux/limits.h.
const GROUPS_MAX: usize = 65_536;

/// Credentials of the peer when the sockets were connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process, or `None` if it is in a pid namespace invisible from here.
    pub pid: Option<i32>,
}

/// Returns the credentials of the peer of `socket`.
pub fn ids(socket: &impl AsFd) -> io::Result<Ids> {
    let mut found = [libc::ucred { pid: 0, uid: 0, gid: 0 }];
    let count = get(socket, libc::SO_PEERCRED, &mut found)?;
    match found {
        [found] if count == 1 => {
            let pid = (found.pid > 0).then_some(found.pid);
            Ok(Ids { uid: found.uid, gid: found.gid, pid })
        }
        _ => Err(io::Error::other("the kernel does not say who is there")),
    }
}

/// Returns the peer's supplementary groups.
pub fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut found = vec![0; GROUPS_MAX];
    let count = get(socket, libc::SO_PEERGROUPS, &mut found)?;
    found.truncate(count);
    Ok(found)
}

/// Reads a socket option into `room`. Returns the number of elements filled.
fn get<T>(socket: &impl AsFd, option: i32, room: &mut [T]) -> io::Result<usize> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut bytes = u32::try_from(size_of_val(room)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `bytes` bytes to `room`, which has that size, and the
    // written length to `bytes`. Both options are plain numbers, valid for any bit pattern. The
    // kernel keeps no pointer.
    let done = unsafe {
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            option,
            room.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
    Ok(bytes / size_of::<T>().max(1))
}

#[test]
fn the_kernel_says_who_is_at_the_other_end() {
    let (here, there) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let own = Ids {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: Some(rustix::process::getpid().as_raw_nonzero().get()),
    };
    assert_eq!(ids(&here).expect("a socket"), own);
    let expected = rustix::process::getgroups().expect("they are few");
    let expected: Vec<u32> = expected.into_iter().map(|it| it.as_raw()).collect();
    assert_eq!(groups(&there).expect("a socket"), expected);
    assert!(ids(&std::fs::File::open("/dev/null").expect("it is there")).is_err());
}
