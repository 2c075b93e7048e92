//! What a submission carries: the job's secret, and on a secured cluster a delegation token of each file system of the job
//! and of the ResourceManager.
//!
//! The tokens of file systems were fetched by the checks before, which read and write each of them. A token that the
//! session already had is passed on and is not cancelled at the job's end: other jobs use it.

use heddle_am::staging::SECRET_ALIAS;
use heddle_hadoop::kerberos::token_renewer;
use heddle_hadoop::token::{Credentials, Identifier, ProcessTokens, ServiceNames, token_kind};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::Secret;

use crate::cluster::{ClusterContext, client_failure};
use crate::failure::CommandFailure;

/// The credentials of a submission.
pub struct SubmittedCredentials {
    /// The bytes of a credentials file.
    pub encoded: Vec<u8>,
    /// Whether they have tokens of the session, which must outlive the job.
    pub are_shared: bool,
}

/// Collects the credentials, and fetches the ResourceManager's token if the session has none.
///
/// # Errors
/// Exit code 5 if the tokens cannot be read or fetched.
pub async fn collect(
    cluster: &ClusterContext,
    secret: &Secret,
) -> Result<SubmittedCredentials, CommandFailure> {
    let mut credentials = Credentials::new();
    let mut are_shared = false;
    if cluster.secured {
        credentials = session(cluster)?;
        are_shared = cluster.has_rm_token;
        if are_shared {
            check_renewable(&credentials)?;
        } else {
            credentials.add(rm_token(cluster).await?);
        }
    }
    // The token of a submitting ApplicationMaster: its holder can act as that ApplicationMaster.
    credentials.remove_kind(token_kind::AMRM);
    credentials.insert_secret(SECRET_ALIAS, secret.to_hex().into_bytes());
    Ok(SubmittedCredentials { encoded: credentials.encode(), are_shared })
}

/// The tokens of this process: those of the session, and those that it fetched.
fn session(cluster: &ClusterContext) -> Result<Credentials, CommandFailure> {
    if let Some(process) = ProcessTokens::installed() {
        return Ok(process.credentials());
    }
    Credentials::of_environment(&cluster.configuration).map_err(|error| {
        CommandFailure::caused(ExitCode::Denied, "cannot read the tokens of this session", &error)
    })
}

async fn rm_token(cluster: &ClusterContext) -> Result<heddle_hadoop::Token, CommandFailure> {
    let wrong = |error: &dyn std::error::Error| {
        CommandFailure::caused(ExitCode::Input, "cannot use Hadoop's configuration", error)
    };
    let renewer = token_renewer(&cluster.configuration, &cluster.resource_managers)
        .map_err(|error| wrong(&error))?;
    let Some(renewer) = renewer else {
        return Err(no_renewer());
    };
    let uses_ip = cluster
        .configuration
        .boolean("hadoop.security.token.service.use_ip", true)
        .map_err(|error| wrong(&error))?;
    let answer = cluster.client.delegation_token(&renewer).await.map_err(|error| {
        let mut failure =
            client_failure("cannot get a delegation token of the ResourceManager", &error);
        // The server's rules may not map the renewer; the other causes have their class already.
        if failure.exit == ExitCode::Unreachable && !error.is_retryable() {
            failure.exit = ExitCode::Denied;
        }
        failure
    })?;
    let Some(token) = answer else {
        let fact = "the ResourceManager issues no delegation tokens";
        return Err(CommandFailure::new(ExitCode::Denied, fact));
    };
    let service = ServiceNames::token_service(&cluster.resource_managers, uses_ip).await;
    Ok(token.with_service(service))
}

/// The failure of a submission whose tokens nothing could renew.
fn no_renewer() -> CommandFailure {
    CommandFailure::new(
        ExitCode::Denied,
        "yarn.resourcemanager.principal is not set: the renewer of the job's tokens is unknown",
    )
    .next("set it in yarn-site.xml to the principal of the cluster's ResourceManager")
}

/// Refuses tokens that have reached their maximum lifetime.
fn check_renewable(credentials: &Credentials) -> Result<(), CommandFailure> {
    let now = i64::try_from(heddle_am::wall_clock::wall_ms()).unwrap_or(i64::MAX);
    for kind in [token_kind::RM_DELEGATION, token_kind::HDFS_DELEGATION] {
        for token in credentials.of_kind(kind) {
            if let Ok(Identifier::Delegation(identifier)) = Identifier::of(token)
                && identifier.max_date_ms <= now
            {
                let fact =
                    format!("the {kind} of {} for {} has ended", identifier.owner, token.service());
                return Err(CommandFailure::new(ExitCode::Denied, fact).next(
                    "start a new session, or unset HADOOP_TOKEN_FILE_LOCATION to use a Kerberos ticket",
                ));
            }
        }
    }
    Ok(())
}
