//! The cluster that this process's environment names: its ResourceManager, its file system, the user's directories, and
//! the conversion of their errors to failures.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use heddle_am::staging::HOME_DIR;
use heddle_hadoop::configuration::{Environment, config_directories};
use heddle_hadoop::identity::Identity;
use heddle_hadoop::{Configuration, HostPort, User};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::spec::{JobSpec, Location};
use heddle_storage::{
    EntryKind, Mode, Reason, Storage, StorageError, StorePath, WriteError, connect,
};
use heddle_yarn::{
    ApplicationId, CallTimeouts, ClientError, Cluster, ClusterError, YarnClient, rpc_options,
    stated_rm_wait,
};

use crate::failure::CommandFailure;
use crate::login_failure::{after_no_login, no_identity};
use crate::waiting::{self, HDFS};

/// A cluster and its user. Must be created within a runtime.
pub struct ClusterContext {
    /// The configuration in `HADOOP_CONF_DIR`.
    pub configuration: Configuration,
    /// Calls to the ResourceManager.
    pub client: YarnClient,
    /// The user of the calls.
    pub user: User,
    /// The user and its tokens or tickets.
    identity: Identity,
    /// The ResourceManagers' addresses for clients.
    pub resource_managers: Vec<HostPort>,
    /// Whether calls use a token of the ResourceManager that the session has.
    pub has_rm_token: bool,
    /// Whether the cluster requires authentication.
    pub secured: bool,
    /// The file system that `fs.defaultFS` names.
    pub storage: Arc<dyn Storage>,
    /// `host:port` or name service of it.
    authority: String,
    /// Parent directory of the users' home directories.
    homes: String,
}

/// The application type of jobs, by which lists are filtered.
pub const APPLICATION_TYPE: &str = "HEDDLE";

/// Name of the file with the job's secret (64 hexadecimal digits) in the staging directory. With it the same user
/// controls the job from another shell.
pub const SECRET_FILE: &str = "secret";

/// How long to wait for a ResourceManager that does not respond, without `--rm-wait` or a configured value. A failover
/// with ZooKeeper takes 30 to 60 s.
const RM_WAIT: Duration = Duration::from_secs(60);

/// `--rm-wait`, from the command line of this process.
static RM_WAIT_GIVEN: OnceLock<Duration> = OnceLock::new();

/// Sets how long this process waits for a ResourceManager that does not respond (`--rm-wait`). The first call counts.
pub fn set_rm_wait(wait: Duration) {
    let _set_before = RM_WAIT_GIVEN.set(wait);
}

/// Whether the environment names a cluster: [`ClusterContext::load`] would find a `yarn-site.xml`.
#[must_use]
pub fn is_named() -> bool {
    names_a_cluster(&Environment::of_process())
}

fn names_a_cluster(environment: &Environment) -> bool {
    config_directories(environment, true)
        .iter()
        .any(|candidate| candidate.directory.join("yarn-site.xml").is_file())
}

/// YARN's addresses and time limits, with the waits of an interactive command.
///
/// `context` names the caller in the ResourceManager's audit log.
fn cluster_of(
    configuration: &Configuration,
    identity: &Identity,
    context: &str,
) -> Result<Cluster, ClusterError> {
    let wait = match RM_WAIT_GIVEN.get() {
        Some(given) => *given,
        None => stated_rm_wait(configuration)?.unwrap_or(RM_WAIT),
    };
    let limits = CallTimeouts { call: wait, ..CallTimeouts::of(configuration)? };
    let options = rpc_options(configuration)?.with_caller_context(configuration, context)?;
    let cluster = Cluster::with(configuration, identity.user.clone(), options, limits)?
        .with_identity(configuration, identity)?;
    Ok(cluster.with_slow_call_observer(Arc::new(|servers: &[HostPort], wait: Duration| {
        waiting::report(&slow_call_text(servers, wait));
    })))
}

/// The line that reports a slow call.
fn slow_call_text(servers: &[HostPort], wait: Duration) -> String {
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    format!(
        "waiting for the ResourceManager ({}), at most {} s (--rm-wait)",
        servers.join(", "),
        wait.as_secs()
    )
}

