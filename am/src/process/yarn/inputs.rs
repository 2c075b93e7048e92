//! Inputs of the ApplicationMaster's container: from YARN and from the submission.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_am_core::{Outcome, TokenLifetime};
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::identity::Identity;
use heddle_hadoop::sasl::SecurityPolicy;
use heddle_hadoop::token::{Credentials, token_kind};
use heddle_hadoop::{Configuration, Token};
use heddle_protocol::environment::AmAddress;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::grant::ControllerGrant;
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::Attempt;
use heddle_protocol::job_spec::{JobSpec, Location};
use heddle_protocol::view::{JobView, Placement, WarningCode};
use heddle_storage::Mode;
use heddle_storage::{StorageError, StorageUrl, chain, connect, make_dirs, publish_small};
use heddle_yarn::{AmEnvironment, CallTimeouts, Cluster, ClusterError, rpc_options};

use super::tokens;
use crate::attempt_history;
use crate::carried_files;
use crate::cluster::yarn::ContainerCredentials;
use crate::event_log::EventLog;
use crate::grant;
use crate::process::start_failure::{StartFailure, code_of};
use crate::run_dir::{RunDir, RunFile};
use crate::staging::{SECRET_ALIAS, YARN_FILE, YarnFile};
use crate::wall_clock::wall_ms;

/// Kind of the token that authenticates an attempt (`AMRMTokenIdentifier.KIND_NAME`).
const AM_TOKEN: &str = "YARN_AM_RM_TOKEN";
/// After how long the ResourceManager gives a silent ApplicationMaster up, and what it is where no file states it: 900 s
/// since Hadoop 3.4, 600 s before. The ResourceManager does not report its release, and an attempt that goes on for
/// longer than it is believed to live has a successor beside it; one that ends earlier costs an attempt of a
/// ResourceManager that was away for ten minutes.
const EXPIRY: &str = "yarn.am.liveness-monitor.expiry-interval-ms";
const EXPIRY_DEFAULT_MS: i64 = 600_000;

/// Inputs from YARN.
pub(super) struct ContainerInputs {
    pub(super) environment: AmEnvironment,
    pub(super) configuration: Configuration,
    pub(super) cluster: Cluster,
    /// Authenticates this attempt.
    pub(super) token: Token,
    pub(super) identity: Identity,
    credentials: Credentials,
    /// Whether the cluster protects its own calls: `hadoop.rpc.protection` does not contain `authentication`.
    protected: bool,
}

impl ContainerInputs {
    /// Reads variables, configuration and credentials.
    pub(super) fn read() -> Result<Self, StartFailure> {
        let internal = |what: &str, error: &dyn std::error::Error| {
            StartFailure::new(ExitCode::Internal, format!("{what}: {}", chain(error)))
        };
        let variables = Environment::of_process();
        let environment = AmEnvironment::of(&variables)
            .map_err(|error| internal("cannot read the environment of a YARN container", &error))?;
        let configuration = Configuration::load(variables)
            .map_err(|error| internal("cannot read the configuration", &error))?;
        let identity = Identity::resolve(&configuration)
            .map_err(|error| StartFailure::new(ExitCode::Denied, chain(&error)))?;
        let cluster = cluster(&configuration, &identity, &environment)
            .map_err(|error| internal("cannot use the configuration", &error))?;
        let policy = SecurityPolicy::of(&configuration)
            .map_err(|error| internal("cannot use the configuration", &error))?;
        let protected = policy.is_protected;
        let credentials = Credentials::read_file(&environment.token_file).map_err(|error| {
            StartFailure::new(
                ExitCode::Denied,
                format!("cannot read the container's credentials: {}", chain(&error)),
            )
        })?;
        let token = credentials.of_kind(AM_TOKEN).next().cloned().ok_or_else(|| {
            StartFailure::new(
                ExitCode::Denied,
                "the container's credentials do not contain an AMRM token",
            )
        })?;
        Ok(Self { environment, configuration, cluster, token, identity, credentials, protected })
    }

    /// The container of this process.
    pub(super) fn placement(&self) -> Placement {
        let environment = &self.environment;
        Placement {
            container: environment.container.to_string(),
            node: environment.node_host.clone(),
            node_http: environment.node_http_address(),
        }
    }

    /// The attempt's number.
    pub(super) fn attempt(&self) -> Attempt {
        Attempt(u32::try_from(self.environment.attempt().attempt).unwrap_or(0))
    }

    /// Time since the submission, ms, by the clocks of two machines.
    pub(super) fn since_submit_ms(&self) -> u64 {
        let submitted = self.environment.submit_time_ms.unwrap_or(0);
        wall_ms().saturating_sub(u64::try_from(submitted).unwrap_or(0))
    }

