//! From a host name to a TCP connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::ConnectError;
use super::options::later;
use crate::address::HostPort;

/// Resolves and tries the addresses in turn, all within `limit`. Each has an equal share of the time that is left, so
/// that one which swallows packets does not take it all.
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
                // Calls are small and waited for: Nagle's delay would be added to each.
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

/// The default of an unset address is 0.0.0.0, "all interfaces", which a client takes for this machine.
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
    fn all_interfaces_means_this_machine() {
        for (given, expected) in [
            ("0.0.0.0:8032", "127.0.0.1:8032"),
            ("[::]:8032", "[::1]:8032"),
            ("10.0.0.1:1", "10.0.0.1:1"),
        ] {
            assert_eq!(dialled(given.parse().expect("an address")).to_string(), expected);
        }
    }
}
