//! Mounts in hand-over from a client to the server. A hand-over reserves its fileset. So it must
//! end by [`HAND_OVER_TIME`], is listed in the status, and ends when its mounter loses the role.

use std::ffi::OsString;
use std::net::Shutdown;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    MOUNTS_MAX, MOUNTS_OF_MOUNTER_MAX, MOUNTS_OF_MOUNTERS_MAX, MountCreator, MountSpec,
    PoolClosingError, PoolMounts, next_number,
};
use crate::peer::Peer;
use crate::roles::PoolGrants;

/// Time from `Ready` to the last byte from the client. Within it the client mounts, perhaps by
/// fusermount3.
pub(super) const HAND_OVER_TIME: Duration = Duration::from_secs(5);

pub(super) struct HandOver {
    number: u64,
    pub(super) maker: MountCreator,
    spec: MountSpec,
    since: Instant,
    stream: UnixStream,
}

impl HandOver {
    fn directory(&self) -> PathBuf {
        OsString::from_vec(self.spec.directory.clone()).into()
    }

    fn facts(&self) -> Value {
        json!({
            "directory": self.directory().to_string_lossy(),
            "fileset": self.spec.fileset,
            "mounter": self.maker.mounter(),
            "seconds": self.since.elapsed().as_secs(),
        })
    }
}

pub(super) struct HandOverGuard<'m>(&'m PoolMounts, u64);

impl Drop for HandOverGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().coming.retain(|it| it.number != self.1);
    }
}

