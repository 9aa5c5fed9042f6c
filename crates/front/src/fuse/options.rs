//! Mount options.

use std::time::Duration;

use rustix::mount::MountFlags as KernelFlags;

use super::kernel::FLAGS_DEFAULT;

/// Most threads of one mount. Each has a descriptor and two buffers of up to 1 MiB.
pub const THREADS_MAX: usize = 64;

/// Fewest threads by default: some answer from memory while others wait for a device.
const THREADS_DEFAULT_MIN: usize = 4;

/// Default busy-polling time: one client gains a third, two lose nothing
/// (docs/decisions/0016-own-fuse-transport.md).
pub const POLL_TIME_DEFAULT: Duration = Duration::from_micros(50);

/// Longest busy-polling time.
pub const POLL_TIME_MAX: Duration = Duration::from_millis(10);

/// A flag of mount(8): its word, the bit it sets or clears, and whether `fusermount3` supports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MountFlag {
    word: &'static str,
    bit: KernelFlags,
    is_set: bool,
    has_helper: bool,
}

const fn flag(word: &'static str, bit: KernelFlags, is_set: bool) -> MountFlag {
    MountFlag { word, bit, is_set, has_helper: true }
}

const fn kernel_flag(word: &'static str, bit: KernelFlags, is_set: bool) -> MountFlag {
    MountFlag { word, bit, is_set, has_helper: false }
}

const DEV: MountFlag = flag("dev", KernelFlags::NODEV, false);
const SUID: MountFlag = flag("suid", KernelFlags::NOSUID, false);

const FLAGS: [MountFlag; 23] = [
    DEV,
    flag("nodev", KernelFlags::NODEV, true),
    SUID,
    flag("nosuid", KernelFlags::NOSUID, true),
    flag("exec", KernelFlags::NOEXEC, false),
    flag("noexec", KernelFlags::NOEXEC, true),
    flag("atime", KernelFlags::NOATIME, false),
    flag("noatime", KernelFlags::NOATIME, true),
    flag("sync", KernelFlags::SYNCHRONOUS, true),
    flag("async", KernelFlags::SYNCHRONOUS, false),
    flag("dirsync", KernelFlags::DIRSYNC, true),
    kernel_flag("diratime", KernelFlags::NODIRATIME, false),
    kernel_flag("nodiratime", KernelFlags::NODIRATIME, true),
    kernel_flag("relatime", KernelFlags::RELATIME, true),
    kernel_flag("norelatime", KernelFlags::RELATIME, false),
    kernel_flag("strictatime", KernelFlags::STRICTATIME, true),
    kernel_flag("nostrictatime", KernelFlags::STRICTATIME, false),
    kernel_flag("lazytime", KernelFlags::LAZYTIME, true),
    kernel_flag("nolazytime", KernelFlags::LAZYTIME, false),
    kernel_flag("nosymfollow", KernelFlags::NOSYMFOLLOW, true),
    kernel_flag("symfollow", KernelFlags::NOSYMFOLLOW, false),
    kernel_flag("silent", KernelFlags::SILENT, true),
    kernel_flag("loud", KernelFlags::SILENT, false),
];

/// Words of mount(8), systemd and /proc/mounts without effect here.
const WITHOUT_EFFECT: [&str; 15] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "noowner",
    "nogroup",
    "nousers",
    "iversion",
    "noiversion",
    "nomand",
    "default_permissions",
    "seclabel",
    "norecovery",
];

/// Prefixes of further options without effect, most with a value.
const PREFIXES_WITHOUT_EFFECT: [&str; 11] = [
    "x-",
    "X-",
    "comment=",
    "uhelper=",
    "helper=",
    "user_id=",
    "group_id=",
    "rootmode=",
    "max_read=",
    "subtype=",
    "fsname=",
];

