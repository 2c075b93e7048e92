#![doc = include_str!("../README.md")]

pub mod address;
pub mod configuration;
pub mod namenode;
pub mod proto;
pub mod rpc;
pub mod sasl;
pub mod token;
pub mod user;

pub use address::HostPort;
pub use configuration::Configuration;
pub use token::Token;
pub use user::User;
