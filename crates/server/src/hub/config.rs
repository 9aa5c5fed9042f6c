//! `holdfast.toml`: configuration of a server.
//!
//! The program only reads the file (decision 0071). Errors name file, line and column. An unknown
//! key is an error, because it may be a misspelt setting.

use crate::facts::export_rules;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use format::fileset::{FilesetName, NamePart};
use front::fuse::MountOptions;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use toml::Spanned;

use super::http::HttpOptions;
use super::notices::KINDS;
use super::receivers::{DeliveryMethod, NoticeReceiver, WebhookUrl, mail_line};
pub(crate) use super::schedule::ConfiguredSchedule;
use super::state::danger_of;
use crate::peer::is_of_many;
use crate::roles::{Grant, MountGrant};
use control::size::ByteSize;
use control::{ExportSpec, ScrubEvery, SnapshotCounts};

/// Most receivers of notices. Each has a thread.
const RECEIVERS_MAX: usize = 16;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Contents of `holdfast.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Pools with their settings.
    pub pools: Vec<PoolConfig>,
    /// Listening address of NFS.
    pub nfs: Option<SocketAddr>,
    /// Listening address of the portmapper.
    pub portmap: Option<SocketAddr>,
    /// State directory.
    pub state: Option<PathBuf>,
    /// Number of NFS threads.
    pub threads: Option<usize>,
    /// Options of HTTP.
    pub http: HttpOptions,
    pub(crate) notify: Vec<NoticeReceiver>,
    /// Mounts made by `holdfast mount --all`.
    pub mounts: Vec<MountConfig>,
    /// Rights of users other than administrators, for the pool of this index, or for all pools
    /// (`None`).
    pub(crate) grants: Vec<(Option<usize>, Grant)>,
    /// Exports, each with the index of its pool in [`Config::pools`].
    pub exports: Vec<(usize, ExportSpec)>,
    pub(crate) schedules: Vec<ConfiguredSchedule>,
    pub(crate) scrubs: BTreeMap<usize, ScrubEvery>,
}

/// A pool with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Path of the pool, or `POOL:a/b` as on the command line.
    pub path: PathBuf,
    /// Size of the page cache.
    pub cache: Option<ByteSize>,
}

/// A mount made by `holdfast mount --all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountConfig {
    pub(crate) pool: PathBuf,
    /// Fileset or snapshot. `None` for the first fileset.
    pub(crate) fileset: Option<String>,
    /// Mount point.
    pub directory: PathBuf,
    /// Options in the form of mount(8).
    pub options: Option<String>,
}

impl MountConfig {
    /// Returns the mounted pool and fileset as `POOL:a/b`.
    pub fn name(&self) -> OsString {
        let mut name = self.pool.clone().into_os_string();
        if let Some(fileset) = &self.fileset {
            name.push(":");
            name.push(fileset);
        }
        name
    }
}

/// Returns the schema of `holdfast.toml`: its keys, described.
pub fn schema(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<ConfigFile>()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    /// Address and port at which NFS is served. Absent: NFS is not served.
    #[schemars(with = "Option<String>")]
    nfs: Option<Spanned<String>>,
    /// Address and port of a portmapper, where no rpcbind runs.
    #[schemars(with = "Option<String>")]
    portmap: Option<Spanned<String>>,
    /// Directory of added exports, schedules, token and keys [default: /var/lib/holdfast for root].
    state: Option<PathBuf>,
    /// Threads that answer NFS.
    threads: Option<usize>,
    /// The dashboard, metrics and the API.
    http: Option<HttpSection>,
    /// A pool to serve.
    #[serde(default, rename = "pool")]
    #[schemars(with = "Vec<PoolSection>")]
    pools: Vec<Spanned<PoolSection>>,
    /// A directory of a fileset that NFS clients may mount.
    #[serde(default, rename = "export")]
    #[schemars(with = "Vec<ExportSpec>")]
    exports: Vec<Spanned<ExportSpec>>,
    /// Snapshots of a fileset (fileset and keep) or scrubs of a pool (scrub) by the clock.
    #[serde(default, rename = "schedule")]
    #[schemars(with = "Vec<ScheduleSection>")]
    schedules: Vec<Spanned<ScheduleSection>>,
    /// A mount that `holdfast mount --all` makes. The server mounts nothing itself.
    #[serde(default, rename = "mount")]
    #[schemars(with = "Vec<MountSection>")]
    mounts: Vec<Spanned<MountSection>>,
    /// A receiver of notices: one of command and webhook.
    #[serde(default)]
    #[schemars(with = "Vec<NotifySection>")]
    notify: Vec<Spanned<NotifySection>>,
    /// Users who may mount filesets and their snapshots, and unmount them.
    #[serde(default, rename = "mounter")]
    #[schemars(with = "Vec<MounterSection>")]
    mounters: Vec<Spanned<MounterSection>>,
    /// Users who may ask for the status, without names and paths.
    #[serde(default, rename = "reader")]
    #[schemars(with = "Vec<ReaderSection>")]
    readers: Vec<Spanned<ReaderSection>>,
}

