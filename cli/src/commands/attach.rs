//! `heddle attach`: follows an application that runs, and tells the end of one that is over.

use heddle_yarn::ApplicationId;

use super::submit::Waiting;
use crate::am_client;
use crate::application::{self, Application};
use crate::failure::Outcome;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The application's id
    #[arg(value_name = "APPLICATION")]
    application: ApplicationId,
    #[command(flatten)]
    waiting: Waiting,
}

pub fn attach(args: &Args, json: bool) -> Outcome {
    am_client::runtime()?.block_on(async {
        let application = Application::find(args.application).await?;
        application::follow(application, args.waiting, json).await
    })
}
