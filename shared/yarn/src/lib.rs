//! The YARN client, ApplicationMaster and NodeManager protocols from Rust, without a JVM.
//!
//! - [`YarnClient`]: submit, report, kill, list, nodes, queues.
//! - [`ApplicationMaster`]: register, ask for containers, hear what became of them, finish.
//! - [`NodeManagers`]: start, stop, ask about and signal containers.
//!
//! [`LaunchContext`] says what runs, [`Resources`] what it may use. The README shows an ApplicationMaster; the package
//! `hello-yarn` is one that runs. Transport, security and configuration come from heddle-hadoop.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod am;
pub mod client;
mod cluster;
pub mod container;
pub mod exit_status;
pub mod ids;
pub mod launch;
pub mod node;
pub mod node_managers;
pub mod proto;
pub mod resource;
pub mod shell;
mod timeouts;

pub use am::{
    AmEndpoint, AmEnvironment, AmError, AmEvent, ApplicationMaster, Ask, FinalStatus,
    RequestedPlacement,
};
pub use client::{ApplicationReport, ApplicationState, ClientError, Submission, YarnClient};
pub use cluster::{Cluster, ClusterError, SlowCall};
pub use container::{AskId, Container, ContainerState, ContainerStatus, ExecutionType, Priority};
pub use exit_status::{ExitCause, ExitStatus};
pub use ids::{ApplicationAttemptId, ApplicationId, ContainerId, NodeId};
pub use launch::{
    Access, LaunchContext, LocalResource, ResourceKind, ResourceUrl, RetryContext, Visibility,
};
pub use node::{NodeReport, NodeState};
pub use node_managers::{NodeError, NodeManagers, NodeTokens, Signal, Started};
pub use resource::{Amount, Memory, ResourceTypes, Resources, VCores};
pub use timeouts::{CallTimeouts, rpc_options, stated_rm_wait};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