/// Words that let users mount, and the options they imply. A later option overrides these, as in
/// mount(8).
const MOUNTED_BY_USERS: [(&str, &str); 4] = [
    ("user", "noexec,nosuid,nodev"),
    ("users", "noexec,nosuid,nodev"),
    ("owner", "nosuid,nodev"),
    ("group", "nosuid,nodev"),
];

/// SELinux options, ignored on kernels without SELinux, as in mount(8).
const CONTEXTS: [&str; 4] = ["context=", "fscontext=", "defcontext=", "rootcontext="];
const SELINUX: &str = "/sys/fs/selinux/enforce";

/// Choice of transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseTransportChoice {
    /// io_uring where possible, else /dev/fuse.
    Auto,
    /// io_uring. Falls back to /dev/fuse with a warning.
    Uring,
    /// /dev/fuse.
    Dev,
}

/// Whether CPUs are kept from halting while a client works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuLatency {
    /// On virtual machines with few CPUs, where wake-ups are slowest.
    Auto,
    /// Wherever supported.
    On,
    /// Never.
    Off,
}

/// Files that use direct I/O, bypassing the kernel's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Files opened with `O_DIRECT`.
    #[default]
    Asked,
    /// Also files with the extended attribute [`DIRECT_IO_MARK`] set to `on` at open.
    Marked,
    /// All files.
    All,
}

/// Extended attribute that marks a file for direct I/O.
pub const DIRECT_IO_MARK: &[u8] = b"user.holdfast.direct_io";

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Source shown by mount(8), the pool's path.
    pub fs_name: String,
    /// Read-only mount.
    pub is_read_only: bool,
    /// Whether the pool discards free space, or `None` for its default.
    pub discards: Option<bool>,
    /// Access for other users too. Without root this needs `user_allow_other` in /etc/fuse.conf.
    pub allows_others: bool,
    /// Serving threads, 1 to [`THREADS_MAX`].
    pub thread_count: usize,
    /// Writeback cache of the kernel. Faster for small writes, but a killed server loses those
    /// without fsync.
    pub has_writeback_cache: bool,
    /// Busy-polling time, at most [`POLL_TIME_MAX`]. Zero disables polling.
    pub poll_time: Duration,
    /// No extended attributes, hence no ACLs and file capabilities, and no fetches before first
    /// writes.
    pub has_no_xattrs: bool,
    /// Choice of transport.
    pub transport: FuseTransportChoice,
    /// Whether CPUs are kept from halting while a client works.
    pub cpu_latency: CpuLatency,
    /// Whether other mounts or exports may change the files too.
    pub is_shared: bool,
    /// Files that use direct I/O.
    pub direct_io: DirectIo,
    /// Credentials (user, group, groups) for all requests, checked by the file system. `None` for
    /// the requesting user's, checked by the kernel.
    pub acts_as: Option<(u32, u32, Vec<u32>)>,
    /// Inode numbers have at most 32 bits, directory cookies 31. A file with a larger number is
    /// refused.
    pub has_small_numbers: bool,
    /// Change an existing mount.
    pub is_remount: bool,
    flags: Vec<MountFlag>,
    contexts: Vec<String>,
}

/// An unknown or unsupported `-o` option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mount option `{option}`: {cause}")]
pub struct UnknownOption {
    /// The option as given.
    pub option: String,
    cause: &'static str,
}

impl UnknownOption {
    fn new(option: &str) -> UnknownOption {
        let cause = match option {
            "mand" => "FUSE has no mandatory locks: leave it out",
            "bind" | "rbind" | "move" => "mount(8) does that itself: `mount --bind DIR OTHER`",
            _ => {
                "unknown: known are ro, rw, remount, allow_other, noxattr, inode32, share, \
                 direct_io, direct_io=marked, discard, nodiscard, and the flags of mount(8)"
            }
        };
        UnknownOption { option: option.to_owned(), cause }
    }
}