impl PoolMounts {
    pub(super) fn come(
        &self,
        stream: &UnixStream,
        spec: &MountSpec,
        maker: MountCreator,
    ) -> anyhow::Result<HandOverGuard<'_>> {
        let mut list = self.lock();
        let shown = self.path.display();
        if list.is_closing {
            return Err(PoolClosingError::of(&self.path).into());
        }
        let count = list.mounted.len() + list.coming.len() + list.leaving;
        anyhow::ensure!(count < MOUNTS_MAX, "{shown}: a server has at most {MOUNTS_MAX} mounts");
        if let Some(uid) = maker.mounter() {
            let own = list.mounted.iter().filter(|it| it.mounter == Some(uid)).count();
            let all = list.mounted.iter().filter(|it| it.mounter.is_some()).count();
            let coming = list.coming.iter().filter_map(|it| it.maker.mounter());
            let coming: Vec<u32> = coming.collect();
            let own_coming = coming.iter().filter(|&&it| it == uid).count();
            anyhow::ensure!(
                own + own_coming < MOUNTS_OF_MOUNTER_MAX,
                "{shown}: user {uid} has {MOUNTS_OF_MOUNTER_MAX} mounts here: unmount one first"
            );
            anyhow::ensure!(
                all + coming.len() < MOUNTS_OF_MOUNTERS_MAX,
                "{shown}: mounters have {MOUNTS_OF_MOUNTERS_MAX} mounts here, and get no more: \
                 ask an administrator"
            );
        }
        let (number, spec, stream) = (next_number(), spec.clone(), stream.try_clone()?);
        list.coming.push(HandOver { number, maker, spec, since: Instant::now(), stream });
        Ok(HandOverGuard(self, number))
    }

    pub(crate) fn hand_overs(&self) -> Vec<Value> {
        self.lock().coming.iter().map(HandOver::facts).collect()
    }

    /// Ends the hand-overs of mounters that have no role in `roles` any more, which frees their
    /// filesets. `own` is the server's user.
    pub(crate) fn end_without_role(&self, roles: &PoolGrants, own: Peer) {
        for HandOver { maker, spec, stream, .. } in &self.lock().coming {
            let MountCreator::Mounter(peer) = *maker else { continue };
            let directory = PathBuf::from(OsString::from_vec(spec.directory.clone()));
            if roles.of(peer, own).check_mount(spec, &directory, peer).is_err() {
                let (uid, fileset) = (peer.uid, &spec.fileset);
                tracing::info!(uid, ?directory, ?fileset, "a hand-over ends with its role");
                // Shuts down only reads, so that the reason can still be sent to the client.
                let _ = stream.shutdown(Shutdown::Read);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::backend::Backend;
    use crate::messages;
    use crate::messages::pass_descriptor;
    use crate::roles::{Grant, MountGrant};
    use crate::wiring::EngineBackend;
    use control::wire::WireAnswer;

    const MAKER: MountCreator = MountCreator::Administrator(Peer { uid: 0, gid: 0 });
    const MOUNTER: Peer = Peer { uid: 7, gid: 7 };

    /// Hands over a mount of `root` as a mounter, and calls `then` until the server answers.
    /// Returns the refusal.
    fn refused(mounts: &Arc<PoolMounts>, then: impl Fn(&UnixStream)) -> String {
        let (here, there) = UnixStream::pair().expect("a pair");
        let spec = MountSpec::plain(Some("root"), Path::new("/mnt"));
        std::thread::scope(|scope| {
            let maker = MountCreator::Mounter(MOUNTER);
            let asked = scope.spawn(move || mounts.take_over(&there, &spec, maker));
            let ready: WireAnswer = messages::receive_answer(&here).expect("it answers");
            assert!(matches!(ready, WireAnswer::Ready), "{ready:?}");
            let file = File::options().read(true).write(true).open("/dev/null");
            pass_descriptor(&here, &file.expect("it is there")).expect("there is room");
            while !asked.is_finished() {
                then(&here);
                std::thread::park_timeout(Duration::from_millis(100));
            }
            let error = asked.join().expect("no bug").expect_err("it is no mount");
            format!("{error:#}")
        })
    }

    /// Goal: a slow client's hand-over has one deadline, is in the status, and frees its fileset.
    #[test]
    fn a_client_that_sends_slowly_holds_no_fileset() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let mounts = PoolMounts::new(Path::new("pool"), &pool);
        let begun = Instant::now();
        let words = refused(&mounts, |mut stream| {
            let all = mounts.hand_overs();
            if let [one] = &all[..] {
                let (fileset, mounter) = (&one["fileset"], &one["mounter"]);
                assert!(fileset == "root" && mounter == 7 && one["directory"] == "/mnt", "{all:?}");
            }
            assert!(begun.elapsed() < HAND_OVER_TIME * 3, "it goes on as long as bytes come");
            let _ = stream.write_all(b" ");
        });
        assert!(words.contains("did not come"), "{words}");
        assert!(mounts.hand_overs().is_empty() && !mounts.reap(false));
        let claim = mounts.claim(None, None, &crate::uses::FilesetUse::CopyIn);
        drop(claim.expect("the fileset is free"));
        pool.close().expect("memory does not fail");
    }

    /// Goal: losing the role ends a mounter's hand-overs at once, and no others.
    #[test]
    fn a_hand_over_ends_with_the_role_of_its_mounter() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let mounts = PoolMounts::new(Path::new("pool"), &pool);
        let (roles, own) = (PoolGrants::default(), Peer { uid: 0, gid: 0 });
        let mountable = |name: &str| MountGrant {
            filesets: vec![name.to_owned()],
            directories: vec!["/mnt".into()],
        };
        let grant = |name: &str| Grant { uids: vec![7], mounts: Some(mountable(name)) };
        let (_here, there) = UnixStream::pair().expect("a pair");
        let others = MountSpec::plain(Some("other"), Path::new("/mnt"));
        let stays = mounts.come(&there, &others, MAKER).expect("there is room");
        let keeps =
            mounts.come(&there, &others, MountCreator::Mounter(MOUNTER)).expect("there is room");
        roles.set(vec![grant("root"), grant("other")]);
        mounts.end_without_role(&roles, own);
        let begun = Instant::now();
        let words = refused(&mounts, |_| {
            roles.set(vec![grant("other")]);
            mounts.end_without_role(&roles, own);
        });
        assert!(words.contains("did not come"), "{words}");
        assert!(begun.elapsed() < HAND_OVER_TIME, "it ended by its deadline");
        there.set_nonblocking(true).expect("it is a socket");
        let read = std::io::Read::read(&mut &there, &mut [0]);
        assert!(read.is_err(), "what others hand over goes on: {read:?}");
        drop((stays, keeps));
        pool.close().expect("memory does not fail");
    }

    /// Goal: one mounter cannot take all mounts of a pool, hand-overs included.
    #[test]
    fn one_mounter_leaves_mounts_to_others() {
        let pool = EngineBackend.open_in_memory(16 << 20).expect("there is memory");
        let mounts = PoolMounts::new(Path::new("pool"), &pool);
        let mounter = |uid: u32| MountCreator::Mounter(Peer { uid, gid: uid });
        let (_here, there) = UnixStream::pair().expect("a pair");
        let spec = MountSpec::plain(None, Path::new("/nowhere"));
        let come = |maker: MountCreator| {
            mounts.come(&there, &spec, maker).map_err(|error| error.to_string())
        };
        let coming: Vec<_> = (0..MOUNTS_OF_MOUNTER_MAX).map(|_| come(mounter(7))).collect();
        assert!(coming.iter().all(Result::is_ok));
        let refused = come(mounter(7)).err().expect("he has enough");
        assert!(refused.contains("user 7 has 8 mounts here: unmount one"), "{refused}");
        assert!(come(mounter(8)).is_ok() && come(MAKER).is_ok());
        let others = (100..).take(MOUNTS_OF_MOUNTERS_MAX - MOUNTS_OF_MOUNTER_MAX);
        let others: Vec<_> = others.map(|uid| come(mounter(uid))).collect();
        assert!(others.iter().all(Result::is_ok));
        let refused = come(mounter(8)).err().expect("they have enough");
        assert!(refused.contains("mounters have 32 mounts here"), "{refused}");
        let left: Vec<_> = (MOUNTS_OF_MOUNTERS_MAX..MOUNTS_MAX).map(|_| come(MAKER)).collect();
        assert!(left.iter().all(Result::is_ok), "administrators have some left");
        drop((coming, others, left));
        assert!(come(mounter(7)).is_ok(), "they have gone");
        pool.close().expect("memory does not fail");
    }
}
