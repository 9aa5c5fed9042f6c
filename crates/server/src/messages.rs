//! Messages over a socket of a server: lines of JSON, and descriptors.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::Context;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::until::DeadlineReader;

/// Error for requests while the pool is being closed.
pub const CLOSING: &str = "the pool is being closed: try again";

pub(crate) const LINE_BYTES_MAX: u64 = 1 << 20;
/// Longest wait for the other side of the socket.
pub(crate) const CLIENT_TIME: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a change, which may need a checkpoint on a slow disk.
pub(crate) const CONTROL_TIME: Duration = Duration::from_secs(120);
/// The data byte that carries a descriptor.
const DESCRIPTOR_MARK: [u8; 1] = [b'.'];

pub(crate) fn receive_answer<T: DeserializeOwned>(stream: &UnixStream) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&receive_line(stream, LINE_BYTES_MAX, CONTROL_TIME)?)?)
}

pub(crate) fn send(mut stream: &UnixStream, message: &impl Serialize) -> anyhow::Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIME))?;
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

pub(crate) fn receive_until<T: DeserializeOwned>(
    until: &mut DeadlineReader<'_>,
    bytes_max: u64,
) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&read_line(until, bytes_max)?)?)
}

pub(crate) fn read_line(
    until: &mut DeadlineReader<'_>,
    bytes_max: u64,
) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(until).take(bytes_max).read_until(b'\n', &mut line)?;
    Ok(line)
}

pub(crate) fn receive_line(
    stream: &UnixStream,
    bytes_max: u64,
    patience: Duration,
) -> anyhow::Result<Vec<u8>> {
    let line = read_line(&mut DeadlineReader::new(stream, patience), bytes_max)?;
    anyhow::ensure!(
        !line.is_empty(),
        "the other side ended before it answered: what was asked for may be done or not; \
         `holdfast status` shows whether the server is there, and the pool what it has"
    );
    Ok(line)
}

pub(crate) fn take_descriptor(until: &DeadlineReader<'_>) -> anyhow::Result<File> {
    let stream = until.stream()?;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut mark = [0; DESCRIPTOR_MARK.len()];
    let mut into = [IoSliceMut::new(&mut mark)];
    rustix::net::recvmsg(stream, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .context("no descriptor came")?;
    let passed = ancillary.drain().find_map(|message| {
        if let RecvAncillaryMessage::ScmRights(mut all) = message { all.next() } else { None }
    });
    Ok(File::from(passed.context("no descriptor came")?))
}

pub(crate) fn pass_descriptor(stream: &UnixStream, file: &File) -> anyhow::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let passed = [file.as_fd()];
    anyhow::ensure!(
        ancillary.push(SendAncillaryMessage::ScmRights(&passed)),
        "no room for a descriptor"
    );
    let mark = [IoSlice::new(&DESCRIPTOR_MARK)];
    rustix::net::sendmsg(stream, &mark, &mut ancillary, SendFlags::empty())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a descriptor passed over a socket refers to the same file, and a byte without a
    /// descriptor is an error.
    #[test]
    fn a_descriptor_is_passed_over_a_socket() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let (mut read, write) = std::io::pipe().expect("a pipe");
        let file = File::from(std::os::fd::OwnedFd::from(write));
        pass_descriptor(&here, &file).expect("there is room");
        drop(file);
        let mut taken =
            take_descriptor(&DeadlineReader::new(&there, CLIENT_TIME)).expect("it was passed");
        taken.write_all(b"here").expect("somebody reads");
        drop(taken);
        let mut text = String::new();
        read.read_to_string(&mut text).expect("it ends");
        assert_eq!(text, "here");
        (&here).write_all(b".").expect("there is room");
        assert!(
            take_descriptor(&DeadlineReader::new(&there, CLIENT_TIME)).is_err(),
            "a byte alone is no descriptor"
        );
    }
}
