//! Who may ask for what over HTTP. Nothing is answered before this has looked at the request.
//!
//! # Invariants
//!
//! - WE1: A request whose Host is none of the server's names is refused (421): a page of another
//!   site whose name leads here (DNS rebinding) gets nothing.
//! - WE2: A request with an Origin of another site is refused (403), and no answer allows another
//!   site to read it.
//! - WE3: What changes something is a POST with `application/json`, which no form and no image can
//!   send, and with the token in a header, which no browser sends by itself.
//! - WE4: Without the token a client of this machine gets `/metrics` and `/healthz`, which have no
//!   names, and the page of the dashboard, which has no facts; a client of another machine only
//!   that page.

use std::net::SocketAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};

use crate::control::Peer;
use crate::server::token::Token;

/// Where a request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// TCP.
    Network(SocketAddr),
    /// The unix socket; the kernel says who.
    Local(Peer),
}

/// Who asks, as far as the server can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// May do all: has the token, or is root or the server's own user.
    Administrator(Peer),
    /// May look at what has no names.
    Anyone,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) cause: String,
}

impl Refused {
    pub(super) fn new(status: StatusCode, cause: impl Into<String>) -> Refused {
        Refused { status, cause: cause.into() }
    }
}

/// What is compared.
pub(super) struct Guard {
    /// Names and addresses by which clients reach the server, without port.
    pub(super) hosts: Vec<String>,
    /// Its port.
    pub(super) port: u16,
    /// Whether it speaks TLS.
    pub(super) is_tls: bool,
    /// The token.
    pub(super) token: Token,
    /// The server's own user.
    pub(super) own: Peer,
}

impl Guard {
    /// Returns who asks, if they may ask for that at all.
    pub(super) fn check<B>(&self, request: &Request<B>, from: From) -> Result<Role, Refused> {
        if let From::Network(_) = from {
            // No web page reaches the unix socket.
            self.check_host(request)?;
            self.check_origin(request.headers())?;
        }
        let role = self.role(request.headers(), from)?;
        let is_change = match *request.method() {
            Method::GET | Method::HEAD => false,
            Method::POST => true,
            _ => {
                let cause = "only GET and POST are known here";
                return Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, cause));
            }
        };
        if role == Role::Anyone && !is_open(request.uri().path(), is_change, from) {
            let cause = "a token is needed: send the one in the server's state directory as \
                         `Authorization: Bearer TOKEN`";
            return Err(Refused::new(StatusCode::UNAUTHORIZED, cause));
        }
        // WE3.
        if is_change && !is_json(request.headers()) {
            let cause = "a change is sent as application/json";
            return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, cause));
        }
        Ok(role)
    }

    /// WE1.
    fn check_host<B>(&self, request: &Request<B>) -> Result<(), Refused> {
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
        Err(Refused::new(StatusCode::MISDIRECTED_REQUEST, cause))
    }

    fn is_own(&self, authority: &Authority, plain: u16, tls: u16) -> bool {
        let implied = if self.is_tls { tls } else { plain };
        let has_user = authority.as_str().contains('@');
        let is_port = authority.port_u16().unwrap_or(implied) == self.port
            && (authority.port().is_some() || !authority.as_str().ends_with(':'));
        let host = authority.host();
        !has_user && is_port && self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host))
    }

    /// WE2.
    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let scheme = if self.is_tls { "https://" } else { "http://" };
        let is_own = |origin: &header::HeaderValue| {
            let authority = origin.to_str().ok().and_then(|text| text.strip_prefix(scheme));
            authority.and_then(|it| it.parse().ok()).is_some_and(|it| self.is_own(&it, 80, 443))
        };
        if headers.get_all(header::ORIGIN).iter().all(is_own) {
            return Ok(());
        }
        Err(Refused::new(StatusCode::FORBIDDEN, "pages of other sites may ask nothing here"))
    }

    fn role(&self, headers: &HeaderMap, from: From) -> Result<Role, Refused> {
        if let From::Local(peer) = from {
            let is_own = crate::control::may_change(peer.uid, self.own.uid);
            return Ok(if is_own { Role::Administrator(peer) } else { Role::Anyone });
        }
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (first, more) = (given.next(), given.next());
        let Some(first) = first else { return Ok(Role::Anyone) };
        let token = first.as_bytes().strip_prefix(b"Bearer ");
        if more.is_none() && token.is_some_and(|token| self.token.is(token)) {
            return Ok(Role::Administrator(self.own));
        }
        Err(Refused::new(StatusCode::UNAUTHORIZED, "this is not the server's token"))
    }
}

/// WE4.
fn is_open(path: &str, is_change: bool, from: From) -> bool {
    let is_near = match from {
        From::Network(peer) => peer.ip().to_canonical().is_loopback(),
        From::Local(_) => true,
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