impl MountOptions {
    /// Returns the defaults for source `fs_name`. For root they admit other users, device nodes and
    /// setuid bits, as in mount(8).
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
            transport: FuseTransportChoice::Dev,
            cpu_latency: CpuLatency::Auto,
            is_shared: false,
            direct_io: DirectIo::Asked,
            acts_as: None,
            has_small_numbers: false,
            is_remount: false,
            flags: if is_root { vec![DEV, SUID] } else { Vec::new() },
            contexts: Vec::new(),
        }
    }

    /// Applies options in the form of mount(8): `ro,noexec`. Of contradicting options the last
    /// wins.
    pub fn apply(&mut self, options: &str) -> Result<(), UnknownOption> {
        for option in split(options) {
            match option {
                "ro" => self.is_read_only = true,
                "rw" => self.is_read_only = false,
                "remount" => self.is_remount = true,
                "allow_other" => self.allows_others = true,
                "discard" => self.discards = Some(true),
                "nodiscard" => self.discards = Some(false),
                "noxattr" => self.has_no_xattrs = true,
                "inode32" => self.has_small_numbers = true,
                // mount(8) consumes `shared` itself.
                "share" | "shared" => self.is_shared = true,
                "direct_io" => self.direct_io = DirectIo::All,
                "direct_io=marked" => self.direct_io = DirectIo::Marked,
                other => self.apply_generic(other)?,
            }
        }
        Ok(())
    }

    fn apply_generic(&mut self, option: &str) -> Result<(), UnknownOption> {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|it| option.starts_with(it));
        let word = if option.starts_with("user=") { "user" } else { option };
        if let Some((_, implied)) = MOUNTED_BY_USERS.iter().find(|(it, _)| *it == word) {
            return self.apply(implied);
        }
        if let Some(flag) = FLAGS.iter().find(|flag| flag.word == option) {
            self.flags.retain(|it| it.bit != flag.bit);
            self.flags.push(*flag);
        } else if begins(&CONTEXTS) {
            self.contexts.push(option.to_owned());
        } else if !WITHOUT_EFFECT.contains(&option) && !begins(&PREFIXES_WITHOUT_EFFECT) {
            return Err(UnknownOption::new(option));
        }
        Ok(())
    }

    /// Returns whether access times are never updated.
    #[must_use]
    pub fn has_no_atime(&self) -> bool {
        self.has(KernelFlags::NOATIME)
    }

    /// Returns whether access times of directories are never updated.
    #[must_use]
    pub fn has_no_diratime(&self) -> bool {
        self.has(KernelFlags::NODIRATIME)
    }

    fn has(&self, bit: KernelFlags) -> bool {
        self.flags.iter().any(|flag| flag.bit == bit && flag.is_set)
    }

    /// Returns an option of `options` that differs from this mount's and that a remount cannot
    /// change.
    #[must_use]
    pub fn fixed_option_in(&self, options: &MountOptions) -> Option<&'static str> {
        let changed = [
            ("share", options.is_shared && !self.is_shared),
            (
                "direct_io",
                options.direct_io != DirectIo::Asked && options.direct_io != self.direct_io,
            ),
            ("noxattr", options.has_no_xattrs && !self.has_no_xattrs),
            ("inode32", options.has_small_numbers && !self.has_small_numbers),
            ("allow_other", options.allows_others && !self.allows_others),
            ("discard", options.discards.is_some() && options.discards != self.discards),
        ];
        changed.into_iter().find(|(_, is_changed)| *is_changed).map(|(word, _)| word)
    }

    /// Returns an option that restricts the mount and that `fusermount3` does not support.
    pub(super) fn option_of_root(&self) -> Option<&'static str> {
        self.has(KernelFlags::NOSYMFOLLOW).then_some("nosymfollow")
    }

    pub(super) fn contexts(&self) -> &[String] {
        if std::path::Path::new(SELINUX).exists() { &self.contexts } else { &[] }
    }

    /// Returns the source, escaped for the helper: in its options, a backslash escapes commas and
    /// backslashes.
    pub(super) fn source_name(&self) -> String {
        let plain = self.fs_name.replace(['\n', '\0'], "_");
        plain.replace('\\', "\\\\").replace(',', "\\,")
    }

    pub(super) fn kernel_flags(&self) -> KernelFlags {
        let mut flags = FLAGS_DEFAULT;
        flags.set(KernelFlags::RDONLY, self.is_read_only);
        for flag in &self.flags {
            flags.set(flag.bit, flag.is_set);
        }
        flags
    }

    pub(super) fn flags_text(&self) -> String {
        let mut text = String::from(if self.is_read_only { "ro" } else { "rw" });
        for flag in self.flags.iter().filter(|flag| flag.has_helper) {
            text.push(',');
            text.push_str(flag.word);
        }
        text
    }
}

