//! Authentication as Hadoop negotiates it: SIMPLE, TOKEN (DIGEST-MD5) and KERBEROS (GSSAPI), with the security layers of a
//! connection.
//!
//! Messages in, messages out; [`crate::rpc`] has the sockets, and [`crate::kerberos`] the tickets.
//! Source: `security.SaslRpcClient`, `ipc.Server.Connection`, RFC 2831.

mod challenge;
mod digest;
mod digest_layer;
#[cfg(test)]
pub(crate) mod fixture;
mod kerberos_exchange;
mod layer;
mod layer_error;
mod md5;
mod negotiation;
mod offer;
mod policy;

pub use challenge::ChallengeError;
pub use digest::{DigestError, Qop};
pub use kerberos_exchange::KerberosFailure;
pub use layer_error::LayerError;
pub use negotiation::{AuthMethod, SaslError};
pub use policy::SecurityPolicy;

// Public for tests and fuzz targets; no promise of stability.
#[doc(hidden)]
pub use digest::DigestExchange;
#[doc(hidden)]
pub use layer::Layer;
#[doc(hidden)]
pub use negotiation::{Agreed, Negotiation, Step};
#[doc(hidden)]
pub use offer::{Offer, OfferedAuth};
