//! The ApplicationMaster: keeps N containers running until all have succeeded.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::token::Credentials;
use heddle_yarn::{
    AmEndpoint, AmEnvironment, AmEvent, AmHandle, AmLoop, ApplicationMaster, Ask, AskId, Container,
    ContainerStatus, ExitCause, FinalStatus, HeartbeatInterval, LaunchContext, NodeManagers,
};

use crate::args::{self, ContainerArgs};

/// Heartbeat interval while containers are pending, and otherwise.
const INTERVAL: HeartbeatInterval =
    HeartbeatInterval { waiting: Duration::from_millis(50), idle: Duration::from_millis(500) };

/// Runs in the ApplicationMaster's container.
pub async fn run(work: ContainerArgs) -> Result<()> {
    let environment = AmEnvironment::of(&Environment::of_process())?;
    let cluster = args::am_cluster()?;
    // The proof of this attempt. YARN puts it into the container's credentials; it names no service.
    let credentials = Credentials::read_file(&environment.token_file)?;
    let token = credentials.of_kind("YARN_AM_RM_TOKEN").next().context("no AMRM token")?;
    let mut am = ApplicationMaster::new(&cluster, token.clone());
    am.register(AmEndpoint { host: environment.node_host.clone(), ..AmEndpoint::default() })
        .await?;
    eprintln!("registered {}", environment.attempt());
    // One ask for each container, so that a grant identifies it. A target of 1 means: hold one, and ask again when it
    // ends.
    let asks: BTreeSet<AskId> = (1..=i64::from(work.containers)).map(AskId).collect();
    let kind = Ask { resources: work.resources(), ..Ask::default() };
    for ask in &asks {
        am.want(*ask, kind.clone(), 1);
    }
    let nodes = NodeManagers::new(&cluster, am.node_tokens());
    // Heartbeats go out while this task starts containers.
    let mut events = AmLoop::spawn(am, INTERVAL);
    let am = events.handle();
    let mut master =
        Master { am, nodes, kind, asks, work, done: 0, failed: 0, diagnostics: String::new() };
    while master.done < master.work.containers && master.failed <= master.work.replacements {
        match events.next().await {
            Some(Ok(event)) => master.on_event(event).await?,
            // No ResourceManager responds. The containers continue, and so do the heartbeats.
            Some(Err(error)) if error.is_retryable() => {
                eprintln!("{:#}", anyhow::Error::from(error));
            }
            Some(Err(error)) => return Err(error.into()),
            None => bail!("the heartbeats have ended"),
        }
    }
    let status = match master.done == master.work.containers {
        true => FinalStatus::Succeeded,
        false => FinalStatus::Failed,
    };
    Ok(events.finish(status, &master.diagnostics, "").await?)
}

struct Master {
    am: AmHandle,
    nodes: NodeManagers,
    kind: Ask,
    asks: BTreeSet<AskId>,
    work: ContainerArgs,
    /// Containers that have succeeded.
    done: u32,
    /// Containers that have failed.
    failed: u32,
    diagnostics: String,
}

impl Master {
    async fn on_event(&mut self, event: AmEvent) -> Result<()> {
        match event {
            AmEvent::Allocated { ask, container } => self.start(ask, container).await?,
            AmEvent::Completed { ask, status } => self.on_end(ask, &status),
            // A container of an earlier attempt that still runs.
            AmEvent::Recovered(container) => {
                let (id, asks) = (container.id, self.asks.clone());
                let adopted = self.am.with(move |am| {
                    let free = asks.into_iter().find(|ask| am.counts(*ask) == Some((1, 0)))?;
                    am.adopt(id, free).then_some(free)
                });
                eprintln!("{id} recovered for {:?}", adopted.await.flatten());
            }
            other => eprintln!("{other:?}"),
        }
        Ok(())
    }

    fn on_end(&mut self, ask: Option<AskId>, status: &ContainerStatus) {
        eprintln!("{} ended with {} {}", status.id, status.exit, status.diagnostics);
        match (status.exit.cause(), ask) {
            (ExitCause::Success, Some(ask)) => {
                let kind = self.kind.clone();
                self.am.change(move |am| am.want(ask, kind, 0));
                self.done += 1;
                self.am.set_progress(self.done as f32 / self.work.containers as f32);
            }
            // A lost node or a preemption is not a failure; the ask brings another container.
            (ExitCause::Cluster | ExitCause::Node, _) => {}
            _ => {
                self.failed += 1;
                self.diagnostics = format!("{} ended with {}", status.id, status.exit);
            }
        }
    }

    async fn start(&mut self, ask: AskId, container: Container) -> Result<()> {
        let result = self.nodes.start(&container, &context(&self.work, ask)?).await;
        eprintln!("{} of {ask:?} on {}: {result:?}", container.id, container.node);
        if result.is_err() {
            self.am.change(move |am| {
                am.release(container.id);
            });
        }
        Ok(())
    }
}

/// The launch context of a container: the command, byte for byte.
fn context(work: &ContainerArgs, ask: AskId) -> Result<LaunchContext> {
    Ok(LaunchContext::new(&work.command)?.env("HELLO_INDEX", &ask.0.to_string())?)
}
