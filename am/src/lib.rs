//! The ApplicationMaster: drives the core, owns sockets, disks and time.
