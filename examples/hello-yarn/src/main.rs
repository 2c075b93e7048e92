//! A YARN application in Rust: N containers that run a command.
//!
//! ```text
//! hello-yarn submit --containers 4 -- date
//! ```
//!
//! `submit` asks the ResourceManager for an application whose ApplicationMaster is this same program (`am.rs`), and
//! watches it to its end. Reads `HADOOP_CONF_DIR` and `HADOOP_USER_NAME` as all Hadoop clients do.

mod am;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::{Configuration, User};
use heddle_yarn::{
    Amount, ApplicationState, Cluster, LaunchContext, LocalResource, Memory, ResourceKind,
    Resources, Submission, VCores, Visibility, YarnClient,
};

#[derive(Parser)]
#[command(about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command in containers and wait until all have ended well
    Submit {
        /// The queue
        #[arg(long, default_value = "default")]
        queue: String,
        /// Attempts of the ApplicationMaster at most; 0 for the cluster's default
        #[arg(long, default_value_t = 0)]
        attempts: u32,
        #[command(flatten)]
        work: Work,
    },
    /// What the cluster starts
    #[command(hide = true)]
    Am(Work),
}

/// What shall run. The client hands it to the ApplicationMaster as it is.
#[derive(Args, Clone)]
struct Work {
    /// How many containers
    #[arg(long, default_value_t = 1)]
    containers: u32,
    /// MiB for each
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// Virtual cores for each
    #[arg(long, default_value_t = 1)]
    vcores: u32,
    /// Resources of type yarn.io/gpu for each
    #[arg(long, default_value_t = 0)]
    gpus: u32,
    /// Failed containers that are replaced before giving up
    #[arg(long, default_value_t = 3)]
    replacements: u32,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

impl Work {
    fn resources(&self) -> Resources {
        let resources = Resources::new(Memory::mib(self.memory), VCores(self.vcores));
        if self.gpus == 0 {
            resources
        } else {
            resources.with("yarn.io/gpu", Amount::count(self.gpus))
        }
    }

    /// The command line of the ApplicationMaster.
    fn argv(&self) -> Vec<String> {
        let Self { containers, memory, vcores, gpus, replacements, command } = self;
        let options = format!(
            "./hello-yarn am --containers {containers} --memory {memory} --vcores {vcores} --gpus {gpus} \
             --replacements {replacements} --"
        );
        options.split_whitespace().map(str::to_owned).chain(command.iter().cloned()).collect()
    }
}

/// As whom, and where: from the environment, as every Hadoop client.
fn cluster() -> Result<Cluster> {
    let environment = Environment::of_process();
    let configuration = Configuration::load(environment.clone())?;
    let user = User::resolve(
        &environment,
        configuration.trimmed("hadoop.security.authentication")?.as_deref() == Some("kerberos"),
    )?;
    Ok(Cluster::new(&configuration, user)?)
}

// One thread is plenty: an ApplicationMaster waits.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Submit { queue, attempts, work } => submit(queue, attempts, work).await,
        Command::Am(work) => am::run(work).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hello-yarn: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn submit(queue: String, attempts: u32, work: Work) -> Result<()> {
    let cluster = cluster()?;
    let client = YarnClient::new(&cluster);
    let new = client.new_application().await?;
    // The ResourceManager would drop a resource type that it does not know, without a word.
    client.resource_types().await?.check(&work.resources(), &new.maximum)?;

    let context = LaunchContext::new(&work.argv())?
        .env("HADOOP_USER_NAME", &cluster.user().effective)?
        .file("hello-yarn", this_program()?);
    let am_resources = Resources::new(Memory::mib(64), VCores(1));
    let submission = Submission {
        queue,
        attempts_max: attempts,
        // When the ApplicationMaster dies the containers go on, and its next attempt takes them over.
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
            // Nobody answers: the application goes on, and so do we.
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
