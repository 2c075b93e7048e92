//! Logs in by Kerberos, fetches a delegation token of the default HDFS and one of the ResourceManager, and writes them as a
//! token file. The programs of a session then need no ticket:
//!
//! ```text
//! kinit alice
//! cargo run -p heddle-yarn --example fetch_tokens -- /tmp/alice.tokens
//! export HADOOP_TOKEN_FILE_LOCATION=/tmp/alice.tokens
//! ```
//!
//! The ResourceManager may renew the tokens. They end at their maximum lifetime, which is 7 days by default.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use heddle_hadoop::configuration::{Configuration, Environment, NameService};
use heddle_hadoop::identity::Identity;
use heddle_hadoop::kerberos::{ServerPrincipal, token_renewer};
use heddle_hadoop::namenode::NameNode;
use heddle_hadoop::rpc::{RpcClient, RpcOptions};
use heddle_hadoop::token::{Credentials, ServiceNames};
use heddle_yarn::{Cluster, YarnClient};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("usage: fetch_tokens FILE")?;
    let configuration = Configuration::load(Environment::of_process())?;
    let identity = Identity::resolve(&configuration)?;
    // Java files tokens under addresses, unless the site configures names.
    let uses_ip = configuration.boolean("hadoop.security.token.service.use_ip", true)?;

    let cluster = Cluster::new(&configuration, identity.user.clone())?
        .with_identity(&configuration, &identity)?;
    let renewer = token_renewer(&configuration, cluster.resource_managers())?
        .ok_or("yarn.resourcemanager.principal is not set")?;
    let of_rm = YarnClient::new(&cluster).delegation_token(&renewer).await?;
    let of_rm = of_rm.ok_or("the ResourceManager issues no tokens: the cluster is not secured")?;
    let rm_service = ServiceNames::token_service(cluster.resource_managers(), uses_ip).await;

    let hdfs = NameService::of_default(&configuration)?;
    let hdfs_service = match &hdfs.logical {
        Some(logical) if hdfs.servers.len() > 1 => format!("ha-hdfs:{logical}"),
        _ => ServiceNames::token_service(&hdfs.servers, uses_ip).await,
    };
    let client = RpcClient::new(RpcOptions::of(&configuration)?);
    let login = identity.login(None, ServerPrincipal::of_namenode(&configuration)?);
    let namenode = NameNode::new(&client, hdfs.servers, login, Duration::from_secs(10));
    let of_hdfs = namenode.delegation_token(&renewer).await?.ok_or("HDFS issues no tokens")?;

    let mut credentials = Credentials::new();
    credentials.add(of_rm.with_service(rm_service));
    credentials.add(of_hdfs.with_service(hdfs_service));
    for (_, token) in credentials.tokens() {
        println!("{} for {}", token.kind(), token.service());
    }
    // Only the user can read the file.
    credentials.write_file(Path::new(&file))?;
    Ok(())
}
