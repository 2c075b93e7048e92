//! hello-yarn, and the client, on one real cluster: what a healthy cluster and its users do.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Hello, Options, Shared, wait_until};
use heddle_yarn::client::{ApplicationFilter, AttemptState, FinalApplicationStatus};
use heddle_yarn::{
    ApplicationId, ApplicationState, ClientError, ContainerId, LaunchContext, Memory, NodeState,
    Priority, Resources, Submission, VCores,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One cluster for all tests of this file: three nodes with two GPUs each that do not exist.
fn cluster() -> Result<&'static Cluster> {
    static CLUSTER: Shared = Shared::new();
    let options = || Options { gpus_per_node: 2, ..Options::default() };
    CLUSTER.get(options)
}

/// 1500 MiB each, so that no node of 4096 takes more than two.
const BIG: [&str; 4] = ["--containers", "4", "--memory", "1500"];

fn hello<'c>(
    cluster: &'c Cluster,
    options: &[&str],
    command: &[impl AsRef<str>],
) -> Result<Hello<'c>> {
    let command = command.iter().map(AsRef::as_ref);
    Hello::submit(
        cluster,
        &options.iter().copied().chain(["--"]).chain(command).collect::<Vec<_>>(),
    )
}

#[test]
fn arguments_arrive_byte_for_byte_on_several_nodes() -> Result<()> {
    let nasty = [
        "a b",
        "",
        "'\"\\",
        "$HOME `id` $(id)",
        "{{HOME}} {{{x}}} <LOG_DIR>",
        "*?~;&|#!",
        "line\nbreak",
        "π 漢字",
    ];
    let command = ["printf", "%s\\0"].iter().chain(&nasty).copied().collect::<Vec<_>>();
    let hello = hello(cluster()?, &BIG, &command)?;
    wait_until("finished", std::time::Duration::from_secs(60), || {
        ensure!(hello.am_log(1).matches("ended with 0").count() == 4, "{}", hello.am_log(1));
        Ok(())
    })?;
    let mut nodes = BTreeSet::new();
    let mut workers = 0;
    for (name, folder) in hello.logs() {
        if name.ends_with("_000001") {
            continue;
        }
        let expected = nasty.map(|argument| format!("{argument}\0")).concat();
        ensure!(
            std::fs::read_to_string(folder.join("stdout"))? == expected,
            "{name} printed something else"
        );
        nodes.insert(
            folder.ancestors().nth(3).context("nmN/logs/application/container")?.to_owned(),
        );
        workers += 1;
    }
    ensure!(workers == 4 && nodes.len() >= 2, "{workers} workers on {nodes:?}");
    hello.succeed()?;
    Ok(())
}

#[test]
fn a_killed_container_is_replaced_and_the_others_continue() -> Result<()> {
    let cluster = cluster()?;
    let gate = cluster.dir().join("replaced");
    let hello = hello(cluster, &["--containers", "3"], &Hello::until(&gate))?;
    let before = hello.wait_workers(3)?;
    let (victim, pid) = before.first_key_value().context("three workers")?;
    kill(Pid::from_raw(*pid), Signal::SIGKILL)?;
    hello.wait_log(1, "ended with 137 (signal 9)", 1)?;
    let after = hello.wait_workers(3)?;
    let kept = before.iter().filter(|(name, pid)| after.get(*name) == Some(*pid)).count();
    ensure!(kept == 2 && !after.contains_key(victim), "before {before:?}, after {after:?}");
    std::fs::write(&gate, "")?;
    hello.succeed()?;
    Ok(())
}

#[test]
fn a_killed_applicationmaster_finds_its_containers_again() -> Result<()> {
    let cluster = cluster()?;
    let gate = cluster.dir().join("recovered");
    let hello = hello(cluster, &["--containers", "2"], &Hello::until(&gate))?;
    let before = hello.wait_workers(2)?;
    let am = hello.am_process(1).context("the ApplicationMaster runs")?;
    kill(Pid::from_raw(am), Signal::SIGKILL)?;
    hello.wait_log(2, "recovered for", 2)?;
    ensure!(hello.workers() == before, "the same processes");
    std::fs::write(&gate, "")?;
    let log = hello.am_log(2);
    ensure!(!log.contains("Accepted") && !log.contains("Excess"), "nothing was asked for:\n{log}");
    hello.succeed()?;
    Ok(())
}

#[tokio::test]
async fn gpus_are_granted_and_counted() -> Result<()> {
    let cluster = cluster()?;
    let gate = cluster.dir().join("gpus");
    let hello = hello(cluster, &["--containers", "3", "--gpus", "1"], &Hello::until(&gate))?;
    hello.wait_workers(3)?;
    let client = cluster.yarn("alice")?;
    let id: ApplicationId = hello.id.parse()?;
    let attempt = client.report(id).await?.attempt.context("it runs")?;
    let containers = client.containers(attempt).await?;
    let gpus: i64 = containers
        .iter()
        .filter_map(|c| c.resources.others.get("yarn.io/gpu"))
        .map(|gpu| gpu.value)
        .sum();
    ensure!(containers.len() == 4 && gpus == 3, "{containers:?}");
    let report = client.attempt(attempt).await?;
    ensure!(report.id == attempt && report.state == Some(AttemptState::Running), "{report:?}");
    let of_one = client.container(containers[3].id).await?;
    ensure!(of_one.id == containers[3].id && of_one.node.is_some(), "{of_one:?}");
    ensure!(client.set_priority(id, Priority(0)).await? == Priority(0), "the priority is set");
    client.set_expiry(id, "2099-01-01T00:00:00.000+0000").await?;
    let past = client.set_expiry(id, "2001-01-01T00:00:00.000+0000").await;
    ensure!(matches!(&past, Err(ClientError::Refused { .. })), "{past:?}");
    std::fs::write(&gate, "")?;
    hello.succeed()?;
    Ok(())
}

