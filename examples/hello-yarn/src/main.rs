//! A YARN application in Rust: N containers that run a command.
//!
//! ```text
//! hello-yarn submit --containers 4 -- date
//! ```
//!
//! `submit` requests an application whose ApplicationMaster is this same program (`am.rs`), and waits for its end. Reads `HADOOP_CONF_DIR` and `HADOOP_USER_NAME` as all Hadoop clients do.

mod am;
mod args;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use heddle_yarn::{
    ApplicationState, LaunchContext, LocalResource, Memory, ResourceKind, Resources, Submission,
    VCores, Visibility, YarnClient,
};

use args::ContainerArgs;

#[derive(Parser)]
#[command(about)]
struct HelloCli {
    #[command(subcommand)]
    command: HelloCommand,
}

#[derive(Subcommand)]
enum HelloCommand {
    /// Run a command in containers and wait until all have succeeded
    Submit {
        /// Set the queue
        #[arg(long, default_value = "default")]
        queue: String,
        /// Limit the attempts of the ApplicationMaster; 0 for the cluster's default
        #[arg(long, default_value_t = 0)]
        attempts: u32,
        #[command(flatten)]
        work: ContainerArgs,
    },
    /// Run the ApplicationMaster; the cluster starts it
    #[command(hide = true)]
    Am(ContainerArgs),
}

// One thread is enough: an ApplicationMaster mostly waits.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let result = match HelloCli::parse().command {
        HelloCommand::Submit { queue, attempts, work } => submit(queue, attempts, work).await,
        HelloCommand::Am(work) => am::run(work).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello-yarn: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn submit(queue: String, attempts: u32, work: ContainerArgs) -> Result<()> {
    let cluster = args::cluster()?;
    let client = YarnClient::new(&cluster);
    let new = client.new_application().await?;
    // The ResourceManager would drop an unknown resource type without an error.
    client.resource_types().await?.check(&work.resources(), &new.maximum)?;

    let context = LaunchContext::new(&work.argv())?
        .env("HADOOP_USER_NAME", &cluster.user().effective)?
        .file("hello-yarn", this_program()?);
    let am_resources = Resources::new(Memory::mib(64), VCores(1));
    let submission = Submission {
        queue,
        attempts_max: attempts,
        // If the ApplicationMaster dies, the containers continue and its next attempt takes them over.
        keep_containers: true,
        ..Submission::new(new.id, "hello-yarn", am_resources, context)
    };
    let mut report = client.submit(&submission).await?;
    println!("{}", new.id);

    let mut seen = None;
    loop {
        if seen != report.state {
            eprintln!("{:?} {}", report.state.context("an unknown state")?, report.tracking_url);
            seen = report.state;
        }
        if report.state.is_some_and(ApplicationState::is_final) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        report = match client.report(new.id).await {
            Ok(report) => report,
            // No ResourceManager responds; the application continues, and the client polls again.
            Err(error) if error.is_retryable() => report,
            Err(error) => return Err(error.into()),
        };
    }
    let succeeded = report.final_status == heddle_yarn::client::FinalApplicationStatus::Succeeded;
    ensure!(succeeded, "{:?}: {}", report.final_status, report.diagnostics);
    Ok(())
}

/// This file, for the NodeManager to copy. A `file:` address works where all nodes see the path, as on one machine; a
/// real application uploads itself to HDFS.
fn this_program() -> Result<LocalResource> {
    let path: PathBuf = std::env::current_exe()?.canonicalize()?;
    let metadata = Path::new(&path).metadata()?;
    let modified = metadata.modified()?.duration_since(std::time::UNIX_EPOCH)?;
    Ok(LocalResource {
        url: format!("file://{}", path.display()).parse()?,
        size: i64::try_from(metadata.len())?,
        timestamp_ms: i64::try_from(modified.as_millis())?,
        kind: ResourceKind::File,
        visibility: Visibility::Application,
    })
}
