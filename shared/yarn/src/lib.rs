//! The YARN client, ApplicationMaster and NodeManager protocols from Rust, without a JVM.
//!
//! - [`Client`]: submit, report, kill, list, nodes, queues.
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
pub mod exit;
pub mod ids;
pub mod launch;
mod limits;
pub mod node;
pub mod node_managers;
pub mod proto;
pub mod resource;
pub mod shell;

pub use am::{
    AmEnvironment, AmError, ApplicationMaster, Ask, Event, FinalStatus, Place, Placement,
};
pub use client::{ApplicationReport, ApplicationState, Client, ClientError, Submission};
pub use cluster::{Cluster, ClusterError, SlowCall};
pub use container::{AskId, Container, ContainerState, ContainerStatus, ExecutionType, Priority};
pub use exit::{ExitCause, ExitStatus};
pub use ids::{ApplicationAttemptId, ApplicationId, ContainerId, NodeId};
pub use launch::{
    Access, LaunchContext, LocalResource, ResourceKind, ResourceUrl, RetryContext, Visibility,
};
pub use limits::{Limits, rpc_options, stated_rm_wait};
pub use node::{NodeReport, NodeState};
pub use node_managers::{NodeError, NodeManagers, NodeTokens, Signal, Started};
pub use resource::{Amount, Memory, ResourceTypes, Resources, VCores};

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