/// Splits options at commas outside quotes, as in SELinux contexts.
fn split(options: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let parts = options.split(move |c: char| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    parts.filter(|option| !option.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_two_contradicting_options_wins() {
        let mut options = MountOptions::new("pool.hf");
        options.apply("ro,noexec,exec,nodev").expect("all are known");
        assert!(options.is_read_only);
        let flags = options.kernel_flags();
        assert!(!flags.contains(KernelFlags::NOEXEC));
        assert!(flags.contains(KernelFlags::NODEV));
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
        let apply = |options| MountOptions::new("pool.hf").apply(options);
        for (options, option, words) in [
            ("ro,frobnicate", "frobnicate", "unknown"),
            ("mand", "mand", "no mandatory locks"),
            ("uid=0", "uid=0", "unknown"),
            ("rw,bind", "bind", "mount --bind"),
        ] {
            let refused = apply(options).expect_err(options);
            assert_eq!(refused.option, option);
            assert!(refused.to_string().contains(words), "{refused}");
        }
    }

    /// Goal: the words of mount(8), systemd and /proc/mounts are accepted.
    #[test]
    fn the_words_of_mount_are_taken() {
        let line = "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,\
                    max_read=1048576";
        let more = "defaults,auto,noauto,nofail,_netdev,user,users,user=1000,owner,group,nouser,\
                    x-systemd.automount,X-mount.mkdir,comment=a b,iversion,silent,share";
        let mut options = MountOptions::new("pool.hf");
        for words in [line, more, "context=\"system_u:object_r:x:s0:c1,c2\",nosymfollow"] {
            options.apply(words).expect(words);
        }
        assert!(options.is_shared && !options.is_read_only && !options.is_remount);
        assert_eq!(options.contexts, ["context=\"system_u:object_r:x:s0:c1,c2\""]);
        let set = KernelFlags::NOSYMFOLLOW | KernelFlags::RELATIME;
        assert!(options.kernel_flags().contains(set));
        for (word, bit) in [
            ("nodiratime", KernelFlags::NODIRATIME),
            ("strictatime", KernelFlags::STRICTATIME),
            ("lazytime", KernelFlags::LAZYTIME),
        ] {
            options.apply(word).expect(word);
            assert!(options.kernel_flags().contains(bit), "{word}");
        }
        options.apply("remount,nolazytime,diratime").expect("they are known");
        assert!(options.is_remount);
        let cleared = KernelFlags::LAZYTIME | KernelFlags::NODIRATIME;
        assert!(!options.kernel_flags().intersects(cleared));
        assert!(!options.flags_text().contains("relatime"), "the helper has no such word");
    }

    #[test]
    fn a_comma_in_the_pool_path_cannot_become_an_option() {
        for (path, given) in [
            ("/a,allow_other/pool.hf", "/a\\,allow_other/pool.hf"),
            ("/a\\,allow_other/pool.hf", "/a\\\\\\,allow_other/pool.hf"),
            ("/a\\", "/a\\\\"),
        ] {
            assert_eq!(MountOptions::new(path).source_name(), given);
        }
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
