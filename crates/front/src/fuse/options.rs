//! How a directory is mounted.

use fuser::{Config, MountOption, SessionACL};

/// Most threads that serve one mount. Each holds a descriptor and up to 2 MiB of buffers.
pub const THREADS_MAX: usize = 64;

/// Fewest threads by default: one may wait for a device while others answer from memory.
const THREADS_DEFAULT_MIN: usize = 4;

/// How a directory is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What mount(8) shows as the source: the pool's path.
    pub fs_name: String,
    /// Refuse every change.
    pub is_read_only: bool,
    /// Let all users in, not only the one who mounts. Others than root need `user_allow_other` in
    /// /etc/fuse.conf for it.
    pub allows_others: bool,
    /// Threads that answer requests: 1 to [`THREADS_MAX`].
    pub thread_count: usize,
    /// Let the kernel gather writes. Faster for small writes, but what was not fsynced is lost when
    /// the server is killed, where otherwise the server has it.
    pub has_writeback_cache: bool,
    /// Flags of mount(8): `noexec`, `nodev` and so on.
    flags: Vec<MountOption>,
}

/// An option of `-o` that is not known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown mount option `{option}`: known are ro, rw, allow_other, dev, nodev, suid, nosuid, \
     exec, noexec, atime, noatime, sync, dirsync"
)]
pub struct UnknownOption {
    /// The option as it was given.
    pub option: String,
}

impl MountOptions {
    /// Returns the defaults for a file system shown as `fs_name`. Root lets others in and honours
    /// device nodes and setuid bits, as mount(8) does.
    #[must_use]
    pub fn new(fs_name: &str) -> MountOptions {
        let is_root = rustix::process::geteuid().is_root();
        let cpu_count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        MountOptions {
            fs_name: fs_name.to_owned(),
            is_read_only: false,
            allows_others: is_root,
            thread_count: (2 * cpu_count).clamp(THREADS_DEFAULT_MIN, THREADS_MAX),
            has_writeback_cache: false,
            flags: if is_root { vec![MountOption::Dev, MountOption::Suid] } else { Vec::new() },
        }
    }

    /// Applies options as mount(8) writes them: `ro,noexec`. The last of two that contradict wins.
    pub fn apply(&mut self, options: &str) -> Result<(), UnknownOption> {
        for option in options.split(',').filter(|o| !o.is_empty()) {
            match option {
                "ro" => self.is_read_only = true,
                "rw" => self.is_read_only = false,
                "allow_other" => self.allows_others = true,
                "dev" => self.set(MountOption::Dev, MountOption::NoDev),
                "nodev" => self.set(MountOption::NoDev, MountOption::Dev),
                "suid" => self.set(MountOption::Suid, MountOption::NoSuid),
                "nosuid" => self.set(MountOption::NoSuid, MountOption::Suid),
                "exec" => self.set(MountOption::Exec, MountOption::NoExec),
                "noexec" => self.set(MountOption::NoExec, MountOption::Exec),
                "atime" => self.set(MountOption::Atime, MountOption::NoAtime),
                "noatime" => self.set(MountOption::NoAtime, MountOption::Atime),
                "sync" => self.set(MountOption::Sync, MountOption::Async),
                "dirsync" => self.set(MountOption::DirSync, MountOption::DirSync),
                // mount(8) passes these along; they mean nothing to a server.
                "defaults" | "async" | "_netdev" | "nofail" | "auto" | "noauto" => {}
                unknown => return Err(UnknownOption { option: unknown.to_owned() }),
            }
        }
        Ok(())
    }

    /// Whether access times are to stay as they are.
    #[must_use]
    pub fn has_no_atime(&self) -> bool {
        self.flags.contains(&MountOption::NoAtime)
    }

    fn set(&mut self, wanted: MountOption, opposite: MountOption) {
        self.flags.retain(|flag| *flag != opposite && *flag != wanted);
        self.flags.push(wanted);
    }

    pub(super) fn to_fuser(&self) -> Config {
        let mut config = Config::default();
        let request_bytes = super::server::REQUEST_BYTES_MAX;
        config.mount_options = self.flags.clone();
        config.mount_options.extend([
            // Options are separated by commas, and a helper may split them.
            MountOption::FSName(self.fs_name.replace([',', '\\', '\n'], "_")),
            // As text, because the library leaves its own option for it out when it mounts itself.
            MountOption::CUSTOM("subtype=holdfast".to_owned()),
            MountOption::CUSTOM(format!("max_read={request_bytes}")),
            MountOption::DefaultPermissions,
            if self.is_read_only { MountOption::RO } else { MountOption::RW },
        ]);
        config.acl = if self.allows_others { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.thread_count.clamp(1, THREADS_MAX));
        config.clone_fd = true;
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_two_contradicting_options_wins() {
        let mut options = MountOptions::new("pool.hf");
        options.apply("ro,noexec,exec,nodev").expect("all are known");
        assert!(options.is_read_only);
        assert!(options.flags.contains(&MountOption::Exec));
        assert!(!options.flags.contains(&MountOption::NoExec));
        assert!(options.flags.contains(&MountOption::NoDev));
        assert!(!options.flags.contains(&MountOption::Dev));
    }

    #[test]
    fn an_unknown_option_is_refused_by_name() {
        let refused = MountOptions::new("pool.hf").apply("ro,frobnicate");
        assert_eq!(refused, Err(UnknownOption { option: "frobnicate".to_owned() }));
    }

    #[test]
    fn a_comma_in_the_pool_path_cannot_become_an_option() {
        let config = MountOptions::new("/a,allow_other/pool.hf").to_fuser();
        let name = MountOption::FSName("/a_allow_other/pool.hf".to_owned());
        assert!(config.mount_options.contains(&name));
    }
}
