//! Kerberos as an initiator through MIT's GSSAPI library (`libgssapi_krb5.so.2`).
//!
//! The library is loaded at the first use and is not linked, so a program starts on hosts without it. [`TicketHandle`]
//! is a set of tickets, from a cache or a keytab; [`SecurityContext`] authenticates to one server and protects messages.
//! All calls may block: a Key Distribution Center that does not answer costs up to half a minute.
//!
//! **All `unsafe` of Kerberos is in this crate**: `library` has the calls, and the types in `handles` own what they
//! return. It does not accept connections, does not delegate tickets and has no opinion on which server is trusted.
//! Source: RFC 2743, RFC 2744, RFC 4121, MIT's `gssapi_ext.h`.

mod context;
mod defaults;
mod environment;
mod error;
mod handles;
mod library;
mod ticket;

pub use context::{ContextStep, SecurityContext};
pub use defaults::{default_cache_name, default_realm};
pub use environment::{NotSingleThreaded, set_variables};
pub use error::GssError;
pub use library::{LIBRARY, LibraryMissing, load};
pub use ticket::{TicketFailure, TicketHandle, TicketState};
