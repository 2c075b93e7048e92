//! Time of one round.

fn main() {}
