//! Calls one method without arguments at one server and prints the result.
//!
//! ```text
//! HADOOP_USER_NAME=alice cargo run -p heddle-hadoop --example probe -- \
//!     rm.example.com:8032 org.apache.hadoop.yarn.api.ApplicationClientProtocolPB getNewApplication
//! ```
//!
//! A number behind the method is that of connections that call at once, each with a login of its own.
//!
//! Configuration and login come from the environment, as for any Hadoop client: the token for the server's address in
//! `HADOOP_TOKEN_FILE_LOCATION`, else a Kerberos ticket (`KRB5CCNAME`). The server must have the principal that the
//! configuration states: that of NameNodes for the protocols of HDFS, else that of ResourceManagers.

use std::error::Error;
use std::time::{Duration, Instant};

use heddle_hadoop::HostPort;
use heddle_hadoop::configuration::{Configuration, Environment};
use heddle_hadoop::identity::Identity;
use heddle_hadoop::kerberos::ServerPrincipal;
use heddle_hadoop::rpc::{CallOptions, RpcClient, RpcOptions};
use heddle_hadoop::token::ServiceNames;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (server, protocol, method, connections) = match arguments.as_slice() {
        [server, protocol, method] => (server, protocol, method, 1),
        [server, protocol, method, connections] => {
            (server, protocol, method, connections.parse::<usize>()?)
        }
        _ => return Err("usage: probe HOST:PORT PROTOCOL METHOD [CONNECTIONS]".into()),
    };
    let server: HostPort = server.parse()?;
    let configuration = Configuration::load(Environment::of_process())?;
    let identity = Identity::resolve(&configuration)?;
    let names = ServiceNames::new().with_servers(std::slice::from_ref(&server)).await;
    let mut tokens = identity.credentials.tokens().map(|(_, token)| token);
    let token = tokens.find(|token| names.matches(token.service())).cloned();
    println!(
        "user {}, token {}, tickets {}",
        identity.user.effective,
        token.as_ref().map_or("none", |token| token.kind()),
        if identity.tickets.is_some() { "yes" } else { "no" }
    );
    let principal = match protocol.contains(".hdfs.") {
        true => ServerPrincipal::of_namenode(&configuration)?,
        false => ServerPrincipal::of_resource_manager(&configuration)?,
    };

    let options = RpcOptions::of(&configuration)?;
    let started = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..connections {
        // A client keeps its connections, so that each gets one of its own.
        let client = RpcClient::new(options.clone());
        let login = identity.login(token.clone(), principal.clone());
        let proxy = client.proxy(protocol.as_str(), [server.clone()], login);
        let method = method.clone();
        calls.spawn(async move {
            // `()` is a message without fields, which skips all fields of the reply.
            proxy.call::<(), ()>(&method, &(), CallOptions::once(Duration::from_secs(60))).await
        });
    }
    let replies = calls.join_all().await;
    let answered = replies.iter().filter(|reply| reply.is_ok()).count();
    println!("{method}: {answered} of {connections} answered in {:?}", started.elapsed());
    let Some(error) = replies.into_iter().find_map(Result::err) else {
        return Ok(());
    };
    let mut cause: Option<&dyn Error> = Some(&error);
    while let Some(error) = cause {
        println!("  {error}");
        cause = error.source();
    }
    Err("a call failed".into())
}
