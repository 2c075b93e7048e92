//! A cluster: start, ask, break, stop.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, fs::File, thread};

use anyhow::{Context, Result, bail, ensure};
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::{Configuration, User};
use nix::sys::signal::Signal;

use super::cache::Jars;
use super::daemon::{Daemon, Running, java};
use super::net::{Net, datanode_ports};
use super::options::Options;
use super::realm::{Realm, USERS};
use super::reaper::Reaper;
use super::wait::wait_until;
use super::{conf, http};

/// How long a cluster may take to become ready: 5 to 8 s is usual; other builds and clusters share the cores.
const READY: Duration = Duration::from_secs(240);

/// A running cluster; dropping it ends all of its processes, its containers too, and removes its directory.
pub struct Cluster {
    options: Options,
    jars: Jars,
    pub(super) dir: PathBuf,
    net: Net,
    realm: Option<Realm>,
    running: Mutex<BTreeMap<Daemon, Running>>,
    // Last: the processes that it waits for must have ended.
    reaper: Reaper,
}

impl Cluster {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// Maven or Java are missing, a daemon ends, or the cluster is not ready after 120 s; the text has the ends of the
    /// logs.
    pub fn start(options: Options) -> Result<Self> {
        Self::boot(options, Jars::prepare()?, None)
    }

    /// As [`Cluster::start`]; `record` is where the lists of loaded classes go.
    pub(super) fn boot(mut options: Options, jars: Jars, record: Option<&Path>) -> Result<Self> {
        ensure!((1..=4).contains(&options.datanodes), "1 to 4 DataNodes");
        ensure!((1..=2).contains(&options.namenodes), "1 or 2 NameNodes");
        ensure!(options.nodemanagers <= 4, "at most 4 NodeManagers");
        ensure!(
            options.resourcemanagers <= 2
                && (options.resourcemanagers == 0) == (options.nodemanagers == 0),
            "1 or 2 ResourceManagers, none without NodeManagers"
        );
        let net = Net::take()?;
        // The directory goes to the reaper, which removes it: a TempDir would do so too early.
        let dir = tempfile::Builder::new().prefix("heddle-hadoop-").tempdir()?.keep();
        let reaper = Reaper::start(&dir, &net)?;
        let realm = options.kerberos.then(|| Realm::start(&dir)).transpose()?;
        if realm.is_some() {
            // What the test sets comes later, and wins.
            let own = std::mem::replace(&mut options.properties, Realm::properties()?);
            options.properties.extend(own);
        }
        conf::write(&dir, &net.prefix, &jars.folder(), &options)?;
        if let Some(realm) = &realm {
            let mut file = File::options().append(true).open(dir.join("conf/jvm.options"))?;
            file.write_all(realm.jvm_options().as_bytes())?;
        }
        for n in 1..=options.namenodes {
            copy(&jars.name_dir(), &dir.join(format!("nn{n}/name")))?;
        }
        if options.namenodes == 2 {
            copy(&jars.name_dir(), &conf::shared_edits(&dir))?;
        }

        let cluster = Self { options, jars, dir, net, realm, running: Mutex::default(), reaper };
        for daemon in
            cluster.namenodes().chain(cluster.resourcemanagers()).chain(cluster.nodemanagers())
        {
            cluster.run(daemon, record)?;
        }
        if cluster.options.resourcemanagers == 2 {
            cluster.wait("rm1 up", || {
                cluster.web(Daemon::ResourceManager(1), 8088, "/ws/v1/cluster/info")
            })?;
            cluster.activate(1)?;
        }
        // A DataNode that meets a NameNode which listens but is not up yet sleeps 5 s; the web port is the sign.
        for namenode in cluster.namenodes() {
            cluster.wait("NameNode up", || cluster.namenode_state(namenode))?;
        }
        for n in 1..=cluster.options.datanodes {
            cluster.run(Daemon::DataNode(n), record)?;
        }
        if cluster.options.namenodes == 2 {
            for namenode in cluster.namenodes() {
                let address = cluster.address(namenode, 8020)?;
                cluster.wait("NameNode listens", || Ok(TcpStream::connect(address)?))?;
            }
            cluster.haadmin(&["-transitionToActive", "nn1"])?;
        }
        cluster.wait_ready()?;
        match cluster.options.kerberos {
            true => cluster.make_secured_homes()?,
            false => cluster.make_homes()?,
        }
        Ok(cluster)
    }

