//! What a submission carries: the job's secret, the values of `yarn.secrets`, and on a secured cluster a delegation token of each file system of the job
//! and of the ResourceManager.
//!
//! The tokens of file systems were fetched by the checks before, which read and write each of them. A token that the
//! session already had is passed on and is not cancelled at the job's end: other jobs use it.

use heddle_agent::UserSecrets;
use heddle_am::carried_files;
use heddle_am::staging::{SECRET_ALIAS, USER_SECRET_PREFIX};
use heddle_hadoop::identity::short_name_of;
use heddle_hadoop::kerberos::token_renewer;
use heddle_hadoop::token::{
    Credentials, DelegationIdentifier, Identifier, ProcessTokens, ServiceNames, token_kind,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::Secret;

use super::renewal;
use super::staging::CarriedFiles;
use crate::cluster::{ClusterContext, client_failure};
use crate::failure::{CommandFailure, OrFail};

/// The fact of a wrong configuration.
const UNUSABLE: &str = "cannot use Hadoop's configuration";

/// The credentials of a submission.
pub struct SubmittedCredentials {
    /// The bytes of a credentials file.
    pub encoded: Vec<u8>,
    /// When the first token of a file system ends, ms since 1970; `None` without one.
    pub until_ms: Option<u64>,
    /// Whether they have tokens of the session, which must outlive the job.
    pub are_shared: bool,
    /// The configuration by which the ResourceManager renews them, if it is not its own.
    pub renewal: Option<Vec<u8>>,
}

/// Collects the credentials, and fetches the ResourceManager's token if the session has none.
///
/// # Errors
/// Exit code 5 if the tokens cannot be read or fetched.
pub async fn collect(
    cluster: &ClusterContext,
    secret: &Secret,
    user_secrets: UserSecrets,
    carried: &CarriedFiles,
) -> Result<SubmittedCredentials, CommandFailure> {
    let mut credentials = Credentials::new();
    let mut are_shared = false;
    if cluster.secured {
        credentials = session(cluster)?;
        are_shared = cluster.has_rm_token;
        if !are_shared {
            credentials.add(rm_token(cluster).await?);
        }
    }
    // The token of a submitting ApplicationMaster: its holder can act as that ApplicationMaster.
    credentials.remove_kind(token_kind::AMRM);
    credentials.insert_secret(SECRET_ALIAS, secret.to_hex().as_bytes());
    for (name, value) in &user_secrets.0 {
        credentials.insert_secret(format!("{USER_SECRET_PREFIX}{name}"), value.as_slice());
    }
    for (name, content) in carried {
        carried_files::carry(&mut credentials, name, content);
    }
    let until_ms = credentials.first_end_ms(token_kind::HDFS_DELEGATION);
    let renewal = renewal::configuration_for(&cluster.configuration, &credentials);
    let renewal = renewal.or_fail(ExitCode::Input, UNUSABLE)?;
    Ok(SubmittedCredentials { until_ms, encoded: credentials.encode(), are_shared, renewal })
}

/// The tokens of this process: those of the session, and those that it fetched.
fn session(cluster: &ClusterContext) -> Result<Credentials, CommandFailure> {
    if let Some(process) = ProcessTokens::installed() {
        return Ok(process.credentials());
    }
    Credentials::of_environment(&cluster.configuration)
        .or_fail(ExitCode::Denied, "cannot read the tokens of this session")
}

/// The tokens that a submission carries, in words. Those of file systems have been fetched, since each is read or written by the
/// checks; that of the ResourceManager is fetched at the submission alone.
///
/// # Errors
/// Exit code 5 if the tokens cannot be read.
pub fn in_words(cluster: &ClusterContext) -> Result<Vec<String>, CommandFailure> {
    if !cluster.secured {
        return Ok(Vec::new());
    }
    let session = session(cluster)?;
    let named = |kind| {
        let tokens = session.of_kind(kind);
        tokens.map(move |token| format!("{kind} for {}", token.service()))
    };
    let mut all: Vec<String> = named(token_kind::HDFS_DELEGATION).collect();
    all.extend(named(token_kind::RM_DELEGATION));
    if !cluster.has_rm_token {
        let servers: Vec<_> = cluster.resource_managers.iter().map(ToString::to_string).collect();
        let servers = servers.join(",");
        all.push(format!("{} for {servers} (not fetched yet)", token_kind::RM_DELEGATION));
    }
    Ok(all)
}

async fn rm_token(cluster: &ClusterContext) -> Result<heddle_hadoop::Token, CommandFailure> {
    let renewer = token_renewer(&cluster.configuration, &cluster.resource_managers)
        .or_fail(ExitCode::Input, UNUSABLE)?;
    let Some(renewer) = renewer else {
        return Err(no_renewer());
    };
    let uses_ip = cluster
        .configuration
        .boolean("hadoop.security.token.service.use_ip", true)
        .or_fail(ExitCode::Input, UNUSABLE)?;
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

/// Refuses tokens of the session that the ResourceManager would refuse: it renews each before it takes the job.
///
/// # Errors
/// Exit code 5 for a token that has reached its maximum lifetime, or that another user renews.
pub fn check_session(cluster: &ClusterContext) -> Result<(), CommandFailure> {
    if !cluster.secured {
        return Ok(());
    }
    let now = i64::try_from(heddle_am::wall_clock::wall_ms()).unwrap_or(i64::MAX);
    let renewer = token_renewer(&cluster.configuration, &cluster.resource_managers).ok().flatten();
    let short = renewer.as_ref().and_then(|renewer| {
        // Where the client's rules do not map it, the server's decide.
        short_name_of(&cluster.configuration, renewer).ok()
    });
    let session = session(cluster)?;
    for kind in [token_kind::RM_DELEGATION, token_kind::HDFS_DELEGATION] {
        for token in session.of_kind(kind) {
            if let Ok(Identifier::Delegation(identifier)) = Identifier::of(token)
                && let Some(fact) = unfit(&identifier, now, renewer.as_deref(), short.as_deref())
            {
                let fact =
                    format!("the {kind} of {} for {} {fact}", identifier.owner, token.service());
                return Err(CommandFailure::new(ExitCode::Denied, fact).next(
                    "start a new session, or unset HADOOP_TOKEN_FILE_LOCATION to use a Kerberos ticket",
                ));
            }
        }
    }
    Ok(())
}

/// Why the ResourceManager would not renew a token; `renewer` is its principal, `short` the short name of that.
fn unfit(
    token: &DelegationIdentifier,
    now_ms: i64,
    renewer: Option<&str>,
    short: Option<&str>,
) -> Option<String> {
    if token.max_date_ms <= now_ms {
        return Some("has ended".to_owned());
    }
    let (renewer, short) = (renewer?, short?);
    let fits = token.renewer.is_empty() || token.renewer == short || token.renewer == renewer;
    (!fits).then(|| {
        format!(
            "has the renewer {}, which must be {short}, the user of the ResourceManager",
            token.renewer
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_are_not_renewed_are_refused() {
        let mut token = DelegationIdentifier::default();
        token.max_date_ms = 10;
        let unfit = |token: &_, now| unfit(token, now, Some("rm/h@R"), Some("rm"));
        assert_eq!(unfit(&token, 10).as_deref(), Some("has ended"));
        for renewer in ["", "rm", "rm/h@R"] {
            token.renewer = renewer.to_owned();
            assert_eq!(unfit(&token, 9), None, "{renewer:?}");
        }
        token.renewer = "bob".to_owned();
        let text = unfit(&token, 9).unwrap_or_default();
        assert!(text.contains("the renewer bob, which must be rm"), "{text}");
        assert_eq!(super::unfit(&token, 9, Some("rm/h@R"), None), None);
    }
}
