//! Connections of the HTTP interface: accepting, limits, TLS.
//!
//! - [`CONNECTIONS_MAX`]: most connections. Others wait in the kernel's queue.
//! - [`HEADER_TIME`]: for the head of a request, and for a TLS handshake.
//! - [`CONNECTION_TIME`]: for a whole connection.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::version::TLS13;

use super::Web;
use super::guard::{HttpPeer, HttpRefusal};
use crate::peer::Peer;

/// Most connections of a listener at a time: some browsers and a few programs.
const CONNECTIONS_MAX: usize = 64;
pub(super) const HEADER_TIME: Duration = Duration::from_secs(5);
/// Time limit of a connection. Clients reconnect.
const CONNECTION_TIME: Duration = Duration::from_secs(180);
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a request that hyper buffers. hyper reads more than the limit of a head before it
/// checks, so [`HEAD_BYTES_MAX`] is checked separately.
const BUFFER_BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;
const HEADERS_MAX: usize = 64;
/// Pause after a failed accept, which is usually due to a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) fn tls_of(certificates: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let shown = certificates.display();
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect)
        .with_context(|| format!("{shown}: no certificates in PEM"))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("{}: no private key in PEM", key.display()))?;
    let config = ServerConfig::builder_with_protocol_versions(&[&TLS13])
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("{shown} and {} do not fit", key.display()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Returns the limit of connections for one listener. Each listener has its own, so that network
/// clients cannot block the unix socket.
pub(super) fn new_bound() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(CONNECTIONS_MAX))
}

pub(super) async fn accept_network(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    bound: Arc<Semaphore>,
    web: Arc<Web>,
) {
    loop {
        let Ok(place) = Arc::clone(&bound).acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "HTTP: cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (tls, web, from) = (tls.clone(), Arc::clone(&web), HttpPeer::Network(peer));
        tokio::spawn(async move {
            let _place = place;
            match tls {
                None => serve(stream, web, from).await,
                Some(tls) => match timeout(HEADER_TIME, tls.accept(stream)).await {
                    Ok(Ok(stream)) => serve(stream, web, from).await,
                    Ok(Err(error)) => tracing::debug!(%peer, %error, "HTTP: no handshake"),
                    Err(_) => tracing::debug!(%peer, "HTTP: a handshake took too long"),
                },
            }
        });
    }
}

pub(super) async fn accept_local(listener: UnixListener, bound: Arc<Semaphore>, web: Arc<Web>) {
    loop {
        let Ok(place) = Arc::clone(&bound).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // If the kernel does not report the peer, it has no rights.
        let Ok(peer) = front::peer::ids(&stream) else { continue };
        let peer = Peer { uid: peer.uid, gid: peer.gid };
        let web = Arc::clone(&web);
        tokio::spawn(async move {
            let _place = place;
            serve(stream, web, HttpPeer::Local(peer)).await;
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, web: Arc<Web>, from: HttpPeer) {
    let answer = |request: Request<Incoming>| {
        let web = Arc::clone(&web);
        async move {
            if head_bytes(&request) > HEAD_BYTES_MAX {
                let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
                let refused = HttpRefusal::new(status, "the head of a request has at most 64 KiB");
                return Ok(super::finished(super::refusal(&refused)));
            }
            let response: Response<Body> = web.answer(request.map(Body::new), from).await;
            Ok::<_, std::convert::Infallible>(response)
        }
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(BUFFER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), hyper::service::service_fn(answer));
    match timeout(CONNECTION_TIME, served).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => tracing::debug!(?from, %error, "HTTP: a connection has ended"),
    }
}

fn head_bytes(request: &Request<Incoming>) -> usize {
    let line = "GET  HTTP/1.1\r\n".len() - "GET".len() + request.method().as_str().len();
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + ": ".len() + value.len() + "\r\n".len()
    };
    let headers: usize = request.headers().iter().map(header).sum();
    line + request.uri().to_string().len() + headers + "\r\n".len()
}
