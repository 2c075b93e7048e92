//! A SHA-256 sum.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A SHA-256 sum. Written as 64 lower-case hexadecimal digits; upper-case ones are read too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256(pub [u8; 32]);

/// Why a text is not a SHA-256 sum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hexadecimal digits, got {0:?}")]
pub struct Sha256Error(String);

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Sha256 {
    type Err = Sha256Error;

    fn from_str(text: &str) -> Result<Self, Sha256Error> {
        let mut sum = [0; 32];
        hex::decode_to_slice(text, &mut sum)
            .map_err(|_| Sha256Error(text.chars().take(72).collect()))?;
        Ok(Self(sum))
    }
}

impl Serialize for Sha256 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strong_sums_are_read_in_either_case() {
        let text = "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855";
        let sum: Sha256 = text.parse().expect("a sum");
        assert_eq!(sum.to_string(), text.to_lowercase());
        let json = serde_json::to_string(&sum).expect("JSON");
        assert_eq!(serde_json::from_str::<Sha256>(&json).expect("read"), sum);
        assert!(text[1..].parse::<Sha256>().is_err());
        assert!(format!("z{}", &text[1..]).parse::<Sha256>().is_err());
    }
}
