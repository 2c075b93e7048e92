//! `heddle attach`: follows a running application, or prints the end of one that has ended.

use heddle_yarn::ApplicationId;

use crate::am_client;
use crate::application::{self, Application, WaitArgs};
use crate::failure::CommandResult;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The application's id
    #[arg(value_name = "APPLICATION")]
    application: ApplicationId,
    #[command(flatten)]
    waiting: WaitArgs,
}

pub fn attach(args: &Args, json: bool) -> CommandResult {
    am_client::runtime()?.block_on(async {
        let application = Application::find(args.application).await?;
        application::follow(application, args.waiting, json).await
    })
}
