//! The content of token identifiers: owner, renewer, attempt, expiry.
//!
//! A client does not need it to use a token. It serves logs and the schedule of renewals. HDFS and KMS use the Writable
//! form, YARN uses protocol buffers. Older ResourceManagers used Writable too; it is supported for their delegation
//! tokens and is an error for the others, which a caller may ignore.
//! Source: `AbstractDelegationTokenIdentifier`, `YARNDelegationTokenIdentifier`, `yarn_security_token.proto`.

use std::fmt;

use prost::Message;

use super::Token;
use super::writable::{WritableError, WritableReader, put_text, put_vlong};
use crate::proto::token::{
    AmrmTokenIdentifierProto, ApplicationAttemptIdProto, ApplicationIdProto,
    ClientToAmTokenIdentifierProto, ContainerIdProto, ContainerTokenIdentifierProto,
    NmTokenIdentifierProto, YarnDelegationTokenIdentifierProto,
};

/// Names of the kinds of tokens.
pub mod token_kind {
    /// An ApplicationMaster to the scheduler's port of the ResourceManager.
    pub const AMRM: &str = "YARN_AM_RM_TOKEN";
    /// An ApplicationMaster to one NodeManager.
    pub const NM: &str = "NMToken";
    /// An ApplicationMaster to a NodeManager, to start one container.
    pub const CONTAINER: &str = "ContainerToken";
    /// Clients to an ApplicationMaster.
    pub const CLIENT_TO_AM: &str = "YARN_CLIENT_TOKEN";
    /// Clients to the ResourceManager.
    pub const RM_DELEGATION: &str = "RM_DELEGATION_TOKEN";
    /// Clients to NameNodes.
    pub const HDFS_DELEGATION: &str = "HDFS_DELEGATION_TOKEN";
    /// Clients to a key management server.
    pub const KMS_DELEGATION: &str = "kms-dt";
    /// Clients to the timeline service.
    pub const TIMELINE_DELEGATION: &str = "TIMELINE_DELEGATION_TOKEN";

    /// All of them.
    pub const ALL: [&str; 8] = [
        AMRM,
        NM,
        CONTAINER,
        CLIENT_TO_AM,
        RM_DELEGATION,
        HDFS_DELEGATION,
        KMS_DELEGATION,
        TIMELINE_DELEGATION,
    ];
}

/// Version byte of the Writable form.
const DELEGATION_VERSION: u8 = 0;

/// The content of an identifier.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Identifier {
    /// [`token_kind::AMRM`].
    AmRm(AmrmTokenIdentifierProto),
    /// [`token_kind::NM`].
    Nm(NmTokenIdentifierProto),
    /// [`token_kind::CONTAINER`].
    Container(ContainerTokenIdentifierProto),
    /// [`token_kind::CLIENT_TO_AM`].
    ClientToAm(ClientToAmTokenIdentifierProto),
    /// Delegation tokens of the ResourceManager, the timeline service, NameNodes and key servers.
    Delegation(DelegationIdentifier),
    /// A kind without a decoder here.
    Other,
}

/// Owner and lifetime of a delegation token. Only the server has its present expiry: a renewal does not change the token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DelegationIdentifier {
    /// The user on whose behalf the holder acts.
    pub owner: String,
    /// The user that may renew it; empty for none.
    pub renewer: String,
    /// The proxy user that acts for the owner; empty if the owner acts.
    pub real_user: String,
    /// Time of issue, in milliseconds since the epoch.
    pub issue_date_ms: i64,
    /// Latest expiry, in milliseconds since the epoch: no renewal extends it.
    pub max_date_ms: i64,
    /// Sequence number at the server.
    pub sequence_number: i32,
    /// Id of the server's key that made its password.
    pub master_key_id: i32,
}

