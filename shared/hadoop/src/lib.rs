//! Hadoop from Rust without a JVM: configuration files, RPC v9, SASL and tokens.
