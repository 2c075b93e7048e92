//! One file per sub-command.

pub mod bench;
pub mod checkpoint;
pub mod completions;
pub mod config;
pub mod containers;
pub mod export;
pub mod kill;
pub mod list;
pub mod logs;
pub mod predict;
pub mod run;
pub mod status;

use std::path::PathBuf;

use crate::failure::Failure;
use crate::runs::{self, Run};

/// A run of this machine, named by its uuid.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The run's id or its first digits
    #[arg(value_name = "RUN")]
    pub run: String,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Where run directories are.
#[derive(Clone, Debug, clap::Args)]
pub struct PlaceArgs {
    /// Folder of run directories [default: heddle in the XDG state directory]
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
}

impl RunArgs {
    /// The run that is meant.
    ///
    /// # Errors
    /// None or several runs are called so.
    pub fn find(&self) -> Result<Run, Failure> {
        runs::find(&runs::work_dir(self.place.work_dir.as_deref())?, &self.run)
    }
}
