//! `heddle kill`: ends a run or an application, at once or in order.

use std::time::{Duration, Instant};

use heddle_protocol::control::Operation;
use heddle_yarn::ApplicationId;

use super::{Named, RunArgs};
use crate::am_client;
use crate::application::Application;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::runs::{Run, Standing};
use crate::site::client_failure;

/// How long the end of an application is waited for: its ApplicationMaster stops its containers and says goodbye.
const END_LIMIT: Duration = Duration::from_secs(20);
/// Pause between looks at it.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// Take a checkpoint first, so that nothing is computed twice when the job is continued
    #[arg(long)]
    checkpoint: bool,
}

pub fn kill(args: &Args, json: bool) -> Outcome {
    match args.run.named()? {
        Named::Run(run) => of_run(&run, args, json),
        Named::Application(id) => {
            am_client::runtime()?.block_on(of_application(id, args.checkpoint, json))
        }
    }
}

/// Through its ApplicationMaster, which tells the end and tidies up; by the ResourceManager where that does not answer.
async fn of_application(id: ApplicationId, checkpoint: bool, json: bool) -> Outcome {
    let mut application = Application::find(id).await?;
    let runs = !application.is_over();
    if runs {
        let operation = match checkpoint {
            true => Operation::Stop { checkpoint: true },
            false => Operation::Kill,
        };
        match application.operate(&operation).await {
            Ok(()) => {}
            // With a checkpoint or not at all.
            Err(failure) if checkpoint => {
                return Err(
                    failure.next(format!("`heddle kill {id}` ends it without a checkpoint"))
                );
            }
            Err(_) => by_force(&application).await?,
        }
        let limit = match checkpoint {
            // What is saved now must not be lost to haste.
            true => END_LIMIT + 2 * application.am().await.checkpoint_timeout,
            false => END_LIMIT,
        };
        if !wait_for_end(&mut application, limit).await {
            by_force(&application).await?;
            wait_for_end(&mut application, END_LIMIT).await;
        }
    }
    application.sweep().await;
    if json {
        output::json(&serde_json::json!({ "application": id.to_string(), "killed": runs }))?;
    } else if runs {
        eprintln!("{id} is ended; submitting its job again continues it");
    } else {
        eprintln!("{id} does not run: it is over");
    }
    Ok(Exit::Ok)
}

async fn by_force(application: &Application) -> Result<(), Failure> {
    let id = application.id();
    let killed = application.site.client.kill(id, "killed by heddle kill").await;
    killed.map_err(|error| client_failure(&format!("{id} cannot be killed"), &error))
}

/// Whether it is over in time.
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

fn of_run(run: &Run, args: &Args, json: bool) -> Outcome {
    let short = run.file.run.short();
    let standing = run.standing();
    let done = if standing == Standing::Running {
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
        eprintln!("run {short} is ending; running its job again continues it");
    } else {
        eprintln!(
            "run {short} does not run: it {}",
            match standing {
                Standing::Died => "died",
                Standing::Finished => "finished",
                Standing::Failed => "failed",
                Standing::Stopped | Standing::Running => "was stopped",
            }
        );
    }
    Ok(Exit::Ok)
}
