//! New tokens of file systems, on their way from the ApplicationMaster to the containers.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The bytes of a credentials file of Hadoop (`Credentials`, format 0). They are secret: `Debug` shows their number alone.
/// Hexadecimal in JSON.
#[derive(Clone, PartialEq, Eq)]
pub struct CredentialsBytes(pub Vec<u8>);

impl fmt::Debug for CredentialsBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.0.len())
    }
}

impl Serialize for CredentialsBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for CredentialsBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The cause would show a character of the secret.
        let bytes = hex::decode(text).map_err(|_| D::Error::custom("expected hexadecimal digits"));
        bytes.map(Self)
    }
}

/// See [`Command::Tokens`](super::Command::Tokens).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstallTokens {
    /// Counted from 1 by each attempt of the ApplicationMaster.
    pub serial: u64,
    /// The tokens. Each replaces the one of its kind and service.
    pub credentials: CredentialsBytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_arrive_and_are_never_shown() {
        let tokens = InstallTokens { serial: 3, credentials: CredentialsBytes(vec![0xc0; 9]) };
        let json = serde_json::to_string(&tokens).expect("messages are JSON");
        assert_eq!(serde_json::from_str::<InstallTokens>(&json).expect("arrives"), tokens);
        assert_eq!(format!("{:?}", tokens.credentials), "[9 bytes]");
        let error = serde_json::from_str::<CredentialsBytes>("\"c0xy\"").expect_err("not hex");
        assert!(!error.to_string().contains('x') || !error.to_string().contains("c0"), "{error}");
    }
}
