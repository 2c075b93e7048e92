//! A job between its checks and its submission: all that is known about it, before anything of it is on the
//! cluster.

use heddle_am::run_dir::RunFile;
use heddle_protocol::handshake::Secret;
use heddle_protocol::job_spec::{JobSpec, Location};
use heddle_yarn::ApplicationId;

use super::keytab::JobKeytab;
use super::plan::SubmitPlan;

/// A job that has passed all checks.
pub struct CheckedJob {
    /// Its application.
    pub application: ApplicationId,
    /// The staging directory of that.
    pub staging: Location,
    /// Run and options.
    pub run: RunFile,
    /// The job, with all its locations on the cluster.
    pub spec: JobSpec,
    /// Its secret.
    pub secret: Secret,
    /// What the ApplicationMaster fetches tokens by.
    pub keytab: Option<JobKeytab>,
    /// What its submission does.
    pub plan: SubmitPlan,
    /// `data.train` and `data.test` of the job file.
    pub given: [Vec<Location>; 2],
}