    /// The Kerberos realm, if the cluster has one.
    pub fn realm(&self) -> Option<&Realm> {
        self.realm.as_ref()
    }

    /// Makes the users' homes as the superuser of HDFS, who has a ticket. WebHDFS would need SPNEGO.
    fn make_secured_homes(&self) -> Result<()> {
        let homes: Vec<String> = USERS.iter().map(|user| format!("/user/{user}")).collect();
        let homes: Vec<&str> = homes.iter().map(String::as_str).collect();
        self.dfs("nn", &[&["-mkdir", "-p", "/tmp"], &homes[..]].concat())?;
        self.dfs("nn", &[&["-chmod", "700"], &homes[..]].concat())?;
        for (user, home) in USERS.iter().zip(&homes) {
            self.dfs("nn", &["-chown", user, home])?;
        }
        Ok(())
    }

    /// A client's configuration directory, for `HADOOP_CONF_DIR`.
    pub fn conf_dir(&self) -> PathBuf {
        self.dir.join("client-conf")
    }

    /// A client's configuration directory of another site: this one with more properties (file, key, value).
    ///
    /// # Errors
    /// The disk.
    pub fn conf_dir_with(&self, to: &Path, properties: &[(&str, &str, &str)]) -> Result<()> {
        conf::copy_client(&self.conf_dir(), to, properties)
    }

    /// The cluster's directory: `<daemon>.log`, `nm1/local`, `nm1/logs`, ….
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A client of YARN as `user`. Must be used within a tokio runtime.
    ///
    /// # Errors
    /// The configuration does not read.
    pub fn yarn(&self, user: &str) -> Result<heddle_yarn::YarnClient> {
        Ok(heddle_yarn::YarnClient::new(&self.yarn_with(user, &[])?))
    }

    /// The cluster as `user` sees it, with other values of some keys.
    ///
    /// # Errors
    /// The configuration does not read.
    pub fn yarn_with(&self, user: &str, values: &[(&str, &str)]) -> Result<heddle_yarn::Cluster> {
        let conf = self.conf_dir();
        let environment =
            Environment::empty().with_variable("HADOOP_CONF_DIR", conf.to_string_lossy());
        let mut configuration = Configuration::load(environment)?;
        for (key, value) in values {
            configuration.set(key, *value, "the test");
        }
        Ok(heddle_yarn::Cluster::new(&configuration, User::new(user))?)
    }

    /// `hdfs://127.90.0.1:8020`, or `hdfs://heddle` with two NameNodes.
    pub fn hdfs(&self) -> String {
        match self.options.namenodes {
            2 => format!("hdfs://{}", conf::SERVICE),
            _ => format!("hdfs://{}.1:8020", self.net.prefix),
        }
    }

    /// The address of a daemon's host, which for a NodeManager is the host of its `NodeId`. A DataNode listens on
    /// 127.0.0.1, but this is the host that the NameNode names for its blocks.
    pub fn host(&self, daemon: Daemon) -> String {
        format!("{}.{}", self.net.prefix, daemon.host_byte())
    }

