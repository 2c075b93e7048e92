//! The whole system under test: real processes, fault injection.

pub mod canaries;
pub mod checkpointed_job;
pub mod checkpoints;
pub mod controller;
pub mod counts;
pub mod example_page;
pub mod hadoop;
pub mod hdfs_job;
pub mod local;
pub mod logs;
pub mod ports;
pub mod relay;
pub mod secured_job;
pub mod secured_submission;
pub mod standstill;
pub mod strangers;
pub mod yarn_job;