/// Why an identifier does not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifierError {
    /// A malformed Writable form.
    #[error("cannot decode the identifier")]
    Writable(#[from] WritableError),
    /// A Writable form of an unknown version.
    #[error("the version of an identifier must be 0 (got {0})")]
    Version(u8),
    /// Malformed protocol buffers, or the older form.
    #[error("cannot decode the identifier")]
    Protobuf(#[from] prost::DecodeError),
}

impl Identifier {
    /// Decodes the identifier of a token by the token's kind.
    ///
    /// # Errors
    /// The identifier does not decode. The token may be valid nevertheless.
    pub fn of(token: &Token) -> Result<Self, IdentifierError> {
        let bytes = token.identifier();
        Ok(match token.kind() {
            token_kind::AMRM => Self::AmRm(AmrmTokenIdentifierProto::decode(bytes)?),
            token_kind::NM => Self::Nm(NmTokenIdentifierProto::decode(bytes)?),
            token_kind::CONTAINER => Self::Container(ContainerTokenIdentifierProto::decode(bytes)?),
            token_kind::CLIENT_TO_AM => {
                Self::ClientToAm(ClientToAmTokenIdentifierProto::decode(bytes)?)
            }
            token_kind::HDFS_DELEGATION | token_kind::KMS_DELEGATION => {
                Self::Delegation(DelegationIdentifier::decode_writable(bytes)?)
            }
            token_kind::RM_DELEGATION | token_kind::TIMELINE_DELEGATION => {
                Self::Delegation(DelegationIdentifier::decode_yarn(bytes)?)
            }
            _ => Self::Other,
        })
    }
}

impl DelegationIdentifier {
    /// Decodes the form of HDFS and KMS.
    ///
    /// # Errors
    /// The bytes are malformed or of another version. Bytes after the known fields are ignored, as in Java.
    pub fn decode_writable(bytes: &[u8]) -> Result<Self, IdentifierError> {
        let mut reader = WritableReader::new(bytes);
        match reader.byte()? {
            DELEGATION_VERSION => {}
            version => return Err(IdentifierError::Version(version)),
        }
        Ok(Self {
            owner: reader.text()?.to_owned(),
            renewer: reader.text()?.to_owned(),
            real_user: reader.text()?.to_owned(),
            issue_date_ms: reader.vlong()?,
            max_date_ms: reader.vlong()?,
            sequence_number: reader.vint()?,
            master_key_id: reader.vint()?,
        })
    }

    /// Encodes the form of HDFS and KMS.
    pub fn encode_writable(&self) -> Vec<u8> {
        let mut out = vec![DELEGATION_VERSION];
        put_text(&mut out, &self.owner);
        put_text(&mut out, &self.renewer);
        put_text(&mut out, &self.real_user);
        put_vlong(&mut out, self.issue_date_ms);
        put_vlong(&mut out, self.max_date_ms);
        put_vlong(&mut out, i64::from(self.sequence_number));
        put_vlong(&mut out, i64::from(self.master_key_id));
        out
    }

    /// Decodes the form of YARN, or the older Writable one, which begins with a zero byte. No message begins so.
    fn decode_yarn(bytes: &[u8]) -> Result<Self, IdentifierError> {
        if bytes.first() == Some(&DELEGATION_VERSION) {
            return Self::decode_writable(bytes);
        }
        let message = YarnDelegationTokenIdentifierProto::decode(bytes)?;
        Ok(Self {
            owner: message.owner().to_owned(),
            renewer: message.renewer().to_owned(),
            real_user: message.real_user().to_owned(),
            issue_date_ms: message.issue_date(),
            max_date_ms: message.max_date(),
            sequence_number: message.sequence_number(),
            master_key_id: message.master_key_id(),
        })
    }
}

/// One line for users, without secrets.
impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AmRm(identifier) => {
                write!(
                    f,
                    "{}, key {}",
                    attempt(identifier.app_attempt_id.as_ref()),
                    identifier.key_id()
                )
            }
            Self::Nm(identifier) => {
                let node = identifier.node_id.clone().unwrap_or_default();
                let attempt = attempt(identifier.app_attempt_id.as_ref());
                write!(
                    f,
                    "{attempt} at {}:{}, key {}",
                    node.host(),
                    node.port(),
                    identifier.key_id()
                )
            }
            Self::Container(identifier) => {
                let container = container(identifier.container_id.as_ref());
                write!(
                    f,
                    "{container} at {}, to be started by {} ms",
                    identifier.nm_host_addr(),
                    identifier.expiry_time_stamp()
                )
            }
            Self::ClientToAm(identifier) => {
                write!(
                    f,
                    "{} for {}",
                    attempt(identifier.app_attempt_id.as_ref()),
                    identifier.client_name()
                )
            }
            Self::Delegation(identifier) => {
                write!(f, "owner {}, renewer {}", identifier.owner, identifier.renewer)?;
                if !identifier.real_user.is_empty() {
                    write!(f, ", by {}", identifier.real_user)?;
                }
                write!(
                    f,
                    ", number {}, ends at {} ms",
                    identifier.sequence_number, identifier.max_date_ms
                )
            }
            Self::Other => f.write_str("unknown kind"),
        }
    }
}

