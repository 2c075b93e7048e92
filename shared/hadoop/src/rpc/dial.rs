//! Opens a TCP connection to a host name.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::ConnectError;
use super::options::later;
use crate::address::HostPort;

/// Resolves the host and tries its addresses in turn, all within `limit`. Each address gets an equal share of the
/// remaining time, so one that drops packets does not use it up.
pub(super) async fn connect(
    address: &HostPort,
    limit: Duration,
) -> Result<TcpStream, ConnectError> {
    let by = later(Instant::now(), limit);
    let late = || ConnectError::TimedOut(limit);
    let candidates = timeout_at(by, resolve(address)).await.map_err(|_| late())??;
    let mut last =
        ConnectError::Resolve(Arc::new(io::Error::new(io::ErrorKind::NotFound, "no address")));
    for (index, candidate) in candidates.iter().enumerate() {
        let left = u32::try_from(candidates.len() - index).unwrap_or(u32::MAX);
        let share = by.saturating_duration_since(Instant::now()) / left;
        match timeout(share, TcpStream::connect(candidate)).await {
            Ok(Ok(stream)) => {
                // Calls are small and their callers wait. Nagle's algorithm would delay each of them.
                stream.set_nodelay(true).map_err(|error| ConnectError::Io(Arc::new(error)))?;
                return Ok(stream);
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                last = ConnectError::Refused
            }
            Ok(Err(error)) => last = ConnectError::Io(Arc::new(error)),
            Err(_) => last = late(),
        }
    }
    Err(last)
}

async fn resolve(address: &HostPort) -> Result<Vec<SocketAddr>, ConnectError> {
    let found = tokio::net::lookup_host((address.host(), address.port()))
        .await
        .map_err(|error| ConnectError::Resolve(Arc::new(error)))?;
    Ok(found.map(dialled).collect())
}

/// Replaces the wildcard address, Hadoop's default for servers, by the loopback address, as Hadoop's client does.
fn dialled(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wildcard_address_means_this_machine() {
        for (given, expected) in [
            ("0.0.0.0:8032", "127.0.0.1:8032"),
            ("[::]:8032", "[::1]:8032"),
            ("10.0.0.1:1", "10.0.0.1:1"),
        ] {
            assert_eq!(dialled(given.parse().expect("an address")).to_string(), expected);
        }
    }
}
