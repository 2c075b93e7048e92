//! A real Hadoop for tests: NameNode, DataNodes, ResourceManagers and NodeManagers, each a JVM of its own, on a
//! loopback network of their own.
//!
//! ```no_run
//! use heddle_tests::hadoop::{Cluster, Options};
//! # fn main() -> anyhow::Result<()> {
//! let cluster = Cluster::start(Options { nodemanagers: 2, ..Options::default() })?;
//! let submit = std::process::Command::new("hello-yarn")
//!     .env("HADOOP_CONF_DIR", cluster.conf_dir())
//!     .env("HADOOP_USER_NAME", "alice");
//! # Ok(()) }
//! ```
//!
//! - **Configuration**: that of `yarn-conf/single-node`, with more nodes and with the overrides of [`Options`].
//! - **Where**: each cluster has a /24 of 127/8 to itself with Hadoop's default ports (`net`), so several run side
//!   by side, and NodeManagers are distinct hosts to the scheduler.
//! - **HDFS** alone is [`Options::hdfs`]; two NameNodes behind a name service are [`Options::namenodes`]. `hdfs` has
//!   Hadoop's own tools and an administrator's levers, `disk` damages blocks where they lie. A DataNode has the host
//!   of the NodeManager with its number.
//! - **Jars** come from Maven by `tests/hadoop/pom.xml`, once for each machine (`cache`); without Maven or a JDK
//!   starting fails, it never skips.
//! - **Cleanup**: a watchdog process (`reaper`) that ends every daemon and container when the cluster is
//!   dropped or the test process is gone, however it went.
//! - **Kerberos**: [`Options::kerberos`] makes a realm with users alice and bob ([`Realm`]); needs MIT Kerberos.
//! - **Users**: the daemons run as the user of the test, which is HDFS's superuser and YARN's administrator. So tests
//!   act as `alice`, with a home directory, and `mallory`, without access to her files and jobs.
//!
//! - **`yarn jar`** without a cluster is [`RunJar`].
//!
//! Ready means asked for, not slept for: [`wait_until`].

mod browser;
mod cache;
mod cluster;
mod conf;
mod daemon;
mod disk;
mod hdfs;
mod hello;
pub(crate) mod http;
mod lossy;
mod net;
mod options;
mod pipeline;
mod realm;
mod reaper;
mod run_jar;
mod shared;
mod unmanaged;
pub mod wait;

pub use cluster::Cluster;
pub use daemon::Daemon;
pub use disk::{Block, Replica};
pub use hello::Hello;
pub use lossy::Lossy;
pub use net::Net;
pub use options::Options;
pub use realm::{REALM, Realm};
pub use run_jar::{RunJar, javas, launcher_jar};
pub use shared::Shared;
pub use unmanaged::Unmanaged;
pub use wait::wait_until;
