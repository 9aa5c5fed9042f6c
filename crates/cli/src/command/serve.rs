//! `holdfast serve`: opens pools and serves them over the network until a signal.

mod ports;

use server::facts::export_spec;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use front::fuse::StopSignals;
use front::nfs::{
    ExportRules, NfsServer, Portmapper, RPCBIND_SOCKET, Registration, ServerOptions, Service,
    THREADS_MAX,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use signal_hook::consts::SIGHUP;

use crate::args::ServeArgs;
use crate::command::mount::{check_cache, check_threads, members_of, start_log};
use crate::exit;
use crate::output::Output;
use control::size::ByteSize;
use control::text::printable;
use control::{ExportSource, UsageError};
use server::backend::{
    Backend, BackendError, BackendOpenOptions, DiscardMode, OpenPool, PlacementPolicyKind,
};
use server::bugs;
use server::events::now_seconds;
use server::hub::config::Config;
use server::hub::exports::export_of;
use server::hub::handle_keys::ExportedFilesets;
use server::hub::http::{HttpOptions, HttpServer};
use server::hub::schedule::check_configured;
use server::hub::token::Token;
use server::hub::{
    Hub, HubPool, Nfs, ScheduleThread, ServedPool, StateDirectory, handle_keys, mount_line, notify,
};
use server::mounts::{PoolMounts, unmount_all};
use server::named::PoolArgument;
use server::status::{self, ServerContext, StatusServer};

const POOLS_MAX: usize = 64;
/// File with the first port that unprivileged users may bind.
const UNPRIVILEGED_PORTS: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
const REAP_TIME: Duration = Duration::from_millis(100);
/// Default number of NFS threads. It bounds the requests that wait for a device at a time.
const THREADS: usize = 16;

pub(crate) fn run(args: &ServeArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let plan = ServeSettings::of(args)?;
    let danger = args.config.as_deref().and_then(Config::danger);
    if args.check {
        danger.iter().for_each(|danger| output.warning(danger));
        let unverified = plan.verify(args, backend, output)?;
        let (pools, exports) = (plan.pools.len(), plan.config.map_or(0, |it| it.1.exports.len()));
        let well = if unverified.is_empty() { "All is well" } else { "What was looked at is well" };
        let text = format!("{well}: {pools} pools, {exports} exports of the configuration");
        let facts = json!({ "pools": pools, "exports": exports, "unverified": unverified });
        output.fact(&text, &facts);
        return Ok(exit::DONE);
    }
    let signals = StopSignals::listen().context("cannot catch signals")?;
    if args.config.is_some() {
        signals.catch_hangup().context("cannot catch SIGHUP")?;
    }
    bugs::start_counting();
    start_log(args.log_file.as_deref())?;
    danger.iter().for_each(|danger| tracing::warn!("{danger}"));
    raise_descriptor_limit();
    // A port in use must fail before the pools are opened, which takes a while.
    let nfs = plan.nfs.map(|address| ports::bind(address, "--nfs")).transpose()?;
    let portmap = plan.portmap.map(ports::bind_both).transpose()?;
    let web = plan.http.address.map(|address| ports::listen(address, "--listen")).transpose()?;
    let mut pools = Vec::new();
    let opened = plan.pools.iter().try_for_each(|options| {
        let pool = backend.open(options)?;
        pools.push(ServedPool::new(options.device.clone(), pool));
        anyhow::Ok(())
    });
    let open: Vec<Arc<dyn OpenPool>> = pools.iter().map(|it| Arc::clone(&it.pool)).collect();
    let served =
        opened.and_then(|()| serve(args, plan, pools, (nfs, portmap, web), &signals, output));
    // Even after an error, so that acknowledged changes become durable.
    let closed: Vec<_> = open.iter().map(|pool| pool.close()).collect();
    let asked = served?;
    closed.into_iter().collect::<Result<(), _>>()?;
    drop(asked);
    tracing::info!("closed");
    Ok(exit::DONE)
}

type Listeners = (Option<TcpListener>, Option<(TcpListener, UdpSocket)>, Option<TcpListener>);

/// Serves until a signal. Returns the status servers, which answer until the pools are closed.
fn serve(
    args: &ServeArgs,
    plan: ServeSettings,
    pools: Vec<ServedPool>,
    (listener, portmap, web): Listeners,
    signals: &StopSignals,
    output: &Output,
) -> anyhow::Result<Vec<StatusServer>> {
    check_identities(&pools)?;
    let nfs = listener.as_ref().map(|at| nfs_of(&pools, at, &plan.state)).transpose()?;
    let hub = Arc::new(Hub::new(pools, nfs, plan.state));
    // Interrupted moves are settled before any fileset is used, because they decide which pool has
    // the fileset.
    hub.settle_moves();
    export_all(&hub, args, plan.config)?;
    // Before clients can set a schedule, because that writes the whole file.
    hub.read_schedules()?;
    hub.read_scrubs(now_seconds());
    let first = status::socket_of(&hub.pools[0].path)?.with_extension("http");
    let http = HttpServer::start(&hub, &plan.http, web, &first)?;
    let mut sockets = Vec::new();
    for index in 0..hub.pools.len() {
        sockets.push(answer_status(&hub, index, args, &http)?);
    }
    let has_portmap = portmap.is_some();
    // NFS clients can connect only after the status servers answer.
    let _portmapper = begin_nfs(&hub, plan.threads, (listener, portmap))?;
    let clock = ScheduleThread::start(&hub)?;
    let nfs = hub.nfs.as_ref().filter(|_| !has_portmap);
    let (entries, advice) = nfs.map(|nfs| enter(nfs.address)).unwrap_or_default();
    tell(&hub, &http, output);
    advice.iter().for_each(|advice| output.remark(advice));
    notify::tell("READY=1");
    let signal = loop {
        match signals.wait_within(REAP_TIME) {
            None => {
                for pool in &hub.pools {
                    pool.mounts.reap(false);
                }
            }
            Some(SIGHUP) if args.config.is_some() => match hub.reload() {
                Ok(()) => tracing::info!("the configuration is read again"),
                Err(error) => tracing::error!("what was set before stays: {error:#}"),
            },
            Some(other) => break other,
        }
    };
    tracing::info!(signal, "closing");
    notify::tell("STOPPING=1");
    // Removed from rpcbind before another server can use the port.
    drop(entries);
    let mounts: Vec<&PoolMounts> = hub.pools.iter().map(|pool| &*pool.mounts).collect();
    let unmounted = unmount_all(&mounts, signals, signal);
    drop((http, clock));
    hub.note_scrubs(now_seconds());
    // Requests in flight are answered before the pools are closed.
    if let Some(nfs) = &hub.nfs {
        nfs.end();
    }
    unmounted?;
    Ok(sockets)
}

fn begin_nfs(
    hub: &Hub,
    thread_count: usize,
    (listener, portmap): (Option<TcpListener>, Option<(TcpListener, UdpSocket)>),
) -> anyhow::Result<Option<Portmapper>> {
    let Some((nfs, listener)) = hub.nfs.as_ref().zip(listener) else { return Ok(None) };
    let (portmap, asked_by_udp) = portmap.unzip();
    if nfs.service.exports().iter().any(|it| it.rules().needs_secure_port) {
        let told = std::fs::read_to_string(UNPRIVILEGED_PORTS).unwrap_or_default();
        ports::danger_of_low_ports(&told).iter().for_each(|danger| tracing::warn!("{danger}"));
    }
    ports::open(&listener, "--nfs")?;
    portmap.iter().try_for_each(|listener| ports::open(listener, "--portmap"))?;
    let start = |socket| Portmapper::start(Arc::clone(&nfs.service), socket);
    let portmapper = asked_by_udp.map(start).transpose().context("--portmap")?;
    let listeners = [listener].into_iter().chain(portmap).collect();
    let options = ServerOptions { thread_count, ..ServerOptions::default() };
    nfs.begin(NfsServer::start(Arc::clone(&nfs.service), listeners, &options)?);
    Ok(portmapper)
}

/// Registers the server with this machine's rpcbind. Without rpcbind, returns advice on the mount
/// options that clients need.
fn enter(address: SocketAddr) -> (Option<Registration>, Option<String>) {
    let port = address.port();
    match Registration::begin(Path::new(RPCBIND_SOCKET), address) {
        Ok(None) => {
            let advice = format!(
                "No portmapper (rpcbind) runs here: clients give port={port} and mountport={port}, \
                 as above, and `showmount` finds nothing; --portmap 0.0.0.0:111 is one."
            );
            (None, Some(advice))
        }
        Ok(Some(entries)) => {
            tracing::info!(port, "entered with rpcbind");
            if !entries.others().is_empty() {
                let others = entries.others().join("; ");
                tracing::warn!(
                    "rpcbind has other programs for what is served here: {others}: clients that \
                     ask it find those, unless they give port={port} and mountport={port}"
                );
            }
            (Some(entries), None)
        }
        Err(error) => {
            tracing::warn!(
                "rpcbind cannot be told of this server: {error}: clients give port={port} and \
                 mountport={port}"
            );
            (None, None)
        }
    }
}

/// Refuses two pools with one identity, by which stored state and HTTP requests name a pool.
fn check_identities(pools: &[ServedPool]) -> anyhow::Result<()> {
    for (index, pool) in pools.iter().enumerate() {
        if let Some(same) = pools.iter().take(index).find(|it| it.id == pool.id) {
            anyhow::bail!(
                "{} and {} have one identity, {}: one is a copy of the other, and one server keeps \
                 them apart by nothing; serve one of them",
                same.path.display(),
                pool.path.display(),
                pool.id
            );
        }
        let name = pool.name();
        if let Some(same) = pools.iter().take(index).find(|it| it.name() == name) {
            anyhow::bail!(
                "two pools are called {name}: {} on {}, and {} on {}: metrics and the dashboard \
                 could not tell them apart. Give one another name: `holdfast pool rename {} NEW`",
                same.id,
                same.path.display(),
                pool.id,
                pool.path.display(),
                pool.path.display()
            );
        }
    }
    Ok(())
}

pub(crate) fn nfs_of(
    pools: &[ServedPool],
    listener: &TcpListener,
    state: &StateDirectory,
) -> anyhow::Result<Nfs> {
    let address = listener.local_addr().context("--nfs")?;
    let first = handle_keys::of(pools.first().context("no pool is given")?);
    let service = Service::new(first, address.port());
    Ok(Nfs::new(Arc::new(service), address, ExportedFilesets::read(state)?))
}

/// Exports what the command line, the configuration and the stored exports list. If they list
/// nothing and there is one pool, exports the whole pool.
fn export_all(
    hub: &Hub,
    args: &ServeArgs,
    config: Option<(PathBuf, Config)>,
) -> anyhow::Result<()> {
    let mut says_nothing = args.exports.is_empty();
    for rules in &args.exports {
        let spec = export_spec(rules, rules.fileset.clone());
        hub.export(0, &spec, ExportSource::CommandLine).context("--export")?;
    }
    if let Some((path, config)) = config {
        says_nothing = false;
        let shown = path.display().to_string();
        hub.configure(path, config).context(shown)?;
    }
    // Read without NFS too, because exports follow a fileset that is moved.
    let has_kept = hub.export_kept()?;
    if hub.nfs.is_none() {
        return Ok(());
    }
    if says_nothing && !has_kept && hub.pools.len() == 1 {
        let all = ExportRules { is_writable: true, ..ExportRules::new("/") };
        hub.export(0, &export_spec(&all, None), ExportSource::Default)?;
    }
    Ok(())
}

fn answer_status(
    hub: &Arc<Hub>,
    index: usize,
    args: &ServeArgs,
    http: &HttpServer,
) -> anyhow::Result<StatusServer> {
    let path = hub.pools[index].path.clone();
    for warning in hub.pools[index].pool.status()["warnings"].as_array().into_iter().flatten() {
        tracing::warn!("{}", warning.as_str().unwrap_or_default());
    }
    let socket = status::socket_of(&path)?;
    let served = ServerContext {
        pool: path,
        mounts: Arc::clone(&hub.pools[index].mounts),
        lasts: true,
        pid: std::process::id(),
        log: args.log_file.as_deref().map(std::path::absolute).transpose()?,
        nfs: hub.nfs.as_ref().map(|nfs| nfs.address),
        http: http.address,
        // The roles are shared with the hub, because a reload may change them.
        roles: args.config.is_some().then(|| Arc::clone(&hub.pools[index].roles)),
    };
    StatusServer::start(socket, served, HubPool::about(hub, index))
}

fn tell(hub: &Hub, http: &HttpServer, output: &Output) {
    let pools: Vec<String> = hub.pools.iter().map(|pool| pool.path.display().to_string()).collect();
    let mut facts = json!({ "served": pools, "nfs": Value::Null, "exports": [], "mount": [] });
    let mut text = format!("{} is served", pools.join(", "));
    if let Some(nfs) = &hub.nfs {
        let exports = nfs.service.exports();
        let names: Vec<&str> = exports.iter().map(|it| it.rules().name.as_str()).collect();
        let lines: Vec<String> = names.iter().map(|name| mount_line(nfs.address, name)).collect();
        text += &format!(" by NFS at {}\n{}", nfs.address, lines.join("\n"));
        facts["nfs"] = json!(nfs.address.to_string());
        facts["exports"] = json!(names);
        facts["mount"] = json!(lines);
        if names.is_empty() {
            let pool = printable(&pools[0]);
            let advice = format!("Nothing is exported: holdfast export add {pool} /NAME");
            output.remark(&advice);
        }
    }
    if let Some(address) = http.address {
        facts["http"] = json!(address.to_string());
        facts["token"] = json!(Token::path_of(&hub.state).display().to_string());
        let token = Token::path_of(&hub.state);
        text += &format!("\nDashboard: {}\nIts token is in {}", http.url(), token.display());
    }
    output.fact(&text, &facts);
    output.remark("Serving; ^C closes and ends.");
}

/// Raises the limit of descriptors to its maximum, because it bounds the number of connections.
fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, ?current, "the number of connections stays bounded");
    }
}