impl ClusterContext {
    /// Reads the configuration; does not connect.
    ///
    /// # Errors
    /// Exit code 7 if it cannot be read or does not name a cluster, 5 if the user cannot be determined.
    pub fn load() -> Result<Self, CommandFailure> {
        let wrong = |error: &dyn std::error::Error| {
            CommandFailure::caused(ExitCode::Input, "cannot find a cluster in Hadoop's configuration", error).next(
                "set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
            )
        };
        let environment = Environment::of_process();
        let configuration = Configuration::load(environment).map_err(|e| wrong(&e))?;
        let text = |key: &str| configuration.trimmed(key).map_err(|error| wrong(&error));
        let identity = Identity::resolve(&configuration).map_err(|error| no_identity(&error))?;
        let default = text("fs.defaultFS")?.unwrap_or_default();
        let authority = default
            .strip_prefix("hdfs://")
            .and_then(|rest| rest.split('/').next())
            .unwrap_or_default()
            .to_owned();
        if authority.is_empty() {
            let fact = format!("fs.defaultFS must be an hdfs:// URL (got {default:?})");
            return Err(CommandFailure::new(ExitCode::Input, fact).next(
                "set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
            ));
        }
        let homes = text("dfs.user.home.dir.prefix")?.unwrap_or_else(|| "/user".to_owned());
        let cluster = cluster_of(&configuration, &identity, "heddle").map_err(|e| wrong(&e))?;
        let root = heddle_storage::StorageUrl::Hdfs {
            authority: authority.clone(),
            path: StorePath::root(),
        };
        let storage = connect(&root)
            .map_err(|error| storage_failure("cannot use the default file system", &error))?;
        Ok(Self {
            client: YarnClient::new(&cluster),
            configuration,
            user: identity.user.clone(),
            secured: identity.policy.required,
            resource_managers: cluster.resource_managers().to_vec(),
            has_rm_token: cluster.has_client_token(),
            identity,
            storage,
            authority,
            homes,
        })
    }

    /// A client whose calls name this application in the ResourceManager's audit log; `None` unless the configuration
    /// enables that (`hadoop.caller.context.enabled`).
    ///
    /// # Errors
    /// As [`ClusterContext::load`].
    pub fn client_naming(
        &self,
        application: ApplicationId,
    ) -> Result<Option<YarnClient>, CommandFailure> {
        let enabled = self.configuration.boolean("hadoop.caller.context.enabled", false);
        if !enabled.unwrap_or(false) {
            return Ok(None);
        }
        let context = format!("heddle_{application}");
        let cluster = cluster_of(&self.configuration, &self.identity, &context);
        let cluster = cluster.map_err(|error| {
            CommandFailure::caused(
                ExitCode::Input,
                "cannot find a cluster in Hadoop's configuration",
                &error,
            )
        })?;
        Ok(Some(YarnClient::new(&cluster)))
    }

    /// A location on the default file system.
    fn place(&self, path: &str) -> Result<Location, CommandFailure> {
        format!("hdfs://{}{path}", self.authority).parse().map_err(|error| {
            CommandFailure::caused(ExitCode::Input, format!("{path:?} is not a valid path"), &error)
        })
    }

    /// The same location with the authority of `fs.defaultFS` if it has none.
    ///
    /// # Errors
    /// Never for locations from a job file.
    pub fn whole(&self, location: &Location) -> Result<Location, CommandFailure> {
        match location.scheme() == "hdfs" && location.authority().is_empty() {
            true => self.place(location.path()),
            false => Ok(location.clone()),
        }
    }

    /// The home directory of a user.
    ///
    /// # Errors
    /// The name is not valid in a path.
    pub fn home_of(&self, user: &str) -> Result<Location, CommandFailure> {
        if user.is_empty() || user.contains(['/', '\0']) || user == ".." {
            return Err(CommandFailure::new(
                ExitCode::Denied,
                format!("{user:?} is not a valid user name"),
            ));
        }
        self.place(&format!("{}/{user}", self.homes.trim_end_matches('/')))
    }

