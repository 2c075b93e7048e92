//! Clients for Apache Hadoop services without a JVM.
//!
//! - [`configuration`] reads `core-site.xml`, `hdfs-site.xml` and `yarn-site.xml` and reports the origin of each value.
//! - [`rpc`] calls methods of Hadoop servers over RPC version 9, with deadlines, failover and typed errors.
//! - [`sasl`] authenticates connections with SIMPLE, tokens (DIGEST-MD5) and Kerberos (GSSAPI), and protects them.
//! - [`identity`] determines the user, and the login for each server.
//! - [`token`] reads and writes tokens and credentials files.
//! - [`namenode`] has the NameNode calls that schedulers need, such as block locations and delegation tokens.
//!
//! The crate has the transport, not the protocols: callers bring their own protocol buffers. [`kerberos`] loads MIT's library
//! at the first login by a ticket; the crate is not linked with it.
//!
//! ```no_run
//! use heddle_hadoop::configuration::{Configuration, Environment, NameService};
//! use heddle_hadoop::namenode::NameNode;
//! use heddle_hadoop::rpc::{Login, RpcClient, RpcOptions};
//! use heddle_hadoop::User;
//! use std::time::Duration;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let configuration = Configuration::load(Environment::of_process())?;
//! let servers = NameService::of_default(&configuration)?.servers;
//! let client = RpcClient::new(RpcOptions::of(&configuration)?);
//! let login = Login::simple(User::new("alice"));
//! let namenode = NameNode::new(&client, servers, login, Duration::from_secs(10));
//! println!("{:?}", namenode.block_locations("/data/input", 0, 1 << 30).await?);
//! # Ok(()) }
//! ```

pub mod address;
pub mod configuration;
pub mod identity;
pub mod kerberos;
pub mod namenode;
pub mod proto;
pub mod rpc;
pub mod sasl;
pub mod token;
pub mod user;

pub use address::HostPort;
pub use configuration::Configuration;
/// The Kerberos library.
pub use heddle_gssapi as gssapi;
/// The library of the protocol buffers: calls of [`rpc::RpcProxy`] take and return its messages. Another major version of it
/// is another major version of this crate.
pub use prost;
pub use token::Token;
pub use user::User;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct HadoopReadme;