struct ServeSettings {
    pools: Vec<BackendOpenOptions>,
    nfs: Option<SocketAddr>,
    portmap: Option<SocketAddr>,
    http: HttpOptions,
    state: StateDirectory,
    threads: usize,
    config: Option<(PathBuf, Config)>,
}

impl ServeSettings {
    fn of(args: &ServeArgs) -> anyhow::Result<ServeSettings> {
        let read = |path: &PathBuf| anyhow::Ok((path.clone(), Config::read(path)?));
        let config = args.config.as_ref().map(read).transpose()?;
        let said = config.as_ref().map(|(_, config)| config.clone()).unwrap_or_default();
        // The configuration's pools come first, because its exports refer to them by index.
        let own = said.pools.iter().map(|pool| (&pool.path, pool.cache.unwrap_or(args.cache)));
        let given = args.pools.iter().map(|pool| (pool, args.cache));
        let pools: Vec<_> = own
            .chain(given)
            .map(|(pool, cache)| options_of(args, pool, cache))
            .collect::<Result<_, _>>()?;
        let http = match args.listen {
            Some(_) => http_options_of(args),
            None => said.http,
        };
        let plan = ServeSettings {
            pools,
            nfs: args.nfs.or(said.nfs),
            portmap: args.portmap.or(said.portmap),
            http,
            state: StateDirectory::find(args.state.as_deref().or(said.state.as_deref()))?,
            threads: args.threads.or(said.threads).unwrap_or(THREADS),
            config,
        };
        plan.check()?;
        Ok(plan)
    }

