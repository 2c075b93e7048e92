//! Prints the content of a directory and the block locations of a file.
//!
//! ```text
//! HADOOP_CONF_DIR=/etc/hadoop/conf cargo run -p heddle-hadoop --example blocks -- /data/part-00000
//! ```

use std::error::Error;
use std::time::Duration;

use heddle_hadoop::User;
use heddle_hadoop::configuration::{Configuration, Environment, NameService};
use heddle_hadoop::namenode::NameNode;
use heddle_hadoop::rpc::{Login, RpcClient, RpcOptions};
use heddle_hadoop::sasl::SecurityPolicy;
use heddle_hadoop::token::{Credentials, ServiceNames, token_kind};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: blocks PATH")?;
    let configuration = Configuration::load(Environment::of_process())?;
    let service = NameService::of_default(&configuration)?;

    let mut names = ServiceNames::new().with_servers(&service.servers).await;
    if let Some(logical) = &service.logical {
        names = names.with_name_service(logical);
    }
    let credentials = Credentials::of_environment(&configuration)?;
    let token = credentials.for_service(token_kind::HDFS_DELEGATION, &names).cloned();
    let policy = SecurityPolicy::of(&configuration)?;
    let user = User::resolve(configuration.environment(), policy.required)?;

    let client = RpcClient::new(RpcOptions::of(&configuration)?);
    let login = Login { user, token, kerberos: None, policy };
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
