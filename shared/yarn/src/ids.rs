//! Ids of applications, attempts, containers and nodes, with their wire and text forms.
//!
//! Text forms with minimum widths: `application_<timestamp>_<%04d>`, `appattempt_<timestamp>_<%04d>_<%06d>`,
//! `container_[e<%02d>_]<timestamp>_<%04d>_<%02d>_<%06d>`, `host:port`.

use std::fmt;
use std::str::FromStr;

use crate::proto;

/// The text is not an id of the expected kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id must be {expected} (got \"{text}\")")]
pub struct IdError {
    text: String,
    expected: &'static str,
}

/// A message of a server lacks a required field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has no {0}")]
pub struct Missing(pub &'static str);

/// Id of an application (`ApplicationId`): start time of the ResourceManager, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApplicationId {
    /// Start time of the ResourceManager, ms since 1970 (`clusterTimestamp`).
    pub cluster_timestamp: i64,
    /// Its number, from 1.
    pub id: i32,
}

/// Id of an attempt, one start of an ApplicationMaster (`ApplicationAttemptId`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApplicationAttemptId {
    /// Its application.
    pub application: ApplicationId,
    /// Its number, from 1.
    pub attempt: i32,
}

/// Id of a container (`ContainerId`). A kept container has the attempt that requested it, not the one that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId {
    /// The attempt for which it was allocated.
    pub attempt: ApplicationAttemptId,
    /// Epoch and number in one, see [`ContainerId::epoch`] and [`ContainerId::number`]. Compare the whole.
    pub id: i64,
}

/// Id of a NodeManager (`NodeId`): the host and RPC port that it registered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    /// Host name or address, as in asks and exclusions.
    pub host: String,
    /// Port of `ContainerManagementProtocol`.
    pub port: u16,
}

/// Bits of a container's number; the higher bits are the epoch.
const NUMBER_BITS: u32 = 40;

impl ContainerId {
    /// Number of restarts of the ResourceManager on its state store before it issued the id.
    pub fn epoch(self) -> i64 {
        self.id >> NUMBER_BITS
    }

    /// Number within attempt and epoch; 1 is the ApplicationMaster's own container.
    pub fn number(self) -> i64 {
        self.id & ((1 << NUMBER_BITS) - 1)
    }
}

impl fmt::Display for ApplicationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "application_{}_{:04}", self.cluster_timestamp, self.id)
    }
}

impl fmt::Display for ApplicationAttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ApplicationId { cluster_timestamp, id } = self.application;
        write!(f, "appattempt_{cluster_timestamp}_{id:04}_{:06}", self.attempt)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ApplicationId { cluster_timestamp, id } = self.attempt.application;
        f.write_str("container_")?;
        if self.epoch() != 0 {
            write!(f, "e{:02}_", self.epoch())?;
        }
        write!(f, "{cluster_timestamp}_{id:04}_{:02}_{:06}", self.attempt.attempt, self.number())
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// `N` non-negative decimals after `prefix`, separated by `_`.
fn numbers<const N: usize>(text: &str, prefix: &str) -> Option<[i64; N]> {
    let mut parts = text.strip_prefix(prefix)?.split('_');
    let mut found = [0; N];
    for slot in &mut found {
        let part = parts.next()?;
        // parse() accepts a sign, which is not a digit.
        *slot = part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(found)
}

impl FromStr for ApplicationId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let [cluster_timestamp, id] = numbers(text, "application_")?;
            Some(Self { cluster_timestamp, id: id.try_into().ok()? })
        };
        parse().ok_or_else(|| IdError { text: text.to_owned(), expected: "an application id" })
    }
}

impl FromStr for ApplicationAttemptId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let [cluster_timestamp, id, attempt] = numbers(text, "appattempt_")?;
            let application = ApplicationId { cluster_timestamp, id: id.try_into().ok()? };
            Some(Self { application, attempt: attempt.try_into().ok()? })
        };
        parse()
            .ok_or_else(|| IdError { text: text.to_owned(), expected: "an application attempt id" })
    }
}

impl FromStr for ContainerId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let ([epoch], rest) = match text.strip_prefix("container_e") {
                Some(rest) => {
                    let (epoch, rest) = rest.split_once('_')?;
                    (numbers(epoch, "")?, rest)
                }
                None => ([0], text.strip_prefix("container_")?),
            };
            let [cluster_timestamp, id, attempt, number] = numbers(rest, "")?;
            let fits = epoch < 1 << (63 - NUMBER_BITS) && number < 1 << NUMBER_BITS;
            let application = ApplicationId { cluster_timestamp, id: id.try_into().ok()? };
            let attempt = ApplicationAttemptId { application, attempt: attempt.try_into().ok()? };
            fits.then_some(Self { attempt, id: epoch << NUMBER_BITS | number })
        };
        parse().ok_or_else(|| IdError { text: text.to_owned(), expected: "a container id" })
    }
}

impl FromStr for NodeId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let (host, port) = text.rsplit_once(':')?;
            (!host.is_empty()).then_some(Self { host: host.to_owned(), port: port.parse().ok()? })
        };
        parse().ok_or_else(|| IdError { text: text.to_owned(), expected: "host:port of a node" })
    }
}

