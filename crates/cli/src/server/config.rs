//! `holdfast.toml`: what a server serves.
//!
//! People write it, the program reads it (decision 0071). An error says the file, the line and the
//! column. A key that is not known is an error: it would be a setting that does not count.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use format::fileset::{FilesetName, NamePart};
use front::fuse::MountOptions;
use serde::Deserialize;
use toml::Spanned;

use super::http::HttpOptions;
use super::notices::KINDS;
use super::receivers::{Address, Receiver, SENDMAIL, Way};
use super::schedule::{ConfiguredSchedule, Counts};
use super::scrubs::ScrubEvery;
use super::state::danger_of;
use crate::control::{ExportSpec, is_of_many};
use crate::roles::{Grant, Mountable};
use crate::size::ByteSize;

/// Most receivers of notices: each has a thread.
const RECEIVERS_MAX: usize = 16;
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// Which pools, each with its own settings.
    pub(crate) pools: Vec<PoolConfig>,
    /// Where NFS listens.
    pub(crate) nfs: Option<SocketAddr>,
    /// Where a portmapper listens.
    pub(crate) portmap: Option<SocketAddr>,
    /// Where what outlives the server is kept.
    pub(crate) state: Option<PathBuf>,
    /// Threads that answer NFS.
    pub(crate) threads: Option<usize>,
    /// How HTTP is served.
    pub(crate) http: HttpOptions,
    /// Commands that are told what happens.
    pub(crate) notify: Vec<Receiver>,
    /// What `holdfast mount --all` mounts.
    pub(crate) mounts: Vec<MountConfig>,
    /// Who else than administrators may ask for something: of one pool, or of all.
    pub(crate) grants: Vec<(Option<usize>, Grant)>,
    /// What is exported: the number of the pool among [`Config::pools`], and how.
    pub(crate) exports: Vec<(usize, ExportSpec)>,
    /// Of which filesets clones are taken by schedule.
    pub(crate) schedules: Vec<ConfiguredSchedule>,
    /// How often pools are scrubbed, by number; others: as a command has said, or by default.
    pub(crate) scrubs: BTreeMap<usize, ScrubEvery>,
}

/// What the file says of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolConfig {
    /// Its path; `POOL:a/b` as on the command line.
    pub(crate) path: PathBuf,
    /// Memory for its pages.
    pub(crate) cache: Option<ByteSize>,
}

/// A mount that the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountConfig {
    /// The pool's path.
    pub(crate) pool: PathBuf,
    /// The fileset, or a clone of it; `None`: the first.
    pub(crate) fileset: Option<String>,
    /// Where.
    pub(crate) directory: PathBuf,
    /// Options as mount(8) has them.
    pub(crate) options: Option<String>,
}

