//! Who is at the other end of a unix socket.
//!
//! Unsafe code: `getsockopt(2)`. What other crates have of it takes the number of a process to be
//! above 0, and it is 0 where that is in a namespace that this process does not see: of another
//! container, or of the machine for who is in one.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Most groups of a process: `NGROUPS_MAX` of linux/limits.h.
const GROUPS_MAX: usize = 65_536;

/// Who had the other end when the sockets were connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process; `None`: in a namespace that this process does not see.
    pub pid: Option<i32>,
}

/// Returns who has the other end of a socket.
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

/// Returns his other groups.
pub fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut found = vec![0; GROUPS_MAX];
    let count = get(socket, libc::SO_PEERGROUPS, &mut found)?;
    found.truncate(count);
    Ok(found)
}

/// Puts an option of sockets into `room`. Returns how much of that has it.
fn get<T>(socket: &impl AsFd, option: i32, room: &mut [T]) -> io::Result<usize> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut bytes = u32::try_from(size_of_val(room)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `bytes` bytes to `room`, which is so long, and the number
    // of those to `bytes`; both options are plain numbers, any value is one. It keeps nothing.
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
