//! The YARN client, ApplicationMaster and NodeManager protocols from Rust.