impl MountConfig {
    /// Returns what is mounted, as a command names it.
    pub(crate) fn name(&self) -> OsString {
        let mut name = self.pool.clone().into_os_string();
        if let Some(fileset) = &self.fileset {
            name.push(":");
            name.push(fileset);
        }
        name
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nfs: Option<Spanned<String>>,
    portmap: Option<Spanned<String>>,
    state: Option<PathBuf>,
    threads: Option<usize>,
    http: Option<Http>,
    #[serde(default, rename = "pool")]
    pools: Vec<Spanned<Pool>>,
    #[serde(default, rename = "export")]
    exports: Vec<Spanned<ExportSpec>>,
    #[serde(default, rename = "schedule")]
    schedules: Vec<Spanned<Schedule>>,
    #[serde(default, rename = "mount")]
    mounts: Vec<Spanned<Mount>>,
    #[serde(default)]
    notify: Vec<Spanned<Notify>>,
    #[serde(default, rename = "mounter")]
    mounters: Vec<Spanned<Mounter>>,
    #[serde(default, rename = "reader")]
    readers: Vec<Spanned<Reader>>,
}

/// Of a fileset: what is kept; of a pool: how often it is scrubbed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Schedule {
    pool: Option<PathBuf>,
    fileset: Option<String>,
    keep: Option<Spanned<String>>,
    scrub: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mounter {
    uids: Vec<u32>,
    pool: Option<PathBuf>,
    filesets: Vec<String>,
    directories: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reader {
    uids: Vec<u32>,
    pool: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Http {
    listen: Spanned<String>,
    #[serde(default)]
    hosts: Vec<String>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Notify {
    /// Program and arguments: there is no shell.
    command: Option<Vec<String>>,
    /// Gets a POST of JSON.
    webhook: Option<String>,
    /// Who gets a mail.
    mail: Option<Vec<String>>,
    /// Who sends it.
    sendmail: Option<String>,
    /// Of what; none: of everything.
    #[serde(default)]
    events: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mount {
    pool: PathBuf,
    fileset: Option<String>,
    directory: PathBuf,
    options: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pool {
    path: PathBuf,
    cache: Option<Spanned<String>>,
}

/// A place in a file and what is wrong there.
struct Wrong {
    at: Range<usize>,
    cause: String,
}

impl Config {
    /// Says who else than root could change what the server exports and runs; `None`: nobody.
    pub(crate) fn danger(path: &Path) -> Option<String> {
        let danger = danger_of(&std::fs::metadata(path).ok()?)?;
        Some(format!("{} says what is exported and run: {danger}", path.display()))
    }

    /// Returns what the file at `path` says. Relative paths in it are from its directory.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Config> {
        let shown = path.display();
        let context = || format!("{shown}: check the path of the configuration");
        let length = std::fs::metadata(path).with_context(context)?.len();
        anyhow::ensure!(
            length <= FILE_BYTES_MAX,
            "{shown}: it has more than {FILE_BYTES_MAX} bytes"
        );
        let text = std::fs::read_to_string(path).with_context(context)?;
        let base = std::path::absolute(path)?;
        let base = base.parent().unwrap_or(Path::new("/"));
        Config::parse(&text, base).map_err(|wrong| {
            let (line, column) = place_of(&text, wrong.at.start);
            anyhow::anyhow!("{shown}:{line}:{column}: {}", wrong.cause)
        })
    }

    fn parse(text: &str, base: &Path) -> Result<Config, Wrong> {
        let file: File = toml::from_str(text).map_err(|error| Wrong {
            at: error.span().unwrap_or(0..0),
            cause: error.message().trim().replace('\n', ", "),
        })?;
        let pools = file.pools.iter().map(|pool| pool_of(pool, base)).collect::<Result<_, _>>()?;
        let mut config = Config {
            pools,
            nfs: file.nfs.as_ref().map(address_of).transpose()?,
            portmap: file.portmap.as_ref().map(address_of).transpose()?,
            state: file.state.map(|state| base.join(state)),
            threads: file.threads,
            http: HttpOptions::default(),
            notify: Vec::new(),
            mounts: Vec::new(),
            grants: Vec::new(),
            exports: Vec::new(),
            schedules: Vec::new(),
            scrubs: BTreeMap::new(),
        };
        for mount in &file.mounts {
            let mount = mount_of(mount, base, &config.mounts)?;
            config.mounts.push(mount);
        }
        for notify in file.notify {
            let at = notify.span();
            let receiver = receiver_of(notify.into_inner());
            config.notify.push(receiver.map_err(|cause| Wrong { at, cause })?);
        }
        if config.notify.len() > RECEIVERS_MAX {
            let cause = format!("at most {RECEIVERS_MAX} [[notify]]");
            return Err(Wrong { at: 0..0, cause });
        }
        if let Some(http) = file.http {
            config.http = http_of(http, base)?;
        }
        for spec in &file.exports {
            let export = config.export_of(spec, base)?;
            let name = &export.1.name;
            if config.exports.iter().any(|(_, other)| other.name == *name) {
                let cause = format!("{name} is exported twice");
                return Err(Wrong { at: spec.span(), cause });
            }
            config.exports.push(export);
        }
        for mounter in file.mounters {
            let at = mounter.span();
            let granted = config.mounter_of(mounter.into_inner(), base);
            config.grants.push(granted.map_err(|cause| Wrong { at, cause })?);
        }
        for reader in file.readers {
            let at = reader.span();
            let granted = config.reader_of(reader.into_inner(), base);
            config.grants.push(granted.map_err(|cause| Wrong { at, cause })?);
        }
        for schedule in file.schedules {
            config.add_schedule(schedule, base)?;
        }
        Ok(config)
    }

    fn add_schedule(&mut self, schedule: Spanned<Schedule>, base: &Path) -> Result<(), Wrong> {
        let at = schedule.span();
        let wrong = |cause: String| Wrong { at: at.clone(), cause };
        let Schedule { pool, fileset, keep, scrub } = schedule.into_inner();
        let pool = self.pool_at(pool.as_deref(), base).map_err(wrong)?;
        match (fileset, keep, scrub) {
            (Some(fileset), Some(keep), None) => {
                if fileset.parse::<FilesetName>().is_err() {
                    return Err(wrong(format!("{fileset}: name a fileset as a/b")));
                }
                if self.schedules.iter().any(|it| (it.pool, &it.fileset) == (pool, &fileset)) {
                    return Err(wrong(format!("{fileset} has two schedules")));
                }
                let counts = Counts::parse(keep.get_ref());
                let keep = counts.map_err(|cause| Wrong { at: keep.span(), cause })?;
                self.schedules.push(ConfiguredSchedule { pool, fileset, keep });
            }
            (None, None, Some(scrub)) => {
                let every = ScrubEvery::parse(scrub.get_ref());
                let every = every.map_err(|cause| Wrong { at: scrub.span(), cause })?;
                if self.scrubs.insert(pool, every).is_some() {
                    return Err(wrong("the pool has two schedules of scrubs".to_owned()));
                }
            }
            _ => {
                let cause = "a schedule is fileset = \"a\", keep = \"hourly=24,daily=7\", or scrub \
                             = \"monthly\"";
                return Err(wrong(cause.to_owned()));
            }
        }
        Ok(())
    }

    /// Returns what others than administrators are given of a pool.
    pub(crate) fn grants_of(&self, index: usize) -> Vec<Grant> {
        let of_pool = |(pool, _): &&(Option<usize>, Grant)| pool.is_none_or(|pool| pool == index);
        self.grants.iter().filter(of_pool).map(|(_, grant)| grant.clone()).collect()
    }

    fn mounter_of(&self, mounter: Mounter, base: &Path) -> Result<(Option<usize>, Grant), String> {
        let Mounter { uids, pool, filesets, directories } = mounter;
        check_uids(&uids)?;
        let pool = self.pool_at(pool.as_deref(), base)?;
        if filesets.is_empty() || directories.is_empty() {
            return Err("say which filesets he mounts, and below which directories".to_owned());
        }
        if let Some(name) = filesets.iter().find(|name| name.parse::<FilesetName>().is_err()) {
            return Err(format!("{name}: name a fileset as a/b"));
        }
        let is_plain = |path: &&PathBuf| {
            let mut parts = path.components();
            path.is_absolute() && !parts.any(|part| part == Component::ParentDir)
        };
        if let Some(path) = directories.iter().find(|path| !is_plain(path)) {
            return Err(format!("{}: write a directory from /, without ..", path.display()));
        }
        let mounts = Some(Mountable { filesets, directories });
        Ok((Some(pool), Grant { uids, mounts }))
    }

    fn reader_of(&self, reader: Reader, base: &Path) -> Result<(Option<usize>, Grant), String> {
        check_uids(&reader.uids)?;
        let pool = reader.pool.map(|pool| self.pool_at(Some(&pool), base)).transpose()?;
        Ok((pool, Grant { uids: reader.uids, mounts: None }))
    }

    /// Returns the number of the pool at `pool`, or of the only one.
    fn pool_at(&self, pool: Option<&Path>, base: &Path) -> Result<usize, String> {
        match pool {
            Some(pool) => {
                let path = base.join(pool);
                let index = self.pools.iter().position(|it| it.path == path);
                index.ok_or_else(|| format!("{}: no [[pool]] has that path", pool.display()))
            }
            None if self.pools.len() < 2 => Ok(0),
            None => Err("say of which pool: pool = \"PATH\"".to_owned()),
        }
    }

    fn export_of(
        &self,
        spec: &Spanned<ExportSpec>,
        base: &Path,
    ) -> Result<(usize, ExportSpec), Wrong> {
        let wrong = |cause: String| Wrong { at: spec.span(), cause };
        let export = spec.get_ref();
        let rules = export.rules().map_err(wrong)?;
        let index =
            self.pool_at(export.pool.as_deref(), base).map_err(|cause| match export.pool {
                Some(_) => wrong(cause),
                None => wrong(format!("{}: {cause}", rules.name)),
            })?;
        Ok((index, ExportSpec { name: rules.name, pool: None, ..export.clone() }))
    }

    /// Returns what differs from `other` beside exports: what a running server cannot change.
    pub(crate) fn fixed_difference(&self, other: &Config) -> Option<&'static str> {
        let differs = [
            ("pool", self.pools != other.pools),
            ("nfs", self.nfs != other.nfs),
            ("portmap", self.portmap != other.portmap),
            ("state", self.state != other.state),
            ("threads", self.threads != other.threads),
            ("http", self.http != other.http),
        ];
        differs.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what)
    }
}

/// Refuses a role of nobody, and of root, who may do all.
fn check_uids(uids: &[u32]) -> Result<(), String> {
    match uids {
        [] => Err("say who: uids = [1000]".to_owned()),
        uids if uids.contains(&0) => Err("user 0 may do all: leave it out".to_owned()),
        uids => match uids.iter().find(|&&uid| is_of_many(uid)) {
            Some(uid) => Err(format!(
                "user {uid} is whoever has no number in this system or container: name users who \
                 have one"
            )),
            None => Ok(()),
        },
    }
}

/// Returns who is told, or what is wrong about that.
fn receiver_of(notify: Notify) -> Result<Receiver, String> {
    let Notify { command, webhook, mail, sendmail, events } = notify;
    if sendmail.is_some() && mail.is_none() {
        return Err("sendmail goes with mail".to_owned());
    }
    let way = match (command, webhook, mail) {
        (Some(command), None, None) if command.is_empty() => {
            return Err("a command has a program: command = [\"/usr/bin/...\"]".to_owned());
        }
        (Some(command), None, None) => Way::Command(command),
        (None, Some(webhook), None) => Way::Webhook(Address::parse(&webhook)?),
        (None, None, Some(to)) => {
            let is_wrong = |it: &String| {
                it.is_empty() || it.starts_with('-') || it.chars().any(char::is_control)
            };
            if to.is_empty() || to.iter().any(is_wrong) {
                return Err("a mail has somebody to go to: mail = [\"ops@example.org\"]".to_owned());
            }
            Way::Mail { to, sendmail: sendmail.unwrap_or_else(|| SENDMAIL.to_owned()) }
        }
        _ => return Err("one of command, webhook and mail says who is told".to_owned()),
    };
    if let Some(event) = events.iter().find(|event| !KINDS.contains(&event.as_str())) {
        let all = KINDS.join(", ");
        return Err(format!("{event}: no such event: there are {all}"));
    }
    Ok(Receiver { way, events })
}

fn address_of(text: &Spanned<String>) -> Result<SocketAddr, Wrong> {
    text.get_ref().parse().map_err(|_| Wrong {
        at: text.span(),
        cause: format!("{}: no address: write it as \"127.0.0.1:2049\"", text.get_ref()),
    })
}

fn http_of(http: Http, base: &Path) -> Result<HttpOptions, Wrong> {
    let at = http.listen.span();
    let tls = match (http.tls_cert, http.tls_key) {
        (Some(chain), Some(key)) => Some((base.join(chain), base.join(key))),
        (None, None) => None,
        _ => {
            let cause = "tls_cert and tls_key go together".to_owned();
            return Err(Wrong { at, cause });
        }
    };
    let options = HttpOptions {
        address: Some(address_of(&http.listen)?),
        hosts: http.hosts,
        tls,
        is_insecure: http.insecure,
    };
    options.check().map_err(|cause| Wrong { at, cause })?;
    Ok(options)
}

fn pool_of(pool: &Spanned<Pool>, base: &Path) -> Result<PoolConfig, Wrong> {
    let size = |text: &Spanned<String>| {
        let wrong = |cause: String| Wrong { at: text.span(), cause };
        text.get_ref().parse::<ByteSize>().map_err(|error| wrong(error.to_string()))
    };
    let cache = pool.get_ref().cache.as_ref().map(size).transpose()?;
    Ok(PoolConfig { path: base.join(&pool.get_ref().path), cache })
}

fn mount_of(
    mount: &Spanned<Mount>,
    base: &Path,
    before: &[MountConfig],
) -> Result<MountConfig, Wrong> {
    let wrong = |cause: String| Err(Wrong { at: mount.span(), cause });
    let Mount { pool, fileset, directory, options } = mount.get_ref();
    let (pool, directory) = (base.join(pool), base.join(directory));
    let shown = directory.display();
    if before.iter().any(|other| other.directory == directory) {
        return wrong(format!("{shown} is mounted twice"));
    }
    if before.iter().any(|other| (&other.pool, &other.fileset) == (&pool, fileset)) {
        return wrong(format!("{shown}: a fileset has one mount, and this one has one above"));
    }
    if let Some(fileset) = fileset {
        let (name, clone) = fileset.split_once('@').unwrap_or((fileset, "a"));
        if name.parse::<FilesetName>().is_err() || NamePart::new(clone).is_err() {
            return wrong(format!("{fileset}: name a fileset as a/b, a clone as a/b@monday"));
        }
    }
    if let Some(options) = options {
        let known = MountOptions::new("").apply(options);
        known.map_err(|error| Wrong { at: mount.span(), cause: error.to_string() })?;
    }
    let (fileset, options) = (fileset.clone(), options.clone());
    Ok(MountConfig { pool, fileset, directory, options })
}

/// Returns line and column of a byte, counted from 1.
fn place_of(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("/etc")).map_err(|wrong| {
            let (line, column) = place_of(text, wrong.at.start);
            format!("{line}:{column}: {}", wrong.cause)
        })
    }

    const WHOLE: &str = r#"
nfs = "0.0.0.0:2049"
state = "state"
[http]
listen = "127.0.0.1:8080"
[[pool]]
path = "/srv/a.hf"
cache = "1G"
[[pool]]
path = "b.hf"
[[export]]
pool = "/srv/a.hf"
name = "/home/"
fileset = "home"
to = ["10.0.0.0/8"]
rw = true
squash = "all"
anon = [7, 8]
async = true
[[export]]
pool = "b.hf"
name = "/b"
[[notify]]
command = ["/usr/bin/logger", "-t"]
events = ["space", "member"]
[[notify]]
webhook = "http://[::1]:9/hook"
[[notify]]
mail = ["ops@example.org"]
[[mount]]
pool = "b.hf"
fileset = "a/b"
directory = "/mnt/b"
options = "ro,noexec"
[[mounter]]
uids = [1000]
pool = "b.hf"
filesets = ["home/anna"]
directories = ["/home/anna/files"]
[[reader]]
uids = [33, 1001]
[[schedule]]
pool = "b.hf"
fileset = "home"
keep = "hourly=24,daily=7"
[[schedule]]
pool = "b.hf"
scrub = "weekly"
"#;

    #[test]
    fn a_whole_file_is_understood() {
        let config = parse(WHOLE).expect("it is one");
        assert_eq!(config.nfs, Some("0.0.0.0:2049".parse().expect("it is one")));
        assert_eq!(config.state, Some("/etc/state".into()));
        assert_eq!(config.pools[0].cache, Some(ByteSize(1 << 30)));
        assert_eq!(config.pools[1].path, Path::new("/etc/b.hf"));
        let (pool, home) = &config.exports[0];
        assert_eq!((*pool, home.name.as_str(), home.anon), (0, "/home", Some((7, 8))));
        assert!(home.rw && home.is_async && !home.insecure);
        assert_eq!((config.exports[1].0, config.exports[1].1.name.as_str()), (1, "/b"));
        let command = ["/usr/bin/logger", "-t"].map(str::to_owned).to_vec();
        let events = vec!["space".to_owned(), "member".to_owned()];
        assert_eq!(config.notify[0], Receiver { way: Way::Command(command), events });
        let webhook = Address::parse("http://[::1]:9/hook").expect("it is one");
        assert_eq!(config.notify[1].way, Way::Webhook(webhook));
        let to = vec!["ops@example.org".to_owned()];
        assert_eq!(config.notify[2].way, Way::Mail { to, sendmail: SENDMAIL.to_owned() });
        assert_eq!(config.mounts[0].name(), "/etc/b.hf:a/b");
        let keep = Counts { hourly: 24, daily: 7, ..Counts::default() };
        let home = ConfiguredSchedule { pool: 1, fileset: "home".to_owned(), keep };
        assert_eq!(config.schedules, [home]);
        assert_eq!(config.scrubs, BTreeMap::from([(1, ScrubEvery::Weekly)]));
        assert_eq!(config.fixed_difference(&config), None);
        let monthly = parse(&WHOLE.replace("weekly", "monthly")).expect("it is one");
        assert_eq!(config.fixed_difference(&monthly), None, "it is read again");
        let other = parse(&WHOLE.replace("2049", "2050")).expect("it is one");
        assert_eq!(config.fixed_difference(&other), Some("nfs"));
        assert_eq!(parse(""), Ok(Config::default()));
    }

    /// Goal: whoever errs is told where and what.
    #[test]
    fn mistakes_are_told_with_line_and_column() {
        for (was, is, told) in [
            ("nfs = ", "nfs == ", "2:6: "),
            ("nfs = \"0.0.0.0:2049\"", "nfs = \"anywhere\"", "2:7: anywhere: no address"),
            ("nfs = ", "nsf = ", "2:1: unknown field `nsf`"),
            ("cache = \"1G\"", "cache = \"much\"", "8:9: "),
            ("rw = true", "rw = \"yes\"", "16:6: invalid type"),
            ("squash = \"all\"", "squash = \"some\"", "17:10: unknown variant"),
            ("to = [\"10.0.0.0/8\"]", "to = [\"10/8\"]", "11:1: /home/: to: 10/8: no network"),
            ("name = \"/b\"", "name = \"/home\"", "20:1: /home is exported twice"),
            ("pool = \"b.hf\"", "", "20:1: /b: say of which pool"),
            ("pool = \"b.hf\"", "pool = \"c.hf\"", "20:1: c.hf: no [[pool]]"),
            ("127.0.0.1:8080", "0.0.0.0:8080", "5:10: 0.0.0.0:8080 is reached from other"),
            ("command = [\"/usr/bin/logger\", \"-t\"]", "command = []", "23:1: a command has"),
            ("command = ", "program = ", "24:1: unknown field `program`"),
            (
                "webhook = ",
                "mail = [\"a@b\"]\nwebhook = ",
                "26:1: one of command, webhook and mail",
            ),
            ("http://[::1]:9/hook", "ftp://a/", "26:1: ftp://a/: no address of HTTP"),
            ("http://[::1]:9/hook", "http://a:b/", "26:1: http://a:b/: it has no such port"),
            ("\"ops@example.org\"", "", "28:1: a mail has somebody to go to"),
            ("\"member\"", "\"weather\"", "23:1: weather: no such event: there are trouble"),
            ("directory = ", "place = ", "33:1: unknown field `place`"),
            ("\"ro,noexec\"", "\"ro,fast\"", "30:1: mount option `fast`: unknown"),
            ("fileset = \"a/b\"", "fileset = \"a//b\"", "30:1: a//b: name a fileset"),
            ("uids = [1000]", "uids = []", "35:1: say who: uids"),
            ("uids = [1000]", "uids = [0]", "35:1: user 0 may do all"),
            ("uids = [1000]", "uids = [4294967295]", "35:1: user 4294967295 is whoever has no"),
            ("[\"home/anna\"]", "[]", "35:1: say which filesets"),
            ("[\"home/anna\"]", "[\"a//b\"]", "35:1: a//b: name a fileset"),
            ("\"/home/anna/files\"", "\"/a/../b\"", "35:1: /a/../b: write a directory"),
            ("[33, 1001]", "[\"www\"]", "41:9: invalid type"),
            ("\"home\"\nkeep", "\"home/\"\nkeep", "42:1: home/: name a fileset"),
            ("hourly=24", "hourly=x", "45:8: `hourly=x`: write it as"),
            ("keep = ", "keeps = ", "45:1: unknown field `keeps`"),
            ("keep = \"hourly=24,daily=7\"", "", "42:1: a schedule is fileset = "),
            ("\"weekly\"", "\"yearly\"", "48:9: `yearly`: write it as daily, weekly, monthly"),
            ("scrub = ", "fileset = \"home\"\nscrub = ", "46:1: a schedule is fileset = "),
            (
                "scrub = \"weekly\"",
                "fileset = \"home\"\nkeep = \"none\"",
                "46:1: home has two schedules",
            ),
            (
                "fileset = \"home\"\nkeep = \"hourly=24,daily=7\"",
                "scrub = \"none\"",
                "45:1: the pool has two schedules of scrubs",
            ),
            ("\"b.hf\"\nscrub", "\"c.hf\"\nscrub", "46:1: c.hf: no [[pool]]"),
        ] {
            let refused = parse(&WHOLE.replacen(was, is, 1)).expect_err(is);
            assert!(refused.starts_with(told), "{is}: {refused}");
        }
    }
}
