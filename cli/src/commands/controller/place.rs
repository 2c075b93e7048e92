//! The controller's folder, as flag or site key.

use heddle_controller::dir::{ControllerDir, ControllerDirError};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::Location;
use heddle_storage::StorageUrl;

use crate::cluster::{ClusterContext, storage_failure};
use crate::failure::{CommandFailure, OrFail};
use crate::site_defaults;

/// The key with the folder.
const KEY: &str = "controller.dir";
const NEXT: &str =
    "set controller.dir in heddle-defaults.toml, so that jobs find it too (docs/elastic.md)";

/// Where the controller's folder is.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Folder of the controller on HDFS [default: controller.dir of the site's defaults]
    #[arg(long, value_name = "URL")]
    dir: Option<Location>,
}

impl Place {
    /// The folder, once it is as it has to be.
    ///
    /// # Errors
    /// Exit code 7 without the name of a folder, 5 with the commands that make it, 6 if HDFS does not respond.
    pub async fn open(&self, cluster: &ClusterContext) -> Result<ControllerDir, CommandFailure> {
        let stated = match &self.dir {
            Some(dir) => Some(dir.clone()),
            None => match site_defaults::text(KEY)? {
                Some(text) => Some(text.parse().or_fail(ExitCode::Input, KEY)?),
                None => None,
            },
        };
        let dir = stated.ok_or_else(|| {
            let fact = format!("{KEY} is not set, and --dir is not given");
            CommandFailure::new(ExitCode::Input, fact).next(NEXT)
        })?;
        let dir = cluster.whole(&dir)?;
        let url = StorageUrl::parse(&dir.url()).or_fail(ExitCode::Input, KEY)?;
        let user = cluster.user.short_name();
        ControllerDir::open(&url, &dir.url(), user).await.map_err(|error| match error {
            ControllerDirError::Unfit { what, commands } => {
                CommandFailure::new(ExitCode::Denied, what)
                    .next(format!("as the administrator of HDFS:\n{commands}"))
            }
            ControllerDirError::Storage(error) => {
                storage_failure(&format!("cannot use {dir} ({KEY})"), &error)
            }
        })
    }
}
