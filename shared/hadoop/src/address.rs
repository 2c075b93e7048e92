//! Host and port of a server, as configuration files write them.

use std::fmt;
use std::str::FromStr;

/// A server's address before resolution. The host is a name or an IP address, in lower case. Each connect resolves it
/// again, because a server may have another IP address after a failover.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    host: String,
    port: u16,
}

/// The text is not `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address must be host:port (got \"{0}\")")]
pub struct AddressError(String);

impl HostPort {
    /// Makes an address from its parts.
    pub fn new(host: impl AsRef<str>, port: u16) -> Self {
        Self { host: host.as_ref().to_ascii_lowercase(), port }
    }

    /// Parses `host:port`, or `host` with a default port. IPv6 addresses are in brackets.
    ///
    /// # Errors
    /// The host is empty, or the port is not an integer below 65536.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, AddressError> {
        let error = || AddressError(text.to_owned());
        let trimmed = text.trim();
        let (host, port) = if let Some(bracketed) = trimmed.strip_prefix('[') {
            let (host, after) = bracketed.split_once(']').ok_or_else(error)?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(error()),
            }
        } else {
            match trimmed.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (trimmed, None),
            }
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
            return Err(error());
        }
        let port = match port {
            Some(port) => port.parse().map_err(|_| error())?,
            None => default_port.ok_or_else(error)?,
        };
        Ok(Self::new(host, port))
    }

    /// The host as configured: a name or an IP address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for HostPort {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        Self::parse(text, None)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::HostPort;

    #[test]
    fn addresses_parse_as_configuration_files_write_them() {
        for (text, default, expected) in [
            ("NN1.example.com:8020", None, Some("nn1.example.com:8020")),
            (" rm ", Some(8032), Some("rm:8032")),
            ("[::1]:80", None, Some("[::1]:80")),
            ("[::1]", Some(7), Some("[::1]:7")),
            ("rm", None, None),
            (":80", None, None),
            ("rm:99999", None, None),
            ("rm:", Some(1), None),
            ("a b:1", None, None),
            ("hdfs://nn:1", None, None),
            ("[::1]x", Some(1), None),
        ] {
            let parsed = HostPort::parse(text, default).ok().map(|address| address.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }
}
