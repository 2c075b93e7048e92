//! A YARN application in Rust: N containers that run a command.

fn main() {}
