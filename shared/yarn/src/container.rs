//! Containers: grants and states.

use heddle_hadoop::Token;
use heddle_hadoop::proto::common::TokenProto;

use crate::exit_status::ExitStatus;
use crate::ids::{ContainerId, Missing, NodeId};
use crate::proto;
use crate::resource::Resources;

/// Id of an ask (`allocation_request_id`), at least 1. The ApplicationMaster chooses it, and [`Container::ask`] of a grant
/// returns it. Use one id for each slot of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AskId(pub i64);

/// Priority of an ask within its application (`Priority`), at least 0: **lower numbers are served first**.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub i32);

/// Whether a container has guaranteed resources (`ExecutionType`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExecutionType {
    /// Its resources are reserved.
    #[default]
    Guaranteed,
    /// It waits on the node for free resources. YARN ends it (status -108) when a guaranteed container needs them.
    Opportunistic,
}

impl From<ExecutionType> for proto::ExecutionTypeProto {
    fn from(kind: ExecutionType) -> Self {
        match kind {
            ExecutionType::Guaranteed => Self::Guaranteed,
            ExecutionType::Opportunistic => Self::Opportunistic,
        }
    }
}

impl From<proto::ExecutionTypeProto> for ExecutionType {
    fn from(kind: proto::ExecutionTypeProto) -> Self {
        match kind {
            proto::ExecutionTypeProto::Guaranteed => Self::Guaranteed,
            proto::ExecutionTypeProto::Opportunistic => Self::Opportunistic,
        }
    }
}

/// A grant (`Container`): resources on a node. It must be started within the allocation expiry (10 minutes by default).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Container {
    /// Its id.
    pub id: ContainerId,
    /// Its node.
    pub node: NodeId,
    /// `host:port` of the NodeManager's web pages; empty if unknown.
    pub node_http_address: String,
    /// Its resources, at least what the ask wanted.
    pub resources: Resources,
    /// The priority of the ask.
    pub priority: Priority,
    /// Its ask; `None` from schedulers that do not return it (-1 on the wire).
    pub ask: Option<AskId>,
    /// Guaranteed or opportunistic.
    pub execution_type: ExecutionType,
    /// Grows by one with each update (`version`).
    pub version: i32,
    /// The token that the NodeManager checks at the start (`container_token`); opaque.
    pub token: Token,
}

impl Container {
    /// A grant without an ask, for tests of callers and for containers that are kept elsewhere.
    pub fn new(id: ContainerId, node: NodeId, resources: Resources, token: Token) -> Self {
        Self {
            id,
            node,
            node_http_address: String::new(),
            resources,
            priority: Priority::default(),
            ask: None,
            execution_type: ExecutionType::default(),
            version: 0,
            token,
        }
    }
}

/// Status of a running or ended container (`ContainerStatus`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContainerStatus {
    /// Its id.
    pub id: ContainerId,
    /// Its state.
    pub state: ContainerState,
    /// Whether it is being stopped or cleaned up and is not complete (`COMPLETING`).
    pub completing: bool,
    /// Its exit status; valid when it is complete.
    pub exit: ExitStatus,
    /// YARN's diagnostics, with the end of the container's standard error when it failed.
    pub diagnostics: String,
}

impl ContainerStatus {
    /// A status without diagnostics, for tests of callers.
    pub fn new(id: ContainerId, state: ContainerState, exit: ExitStatus) -> Self {
        Self { id, state, completing: false, exit, diagnostics: String::new() }
    }
}

/// State of a container (`ContainerState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContainerState {
    /// Accepted; its files are being localised.
    New,
    /// Its process runs or starts.
    Running,
    /// It has ended.
    Complete,
}

impl From<proto::ContainerStateProto> for ContainerState {
    fn from(state: proto::ContainerStateProto) -> Self {
        match state {
            proto::ContainerStateProto::CNew => Self::New,
            proto::ContainerStateProto::CRunning => Self::Running,
            proto::ContainerStateProto::CComplete => Self::Complete,
        }
    }
}

pub(crate) fn token_from_proto(token: &TokenProto) -> Token {
    Token::new(
        token.identifier.to_vec(),
        token.password.to_vec(),
        token.kind.clone(),
        token.service.clone(),
    )
}

pub(crate) fn token_to_proto(token: &Token) -> TokenProto {
    TokenProto {
        identifier: token.identifier().to_vec().into(),
        password: token.password().to_vec().into(),
        kind: token.kind().to_owned(),
        service: token.service().to_owned(),
    }
}

impl TryFrom<&proto::ContainerProto> for Container {
    type Error = Missing;

    fn try_from(message: &proto::ContainerProto) -> Result<Self, Missing> {
        Ok(Self {
            id: message.id.as_ref().ok_or(Missing("id of a container"))?.try_into()?,
            node: message.node_id.as_ref().ok_or(Missing("node of a container"))?.try_into()?,
            node_http_address: message.node_http_address().to_owned(),
            resources: message.resource.as_ref().map(Resources::from).unwrap_or_default(),
            priority: Priority(message.priority.as_ref().map_or(0, |priority| priority.priority())),
            ask: Some(message.allocation_request_id()).filter(|&id| id > 0).map(AskId),
            execution_type: message.execution_type().into(),
            version: message.version(),
            token: token_from_proto(
                message.container_token.as_ref().ok_or(Missing("token of a container"))?,
            ),
        })
    }
}

impl TryFrom<&proto::ContainerStatusProto> for ContainerStatus {
    type Error = Missing;

    fn try_from(message: &proto::ContainerStatusProto) -> Result<Self, Missing> {
        Ok(Self {
            id: message
                .container_id
                .as_ref()
                .ok_or(Missing("id of a container's status"))?
                .try_into()?,
            state: message.state().into(),
            completing: message.container_sub_state()
                == proto::ContainerSubStateProto::CssCompleting,
            exit: ExitStatus(message.exit_status()),
            diagnostics: message.diagnostics().to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_is_being_stopped_is_not_complete() {
        use prost::Message;
        // The status of a container in the NodeManager's state KILLING.
        let id: ContainerId = "container_1_0001_01_000002".parse().expect("an id");
        let mut message = proto::ContainerStatusProto {
            container_id: Some(id.into()),
            state: Some(proto::ContainerStateProto::CRunning.into()),
            ..Default::default()
        };
        let status = |message: &proto::ContainerStatusProto| {
            ContainerStatus::try_from(message).expect("a status")
        };
        assert!(!status(&message).completing, "the default without a sub-state");
        let mut bytes = message.encode_to_vec();
        bytes.extend([8 << 3, 4]);
        message = proto::ContainerStatusProto::decode(bytes.as_slice()).expect("a message");
        assert!(status(&message).completing);
        assert_eq!(status(&message).state, ContainerState::Running);
    }

    #[test]
    fn a_container_without_a_node_is_rejected() {
        assert_eq!(
            Container::try_from(&proto::ContainerProto::default()),
            Err(Missing("id of a container"))
        );
    }
}
