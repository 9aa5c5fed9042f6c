//! HTTP interface of a server: JSON for programs, metrics for Prometheus, a dashboard for people.
//!
//! ```text
//!   connect (sockets, limits, TLS) -> Web::answer -> guard (rights) -> api | metrics | page
//! ```
//!
//! Every change is a [`control::Request`], parsed, checked and applied as on a status socket. So a
//! request of the control protocol needs no code here.
//!
//! # Concurrency
//!
//! One thread (tokio) handles the connections. Up to [`WORKERS_MAX`] threads do work that may block
//! on a checkpoint or a device.
//!
//! Not here: what a request does ([`super::Hub`]).

mod api;
mod connect;
mod guard;
mod metrics;
mod openapi;
mod page;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use front::log_limit::LogLimit;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, oneshot};

use self::api::AnonymousPermits;
use self::guard::{Guard, HttpPeer, HttpRefusal, HttpRole};
use super::Hub;
use super::token::Token;
use crate::events::now_seconds;
use crate::hub::history::STEP;
use crate::peer::Peer;
use crate::run_directory;

const WORKERS_MAX: usize = 8;
/// How many of them requests without a token may use at a time.
const OF_ANYONE_MAX: usize = WORKERS_MAX / 2;
/// Time limit of an answer. A change that takes longer goes on.
const ANSWER_TIME: Duration = Duration::from_secs(120);

const PATH_CHARS_MAX: usize = 200;

/// Options of HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpOptions {
    /// Listening address. `None` for the unix socket only.
    pub address: Option<SocketAddr>,
    /// Further names of the server that a request may have in its Host header.
    pub hosts: Vec<String>,
    /// Files with the certificates and the key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether the token may be sent over a network unencrypted.
    pub is_insecure: bool,
}

impl HttpOptions {
    /// Refuses a listening address at which the token would cross a network unencrypted.
    pub fn check(&self) -> Result<(), String> {
        let Some(address) = self.address else { return Ok(()) };
        if address.ip().to_canonical().is_loopback() || self.tls.is_some() || self.is_insecure {
            return Ok(());
        }
        Err(format!(
            "{address} is reached from other machines, and the token would cross the network in \
             the clear: give --tls-cert and --tls-key, or --insecure, or listen at 127.0.0.1"
        ))
    }

    /// Refuses files that are missing or invalid, or whose key does not fit.
    pub fn check_files(&self) -> anyhow::Result<()> {
        let tls = self.tls.as_ref();
        tls.map(|(chain, key)| connect::tls_of(chain, key)).transpose().map(|_| ())
    }

    fn names(&self, address: SocketAddr) -> Vec<String> {
        let ip = address.ip();
        let mut names = self.hosts.clone();
        if !ip.is_unspecified() {
            names.push(if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() });
        }
        if ip.is_unspecified() || ip.is_loopback() {
            names.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        }
        names
    }
}

pub(super) struct Web {
    hub: Arc<Hub>,
    guard: Guard,
    router: Router,
    refused: LogLimit,
    of_anyone: AnonymousPermits,
}

impl Web {
    async fn answer(&self, mut request: Request<Body>, from: HttpPeer) -> Response<Body> {
        let role = match self.guard.check(&request, from) {
            Ok(role) => role,
            Err(refused) => {
                if let Some(others) = self.refused.pass(Instant::now()) {
                    let path: String = request.uri().path().chars().take(PATH_CHARS_MAX).collect();
                    let path = path.escape_debug().to_string();
                    tracing::info!(?from, path, cause = refused.cause, others, "HTTP: refused");
                }
                return finished(refusal(&refused));
            }
        };
        request.extensions_mut().insert(HttpRequester { role, from });
        if role == HttpRole::Anyone {
            request.extensions_mut().insert(self.of_anyone.clone());
        }
        let router = TowerToHyperService::new(self.router.clone());
        let answered = hyper::service::Service::call(&router, request);
        let response = match tokio::time::timeout(ANSWER_TIME, answered).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(_) => {
                let cause = "it takes long, and goes on: look later how it has ended";
                refusal(&HttpRefusal::new(StatusCode::GATEWAY_TIMEOUT, cause))
            }
        };
        finished(response)
    }
}

