//! Mounting: by mount(2), or without privilege by the setuid helper `fusermount3`.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::device::FuseDevice;
use crate::fuse::MountOptions;
use crate::fuse::mountpoint::MOUNT_TYPE;
use crate::fuse::server::REQUEST_BYTES_MAX;

/// Environment variable with the number of the socket on which the helper returns the connection.
const HELPER_SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts `directory`, an absolute path, and returns the connection. The kernel sends INIT first.
pub(super) fn attach(directory: &Path, options: &MountOptions) -> io::Result<FuseDevice> {
    match by_ourselves(directory, options) {
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            by_helper(directory, options)
        }
        result => result,
    }
}

fn by_ourselves(directory: &Path, options: &MountOptions) -> io::Result<FuseDevice> {
    let device = FuseDevice::open()?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},{}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        common_options(options),
    );
    // By default the kernel admits only the mounting user.
    if options.allows_others {
        data.push_str(",allow_other");
    }
    for context in options.contexts() {
        data.push(',');
        data.push_str(context);
    }
    let data = CString::new(data)?;
    let flags = options.kernel_flags();
    rustix::mount::mount(options.fs_name.as_str(), directory, MOUNT_TYPE, flags, data.as_c_str())?;
    Ok(device)
}

fn common_options(_: &MountOptions) -> String {
    format!("default_permissions,max_read={REQUEST_BYTES_MAX}")
}

fn by_helper(directory: &Path, options: &MountOptions) -> io::Result<FuseDevice> {
    if let Some(option) = options.option_of_root() {
        let message = format!("-o {option} is for root: fusermount3 has no such option");
        return Err(io::Error::other(message));
    }
    let (ours, theirs) = UnixStream::pair()?;
    let subtype = MOUNT_TYPE.trim_start_matches("fuse.");
    let mut text = format!(
        "{},fsname={},subtype={subtype},{}",
        options.flags_text(),
        options.source_name(),
        common_options(options),
    );
    if options.allows_others {
        text.push_str(",allow_other");
    }
    let mut command = Command::new("fusermount3");
    // As standard input, which no other child inherits.
    command.env(HELPER_SOCKET_VARIABLE, "0").stdin(Stdio::from(OwnedFd::from(theirs)));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.arg("-o").arg(text).arg("--").arg(directory).spawn().map_err(|error| {
        io::Error::other(format!("fusermount3 (package fuse3) cannot be started: {error}"))
    })?;
    // Drops our copy of the helper's socket, so that recvmsg sees EOF if the helper dies.
    drop(command);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        // The exit code does not name the cause.
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(message.trim().to_owned()));
    }
    Ok(FuseDevice::from_descriptor(received?))
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    loop {
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let descriptor = control.drain().find_map(|message| {
        let RecvAncillaryMessage::ScmRights(mut descriptors) = message else { return None };
        descriptors.next()
    });
    descriptor.ok_or_else(|| io::Error::other("fusermount3 handed over no connection"))
}

/// Default flags of mount(2), those of an unprivileged mount.
pub(in crate::fuse) const FLAGS_DEFAULT: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
