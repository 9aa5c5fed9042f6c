//! How a directory is mounted.

use std::time::Duration;

use rustix::mount::MountFlags as KernelFlags;

use super::kernel::FLAGS_DEFAULT;

/// Most threads that serve one mount. Each holds a descriptor, and of two buffers of 1 MiB as much
/// as its largest requests have used.
pub const THREADS_MAX: usize = 64;

/// Fewest threads by default: one may wait for a device while others answer from memory.
const THREADS_DEFAULT_MIN: usize = 4;

/// How long a thread looks for the next request before it sleeps, by default: one client gains a
/// third, and two lose nothing (docs/decisions/0016-own-fuse-transport.md).
pub const POLL_TIME_DEFAULT: Duration = Duration::from_micros(50);

/// Longest time a thread may look for the next request.
pub const POLL_TIME_MAX: Duration = Duration::from_millis(10);

/// A flag of mount(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountFlag {
    Dev,
    NoDev,
    Suid,
    NoSuid,
    Exec,
    NoExec,
    Atime,
    NoAtime,
    Sync,
    Async,
    DirSync,
}

impl MountFlag {
    /// Returns what mount(8) calls it.
    fn text(self) -> &'static str {
        match self {
            MountFlag::Dev => "dev",
            MountFlag::NoDev => "nodev",
            MountFlag::Suid => "suid",
            MountFlag::NoSuid => "nosuid",
            MountFlag::Exec => "exec",
            MountFlag::NoExec => "noexec",
            MountFlag::Atime => "atime",
            MountFlag::NoAtime => "noatime",
            MountFlag::Sync => "sync",
            MountFlag::Async => "async",
            MountFlag::DirSync => "dirsync",
        }
    }

    /// Returns the bit that it sets or clears.
    fn bit(self) -> (KernelFlags, bool) {
        match self {
            MountFlag::Dev => (KernelFlags::NODEV, false),
            MountFlag::NoDev => (KernelFlags::NODEV, true),
            MountFlag::Suid => (KernelFlags::NOSUID, false),
            MountFlag::NoSuid => (KernelFlags::NOSUID, true),
            MountFlag::Exec => (KernelFlags::NOEXEC, false),
            MountFlag::NoExec => (KernelFlags::NOEXEC, true),
            MountFlag::Atime => (KernelFlags::NOATIME, false),
            MountFlag::NoAtime => (KernelFlags::NOATIME, true),
            MountFlag::Sync => (KernelFlags::SYNCHRONOUS, true),
            MountFlag::Async => (KernelFlags::SYNCHRONOUS, false),
            MountFlag::DirSync => (KernelFlags::DIRSYNC, true),
        }
    }
}

/// By what the kernel's requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportChoice {
    /// By io_uring where that can be, else by /dev/fuse.
    Auto,
    /// By io_uring; where that cannot be by /dev/fuse, with a warning.
    Uring,
    /// By /dev/fuse.
    Dev,
}

/// Whether processors are kept from halting while a client works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuLatency {
    /// On a virtual machine of few processors, where waking a halted one takes longest.
    Auto,
    /// Wherever it may be asked for.
    On,
    /// Never.
    Off,
}

/// Of which files the kernel keeps nothing: each read(2) and write(2) comes here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Of those that are opened with `O_DIRECT`.
    #[default]
    Asked,
    /// Of those, too, whose extended attribute [`DIRECT_IO_MARK`] is `on` when they are opened.
    Marked,
    /// Of all.
    All,
}

/// The extended attribute that marks a file for direct I/O.
pub const DIRECT_IO_MARK: &[u8] = b"user.holdfast.direct_io";

/// How a directory is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What mount(8) shows as the source: the pool's path.
    pub fs_name: String,
    /// Refuse every change.
    pub is_read_only: bool,
    /// Whether the pool discards what is free; `None`: it is not said.
    pub discards: Option<bool>,
    /// Let all users in, not only the one who mounts. Others than root need `user_allow_other` in
    /// /etc/fuse.conf for it.
    pub allows_others: bool,
    /// Threads that answer requests: 1 to [`THREADS_MAX`].
    pub thread_count: usize,
    /// Let the kernel gather writes. Faster for small writes, but what was not fsynced is lost when
    /// the server is killed, where otherwise the server has it.
    pub has_writeback_cache: bool,
    /// How long a thread looks for the next request before it sleeps; zero: it sleeps at once. At
    /// most [`POLL_TIME_MAX`].
    pub poll_time: Duration,
    /// Have no extended attributes: none is told or taken, access lists and capabilities of files
    /// count for nothing, and the kernel does not ask for them before each first write.
    pub has_no_xattrs: bool,
    /// By what the kernel's requests come.
    pub transport: TransportChoice,
    /// Whether processors are kept from halting while a client works.
    pub cpu_latency: CpuLatency,
    /// Whether others may change the files too, by other mounts or over a network.
    pub is_shared: bool,
    /// Of which files the kernel keeps nothing.
    pub direct_io: DirectIo,
    /// As whom each request is done and checked here, whoever asked the kernel: user, group and
    /// other groups; `None`: as whoever the kernel says, who has checked it.
    pub acts_as: Option<(u32, u32, Vec<u32>)>,
    /// Flags of mount(8): `noexec`, `nodev` and so on.
    flags: Vec<MountFlag>,
}

