//! The options that client and ApplicationMaster share, and the cluster of the environment.

use anyhow::Result;
use clap::Args;
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::{Configuration, User};
use heddle_yarn::{Amount, Cluster, Memory, Resources, VCores};

/// The containers to run. The client passes the same options to the ApplicationMaster.
#[derive(Args, Clone)]
pub struct ContainerArgs {
    /// Number of containers
    #[arg(long, default_value_t = 1)]
    pub containers: u32,
    /// MiB of each
    #[arg(long, default_value_t = 64)]
    pub memory: u64,
    /// Virtual cores of each
    #[arg(long, default_value_t = 1)]
    pub vcores: u32,
    /// Resources of type yarn.io/gpu of each
    #[arg(long, default_value_t = 0)]
    pub gpus: u32,
    /// Failed containers to replace before the job fails
    #[arg(long, default_value_t = 3)]
    pub replacements: u32,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

impl ContainerArgs {
    /// Requested resources of a container.
    pub fn resources(&self) -> Resources {
        let resources = Resources::new(Memory::mib(self.memory), VCores(self.vcores));
        if self.gpus == 0 {
            resources
        } else {
            resources.with("yarn.io/gpu", Amount::count(self.gpus))
        }
    }

    /// The command line of the ApplicationMaster.
    pub fn argv(&self) -> Vec<String> {
        let Self { containers, memory, vcores, gpus, replacements, command } = self;
        let options = format!(
            "./hello-yarn am --containers {containers} --memory {memory} --vcores {vcores} --gpus {gpus} \
             --replacements {replacements} --"
        );
        options.split_whitespace().map(str::to_owned).chain(command.iter().cloned()).collect()
    }
}

/// The cluster and the user of the environment, as for every Hadoop client.
pub fn cluster() -> Result<Cluster> {
    let environment = Environment::of_process();
    let configuration = Configuration::load(environment.clone())?;
    let user = User::resolve(
        &environment,
        configuration.trimmed("hadoop.security.authentication")?.as_deref() == Some("kerberos"),
    )?;
    Ok(Cluster::new(&configuration, user)?)
}
