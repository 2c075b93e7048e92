//! A Kerberos realm of a test cluster: a Key Distribution Center, keytabs, and caches with tickets.
//!
//! Nothing of the machine is changed: the configuration, the database and all keys are in the cluster's directory, and
//! the server runs as the user of the test on a free port. The reaper of the cluster ends it with the daemons.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::Environment;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::conf::single_node;
use super::wait::wait_until;

/// Name of the realm, as `yarn-conf/single-node/realm.sh` makes it.
pub const REALM: &str = "TEST.LOCAL";
/// Users with a keytab, a ticket and a home directory.
pub const USERS: [&str; 2] = ["alice", "bob"];

/// A realm with its Key Distribution Center.
#[derive(Debug)]
pub struct Realm {
    dir: PathBuf,
    port: u16,
}

impl Realm {
    /// Makes the realm in `dir`/kdc and starts its server.
    ///
    /// # Errors
    /// The programs of MIT Kerberos are missing, or one fails.
    pub(super) fn start(cluster: &Path) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let realm = Self { dir: cluster.join("kdc"), port };
        let script = realm_script().display().to_string();
        let cluster = cluster.display().to_string();
        realm.run(&script, &["create", &cluster, &port.to_string()], "")?;
        realm.start_server()?;
        for user in USERS {
            realm.kinit(user, &realm.keytab(user), &realm.cache(user), &["-f"])?;
        }
        realm.kinit("nn/localhost", &realm.keytab("service"), &realm.cache("nn"), &[])?;
        Ok(realm)
    }

    /// Starts the server, and waits until it listens.
    ///
    /// # Errors
    /// It is not installed.
    pub fn start_server(&self) -> Result<()> {
        let pid = self.pid_file();
        let log = fs::File::options().create(true).append(true).open(self.dir.join("kdc.out"))?;
        Command::new(realm_script())
            .arg("serve")
            .arg(self.dir.parent().context("below the cluster's directory")?)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("krb5kdc does not start: is the package krb5-kdc installed?")?;
        wait_until("the KDC listens", std::time::Duration::from_secs(20), || {
            ensure!(pid.exists(), "no {}", pid.display());
            Ok(std::net::TcpStream::connect(("127.0.0.1", self.port)).map(drop)?)
        })
    }

    /// Ends the server.
    ///
    /// # Errors
    /// It does not run.
    pub fn stop_server(&self) -> Result<()> {
        let pid = fs::read_to_string(self.pid_file())?.trim().parse()?;
        kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        fs::remove_file(self.pid_file()).or_else(|error| match error.kind() {
            // The server removes it too.
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        wait_until("the KDC has ended", std::time::Duration::from_secs(20), || {
            ensure!(std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err(), "it listens");
            Ok(())
        })
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.join("kdc.pid")
    }

    /// Gets a ticket by a keytab; `arguments` are more of kinit's.
    ///
    /// # Errors
    /// kinit fails; with its words.
    pub fn kinit(
        &self,
        principal: &str,
        keytab: &Path,
        cache: &str,
        arguments: &[&str],
    ) -> Result<()> {
        let keytab = keytab.display().to_string();
        let mut all = vec!["-k", "-t", &keytab, "-c", cache];
        all.extend(arguments);
        all.push(principal);
        self.run("kinit", &all, "")
    }

    /// Removes a cache with its tickets.
    ///
    /// # Errors
    /// kdestroy fails; with its words.
    pub fn destroy(&self, cache: &str) -> Result<()> {
        self.run("kdestroy", &["-q", "-c", cache], "")
    }

    /// Commands of kadmin.local, one a line.
    ///
    /// # Errors
    /// It fails; with its words.
    pub fn administer(&self, commands: &str) -> Result<()> {
        self.run("kadmin.local", &[], commands)
    }

    /// krb5.conf, for `KRB5_CONFIG`.
    #[must_use]
    pub fn configuration(&self) -> PathBuf {
        self.dir.join("krb5.conf")
    }

    /// The keytab of a user, or of all daemons (`service`).
    #[must_use]
    pub fn keytab(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.keytab"))
    }

    /// The ticket cache of a user, for `KRB5CCNAME`.
    #[must_use]
    pub fn cache(&self, name: &str) -> String {
        format!("FILE:{}", self.dir.join(format!("{name}.cc")).display())
    }

    /// The server's log so far: a line for each request.
    ///
    /// # Errors
    /// There is none.
    pub fn requests(&self) -> Result<Vec<String>> {
        let text = fs::read(self.dir.join("requests.log"))?;
        let text = String::from_utf8_lossy(&text);
        let requests = text.lines().filter(|line| line.contains("_REQ "));
        Ok(requests.map(|line| line.replace('\0', "")).collect())
    }

    fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            // The servers' programs are not on the path of ordinary users.
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .env("KRB5_CONFIG", self.configuration())
            .env("KRB5_KDC_PROFILE", self.dir.join("kdc.conf"));
        command
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<()> {
        let mut child = self
            .command(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{program} does not start: is MIT Kerberos installed?"))?;
        child.stdin.take().context("piped above")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Flags of all JVMs. The last makes Hadoop's own Kerberos code work on newer Javas.
    pub(super) fn jvm_options(&self) -> String {
        format!(
            "-Djava.security.krb5.conf={}\n--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED\n",
            self.configuration().display()
        )
    }

    /// What a cluster of this realm has in its files; names with `client-` are those of the client's directory.
    ///
    /// # Errors
    /// The files of `yarn-conf/single-node/kerberos` do not read.
    pub(super) fn properties() -> Result<Vec<(String, String, String)>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(single_node().join("kerberos"))? {
            let entry = entry?;
            let file = entry.file_name().to_string_lossy().into_owned();
            let mut properties = Configuration::empty(Environment::empty());
            properties.add_file(&entry.path())?;
            for key in properties.keys() {
                // As written: it has places to fill in.
                let value = properties.explain(key).context("has a value")?.setting.raw;
                all.push((file.clone(), key.to_owned(), value));
            }
        }
        Ok(all)
    }
}

/// The script that makes and serves a realm.
fn realm_script() -> PathBuf {
    single_node().join("realm.sh")
}