/// An option of `-o` that is not known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown mount option `{option}`: known are ro, rw, allow_other, dev, nodev, suid, nosuid, \
     exec, noexec, atime, noatime, sync, dirsync, noxattr, shared, direct_io, \
     direct_io=marked, discard, nodiscard"
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
            discards: None,
            allows_others: is_root,
            thread_count: (2 * cpu_count).clamp(THREADS_DEFAULT_MIN, THREADS_MAX),
            has_writeback_cache: false,
            poll_time: POLL_TIME_DEFAULT,
            has_no_xattrs: false,
            transport: TransportChoice::Dev,
            cpu_latency: CpuLatency::Auto,
            is_shared: false,
            direct_io: DirectIo::Asked,
            acts_as: None,
            flags: if is_root { vec![MountFlag::Dev, MountFlag::Suid] } else { Vec::new() },
        }
    }

    /// Applies options as mount(8) writes them: `ro,noexec`. The last of two that contradict wins.
    pub fn apply(&mut self, options: &str) -> Result<(), UnknownOption> {
        for option in options.split(',').filter(|o| !o.is_empty()) {
            match option {
                "ro" => self.is_read_only = true,
                "rw" => self.is_read_only = false,
                "allow_other" => self.allows_others = true,
                "discard" => self.discards = Some(true),
                "nodiscard" => self.discards = Some(false),
                "noxattr" => self.has_no_xattrs = true,
                "shared" => self.is_shared = true,
                "direct_io" => self.direct_io = DirectIo::All,
                "direct_io=marked" => self.direct_io = DirectIo::Marked,
                "dev" => self.set(MountFlag::Dev, MountFlag::NoDev),
                "nodev" => self.set(MountFlag::NoDev, MountFlag::Dev),
                "suid" => self.set(MountFlag::Suid, MountFlag::NoSuid),
                "nosuid" => self.set(MountFlag::NoSuid, MountFlag::Suid),
                "exec" => self.set(MountFlag::Exec, MountFlag::NoExec),
                "noexec" => self.set(MountFlag::NoExec, MountFlag::Exec),
                "atime" => self.set(MountFlag::Atime, MountFlag::NoAtime),
                "noatime" => self.set(MountFlag::NoAtime, MountFlag::Atime),
                "sync" => self.set(MountFlag::Sync, MountFlag::Async),
                "dirsync" => self.set(MountFlag::DirSync, MountFlag::DirSync),
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
        self.flags.contains(&MountFlag::NoAtime)
    }

    fn set(&mut self, wanted: MountFlag, opposite: MountFlag) {
        self.flags.retain(|flag| *flag != opposite && *flag != wanted);
        self.flags.push(wanted);
    }

    /// Returns what is mounted, as mount(8) shows it. Options are separated by commas, and a helper
    /// may split them.
    pub(super) fn source_name(&self) -> String {
        self.fs_name.replace([',', '\\', '\n', '\0'], "_")
    }

    /// Returns the flags of mount(2).
    pub(super) fn kernel_flags(&self) -> KernelFlags {
        let mut flags = FLAGS_DEFAULT;
        flags.set(KernelFlags::RDONLY, self.is_read_only);
        for flag in &self.flags {
            let (bit, is_set) = flag.bit();
            flags.set(bit, is_set);
        }
        flags
    }

    /// Returns the flags as the helper takes them.
    pub(super) fn flags_text(&self) -> String {
        let mut text = String::from(if self.is_read_only { "ro" } else { "rw" });
        for flag in &self.flags {
            text.push(',');
            text.push_str(flag.text());
        }
        text
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
        assert!(options.flags.contains(&MountFlag::Exec));
        assert!(!options.flags.contains(&MountFlag::NoExec));
        assert!(options.flags.contains(&MountFlag::NoDev));
        assert!(!options.flags.contains(&MountFlag::Dev));
    }

    #[test]
    fn discards_are_on_off_or_not_said() {
        let discards_of = |text: &str| {
            let mut options = MountOptions::new("pool.hf");
            options.apply(text).map(|()| options.discards)
        };
        assert_eq!(discards_of("ro"), Ok(None));
        assert_eq!(discards_of("nodiscard,discard"), Ok(Some(true)));
        assert_eq!(discards_of("discard,nodiscard"), Ok(Some(false)));
    }

    #[test]
    fn an_unknown_option_is_refused_by_name() {
        let refused = MountOptions::new("pool.hf").apply("ro,frobnicate");
        assert_eq!(refused, Err(UnknownOption { option: "frobnicate".to_owned() }));
    }

    #[test]
    fn a_comma_in_the_pool_path_cannot_become_an_option() {
        let options = MountOptions::new("/a,allow_other/pool.hf");
        assert_eq!(options.source_name(), "/a_allow_other/pool.hf");
    }

    #[test]
    fn flags_reach_the_kernel_and_the_helper() {
        let mut options = MountOptions::new("pool.hf");
        options.apply("ro,noexec,nodev,suid,noatime,dirsync").expect("all are known");
        let wanted = KernelFlags::RDONLY
            | KernelFlags::NOEXEC
            | KernelFlags::NODEV
            | KernelFlags::NOATIME
            | KernelFlags::DIRSYNC;
        assert_eq!(options.kernel_flags(), wanted);
        let text = options.flags_text();
        assert!(text.starts_with("ro,"), "{text}");
        assert!(text.ends_with("noexec,nodev,suid,noatime,dirsync"), "{text}");
    }
}
