//! The ApplicationMaster: keeps N containers running until all have succeeded.

use std::time::Duration;

use anyhow::{Context, Result};
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::token::Credentials;
use heddle_yarn::{
    AmEndpoint, AmEnvironment, AmEvent, ApplicationMaster, Ask, AskId, Container, ExitCause,
    FinalStatus, LaunchContext, NodeManagers,
};

use crate::args::{self, ContainerArgs};

/// Heartbeat interval while containers are pending, and otherwise.
const WAITING: Duration = Duration::from_millis(50);
const WORKING: Duration = Duration::from_millis(500);

/// Runs in the ApplicationMaster's container.
pub async fn run(work: ContainerArgs) -> Result<()> {
    let environment = AmEnvironment::of(&Environment::of_process())?;
    let cluster = args::cluster()?;
    // The proof of this attempt. YARN puts it into the container's credentials; it names no service.
    let credentials = Credentials::read_file(&environment.token_file)?;
    let token = credentials.of_kind("YARN_AM_RM_TOKEN").next().context("no AMRM token")?;
    let mut am = ApplicationMaster::new(&cluster, token.clone());
    am.register(AmEndpoint { host: environment.node_host.clone(), ..AmEndpoint::default() })
        .await?;
    eprintln!("registered {}", environment.attempt());
    let nodes = NodeManagers::new(&cluster, am.node_tokens());
    let mut master = Master {
        kind: Ask { resources: work.resources(), ..Ask::default() },
        am,
        work,
        done: 0,
        failed: 0,
        diagnostics: String::new(),
    };
    // One ask for each container, so that a grant identifies it. A target of 1 means: hold one, and ask again when it
    // ends.
    for ask in master.asks() {
        master.am.want(ask, master.kind.clone(), 1);
    }
    while master.done < master.work.containers && master.failed <= master.work.replacements {
        let events = match master.am.allocate(master.progress()).await {
            Ok(events) => events,
            // No ResourceManager responds. The containers continue, and the ApplicationMaster polls again.
            Err(error) if error.is_retryable() => {
                eprintln!("{:#}", anyhow::Error::from(error));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let granted = master.on_events(events);
        master.start(&nodes, &granted).await?;
        let waiting = master.am.has_news() || master.free_ask().is_some();
        tokio::time::sleep(if waiting { WAITING } else { WORKING }).await;
    }
    let status = match master.done == master.work.containers {
        true => FinalStatus::Succeeded,
        false => FinalStatus::Failed,
    };
    Ok(master.am.finish(status, &master.diagnostics, "").await?)
}

struct Master {
    am: ApplicationMaster,
    work: ContainerArgs,
    kind: Ask,
    /// Containers that have succeeded.
    done: u32,
    /// Containers that have failed.
    failed: u32,
    diagnostics: String,
}

impl Master {
    fn asks(&self) -> impl Iterator<Item = AskId> + use<> {
        (1..=i64::from(self.work.containers)).map(AskId)
    }

    /// An ask without its container.
    fn free_ask(&self) -> Option<AskId> {
        self.asks().find(|ask| self.am.counts(*ask) == Some((1, 0)))
    }

    fn progress(&self) -> f32 {
        self.done as f32 / self.work.containers as f32
    }

    /// Counts ended containers; returns the granted ones.
    fn on_events(&mut self, events: Vec<AmEvent>) -> Vec<(AskId, Container)> {
        let mut granted = Vec::new();
        for event in events {
            match event {
                AmEvent::Allocated { ask, container } => granted.push((ask, container)),
                AmEvent::Completed { ask, status } => {
                    eprintln!("{} ended with {} {}", status.id, status.exit, status.diagnostics);
                    match (status.exit.cause(), ask) {
                        (ExitCause::Success, Some(ask)) => {
                            self.am.want(ask, self.kind.clone(), 0);
                            self.done += 1;
                        }
                        // A lost node or a preemption is not a failure; the ask brings another container.
                        (ExitCause::Cluster | ExitCause::Node, _) => {}
                        _ => {
                            self.failed += 1;
                            self.diagnostics = format!("{} ended with {}", status.id, status.exit);
                        }
                    }
                }
                // A container of an earlier attempt that still runs.
                AmEvent::Recovered(container) => {
                    let free = self.free_ask();
                    let adopted = free.is_some_and(|ask| self.am.adopt(container.id, ask));
                    eprintln!("{} recovered for {free:?}: {adopted}", container.id);
                }
                other => eprintln!("{other:?}"),
            }
        }
        granted
    }

    async fn start(&mut self, nodes: &NodeManagers, granted: &[(AskId, Container)]) -> Result<()> {
        let contexts =
            granted.iter().map(|(ask, _)| context(&self.work, *ask)).collect::<Result<Vec<_>>>()?;
        let starts: Vec<_> =
            granted.iter().map(|(_, container)| container).zip(&contexts).collect();
        for (result, (ask, container)) in
            nodes.start_several(&starts).await.into_iter().zip(granted)
        {
            eprintln!("{} of {ask:?} on {}: {result:?}", container.id, container.node);
            if result.is_err() {
                self.am.release(container.id);
            }
        }
        Ok(())
    }
}

/// The launch context of a container: the command, byte for byte.
fn context(work: &ContainerArgs, ask: AskId) -> Result<LaunchContext> {
    Ok(LaunchContext::new(&work.command)?.env("HELLO_INDEX", &ask.0.to_string())?)
}