#[derive(Clone, Copy, Debug)]
struct HttpRequester {
    role: HttpRole,
    from: HttpPeer,
}

impl HttpRequester {
    /// Returns the user in whose name the request runs. `None` if the client has no rights.
    fn peer(&self) -> Option<Peer> {
        match self.role {
            HttpRole::Administrator(peer) => Some(peer),
            HttpRole::Anyone => None,
        }
    }
}

fn refusal(refused: &HttpRefusal) -> Response<Body> {
    let body = serde_json::json!({ "error": refused.cause }).to_string();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = refused.status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Adds security headers: no caching, no guessing of content types, no framing by other sites.
fn finished(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let nothing = "default-src 'none'; frame-ancestors 'none'";
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(nothing));
    response
}

/// The running HTTP interface. Drop ends it.
pub struct HttpServer {
    /// TCP address.
    pub address: Option<SocketAddr>,
    url: String,
    socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Serves `hub` on `listener` and on the unix socket `socket`. An existing socket is replaced.
    pub fn start(
        hub: &Arc<Hub>,
        options: &HttpOptions,
        listener: Option<TcpListener>,
        socket: &Path,
    ) -> anyhow::Result<HttpServer> {
        let tls =
            options.tls.as_ref().map(|(chain, key)| connect::tls_of(chain, key)).transpose()?;
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let (own, is_tls) = (Peer::own(), tls.is_some());
        let guard = Guard {
            hosts: address.map(|address| options.names(address)).unwrap_or_default(),
            port: address.map_or(0, |address| address.port()),
            is_tls,
            token: Token::of(&hub.state)?,
            own,
        };
        let (router, refused) = (api::router(hub), LogLimit::default());
        let of_anyone = AnonymousPermits(Arc::new(Semaphore::new(OF_ANYONE_MAX)));
        let web = Web { hub: Arc::clone(hub), guard, router, refused, of_anyone };
        let _ = std::fs::remove_file(socket);
        let local = UnixListener::bind(socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        // Only administrators may connect to this socket, because roles apply only on the status
        // sockets. Other users' programs can read `/metrics` and `/healthz` by TCP.
        run_directory::set_socket(socket, false)?;
        local.set_nonblocking(true)?;
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(WORKERS_MAX)
            .thread_name("http-work")
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let run = async move {
            let started = start_all(Arc::new(web), tls, listener, local);
            if let Err(error) = started {
                tracing::error!(%error, "HTTP: cannot listen");
            }
            let _ = stopped.await;
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(run);
            runtime.shutdown_timeout(Duration::from_secs(5));
        })?;
        let socket = socket.to_owned();
        let scheme = if is_tls { "https" } else { "http" };
        let host = options.hosts.first().cloned().or_else(|| {
            let ip = address?.ip();
            Some(match ip {
                _ if ip.is_unspecified() => "localhost".to_owned(),
                IpAddr::V6(ip) => format!("[{ip}]"),
                IpAddr::V4(ip) => ip.to_string(),
            })
        });
        let port = address.map_or(0, |address| address.port());
        let url = format!("{scheme}://{}:{port}/", host.unwrap_or_default());
        Ok(HttpServer { address, url, socket, stop: Some(stop), thread: Some(thread) })
    }
}

impl HttpServer {
    /// Returns the URL of the dashboard.
    pub fn url(&self) -> &str {
        &self.url
    }
}

fn start_all(
    web: Arc<Web>,
    tls: Option<tokio_rustls::TlsAcceptor>,
    listener: Option<TcpListener>,
    local: UnixListener,
) -> std::io::Result<()> {
    let local = tokio::net::UnixListener::from_std(local)?;
    tokio::spawn(connect::accept_local(local, connect::new_bound(), Arc::clone(&web)));
    if let Some(listener) = listener {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::spawn(connect::accept_network(
            listener,
            tls,
            connect::new_bound(),
            Arc::clone(&web),
        ));
    }
    tokio::spawn(async move {
        loop {
            let counts = web.hub.counts().into_iter().map(|(_, count)| count).collect();
            web.hub.history.take(counts, now_seconds(), STEP);
            tokio::time::sleep(STEP).await;
        }
    });
    Ok(())
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests;
