//! Clients for Apache Hadoop YARN without a JVM.
//!
//! - [`YarnClient`] submits, monitors, kills and lists applications, and reports nodes and queues.
//! - [`ApplicationMaster`] registers an attempt, requests containers, receives their events and unregisters; [`AmLoop`]
//!   sends its heartbeats and is the stream of its events.
//! - [`NodeManagers`] starts, stops, polls and signals containers.
//! - [`LaunchContext`] describes the command, environment, files and tokens of a container, [`Resources`] its size.
//!
//! The crate implements the protocols and keeps their rules; the policy is the caller's. The README has a complete
//! ApplicationMaster, and the package `hello-yarn` is one that runs. heddle-hadoop has the transport, security and
//! configuration.
//!
//! ```no_run
//! use heddle_hadoop::configuration::{Configuration, Environment};
//! use heddle_hadoop::User;
//! use heddle_yarn::client::ApplicationFilter;
//! use heddle_yarn::{Cluster, YarnClient};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let configuration = Configuration::load(Environment::of_process())?;
//! let client = YarnClient::new(&Cluster::new(&configuration, User::new("alice"))?);
//! for application in client.applications(&ApplicationFilter::default()).await? {
//!     println!("{} {:?}", application.id, application.state);
//! }
//! # Ok(()) }
//! ```

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
    AmEndpoint, AmEnvironment, AmError, AmEvent, AmHandle, AmLoop, ApplicationMaster, Ask,
    FinalStatus, HeartbeatInterval, RequestedPlacement,
};
pub use client::{ApplicationReport, ApplicationState, ClientError, Submission, YarnClient};
pub use cluster::{Cluster, ClusterError, SlowCall};
pub use container::{AskId, Container, ContainerState, ContainerStatus, ExecutionType, Priority};
pub use exit_status::{ExitCause, ExitStatus};
pub use ids::{ApplicationAttemptId, ApplicationId, ContainerId, NodeId};
pub use launch::{
    Access, LaunchContext, LocalResource, ResourceKind, ResourceUrl, RetryContext, Visibility,
};
pub use node::{NodeLabel, NodeReport, NodeState};
pub use node_managers::{NodeError, NodeManagers, NodeTokens, Signal, Started};
pub use resource::{AllocationSteps, Amount, Memory, ResourceTypes, Resources, VCores};
pub use timeouts::{CallTimeouts, rpc_options, stated_rm_wait};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
