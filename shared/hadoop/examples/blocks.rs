//! Prints the content of a directory and the block locations of a file.
//!
//! ```text
//! HADOOP_CONF_DIR=/etc/hadoop/conf cargo run -p heddle-hadoop --example blocks -- /data/part-00000
//! ```

use std::error::Error;
use std::time::Duration;

use heddle_hadoop::configuration::{Configuration, Environment, NameService};
use heddle_hadoop::identity::Identity;
use heddle_hadoop::kerberos::ServerPrincipal;
use heddle_hadoop::namenode::NameNode;
use heddle_hadoop::rpc::{RpcClient, RpcOptions};
use heddle_hadoop::token::{ServiceNames, token_kind};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: blocks PATH")?;
    let configuration = Configuration::load(Environment::of_process())?;
    let service = NameService::of_default(&configuration)?;

    let mut names = ServiceNames::new().with_servers(&service.servers).await;
    if let Some(logical) = &service.logical {
        names = names.with_name_service(logical);
    }
    // By the session's token for this HDFS, else by a Kerberos ticket; without security by the user's name.
    let identity = Identity::resolve(&configuration)?;
    let token = identity.credentials.for_service(token_kind::HDFS_DELEGATION, &names).cloned();
    let principal = ServerPrincipal::of_namenode(&configuration)?;

    let client = RpcClient::new(RpcOptions::of(&configuration)?);
    let login = identity.login(token, principal);
    let namenode = NameNode::new(&client, service.servers, login, Duration::from_secs(10));

    println!("{:?}", namenode.content_summary(&path).await?);
    let Some(file) = namenode.block_locations(&path, 0, i64::MAX.cast_unsigned()).await? else {
        return Err(format!("{path} does not exist").into());
    };
    println!("{} bytes{}", file.length, if file.is_open { ", open for writing" } else { "" });
    for block in file.blocks {
        let hosts: Vec<_> = block
            .replicas
            .iter()
            .map(|node| format!("{}:{} {}", node.host, node.port, node.rack))
            .collect();
        println!("{:>12} +{:<10} {}", block.offset, block.length, hosts.join(", "));
    }
    Ok(())
}
