//! An MD5 sum.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An MD5 sum. Written as 32 lower-case hexadecimal digits; upper-case ones are read too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Md5(pub [u8; 16]);

/// Why a text is not an MD5 sum.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 hexadecimal digits, got {0:?}")]
pub struct Md5Error(String);

impl fmt::Display for Md5 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Md5 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Md5 {
    type Err = Md5Error;

    fn from_str(text: &str) -> Result<Self, Md5Error> {
        let mut sum = [0; 16];
        hex::decode_to_slice(text, &mut sum)
            .map_err(|_| Md5Error(text.chars().take(40).collect()))?;
        Ok(Self(sum))
    }
}

impl Serialize for Md5 {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Md5 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
