//! What is told and asked of exports and of clients.
//!
//! The words are those of `holdfast.toml` and of the file that keeps exports, so the fields have
//! them, and not the names of [`ExportRules`].

use std::path::PathBuf;

use front::counts::OperationCounts;
use front::nfs::{ExportRules, Network, Squash};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest path of a directory that is exported.
const DIRECTORY_BYTES_MAX: usize = 4096;

/// An export, as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSpec {
    /// What clients mount: a path from the root of the server.
    pub name: String,
    /// The pool, where that is not said elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PathBuf>,
    /// The fileset; none: the one that the pool is served with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fileset: Option<String>,
    /// The directory of it that is exported; none: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Who may use it: networks; none: this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// Whether anything may be changed through it.
    #[serde(default)]
    pub rw: bool,
    /// Whose users act as nobody.
    #[serde(default)]
    pub squash: SquashName,
    /// User and group of nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anon: Option<(u32, u32)>,
    /// Whether requests may come from any port.
    #[serde(default)]
    pub insecure: bool,
    /// Whether names and attributes are answered before they are durable.
    #[serde(default, rename = "async")]
    pub is_async: bool,
}

/// Which users of a client act as nobody.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum SquashName {
    /// Nobody does: a client's superuser is the superuser here too
    None,
    /// A client's superuser
    #[default]
    Root,
    /// All users
    All,
}

impl ExportSpec {
    /// Returns what these rules are as text; `fileset` is what their fileset is called now.
    pub(crate) fn of(rules: &ExportRules, fileset: Option<String>) -> ExportSpec {
        let nobody = ExportRules::new("/").nobody;
        let is_near = rules.networks == Network::loopback();
        let networks = rules.networks.iter().filter(|_| !is_near);
        let directory = String::from_utf8_lossy(&rules.directory).into_owned();
        ExportSpec {
            name: rules.name.clone(),
            pool: None,
            fileset,
            dir: (!directory.is_empty()).then_some(directory),
            to: networks.map(ToString::to_string).collect(),
            rw: rules.is_writable,
            squash: match rules.squash {
                Squash::None => SquashName::None,
                Squash::Root => SquashName::Root,
                Squash::All => SquashName::All,
            },
            anon: (rules.nobody != nobody).then_some(rules.nobody),
            insecure: !rules.needs_secure_port,
            is_async: rules.is_async,
        }
    }

    /// Returns the rules, or what in them makes no sense.
    pub(crate) fn rules(&self) -> Result<ExportRules, String> {
        // The name without options: it must have no colon, which would begin some.
        if self.name.contains(':') {
            return Err(format!("{}: the name of an export has no colon", self.name));
        }
        let plain: ExportRules = self.name.parse().map_err(|error| format!("{error}"))?;
        let directory = self.dir.clone().unwrap_or_default();
        if directory.len() > DIRECTORY_BYTES_MAX {
            let most = DIRECTORY_BYTES_MAX;
            return Err(format!("{}: dir has at most {most} bytes", self.name));
        }
        let mut networks = Vec::new();
        for network in &self.to {
            let network: Network =
                network.parse().map_err(|error| format!("{}: to: {error}", self.name))?;
            networks.push(network);
        }
        if networks.is_empty() {
            networks = Network::loopback();
        }
        if networks.len() > ExportRules::NETWORKS_MAX {
            let most = ExportRules::NETWORKS_MAX;
            return Err(format!("{}: an export has at most {most} networks", self.name));
        }
        Ok(ExportRules {
            fileset: self.fileset.clone(),
            directory: directory.into_bytes(),
            networks,
            is_writable: self.rw,
            squash: match self.squash {
                SquashName::None => Squash::None,
                SquashName::Root => Squash::Root,
                SquashName::All => Squash::All,
            },
            nobody: self.anon.unwrap_or(plain.nobody),
            needs_secure_port: !self.insecure,
            is_async: self.is_async,
            ..plain
        })
    }
}

/// What a server tells of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportFacts {
    /// As it is written.
    pub export: ExportSpec,
    /// Who has said so.
    pub by: ExportSource,
    /// What a client types to mount it; empty where it is not served.
    pub mount: String,
    /// Why it is kept and not served; none: it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_served: Option<String>,
}

/// Who has said that something is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExportSource {
    /// The command line of the server: until it ends.
    CommandLine,
    /// `holdfast.toml`.
    Configuration,
    /// `holdfast export add`: kept by the server.
    Kept,
    /// Nobody: all of a pool where nothing is said. The first export that is added keeps it.
    Default,
}

/// What a server tells of a machine that is connected to it, or of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientFacts {
    /// By which protocol: `nfs`, or `fuse`, of which bytes and what waits are not counted.
    #[serde(default)]
    pub front: String,
    /// Its address; of a mount the directory.
    pub address: String,
    /// Which time it is that it is connected or mounted: another number where its counts have
    /// begun anew.
    #[serde(default)]
    pub since: u64,
    /// Connections.
    pub connections: u64,
    /// Requests that came on them.
    pub requests: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    /// Bytes of the answers.
    pub sent_bytes: u64,
    /// Requests that are not answered yet.
    pub in_flight: u64,
}

/// What a server tells of a kind of operation, since it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationFacts {
    /// By which protocol: `nfs` or `fuse`.
    pub front: String,
    /// Its name there.
    pub operation: String,
    /// How many were answered.
    pub answered: u64,
    /// How many of those with an error.
    pub failed: u64,
    /// How long all of them took together.
    pub latency_ns: u64,
}

impl OperationFacts {
    /// Returns what is told of a kind that was counted.
    pub(crate) fn of(front: &str, count: &OperationCounts) -> OperationFacts {
        OperationFacts {
            front: front.to_owned(),
            operation: count.name.to_owned(),
            answered: count.answered,
            failed: count.failed,
            latency_ns: count.latency_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_survive_their_text_and_nonsense_is_refused() {
        for text in ["/a", "/a:rw,to=10.0.0.0/8,to=::1,squash=all,anon=7:8,dir=/x,insecure,async"] {
            let rules: ExportRules = text.parse().expect("a test writes rules");
            let spec = ExportSpec::of(&rules, None);
            let written = toml::to_string(&spec).expect("it is plain");
            let spec: ExportSpec = toml::from_str(&written).expect("what was written is read");
            assert_eq!(spec.rules().as_ref(), Ok(&rules), "{written}");
        }
        let spec = ExportSpec::of(&ExportRules::new("/a"), None);
        for (wrong, words) in [
            (ExportSpec { name: "a".to_owned(), ..spec.clone() }, "path from /"),
            (ExportSpec { name: "/a:rw".to_owned(), ..spec.clone() }, "no colon"),
            (ExportSpec { to: vec!["10/8".to_owned()], ..spec.clone() }, "no network"),
            (ExportSpec { to: vec!["::1".to_owned(); 65], ..spec.clone() }, "at most 64"),
            (ExportSpec { dir: Some("x".repeat(4097)), ..spec }, "at most 4096"),
        ] {
            let refused = wrong.rules().expect_err("it makes no sense");
            assert!(refused.contains(words), "{refused}");
        }
    }
}