    /// Opens the pools read-only, and checks their exports and schedules. Returns the pools that
    /// were skipped, because they are in use or were not closed.
    fn verify(
        &self,
        args: &ServeArgs,
        backend: &dyn Backend,
        output: &Output,
    ) -> anyhow::Result<Vec<String>> {
        let (mut pools, mut unverified) = (Vec::new(), Vec::new());
        let opened = self.pools.iter().try_for_each(|options| {
            let path = options.device.clone();
            let options =
                BackendOpenOptions { is_read_only: true, may_replay: false, ..options.clone() };
            match backend.open(&options) {
                Ok(pool) => pools.push(Some(ServedPool::new(path, pool))),
                Err(error @ (BackendError::InUse { .. } | BackendError::NotClosed { .. })) => {
                    output.remark(&format!("{error}; what is exported of it is not looked at"));
                    unverified.push(path.display().to_string());
                    pools.push(None);
                }
                Err(error) => return Err(error.into()),
            }
            anyhow::Ok(())
        });
        let verified = opened
            .and_then(|()| self.verify_exports(args, &pools))
            .and_then(|()| self.verify_schedules(&pools));
        let closed: Vec<_> = pools.iter().flatten().map(|it| it.pool.close()).collect();
        verified?;
        closed.into_iter().collect::<Result<(), _>>()?;
        Ok(unverified)
    }