impl From<ApplicationId> for proto::ApplicationIdProto {
    fn from(id: ApplicationId) -> Self {
        Self { id: Some(id.id), cluster_timestamp: Some(id.cluster_timestamp) }
    }
}

impl From<ApplicationAttemptId> for proto::ApplicationAttemptIdProto {
    fn from(id: ApplicationAttemptId) -> Self {
        Self { application_id: Some(id.application.into()), attempt_id: Some(id.attempt) }
    }
}

impl From<ContainerId> for proto::ContainerIdProto {
    fn from(id: ContainerId) -> Self {
        Self { app_attempt_id: Some(id.attempt.into()), id: Some(id.id) }
    }
}

impl From<&NodeId> for proto::NodeIdProto {
    fn from(node: &NodeId) -> Self {
        Self { host: Some(node.host.clone()), port: Some(node.port.into()) }
    }
}

impl TryFrom<&proto::ApplicationIdProto> for ApplicationId {
    type Error = Missing;

    fn try_from(message: &proto::ApplicationIdProto) -> Result<Self, Missing> {
        let id = message.id.ok_or(Missing("application number"))?;
        let cluster_timestamp = message.cluster_timestamp.ok_or(Missing("cluster timestamp"))?;
        Ok(Self { cluster_timestamp, id })
    }
}

impl TryFrom<&proto::ApplicationAttemptIdProto> for ApplicationAttemptId {
    type Error = Missing;

    fn try_from(message: &proto::ApplicationAttemptIdProto) -> Result<Self, Missing> {
        let application =
            message.application_id.as_ref().ok_or(Missing("application id"))?.try_into()?;
        Ok(Self { application, attempt: message.attempt_id.ok_or(Missing("attempt number"))? })
    }
}

impl TryFrom<&proto::ContainerIdProto> for ContainerId {
    type Error = Missing;

    fn try_from(message: &proto::ContainerIdProto) -> Result<Self, Missing> {
        let attempt =
            message.app_attempt_id.as_ref().ok_or(Missing("attempt of a container"))?.try_into()?;
        Ok(Self { attempt, id: message.id.ok_or(Missing("container number"))? })
    }
}

impl TryFrom<&proto::NodeIdProto> for NodeId {
    type Error = Missing;

    fn try_from(message: &proto::NodeIdProto) -> Result<Self, Missing> {
        let host = message.host.clone().ok_or(Missing("host of a node"))?;
        let port =
            message.port.and_then(|port| port.try_into().ok()).ok_or(Missing("port of a node"))?;
        Ok(Self { host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn container(epoch: i64, number: i64) -> ContainerId {
        let application = ApplicationId { cluster_timestamp: 1_700_000_000_000, id: 5 };
        ContainerId {
            attempt: ApplicationAttemptId { application, attempt: 1 },
            id: epoch << 40 | number,
        }
    }

    #[test]
    fn ids_have_hadoops_text_form() {
        assert_eq!(container(0, 2).to_string(), "container_1700000000000_0005_01_000002");
        assert_eq!(
            container(17, 1_234_567).to_string(),
            "container_e17_1700000000000_0005_01_1234567"
        );
        assert_eq!(container(0, 2).attempt.to_string(), "appattempt_1700000000000_0005_000001");
        assert_eq!(
            container(0, 2).attempt.application.to_string(),
            "application_1700000000000_0005"
        );
        assert_eq!(
            "nm1.example.com:8041".parse(),
            Ok(NodeId { host: "nm1.example.com".into(), port: 8041 })
        );
    }

    #[test]
    fn other_text_is_rejected() {
        for text in [
            "",
            "application_1",
            "application_1_2_3",
            "application_-1_2",
            "application_1_+2",
            "application_1_99999999999",
        ] {
            assert!(text.parse::<ApplicationId>().is_err(), "{text}");
        }
        for text in [
            "container_e_1_2_3_4",
            "container_e99999999999_1_2_3_4",
            "container_1_2_3_1099511627776",
            "container_1_2_3",
        ] {
            assert!(text.parse::<ContainerId>().is_err(), "{text}");
        }
        for text in ["host", ":1", "host:65536"] {
            assert!(text.parse::<NodeId>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn container_ids_survive_a_round_trip(
            stamp in 0..i64::MAX,
            id in 0..i32::MAX,
            attempt in 0..i32::MAX,
            epoch in 0_i64..1 << 23,
            number in 0_i64..1 << 40,
        ) {
            let application = ApplicationId { cluster_timestamp: stamp, id };
            let attempt = ApplicationAttemptId { application, attempt };
            let container = ContainerId { attempt, id: epoch << 40 | number };
            prop_assert_eq!(container.to_string().parse(), Ok(container));
            prop_assert_eq!(attempt.to_string().parse(), Ok(attempt));
            prop_assert_eq!(application.to_string().parse(), Ok(application));
            prop_assert_eq!(ContainerId::try_from(&container.into()), Ok(container));
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _parsed_or_rejected = (text.parse::<ContainerId>(), text.parse::<NodeId>());
            let _parsed_or_rejected = text.parse::<ApplicationAttemptId>();
        }
    }
}
