//! What is asked of an open pool and moves more than one answer: the difference of two nodes, a
//! stream of one. The bytes go through a descriptor that whoever asks passes along; on the socket
//! there are only the request, how far it is, and how it came out.
//!
//! # Invariants
//!
//! - TF1: Only root and the server's own user ask for these: a stream has every file.
//! - TF2: A transfer has a thread of its own, so a server goes on answering others; there are
//!   [`TRANSFERS_MAX`] at a time.

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use engine::vnode::api::FileSystem;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::{BackendError, OpenPool};
use crate::control::{Peer, name_of};
use crate::mounts::Mounts;
use crate::places::Places;
use crate::status::{self, Answer, CLOSING};
use crate::tree::Rules;
use crate::until::Until;
use crate::uses::{Claim, Use};

/// Transfers that a server does at a time: each holds a thread and some megabytes.
const TRANSFERS_MAX: usize = 4;
/// How often a server says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// How long whoever asked may take to pass the descriptor.
const DESCRIPTOR_TIME: Duration = Duration::from_secs(5);
/// The byte that a descriptor comes with.
const DESCRIPTOR_MARK: [u8; 1] = [b'.'];

/// What is asked for. Names are `a/b`, without the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Transfer {
    /// A line of JSON for each path that a clone and another node have differently.
    Diff {
        /// The fileset of the clone.
        fileset: String,
        /// The clone's own name.
        from: String,
        /// The fileset of the other node.
        to_fileset: String,
        /// The clone of that; `None`: the fileset itself, as it is now.
        to: Option<String>,
    },
    /// A stream of a clone.
    Send {
        /// Its fileset.
        fileset: String,
        /// Its own name.
        clone: String,
        /// An earlier clone that whoever receives has; `None`: nothing.
        from: Option<String>,
        /// Where an earlier stream broke off.
        resume: Option<String>,
    },
    /// Make a fileset, or its next state, of a stream.
    Receive {
        /// Its name.
        fileset: String,
        /// Only verify the stream, and look whether the fileset could receive it.
        is_dry_run: bool,
        /// Give up what came of another stream.
        #[serde(default)]
        discards_partial: bool,
    },
    /// Move a fileset to another pool of the same server.
    Move {
        /// Its name.
        fileset: String,
        /// The other pool, as the server has opened it.
        pool: PathBuf,
        /// Its name there.
        to: String,
        /// Whether what has come is given up instead.
        gives_up: bool,
    },
    /// Put a tree of files into a fileset.
    Import {
        /// Which.
        tree: TreeSpec,
    },
    /// Write files of a fileset, or of a clone, into a tree.
    ExportTree {
        /// Which.
        tree: TreeSpec,
    },
}

/// A tree of files that comes in or goes out. The descriptor is a directory, or a tar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeSpec {
    /// The fileset.
    pub fileset: String,
    /// A clone of it.
    pub clone: Option<String>,
    /// The directory in it, any bytes.
    pub path: Vec<u8>,
    /// Whether the descriptor is a tar.
    pub is_archive: bool,
    /// How many threads copy.
    pub threads: usize,
    /// Whether all is compared afterwards.
    pub verifies: bool,
    /// What is copied, and how what is there is taken.
    pub rules: Rules,
}

/// Told how much is done, and of how much; 0: nobody knows. Returns whether to go on.
pub type OnBytes<'p> = &'p mut dyn FnMut(u64, u64) -> bool;

impl Transfer {
    /// Claims the fileset that it writes to, for as long as it takes; refuses one that it would put
    /// another content in the place of.
    fn claim(&self, mounts: &Mounts) -> Result<Option<Claim>, BackendError> {
        if let Transfer::Receive { fileset, is_dry_run: false, .. } = self {
            mounts.uses.check_replaced(fileset)?;
        }
        let Transfer::Import { tree } = self else { return Ok(None) };
        // What is no name is told by the transfer itself.
        let Ok(name) = name_of(&tree.fileset) else { return Ok(None) };
        mounts.uses.claim(Some(&name), None, Use::Import).map(Some)
    }
}

/// The transfers of a server that are under way.
#[derive(Clone, Debug)]
pub(crate) struct Transfers(Places);

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers(Places::new(TRANSFERS_MAX))
    }
}

impl Transfers {
    /// Does what the client of `stream` asked for, in a thread of its own. Returns why not.
    pub(crate) fn begin(
        &self,
        stream: &UnixStream,
        (pool, mounts): (&Arc<dyn OpenPool>, &Mounts),
        request: Transfer,
        peer: Peer,
    ) -> anyhow::Result<()> {
        let claim = request.claim(mounts)?;
        let place = self.0.take().with_context(|| {
            format!("{TRANSFERS_MAX} transfers are under way: try again when one has ended")
        })?;
        let (stream, pool) = (stream.try_clone()?, Arc::clone(pool));
        tracing::info!(uid = peer.uid, ?request, "asked for a transfer");
        std::thread::Builder::new().name("transfer".to_owned()).spawn(move || {
            let _place = place;
            let fronts = claim.as_ref().map(Claim::outside);
            let done = || serve(&stream, (&*pool, fronts), &request, peer);
            let done = catch_unwind(AssertUnwindSafe(done));
            // Before it is said that it has ended.
            drop(claim);
            let answer = match done {
                Ok(Ok(value)) => Answer::Transferred(value),
                Ok(Err(error)) => Answer::Error(format!("{error:#}")),
                Err(_) => Answer::Error("the server met a bug: see its log".to_owned()),
            };
            if let Err(error) = status::send(&stream, &answer) {
                tracing::debug!(%error, "the client of a transfer has gone");
            }
        })?;
        Ok(())
    }
}

