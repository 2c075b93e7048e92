//! Hadoop from Rust without a JVM: configuration files, RPC v9, SASL and tokens.

pub mod address;
pub mod configuration;
pub mod proto;
pub mod rpc;
pub mod sasl;
pub mod token;
pub mod user;

pub use address::HostPort;
pub use configuration::Configuration;
pub use token::Token;
pub use user::User;
