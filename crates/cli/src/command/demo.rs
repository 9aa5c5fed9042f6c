//! `holdfast demo`: mounts a pool, which is created if needed, exports a fileset to this machine
//! over NFS, and serves a dashboard.

use server::facts::export_spec;
use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use front::nfs::{ExportRules, NfsServer, ServerOptions, Squash};

use crate::args::{CpuLatencyName, DemoArgs, MountArgs, PlacementName, TransportName};
use crate::command::mount::MountServers;
use crate::command::{create, mount, serve, status as status_command};
use crate::output::Output;
use control::size::ByteSize;
use control::{ExportSource, Properties, Request};
use server::backend::{Backend, BackendCreateOptions, OpenPool};
use server::hub::http::{HttpOptions, HttpServer};
use server::hub::token::Token;
use server::hub::{Hub, HubPool, ServedPool, StateDirectory, mount_line};
use server::mounts::PoolMounts;
use server::peer::Peer;
use server::status;

pub(crate) fn run(args: &DemoArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let (device, directory) = (args.directory.join("pool.hf"), args.directory.join("mnt"));
    // The error for a mount whose server died is not `NotFound`, so the directory counts as
    // existing.
    if std::fs::symlink_metadata(&directory)
        .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    {
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    if device.exists() {
        output.remark(&format!("Using the pool {}.", device.display()));
    } else {
        output.remark(&format!("Making a pool of {} in {}.", args.size, device.display()));
        create::create(backend, BackendCreateOptions::in_file(&device, args.size.0, "demo"))?;
    }
    let mount_args = mount_args(&device, &directory);
    let said = RefCell::new(String::new());
    let begin = |device: &Path, pool: &Arc<dyn OpenPool>, mounts: &Arc<PoolMounts>| {
        let (beside, text) = begin(device, (pool, mounts), &args.directory)?;
        *said.borrow_mut() = text;
        Ok(beside)
    };
    mount::serve_beside(&mount_args, backend, &begin, &mut |text, value| {
        output.fact(text, value);
        output.remark(&said.borrow());
        // As a user would, finds the status by the mount directory, which must be served by now.
        if let Some(found) = status::find(&directory)? {
            output.fact(&status_command::text_of(&found, false, output.width()), &found.status);
        }
        output.remark(&format!(
            "Try:  cp -r /etc {0}/ ; ls -l {0} ; df -h {0}\nEnd:  ^C here, or \
             holdfast unmount {0}",
            directory.display()
        ));
        Ok(())
    })
}

const EXPORT: &str = "shared";

/// Servers that run beside the mount. Drop ends NFS first, then HTTP.
struct DemoServers {
    _http: HttpServer,
    hub: Arc<Hub>,
}

impl Drop for DemoServers {
    fn drop(&mut self) {
        if let Some(nfs) = &self.hub.nfs {
            nfs.end();
        }
    }
}

fn begin(
    device: &Path,
    (pool, mounts): (&Arc<dyn OpenPool>, &Arc<PoolMounts>),
    place: &Path,
) -> anyhow::Result<(MountServers, String)> {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listener, web) = (TcpListener::bind(loopback)?, TcpListener::bind(loopback)?);
    let state = StateDirectory::find(Some(&place.join("state")))?;
    let (pool, mounts) = (Arc::clone(pool), Arc::clone(mounts));
    let pools = vec![ServedPool::with_mounts(device.to_owned(), pool, mounts)];
    let nfs = serve::nfs_of(&pools, &listener, &state)?;
    let hub = Arc::new(Hub::new(pools, Some(nfs), state));
    let properties = Properties::default();
    let create = Request::FilesetCreate { name: EXPORT.to_owned(), properties };
    if let Err(error) = hub.control(0, &create, Peer::own()) {
        tracing::debug!(%error, "the fileset is not made");
    }
    hub.export_kept()?;
    hub.read_schedules()?;
    let rules = ExportRules {
        is_writable: true,
        needs_secure_port: false,
        squash: Squash::None,
        ..ExportRules::new(&format!("/{EXPORT}"))
    };
    let spec = export_spec(&rules, Some(EXPORT.to_owned()));
    hub.export(0, &spec, ExportSource::CommandLine)?;
    let nfs = hub.nfs.as_ref().context("NFS is served")?;
    let options = ServerOptions::default();
    nfs.begin(NfsServer::start(Arc::clone(&nfs.service), vec![listener], &options)?);
    let socket = status::socket_of(device)?.with_extension("http");
    let options = HttpOptions { address: Some(loopback), ..HttpOptions::default() };
    let http = HttpServer::start(&hub, &options, Some(web), &socket)?;
    let token = Token::path_of(&hub.state);
    let mount = mount_line(nfs.address, &rules.name);
    let text = format!("Dashboard: {}\nIts token: cat {}\n{mount}", http.url(), token.display());
    let (nfs, address) = (Some(nfs.address), http.address);
    let asked = HubPool::about(&hub, 0);
    let guard = Box::new(DemoServers { _http: http, hub });
    Ok((MountServers { asked, nfs, http: address, guard }, text))
}

fn mount_args(device: &Path, directory: &Path) -> MountArgs {
    MountArgs {
        pool_name: None,
        transport: TransportName::Dev,
        cpu_latency: CpuLatencyName::Auto,
        device: Some(device.to_owned()),
        directory: Some(directory.to_owned()),
        all: false,
        config: None,
        daemon: false,
        options: Vec::new(),
        cache: ByteSize(256 << 20),
        placement: PlacementName::Log,
        commit_interval: Duration::from_secs(5),
        device_deadline: storage::device::DEADLINE_DEFAULT,
        members: crate::args::members::MemberArgs::default(),
        force: false,
        threads: None,
        poll_us: None,
        shared: false,
        writeback_cache: false,
        log_file: None,
        answer_parent: false,
    }
}