    fn verify_exports(&self, args: &ServeArgs, pools: &[Option<ServedPool>]) -> anyhow::Result<()> {
        let given = args
            .exports
            .iter()
            .map(|rules| (0, export_spec(rules, rules.fileset.clone()), "--export".to_owned()));
        let said = self.config.iter().flat_map(|(path, config)| {
            let shown = path.display().to_string();
            config.exports.iter().map(move |(index, spec)| (*index, spec.clone(), shown.clone()))
        });
        let mut names = BTreeSet::new();
        for (index, spec, context) in given.chain(said) {
            anyhow::ensure!(self.nfs.is_some(), "{context}: exports need --nfs ADDRESS:PORT");
            if let Some(served) = pools.get(index).and_then(Option::as_ref) {
                export_of(served, &spec).context(context.clone())?;
            }
            anyhow::ensure!(
                names.insert(spec.name.clone()),
                "{context}: {} is exported twice",
                spec.name
            );
        }
        Ok(())
    }

    fn verify_schedules(&self, pools: &[Option<ServedPool>]) -> anyhow::Result<()> {
        let Some((path, config)) = &self.config else { return Ok(()) };
        for (index, served) in pools.iter().enumerate() {
            if let Some(served) = served {
                let shown = || path.display().to_string();
                check_configured(config, index, served).with_context(shown)?;
            }
        }
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        let refused = |message: String| Err(UsageError::new(message).into());
        if self.pools.is_empty() {
            return refused(
                "no pool is served: name one, or a [[pool]] in the configuration".into(),
            );
        }
        if self.pools.len() > POOLS_MAX {
            return refused(format!("a server has at most {POOLS_MAX} pools"));
        }
        if self.nfs.is_none() && self.http.address.is_none() {
            let message = "nothing is served: give --nfs ADDRESS:PORT, --listen ADDRESS:PORT, or \
                           both";
            return refused(message.to_owned());
        }
        check_threads(self.threads, THREADS_MAX)?;
        self.state.check().context("state")?;
        self.http.check().map_err(UsageError::new)?;
        self.http.check_files()
    }
}

