//! The security layer of a connection: DIGEST-MD5 or GSSAPI, in the same framing.

use super::digest_layer::DigestLayer;
use super::layer_error::LayerError;
use crate::kerberos::{KerberosContext, KerberosError};

/// Longest token in bytes that the client sends. Servers announce 65536 and more.
const TOKEN_MAX: u32 = 65_536;

/// Security layer of one connection, both directions. Tokens must be unwrapped in the order in which they were wrapped.
#[derive(Debug)]
pub struct Layer(LayerKind);

#[derive(Debug)]
enum LayerKind {
    Digest(Box<DigestLayer>),
    Kerberos { context: Box<dyn KerberosContext>, encrypt: bool, payload_max: usize },
}

impl Layer {
    pub(crate) fn of_digest(layer: DigestLayer) -> Self {
        Self(LayerKind::Digest(Box::new(layer)))
    }

    /// The layer of a complete context: integrity, or privacy if `encrypt`. The server accepts tokens of `token_max` bytes.
    pub(super) fn of_kerberos(
        mut context: Box<dyn KerberosContext>,
        encrypt: bool,
        token_max: u32,
    ) -> Result<Self, KerberosError> {
        // A tiny limit would cut a message into thousands of pieces. Servers do not enforce theirs.
        let token_max = token_max.clamp(1024, TOKEN_MAX);
        let payload_max = context.message_max(encrypt, token_max)?.max(1);
        Ok(Self(LayerKind::Kerberos { context, encrypt, payload_max }))
    }

    /// Longest message in bytes whose token the server accepts.
    pub fn payload_max(&self) -> usize {
        match &self.0 {
            LayerKind::Digest(layer) => layer.payload_max(),
            LayerKind::Kerberos { payload_max, .. } => *payload_max,
        }
    }

    /// Wraps the next message.
    ///
    /// # Errors
    /// The Kerberos library fails, such as after the end of the context.
    pub fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, LayerError> {
        match &mut self.0 {
            LayerKind::Digest(layer) => Ok(layer.wrap(message)),
            LayerKind::Kerberos { context, encrypt, .. } => Ok(context.wrap(*encrypt, message)?),
        }
    }

    /// Unwraps the next token of the peer.
    ///
    /// # Errors
    /// Any [`LayerError`] is final, because the state of the two ends then differs.
    pub fn unwrap(&mut self, token: &[u8]) -> Result<Vec<u8>, LayerError> {
        match &mut self.0 {
            LayerKind::Digest(layer) => layer.unwrap(token),
            LayerKind::Kerberos { context, encrypt, .. } => Ok(context.unwrap(*encrypt, token)?),
        }
    }
}
