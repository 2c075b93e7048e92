//! The cluster that this process's environment names: its ResourceManager, its file system, the user's directories, and
//! the conversion of their errors to failures.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use heddle_am::staging::HOME_DIR;
use heddle_hadoop::configuration::{DefaultFileSystem, Environment, config_directories};
use heddle_hadoop::identity::Identity;
use heddle_hadoop::kerberos::{GssapiEngine, KerberosEngine as _};
use heddle_hadoop::{Configuration, HostPort, User};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::{DurationMs, JobSpec, Location};
use heddle_storage::{
    EntryKind, Mode, Reason, Storage, StorageError, StorageUrl, StorePath, WriteError, connect,
    read_small,
};
use heddle_yarn::client::{refuses_for_now, refuses_tokens};
use heddle_yarn::{ApplicationId, ClientError, YarnClient};

use crate::failure::{CommandFailure, OrFail};
use crate::file_systems::{self, Homes, STAGING};
use crate::login_failure::{after_no_login, lacking_token, no_identity};
use crate::rm_calls::{cluster_of, state_rm_wait};
use crate::site_defaults;
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
    /// Where the users' home directories are.
    homes: Homes,
}

/// The application type of jobs, by which lists are filtered.
pub const APPLICATION_TYPE: &str = "HEDDLE";

/// The fact of a configuration without a name for it.
const NO_CLUSTER: &str = "cannot find a cluster in Hadoop's configuration";

/// A ticket that ends within this time may not suffice for a submission.
const SHORT_TICKET: Duration = Duration::from_secs(300);

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

impl ClusterContext {
    /// Reads the configuration; does not connect. The files of jobs are where the site's defaults state.
    ///
    /// # Errors
    /// Exit code 7 if it cannot be read or does not name a cluster, 5 if the user cannot be determined.
    pub fn load() -> Result<Self, CommandFailure> {
        if let Some(text) = site_defaults::text("submit.rm-wait")? {
            // "auto" is not a duration.
            if let Ok(wait) = text.parse::<DurationMs>() {
                state_rm_wait(wait.as_duration());
            }
        }
        Self::with_staging(site_defaults::text(STAGING)?)
    }

    /// The same with another value of `submit.staging`.
    ///
    /// # Errors
    /// As [`ClusterContext::load`].
    pub fn with_staging(staging: Option<String>) -> Result<Self, CommandFailure> {
        let advise = |failure: CommandFailure| {
            failure.next(
                "set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
            )
        };
        let environment = Environment::of_process();
        let is_named = names_a_cluster(&environment);
        let configuration = Configuration::load(environment);
        let configuration = configuration.or_fail(ExitCode::Input, NO_CLUSTER).map_err(advise)?;
        if !is_named && !configuration.is_stated("fs.defaultFS") {
            let fact = "Hadoop's configuration names no cluster: there is no yarn-site.xml, and \
                fs.defaultFS is not set";
            return Err(advise(CommandFailure::new(ExitCode::Input, fact)));
        }
        let identity = Identity::resolve(&configuration).map_err(|error| no_identity(&error))?;
        let cluster = cluster_of(&configuration, &identity, "heddle");
        let cluster = cluster.or_fail(ExitCode::Input, NO_CLUSTER).map_err(advise)?;
        Ok(Self {
            client: YarnClient::new(&cluster),
            homes: Homes::of(&configuration, staging),
            configuration,
            user: identity.user.clone(),
            secured: identity.policy.required,
            resource_managers: cluster.resource_managers().to_vec(),
            has_rm_token: cluster.has_client_token(),
            identity,
        })
    }

    /// The file system of the caller's home directory.
    ///
    /// # Errors
    /// Exit code 7 if the configuration names none, 5 if there is no login.
    pub fn storage(&self) -> Result<Arc<dyn Storage>, CommandFailure> {
        self.storage_of(&self.home()?)
    }

    /// The file system of a location.
    ///
    /// # Errors
    /// As [`ClusterContext::storage`].
    pub fn storage_of(&self, place: &Location) -> Result<Arc<dyn Storage>, CommandFailure> {
        let url =
            StorageUrl::Hdfs { authority: place.authority().to_owned(), path: StorePath::root() };
        connect(&url)
            .or_fail_with(storage_failure, format_args!("cannot use hdfs://{}", place.authority()))
    }

    /// A path on the file system of the home directory, for messages.
    #[must_use]
    pub fn show(&self, path: &StorePath) -> String {
        self.storage().map_or_else(|_| path.to_string(), |storage| storage.show(path))
    }

