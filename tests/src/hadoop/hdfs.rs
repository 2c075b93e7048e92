//! HDFS of a cluster: Hadoop's own tools as a user, an administrator's levers, and ours beside them.

use std::process::Output;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::Environment;
use heddle_storage::HdfsStorage;

use super::cluster::Cluster;
use super::daemon::Daemon;
use super::http;

impl Cluster {
    /// `hdfs dfs <arguments>` as `user`, however it ends. Each is a JVM, of 1.5 s: better one `-cat a b c` than three.
    ///
    /// # Errors
    /// Java does not start.
    pub fn dfs_output(&self, user: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = self.java("org.apache.hadoop.fs.FsShell");
        command.env("HADOOP_USER_NAME", user).args(arguments);
        if let Some(realm) = self.realm() {
            command.env("KRB5CCNAME", realm.cache(user));
        }
        Ok(command.output()?)
    }

    /// What `hdfs dfs <arguments>` as `user` prints.
    ///
    /// # Errors
    /// It fails; with its words.
    pub fn dfs(&self, user: &str, arguments: &[&str]) -> Result<Vec<u8>> {
        let output = self.dfs_output(user, arguments)?;
        ensure!(
            output.status.success(),
            "hdfs dfs {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(output.stdout)
    }

    /// What `hdfs dfsadmin <arguments>` as the superuser prints, such as `-safemode enter`.
    ///
    /// # Errors
    /// It fails; with its words.
    pub fn dfsadmin(&self, arguments: &[&str]) -> Result<String> {
        self.tool("org.apache.hadoop.hdfs.tools.DFSAdmin", arguments)
    }

    /// `hdfs haadmin <arguments>`: asks and changes which of two NameNodes is active.
    ///
    /// # Errors
    /// It fails; with its words.
    pub fn haadmin(&self, arguments: &[&str]) -> Result<String> {
        self.tool("org.apache.hadoop.hdfs.tools.DFSHAAdmin", arguments)
    }

    /// Makes NameNode `n` of a pair the active one, also when the other is dead.
    ///
    /// # Errors
    /// The tool fails.
    pub fn fail_over_to(&self, n: u8) -> Result<()> {
        let (from, to) = (format!("nn{}", 3 - n), format!("nn{n}"));
        self.haadmin(&["-failover", &from, &to]).map(drop)
    }

    /// Limits a directory to `names` files and directories, itself included, and `bytes` of all copies together.
    /// None: without limit.
    ///
    /// # Errors
    /// The NameNode refuses.
    pub fn set_quota(&self, path: &str, names: Option<u64>, bytes: Option<u64>) -> Result<()> {
        // -1 is HdfsConstants.QUOTA_RESET.
        let value = |limit: Option<u64>| limit.map_or(-1, |limit| limit.cast_signed());
        self.webhdfs(
            "PUT",
            path,
            &format!("SETQUOTA&namespacequota={}&storagespacequota={}", value(names), value(bytes)),
        )
        .map(drop)
    }

    /// A call of the NameNode's REST interface as the superuser: `operation` is what follows `op=`, such as
    /// `SETPERMISSION&permission=500`. Costs no JVM.
    ///
    /// # Errors
    /// No active NameNode, or it refuses.
    pub fn webhdfs(&self, method: &str, path: &str, operation: &str) -> Result<String> {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective())?
            .context("this user has no name")?
            .name;
        let request = format!("/webhdfs/v1{path}?op={operation}&user.name={user}");
        let mut last = None;
        // A standby answers 403.
        for namenode in self.namenodes() {
            match http::request_ok(self.address(namenode, 9870)?, method, &request) {
                Ok(body) => return Ok(body),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no NameNode")?)
    }

    /// Our storage over this HDFS as `user`, with a client of its own. Other values of some keys may be given.
    ///
    /// # Errors
    /// The configuration does not read.
    pub fn storage_with(&self, user: &str, values: &[(&str, &str)]) -> Result<Arc<HdfsStorage>> {
        let environment = Environment::empty()
            .with_variable("HADOOP_CONF_DIR", self.conf_dir().to_string_lossy())
            .with_variable("HADOOP_USER_NAME", user);
        let mut configuration = Configuration::load(environment)?;
        for (key, value) in values {
            configuration.set(key, *value, "the test");
        }
        Ok(Arc::new(HdfsStorage::new("", &configuration)?))
    }

    /// As [`Cluster::storage_with`], without other values.
    ///
    /// # Errors
    /// The configuration does not read.
    pub fn storage(&self, user: &str) -> Result<Arc<HdfsStorage>> {
        self.storage_with(user, &[])
    }

    /// Waits until DataNode `n`, which was restarted, has reported its blocks to the NameNode.
    ///
    /// # Errors
    /// It ended, or it takes more than 120 s.
    pub fn wait_datanode(&self, n: u8) -> Result<()> {
        let daemon = Daemon::DataNode(n);
        let log = self.dir.join(format!("{daemon}.log"));
        // Lines of its earlier lives stand there too.
        let life = self.log_start(daemon)?;
        self.wait("DataNode registered", || {
            let text = std::fs::read(&log)?;
            let text = String::from_utf8_lossy(text.get(life..).unwrap_or_default());
            ensure!(
                text.contains("Successfully sent block report"),
                "{daemon} has sent no block report"
            );
            Ok(())
        })
    }

    /// /tmp for all users, /user/alice for alice alone. mallory has no home.
    pub(super) fn make_homes(&self) -> Result<()> {
        for (path, operation) in [
            ("/tmp", "MKDIRS&permission=1777"),
            ("/user", "MKDIRS&permission=755"),
            ("/user/alice", "MKDIRS&permission=700"),
            ("/user/alice", "SETOWNER&owner=alice&group=alice"),
        ] {
            self.webhdfs("PUT", path, operation)?;
        }
        Ok(())
    }

    fn tool(&self, class: &str, arguments: &[&str]) -> Result<String> {
        let output = self.java(class).args(arguments).output()?;
        ensure!(
            output.status.success(),
            "{class} {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
