//! Files and jobs on a real HDFS, whose daemons are killed, stopped and damaged.

mod commit;
mod damage;
mod faults;
mod files;
mod jobs;
mod tables;
