//! `heddle kill`: ends a run, at once or in order.

use heddle_protocol::control::Operation;

use super::RunArgs;
use crate::am_client;
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output;
use crate::runs::Standing;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    run: RunArgs,
    /// Take a checkpoint first, so that nothing is computed twice when the job is continued
    #[arg(long)]
    checkpoint: bool,
}

pub fn kill(args: &Args, json: bool) -> Outcome {
    let run = args.run.find()?;
    let short = run.file.run.short();
    let standing = run.standing();
    let done = if standing == Standing::Running {
        let operation = match args.checkpoint {
            true => Operation::Stop { checkpoint: true },
            false => Operation::Kill,
        };
        am_client::runtime()?.block_on(am_client::operate(&run, &operation))?;
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
