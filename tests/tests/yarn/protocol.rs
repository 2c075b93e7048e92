//! heddle-yarn's ApplicationMaster and NodeManager calls against real daemons. The test process itself is the
//! ApplicationMaster: its applications are unmanaged.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use heddle_tests::hadoop::{Cluster, Daemon, Lossy, Options, Shared, Unmanaged};
use heddle_yarn::am::{Constraint, DEFAULT_RACK, NodeName, Update, UpdateKind};
use heddle_yarn::{
    AmEndpoint, AmEvent, ApplicationMaster, Ask, AskId, Container, ContainerState, ExecutionType,
    ExitStatus, LaunchContext, Memory, NodeError, RequestedPlacement, Resources, Signal, Started,
    VCores,
};

const A: AskId = AskId(1);
const B: AskId = AskId(2);

/// One cluster for all tests of this file. A grant lives 6 s.
fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: Shared = Shared::new();
    let options = || {
        let key = "yarn.resourcemanager.rm.container-allocation.expiry-interval-ms";
        let properties = vec![("yarn-site.xml".into(), key.into(), "6000".into())];
        Options { nodemanagers: 2, properties, ..Options::default() }
    };
    CLUSTER.get(options)
}

fn yarn() -> Result<heddle_yarn::Cluster> {
    cluster()?.yarn_with("alice", &[])
}

async fn app() -> Result<Unmanaged> {
    Unmanaged::new(&yarn()?, AmEndpoint::default()).await
}

fn small() -> Ask {
    Ask { resources: Resources::new(Memory::mib(64), VCores(1)), ..Ask::default() }
}

fn host(n: u8) -> Result<String> {
    Ok(cluster()?.host(Daemon::NodeManager(n)))
}

/// Waits until the container's process is registered: before, the NodeManager has no process to signal. Returns its pid.
async fn process_of(container: &Container) -> Result<String> {
    another_process_of(container, "").await
}