    /// A note about a Kerberos ticket that ends soon.
    #[must_use]
    pub fn short_ticket_note(&self) -> Option<String> {
        let source = self.identity.tickets.as_ref().filter(|_| !self.has_rm_token)?;
        let left = GssapiEngine.owner(source).ok()?.left?;
        (left < SHORT_TICKET).then(|| {
            format!("the Kerberos ticket ends in {} s; kinit gets a new one", left.as_secs())
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
        Ok(Some(YarnClient::new(&cluster.or_fail(ExitCode::Input, NO_CLUSTER)?)))
    }

    /// The same location on HDFS: resolved by its mount table, and with an authority. Without one it is on the file system
    /// of the home directory if `fs.defaultFS` is not HDFS.
    ///
    /// # Errors
    /// Exit code 7 if no mount point covers it, or the file system is unknown.
    pub fn whole(&self, location: &Location) -> Result<Location, CommandFailure> {
        let location = file_systems::resolve(&self.configuration, location)?;
        if location.as_local().is_some() || !location.authority().is_empty() {
            return Ok(location);
        }
        match DefaultFileSystem::of(&self.configuration) {
            Ok(DefaultFileSystem::Hdfs(authority)) => file_systems::at(&authority, location.path()),
            _ => file_systems::at(self.home()?.authority(), location.path()),
        }
    }

    /// The home directory of a user.
    ///
    /// # Errors
    /// The name is not valid in a path, or the file system is unknown.
    pub fn home_of(&self, user: &str) -> Result<Location, CommandFailure> {
        self.homes.of_user(&self.configuration, user)
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
    /// As [`ClusterContext::whole`].
    pub fn whole_spec(&self, mut spec: JobSpec) -> Result<JobSpec, CommandFailure> {
        for location in file_systems::locations(&mut spec) {
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
        let storage = self.storage_of(home)?;
        for name in below {
            at = at.join(name);
            let path = path_of(&at)?;
            let made = waiting::on(HDFS, storage.mkdir(&path, Mode::DIR)).await;
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
        let home = self.home()?;
        let reached = waiting::on(HDFS, self.storage_of(&home)?.reach()).await;
        reached.or_fail_with(storage_failure, "cannot reach HDFS").map_err(|failure| {
            failure.next(format!(
                "check that the NameNode of hdfs://{} runs, and that HADOOP_CONF_DIR is that of \
                 the cluster",
                home.authority()
            ))
        })
    }

    /// Removes a directory with its content. A missing directory is not an error.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn remove_dir(&self, dir: &Location) -> Result<(), CommandFailure> {
        match self.storage_of(dir)?.delete_dir(&path_of(dir)?).await {
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
        read_if_present(&*self.storage_of(place)?, &path, place, bytes_max).await
    }

    /// Whether a file exists at that location.
    ///
    /// # Errors
    /// The file system fails.
    pub async fn is_file(&self, place: &Location) -> Result<bool, CommandFailure> {
        let found = waiting::on(HDFS, self.storage_of(place)?.stat(&path_of(place)?)).await;
        let entry = if_present(found, format_args!("cannot read {place}"))?;
        Ok(entry.is_some_and(|entry| entry.kind == EntryKind::File))
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
        let (Ok(path), Ok(storage)) = (path_of(place), self.storage_of(place)) else {
            return false;
        };
        let found = waiting::on(HDFS, storage.stat(&path)).await;
        found.is_err_and(|error| error.is_not_found())
    }
}

/// Reads a small file of a cluster, which messages show so; `None` if it does not exist.
///
/// # Errors
/// The file system fails.
pub async fn read_if_present(
    storage: &dyn Storage,
    path: &StorePath,
    shown: impl Display,
    bytes_max: usize,
) -> Result<Option<bytes::Bytes>, CommandFailure> {
    let read = waiting::on(HDFS, read_small(storage, path, bytes_max)).await;
    if_present(read, format_args!("cannot read {shown}"))
}

/// What a storage has; `None` for a name that does not exist.
///
/// # Errors
/// The other errors of the storage.
pub fn if_present<T>(
    found: Result<T, StorageError>,
    fact: impl Display,
) -> Result<Option<T>, CommandFailure> {
    match found {
        Err(error) if error.is_not_found() => Ok(None),
        found => found.map(Some).or_fail_with(storage_failure, fact),
    }
}

fn no_home(home: &Location) -> CommandFailure {
    CommandFailure::new(ExitCode::Denied, format!("your home directory {home} does not exist"))
        .next(format!(
            "ask an administrator of the cluster to create it: hdfs dfs -mkdir {0}, then hdfs dfs \
             -chown you {0}",
            home.path()
        ))
}

/// The path of a location within its storage.
///
/// # Errors
/// The path is longer than any storage accepts.
pub fn path_of(place: &Location) -> Result<StorePath, CommandFailure> {
    StorePath::parse(place.path()).or_fail(ExitCode::Input, place)
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

/// The failure for an error of a write to a storage.
#[must_use]
pub fn write_failure(fact: &str, error: &WriteError) -> CommandFailure {
    storage_failure(fact, error.error())
}

/// The failure for an error of a call to the ResourceManager.
#[must_use]
pub fn client_failure(fact: &str, error: &ClientError) -> CommandFailure {
    match error {
        ClientError::NotFound(_) => CommandFailure::caused(ExitCode::Input, fact, error)
            .next("`heddle list --yarn` shows the applications of the cluster"),
        ClientError::Denied(_) => CommandFailure::caused(ExitCode::Denied, fact, error),
        ClientError::Auth(source) => {
            let mut failure =
                CommandFailure::caused(ExitCode::Denied, fact, error).next(after_no_login(source));
            failure.causes.extend(lacking_token(source));
            failure
        }
        ClientError::Refused { diagnostics, .. } => {
            let mut failure = CommandFailure::new(ExitCode::Refused, fact);
            failure.causes = diagnostics.lines().map(str::to_owned).collect();
            if refuses_for_now(diagnostics) {
                failure.exit = ExitCode::Busy;
                return failure.next("try again later, or use another queue");
            }
            if !refuses_tokens(diagnostics) {
                return failure;
            }
            failure.exit = ExitCode::Denied;
            failure.next(
                "fetch new tokens, whose renewer is yarn.resourcemanager.principal, or log in by a \
                 ticket (kinit)",
            )
        }
        ClientError::Waited { .. } | ClientError::Unreachable(_) => CommandFailure::caused(
            ExitCode::Unreachable,
            fact,
            error,
        )
        .next(
            "check that HADOOP_CONF_DIR is that of the cluster, and that the ResourceManager runs",
        ),
        ClientError::Call(source) if source.is_no_such_method() => {
            CommandFailure::caused(ExitCode::Refused, fact, error)
                .next("use a cluster with Hadoop 3.0 or later: this ResourceManager is older")
        }
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
    fn tokens_that_are_not_renewed_are_exit_5() {
        let application = "application_1700000000000_0001".parse().expect("an id");
        let refused = |diagnostics: &str| {
            let diagnostics = diagnostics.to_owned();
            client_failure("not submitted", &ClientError::Refused { application, diagnostics })
        };
        let tokens =
            refused("Failed to renew token: Kind: HDFS_DELEGATION_TOKEN, Service: 10.0.0.1:8020");
        assert_eq!(tokens.exit, ExitCode::Denied);
        assert!(tokens.next.contains("kinit"), "{tokens:?}");
    }

    #[test]
    fn refusals_that_pass_by_themselves_are_exit_75() {
        let application = "application_1700000000000_0001".parse().expect("an id");
        // The texts of Hadoop's schedulers.
        for (text, exit) in [
            (
                "org.apache.hadoop.security.AccessControlException: Queue root.x is STOPPED. \
                 Cannot accept submission of application: application_1_0001",
                ExitCode::Busy,
            ),
            (
                "Queue root.x already has 1 applications, cannot accept submission of application: \
                 application_1_0001",
                ExitCode::Busy,
            ),
            (
                "Queue root.x already has 1 applications from user al cannot accept submission of \
                 application: application_1_0001",
                ExitCode::Busy,
            ),
            (
                "Maximum system application limit reached,cannot accept submission of application: \
                 application_1_0001",
                ExitCode::Busy,
            ),
            (
                "Moving app attempt a to queue root.x would violate queue maxRunningApps \
                 constraints on queue root.x",
                ExitCode::Busy,
            ),
            (
                "Application application_1_0001 submitted by user al to unknown queue: x",
                ExitCode::Refused,
            ),
            ("Cannot submit application to non-leaf queue: x", ExitCode::Refused),
            ("Reject application application_1_0001 submitted by user al", ExitCode::Refused),
        ] {
            let diagnostics = text.to_owned();
            let failure =
                client_failure("not submitted", &ClientError::Refused { application, diagnostics });
            assert_eq!(failure.exit, exit, "{text}");
        }
    }

    #[test]
    fn a_resourcemanager_without_a_method_is_too_old() {
        let class = "org.apache.hadoop.ipc.RpcNoSuchMethodException";
        let source = RemoteException::new(class, "Unknown method getResourceTypeInfo");
        let address = HostPort::new("rm", 8032);
        let method = "getResourceTypeInfo".to_owned();
        let error = ClientError::Call(RpcError::Remote { address, method, source });
        let failure = client_failure("cannot query the ResourceManager", &error);
        assert_eq!(failure.exit, ExitCode::Refused);
        let text = format!("{failure:?}");
        assert!(text.contains("getResourceTypeInfo") && text.contains("Hadoop 3.0"), "{text}");
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
}
