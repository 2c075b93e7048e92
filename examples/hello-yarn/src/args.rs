//! The options that client and ApplicationMaster share, and the cluster of the environment.

use anyhow::Result;
use clap::Args;
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::identity::Identity;
use heddle_hadoop::sasl::SecurityPolicy;
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

/// The cluster and the user of the environment, as for every Hadoop client: with security the owner of a token or of a Kerberos
/// ticket.
pub fn client_cluster() -> Result<Cluster> {
    let configuration = Configuration::load(Environment::of_process())?;
    let identity = Identity::resolve(&configuration)?;
    Ok(Cluster::new(&configuration, identity.user.clone())?
        .with_identity(&configuration, &identity)?)
}

/// The cluster as the ApplicationMaster uses it: the ResourceManager and the nodes have given it a token for each call.
pub fn am_cluster() -> Result<Cluster> {
    let environment = Environment::of_process();
    let configuration = Configuration::load(environment.clone())?;
    let is_secured = SecurityPolicy::of(&configuration)?.required;
    Ok(Cluster::new(&configuration, User::resolve(&environment, is_secured)?)?)
}
