//! Messages on the wire, generated from `proto/*.proto` by `examples/generate_protos.rs`.
//!
//! The names are Hadoop's. Enum fields are `i32`; their getter returns the default for an unknown value, so a value of
//! a newer server is not an error. `Debug` of messages with secrets shows lengths only.

use std::fmt;

/// Package `hadoop.common`: RPC headers, SASL, tokens and credentials.
#[expect(missing_docs, reason = "generated; the .proto files explain fields that need it")]
#[rustfmt::skip]
#[path = "proto/hadoop_common.rs"]
pub mod common;

/// Package `hadoop.hdfs`: calls of the NameNode; see [`crate::namenode`].
#[expect(
    missing_docs,
    reason = "generated; the meaning of each field is in the .proto file where it needs one"
)]
#[rustfmt::skip]
#[path = "proto/hadoop_hdfs.rs"]
pub mod hdfs;

/// Identifiers inside YARN's tokens; see [`crate::token::Identifier`].
#[expect(missing_docs, reason = "generated; the .proto files explain fields that need it")]
#[rustfmt::skip]
#[path = "proto/hadoop_token.rs"]
pub mod token;

/// Length of bytes that must not be printed.
struct Hidden(usize);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.0)
    }
}

impl fmt::Debug for common::TokenProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenProto")
            .field("kind", &self.kind)
            .field("service", &self.service)
            .field("identifier", &Hidden(self.identifier.len()))
            .field("password", &Hidden(self.password.len()))
            .finish()
    }
}

impl fmt::Debug for common::CredentialsKvProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialsKvProto")
            .field("alias", &self.alias)
            .field("token", &self.token)
            .field("secret", &self.secret.as_ref().map(|secret| Hidden(secret.len())))
            .finish()
    }
}

impl fmt::Debug for common::RpcSaslProto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is the payload of a wrapped frame, or a proof of the exchange. Neither may be logged.
        f.debug_struct("RpcSaslProto")
            .field("state", &self.state)
            .field("token", &self.token.as_ref().map(|token| Hidden(token.len())))
            .field("auths", &self.auths)
            .finish()
    }
}

impl fmt::Debug for common::rpc_sasl_proto::SaslState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str_name())
    }
}

impl fmt::Debug for common::rpc_sasl_proto::SaslAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaslAuth")
            .field("method", &self.method)
            .field("mechanism", &self.mechanism)
            .field("protocol", &self.protocol)
            .field("server_id", &self.server_id)
            .field("challenge", &self.challenge.as_ref().map(|challenge| Hidden(challenge.len())))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::common::{CredentialsKvProto, TokenProto};

    #[test]
    fn debug_output_has_no_secret() {
        let token = TokenProto {
            identifier: b"canary-id".as_slice().into(),
            password: b"canary-pw".as_slice().into(),
            kind: "kind".into(),
            service: String::new(),
        };
        let entry = CredentialsKvProto {
            alias: "a".into(),
            token: Some(token),
            secret: Some(b"canary-s".as_slice().into()),
        };
        let shown = format!("{entry:?}");
        assert!(!shown.contains("canary"), "{shown}");
        // Bytes print as numbers or as an escaped string. Neither form may appear.
        assert!(!shown.contains("99, 97"), "{shown}");
    }
}
