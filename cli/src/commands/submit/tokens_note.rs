//! What ends with the tokens of a submission, as `heddle submit` notes it.

use heddle_am::report::format;

use crate::cluster::ClusterContext;

/// The key of the ResourceManager that lets it fetch tokens for the users of applications.
const PROXY_PRIVILEGES: &str = "yarn.resourcemanager.proxy-user-privileges.enabled";

/// The note; `None` if nothing ends with the tokens. `is_portable`: whether a new attempt of the ApplicationMaster starts
/// without a token of the user.
pub fn of(
    cluster: &ClusterContext,
    until_ms: u64,
    has_keytab: bool,
    is_portable: bool,
) -> Option<String> {
    let fetches = cluster.configuration.boolean(PROXY_PRIVILEGES, false).unwrap_or(false);
    text(&format::time(until_ms), has_keytab, is_portable || fetches)
}

fn text(until: &str, has_keytab: bool, restarts_anywhere: bool) -> Option<String> {
    match (has_keytab, restarts_anywhere) {
        (false, _) => Some(format!(
            "the job's HDFS tokens end at {until}: a job that runs longer ends before, with a checkpoint and exit code 5; submit it again to continue, or set yarn.keytab"
        )),
        (true, false) => Some(format!(
            "after {until} the ApplicationMaster can be restarted only on a node that has the job's files; its loss elsewhere ends the job, and submitting it again continues. It restarts on any node with submit.binary-dir (an administrator runs heddle install) or {PROXY_PRIVILEGES}"
        )),
        (true, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_name_what_does_not_survive() {
        let note = |keytab, anywhere| text("noon", keytab, anywhere).unwrap_or_default();
        assert!(note(false, true).contains("yarn.keytab"));
        assert!(note(true, false).contains("submit.binary-dir"));
        assert_eq!(text("noon", true, true), None);
    }
}
