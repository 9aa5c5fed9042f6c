//! `holdfast serve`: opens a pool and serves it over the network until a signal comes.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use anyhow::Context;
use front::fuse::StopSignals;
use front::nfs::{
    Export, ExportRules, HandleKey, Portmapper, Server, ServerOptions, Service, THREADS_MAX,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};

use crate::args::ServeArgs;
use crate::backend::{Backend, OpenOptions, OpenPool, Placement};
use crate::bugs;
use crate::command::mount::{check_cache, check_threads, start_log};
use crate::exit::{self, UsageError};
use crate::named::Named;
use crate::output::Output;

pub(crate) fn run(args: &ServeArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let options = options_of(args)?;
    let signals = StopSignals::listen().context("cannot catch signals")?;
    bugs::start_counting();
    start_log(args.log_file.as_deref())?;
    raise_descriptor_limit();
    // Before the pool is opened, which may take a while: who is told that it is served can ask.
    let nfs = listen(args.nfs, "--nfs")?;
    let portmap = args.portmap.map(listen_both).transpose()?;
    let pool = backend.open(&options)?;
    let served = serve(args, &pool, nfs, portmap, &signals, output);
    // Whatever happened above, what was accepted is made durable.
    let closed = pool.close();
    served?;
    closed?;
    tracing::info!("closed");
    Ok(exit::DONE)
}

fn serve(
    args: &ServeArgs,
    pool: &Arc<dyn OpenPool>,
    nfs: TcpListener,
    portmap: Option<(TcpListener, UdpSocket)>,
    signals: &StopSignals,
    output: &Output,
) -> anyhow::Result<()> {
    let address = nfs.local_addr().context("--nfs")?;
    let service = Arc::new(Service::new(HandleKey::derived(pool.secret()), address.port()));
    let mut exports = args.exports.clone();
    if exports.is_empty() {
        exports.push(ExportRules { is_writable: true, ..ExportRules::new("/") });
    }
    for rules in exports {
        let directory = rules.directory.escape_ascii().to_string();
        let fs = pool.file_system();
        let fileset = match &rules.fileset {
            Some(name) => {
                let parsed = name.parse().map_err(|error| {
                    UsageError::new(format!("--export: fileset {name}: {error}: name it as a/b"))
                })?;
                pool.hold_fileset(&parsed).context("--export")?
            }
            None => fs.main_fileset(),
        };
        let export = Export::of(rules, fs, fileset).with_context(|| {
            format!("--export: {directory}: no directory to export: make it, or name another")
        })?;
        service.add(export).context("--export")?;
    }
    let (portmap, asked_by_udp) = portmap.unzip();
    let listeners = [nfs].into_iter().chain(portmap).collect();
    let start = |socket| Portmapper::start(Arc::clone(&service), socket);
    let _portmapper = asked_by_udp.map(start).transpose().context("--portmap")?;
    let options = ServerOptions { thread_count: args.threads };
    let server = Server::start(Arc::clone(&service), listeners, &options)?;
    let warnings = pool.status()["warnings"].take();
    for warning in warnings.as_array().into_iter().flatten().filter_map(Value::as_str) {
        tracing::warn!("{warning}");
    }
    tell(args, address, &service, output);
    let signal = signals.wait();
    tracing::info!(?signal, clients = server.connection_count(), "closing");
    // What clients wait for is answered before the pool is closed.
    drop(server);
    Ok(())
}

fn tell(args: &ServeArgs, address: SocketAddr, service: &Service, output: &Output) {
    let exports = service.exports();
    let lines: Vec<String> =
        exports.iter().map(|export| mount_line(address, &export.rules().name)).collect();
    let names: Vec<&str> = exports.iter().map(|export| export.rules().name.as_str()).collect();
    let facts = json!({
        "served": args.device, "nfs": address.to_string(), "exports": names, "mount": lines,
    });
    let text = format!("{} is served at {address}\n{}", args.device.display(), lines.join("\n"));
    output.fact(&text, &facts);
    output.remark("Serving; ^C closes and ends.");
}

/// Returns how a client mounts an export.
fn mount_line(address: SocketAddr, name: &str) -> String {
    let host = match address {
        _ if address.ip().is_unspecified() => "SERVER".to_owned(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    let port = address.port();
    format!(
        "mount -t nfs -o vers=3,tcp,nolock,port={port},mountport={port} {host}:{name} DIRECTORY"
    )
}

fn listen(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).with_context(|| {
        format!("{option} {address}: cannot listen there: end who does, or give another port")
    })
}

/// Listens for a portmapper's questions, by TCP and UDP.
fn listen_both(address: SocketAddr) -> anyhow::Result<(TcpListener, UdpSocket)> {
    let listener = listen(address, "--portmap")?;
    let address = listener.local_addr().context("--portmap")?;
    let socket = UdpSocket::bind(address).with_context(|| {
        format!("--portmap {address}: cannot listen there by UDP: end who does")
    })?;
    Ok((listener, socket))
}

/// Lets the process have as many connections as the administrator allows it.
fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, ?current, "the number of connections stays bounded");
    }
}

fn options_of(args: &ServeArgs) -> anyhow::Result<OpenOptions> {
    let named = Named::of(&args.device)?;
    check_cache(args.cache)?;
    check_threads(args.threads, THREADS_MAX)?;
    Ok(OpenOptions {
        device: named.device()?,
        is_read_only: false,
        has_no_atime: false,
        cache_bytes: args.cache.0,
        placement: Placement::Log,
        commit_interval: args.commit_interval,
        device_deadline: args.device_deadline,
        is_forced: args.force,
        fileset: named.fileset,
        clone: named.clone,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_mounts_names_port_and_host() {
        let line = |address: &str| mount_line(address.parse().expect("it is one"), "/a");
        let options = "mount -t nfs -o vers=3,tcp,nolock,port=2049,mountport=2049";
        assert_eq!(line("127.0.0.1:2049"), format!("{options} 127.0.0.1:/a DIRECTORY"));
        assert_eq!(line("[::1]:2049"), format!("{options} [::1]:/a DIRECTORY"));
        assert_eq!(line("0.0.0.0:2049"), format!("{options} SERVER:/a DIRECTORY"));
    }
}
