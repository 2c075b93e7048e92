//! Parameters without sockets: tables, optimizers, snapshots, consistency, exactly-once.
