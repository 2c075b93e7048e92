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
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::wait::wait_until;

/// Name of the realm.
pub const REALM: &str = "TEST.LOCAL";
/// Principals of the daemons. HTTP is that of all web servers.
const SERVICES: [&str; 5] = ["nn", "dn", "rm", "nm", "HTTP"];
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
        let dir = cluster.join("kdc");
        fs::create_dir_all(dir.join("db"))?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let realm = Self { dir, port };
        realm.write_configuration()?;
        realm.run("kdb5_util", &["create", "-s", "-P", "only-for-tests", "-r", REALM], "")?;
        let mut commands = String::new();
        for (name, keytab) in SERVICES
            .map(|service| (format!("{service}/localhost"), "service".to_owned()))
            .into_iter()
            .chain(USERS.map(|user| (user.to_owned(), user.to_owned())))
        {
            let file = realm.keytab(&keytab);
            commands.push_str(&format!(
                "addprinc -randkey {name}\nktadd -k {} {name}\n",
                file.display()
            ));
        }
        realm.run("kadmin.local", &[], &commands)?;
        realm.start_server()?;
        for user in USERS {
            realm.kinit(user, &realm.keytab(user), &realm.cache(user), &["-f"])?;
        }
        realm.kinit("nn/localhost", &realm.keytab("service"), &realm.cache("nn"), &[])?;
        Ok(realm)
    }

    fn write_configuration(&self) -> Result<()> {
        let (dir, port) = (self.dir.display(), self.port);
        // Without DNS, and over TCP: a test machine may have neither a resolver nor other addresses.
        fs::write(
            self.configuration(),
            format!(
                "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n \
                 dns_canonicalize_hostname = false\n rdns = false\n udp_preference_limit = 1\n\
                 [realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
            ),
        )?;
        let profile = format!(
            "[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n\
             [realms]\n {REALM} = {{\n  database_name = {dir}/db/principal\n  key_stash_file = {dir}/db/stash\n  \
             acl_file = {dir}/db/acl\n  supported_enctypes = aes256-cts-hmac-sha1-96:normal\n }}\n\
             [logging]\n kdc = FILE:{dir}/requests.log\n"
        );
        Ok(fs::write(self.dir.join("kdc.conf"), profile)?)
    }

    /// Starts the server, and waits until it listens.
    ///
    /// # Errors
    /// It is not installed.
    pub fn start_server(&self) -> Result<()> {
        let pid = self.pid_file();
        // stop.sh finds the processes of a cluster by this word on their command line.
        let name =
            format!("krb5kdc -Dheddle.dir={}/", self.dir.parent().unwrap_or(&self.dir).display());
        let log = fs::File::options().create(true).append(true).open(self.dir.join("kdc.out"))?;
        self.command("krb5kdc")
            .arg0(name)
            .args(["-n", "-P"])
            .arg(&pid)
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
    pub(super) fn properties(&self) -> Vec<(String, String, String)> {
        let keytab = self.keytab("service").display().to_string();
        let service = |name: &str| format!("{name}/localhost@{REALM}");
        let rule = |n: u32| format!("RULE:[{n}:$1@$0](.*@TEST\\.LOCAL)s/@.*//");
        let mut all = Vec::new();
        let mut set = |files: &[&str], key: &str, value: &str| {
            for file in files {
                all.push(((*file).to_owned(), key.to_owned(), value.to_owned()));
            }
        };
        let core = &["core-site.xml"];
        set(core, "hadoop.security.authentication", "kerberos");
        set(core, "hadoop.security.authorization", "true");
        // The servers offer all levels, so a client selects by its own value.
        set(core, "hadoop.rpc.protection", "authentication,integrity,privacy");
        let rules = format!("{} {} DEFAULT", rule(2), rule(1));
        set(core, "hadoop.security.auth_to_local", &rules);
        let groups = "alice=alice;bob=bob;nn=hadoop;dn=hadoop;rm=hadoop;nm=hadoop";
        set(core, "hadoop.user.group.static.mapping.overrides", groups);
        let (hdfs, yarn) = ("hdfs-site.xml", "yarn-site.xml");
        let both = &[hdfs, "client-hdfs-site.xml"];
        set(both, "dfs.namenode.kerberos.principal", &service("nn"));
        set(both, "dfs.datanode.kerberos.principal", &service("dn"));
        set(both, "dfs.block.access.token.enable", "true");
        // The program of a test build has more than 100 MB: encrypting it would take minutes.
        set(both, "dfs.data.transfer.protection", "authentication");
        set(&[hdfs], "dfs.namenode.keytab.file", &keytab);
        set(&[hdfs], "dfs.datanode.keytab.file", &keytab);
        set(&[hdfs], "dfs.permissions.superusergroup", "hadoop");
        set(&[hdfs], "dfs.web.authentication.kerberos.principal", &service("HTTP"));
        set(&[hdfs], "dfs.web.authentication.kerberos.keytab", &keytab);
        // DataNodes of a test have no privileged ports.
        set(&[hdfs], "ignore.secure.ports.for.testing", "true");
        let both = &[yarn, "client-yarn-site.xml"];
        set(both, "yarn.resourcemanager.principal", &service("rm"));
        set(both, "yarn.nodemanager.principal", &service("nm"));
        for daemon in ["resourcemanager", "nodemanager"] {
            set(&[yarn], &format!("yarn.{daemon}.keytab"), &keytab);
            let web = format!("yarn.{daemon}.webapp.spnego");
            set(&[yarn], &format!("{web}-principal"), &service("HTTP"));
            set(&[yarn], &format!("{web}-keytab-file"), &keytab);
        }
        all
    }
}
