//! The keytab of a job that runs longer than its HDFS tokens (`yarn.keytab`).
//!
//! It is checked here, since the ApplicationMaster would find a wrong one only after the start of an application.

use std::fmt;

use heddle_hadoop::identity::short_name_of;
use heddle_hadoop::kerberos::{GssapiEngine, KerberosEngine as _, KerberosError, TicketSource};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::JobSpec;
use zeroize::Zeroizing;

use crate::cluster::ClusterContext;
use crate::failure::{CommandFailure, OrFail};

/// A keytab that is uploaded for the ApplicationMaster.
pub struct JobKeytab {
    /// The principal, with realm.
    pub principal: String,
    /// The content: a secret, of which `Debug` shows the length alone.
    pub content: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for JobKeytab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobKeytab")
            .field("principal", &self.principal)
            .field("content", &format_args!("[{} bytes]", self.content.len()))
            .finish()
    }
}

/// Reads and checks the keytab of a job; `None` without one, and on a cluster without security.
///
/// # Errors
/// Exit code 5 for a keytab that is missing, malformed or another user's.
pub fn read(cluster: &ClusterContext, spec: &JobSpec) -> Result<Option<JobKeytab>, CommandFailure> {
    let Some(path) = spec.yarn.keytab.as_ref().filter(|_| cluster.secured) else {
        return Ok(None);
    };
    let denied = |error: &KerberosError| {
        CommandFailure::caused(ExitCode::Denied, "cannot use yarn.keytab", error)
            .next(error.next_step())
    };
    let principal = spec.yarn.principal.clone();
    let source = TicketSource::Keytab { path: path.clone(), principal };
    let principal = GssapiEngine.owner(&source).map_err(|error| denied(&error))?.principal;
    let name = short_name_of(&cluster.configuration, &principal)
        .or_fail(ExitCode::Denied, "cannot use yarn.principal")
        .map_err(|failure| {
            failure.next("correct hadoop.security.auth_to_local in core-site.xml")
        })?;
    // The user of the tokens of the submission: the ApplicationMaster replaces these by its own.
    let user = &cluster.user;
    if name != user.short_name() || user.real.is_some() {
        let fact = format!(
            "yarn.keytab must be of the user of the job, {} (its principal {principal} is {name})",
            user.short_name()
        );
        return Err(CommandFailure::new(ExitCode::Denied, fact)
            .next("name another keytab or yarn.principal, or submit as that user"));
    }
    let content = std::fs::read(path)
        .or_fail(ExitCode::Denied, format_args!("cannot read yarn.keytab = {}", path.display()))?;
    Ok(Some(JobKeytab { principal, content: Zeroizing::new(content) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_has_no_byte_of_the_keytab() {
        let content = Zeroizing::new(b"canary".to_vec());
        let shown =
            format!("{:?}", JobKeytab { principal: "alice@EXAMPLE.ORG".to_owned(), content });
        assert_eq!(shown, "JobKeytab { principal: \"alice@EXAMPLE.ORG\", content: [6 bytes] }");
    }
}
