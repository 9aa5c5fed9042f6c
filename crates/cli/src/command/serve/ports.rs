//! Ports of `holdfast serve`. They are bound before the pools are opened, so that a port in use
//! fails at once. Listening begins when the pools are served.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// Length of the queue of listen(2), which the kernel bounds by `net.core.somaxconn`.
const QUEUE_MAX: i32 = 4096;
/// How long to retry to listen at a port that another process has bound too.
const OPEN_TIME: Duration = Duration::from_secs(2);
const OPEN_POLL: Duration = Duration::from_millis(20);

pub(super) fn listen(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| refusal(&error, (address, option)))
}

/// Binds a port. Connections are refused until [`open`].
pub(super) fn bind(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    let bound = || {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // As in std: closing connections of an earlier server do not block the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &address)?;
        Ok(TcpListener::from(socket))
    };
    bound().map_err(|errno: Errno| refusal(&errno.into(), (address, option)))
}

pub(super) fn open(listener: &TcpListener, option: &str) -> anyhow::Result<()> {
    let address = listener.local_addr().context(option.to_owned())?;
    let begun = Instant::now();
    loop {
        match net::listen(listener, QUEUE_MAX) {
            Ok(()) => return Ok(()),
            // Another server may have bound the port too. It ends when opening its pools fails.
            Err(Errno::ADDRINUSE) if begun.elapsed() < OPEN_TIME => {
                std::thread::park_timeout(OPEN_POLL);
            }
            Err(errno) => return Err(refusal(&errno.into(), (address, option))),
        }
    }
}

fn refusal(error: &std::io::Error, (address, option): (SocketAddr, &str)) -> anyhow::Error {
    anyhow::anyhow!("{option} {address}: {}", why_deaf(error, address))
}

/// Default of `net.ipv4.ip_unprivileged_port_start`.
const PRIVILEGED_PORTS_END: u16 = 1024;

/// Returns why listening failed, and the remedy.
fn why_deaf(error: &std::io::Error, address: SocketAddr) -> String {
    let port = address.port();
    let kind = error.kind();
    if kind == ErrorKind::AddrInUse {
        format!(
            "another program listens at this port (`ss -lnp sport = :{port}` shows it): end that, \
             or give another port"
        )
    } else if kind == ErrorKind::AddrNotAvailable {
        "this machine has no such address: give one of its own, or 0.0.0.0 for all".to_owned()
    } else if kind == ErrorKind::PermissionDenied && port >= PRIVILEGED_PORTS_END {
        format!(
            "the system forbids it, and not for want of privilege, for port {port} is open to all: \
             a security module (SELinux, AppArmor; `journalctl -k` tells), the unit's SocketBind \
             rules, or net.ipv4.ip_unprivileged_port_start: allow it there, or give another port"
        )
    } else if kind == ErrorKind::PermissionDenied {
        format!(
            "port {port} is for programs of root, as all below 1024 are: give another port, or the \
             capability CAP_NET_BIND_SERVICE"
        )
    } else {
        format!("cannot listen there: {error}")
    }
}

/// Warns if unprivileged users may bind ports below 1024, whose clients are trusted by exports.
/// `told` is the content of `ip_unprivileged_port_start`.
pub(super) fn danger_of_low_ports(told: &str) -> Option<String> {
    let start: u16 = told.trim().parse().ok()?;
    (start < PRIVILEGED_PORTS_END).then(|| {
        format!(
            "users of this machine may have ports from {start} on \
             (net.ipv4.ip_unprivileged_port_start): exports that want a port below 1024 believe \
             them who they are; set it to 1024, or export with squash=all"
        )
    })
}

pub(super) fn bind_both(address: SocketAddr) -> anyhow::Result<(TcpListener, UdpSocket)> {
    let listener = bind(address, "--portmap")?;
    let address = listener.local_addr().context("--portmap")?;
    let socket = UdpSocket::bind(address).map_err(|error| {
        anyhow::anyhow!("--portmap {address} by UDP: {}", why_deaf(&error, address))
    })?;
    Ok((listener, socket))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn why_nothing_listens_is_told_by_port() {
        let told = |port: u16, errno: i32| {
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            why_deaf(&std::io::Error::from_raw_os_error(errno), address)
        };
        for errno in [libc::EACCES, libc::EPERM] {
            for (port, is_of_root) in [(111, true), (1023, true), (1024, false), (2049, false)] {
                let text = told(port, errno);
                assert_eq!(text.contains("programs of root"), is_of_root, "{text}");
                assert_eq!(text.contains("security module"), !is_of_root, "{text}");
            }
        }
        assert!(told(111, libc::EADDRINUSE).contains("another program"));
    }

    #[test]
    fn low_ports_of_everybody_are_told() {
        assert_eq!(danger_of_low_ports("1024\n"), None);
        assert_eq!(danger_of_low_ports(""), None);
        for told in ["0\n", "111", "1023"] {
            let danger = danger_of_low_ports(told).expect("users may have some");
            assert!(danger.contains(told.trim()), "{danger}");
        }
    }

    /// Goal: a bound port refuses connections until it is opened, and is then in use for others.
    #[test]
    fn a_port_that_is_taken_lets_nobody_in_before_it_is_opened() {
        let taken = bind(SocketAddr::from(([127, 0, 0, 1], 0)), "--nfs").expect("there is a port");
        let address = taken.local_addr().expect("it is bound");
        let refused = TcpStream::connect(address).expect_err("it is not open");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        open(&taken, "--nfs").expect("it is free");
        drop(TcpStream::connect(address).expect("it is open"));
        let other = bind(address, "--nfs").expect_err("it is taken");
        assert!(other.to_string().contains("another program listens"), "{other}");
    }
}