    /// The home directory of the calling user.
    ///
    /// # Errors
    /// As [`ClusterContext::home_of`].
    pub fn home(&self) -> Result<Location, CommandFailure> {
        self.home_of(self.user.short_name())
    }

    /// The staging directory of an application.
    ///
    /// # Errors
    /// As [`ClusterContext::home_of`].
    pub fn staging(
        &self,
        user: &str,
        application: ApplicationId,
    ) -> Result<Location, CommandFailure> {
        let below = self.home_of(user)?.join(HOME_DIR).join("staging");
        Ok(below.join(&application.to_string()))
    }

    /// The report directory of an application.
    ///
    /// # Errors
    /// As [`ClusterContext::home_of`].
    pub fn reports(
        &self,
        user: &str,
        application: ApplicationId,
    ) -> Result<Location, CommandFailure> {
        let below = self.home_of(user)?.join(HOME_DIR).join("reports");
        Ok(below.join(&application.to_string()))
    }

    /// Adds the file system's name to all HDFS locations of a job.
    ///
    /// # Errors
    /// Never for locations from a job file.
    pub fn whole_spec(&self, mut spec: JobSpec) -> Result<JobSpec, CommandFailure> {
        let data = spec.data.train.iter_mut().chain(&mut spec.data.test);
        let outputs = [&mut spec.checkpoint.dir, &mut spec.output.model];
        let files = spec.yarn.files.iter_mut().chain(&mut spec.yarn.archives);
        let files = files.map(|file| &mut file.from);
        let all = data.chain(outputs).chain(files).chain(&mut spec.model.init);
        for location in all {
            *location = self.whole(location)?;
        }
        Ok(spec)
    }

    /// Creates directories with mode 0700 below `home`. Only an administrator can create the home itself.
    ///
    /// # Errors
    /// Exit code 5 if that is denied, 6 if the file system does not respond.
    pub async fn make_dirs(
        &self,
        home: &Location,
        below: &[&str],
    ) -> Result<Location, CommandFailure> {
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
                    // A NameNode denies the creation below a missing home, since the parent belongs to another user.
                    if error.error().reason == Reason::Denied && self.is_missing(home).await {
                        return Err(no_home(home));
                    }
                    let fact = format!("cannot create {at}");
                    return Err(storage_failure(&fact, error.error()));
                }
            }
        }
        Ok(at)
    }

    /// Checks within seconds that a NameNode listens. Ordinary calls wait for a NameNode that restarts.
    ///
    /// # Errors
    /// Exit code 6 if none listens.
    pub async fn reach(&self) -> Result<(), CommandFailure> {
        let reached = waiting::on(HDFS, self.storage.reach()).await;
        reached.map_err(|error| {
            storage_failure("cannot reach HDFS", &error).next(format!(
                "check that the NameNode of fs.defaultFS = hdfs://{} runs, and that HADOOP_CONF_DIR is that of the cluster",
                self.authority
            ))
        })
    }

    /// Removes a directory with its content. A missing directory is not an error.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn remove_dir(&self, dir: &Location) -> Result<(), CommandFailure> {
        match self.storage.delete_dir(&path_of(dir)?).await {
            Ok(()) => Ok(()),
            Err(error) if error.error().is_not_found() => Ok(()),
            Err(error) => Err(storage_failure(&format!("cannot remove {dir}"), error.error())),
        }
    }

    /// Reads a small file; `None` if it does not exist.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn read(
        &self,
        place: &Location,
        bytes_max: usize,
    ) -> Result<Option<bytes::Bytes>, CommandFailure> {
        let path = path_of(place)?;
        let read = heddle_storage::read_small(&*self.storage, &path, bytes_max);
        match waiting::on(HDFS, read).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(storage_failure(&format!("cannot read {place}"), &error)),
        }
    }

    /// Whether a file exists at that location.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn is_file(&self, place: &Location) -> Result<bool, CommandFailure> {
        match waiting::on(HDFS, self.storage.stat(&path_of(place)?)).await {
            Ok(entry) => Ok(entry.kind == EntryKind::File),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(storage_failure(&format!("cannot read {place}"), &error)),
        }
    }

    /// Checks that the user has a home directory, which contains the files of each submission.
    ///
    /// # Errors
    /// Exit code 5 if it is missing. Other errors are reported by the first use.
    pub async fn has_home(&self) -> Result<(), CommandFailure> {
        let home = self.home()?;
        match self.is_missing(&home).await {
            true => Err(no_home(&home)),
            false => Ok(()),
        }
    }

    /// Whether the file system reports that nothing exists at that location.
    async fn is_missing(&self, place: &Location) -> bool {
        let Ok(path) = path_of(place) else {
            return false;
        };
        let found = waiting::on(HDFS, self.storage.stat(&path)).await;
        found.is_err_and(|error| error.is_not_found())
    }
}

