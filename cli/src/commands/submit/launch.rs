//! The submission: the application as the client describes it to the ResourceManager.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_am::staging::{CONF_DIR, StagedFile, command};
use heddle_hadoop::kerberos::NO_TICKETS;
use heddle_protocol::exit_code::ExitCode;
use heddle_yarn::{Access, LaunchContext, LocalResource, Priority, ResourceKind, Submission};

use super::checked::CheckedJob;
use super::credentials::SubmittedCredentials;
use crate::cluster::{APPLICATION_TYPE, ClusterContext};
use crate::failure::{CommandFailure, OrFail};

/// Older failures of attempts do not count: a job of several weeks may lose more than two nodes.
const FAILURES_VALIDITY: Duration = Duration::from_secs(3600);

/// The submission of an ApplicationMaster with its files, tokens and limits.
///
/// # Errors
/// A value that a shell cannot take, or tokens that cannot be read.
pub fn submission(
    cluster: &ClusterContext,
    job: &CheckedJob,
    files: &BTreeMap<String, StagedFile>,
    credentials: SubmittedCredentials,
) -> Result<Submission, CommandFailure> {
    let spec = &job.spec;
    let resources = &job.plan.cluster.roles[0].asked;
    const UNFIT: &str = "yarn.env cannot be handed over";
    let mut context = LaunchContext::new(&command(&["am", "--yarn"], &spec.yarn.env))
        .or_fail(ExitCode::Input, UNFIT)?;
    for (name, value) in &spec.yarn.env {
        context = context.env(name, value).or_fail(ExitCode::Input, UNFIT)?;
    }
    if cluster.secured {
        // A NodeManager may start the ApplicationMaster as its own account, which may have a ticket.
        context = context.env("KRB5CCNAME", NO_TICKETS).or_fail(ExitCode::Input, UNFIT)?;
    } else {
        // Otherwise HDFS would take the NodeManager's user.
        let user = &cluster.user.effective;
        context = context.env("HADOOP_USER_NAME", user).or_fail(ExitCode::Input, UNFIT)?;
    }
    context = context
        .env_raw("HADOOP_CONF_DIR", format!("{{{{PWD}}}}/{CONF_DIR}"))
        .or_fail(ExitCode::Input, UNFIT)?
        .tokens(credentials.encoded);
    if let Some(renewal) = credentials.renewal {
        context = context.tokens_conf(renewal);
    }
    for (name, file) in files {
        context = context.file(name, local_resource(file)?);
    }
    for (access, acl) in
        [(Access::View, &spec.yarn.view_acl), (Access::Modify, &spec.yarn.modify_acl)]
    {
        if !acl.is_empty() {
            context = context.acl(access, acl);
        }
    }
    let priority = i32::try_from(spec.yarn.priority).unwrap_or(i32::MAX);
    Ok(Submission {
        queue: spec.yarn.queue.clone(),
        kind: APPLICATION_TYPE.to_owned(),
        attempts_max: spec.yarn.max_attempts,
        failures_validity: Some(FAILURES_VALIDITY),
        // Training continues while the ApplicationMaster restarts.
        keep_containers: true,
        cancel_tokens: credentials.are_shared.then_some(false),
        tags: spec.yarn.tags.clone(),
        priority: (priority > 0).then_some(Priority(priority)),
        node_label: spec.yarn.node_label.clone(),
        ..Submission::new(job.application, &spec.name, resources.clone(), context)
    })
}

fn local_resource(file: &StagedFile) -> Result<LocalResource, CommandFailure> {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    Ok(LocalResource {
        url: file.url.parse().or_fail(ExitCode::Internal, "a place without a URL")?,
        size: number(file.bytes),
        timestamp_ms: number(file.modified_ms),
        kind: match file.archive {
            true => ResourceKind::Archive,
            false => ResourceKind::File,
        },
        visibility: file.visibility.into(),
    })
}
