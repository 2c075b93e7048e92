//! What a client insists on.

use super::Qop;

/// What a connection must be before anything is said on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SecurityPolicy {
    /// Refuse SIMPLE (`hadoop.security.authentication` is not `simple`).
    pub required: bool,
    /// Take SIMPLE from a server that has nothing else although security is required
    /// (`ipc.client.fallback-to-simple-auth-allowed`). Default false, and best left so.
    pub fallback_to_simple: bool,
    /// Allowed levels in order of preference (`hadoop.rpc.protection`). Not empty.
    pub protection: Vec<Qop>,
}

/// A cluster without security: SIMPLE where the server lets us, tokens where it asks for one.
impl Default for SecurityPolicy {
    fn default() -> Self {
        Self {
            required: false,
            fallback_to_simple: false,
            protection: vec![Qop::Auth],
        }
    }
}
