//! The cluster as this process's environment names it: its ResourceManager, its file system, the user's
//! places there, and what failures of both come to.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use heddle_am::staging::HOME_DIR;
use heddle_hadoop::configuration::{Environment, config_directories};
use heddle_hadoop::rpc::RpcError;
use heddle_hadoop::rpc::error::AuthError;
use heddle_hadoop::sasl::{DigestError, SaslError};
use heddle_hadoop::{Configuration, HostPort, User};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::{JobSpec, Location};
use heddle_storage::{Kind, Mode, Reason, Storage, StorageError, StorePath, WriteError, connect};
use heddle_yarn::{
    ApplicationId, CallTimeouts, ClientError, Cluster, ClusterError, YarnClient, rpc_options,
    stated_rm_wait,
};

use crate::application::HDFS;
use crate::failure::Failure;
use crate::waiting;

/// A cluster and its user. Made within a runtime.
pub struct ClusterContext {
    /// What `HADOOP_CONF_DIR` says.
    pub configuration: Configuration,
    /// Calls to the ResourceManager.
    pub client: YarnClient,
    /// As whom.
    pub user: User,
    /// Whether the cluster wants proofs of identity.
    pub secured: bool,
    /// The file system that `fs.defaultFS` names.
    pub storage: Arc<dyn Storage>,
    /// `host:port` or name service of it.
    authority: String,
    /// What users' homes are below.
    homes: String,
}

/// How long a ResourceManager that does not answer is waited for, where neither `--rm-wait` nor a file says it: a
/// failover with ZooKeeper takes 30 to 60 s.
const RM_WAIT: Duration = Duration::from_secs(60);

/// `--rm-wait`, from the command line of this process.
static RM_WAIT_GIVEN: OnceLock<Duration> = OnceLock::new();

/// Sets how long this process waits for a ResourceManager that does not answer (`--rm-wait`). The first call counts.
pub fn set_rm_wait(wait: Duration) {
    let _set_before = RM_WAIT_GIVEN.set(wait);
}

/// Whether the environment names a cluster: by the rule of [`ClusterContext::load`], a `yarn-site.xml` is found.
#[must_use]
pub fn is_named() -> bool {
    names_a_cluster(&Environment::of_process())
}

fn names_a_cluster(environment: &Environment) -> bool {
    config_directories(environment, true)
        .iter()
        .any(|candidate| candidate.directory.join("yarn-site.xml").is_file())
}

/// What is used of YARN's addresses and times, with the waits of a command at a terminal.
///
/// `context` names the caller in the ResourceManager's audit log.
fn cluster_of(
    configuration: &Configuration,
    user: &User,
    context: &str,
) -> Result<Cluster, ClusterError> {
    let wait = match RM_WAIT_GIVEN.get() {
        Some(given) => *given,
        None => stated_rm_wait(configuration)?.unwrap_or(RM_WAIT),
    };
    let limits = CallTimeouts { call: wait, ..CallTimeouts::of(configuration)? };
    let options = rpc_options(configuration)?.with_caller_context(configuration, context)?;
    let cluster = Cluster::with(configuration, user.clone(), options, limits)?;
    Ok(cluster.with_slow_call_observer(Arc::new(|servers: &[HostPort], wait: Duration| {
        waiting::say(&slow_call_text(servers, wait));
    })))
}

/// That a call takes long, in one line.
fn slow_call_text(servers: &[HostPort], wait: Duration) -> String {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    format!(
        "waiting for the ResourceManager ({}), at most {} s (--rm-wait)",
        servers.join(", "),
        wait.as_secs()
    )
}

impl ClusterContext {
    /// Reads the configuration; asks nobody yet.
    ///
    /// # Errors
    /// Exit code 7 when it cannot be read or names no cluster, 5 when there is no user.
    pub fn load() -> Result<Self, Failure> {
        let wrong = |error: &dyn std::error::Error| {
            Failure::caused(ExitCode::Input, "Hadoop's configuration does not name a cluster", error).next(
                "set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
            )
        };
        let environment = Environment::of_process();
        let configuration = Configuration::load(environment.clone()).map_err(|e| wrong(&e))?;
        let text = |key: &str| configuration.trimmed(key).map_err(|error| wrong(&error));
        let secured = text("hadoop.security.authentication")?
            .is_some_and(|how| !how.eq_ignore_ascii_case("simple"));
        let user = User::resolve(&environment, secured)
            .map_err(|error| Failure::caused(ExitCode::Denied, "nobody to submit as", &error))?;
        let default = text("fs.defaultFS")?.unwrap_or_default();
        let authority = default
            .strip_prefix("hdfs://")
            .and_then(|rest| rest.split('/').next())
            .unwrap_or_default()
            .to_owned();
        if authority.is_empty() {
            let fact = format!("fs.defaultFS is {default:?}, which is no HDFS");
            return Err(Failure::new(ExitCode::Input, fact).next(
                "set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
            ));
        }
        let homes = text("dfs.user.home.dir.prefix")?.unwrap_or_else(|| "/user".to_owned());
        let cluster = cluster_of(&configuration, &user, "heddle").map_err(|e| wrong(&e))?;
        let root = heddle_storage::Location::Hdfs {
            authority: authority.clone(),
            path: StorePath::root(),
        };
        let storage = connect(&root).map_err(|error| storage_failure("no storage", &error))?;
        Ok(Self {
            client: YarnClient::new(&cluster),
            configuration,
            user,
            secured,
            storage,
            authority,
            homes,
        })
    }

