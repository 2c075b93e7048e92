//! The address under which the other nodes of a cluster reach this one.
//!
//! NodeManagers name their node (`NM_HOST`). This machine's resolver returns what the name means *here*, which can differ
//! from its meaning on other nodes:
//!
//! - With IPv4 and IPv6 the resolver may put IPv6 first, while the ResourceManager's JVM mostly runs with
//!   `preferIPv4Stack` and some nodes have IPv4 alone. So IPv4 is preferred.
//! - Debian writes `127.0.1.1 name` into `/etc/hosts`. No other machine reaches that. Then the result is the
//!   address from which this machine calls a server of the cluster; the kernel's routes give it without sending a packet.
//!
//! A literal address and `localhost` are used as they are.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Where this node's address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one.
    Address(IpAddr),
    /// The name means this machine alone here: the address by which a server of the cluster is called, else this one.
    Route(IpAddr),
    /// The name has no address.
    None,
}

/// Decides by the node's name and by what this machine's resolver makes of it.
#[must_use]
pub fn choose(host: &str, found: &[IpAddr]) -> Choice {
    if let Ok(address) = host.parse() {
        return Choice::Address(address);
    }
    let of_network = |address: &&IpAddr| !address.is_loopback();
    let best = found
        .iter()
        .filter(of_network)
        .min_by_key(|address| address.is_ipv6())
        .or_else(|| found.iter().min_by_key(|address| address.is_ipv6()));
    match best {
        None => Choice::None,
        Some(address) if address.is_loopback() && !is_loopback_name(host) => {
            Choice::Route(*address)
        }
        Some(address) => Choice::Address(*address),
    }
}

/// RFC 6761, section 6.3, and the names that distributions give to both loopback addresses.
fn is_loopback_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost") || host.starts_with("localhost.")
}

/// The address of this node, whose name is `host`; `servers` are some that every node of the cluster calls, as
/// `host:port`. Blocks for the resolver.
///
/// # Errors
/// The name has no address on this node.
pub fn of_node(host: &str, servers: &[String]) -> io::Result<IpAddr> {
    let found: Vec<IpAddr> = match host.parse() {
        Ok(address) => vec![address],
        Err(_) => (host, 0).to_socket_addrs()?.map(|address| address.ip()).collect(),
    };
    match choose(host, &found) {
        Choice::Address(address) => Ok(address),
        Choice::None => Err(io::ErrorKind::NotFound.into()),
        Choice::Route(local) => {
            let mut all =
                servers.iter().filter_map(|server| server.to_socket_addrs().ok()).flatten();
            let route = all.find_map(|server| calling_address(server).ok());
            let address = route.unwrap_or(local);
            tracing::warn!(
                host,
                %local,
                %address,
                "the node's own name is a loopback address on this node (/etc/hosts); the address of its route is used"
            );
            Ok(address)
        }
    }
}

/// The address from which this machine calls `server`. A UDP socket that is connected sends nothing.
fn calling_address(server: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn chosen(host: &str, found: &[&str]) -> Choice {
        let found: Vec<IpAddr> = found.iter().map(|text| text.parse().unwrap()).collect();
        choose(host, &found)
    }

    fn address(text: &str) -> Choice {
        Choice::Address(text.parse().unwrap())
    }

    #[test]
    fn dual_stack_node_is_reached_by_ipv4() {
        assert_eq!(chosen("n1", &["fd00::7", "10.0.0.7"]), address("10.0.0.7"));
        assert_eq!(chosen("n1", &["fd00::7"]), address("fd00::7"));
        assert_eq!(chosen("fd00::7", &["fd00::7"]), address("fd00::7"));
    }

    #[test]
    fn loopback_counts_only_where_the_name_means_it() {
        let here = "127.0.1.1".parse().unwrap();
        assert_eq!(chosen("n1", &["127.0.1.1"]), Choice::Route(here));
        assert_eq!(chosen("n1", &["127.0.1.1", "10.0.0.7"]), address("10.0.0.7"));
        assert_eq!(chosen("n1", &["127.0.1.1", "fd00::7"]), address("fd00::7"));
        assert_eq!(chosen("localhost", &["::1", "127.0.0.1"]), address("127.0.0.1"));
        assert_eq!(chosen("127.77.0.11", &[]), address("127.77.0.11"));
        assert_eq!(chosen("n1", &[]), Choice::None);
    }

    #[test]
    fn route_to_a_server_names_this_machines_address() {
        // Within this machine: the only route that every machine has.
        let found = calling_address("127.0.0.1:8032".parse().unwrap()).unwrap();
        assert!(found.is_loopback(), "{found}");
        assert!(of_node("no-such-name.invalid", &[]).is_err());
    }
}
