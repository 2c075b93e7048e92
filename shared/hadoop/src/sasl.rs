//! Authentication as Hadoop negotiates it: SIMPLE and TOKEN (DIGEST-MD5), with the security layers of a connection.
//!
//! Pure: messages in, messages out; [`crate::rpc`] has the sockets. A server's offer of KERBEROS (GSSAPI) is recognised
//! and not supported: it would be one more arm in [`Negotiation`] and one more [`Layer`].
//! Source: `security.SaslRpcClient`, `ipc.Server.Connection`, RFC 2831.

mod challenge;
mod digest;
#[cfg(test)]
pub(crate) mod fixture;
mod layer;
mod md5;
mod negotiation;
mod offer;
mod policy;

pub use challenge::ChallengeError;
pub use digest::{DigestError, DigestExchange, Qop};
pub use layer::{Layer, LayerError};
pub use negotiation::{Agreed, AuthMethod, Negotiation, SaslError, Step};
pub use offer::{Offer, OfferedAuth};
pub use policy::SecurityPolicy;
