//! `holdfast demo`: makes a pool if there is none, mounts it, exports a fileset of it to this
//! machine, and shows it, with a dashboard.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use front::nfs::{ExportRules, Server, ServerOptions, Squash};

use crate::args::{CpuLatencyName, DemoArgs, MountArgs, PlacementName, TransportName};
use crate::backend::{Backend, CreateOptions, OpenPool};
use crate::command::mount::Beside;
use crate::command::{create, mount, serve, status as status_command};
use crate::control::{ExportSource, ExportSpec, Peer, Properties, Request};
use crate::mounts::Mounts;
use crate::output::Output;
use crate::server::http::{HttpOptions, HttpServer};
use crate::server::token::Token;
use crate::server::{Asked, Hub, ServedPool, StateDirectory, mount_line};
use crate::size::ByteSize;
use crate::status;

pub(crate) fn run(args: &DemoArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let (device, directory) = (args.directory.join("pool.hf"), args.directory.join("mnt"));
    // A dead mount is still a directory, though it cannot be looked at.
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
        create::create(backend, create_options(&device, args.size.0))?;
    }
    let mount_args = mount_args(&device, &directory);
    let said = RefCell::new(String::new());
    let begin = |device: &Path, pool: &Arc<dyn OpenPool>, mounts: &Arc<Mounts>| {
        let (beside, text) = begin(device, (pool, mounts), &args.directory)?;
        *said.borrow_mut() = text;
        Ok(beside)
    };
    mount::serve_beside(&mount_args, backend, &begin, &mut |text, value| {
        output.fact(text, value);
        output.remark(&said.borrow());
        // While it is served, so that what is shown is what a user would see.
        if let Some(found) = status::find(&directory)? {
            output.fact(&status_command::text_of(&found, false), &found.status);
        }
        output.remark(&format!(
            "Try:  cp -r /etc {0}/ ; ls -l {0} ; df -h {0}\nEnd:  ^C here, or \
             holdfast unmount {0}",
            directory.display()
        ));
        Ok(())
    })
}

/// What is exported.
const EXPORT: &str = "shared";

/// What serves beside the mount, in the order in which it ends.
struct Serving {
    _http: HttpServer,
    hub: Arc<Hub>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(nfs) = &self.hub.nfs {
            nfs.end();
        }
    }
}

/// Exports a fileset of the pool beside the one that is mounted, and shows a dashboard. Returns
/// what to say of it.
fn begin(
    device: &Path,
    (pool, mounts): (&Arc<dyn OpenPool>, &Arc<Mounts>),
    place: &Path,
) -> anyhow::Result<(Beside, String)> {
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
        // One that is there from the last time.
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
    let spec = ExportSpec::of(&rules, Some(EXPORT.to_owned()));
    hub.export(0, &spec, ExportSource::CommandLine)?;
    let nfs = hub.nfs.as_ref().context("NFS is served")?;
    let options = ServerOptions::default();
    nfs.begin(Server::start(Arc::clone(&nfs.service), vec![listener], &options)?);
    let socket = status::socket_of(device)?.with_extension("http");
    let options = HttpOptions { address: Some(loopback), ..HttpOptions::default() };
    let http = HttpServer::start(&hub, &options, Some(web), &socket)?;
    let token = Token::path_of(&hub.state);
    let mount = mount_line(nfs.address, &rules.name);
    let text = format!("Dashboard: {}\nIts token: cat {}\n{mount}", http.url(), token.display());
    let (nfs, address) = (Some(nfs.address), http.address);
    let asked = Asked::about(&hub, 0);
    let guard = Box::new(Serving { _http: http, hub });
    Ok((Beside { asked, nfs, http: address, guard }, text))
}

pub(crate) fn create_options(device: &Path, size_bytes: u64) -> CreateOptions {
    CreateOptions {
        devices: vec![device.to_owned()],
        groups: vec![crate::backend::GroupToMake::single()],
        size_bytes: Some(size_bytes),
        uses_all: false,
        fragment_bytes: 4096,
        block_bytes: 16_384,
        group_bytes: None,
        journal_bytes: None,
        label: "demo".to_owned(),
        owner_uid: rustix::process::geteuid().as_raw(),
        owner_gid: rustix::process::getegid().as_raw(),
        is_forced: false,
    }
}

fn mount_args(device: &Path, directory: &Path) -> MountArgs {
    MountArgs {
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