#[tokio::test]
async fn resources_beyond_the_cluster_are_rejected_at_submission() -> Result<()> {
    let cluster = cluster()?;
    let too_many =
        Hello::submit(cluster, &["--gpus", "3", "--", "true"]).err().context("refused")?;
    ensure!(format!("{too_many:#}").contains("3 yarn.io/gpu is more than"), "{too_many:#}");
    let too_big =
        Hello::submit(cluster, &["--memory", "9999", "--", "true"]).err().context("refused")?;
    ensure!(format!("{too_big:#}").contains("9999 MiB is more than the 4096 MiB"), "{too_big:#}");
    let no_queue =
        Hello::submit(cluster, &["--queue", "nowhere", "--", "true"]).err().context("refused")?;
    ensure!(format!("{no_queue:#}").contains("nowhere"), "{no_queue:#}");
    Ok(())
}

#[tokio::test]
async fn only_the_owner_may_kill_an_application() -> Result<()> {
    let cluster = cluster()?;
    let hello = hello(cluster, &["--containers", "1"], &["sleep", "600"])?;
    hello.wait_workers(1)?;
    let id: ApplicationId = hello.id.parse()?;
    let denied = cluster.yarn("mallory")?.kill(id, "for fun").await;
    ensure!(
        matches!(&denied, Err(ClientError::Denied(words)) if words.contains("mallory")),
        "{denied:?}"
    );
    let alice = cluster.yarn("alice")?;
    ensure!(alice.report(id).await?.state == Some(ApplicationState::Running), "it runs on");
    alice.kill(id, "enough").await?;
    let report = alice.report(id).await?;
    ensure!(report.state == Some(ApplicationState::Killed), "{report:?}");
    ensure!(
        report.final_status == FinalApplicationStatus::Killed
            && report.diagnostics.contains("enough"),
        "{report:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_client_sees_nodes_queues_types_and_its_own_submission() -> Result<()> {
    let cluster = cluster()?;
    let client = cluster.yarn("alice")?;
    let metrics = client.metrics().await?;
    ensure!((metrics.nodes, metrics.active) == (3, 3), "{metrics:?}");
    let nodes = client.nodes(&[NodeState::Running]).await?;
    ensure!(
        nodes.len() == 3 && nodes.iter().all(|node| node.capability.memory == Memory::mib(4096)),
        "{nodes:?}"
    );
    ensure!(client.nodes(&[NodeState::Lost]).await?.is_empty(), "none is lost");
    let queue = client.queue("root").await?.context("there is a root queue")?;
    ensure!(
        queue.children.iter().any(|child| child.name == "default" && child.capacity == 1.0),
        "{queue:?}"
    );
    let acls = client.queue_acls().await?;
    ensure!(
        acls.iter().any(|acl| acl.queue.ends_with("default") && acl.submit && !acl.administer),
        "{acls:?}"
    );
    ensure!(
        client.resource_types().await?.0.contains_key("yarn.io/gpu"),
        "the types of the cluster"
    );
    let token = client.delegation_token("alice").await?.context("a token")?;
    ensure!(token.kind() == "RM_DELEGATION_TOKEN", "{token:?}");
    ensure!(client.renew_token(&token).await? > 0, "the token lasts longer");
    client.cancel_token(&token).await?;
    ensure!(client.renew_token(&token).await.is_err(), "it is cancelled");
    ensure!(
        client.node_labels().await?.is_empty() && client.labels_of_nodes().await?.is_empty(),
        "no labels"
    );

    // An ApplicationMaster that only sleeps: it is accepted, launched, and never registers.
    let new = client.new_application().await?;
    let context = LaunchContext::new(&["sleep", "600"])?;
    let submission = Submission {
        tags: vec!["Heddle-Test".into()],
        ..Submission::new(new.id, "sleeper", Resources::new(Memory::mib(64), VCores(1)), context)
    };
    client.submit(&submission).await?;
    client.submit(&submission).await?;
    let filter =
        ApplicationFilter { tags: vec!["HEDDLE-TEST".into()], ..ApplicationFilter::default() };
    let found = client.applications(&filter).await?;
    ensure!(found.len() == 1 && found[0].id == new.id && found[0].user == "alice", "{found:?}");
    let attempts = client.attempts(new.id).await?;
    ensure!(attempts.len() == 1, "{attempts:?}");
    client.move_to_queue(new.id, "default").await?;
    client.kill(new.id, "seen enough").await?;
    let unknown = ApplicationId { id: 9999, ..new.id };
    ensure!(
        matches!(client.report(unknown).await, Err(ClientError::NotFound(_))),
        "there is no such application"
    );
    let container: ContainerId =
        format!("{}_01_000099", new.id.to_string().replace("application", "container")).parse()?;
    ensure!(
        client.signal(container, heddle_yarn::Signal::Term).await.is_err(),
        "there is no such container"
    );
    Ok(())
}
