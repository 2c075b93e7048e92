//! `heddle move`: moves an application to another queue. The ResourceManager decides whether that is allowed; its
//! containers, queue limits and later requests count for the new queue from then on.

use heddle_protocol::exit_code::ExitCode;

use crate::am_client;
use crate::cluster::{ClusterContext, client_failure};
use crate::failure::{CommandFailure, CommandResult, OrFail};
use crate::output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The application's id
    #[arg(value_name = "APPLICATION")]
    application: String,
    /// The queue that it moves to: a leaf queue, by its name or its path
    #[arg(value_name = "QUEUE")]
    queue: String,
}

pub fn move_queue(args: &Args, json: bool) -> CommandResult {
    let Some(id) = super::application(&args.application)? else {
        let fact = format!("APPLICATION must be an application's id (got {:?})", args.application);
        return Err(CommandFailure::new(ExitCode::Usage, fact)
            .next("`heddle list --yarn` shows all applications; local runs have no queue"));
    };
    am_client::runtime()?.block_on(async {
        let cluster = ClusterContext::load()?;
        let moved = cluster.client.move_to_queue(id, &args.queue).await;
        let fact = format!("cannot move {id} to the queue {:?}", args.queue);
        moved.or_fail_with(client_failure, fact)?;
        // The scheduler writes the whole path, and may have chosen another queue than the one that was named.
        let now = cluster.client.report(id).await.map(|report| report.queue);
        let queue = now.unwrap_or_else(|_| args.queue.clone());
        let object = serde_json::json!({ "application": id.to_string(), "queue": queue });
        output::done(&object, &format!("{id} is in the queue {queue}"), json)
    })
}
