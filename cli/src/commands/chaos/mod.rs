//! `heddle chaos`: orders seeded faults in a running job, and reports whether it survives them.

mod corrupt;
mod plan;
mod reference;
mod report;
mod session;

use std::time::Duration;

use clap::ValueEnum;
use heddle_protocol::exit_code::ExitCode;
use uuid::Uuid;

use super::RunArgs;
use crate::am_client;
use crate::application::duration;
use crate::failure::{CommandFailure, CommandResult};
use crate::job::NamedJob;
use crate::output;
use plan::{ChaosPlan, FaultKind, FaultRole};
use report::fault_text;
use session::{ChaosSession, SessionTimes};

/// Order faults in a running job of your own, and report whether it survives them
///
/// The job must have been started with run.chaos = true. One fault comes at a time, the next one after all processes train
/// again. The same seed orders the same faults. The job goes on after the session. Exit codes: 0 the job kept its promises,
/// 1 it did not, 3 the session was interrupted.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    job: RunArgs,
    /// Seed of the faults [default: a random one, which is printed]
    #[arg(long)]
    seed: Option<u64>,
    /// How long the session lasts; the end of the job ends it too
    #[arg(long = "for", value_name = "DURATION", default_value = "10min", value_parser = duration)]
    length: Duration,
    /// Time from one fault to the next
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    every: Duration,
    /// Kinds of faults [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    kinds: Vec<FaultKind>,
    /// Roles whose processes get faults [default: all that the job replaces]
    #[arg(long, value_enum, value_delimiter = ',')]
    roles: Vec<FaultRole>,
    /// Let one fault hit up to half of a role's processes at once
    #[arg(long)]
    hard: bool,
    /// How long the job may take to train again after a fault
    #[arg(long, value_name = "DURATION", default_value = "5min", value_parser = duration)]
    settle: Duration,
    /// Follow the job to its end and compare its model with the one in this folder, of an undisturbed run
    #[arg(long, value_name = "MODEL")]
    reference: Option<String>,
    /// Print the faults and order none
    #[arg(long)]
    dry_run: bool,
}

pub fn chaos(args: &Args, json: bool) -> CommandResult {
    let mut job = args.job.named()?;
    am_client::runtime()?.block_on(async {
        job.check_key().await?;
        let plan = planned(args, &mut *job).await?;
        if args.dry_run {
            return print(&plan, args, json);
        }
        let reference = match &args.reference {
            Some(folder) => Some(reference::read(folder).await?),
            None => None,
        };
        let Args { length, every, settle, .. } = *args;
        let times = SessionTimes { length, every, settle };
        let mut session = ChaosSession::begin(job, plan, times, json).await?;
        let ended = session.run().await;
        session.report(ended, reference.as_ref()).await
    })
}

/// The faults for this job, if it takes any.
async fn planned(args: &Args, job: &mut dyn NamedJob) -> Result<ChaosPlan, CommandFailure> {
    let view = job.view().await?;
    let id = job.id();
    if view.chaos.is_none() {
        return Err(CommandFailure::new(
            ExitCode::Denied,
            format!("{id} takes no faults: run.chaos of its job is false"),
        )
        .next("start a job for the test with --set run.chaos=true"));
    }
    let roles = roles(args, job.restarts_its_master())?;
    let kinds = match args.kinds.as_slice() {
        [] => FaultKind::value_variants().to_vec(),
        kinds => kinds.to_vec(),
    };
    let spec = job.spec().await?;
    // As many as are there whatever the sizes of the job become.
    let (pservers, trainers) = (spec.pservers.least(), spec.trainers.min);
    let seed = args.seed.unwrap_or_else(|| u64::from(Uuid::new_v4().as_fields().0));
    ChaosPlan::new(seed, &kinds, &roles, pservers, trainers, args.hard).ok_or_else(|| {
        CommandFailure::new(ExitCode::Usage, "no kind of --kinds applies to any role of --roles")
            .next(
                "slow and cut are for trainers, slow-disk and corrupt for pservers, hang and drop for both",
            )
    })
}

fn roles(args: &Args, master_restarts: bool) -> Result<Vec<FaultRole>, CommandFailure> {
    if args.roles.contains(&FaultRole::Am) && !master_restarts {
        let fact = "--roles am: a run on this machine has one ApplicationMaster, and ends with it";
        return Err(CommandFailure::new(ExitCode::Usage, fact)
            .next("submit the job to a cluster, or leave am out"));
    }
    Ok(match (args.roles.as_slice(), master_restarts) {
        ([], true) => vec![FaultRole::Pserver, FaultRole::Trainer, FaultRole::Am],
        ([], false) => vec![FaultRole::Pserver, FaultRole::Trainer],
        (roles, _) => roles.to_vec(),
    })
}

/// `--dry-run`.
fn print(plan: &ChaosPlan, args: &Args, json: bool) -> CommandResult {
    let every = args.every.max(Duration::from_secs(1));
    let count = args.length.as_millis() / every.as_millis();
    for number in 0..u64::try_from(count).unwrap_or(u64::MAX) {
        let planned = plan.fault(number);
        if json {
            output::json(&serde_json::json!({
                "number": number + 1,
                "targets": planned.targets,
                "fault": planned.fault.to_string(),
            }))?;
        } else {
            output::line(&format!("fault {}: {}", number + 1, fault_text(&planned)))?;
        }
    }
    Ok(ExitCode::Ok)
}