    /// How connections of this job are secured.
    pub(super) fn mechanism(&self, spec: &JobSpec) -> Mechanism {
        spec.network.protection.mechanism(self.protected)
    }

    /// After how long the ResourceManager gives a silent attempt up.
    pub(super) fn expiry(&self) -> Duration {
        expiry(&self.configuration)
    }

    /// Where YARN's proxy finds the pages.
    pub(super) fn tracking_url(&self, address: &AmAddress) -> String {
        format!("http://{}:{}", self.environment.node_host, address.address.port())
    }

    /// How long file systems accept the tokens of the submission; `None` where the job needs none.
    pub(super) fn token_lifetime(&self) -> Option<TokenLifetime> {
        tokens::of_submission(&self.credentials, wall_ms())
    }

    /// How long file systems accept the tokens of the submission, if those can be used for a while.
    pub(super) fn usable_tokens(&self) -> Option<TokenLifetime> {
        self.token_lifetime().filter(|lifetime| lifetime.usable_ms > 0)
    }

    /// The credentials of the job's containers: the job's secret and the tokens of file systems. The holder of the AMRM
    /// token could act in place of this attempt, that of the ResourceManager's token and of the keytab as the user.
    pub(super) fn for_containers(&self) -> ContainerCredentials {
        let mut credentials = self.credentials.clone();
        credentials.remove_kind(AM_TOKEN);
        credentials.remove_kind(token_kind::RM_DELEGATION);
        carried_files::remove(&mut credentials);
        ContainerCredentials::new(credentials)
    }
}

/// The cluster as this attempt calls it.
fn cluster(
    configuration: &Configuration,
    identity: &Identity,
    environment: &AmEnvironment,
) -> Result<Cluster, ClusterError> {
    let attempt = environment.attempt();
    let context = format!("heddle_{}_{}", attempt.application, attempt.attempt);
    let options = rpc_options(configuration)?.with_caller_context(configuration, &context)?;
    let cluster = Cluster::with(
        configuration,
        identity.user.clone(),
        options,
        CallTimeouts::of(configuration)?,
    )?;
    cluster.with_identity(configuration, identity)
}

fn expiry(configuration: &Configuration) -> Duration {
    let stated = configuration
        .is_stated(EXPIRY)
        .then(|| configuration.integer(EXPIRY, EXPIRY_DEFAULT_MS).ok())
        .flatten()
        .filter(|ms| *ms > 0);
    let ms = stated.unwrap_or(EXPIRY_DEFAULT_MS);
    Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
}

/// A file system of the job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobFileSystem {
    /// `host:port`, a name service, or empty for `fs.defaultFS`.
    pub(super) authority: String,
    /// Whether the job can neither start nor save without it.
    pub(super) is_needed: bool,
}

/// The file systems of URLs on HDFS, each once.
fn file_systems(
    needed: impl Iterator<Item = String>,
    others: impl Iterator<Item = String>,
) -> Vec<JobFileSystem> {
    let mut found = BTreeMap::new();
    for (url, is_needed) in others.map(|url| (url, false)).chain(needed.map(|url| (url, true))) {
        if let Ok(StorageUrl::Hdfs { authority, .. }) = StorageUrl::parse(&url) {
            found.insert(authority, is_needed);
        }
    }
    found.into_iter().map(|(authority, is_needed)| JobFileSystem { authority, is_needed }).collect()
}

/// Inputs from the submission.
pub(super) struct SubmittedFiles {
    pub(super) run: RunFile,
    pub(super) spec: JobSpec,
    pub(super) yarn: YarnFile,
    pub(super) secret: Secret,
}

impl SubmittedFiles {
    /// Reads the files of the work directory.
    pub(super) fn read(dir: &RunDir, inputs: &ContainerInputs) -> Result<Self, StartFailure> {
        let secret = inputs
            .credentials
            .secret(SECRET_ALIAS)
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .ok_or_else(|| {
                StartFailure::new(
                    ExitCode::Denied,
                    format!("the container's credentials do not contain {SECRET_ALIAS}"),
                )
            })?;
        let secret = Secret::from_hex(secret).map_err(|error| {
            StartFailure::new(
                ExitCode::Denied,
                format!("cannot read {SECRET_ALIAS}: {}", chain(&error)),
            )
        })?;
        Ok(Self { run: dir.run_file()?, spec: dir.spec()?, yarn: dir.read(YARN_FILE)?, secret })
    }

