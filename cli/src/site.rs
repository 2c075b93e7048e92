//! The cluster as this process's environment names it: its ResourceManager, its file system, the user's
//! places there, and what failures of both come to.

use std::sync::Arc;

use heddle_am::staging::HOME_DIR;
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::{Configuration, User};
use heddle_protocol::spec::{JobSpec, Location};
use heddle_storage::{Kind, Mode, Reason, Storage, StorageError, StorePath, WriteError, connect};
use heddle_yarn::{ApplicationId, Client, ClientError, Cluster};

use crate::exit::Exit;
use crate::failure::Failure;

/// A cluster and its user. Made within a runtime.
pub struct Site {
    /// What `HADOOP_CONF_DIR` says.
    pub configuration: Configuration,
    /// Calls to the ResourceManager.
    pub client: Client,
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

/// Whether the environment names a cluster.
#[must_use]
pub fn is_named() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    set("HADOOP_CONF_DIR") || set("YARN_CONF_DIR")
}

impl Site {
    /// Reads the configuration; asks nobody yet.
    ///
    /// # Errors
    /// Exit 7 when it cannot be read or names no cluster, 5 when there is no user.
    pub fn load() -> Result<Self, Failure> {
        let wrong = |error: &dyn std::error::Error| {
            Failure::caused(Exit::Input, "Hadoop's configuration does not name a cluster", error).next(
                "set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
            )
        };
        let environment = Environment::of_process();
        let configuration = Configuration::load(environment.clone()).map_err(|e| wrong(&e))?;
        let text = |key: &str| configuration.trimmed(key).map_err(|error| wrong(&error));
        let secured = text("hadoop.security.authentication")?
            .is_some_and(|how| !how.eq_ignore_ascii_case("simple"));
        let user = User::resolve(&environment, secured)
            .map_err(|error| Failure::caused(Exit::Denied, "nobody to submit as", &error))?;
        let default = text("fs.defaultFS")?.unwrap_or_default();
        let authority = default
            .strip_prefix("hdfs://")
            .and_then(|rest| rest.split('/').next())
            .unwrap_or_default()
            .to_owned();
        if authority.is_empty() {
            let fact = format!("fs.defaultFS is {default:?}, which is no HDFS");
            return Err(Failure::new(Exit::Input, fact).next(
                "set HADOOP_CONF_DIR to the folder with core-site.xml and yarn-site.xml of the cluster",
            ));
        }
        let homes = text("dfs.user.home.dir.prefix")?.unwrap_or_else(|| "/user".to_owned());
        let cluster = Cluster::new(&configuration, user.clone()).map_err(|e| wrong(&e))?;
        let root = heddle_storage::Location::Hdfs {
            authority: authority.clone(),
            path: StorePath::root(),
        };
        let storage = connect(&root).map_err(|error| storage_failure("no storage", &error))?;
        Ok(Self {
            client: Client::new(&cluster),
            configuration,
            user,
            secured,
            storage,
            authority,
            homes,
        })
    }

    /// A place on the default file system.
    fn place(&self, path: &str) -> Result<Location, Failure> {
        format!("hdfs://{}{path}", self.authority)
            .parse()
            .map_err(|error| Failure::caused(Exit::Input, format!("no place {path:?}"), &error))
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
            return Err(Failure::new(Exit::Denied, format!("no user {user:?}")));
        }
        self.place(&format!("{}/{user}", self.homes.trim_end_matches('/')))
    }

    /// Our own user's home.
    ///
    /// # Errors
    /// As [`Site::home_of`].
    pub fn home(&self) -> Result<Location, Failure> {
        self.home_of(self.user.short_name())
    }

    /// Where everything of an application lies while it runs.
    ///
    /// # Errors
    /// As [`Site::home_of`].
    pub fn staging(&self, user: &str, application: ApplicationId) -> Result<Location, Failure> {
        let below = self.home_of(user)?.join(HOME_DIR).join("staging");
        Ok(below.join(&application.to_string()))
    }

    /// Where what stays of an application lies.
    ///
    /// # Errors
    /// As [`Site::home_of`].
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
    /// Exit 5 when that is not allowed, 6 when the file system does not answer.
    pub async fn make_dirs(&self, home: &Location, below: &[&str]) -> Result<Location, Failure> {
        let mut at = home.clone();
        for name in below {
            at = at.join(name);
            match self.storage.mkdir(&path_of(&at)?, Mode::DIR).await {
                Ok(()) => {}
                Err(WriteError::NotDone(error)) if error.is_exists() => {}
                Err(error) if error.error().is_not_found() => {
                    return Err(Failure::new(Exit::Denied, format!("{home} is not there"))
                        .next("ask an administrator of the cluster to make your home directory"));
                }
                Err(error) => {
                    let fact = format!("{at} cannot be made");
                    return Err(storage_failure(&fact, error.error()));
                }
            }
        }
        Ok(at)
    }

    /// Removes a directory of ours with all it holds; one that is not there is removed.
    ///
    /// # Errors
    /// The file system does not do it.
    pub async fn remove_dir(&self, dir: &Location) -> Result<(), Failure> {
        match self.storage.delete_dir(&path_of(dir)?).await {
            Ok(()) => Ok(()),
            Err(error) if error.error().is_not_found() => Ok(()),
            Err(error) => Err(storage_failure(
                &format!("{dir} cannot be removed"),
                error.error(),
            )),
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
        match heddle_storage::read_small(&*self.storage, &path_of(place)?, bytes_max).await {
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
        match self.storage.stat(&path_of(place)?).await {
            Ok(entry) => Ok(entry.kind == Kind::File),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(storage_failure(&format!("{place} cannot be read"), &error)),
        }
    }
}

/// The path of a place within its storage.
///
/// # Errors
/// Longer than any storage takes.
pub fn path_of(place: &Location) -> Result<StorePath, Failure> {
    StorePath::parse(place.path())
        .map_err(|error| Failure::caused(Exit::Input, place.to_string(), &error))
}

/// What a storage's failure comes to.
#[must_use]
pub fn storage_failure(fact: &str, error: &StorageError) -> Failure {
    let exit = match &error.reason {
        Reason::Denied | Reason::Quota(_) | Reason::Full => Exit::Denied,
        Reason::Unavailable => Exit::Unreachable,
        _ => Exit::Input,
    };
    Failure::caused(exit, fact, error)
}

/// What a failed call to the ResourceManager comes to.
#[must_use]
pub fn client_failure(fact: &str, error: &ClientError) -> Failure {
    match error {
        ClientError::NotFound(_) => Failure::caused(Exit::Input, fact, error)
            .next("`heddle list --yarn` shows the applications that the cluster remembers"),
        ClientError::Denied(_) => Failure::caused(Exit::Denied, fact, error),
        ClientError::Refused { diagnostics, .. } => {
            let mut failure = Failure::new(Exit::Refused, fact);
            failure.causes = diagnostics.lines().map(str::to_owned).collect();
            failure
        }
        ClientError::Waited { .. } | ClientError::Unreachable(_) => {
            Failure::caused(Exit::Unreachable, fact, error)
                .next("is HADOOP_CONF_DIR that of the cluster, and is the ResourceManager up?")
        }
        _ => Failure::caused(Exit::Unreachable, fact, error),
    }
}
