//! Why a protected message is rejected.

use crate::kerberos::KerberosError;

/// Why a wrapped token is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// Too short, not a multiple of the cipher block, or of another version.
    #[error("the protected message of {0} bytes is malformed")]
    Malformed(usize),
    /// A message is missing, repeated or out of order.
    #[error("the sequence number of a protected message must be {expected} (got {found})")]
    Sequence {
        /// The next number.
        expected: u32,
        /// The number in the message.
        found: u32,
    },
    /// The Kerberos library rejects a message.
    #[error("the protection of a message failed: {0}")]
    Kerberos(#[from] KerberosError),
    /// MAC or padding are wrong: the message was changed, or the keys differ.
    #[error("the integrity check of a protected message failed")]
    Integrity,
}