    /// A client whose calls name this application in the ResourceManager's audit log, where the site wants that
    /// (`hadoop.caller.context.enabled`); none where it does not.
    ///
    /// # Errors
    /// As [`ClusterContext::load`].
    pub fn client_naming(&self, application: ApplicationId) -> Result<Option<YarnClient>, Failure> {
        let enabled = self.configuration.boolean("hadoop.caller.context.enabled", false);
        if !enabled.unwrap_or(false) {
            return Ok(None);
        }
        let context = format!("heddle_{application}");
        let cluster = cluster_of(&self.configuration, &self.user, &context);
        let cluster = cluster.map_err(|error| {
            Failure::caused(
                ExitCode::Input,
                "Hadoop's configuration does not name a cluster",
                &error,
            )
        })?;
        Ok(Some(YarnClient::new(&cluster)))
    }

    /// A place on the default file system.
    fn place(&self, path: &str) -> Result<Location, Failure> {
        format!("hdfs://{}{path}", self.authority)
            .parse()
            .map_err(|error| Failure::caused(ExitCode::Input, format!("no place {path:?}"), &error))
    }

    /// The same place with the file system's name, where it was left to `fs.defaultFS`.
    ///
    /// # Errors
    /// Never for places that came from a job file.
    pub fn whole(&self, location: &Location) -> Result<Location, Failure> {
        match location.scheme() == "hdfs" && location.authority().is_empty() {
            true => self.place(location.path()),
            false => Ok(location.clone()),
        }
    }

    /// A user's home.
    ///
    /// # Errors
    /// The name is none that stands in a path.
    pub fn home_of(&self, user: &str) -> Result<Location, Failure> {
        if user.is_empty() || user.contains(['/', '\0']) || user == ".." {
            return Err(Failure::new(ExitCode::Denied, format!("no user {user:?}")));
        }
        self.place(&format!("{}/{user}", self.homes.trim_end_matches('/')))
    }

    /// Our own user's home.
    ///
    /// # Errors
    /// As [`ClusterContext::home_of`].
    pub fn home(&self) -> Result<Location, Failure> {
        self.home_of(self.user.short_name())
    }

    /// Where everything of an application lies while it runs.
    ///
    /// # Errors
    /// As [`ClusterContext::home_of`].
    pub fn staging(&self, user: &str, application: ApplicationId) -> Result<Location, Failure> {
        let below = self.home_of(user)?.join(HOME_DIR).join("staging");
        Ok(below.join(&application.to_string()))
    }

    /// Where what stays of an application lies.
    ///
    /// # Errors
    /// As [`ClusterContext::home_of`].
    pub fn reports(&self, user: &str, application: ApplicationId) -> Result<Location, Failure> {
        let below = self.home_of(user)?.join(HOME_DIR).join("reports");
        Ok(below.join(&application.to_string()))
    }

    /// A job whose places on HDFS all name their file system.
    ///
    /// # Errors
    /// Never for places that came from a job file.
    pub fn whole_spec(&self, mut spec: JobSpec) -> Result<JobSpec, Failure> {
        let data = spec.data.train.iter_mut().chain(&mut spec.data.test);
        let outputs = [&mut spec.checkpoint.dir, &mut spec.output.model];
        let files = spec.yarn.files.iter_mut().chain(&mut spec.yarn.archives);
        let all = data.chain(outputs).chain(files.map(|file| &mut file.from));
        for location in all {
            *location = self.whole(location)?;
        }
        Ok(spec)
    }

