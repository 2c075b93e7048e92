//! Jobs and the client on real YARN clusters, in health and under every kind of fault.

mod cluster;
mod controller;
mod faults;
mod job;
mod job_chaos;
mod job_hdfs_faults;
mod job_kills;
mod job_moves;
mod job_operations;
mod job_paths;
mod job_queues;
mod job_refusals;
mod job_replicas;
mod job_sites;
mod job_stale;
mod jobs;
mod protocol;
mod single_node;
