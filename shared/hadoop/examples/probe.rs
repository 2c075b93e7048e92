//! Calls one method without arguments at one server and prints the result.
//!
//! ```text
//! HADOOP_USER_NAME=alice cargo run -p heddle-hadoop --example probe -- \
//!     rm.example.com:8032 org.apache.hadoop.yarn.api.ApplicationClientProtocolPB getNewApplication
//! ```
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
    let [server, protocol, method] = arguments.as_slice() else {
        return Err("usage: probe HOST:PORT PROTOCOL METHOD".into());
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

    let client = RpcClient::new(RpcOptions::of(&configuration)?);
    let proxy = client.proxy(protocol, [server], identity.login(token, principal));
    for _ in 0..3 {
        let started = Instant::now();
        // `()` is a message without fields, which skips all fields of the reply.
        let reply: Result<(), _> =
            proxy.call(method, &(), CallOptions::once(Duration::from_secs(10))).await;
        let took = started.elapsed();
        match reply {
            Ok(()) => println!("{method} answered in {took:?}"),
            Err(error) => {
                println!("{method} failed in {took:?}");
                let mut cause: Option<&dyn Error> = Some(&error);
                while let Some(error) = cause {
                    println!("  {error}");
                    cause = error.source();
                }
            }
        }
    }
    Ok(())
}
