//! A YARN application in Rust: N containers that run a command.
//!
//! ```text
//! hello-yarn submit --containers 4 -- date
//! ```
//!
//! `submit` requests an application whose ApplicationMaster is this same program (`am.rs`), and waits for its end. Reads
//! `HADOOP_CONF_DIR`, `HADOOP_USER_NAME`, tokens and Kerberos tickets as all Hadoop clients do.

mod am;
mod args;
mod upload;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use heddle_yarn::{
    ApplicationId, ApplicationReport, ApplicationState, LaunchContext, LocalResource, Memory,
    Resources, Submission, VCores, YarnClient,
};

use args::ContainerArgs;
use upload::Uploaded;

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
        /// Copy this program to HDFS for the nodes; without it they must see its path
        #[arg(long)]
        upload: bool,
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
        HelloCommand::Submit { queue, attempts, upload, work } => {
            submit(queue, attempts, upload, work).await
        }
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

async fn submit(queue: String, attempts: u32, upload: bool, work: ContainerArgs) -> Result<()> {
    let cluster = args::client_cluster()?;
    let client = YarnClient::new(&cluster);
    let new = client.new_application().await?;
    // The ResourceManager would drop an unknown resource type without an error.
    client.resource_types().await?.check(&work.resources(), &new.maximum)?;

    let user = &cluster.user().effective;
    let uploaded = match upload {
        true => Some(Uploaded::new(user, new.id).await.context("cannot copy the program to HDFS")?),
        false => None,
    };
    let program: LocalResource = match &uploaded {
        Some(uploaded) => uploaded.resource.clone(),
        None => upload::in_place()?,
    };
    let mut context = LaunchContext::new(&work.argv())?
        .env("HADOOP_USER_NAME", user)?
        .file("hello-yarn", program);
    if let Some(uploaded) = uploaded.as_ref().filter(|uploaded| !uploaded.tokens.is_empty()) {
        context = context.tokens(uploaded.tokens.encode());
    }
    let am_resources = Resources::new(Memory::mib(64), VCores(1));
    let submission = Submission {
        queue,
        attempts_max: attempts,
        // If the ApplicationMaster dies, the containers continue and its next attempt takes them over.
        keep_containers: true,
        // The session's tokens serve its other applications too.
        cancel_tokens: Some(false),
        ..Submission::new(new.id, "hello-yarn", am_resources, context)
    };
    let accepted = client.submit(&submission).await?;
    println!("{}", new.id);
    let report = wait(&client, new.id, accepted).await?;
    if let Some(uploaded) = uploaded {
        uploaded.remove().await.context("cannot remove the program from HDFS")?;
    }
    let succeeded = report.final_status == heddle_yarn::client::FinalApplicationStatus::Succeeded;
    ensure!(succeeded, "{:?}: {}", report.final_status, report.diagnostics);
    Ok(())
}

/// Prints the states of an application until it has ended.
async fn wait(
    client: &YarnClient,
    id: ApplicationId,
    mut report: ApplicationReport,
) -> Result<ApplicationReport> {
    let mut seen = None;
    loop {
        if seen != report.state {
            eprintln!("{:?} {}", report.state.context("an unknown state")?, report.tracking_url);
            seen = report.state;
        }
        if report.state.is_some_and(ApplicationState::is_final) {
            return Ok(report);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        report = match client.report(id).await {
            Ok(report) => report,
            // No ResourceManager responds; the application continues, and the client polls again.
            Err(error) if error.is_retryable() => report,
            Err(error) => return Err(error.into()),
        };
    }
}
