//! Where the containers of a job get their program from: the site's directory for all users, else the user's own.

use heddle_am::staging::{HOME_DIR, StagedVisibility};
use heddle_protocol::job_spec::JobSpec;

use super::upload::ProgramSource;
use crate::cluster::ClusterContext;
use crate::failure::CommandFailure;
use crate::program::Program;
use crate::program_dir::{ProgramDir, StoredProgram};

/// Selects the source. A program of the site that cannot be used is noted, and the user's own copy serves.
///
/// # Errors
/// The file system of the site's directory cannot be used or does not respond.
pub async fn of(
    cluster: &ClusterContext,
    spec: &JobSpec,
    program: &Program,
    notes: &mut Vec<String>,
) -> Result<ProgramSource, CommandFailure> {
    let own = || {
        let place = cluster.home()?.join(HOME_DIR).join("bin");
        Ok(ProgramSource::Own(ProgramDir::private(cluster.storage()?, place)))
    };
    let Some(place) = &spec.submit.binary_dir else {
        return own();
    };
    let dir = ProgramDir::shared(place.clone())?;
    let unusable = match dir.shared_by_all().await? {
        Err([fact, next]) => format!("{fact}; an administrator corrects it: {next}"),
        Ok(()) => match dir.find(program).await? {
            StoredProgram::Recorded(entry) if dir.is_readable_by_all(&entry).await? => {
                let staged = dir.staged(program, &entry, StagedVisibility::Public);
                return Ok(ProgramSource::Installed(staged));
            }
            StoredProgram::Recorded(_) => {
                format!("{} must be readable by all users and not writable by them", program.name)
            }
            StoredProgram::Unproven(_) => {
                format!(
                    "the recorded digest does not fit {}; an administrator runs heddle install",
                    program.name
                )
            }
            StoredProgram::Missing => {
                format!("it does not have {}; an administrator runs heddle install", program.name)
            }
        },
    };
    notes.push(format!(
        "warning: submit.binary-dir = {place} is not used: {unusable}. The job uses a copy in your home"
    ));
    own()
}