    /// Makes directories that only their owner enters, from `home` down. The home itself is an administrator's to make.
    ///
    /// # Errors
    /// Exit code 5 when that is not allowed, 6 when the file system does not answer.
    pub async fn make_dirs(&self, home: &Location, below: &[&str]) -> Result<Location, Failure> {
        let mut at = home.clone();
        for name in below {
            at = at.join(name);
            let path = path_of(&at)?;
            let made = waiting::on(HDFS, self.storage.mkdir(&path, Mode::DIR)).await;
            match made {
                Ok(()) => {}
                Err(WriteError::NotDone(error)) if error.is_exists() => {}
                Err(error) if error.error().is_not_found() => {
                    return Err(no_home(home));
                }
                Err(error) => {
                    // A NameNode refuses to make what lies below a home that is missing: the parent is not ours.
                    if error.error().reason == Reason::Denied && self.is_missing(home).await {
                        return Err(no_home(home));
                    }
                    let fact = format!("{at} cannot be made");
                    return Err(storage_failure(&fact, error.error()));
                }
            }
        }
        Ok(at)
    }

    /// Whether a NameNode listens, within seconds: calls themselves wait for one that restarts.
    ///
    /// # Errors
    /// Exit code 6 when none does.
    pub async fn reach(&self) -> Result<(), Failure> {
        let reached = waiting::on(HDFS, self.storage.reach()).await;
        reached.map_err(|error| {
            storage_failure("HDFS cannot be reached", &error).next(format!(
                "is the NameNode of fs.defaultFS = hdfs://{} up, and is HADOOP_CONF_DIR that of the cluster?",
                self.authority
            ))
        })
    }

    /// Removes a directory of ours with all it holds; one that is not there is removed.
    ///
    /// # Errors
    /// The file system does not do it.
    pub async fn remove_dir(&self, dir: &Location) -> Result<(), Failure> {
        match self.storage.delete_dir(&path_of(dir)?).await {
            Ok(()) => Ok(()),
            Err(error) if error.error().is_not_found() => Ok(()),
            Err(error) => Err(storage_failure(&format!("{dir} cannot be removed"), error.error())),
        }
    }

    /// Reads a small file; nothing where there is none.
    ///
    /// # Errors
    /// The file system does not give it.
    pub async fn read(
        &self,
        place: &Location,
        bytes_max: usize,
    ) -> Result<Option<bytes::Bytes>, Failure> {
        let path = path_of(place)?;
        let read = heddle_storage::read_small(&*self.storage, &path, bytes_max);
        match waiting::on(HDFS, read).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(storage_failure(&format!("{place} cannot be read"), &error)),
        }
    }

    /// Whether a file is at that place.
    ///
    /// # Errors
    /// The file system does not say.
    pub async fn is_file(&self, place: &Location) -> Result<bool, Failure> {
        match waiting::on(HDFS, self.storage.stat(&path_of(place)?)).await {
            Ok(entry) => Ok(entry.kind == Kind::File),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(storage_failure(&format!("{place} cannot be read"), &error)),
        }
    }

    /// Looks whether the user has a home directory, where the files of each submission lie.
    ///
    /// # Errors
    /// Exit code 5 when it is missing. What else is wrong is said where it is used.
    pub async fn has_home(&self) -> Result<(), Failure> {
        let home = self.home()?;
        match self.is_missing(&home).await {
            true => Err(no_home(&home)),
            false => Ok(()),
        }
    }

    /// Whether nothing is at that place, as far as the file system says.
    async fn is_missing(&self, place: &Location) -> bool {
        let Ok(path) = path_of(place) else {
            return false;
        };
        let found = waiting::on(HDFS, self.storage.stat(&path)).await;
        found.is_err_and(|error| error.is_not_found())
    }
}

fn no_home(home: &Location) -> Failure {
    Failure::new(ExitCode::Denied, format!("your home directory {home} does not exist")).next(format!(
        "ask an administrator of the cluster to make it: hdfs dfs -mkdir {0}, then hdfs dfs -chown you {0}",
        home.path()
    ))
}

/// The path of a place within its storage.
///
/// # Errors
/// Longer than any storage takes.
pub fn path_of(place: &Location) -> Result<StorePath, Failure> {
    StorePath::parse(place.path())
        .map_err(|error| Failure::caused(ExitCode::Input, place.to_string(), &error))
}

/// What a storage's failure comes to.
#[must_use]
pub fn storage_failure(fact: &str, error: &StorageError) -> Failure {
    let exit = match &error.reason {
        _ if error.is_refused() => ExitCode::Denied,
        Reason::Unavailable => ExitCode::Unreachable,
        _ => ExitCode::Input,
    };
    Failure::caused(exit, fact, error)
}

/// What a failed call to the ResourceManager comes to.
#[must_use]
pub fn client_failure(fact: &str, error: &ClientError) -> Failure {
    match error {
        ClientError::NotFound(_) => Failure::caused(ExitCode::Input, fact, error)
            .next("`heddle list --yarn` shows the applications that the cluster remembers"),
        ClientError::Denied(_) => Failure::caused(ExitCode::Denied, fact, error),
        ClientError::Auth(source) => {
            Failure::caused(ExitCode::Denied, fact, error).next(after_no_login(source))
        }
        ClientError::Refused { diagnostics, .. } => {
            let mut failure = Failure::new(ExitCode::Refused, fact);
            failure.causes = diagnostics.lines().map(str::to_owned).collect();
            failure
        }
        ClientError::Waited { .. } | ClientError::Unreachable(_) => {
            Failure::caused(ExitCode::Unreachable, fact, error)
                .next("is HADOOP_CONF_DIR that of the cluster, and is the ResourceManager up?")
        }
        _ => Failure::caused(ExitCode::Unreachable, fact, error),
    }
}

