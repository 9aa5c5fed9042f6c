//! POST of JSON over HTTP or TLS. Of the answer, only the status is used.
//!
//! Over TLS, the peer needs a certificate for its name from a root that the machine trusts. The
//! system's file of roots is read each time, so that updated roots take effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring;
use ureq::config::Config;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::WebhookUrl;

const CONNECT_TIME: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Files of trusted roots on Debian, Fedora, SUSE and Alpine.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub(super) fn trusted() -> Option<PathBuf> {
    let chosen = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    chosen.or_else(|| BUNDLES.iter().map(PathBuf::from).find(|bundle| bundle.exists()))
}

/// Posts `body` within `time`. Over TLS, `trusted` is the file of trusted roots.
pub(super) fn post(
    address: &WebhookUrl,
    body: &str,
    trusted: Option<&Path>,
    time: Duration,
) -> Result<(), String> {
    let url = address.shown();
    let mut config = Config::builder()
        .timeout_global(Some(time))
        .timeout_connect(Some(CONNECT_TIME))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_response_header_size(ANSWER_BYTES_MAX)
        .http_status_as_error(false)
        .user_agent("holdfast")
        .proxy(None);
    if address.0.scheme_str() == Some("https") {
        let roots = roots_of(trusted).map_err(|cause| format!("{url}: {cause}"))?;
        let provider = Arc::new(ring::default_provider());
        let tls = TlsConfig::builder().root_certs(roots);
        config = config.tls_config(tls.unversioned_rustls_crypto_provider(provider).build());
    }
    let request = config.build().new_agent().post(&address.0);
    let request = request.header("Content-Type", "application/json").header("Connection", "close");
    let status = match request.send(body) {
        Ok(answer) => answer.status(),
        Err(error) => return Err(format!("{url}: {error}")),
    };
    if status.is_success() { Ok(()) } else { Err(format!("{url}: answered {}", status.as_str())) }
}

fn roots_of(trusted: Option<&Path>) -> Result<RootCerts, String> {
    let trusted = trusted
        .ok_or("this machine has no certificates that it trusts: set SSL_CERT_FILE".to_owned())?;
    let shown = trusted.display();
    let pem = std::fs::read(trusted).map_err(|error| format!("{shown}: {error}"))?;
    let certificates = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        return Err(format!("{shown} has no certificate to trust: set SSL_CERT_FILE"));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}
