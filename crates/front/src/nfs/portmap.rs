//! A portmapper (RFC 1833), as much of it as finds NFS and MOUNT: clients that are told the port do
//! without it.
//!
//! Version 2 and GETADDR of versions 3 and 4. Nobody can register anything.

use super::rpc::{Call, Unserved};
use super::service::Service;
use super::xdr::{Garbage, Reader, Writer};
use super::{mount, protocol};

pub(super) const PROGRAM: u32 = 100_000;
pub(super) const VERSION_FIRST: u32 = 2;
pub(super) const VERSION_LAST: u32 = 4;

const NULL: u32 = 0;
/// GETPORT of version 2, GETADDR of the others.
const GET: u32 = 3;
const DUMP: u32 = 4;
const TCP: u32 = 6;
const STRING_BYTES_MAX: usize = 256;

/// What is to be found: program and version.
const SERVED: [(u32, u32); 3] =
    [(protocol::PROGRAM, protocol::VERSION), (mount::PROGRAM, 1), (mount::PROGRAM, 3)];

/// Answers a call.
pub(super) fn answer(
    service: &Service,
    call: &Call,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<(), Unserved> {
    let is_old = call.version == VERSION_FIRST;
    match call.procedure {
        NULL => Ok(()),
        GET if is_old => get_port(service, args, out).map_err(|Garbage| Unserved::Arguments),
        GET => get_address(service, args, out).map_err(|Garbage| Unserved::Arguments),
        DUMP => {
            for (program, version) in SERVED {
                out.words(&[1, program, version]);
                if is_old {
                    out.words(&[TCP, u32::from(service.port())]);
                } else {
                    out.opaque(b"tcp");
                    out.opaque(address(service.port()).as_bytes());
                    out.opaque(b"superuser");
                }
            }
            out.bool(false);
            Ok(())
        }
        _ => Err(Unserved::Procedure),
    }
}

fn is_served(program: u32, version: u32) -> bool {
    SERVED.contains(&(program, version))
}

fn get_port(service: &Service, args: &mut Reader<'_>, out: &mut Writer) -> Result<(), Garbage> {
    let (program, version, transport) = (args.u32()?, args.u32()?, args.u32()?);
    args.u32()?;
    let is_ours = is_served(program, version) && transport == TCP;
    out.u32(if is_ours { u32::from(service.port()) } else { 0 });
    Ok(())
}

fn get_address(service: &Service, args: &mut Reader<'_>, out: &mut Writer) -> Result<(), Garbage> {
    let (program, version) = (args.u32()?, args.u32()?);
    let network = args.opaque(STRING_BYTES_MAX)?;
    let is_ours = is_served(program, version) && network.starts_with(b"tcp");
    let found = if is_ours { address(service.port()) } else { String::new() };
    out.opaque(found.as_bytes());
    Ok(())
}

/// Returns any address with a port, as RFC 5665 writes one.
fn address(port: u16) -> String {
    let [high, low] = [port >> 8, port & 0xff];
    format!("0.0.0.0.{high}.{low}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_ends_with_the_port_in_two_parts() {
        assert_eq!(address(2049), "0.0.0.0.8.1");
    }
}
