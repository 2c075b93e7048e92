//! The ApplicationMaster: holds N containers at work until all have ended well.

use std::time::Duration;

use anyhow::{Context, Result};
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::token::Credentials;
use heddle_yarn::{
    AmEndpoint, AmEnvironment, AmEvent, ApplicationMaster, Ask, AskId, Container, ExitCause,
    FinalStatus, LaunchContext, NodeManagers,
};

use crate::Work;

/// Pause between heartbeats while containers are waited for, and else.
const WAITING: Duration = Duration::from_millis(50);
const WORKING: Duration = Duration::from_millis(500);

/// Runs in the ApplicationMaster's container.
pub async fn run(work: Work) -> Result<()> {
    let me = AmEnvironment::of(&Environment::of_process())?;
    let cluster = crate::cluster()?;
    // Our proof of being this attempt. YARN puts it into the container's credentials; it names no service.
    let credentials = Credentials::read_file(&me.token_file)?;
    let token = credentials.of_kind("YARN_AM_RM_TOKEN").next().context("no AMRM token")?;
    let mut am = ApplicationMaster::new(&cluster, token.clone());
    am.register(AmEndpoint { host: me.node_host.clone(), ..AmEndpoint::default() }).await?;
    eprintln!("registered {}", me.attempt());

    // One ask for each container, so that a grant tells which one it is. A target of 1 means: hold one, and ask again
    // when it ends.
    let kind = Ask { resources: work.resources(), ..Ask::default() };
    let all = 1..=i64::from(work.containers);
    for index in all.clone() {
        am.want(AskId(index), kind.clone(), 1);
    }
    let nodes = NodeManagers::new(&cluster, am.node_tokens());
    let (mut done, mut failed) = (0, 0);
    let mut diagnostics = String::new();
    while done < work.containers && failed <= work.replacements {
        let mut granted: Vec<(AskId, Container)> = Vec::new();
        let events = match am.allocate(done as f32 / work.containers as f32).await {
            Ok(events) => events,
            // No ResourceManager for the moment. The containers run on; so do we.
            Err(error) if error.is_retryable() => {
                eprintln!("{:#}", anyhow::Error::from(error));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for event in events {
            match event {
                AmEvent::Allocated { ask, container } => granted.push((ask, container)),
                AmEvent::Completed { ask, status } => {
                    eprintln!("{} ended with {} {}", status.id, status.exit, status.diagnostics);
                    match (status.exit.cause(), ask) {
                        (ExitCause::Success, Some(index)) => {
                            am.want(index, kind.clone(), 0);
                            done += 1;
                        }
                        // A lost node, a preemption: nobody's fault, and the ask brings another.
                        (ExitCause::Cluster | ExitCause::Node, _) => {}
                        _ => {
                            failed += 1;
                            diagnostics = format!("{} ended with {}", status.id, status.exit);
                        }
                    }
                }
                // We are a second attempt; the containers of the first still run.
                AmEvent::Recovered(container) => {
                    let free = all.clone().map(AskId).find(|ask| am.counts(*ask) == Some((1, 0)));
                    let adopted = free.is_some_and(|ask| am.adopt(container.id, ask));
                    eprintln!("{} recovered for {free:?}: {adopted}", container.id);
                }
                other => eprintln!("{other:?}"),
            }
        }
        let contexts =
            granted.iter().map(|(ask, _)| context(&work, *ask)).collect::<Result<Vec<_>>>()?;
        let starts: Vec<_> =
            granted.iter().map(|(_, container)| container).zip(&contexts).collect();
        for (result, (ask, container)) in
            nodes.start_several(&starts).await.into_iter().zip(&granted)
        {
            eprintln!("{} of {ask:?} on {}: {result:?}", container.id, container.node);
            if result.is_err() {
                am.release(container.id);
            }
        }
        let waiting =
            am.has_news() || all.clone().any(|index| am.counts(AskId(index)) == Some((1, 0)));
        tokio::time::sleep(if waiting { WAITING } else { WORKING }).await;
    }
    let status = if done == work.containers { FinalStatus::Succeeded } else { FinalStatus::Failed };
    Ok(am.finish(status, &diagnostics, "").await?)
}

/// What a container runs: the command, byte for byte.
fn context(work: &Work, index: AskId) -> Result<LaunchContext> {
    Ok(LaunchContext::new(&work.command)?.env("HELLO_INDEX", &index.0.to_string())?)
}