/// Waits until the container has a process other than `before`.
async fn another_process_of(container: &Container, before: &str) -> Result<String> {
    let (id, application) = (container.id, container.id.attempt.application);
    let nodes = (1..=2)
        .map(|n| cluster().map(|cluster| cluster.dir().join(format!("nm{n}/local/nmPrivate"))));
    let files =
        nodes.map(|node| node.map(|node| node.join(format!("{application}/{id}/{id}.pid"))));
    let files = files.collect::<Result<Vec<_>>>()?;
    for _ in 0..200 {
        let mut pids = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
        if let Some(pid) = pids.find(|pid| !pid.trim().is_empty() && pid != before) {
            return Ok(pid);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("no process of {id}")
}

fn sleeper() -> Result<LaunchContext> {
    Ok(LaunchContext::new(&["sleep", "600"])?)
}

#[tokio::test]
async fn a_container_starts_once_is_signalled_and_stopped() -> Result<()> {
    let mut app = app().await?;
    app.am.want(A, small(), 2);
    let granted = app.grants(2).await?;
    let context = sleeper()?;
    let starts: Vec<_> = granted.iter().map(|container| (container, &context)).collect();
    for result in app.nodes.start_several(&starts).await {
        ensure!(result? == Started::Accepted, "the first start");
    }
    let [first, second] = &granted[..] else { bail!("two grants: {granted:?}") };
    // The answer of the first call might have been lost.
    ensure!(app.nodes.start(first, &context).await? == Started::AlreadyRunning, "the second start");
    process_of(first).await?;
    let status = app.nodes.status(&first.node, first.id).await?;
    ensure!(
        (status.state, status.exit) == (ContainerState::Running, ExitStatus::INVALID),
        "{status:?}"
    );
    app.am.want(A, small(), 0);
    app.nodes.signal(&first.node, first.id, Signal::Term).await?;
    let exit = app.end_of(first).await?;
    ensure!(exit == ExitStatus(143), "{exit}");
    let nothing = app.nodes.commit(&second.node, second.id).await;
    ensure!(format!("{nothing:?}").contains("Nothing to Commit"), "{nothing:?}");
    let nothing = app.nodes.rollback(&second.node, second.id).await;
    ensure!(format!("{nothing:?}").contains("ollback"), "{nothing:?}");
    let before = process_of(second).await?;
    app.nodes.restart(&second.node, second.id).await?;
    another_process_of(second, &before).await?;
    app.nodes.reinitialize(&second.node, second.id, &context, true).await?;
    app.nodes.stop(&second.node, second.id).await?;
    let exit = app.end_of(second).await?;
    ensure!(exit == ExitStatus::KILLED_BY_APPMASTER, "{exit}");
    app.nodes.stop(&second.node, second.id).await?;
    app.finish().await
}

#[tokio::test]
async fn a_grant_that_is_not_used_in_time_expires() -> Result<()> {
    let mut app = app().await?;
    app.am.want(A, small(), 1);
    let container = app.grants(1).await?.remove(0);
    app.am.want(A, small(), 0);
    let exit = app.end_of(&container).await?;
    ensure!(exit == ExitStatus::ABORTED, "{exit}");
    let late = app.nodes.start(&container, &sleeper()?).await;
    ensure!(matches!(&late, Err(NodeError::GrantExpired { .. })), "{late:?}");
    app.finish().await
}

#[tokio::test]
async fn invalid_asks_are_removed_and_valid_ones_served() -> Result<()> {
    let mut app = app().await?;
    let too_big = Ask { resources: Resources::new(Memory::mib(99_999), VCores(1)), ..small() };
    let no_label = Ask { label: Some("nowhere".into()), ..small() };
    let tagged = Ask {
        placement: RequestedPlacement::Tagged(Constraint::at_most_per_node("ps", 1)),
        ..small()
    };
    app.am.want(A, small(), 1);
    app.am.want(B, too_big, 1);
    app.am.want(AskId(3), no_label, 1);
    app.am.want(AskId(4), tagged, 1);
    let refused = app
        .until("refusals", |events| {
            let refused = events.iter().filter_map(|event| match event {
                AmEvent::Refused { ask, message } => Some((*ask, message.clone())),
                _ => None,
            });
            let refused: Vec<_> = refused.collect();
            let granted =
                events.iter().any(|event| matches!(event, AmEvent::Allocated { ask: A, .. }));
            (refused.len() == 3 && granted).then_some(refused)
        })
        .await?;
    let asks: BTreeSet<_> = refused.iter().map(|(ask, _)| *ask).collect();
    ensure!(asks == [B, AskId(3), AskId(4)].into(), "{refused:?}");
    ensure!(refused.iter().all(|(_, words)| !words.is_empty()), "{refused:?}");
    app.finish().await
}

#[tokio::test]
async fn nodes_are_hit_when_wanted_and_missed_when_excluded() -> Result<()> {
    let mut app = app().await?;
    let nodes = vec![NodeName { host: host(2)?, rack: DEFAULT_RACK.into() }];
    let there = Ask {
        placement: RequestedPlacement::Near { nodes, racks: vec![], relax: false },
        ..small()
    };
    app.am.want(A, there, 3);
    let granted = app.grants(3).await?;
    let hosts: BTreeSet<_> = granted.iter().map(|container| container.node.host.clone()).collect();
    ensure!(hosts == [host(2)?].into(), "{hosts:?}");
    // On a slow machine an unused grant expires, and would be requested again.
    app.am.forget(A);
    app.am.exclude([host(1)?].into());
    app.am.want(B, small(), 4);
    let granted = app.grants(4).await?;
    ensure!(
        granted.iter().all(|container| container.node.host == host(2).unwrap_or_default()),
        "{granted:?}"
    );
    app.am.forget(B);
    app.am.exclude([host(2)?].into());
    app.am.want(AskId(3), small(), 2);
    let granted = app.grants(2).await?;
    ensure!(
        granted.iter().all(|container| container.node.host == host(1).unwrap_or_default()),
        "{granted:?}"
    );
    app.finish().await
}

#[tokio::test]
async fn an_interrupted_submission_leaves_no_files() -> Result<()> {
    let mut app = app().await?;
    for round in 0..6_u32 {
        app.am.want(A, small(), round % 3 * 2);
        app.am.allocate(0.1).await?;
    }
    app.am.want(A, small(), 1);
    let mut calm = 0;
    while calm < 10 {
        app.am.allocate(0.1).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let held: Vec<_> = app.am.held().map(|(id, _)| id).collect();
        // Targets above 1 may have been filled meanwhile; a lower target takes nothing away by itself.
        for id in held.iter().skip(1) {
            app.am.release(*id);
        }
        calm = if held.len() == 1 && !app.am.has_news() { calm + 1 } else { 0 };
    }
    let usage = app.client.report(app.id).await?.usage;
    ensure!(usage.containers == 1, "the ResourceManager counts what we hold: {usage:?}");
    app.finish().await
}

#[tokio::test]
async fn a_second_process_of_an_attempt_finds_the_response_id() -> Result<()> {
    let mut app = app().await?;
    app.am.want(A, small(), 1);
    app.grants(1).await?;
    let mut other = ApplicationMaster::new(&yarn()?, app.token.clone());
    let registered = other.register(AmEndpoint::default()).await?;
    ensure!(registered.is_none(), "it is registered already: {registered:?}");
    other.want(B, small(), 1);
    for _ in 0..100 {
        other.allocate(0.5).await?;
        if other.held().count() == 1 {
            // The first one's id is now behind by more than the one that is answered from the cache.
            app.am.allocate(0.5).await?;
            return app.finish().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("no grant")
}

#[tokio::test]
async fn a_container_grows() -> Result<()> {
    let mut app = app().await?;
    app.am.want(A, small(), 1);
    let container = app.grants(1).await?.remove(0);
    app.nodes.start(&container, &sleeper()?).await?;
    let more = Resources::new(Memory::mib(192), VCores(1));
    // The ResourceManager changes only containers that run.
    app.until("a running container", |_| Some(())).await?;
    let mut tries = 0;
    let grown = loop {
        let update = Update {
            kind: UpdateKind::Increase,
            version: container.version,
            resources: Some(more.clone()),
        };
        app.am.update(container.id, update);
        let event = app
            .until("an outcome", |events| {
                events
                    .iter()
                    .find(|event| {
                        matches!(event, AmEvent::Updated { .. } | AmEvent::UpdateFailed { .. })
                    })
                    .cloned()
            })
            .await?;
        match event {
            AmEvent::Updated { container, .. } => break container,
            other if tries == 20 => bail!("{other:?}"),
            _ => tries += 1,
        }
    };
    ensure!(grown.resources == more && grown.version == container.version + 1, "{grown:?}");
    app.nodes.update(&grown).await?;
    app.finish().await
}

#[tokio::test]
async fn lost_replies_are_repeated_without_duplicates() -> Result<()> {
    let scheduler = SocketAddr::new(cluster()?.host(Daemon::ResourceManager(1)).parse()?, 8030);
    let lossy = Lossy::before(scheduler)?;
    let address = lossy.address().to_string();
    let yarn =
        cluster()?.yarn_with("alice", &[("yarn.resourcemanager.scheduler.address", &address)])?;
    let mut app = Unmanaged::unregistered(&yarn).await?;
    app.am.register(AmEndpoint::default()).await?;
    let mut events = Vec::new();
    for round in 0..40_u32 {
        match round {
            0 => app.am.want(A, small(), 3),
            10 => app.am.want(B, small(), 2),
            20 => app.am.want(A, small(), 5),
            _ => {}
        }
        // The connection is up, so what is lost is the answer to a heartbeat, and every third time also that to the
        // new connection's handshake.
        lossy.lose(1 + u32::from(round % 3 == 0));
        let new = app.am.allocate(0.5).await?;
        ensure!(lossy.left() == 0, "replies were lost");
        start_granted(&app, &new).await?;
        events.extend(new);
    }
    for _ in 0..50 {
        let new = app.am.allocate(0.5).await?;
        start_granted(&app, &new).await?;
        events.extend(new);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let twice = events
        .iter()
        .find(|event| matches!(event, AmEvent::DuplicateGrant(_) | AmEvent::UnknownCompletion(_)));
    ensure!(twice.is_none(), "{twice:?}");
    ensure!((app.am.counts(A), app.am.counts(B)) == (Some((5, 5)), Some((2, 2))), "{events:?}");
    let usage = app.client.report(app.id).await?.usage;
    ensure!(usage.containers == 7, "the ResourceManager counts what we hold: {usage:?}");
    lossy.lose(1);
    app.finish().await
}

/// Starts what was granted, which expires otherwise.
async fn start_granted(app: &Unmanaged, events: &[AmEvent]) -> Result<()> {
    for event in events {
        if let AmEvent::Allocated { container, .. } = event {
            app.nodes.start(container, &sleeper()?).await?;
        }
    }
    Ok(())
}

/// Tags and opportunistic containers exist only where the administrator switched them on.
#[tokio::test]
async fn tags_spread_containers_and_opportunistic_are_promoted() -> Result<()> {
    let keys = [
        ("yarn.resourcemanager.placement-constraints.handler", "scheduler"),
        ("yarn.resourcemanager.opportunistic-container-allocation.enabled", "true"),
        ("yarn.nodemanager.opportunistic-containers-max-queue-length", "10"),
    ];
    let cluster = Cluster::start(Options {
        nodemanagers: 2,
        properties: keys
            .map(|(key, value)| ("yarn-site.xml".into(), key.into(), value.into()))
            .into(),
        ..Options::default()
    })?;
    let mut app = Unmanaged::new(&cluster.yarn_with("alice", &[])?, AmEndpoint::default()).await?;
    let tagged = Ask {
        placement: RequestedPlacement::Tagged(Constraint::at_most_per_node("ps", 1)),
        ..small()
    };
    app.am.want(A, tagged, 3);
    let granted = app.grants(2).await?;
    let hosts: BTreeSet<_> = granted.iter().map(|container| container.node.host.clone()).collect();
    ensure!(granted.len() == 2 && hosts.len() == 2, "one for each node, and no third: {granted:?}");
    app.am.want(A, small(), 2);

    let opportunistic = Ask { execution_type: ExecutionType::Opportunistic, ..small() };
    app.am.want(B, opportunistic, 1);
    let container = app.grants(1).await?.remove(0);
    ensure!(
        container.execution_type == ExecutionType::Opportunistic && container.ask == Some(B),
        "{container:?}"
    );
    app.nodes.start(&container, &sleeper()?).await?;
    let update = Update { kind: UpdateKind::Promote, version: container.version, resources: None };
    app.am.update(container.id, update);
    let promoted = app
        .until("the promotion", |events| {
            events.iter().find_map(|event| match event {
                AmEvent::Updated { kind: UpdateKind::Promote, container } => {
                    Some(container.clone())
                }
                _ => None,
            })
        })
        .await?;
    ensure!(
        promoted.execution_type == ExecutionType::Guaranteed && promoted.id == container.id,
        "{promoted:?}"
    );
    app.nodes.update(&promoted).await?;
    app.finish().await
}
