//! `heddle kill`: ends a run or an application, at once or after a checkpoint.

use std::time::{Duration, Instant};

use heddle_protocol::control::Operation;
use heddle_protocol::exit_code::ExitCode;
use heddle_yarn::ApplicationId;

use super::{JobRef, RunArgs};
use crate::am_client;
use crate::application::Application;
use crate::cluster::client_failure;
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;
use crate::runs::{LocalRun, RunState};

/// Time limit for the end of an application: its ApplicationMaster stops the containers and unregisters.
const END_LIMIT: Duration = Duration::from_secs(20);
/// Poll interval.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// Take a checkpoint first, so that a continued job repeats no work
    #[arg(long)]
    checkpoint: bool,
}

pub fn kill(args: &Args, json: bool) -> CommandResult {
    match args.run.named()? {
        JobRef::Run(run) => of_run(&run, args, json),
        JobRef::Application(id) => {
            am_client::runtime()?.block_on(of_application(id, args.checkpoint, json))
        }
    }
}

/// Ends the application through its ApplicationMaster, which writes the report and cleans up; through the
/// ResourceManager if the ApplicationMaster does not respond.
async fn of_application(id: ApplicationId, checkpoint: bool, json: bool) -> CommandResult {
    let mut application = Application::find(id).await?;
    let runs = !application.is_over();
    if runs {
        let operation = match checkpoint {
            true => Operation::Stop { checkpoint: true },
            false => Operation::Kill,
        };
        let ordered = match checkpoint {
            true => application.operate(&operation).await,
            // Without the secret the ResourceManager ends it.
            false => application.operate_soon(&operation).await,
        };
        match ordered {
            Ok(()) => {}
            // With `--checkpoint` the application is not killed without one.
            Err(failure) if checkpoint => {
                return Err(
                    failure.next(format!("`heddle kill {id}` ends it without a checkpoint"))
                );
            }
            Err(_) => by_force(&application).await?,
        }
        let limit = match checkpoint {
            // The save must not be cut short.
            true => END_LIMIT + 2 * application.am().await.checkpoint_timeout,
            false => END_LIMIT,
        };
        if !wait_for_end(&mut application, limit).await {
            by_force(&application).await?;
            wait_for_end(&mut application, END_LIMIT).await;
        }
    }
    application.remove_staging().await;
    if json {
        output::json(&serde_json::json!({ "application": id.to_string(), "killed": runs }))?;
    } else if runs {
        eprintln!("{id} has ended; submit its job again to continue it");
    } else {
        eprintln!("{id} does not run: it has ended");
    }
    Ok(ExitCode::Ok)
}

async fn by_force(application: &Application) -> Result<(), CommandFailure> {
    let id = application.id();
    let killed = application.cluster.client.kill(id, "killed by heddle kill").await;
    killed.or_fail_with(client_failure, format_args!("cannot kill {id}"))
}

/// Whether it ends within the limit.
async fn wait_for_end(application: &mut Application, limit: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < limit {
        if application.refresh().await.is_ok() && application.is_over() {
            return true;
        }
        tokio::time::sleep(LOOK).await;
    }
    false
}

fn of_run(run: &LocalRun, args: &Args, json: bool) -> CommandResult {
    let short = run.file.run.short();
    let state = run.state();
    let done = if state == RunState::Running {
        let operation = match args.checkpoint {
            true => Operation::Stop { checkpoint: true },
            false => Operation::Kill,
        };
        am_client::runtime()?.block_on(am_client::operate(run, &operation))?;
        true
    } else {
        false
    };
    if json {
        output::json(&serde_json::json!({ "run": run.file.run, "killed": done }))?;
    } else if done {
        eprintln!("run {short} is ending; run its job again to continue it");
    } else {
        eprintln!(
            "run {short} does not run: it {}",
            match state {
                RunState::Died => "died",
                RunState::Finished => "finished",
                RunState::Failed => "failed",
                RunState::Stopped | RunState::Running => "was stopped",
            }
        );
    }
    Ok(ExitCode::Ok)
}
