//! Hadoop RPC, version 9: calls with protocol buffers over TCP.
//!
//! [`RpcClient`] keeps one connection for each address, protocol, user and token, with many calls in flight. An
//! [`RpcProxy`] calls one protocol at one server or at the members of an HA group. Frames, handshake, protection and
//! retry decisions are pure code (`frame`, `session`, `failover`). Only `connection` has a socket.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use heddle_hadoop::{HostPort, User, rpc::{CallOptions, Login, RpcClient, RpcOptions}};
//! # use heddle_hadoop::proto::common::{GetDelegationTokenRequestProto, GetDelegationTokenResponseProto};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = RpcClient::new(RpcOptions::default());
//! let namenode: HostPort = "nn.example.com:8020".parse()?;
//! let proxy = client.proxy(
//!     "org.apache.hadoop.hdfs.protocol.ClientProtocol",
//!     [namenode],
//!     Login::simple(User::new("alice")),
//! );
//! let request = GetDelegationTokenRequestProto { renewer: "yarn".into() };
//! let reply: GetDelegationTokenResponseProto =
//!     proxy.call("getDelegationToken", &request, CallOptions::idempotent(Duration::from_secs(10))).await?;
//! # Ok(()) }
//! ```
//! Source: `ipc.Client`, `ipc.Server`, `ipc.RpcConstants`, `ipc.ProtobufRpcEngine2`, `io.retry.RetryPolicies`.

mod client;
mod connection;
mod dial;
pub mod error;
// Public for tests, benchmarks and fuzz targets; no promise of stability.
#[doc(hidden)]
pub mod failover;
#[doc(hidden)]
pub mod frame;
mod options;
mod outstanding;
mod remote;
#[doc(hidden)]
pub mod session;

pub use client::{Login, RpcClient, RpcProxy};
pub use error::{CallOutcome, RpcError};
pub use options::{CallOptions, Retry, RpcOptions};
pub use remote::RemoteException;
