//! Authorization of HTTP requests, before any handler runs.
//!
//! # Invariants
//!
//! - WE1: A request whose Host is not this server's is refused (421). This stops DNS rebinding,
//!   where another site's name resolves to this server.
//! - WE2: A request whose Origin is not this server is refused (403), and no answer permits another
//!   site to read it.
//! - WE3: A change is a POST of `application/json`, which forms and images cannot send. It needs
//!   the token in a header, which browsers do not add by themselves.
//! - WE4: Without the token, a client on this machine gets `/metrics` and `/healthz`, which contain
//!   no names but those of pools, and the dashboard page, which contains no facts. A client on
//!   another machine gets only that page.

use crate::peer::may_change;
use std::net::SocketAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};

use crate::hub::token::Token;
use crate::peer::Peer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpPeer {
    Network(SocketAddr),
    Local(Peer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpRole {
    /// Full rights: the client has the token, or is root or the server's own user.
    Administrator(Peer),
    /// Only what contains no names (WE4).
    Anyone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpRefusal {
    pub(super) status: StatusCode,
    pub(super) cause: String,
}

impl HttpRefusal {
    pub(super) fn new(status: StatusCode, cause: impl Into<String>) -> HttpRefusal {
        HttpRefusal { status, cause: cause.into() }
    }
}

pub(super) struct Guard {
    /// Names and addresses of this server, without port.
    pub(super) hosts: Vec<String>,
    pub(super) port: u16,
    pub(super) is_tls: bool,
    pub(super) token: Token,
    pub(super) own: Peer,
}

impl Guard {
    pub(super) fn check<B>(
        &self,
        request: &Request<B>,
        from: HttpPeer,
    ) -> Result<HttpRole, HttpRefusal> {
        if let HttpPeer::Network(_) = from {
            // Requests from web pages cannot come by the unix socket.
            self.check_host(request)?;
            self.check_origin(request.headers())?;
        }
        let role = self.role(request.headers(), from)?;
        let is_change = match *request.method() {
            Method::GET | Method::HEAD => false,
            Method::POST => true,
            _ => {
                let cause = "only GET and POST are known here";
                return Err(HttpRefusal::new(StatusCode::METHOD_NOT_ALLOWED, cause));
            }
        };
        if role == HttpRole::Anyone && !is_open(request.uri().path(), is_change, from) {
            let cause = "a token is needed: send the one in the server's state directory as \
                         `Authorization: Bearer TOKEN`";
            return Err(HttpRefusal::new(StatusCode::UNAUTHORIZED, cause));
        }
        // WE3: only JSON.
        if is_change && !is_json(request.headers()) {
            let cause = "a change is sent as application/json";
            return Err(HttpRefusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, cause));
        }
        Ok(role)
    }

    /// Refuses a request for another host (WE1).
    fn check_host<B>(&self, request: &Request<B>) -> Result<(), HttpRefusal> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        let is_ours = |text: &str| {
            text.parse().is_ok_and(|authority: Authority| self.is_own(&authority, 80, 443))
        };
        let host = host.and_then(|host| host.to_str().ok());
        let in_uri = request.uri().authority();
        let is_named = host.is_some_and(is_ours) && more.is_none();
        if is_named && in_uri.is_none_or(|authority| self.is_own(authority, 80, 443)) {
            return Ok(());
        }
        let cause = "the server has another name: ask it by its address, or start it with --host";
        Err(HttpRefusal::new(StatusCode::MISDIRECTED_REQUEST, cause))
    }

    fn is_own(&self, authority: &Authority, plain: u16, tls: u16) -> bool {
        let implied = if self.is_tls { tls } else { plain };
        let has_user = authority.as_str().contains('@');
        let is_port = authority.port_u16().unwrap_or(implied) == self.port
            && (authority.port().is_some() || !authority.as_str().ends_with(':'));
        let host = authority.host();
        !has_user && is_port && self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host))
    }

    /// Refuses a request from another site's page (WE2).
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), HttpRefusal> {
        let scheme = if self.is_tls { "https://" } else { "http://" };
        let is_own = |origin: &header::HeaderValue| {
            let authority = origin.to_str().ok().and_then(|text| text.strip_prefix(scheme));
            authority.and_then(|it| it.parse().ok()).is_some_and(|it| self.is_own(&it, 80, 443))
        };
        if headers.get_all(header::ORIGIN).iter().all(is_own) {
            return Ok(());
        }
        Err(HttpRefusal::new(StatusCode::FORBIDDEN, "pages of other sites may ask nothing here"))
    }

    fn role(&self, headers: &HeaderMap, from: HttpPeer) -> Result<HttpRole, HttpRefusal> {
        if let HttpPeer::Local(peer) = from {
            let is_own = may_change(peer.uid, self.own.uid);
            return Ok(if is_own { HttpRole::Administrator(peer) } else { HttpRole::Anyone });
        }
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (first, more) = (given.next(), given.next());
        let Some(first) = first else { return Ok(HttpRole::Anyone) };
        let token = first.as_bytes().strip_prefix(b"Bearer ");
        if more.is_none() && token.is_some_and(|token| self.token.is(token)) {
            return Ok(HttpRole::Administrator(self.own));
        }
        Err(HttpRefusal::new(StatusCode::UNAUTHORIZED, "this is not the server's token"))
    }
}

fn is_open(path: &str, is_change: bool, from: HttpPeer) -> bool {
    let is_near = match from {
        HttpPeer::Network(peer) => peer.ip().to_canonical().is_loopback(),
        HttpPeer::Local(_) => true,
    };
    !is_change && (path == "/" || is_near && ["/metrics", "/healthz"].contains(&path))
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let (first, more) = (types.next(), types.next());
    let text = first.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    more.is_none() && essence.eq_ignore_ascii_case("application/json")
}