fn serve(
    stream: &UnixStream,
    (pool, fronts): (&dyn OpenPool, Option<Arc<dyn FileSystem>>),
    request: &Transfer,
    peer: Peer,
) -> anyhow::Result<Value> {
    status::send(stream, &Answer::Ready)?;
    let mut file = take_descriptor(&Until::new(stream, DESCRIPTOR_TIME))?;
    let (mut last, mut has_gone) = (Instant::now(), false);
    let mut progress = |done, total| {
        if last.elapsed() >= PROGRESS_INTERVAL {
            last = Instant::now();
            has_gone = has_gone || status::send(stream, &Answer::Progress { done, total }).is_err();
        }
        !has_gone
    };
    Ok(pool.transfer(request, peer, &mut file, fronts, &mut progress)?)
}

/// Receives a descriptor, which comes with a byte.
pub(crate) fn take_descriptor(until: &Until<'_>) -> anyhow::Result<File> {
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

/// Passes a descriptor to the other side.
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

/// Asks the server behind `stream`, which has the request already, and waits for the end.
pub(crate) fn follow(
    stream: &UnixStream,
    file: File,
    progress: OnBytes<'_>,
) -> anyhow::Result<Value> {
    // The thread of a transfer may be busy for as long as it likes, as long as it lives.
    stream.set_read_timeout(None)?;
    let mut lines = BufReader::new(stream);
    let mut file = Some(file);
    loop {
        let mut line = Vec::new();
        let count = lines.read_until(b'\n', &mut line)?;
        anyhow::ensure!(count > 0, "the server has gone away: `holdfast status` shows those there");
        match serde_json::from_slice(&line)? {
            Answer::Ready => match file.take() {
                Some(file) => pass_descriptor(stream, &file)?,
                None => anyhow::bail!("the server answered nonsense"),
            },
            Answer::Progress { done, total } => {
                // The server learns by the socket that nobody waits.
                let _ = progress(done, total);
            }
            Answer::Transferred(value) => return Ok(value),
            Answer::Error(error) => return Err(anyhow::Error::msg(error)),
            Answer::Closing => anyhow::bail!(CLOSING),
            Answer::Status(_) | Answer::Explain(_) | Answer::Control(_) | Answer::Mounted(_) => {
                anyhow::bail!("the server answered nonsense")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use serde_json::json;

    use super::*;
    use crate::control::{VERSION, parse_as};

    fn good() -> Vec<Transfer> {
        let name = || "a/b".to_owned();
        let to = Some("tuesday".to_owned());
        let from = || "monday".to_owned();
        let tree = TreeSpec {
            fileset: name(),
            clone: None,
            path: b"/\xff".to_vec(),
            is_archive: true,
            threads: 4,
            verifies: true,
            rules: Rules { skips_same: true, ..Rules::default() },
        };
        vec![
            Transfer::Diff { fileset: name(), from: from(), to_fileset: name(), to },
            Transfer::Send { fileset: name(), clone: from(), from: None, resume: Some(from()) },
            Transfer::Receive { fileset: name(), is_dry_run: true, discards_partial: false },
            Transfer::Move { fileset: name(), pool: "/p".into(), to: from(), gives_up: true },
            Transfer::Import { tree: tree.clone() },
            Transfer::ExportTree { tree },
        ]
    }

    #[test]
    fn a_request_survives_its_line_and_what_is_not_known_is_refused() {
        for request in good() {
            let mut value = serde_json::to_value(&request).expect("it is plain");
            let parse = parse_as::<Transfer>;
            assert_eq!(parse(VERSION, value.clone()), Ok(request));
            assert!(parse(0, value.clone()).is_err_and(|it| it.contains("version 0")));
            value["more"] = json!(1);
            assert!(parse(VERSION, value).is_err_and(|it| it.contains("more")));
        }
    }

    /// Goal: a descriptor comes over a socket as what it is; a socket without one says so.
    #[test]
    fn a_descriptor_is_passed_over_a_socket() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let (mut read, write) = std::io::pipe().expect("a pipe");
        let file = File::from(std::os::fd::OwnedFd::from(write));
        pass_descriptor(&here, &file).expect("there is room");
        drop(file);
        let mut taken =
            take_descriptor(&Until::new(&there, DESCRIPTOR_TIME)).expect("it was passed");
        taken.write_all(b"here").expect("somebody reads");
        drop(taken);
        let mut text = String::new();
        read.read_to_string(&mut text).expect("it ends");
        assert_eq!(text, "here");
        (&here).write_all(b".").expect("there is room");
        assert!(
            take_descriptor(&Until::new(&there, DESCRIPTOR_TIME)).is_err(),
            "a byte alone is no descriptor"
        );
    }
}
