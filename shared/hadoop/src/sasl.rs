//! Authentication as Hadoop negotiates it: SIMPLE and TOKEN (DIGEST-MD5), with the layers that protect what follows.
//!
//! Pure: messages in, messages out; sockets are in [`crate::rpc`]. KERBEROS (GSSAPI) is recognised in what a server
//! offers and not yet served: its place is one more arm in [`Negotiation`] and one more [`Layer`].
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