/// The next step after a login that the ResourceManager does not take.
fn after_no_login(error: &RpcError) -> &'static str {
    let RpcError::Auth { source, .. } = error else {
        return "is HADOOP_CONF_DIR that of the cluster?";
    };
    match source {
        AuthError::Sasl(SaslError::SimpleRefused) => {
            "core-site.xml says that the cluster is secured, and the ResourceManager is not: is HADOOP_CONF_DIR that of \
             the cluster?"
        }
        AuthError::Sasl(SaslError::Digest(DigestError::NoCommonQop { .. })) => {
            "set hadoop.rpc.protection in core-site.xml to what the cluster has"
        }
        AuthError::Sasl(SaslError::NoCommonMethod { offered, .. })
            if offered.iter().any(|method| method == "KERBEROS") =>
        {
            "the cluster asks for Kerberos, which this version does not speak: submit from a session that has delegation \
             tokens (HADOOP_TOKEN_FILE_LOCATION)"
        }
        AuthError::Refused(exception) if exception.is_invalid_token() => {
            "the delegation token is unknown or has expired: begin a new session"
        }
        AuthError::Refused(exception) if exception.message().contains("SIMPLE authentication") => {
            "the cluster is secured, and core-site.xml does not say so (hadoop.security.authentication): is \
             HADOOP_CONF_DIR that of the cluster?"
        }
        AuthError::Refused(exception) if exception.is_denied() => {
            "an administrator allows users to call the ResourceManager (hadoop-policy.xml, \
             security.applicationclient.protocol.acl)"
        }
        _ => "is HADOOP_CONF_DIR that of the cluster?",
    }
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::rpc::RemoteException;

    use super::*;

    fn auth(source: AuthError) -> Failure {
        let address = HostPort::new("rm", 8032);
        let error = ClientError::Auth(RpcError::Auth { address, source });
        client_failure("no list", &error)
    }

    #[test]
    fn login_that_is_refused_is_exit_5_with_a_next_step() {
        let no_method = SaslError::NoCommonMethod {
            offered: vec!["TOKEN".into(), "KERBEROS".into()],
            has_token: false,
            simple_allowed: false,
        };
        let no_common_qop = SaslError::Digest(DigestError::NoCommonQop {
            offered: vec!["auth-conf".into()],
            allowed: Vec::new(),
        });
        let refused =
            |class: &str, message: &str| AuthError::Refused(RemoteException::new(class, message));
        let no_simple = "SIMPLE authentication is not enabled.  Available:[TOKEN, KERBEROS]";
        for (source, next) in [
            (AuthError::Sasl(no_method), "Kerberos"),
            (AuthError::Sasl(no_common_qop), "hadoop.rpc.protection"),
            (AuthError::Sasl(SaslError::SimpleRefused), "is not"),
            (refused("InvalidToken", "expired"), "delegation token"),
            (refused("AccessControlException", no_simple), "hadoop.security.authentication"),
            (refused("AuthorizationException", "not authorized"), "hadoop-policy.xml"),
        ] {
            let failure = auth(source);
            assert_eq!(failure.exit, ExitCode::Denied, "{failure:?}");
            assert!(format!("{failure:?}").contains(next), "{next}: {failure:?}");
        }
    }

    #[test]
    fn cluster_is_named_where_its_configuration_is_found() {
        let home = tempfile::tempdir().expect("a directory");
        let environment =
            || Environment::empty().with_variable("HADOOP_HOME", home.path().to_string_lossy());
        assert!(!names_a_cluster(&environment()));
        let folder = home.path().join("etc/hadoop");
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join("yarn-site.xml"), "<configuration/>").expect("written");
        assert!(names_a_cluster(&environment()), "as for a submission");
        let elsewhere = environment().with_variable("HADOOP_CONF_DIR", "/nowhere");
        assert!(!names_a_cluster(&elsewhere), "a variable goes first");
    }

    #[test]
    fn wait_is_told_with_the_servers_and_its_end() {
        let servers = [HostPort::new("rm1", 8032), HostPort::new("rm2", 8032)];
        let line = slow_call_text(&servers, Duration::from_secs(60));
        assert!(line.contains("rm1:8032, rm2:8032"), "{line}");
        assert!(line.contains("60 s"), "{line}");
    }
}