fn attempt(id: Option<&ApplicationAttemptIdProto>) -> String {
    let id = id.cloned().unwrap_or_default();
    let application = id.application_id.unwrap_or_default();
    format!(
        "appattempt_{}_{:04}_{:06}",
        application.cluster_timestamp(),
        application.id(),
        id.attempt_id()
    )
}

fn container(id: Option<&ContainerIdProto>) -> String {
    let id = id.cloned().unwrap_or_default();
    let attempt = id.app_attempt_id.unwrap_or_default();
    let application: ApplicationIdProto = id.app_id.or(attempt.application_id).unwrap_or_default();
    let (number, epoch) =
        (id.id.unwrap_or_default() & 0xff_ffff_ffff, id.id.unwrap_or_default() >> 40);
    let epoch = if epoch > 0 { format!("e{epoch:02}_") } else { String::new() };
    let (timestamp, application) = (application.cluster_timestamp(), application.id());
    format!("container_{epoch}{timestamp}_{application:04}_{:02}_{number:06}", attempt.attempt_id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(kind: &str, identifier: &str) -> Token {
        Token::new(hex::decode(identifier).expect("hex"), *b"p", kind, "")
    }

    const HDFS: &str = "0005616c696365047961726e008a018bcfe568008a018bf3f1ec000302";

    #[test]
    fn identifiers_of_java_decode() {
        for (kind, identifier, expected) in [
            (
                token_kind::AMRM,
                "0a0d0a0908051080d095ffbc3110011007",
                "appattempt_1700000000000_0005_000001, key 7",
            ),
            (
                token_kind::NM,
                "0a0d0a0908051080d095ffbc31100112150a0f6e6d312e6578616d706c652e636f6d108ee3021a05616c6963652009",
                "appattempt_1700000000000_0005_000001 at nm1.example.com:45454, key 9",
            ),
            (
                token_kind::RM_DELEGATION,
                "0a05616c69636512047961726e2080d095ffbc312880d8c79fbf3130033802",
                "owner alice, renewer yarn, number 3, ends at 1700604800000 ms",
            ),
            (
                token_kind::HDFS_DELEGATION,
                HDFS,
                "owner alice, renewer yarn, number 3, ends at 1700604800000 ms",
            ),
            (
                token_kind::RM_DELEGATION,
                HDFS,
                "owner alice, renewer yarn, number 3, ends at 1700604800000 ms",
            ),
            ("another-kind", "ff", "unknown kind"),
        ] {
            let shown =
                Identifier::of(&token(kind, identifier)).map(|identifier| identifier.to_string());
            assert_eq!(shown.as_deref(), Ok(expected), "{kind}");
        }
    }

    #[test]
    fn hdfs_identifiers_encode_as_in_java() {
        let identifier = DelegationIdentifier {
            owner: "alice".into(),
            renewer: "yarn".into(),
            real_user: String::new(),
            issue_date_ms: 1_700_000_000_000,
            max_date_ms: 1_700_604_800_000,
            sequence_number: 3,
            master_key_id: 2,
        };
        assert_eq!(hex::encode(identifier.encode_writable()), HDFS);
    }

    #[test]
    fn unknown_versions_and_truncations_are_rejected() {
        let bytes = hex::decode(HDFS).expect("hex");
        for length in 0..bytes.len() {
            DelegationIdentifier::decode_writable(&bytes[..length]).expect_err("was cut");
        }
        assert_eq!(DelegationIdentifier::decode_writable(&[1]), Err(IdentifierError::Version(1)));
    }

    proptest! {
        #[test]
        fn any_bytes_of_any_kind_decode_or_are_rejected(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
            kind in prop::sample::select(&token_kind::ALL[..]),
        ) {
            if let Ok(identifier) = Identifier::of(&Token::new(bytes, *b"p", kind, "")) {
                let _ = identifier.to_string();
            }
        }

        #[test]
        fn delegation_identifiers_survive_a_round_trip(
            owner: String, renewer: String, real_user: String, issue_date_ms: i64, max_date_ms: i64,
            sequence_number: i32, master_key_id: i32,
        ) {
            let identifier = DelegationIdentifier {
                owner,
                renewer,
                real_user,
                issue_date_ms,
                max_date_ms,
                sequence_number,
                master_key_id,
            };
            prop_assert_eq!(
                DelegationIdentifier::decode_writable(&identifier.encode_writable()),
                Ok(identifier)
            );
        }
    }
}
