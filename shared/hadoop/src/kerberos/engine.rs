//! The place of Kerberos' library: what a connection needs from it.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use super::error::KerberosError;

/// Where tickets come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TicketSource {
    /// A ticket cache, such as `FILE:/tmp/krb5cc_0`; `None` for the system's default (krb5.conf).
    Cache(Option<String>),
    /// A keytab.
    Keytab {
        /// The file.
        path: PathBuf,
        /// The principal, with or without realm; `None` for the keytab's first entry.
        principal: Option<String>,
    },
}

/// The owner of tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketOwner {
    /// The principal, with realm.
    pub principal: String,
    /// Time until the ticket ends; `None` for a keytab, which yields new tickets.
    pub left: Option<Duration>,
}

/// The reply of a context to the server's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextReply {
    /// Bytes for the server; may be empty.
    pub output: Vec<u8>,
    /// Whether both sides are authenticated.
    pub is_complete: bool,
}

/// An implementation of Kerberos as an initiator.
pub trait KerberosEngine: Debug + Send + Sync {
    /// The owner of the tickets. Does not use the network.
    ///
    /// # Errors
    /// There are no usable tickets.
    fn owner(&self, source: &TicketSource) -> Result<TicketOwner, KerberosError>;

    /// Starts a context with the server of this principal; returns it and its first bytes. Blocks, up to half a minute
    /// while no Key Distribution Center answers.
    ///
    /// # Errors
    /// There are no usable tickets, or no ticket for the server.
    fn start(
        &self,
        source: &TicketSource,
        server: &str,
    ) -> Result<(Box<dyn KerberosContext>, Vec<u8>), KerberosError>;
}

/// The context of one connection. No method uses the network.
pub trait KerberosContext: Debug + Send {
    /// Takes the server's bytes and makes the next ones.
    ///
    /// # Errors
    /// The server did not prove its identity.
    fn step(&mut self, input: &[u8]) -> Result<ContextReply, KerberosError>;

    /// Protects a message, encrypted if `encrypt`.
    ///
    /// # Errors
    /// The library fails.
    fn wrap(&mut self, encrypt: bool, message: &[u8]) -> Result<Vec<u8>, KerberosError>;

    /// Checks and opens the peer's next message; with `encrypted` it must be encrypted.
    ///
    /// # Errors
    /// The message was changed, repeated or is out of order, or lacks encryption.
    fn unwrap(&mut self, encrypted: bool, token: &[u8]) -> Result<Vec<u8>, KerberosError>;

    /// Longest message in bytes whose protected form has at most `token_max` bytes.
    ///
    /// # Errors
    /// The library fails.
    fn message_max(&mut self, encrypt: bool, token_max: u32) -> Result<usize, KerberosError>;
}