    /// The file systems of the job on HDFS, each once. Preparation looks at the checkpoints and lists the input in every
    /// attempt.
    pub(super) fn hdfs_file_systems(&self) -> Vec<JobFileSystem> {
        let JobSpec { data, checkpoint, model, output, .. } = &self.spec;
        let needed = data.train.iter().chain(&data.test).chain([&checkpoint.dir]);
        let needed = needed.map(Location::url).chain([self.yarn.staging.clone()]);
        let others = checkpoint.mirrors.iter().chain(&model.init).chain([&output.model]);
        let others = others.chain(self.spec.sized_by());
        let others = others.map(Location::url).chain(self.run.from.clone());
        file_systems(needed, others.chain([self.yarn.reports.clone()]))
    }

    /// The view of a job that did not begin, or that an earlier attempt ended.
    pub(super) fn empty_view(&self, attempt: Attempt, outcome: &Outcome) -> JobView {
        JobView {
            state: outcome.state,
            message: outcome.message.clone(),
            ..JobView::starting(self.run.run, &self.run.name, attempt, self.run.started_ms)
        }
    }

    /// Where attempts write their addresses, as a URL.
    pub(super) fn am_dir(&self) -> String {
        format!("{}/am", self.yarn.staging.trim_end_matches('/'))
    }

    /// Where attempts keep what they saw, for the next one; nothing where that place has no storage.
    pub(super) fn past(&self) -> Option<attempt_history::HistoryDir> {
        let dir = format!("{}/past", self.yarn.staging.trim_end_matches('/'));
        let location = StorageUrl::parse(&dir).ok()?;
        Some(attempt_history::HistoryDir {
            storage: connect(&location).ok()?,
            dir: location.path().clone(),
        })
    }

    /// Writes where this attempt is for the cluster's controller, if the job has one. Without it the job goes on.
    pub(super) async fn write_grant(&self, address: &AmAddress, log: &EventLog) {
        let Some(dir) = self.spec.sized_by() else { return };
        let am = Some(address.clone());
        let grant = ControllerGrant::new(
            &self.spec,
            &self.yarn.application,
            self.run.run,
            &self.secret,
            am,
        );
        if let Err(error) = grant::write(&grant, dir).await {
            let text = format!(
                "the controller does not find this job: cannot write its grant in {dir}: {}",
                chain(&error)
            );
            log.warn(WarningCode::GrantNotWritten, text);
        }
    }

    /// Writes where this attempt is, for containers that look for it and for the command line.
    pub(super) async fn write_address(&self, address: &AmAddress) -> Result<(), StartFailure> {
        let failed = |error: &StorageError| {
            StartFailure::new(
                code_of(error),
                format!("cannot write the ApplicationMaster's address: {}", chain(error)),
            )
        };
        let url = self.am_dir();
        let location = StorageUrl::parse(&url).map_err(|error| {
            StartFailure::new(ExitCode::Internal, format!("staging = {url}: {error}"))
        })?;
        let storage = connect(&location).map_err(|error| failed(&error))?;
        let name = format!("{:06}.json", address.attempt.0);
        let path = location.path().join(&name).map_err(|error| {
            StartFailure::new(ExitCode::Internal, format!("{url}/{name}: {error}"))
        })?;
        let json = serde_json::to_vec(address).expect("plain fields are JSON");
        let mut written = publish_small(&*storage, &path, json.clone().into()).await;
        if written.as_ref().is_err_and(|error| error.error().is_not_found()) {
            make_dirs(&*storage, location.path(), Mode::DIR)
                .await
                .map_err(|error| failed(&error))?;
            written = publish_small(&*storage, &path, json.into()).await;
        }
        written.map_err(|error| failed(error.error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_needed_if_any_needed_url_is_on_it() {
        let urls = |urls: &[&str]| urls.iter().map(ToString::to_string).collect::<Vec<_>>();
        let needed = urls(&["hdfs://ns1/checkpoints", "file:///data"]);
        let others = urls(&["hdfs://ns2/mirror", "hdfs://ns1/model"]);
        let found = file_systems(needed.into_iter(), others.into_iter());
        let found: Vec<_> = found.iter().map(|one| (&*one.authority, one.is_needed)).collect();
        assert_eq!(found, [("ns1", true), ("ns2", false)]);
    }

    #[test]
    fn built_in_expiry_of_newer_hadoops_does_not_count() {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        assert_eq!(expiry(&configuration), Duration::from_secs(600));
        configuration.set(EXPIRY, "900000", "test");
        assert_eq!(expiry(&configuration), Duration::from_secs(900));
        configuration.set(EXPIRY, "soon", "test");
        assert_eq!(expiry(&configuration), Duration::from_secs(600));
    }
}