/// Number of snapshots to keep of a fileset, or scrub interval of a pool.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ScheduleSection {
    /// Path of the pool. May be absent where there is one.
    pool: Option<PathBuf>,
    /// Fileset whose snapshots are taken, as a/b.
    fileset: Option<String>,
    /// How many snapshots are kept, such as "hourly=24,daily=7,weekly=4,monthly=12", or "none".
    #[schemars(with = "Option<String>")]
    keep: Option<Spanned<String>>,
    /// When the pool is scrubbed: "daily", "weekly", "monthly" or "none".
    #[schemars(with = "Option<String>")]
    scrub: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MounterSection {
    /// Numbers of the users.
    uids: Vec<u32>,
    /// Path of the pool. May be absent where there is one.
    pool: Option<PathBuf>,
    /// Filesets that they may mount.
    filesets: Vec<String>,
    /// Directories at and below which they may mount.
    directories: Vec<PathBuf>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReaderSection {
    /// Numbers of the users.
    uids: Vec<u32>,
    /// Path of the pool. Absent: all pools.
    pool: Option<PathBuf>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HttpSection {
    /// Address and port.
    #[schemars(with = "String")]
    listen: Spanned<String>,
    /// Names that clients use for this server, beside the address.
    #[serde(default)]
    hosts: Vec<String>,
    /// File of the certificate chain of TLS, in PEM.
    tls_cert: Option<PathBuf>,
    /// File of its key.
    tls_key: Option<PathBuf>,
    /// Answer other machines without TLS.
    #[serde(default)]
    insecure: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NotifySection {
    /// Program and arguments, run without a shell. It gets HOLDFAST_POOL, HOLDFAST_EVENT,
    /// HOLDFAST_TEXT and HOLDFAST_DROPPED.
    command: Option<Vec<String>>,
    /// Address that gets a POST of JSON.
    webhook: Option<String>,
    // Refused, with the command that does the same.
    #[schemars(skip)]
    mail: Option<Vec<String>>,
    #[schemars(skip)]
    sendmail: Option<String>,
    /// Kinds of notices. Empty: all.
    #[serde(default)]
    events: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MountSection {
    /// Path of the pool.
    pool: PathBuf,
    /// Fileset as a/b, or snapshot as a/b@monday. Absent: the first fileset.
    fileset: Option<String>,
    /// Where its files appear.
    directory: PathBuf,
    /// Options as of mount.holdfast(8).
    options: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PoolSection {
    /// A device of the pool, or POOL:a/b for the fileset that exports are of.
    path: PathBuf,
    /// Memory for pages of metadata, such as "1G".
    #[schemars(with = "Option<String>")]
    cache: Option<Spanned<String>>,
}

struct ConfigError {
    at: Range<usize>,
    cause: String,
}

impl Config {
    /// Returns a warning if a user other than root and the server's own may write the file: such a
    /// user could decide what the server exports and which programs it runs.
    pub fn danger(path: &Path) -> Option<String> {
        let danger = danger_of(&std::fs::metadata(path).ok()?)?;
        Some(format!("{} says what is exported and run: {danger}", path.display()))
    }

    /// Reads the file at `path`. Relative paths in it are relative to its directory.
    pub fn read(path: &Path) -> anyhow::Result<Config> {
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

    fn parse(text: &str, base: &Path) -> Result<Config, ConfigError> {
        let file: ConfigFile = toml::from_str(text).map_err(|error| ConfigError {
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
            config.notify.push(receiver.map_err(|cause| ConfigError { at, cause })?);
        }
        if config.notify.len() > RECEIVERS_MAX {
            let cause = format!("at most {RECEIVERS_MAX} [[notify]]");
            return Err(ConfigError { at: 0..0, cause });
        }
        if let Some(http) = file.http {
            config.http = http_of(http, base)?;
        }
        for spec in &file.exports {
            let export = config.export_of(spec, base)?;
            let name = &export.1.name;
            if config.exports.iter().any(|(_, other)| other.name == *name) {
                let cause = format!("{name} is exported twice");
                return Err(ConfigError { at: spec.span(), cause });
            }
            config.exports.push(export);
        }
        for mounter in file.mounters {
            let at = mounter.span();
            let granted = config.mounter_of(mounter.into_inner(), base);
            config.grants.push(granted.map_err(|cause| ConfigError { at, cause })?);
        }
        for reader in file.readers {
            let at = reader.span();
            let granted = config.reader_of(reader.into_inner(), base);
            config.grants.push(granted.map_err(|cause| ConfigError { at, cause })?);
        }
        for schedule in file.schedules {
            config.add_schedule(schedule, base)?;
        }
        Ok(config)
    }

    fn add_schedule(
        &mut self,
        schedule: Spanned<ScheduleSection>,
        base: &Path,
    ) -> Result<(), ConfigError> {
        let at = schedule.span();
        let wrong = |cause: String| ConfigError { at: at.clone(), cause };
        let ScheduleSection { pool, fileset, keep, scrub } = schedule.into_inner();
        let pool = self.pool_at(pool.as_deref(), base).map_err(wrong)?;
        match (fileset, keep, scrub) {
            (Some(fileset), Some(keep), None) => {
                if fileset.parse::<FilesetName>().is_err() {
                    return Err(wrong(format!("{fileset}: name a fileset as a/b")));
                }
                if self.schedules.iter().any(|it| (it.pool, &it.fileset) == (pool, &fileset)) {
                    return Err(wrong(format!("{fileset} has two schedules")));
                }
                let counts = SnapshotCounts::parse(keep.get_ref());
                let keep = counts.map_err(|cause| ConfigError { at: keep.span(), cause })?;
                self.schedules.push(ConfiguredSchedule { pool, fileset, keep });
            }
            (None, None, Some(scrub)) => {
                let every = ScrubEvery::parse(scrub.get_ref());
                let every = every.map_err(|cause| ConfigError { at: scrub.span(), cause })?;
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

    pub(crate) fn grants_of(&self, index: usize) -> Vec<Grant> {
        let of_pool = |(pool, _): &&(Option<usize>, Grant)| pool.is_none_or(|pool| pool == index);
        self.grants.iter().filter(of_pool).map(|(_, grant)| grant.clone()).collect()
    }

    fn mounter_of(
        &self,
        mounter: MounterSection,
        base: &Path,
    ) -> Result<(Option<usize>, Grant), String> {
        let MounterSection { uids, pool, filesets, directories } = mounter;
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
        let mounts = Some(MountGrant { filesets, directories });
        Ok((Some(pool), Grant { uids, mounts }))
    }

    fn reader_of(
        &self,
        reader: ReaderSection,
        base: &Path,
    ) -> Result<(Option<usize>, Grant), String> {
        check_uids(&reader.uids)?;
        let pool = reader.pool.map(|pool| self.pool_at(Some(&pool), base)).transpose()?;
        Ok((pool, Grant { uids: reader.uids, mounts: None }))
    }

    /// Returns the index of the pool with this path, or of the only pool.
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
    ) -> Result<(usize, ExportSpec), ConfigError> {
        let wrong = |cause: String| ConfigError { at: spec.span(), cause };
        let export = spec.get_ref();
        let rules = export_rules(export).map_err(wrong)?;
        let index =
            self.pool_at(export.pool.as_deref(), base).map_err(|cause| match export.pool {
                Some(_) => wrong(cause),
                None => wrong(format!("{}: {cause}", rules.name)),
            })?;
        Ok((index, ExportSpec { name: rules.name, pool: None, ..export.clone() }))
    }

    /// Returns the first setting that differs and that a running server cannot change.
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

/// Refuses an empty list of users, root, which needs no role, and the overflow user id.
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

fn receiver_of(notify: NotifySection) -> Result<NoticeReceiver, String> {
    let NotifySection { command, webhook, mail, sendmail, events } = notify;
    if mail.is_some() || sendmail.is_some() {
        let line = mail_line(&mail.unwrap_or_default(), sendmail.as_deref());
        return Err(format!("mail is sent by a command now: {line}"));
    }
    let way = match (command, webhook) {
        (Some(command), None) if command.is_empty() => {
            return Err("a command has a program: command = [\"/usr/bin/...\"]".to_owned());
        }
        (Some(command), None) => DeliveryMethod::Command(command),
        (None, Some(webhook)) => DeliveryMethod::Webhook(WebhookUrl::parse(&webhook)?),
        _ => return Err("one of command and webhook says what is told".to_owned()),
    };
    if let Some(event) = events.iter().find(|event| !KINDS.contains(&event.as_str())) {
        let all = KINDS.join(", ");
        return Err(format!("{event}: no such event: there are {all}"));
    }
    Ok(NoticeReceiver { way, events })
}

fn address_of(text: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
    text.get_ref().parse().map_err(|_| ConfigError {
        at: text.span(),
        cause: format!("{}: no address: write it as \"127.0.0.1:2049\"", text.get_ref()),
    })
}

fn http_of(http: HttpSection, base: &Path) -> Result<HttpOptions, ConfigError> {
    let at = http.listen.span();
    let tls = match (http.tls_cert, http.tls_key) {
        (Some(chain), Some(key)) => Some((base.join(chain), base.join(key))),
        (None, None) => None,
        _ => {
            let cause = "tls_cert and tls_key go together".to_owned();
            return Err(ConfigError { at, cause });
        }
    };
    let options = HttpOptions {
        address: Some(address_of(&http.listen)?),
        hosts: http.hosts,
        tls,
        is_insecure: http.insecure,
    };
    options.check().map_err(|cause| ConfigError { at, cause })?;
    Ok(options)
}

fn pool_of(pool: &Spanned<PoolSection>, base: &Path) -> Result<PoolConfig, ConfigError> {
    let size = |text: &Spanned<String>| {
        let wrong = |cause: String| ConfigError { at: text.span(), cause };
        text.get_ref().parse::<ByteSize>().map_err(|error| wrong(error.to_string()))
    };
    let cache = pool.get_ref().cache.as_ref().map(size).transpose()?;
    Ok(PoolConfig { path: base.join(&pool.get_ref().path), cache })
}

fn mount_of(
    mount: &Spanned<MountSection>,
    base: &Path,
    before: &[MountConfig],
) -> Result<MountConfig, ConfigError> {
    let wrong = |cause: String| Err(ConfigError { at: mount.span(), cause });
    let MountSection { pool, fileset, directory, options } = mount.get_ref();
    let (pool, directory) = (base.join(pool), base.join(directory));
    let shown = directory.display();
    if before.iter().any(|other| other.directory == directory) {
        return wrong(format!("{shown} is mounted twice"));
    }
    if before.iter().any(|other| (&other.pool, &other.fileset) == (&pool, fileset)) {
        return wrong(format!("{shown}: a fileset has one mount, and this one has one above"));
    }
    if let Some(fileset) = fileset {
        let (name, snapshot) = fileset.split_once('@').unwrap_or((fileset, "a"));
        if name.parse::<FilesetName>().is_err() || NamePart::new(snapshot).is_err() {
            return wrong(format!("{fileset}: name a fileset as a/b, a snapshot as a/b@monday"));
        }
    }
    if let Some(options) = options {
        let known = MountOptions::new("").apply(options);
        known.map_err(|error| ConfigError { at: mount.span(), cause: error.to_string() })?;
    }
    let (fileset, options) = (fileset.clone(), options.clone());
    Ok(MountConfig { pool, fileset, directory, options })
}

/// Returns line and column, counted from 1.
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
        assert_eq!(
            config.notify[0],
            NoticeReceiver { way: DeliveryMethod::Command(command), events }
        );
        let webhook = WebhookUrl::parse("http://[::1]:9/hook").expect("it is one");
        assert_eq!(config.notify[1].way, DeliveryMethod::Webhook(webhook));
        assert_eq!(config.mounts[0].name(), "/etc/b.hf:a/b");
        let keep = SnapshotCounts { hourly: 24, daily: 7, ..SnapshotCounts::default() };
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

    /// Goal: each mistake is reported with line, column and cause.
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
            ("webhook = ", "command = [\"a\"]\nwebhook = ", "26:1: one of command and webhook"),
            ("http://[::1]:9/hook", "ftp://a/", "26:1: ftp://a/...: no address of HTTP"),
            ("http://[::1]:9/hook", "http://a:b/", "26:1: http://a:b/...: it has no such port"),
            ("webhook = ", "mail = [\"a@b\"]#", "26:1: mail is sent by a command now: command = ["),
            ("webhook = ", "sendmail = \"x\"#", "26:1: mail is sent by a command now: command = ["),
            ("\"member\"", "\"weather\"", "23:1: weather: no such event: there are trouble"),
            ("directory = ", "place = ", "31:1: unknown field `place`"),
            ("\"ro,noexec\"", "\"ro,fast\"", "28:1: mount option `fast`: unknown"),
            ("fileset = \"a/b\"", "fileset = \"a//b\"", "28:1: a//b: name a fileset"),
            ("uids = [1000]", "uids = []", "33:1: say who: uids"),
            ("uids = [1000]", "uids = [0]", "33:1: user 0 may do all"),
            ("uids = [1000]", "uids = [4294967295]", "33:1: user 4294967295 is whoever has no"),
            ("[\"home/anna\"]", "[]", "33:1: say which filesets"),
            ("[\"home/anna\"]", "[\"a//b\"]", "33:1: a//b: name a fileset"),
            ("\"/home/anna/files\"", "\"/a/../b\"", "33:1: /a/../b: write a directory"),
            ("[33, 1001]", "[\"www\"]", "39:9: invalid type"),
            ("\"home\"\nkeep", "\"home/\"\nkeep", "40:1: home/: name a fileset"),
            ("hourly=24", "hourly=x", "43:8: `hourly=x`: write it as"),
            ("keep = ", "keeps = ", "43:1: unknown field `keeps`"),
            ("keep = \"hourly=24,daily=7\"", "", "40:1: a schedule is fileset = "),
            ("\"weekly\"", "\"yearly\"", "46:9: `yearly`: write it as daily, weekly, monthly"),
            ("scrub = ", "fileset = \"home\"\nscrub = ", "44:1: a schedule is fileset = "),
            (
                "scrub = \"weekly\"",
                "fileset = \"home\"\nkeep = \"none\"",
                "44:1: home has two schedules",
            ),
            (
                "fileset = \"home\"\nkeep = \"hourly=24,daily=7\"",
                "scrub = \"none\"",
                "43:1: the pool has two schedules of scrubs",
            ),
            ("\"b.hf\"\nscrub", "\"c.hf\"\nscrub", "44:1: c.hf: no [[pool]]"),
        ] {
            let refused = parse(&WHOLE.replacen(was, is, 1)).expect_err(is);
            assert!(refused.starts_with(told), "{is}: {refused}");
        }
    }
}
