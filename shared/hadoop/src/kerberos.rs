//! Kerberos: tickets, the principals of users and servers, and the engine that talks to Kerberos' library.
//!
//! [`sasl`](crate::sasl) has the exchange of messages and [`rpc`](crate::rpc) the sockets. A [`KerberosEngine`] makes
//! contexts; the built-in one is [`GssapiEngine`], and another implementation may replace it.
//!
//! **Tickets are never delegated**, and the server's principal comes from the configuration, not from the server.

mod auth_to_local;
mod cache;
mod cache_times;
mod engine;
mod error;
mod gssapi;
mod keytab;
mod krb5_conf;
mod login;
mod server_principal;

/// Name of a ticket cache without tickets, for `KRB5CCNAME` of processes that must not use a ticket.
pub const NO_TICKETS: &str = "MEMORY:no-tickets";

pub use auth_to_local::{AuthToLocal, AuthToLocalError};
pub use engine::{ContextReply, KerberosContext, KerberosEngine, TicketOwner, TicketSource};
pub use error::KerberosError;
pub use gssapi::GssapiEngine;
pub(crate) use login::prepare_for;
pub use login::{KerberosLogin, KerberosTicket, prepare};
pub use server_principal::{ServerPrincipal, token_renewer};