    /// What the active ResourceManager's REST interface answers to GET `path`, such as `/ws/v1/cluster/apps`.
    ///
    /// # Errors
    /// No ResourceManager is active, or the answer is not JSON.
    pub fn rm_get(&self, path: &str) -> Result<serde_json::Value> {
        let mut last = None;
        // A standby answers 307.
        for rm in self.resourcemanagers() {
            match self.web(rm, 8088, path) {
                Ok(body) => {
                    return serde_json::from_str(&body).with_context(|| format!("{path}: {body}"));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no ResourceManager")?)
    }

    /// Sends SIGKILL and waits for the end. Containers of a killed NodeManager live on.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&self, daemon: Daemon) -> Result<()> {
        self.take(daemon)?.end(Signal::SIGKILL)
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// It does not run.
    pub fn stop_daemon(&self, daemon: Daemon) -> Result<()> {
        self.take(daemon)?.end(Signal::SIGTERM)
    }

    /// Stops the process in its tracks (SIGSTOP): it keeps its connections and answers nothing.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self, daemon: Daemon) -> Result<()> {
        self.signal(daemon, Signal::SIGSTOP)
    }

    /// Lets a paused process go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self, daemon: Daemon) -> Result<()> {
        self.signal(daemon, Signal::SIGCONT)
    }

    /// Starts a daemon again that was killed or stopped, on the same address and directories. Does not wait.
    ///
    /// # Errors
    /// It runs already.
    pub fn restart(&self, daemon: Daemon) -> Result<()> {
        self.run(daemon, None)
    }

    /// The process id, if it was started and not ended by us.
    pub fn pid(&self, daemon: Daemon) -> Option<u32> {
        self.lock().get(&daemon).map(Running::pid)
    }

    /// Makes ResourceManager `n` the active one although the other does not respond (`rmadmin -transitionToActive
    /// --forceactive`).
    ///
    /// # Errors
    /// The tool fails.
    pub fn activate(&self, n: u8) -> Result<()> {
        self.rmadmin(&["-transitionToActive", "--forceactive", &format!("rm{n}")])
    }

    /// `yarn rmadmin <arguments>`, as the administrator.
    ///
    /// # Errors
    /// The tool fails; with its words.
    pub fn rmadmin(&self, arguments: &[&str]) -> Result<()> {
        let class = "org.apache.hadoop.yarn.client.cli.RMAdminCLI";
        let output = self.java(class).args(arguments).output()?;
        ensure!(
            output.status.success(),
            "rmadmin {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Takes a NodeManager's node out of service: it gets no more containers, and those that it has may run for
    /// `seconds`. None: no node is out of service any more.
    ///
    /// # Errors
    /// The disk, or the tool fails.
    pub fn decommission(&self, node: Option<u8>, seconds: u32) -> Result<()> {
        let host = node.map(|n| format!("{}\n", self.host(Daemon::NodeManager(n))));
        fs::write(self.dir.join(conf::EXCLUDED), host.unwrap_or_default())?;
        self.rmadmin(&["-refreshNodes", "-g", &seconds.to_string(), "-server"])
    }

    /// A Java client of the cluster, to which arguments can be added.
    pub fn java(&self, class: &str) -> Command {
        let mut command = java(&self.jars, &self.dir, 128, true);
        let log = self.conf_dir().join("log4j.properties");
        command.arg(format!("-Dlog4j.configuration=file:{}", log.display()));
        command.args([
            "-cp",
            &format!("{}:{}", self.jars.class_path(), self.conf_dir().display()),
            class,
        ]);
        command
    }

    /// The jar whose name begins with `prefix`.
    pub fn jar(&self, prefix: &str) -> Option<PathBuf> {
        let jars = fs::read_dir(self.jars.folder()).ok()?;
        jars.flatten()
            .map(|e| e.path())
            .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
    }

    /// Waits until HDFS is out of safe mode with every DataNode that runs, and every NodeManager that runs is active.
    /// A killed DataNode counts as live for 14 s, so this waits for its death too.
    ///
    /// # Errors
    /// A daemon ended, or it takes more than 120 s.
    pub fn wait_ready(&self) -> Result<()> {
        let running: Vec<Daemon> = self.lock().keys().copied().collect();
        let count = |is: fn(&Daemon) -> bool| running.iter().filter(|daemon| is(daemon)).count();
        let datanodes = count(|daemon| matches!(daemon, Daemon::DataNode(_)));
        let nodemanagers = count(|daemon| matches!(daemon, Daemon::NodeManager(_)));
        let is_namenode = |daemon: &&Daemon| matches!(daemon, Daemon::NameNode(_));
        self.wait("cluster ready", || {
            for namenode in running.iter().filter(is_namenode) {
                let hdfs = self.namenode_state(*namenode)?;
                let live = format!("\"NumLiveDataNodes\" : {datanodes},");
                ensure!(
                    hdfs.contains("\"FSState\" : \"Operational\"") && hdfs.contains(&live),
                    "{namenode} not ready: {hdfs}"
                );
            }
            if self.options.resourcemanagers > 0 {
                let yarn = self.rm_get("/ws/v1/cluster/metrics")?;
                let active = &yarn["clusterMetrics"]["activeNodes"];
                ensure!(active == nodemanagers, "{active} of {nodemanagers} NodeManagers active");
            }
            Ok(())
        })
    }

    /// Ends every process of the cluster, containers included.
    ///
    /// # Errors
    /// Some are left.
    pub fn stop(mut self) -> Result<()> {
        self.reaper.finish(false)
    }

    fn run(&self, daemon: Daemon, record: Option<&Path>) -> Result<()> {
        let mut running = self.lock();
        ensure!(!running.contains_key(&daemon), "{daemon} runs already");
        running.insert(
            daemon,
            Running::start(daemon, &self.dir, &self.net.prefix, &self.jars, record)?,
        );
        Ok(())
    }

    /// Where in its log a daemon's present life begins.
    pub(super) fn log_start(&self, daemon: Daemon) -> Result<usize> {
        self.lock()
            .get(&daemon)
            .map(|running| running.log_start)
            .with_context(|| format!("{daemon} does not run"))
    }

    fn take(&self, daemon: Daemon) -> Result<Running> {
        self.lock().remove(&daemon).with_context(|| format!("{daemon} does not run"))
    }

    fn signal(&self, daemon: Daemon, signal: Signal) -> Result<()> {
        self.lock().get(&daemon).with_context(|| format!("{daemon} does not run"))?.signal(signal)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Daemon, Running>> {
        self.running.lock().expect("no holder of this lock panics")
    }

    pub(super) fn namenodes(&self) -> impl Iterator<Item = Daemon> + use<> {
        (1..=self.options.namenodes).map(Daemon::NameNode)
    }

    fn resourcemanagers(&self) -> impl Iterator<Item = Daemon> + use<> {
        (1..=self.options.resourcemanagers).map(Daemon::ResourceManager)
    }

    fn nodemanagers(&self) -> impl Iterator<Item = Daemon> + use<> {
        (1..=self.options.nodemanagers).map(Daemon::NodeManager)
    }

    /// Its network, such as `127.90.0`.
    pub(super) fn network(&self) -> &str {
        &self.net.prefix
    }

    /// The beans of a daemon of HDFS whose names have this pattern.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn jmx(&self, daemon: Daemon, beans: &str) -> Result<serde_json::Value> {
        let port = match daemon {
            Daemon::DataNode(n) => datanode_ports(&self.net.prefix, n)[1],
            _ => 9870,
        };
        Ok(serde_json::from_str(&self.web(daemon, port, &format!("/jmx?qry={beans}"))?)?)
    }

    pub(super) fn web(&self, daemon: Daemon, port: u16, path: &str) -> Result<String> {
        http::request_ok(self.address(daemon, port)?, "GET", path)
    }

    pub(super) fn address(&self, daemon: Daemon, port: u16) -> Result<SocketAddr> {
        Ok((self.host(daemon).parse::<Ipv4Addr>()?, port).into())
    }

    pub(super) fn namenode_state(&self, namenode: Daemon) -> Result<String> {
        self.web(namenode, 9870, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
    }

    /// [`wait_until`] that gives up at once when a daemon has ended, and shows the logs.
    pub(super) fn wait<T>(&self, what: &str, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
        let mut ended = None;
        let result = wait_until(what, READY, || {
            ended = self.lock().values_mut().find_map(|running| running.check().err());
            if ended.is_some() { Ok(None) } else { ask().map(Some) }
        });
        let result = match (ended, result) {
            (Some(error), _) | (None, Err(error)) => Err(error),
            (None, Ok(None)) => bail!("{what}: no answer"),
            (None, Ok(Some(value))) => return Ok(value),
        };
        result.with_context(|| format!("{what}\n{}", self.log_ends()))
    }

    /// The last lines of every daemon's log.
    fn log_ends(&self) -> String {
        let mut text = String::new();
        for daemon in self.lock().keys() {
            let log =
                fs::read_to_string(self.dir.join(format!("{daemon}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            text.push_str(&format!(
                "--- {daemon}.log\n{}\n",
                lines[lines.len().saturating_sub(15)..].join("\n")
            ));
        }
        text
    }
}

/// Copies a directory, whose parents are made.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a path below the cluster's directory")?)?;
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status()?;
    ensure!(copied.success(), "cannot copy {}", from.display());
    Ok(())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A failing test leaves the logs for the analysis.
        let keep = thread::panicking();
        if keep {
            eprintln!("the cluster's logs are kept in {}", self.dir.display());
        }
        if let Err(error) = self.reaper.finish(keep) {
            eprintln!("stopping the cluster in {}: {error:#}", self.dir.display());
        }
    }
}