fn http_options_of(args: &ServeArgs) -> HttpOptions {
    HttpOptions {
        address: args.listen,
        hosts: args.hosts.clone(),
        tls: args.tls_cert.clone().zip(args.tls_key.clone()),
        is_insecure: args.insecure,
    }
}

fn options_of(
    args: &ServeArgs,
    pool: &Path,
    cache: ByteSize,
) -> anyhow::Result<BackendOpenOptions> {
    check_cache(cache)?;
    let named = PoolArgument::of(pool)?;
    Ok(BackendOpenOptions {
        device: named.device()?,
        members: members_of(&args.members),
        is_read_only: false,
        may_replay: true,
        has_no_atime: false,
        cache_bytes: cache.0,
        placement: PlacementPolicyKind::Log,
        commit_interval: args.commit_interval,
        device_deadline: args.device_deadline,
        discards: DiscardMode::default(),
        is_forced: args.force,
        fileset: named.fileset,
        snapshot: named.snapshot,
    })
}

#[test]
fn two_pools_of_one_identity_are_refused() {
    use server::wiring::EngineBackend;

    let pool = || EngineBackend.open_in_memory(16 << 20).expect("there is memory");
    let (one, other) = (pool(), pool());
    let served = |path: &str, pool: &Arc<dyn OpenPool>| {
        ServedPool::new(PathBuf::from(path), Arc::clone(pool))
    };
    let apart = [served("a", &one), served("b", &other)];
    assert!(check_identities(&apart).is_ok());
    let copies = [served("a", &one), served("b", &other), served("c", &one)];
    let refused = check_identities(&copies).expect_err("two are one").to_string();
    assert!(refused.starts_with("a and c have one identity"), "{refused}");
    let rename = |pool: &Arc<dyn OpenPool>| {
        let request = control::Request::PoolRename { name: "tank".to_owned() };
        pool.control(&request, server::peer::Peer::own()).expect("memory does not fail");
    };
    [&one, &other].into_iter().for_each(rename);
    let refused = check_identities(&apart).expect_err("two have one name").to_string();
    assert!(apart.iter().all(|it| refused.contains(&it.id)), "{refused}");
    drop((apart, copies));
    for pool in [one, other] {
        pool.close().expect("memory does not fail");
    }
}