fn no_home(home: &Location) -> CommandFailure {
    CommandFailure::new(ExitCode::Denied, format!("your home directory {home} does not exist")).next(format!(
        "ask an administrator of the cluster to create it: hdfs dfs -mkdir {0}, then hdfs dfs -chown you {0}",
        home.path()
    ))
}

/// The path of a location within its storage.
///
/// # Errors
/// The path is longer than any storage accepts.
pub fn path_of(place: &Location) -> Result<StorePath, CommandFailure> {
    StorePath::parse(place.path())
        .map_err(|error| CommandFailure::caused(ExitCode::Input, place.to_string(), &error))
}

/// The failure for an error of a storage.
#[must_use]
pub fn storage_failure(fact: &str, error: &StorageError) -> CommandFailure {
    let exit = match &error.reason {
        _ if error.is_refused() => ExitCode::Denied,
        Reason::Unavailable => ExitCode::Unreachable,
        _ => ExitCode::Input,
    };
    CommandFailure::caused(exit, fact, error)
}

/// The failure for an error of a call to the ResourceManager.
#[must_use]
pub fn client_failure(fact: &str, error: &ClientError) -> CommandFailure {
    match error {
        ClientError::NotFound(_) => CommandFailure::caused(ExitCode::Input, fact, error)
            .next("`heddle list --yarn` shows the applications of the cluster"),
        ClientError::Denied(_) => CommandFailure::caused(ExitCode::Denied, fact, error),
        ClientError::Auth(source) => {
            CommandFailure::caused(ExitCode::Denied, fact, error).next(after_no_login(source))
        }
        ClientError::Refused { diagnostics, .. } => {
            let mut failure = CommandFailure::new(ExitCode::Refused, fact);
            failure.causes = diagnostics.lines().map(str::to_owned).collect();
            failure
        }
        ClientError::Waited { .. } | ClientError::Unreachable(_) => CommandFailure::caused(
            ExitCode::Unreachable,
            fact,
            error,
        )
        .next(
            "check that HADOOP_CONF_DIR is that of the cluster, and that the ResourceManager runs",
        ),
        _ => CommandFailure::caused(ExitCode::Unreachable, fact, error),
    }
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::rpc::error::AuthError;
    use heddle_hadoop::rpc::{RemoteException, RpcError};
    use heddle_hadoop::sasl::{DigestError, SaslError};

    use super::*;

    fn auth(source: AuthError) -> CommandFailure {
        let address = HostPort::new("rm", 8032);
        let error = ClientError::Auth(RpcError::Auth { address, source });
        client_failure("no list", &error)
    }

    #[test]
    fn rejected_login_is_exit_5_with_a_next_step() {
        let no_method = SaslError::NoCommonMethod {
            offered: vec!["TOKEN".into(), "KERBEROS".into()],
            has_token: false,
            has_ticket: false,
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
            (AuthError::Sasl(no_method), "kinit"),
            (AuthError::Sasl(no_common_qop), "hadoop.rpc.protection"),
            (AuthError::Sasl(SaslError::SimpleRefused), "does not"),
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
    fn cluster_is_named_by_a_configuration_file() {
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
    fn slow_call_is_reported_with_servers_and_limit() {
        let servers = [HostPort::new("rm1", 8032), HostPort::new("rm2", 8032)];
        let line = slow_call_text(&servers, Duration::from_secs(60));
        assert!(line.contains("rm1:8032, rm2:8032"), "{line}");
        assert!(line.contains("60 s"), "{line}");
    }
}
