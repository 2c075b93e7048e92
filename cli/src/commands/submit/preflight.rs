//! Checks before anything is written: the cluster has the requested resources, and the files exist. (Data and outputs
//! are checked as for a local run.) A fault found here leaves nothing behind.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use heddle_am::report::format;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::{self, JobSpec};
use heddle_yarn::client::{QueueAcls, QueueInfo, QueueState};
use heddle_yarn::resource::ResourceError;
use heddle_yarn::{AllocationSteps, NodeReport, NodeState, ResourceTypes, Resources};

use super::hosts;
use super::plan::{ClusterCheck, QueueView, RolePlan, roles};
use super::total_memory;
use crate::cluster::{ClusterContext, client_failure};
use crate::failure::{CommandFailure, OrFail};
use crate::rm_web::{self, PRIORITY_MAX};

/// Rejects outputs on this machine, where containers cannot write.
///
/// # Errors
/// Exit code 7 with the key.
pub fn outputs_are_shared(spec: &JobSpec) -> Result<(), CommandFailure> {
    for (key, place) in
        [("checkpoint.dir", &spec.checkpoint.dir), ("output.model", &spec.output.model)]
    {
        if place.as_local().is_some() {
            return Err(CommandFailure::new(
                ExitCode::Input,
                format!(
                    "{key} must be on HDFS, since containers cannot write to this machine (got \
                     {place})"
                ),
            )
            .next(format!(
                "set a folder on HDFS, such as --set {key}=hdfs:///user/…, or leave the key out \
                 for one below your home there"
            )));
        }
    }
    Ok(())
}

/// Checks that pservers can read the checkpoint that the job begins with.
///
/// # Errors
/// Exit code 7 for a path of this machine.
pub fn init_is_shared(spec: &JobSpec) -> Result<(), CommandFailure> {
    match spec.model.init.as_ref().filter(|init| init.as_local().is_some()) {
        None => Ok(()),
        Some(init) => Err(CommandFailure::new(
            ExitCode::Input,
            format!(
                "model.init must be on HDFS, since containers cannot read this machine (got {init})"
            ),
        )
        .next("copy the checkpoint's folder there with `hdfs dfs -put`")),
    }
}

/// Ships the program of `trainers.command` as a file if it is a path.
///
/// # Errors
/// Exit code 7 if it does not exist or is not executable.
pub fn trainer_program(spec: &mut JobSpec) -> Result<(), CommandFailure> {
    let Some(program) = spec.trainers.command.first_mut() else {
        return Ok(());
    };
    if !program.contains('/') {
        return Ok(());
    }
    let path = Path::new(&*program);
    let executable = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let wrong =
        |what: &str| CommandFailure::new(ExitCode::Input, format!("trainers.command: {what}"));
    if !executable(path) {
        return Err(wrong(&format!("{program} does not exist or is not executable")));
    }
    let file = job_spec::FileSpec::parse(program, Path::new("/")).map_err(|error| wrong(&error))?;
    let name = format!("./{}", file.name);
    if !spec.yarn.files.contains(&file) {
        spec.yarn.files.push(file);
    }
    *program = name;
    job_spec::check(spec).or_fail(ExitCode::Input, "trainers.command")
}

/// Whether the proxy connects to ApplicationMasters over https: `NONE`, `LENIENT`, or `STRICT`, over nothing else
/// (`YarnConfiguration.RM_APPLICATION_HTTPS_POLICY`).
const HTTPS_POLICY: &str = "yarn.resourcemanager.application-https.policy";

/// Requests an application id, and checks queue, nodes and resources.
///
/// # Errors
/// Exit code 4 if the cluster cannot grant the request, 5 if the ResourceManager rejects the login, 6 if it does not
/// respond.
pub async fn cluster(
    cluster: &ClusterContext,
    spec: &JobSpec,
) -> Result<ClusterCheck, CommandFailure> {
    let client = &cluster.client;
    let name = &spec.yarn.queue;
    let asked = async {
        tokio::try_join!(
            client.new_application(),
            client.resource_types(),
            client.queue(name),
            client.queue_acls(),
            client.nodes(&[NodeState::Running]),
        )
    };
    let label = spec.yarn.node_label.as_deref();
    let (asked, answer) = tokio::join!(asked, rm_web::ask(cluster, name, label));
    let (new, types, queue, acls, nodes) =
        asked.or_fail_with(client_failure, "cannot query the ResourceManager")?;
    let roles = roles(spec);
    let mut notes = Vec::from_iter(https_note(cluster)?);
    let queue = queue_view(name, queue, &acls, &cluster.user.effective, &mut notes);
    for role in &roles {
        let note = fits(role, &types, &new.maximum, &nodes, spec)?;
        notes.extend(note.filter(|note| !notes.contains(note)));
    }
    hosts::for_backups(spec, &roles[1].asked, &nodes)?;
    let steps = answer.steps.unwrap_or_else(|| steps(cluster));
    let am = steps.rounded(&roles[0].asked).memory.as_mib();
    if let Some((limit, used)) = answer.am_mib
        && used.saturating_add(am) > limit
    {
        notes.push(format!(
            "yarn.queue = {name:?} lets ApplicationMasters use {limit} MiB, of which {used} are in \
             use, and this one takes {am}: the job may wait until others have ended \
             (yarn.scheduler.capacity.maximum-am-resource-percent)"
        ));
    }
    notes.extend(total_memory::check(&roles, steps, &nodes, answer.most_mib, spec)?);
    if let Some(most) = answer.priority_max.filter(|most| u64::from(spec.yarn.priority) > *most) {
        notes.push(format!(
            "yarn.priority = {}: the largest of the cluster is {most} ({PRIORITY_MAX}), which the \
             ResourceManager uses",
            spec.yarn.priority
        ));
    }
    if nodes.is_empty() {
        notes.push(
            "no node of the cluster runs at the moment; the job will wait for one".to_owned(),
        );
    }
    Ok(ClusterCheck { new, roles, steps, steps_known: answer.steps.is_some(), queue, notes })
}

/// Whether other queues are below it; such a queue does not accept jobs.
fn has_children(queue: &QueueAcls, all: &[QueueAcls]) -> bool {
    let prefix = format!("{}.", queue.queue);
    all.iter().any(|other| other.queue.starts_with(&prefix))
}

/// The state of a queue, with notes before the ResourceManager decides.
///
/// Only the ResourceManager decides the queue of a job: mapping rules replace the default queue and, where they override, every other
/// one, stopped ones too; and queues are created at the submission (auto-created leaves of the CapacityScheduler, undeclared
/// pools of the FairScheduler). It refuses a job within the submission, with its own message.
fn queue_view(
    name: &str,
    queue: Option<QueueInfo>,
    acls: &[QueueAcls],
    user: &str,
    notes: &mut Vec<String>,
) -> QueueView {
    let mut note = |what: &str| {
        notes.push(format!("yarn.queue = {name:?}: {what}; the ResourceManager decides"));
    };
    let Some(queue) = queue.filter(|queue| !queue.name.is_empty()) else {
        let known: Vec<&str> = acls
            .iter()
            .filter(|acl| acl.submit && !has_children(acl, acls))
            .map(|acl| &*acl.queue)
            .collect();
        note(&format!(
            "the cluster does not list such a queue (queues that accept your jobs: {})",
            known.join(", ")
        ));
        return QueueView { name: name.to_owned(), ..QueueView::default() };
    };
    if !queue.children.is_empty() {
        let below: Vec<&str> = queue.children.iter().map(|child| &*child.name).collect();
        note(&format!("it has queues below it ({})", below.join(", ")));
    }
    match queue.state {
        QueueState::Running => {}
        QueueState::Stopped => note("it is stopped"),
        QueueState::Draining => note("it does not accept new jobs (draining)"),
        // A state of a later Hadoop; the ResourceManager decides.
        _ => {}
    }
    let ours = |acl: &&QueueAcls| {
        acl.queue == queue.name || acl.queue.ends_with(&format!(".{}", queue.name))
    };
    let mut about = acls.iter().filter(ours).peekable();
    if about.peek().is_some() && !about.any(|acl| acl.submit) {
        note(&format!("{user} may not submit there"));
    }
    let count = |n: i64| Some(u64::try_from(n).unwrap_or(0));
    QueueView {
        name: queue.name.clone(),
        free_mib: u64::try_from(queue.memory_mib.available).ok().filter(|free| *free > 0),
        running: count(queue.applications_running),
        waiting: count(queue.applications_pending),
    }
}

/// What users of the pages find where the proxy connects to ApplicationMasters over https only: pages over http are
/// blocked there, and the ApplicationMaster serves no others. All commands work, since none needs the proxy.
fn https_note(cluster: &ClusterContext) -> Result<Option<String>, CommandFailure> {
    let policy = cluster
        .configuration
        .trimmed(HTTPS_POLICY)
        .or_fail(ExitCode::Input, "cannot use Hadoop's configuration")?;
    let is_strict = policy.is_some_and(|policy| policy.eq_ignore_ascii_case("STRICT"));
    Ok(is_strict.then(|| {
        format!(
            "{HTTPS_POLICY} is STRICT: the ResourceManager's proxy blocks the job's pages, which \
             are served over http; `heddle status` and `heddle logs` show the job"
        )
    }))
}

/// Rejects a request as the ResourceManager would: above the limit of a container, or for an unknown resource. A
/// request that no running node can hold is a note: a cluster that scales may start a larger node.
fn fits(
    role: &RolePlan,
    types: &ResourceTypes,
    maximum: &Resources,
    nodes: &[NodeReport],
    spec: &JobSpec,
) -> Result<Option<String>, CommandFailure> {
    let asked = &role.asked;
    let key = role.key;
    types.check(asked, maximum).map_err(|error| {
        let (what, next) = match &error {
            ResourceError::UnknownType { .. } => (
                format!("{key}.resources"),
                "resource-types.xml of the cluster names what it counts",
            ),
            _ => (
                format!("{key}.memory, {key}.vcores, {key}.resources"),
                "yarn.memory-overhead comes on top of memory; the limit is \
                 yarn.scheduler.maximum-allocation-* of the cluster",
            ),
        };
        CommandFailure::new(ExitCode::Refused, format!("{what}: {error}")).next(next)
    })?;
    let label = spec.yarn.node_label.as_deref();
    let labelled: Vec<&NodeReport> =
        nodes.iter().filter(|node| hosts::has_label(node, spec)).collect();
    if let (Some(label), true, false) = (label, labelled.is_empty(), nodes.is_empty()) {
        return Ok(Some(format!(
            "yarn.node-label = {label:?}: no running node has it; the job waits for one"
        )));
    }
    if nodes.is_empty() || labelled.iter().any(|node| hosts::holds(node, asked)) {
        return Ok(None);
    }
    let most = labelled.iter().map(|node| node.capability.memory.as_mib()).max();
    Ok(Some(format!(
        "{key}: no running node has {asked}; the largest of {} has {} for containers, so the job \
         waits for a larger one (yarn.allocation-timeout); or lower {key}.memory or {key}.resources",
        labelled.len(),
        format::size(most.unwrap_or(0) << 20)
    )))
}

/// The cluster's steps from the configuration of this machine, if the ResourceManager does not report them.
fn steps(cluster: &ClusterContext) -> AllocationSteps {
    let number = |key: &str, default: i64| {
        let value = cluster.configuration.integer(key, default).unwrap_or(default);
        u64::try_from(value).unwrap_or(1).max(1)
    };
    AllocationSteps {
        memory_mib: number("yarn.scheduler.minimum-allocation-mb", 1024),
        vcores: u32::try_from(number("yarn.scheduler.minimum-allocation-vcores", 1)).unwrap_or(1),
    }
}

/// The local files and archives, by their names in work directories.
///
/// # Errors
/// Exit code 7 if one is not a readable file.
pub fn local_files(spec: &JobSpec) -> Result<Vec<(String, PathBuf, u64)>, CommandFailure> {
    let mut local = Vec::new();
    let files = spec.yarn.files.iter().map(|file| ("yarn.files", file));
    let archives = spec.yarn.archives.iter().map(|file| ("yarn.archives", file));
    for (key, file) in files.chain(archives) {
        let Some(path) = file.from.as_local() else {
            continue;
        };
        let metadata = std::fs::File::open(path)
            .and_then(|opened| opened.metadata())
            .or_fail_with(CommandFailure::of_file, format_args!("{key}: {}", path.display()))?;
        if !metadata.is_file() {
            let fact = format!("{key}: {} is not a file", path.display());
            return Err(CommandFailure::new(ExitCode::Input, fact)
                .next("pack a folder into an archive and name it in yarn.archives"));
        }
        local.push((file.name.clone(), path.to_owned(), metadata.len()));
    }
    Ok(local)
}

#[cfg(test)]
mod tests {
    use heddle_yarn::proto;

    use super::super::total_memory::tests::node;
    use super::*;

    fn message(name: &str, state: proto::QueueStateProto) -> proto::QueueInfoProto {
        proto::QueueInfoProto {
            queue_name: Some(name.to_owned()),
            state: Some(state.into()),
            ..Default::default()
        }
    }

    fn queue(name: &str, state: proto::QueueStateProto) -> Option<QueueInfo> {
        Some(QueueInfo::from(&message(name, state)))
    }

    fn acls(submit: bool) -> Vec<QueueAcls> {
        vec![QueueAcls::new("root.default", submit, false)]
    }

    fn notes(name: &str, found: Option<QueueInfo>, submit: bool) -> Vec<String> {
        let mut notes = Vec::new();
        queue_view(name, found, &acls(submit), "alice", &mut notes);
        notes
    }

    #[test]
    fn queue_findings_are_notes() {
        use proto::QueueStateProto::{QDraining, QRunning, QStopped};
        let says = |found: Vec<String>, words: &str| {
            assert!(found.len() == 1 && found[0].contains(words), "{found:?}");
        };
        let of_default = |state| queue("default", state);
        let fine = notes("default", of_default(QRunning), true);
        assert_eq!(fine, Vec::<String>::new());
        // Mapping rules replace the default queue; leaves are created when a job comes.
        says(notes("default", of_default(QStopped), true), "stopped");
        says(notes("default", of_default(QDraining), true), "draining");
        says(notes("default", of_default(QRunning), false), "may not");
        says(notes("root.users.alice", None, true), "does not list such a queue");
        let parent = proto::QueueInfoProto {
            child_queues: vec![message("bob", QRunning)],
            ..message("users", QRunning)
        };
        says(notes("users", Some(QueueInfo::from(&parent)), true), "bob");
        says(notes("ml", queue("ml", QStopped), true), "stopped");
    }

    #[test]
    fn only_queues_that_take_jobs_are_proposed() {
        let acl = |queue: &str, submit| QueueAcls::new(queue, submit, false);
        let known = [
            acl("root", true),
            acl("root.default", true),
            acl("root.users", true),
            acl("root.users.alice", true),
            acl("root.usersown", true),
            acl("root.private", false),
        ];
        let mut notes = Vec::new();
        let view = queue_view("nosuch", None, &known, "alice", &mut notes);
        assert_eq!(view.in_words(), "nosuch: the cluster does not list it");
        let proposed =
            "(queues that accept your jobs: root.default, root.users.alice, root.usersown)";
        assert!(notes[0].contains(proposed), "{notes:?}");
    }

    #[test]
    fn larger_container_than_any_running_node_is_a_note() {
        let spec = job_spec::job::sample();
        let [_, pservers, _] = roles(&spec);
        let types = ResourceTypes(std::collections::BTreeMap::new());
        let needed = i64::try_from(pservers.asked.memory.as_mib()).expect("small");
        let maximum = |mib| Resources::new(heddle_yarn::Memory::mib(mib), heddle_yarn::VCores(64));
        let large = maximum(1 << 20);
        let fits = |maximum: &Resources, nodes: &[NodeReport]| {
            fits(&pservers, &types, maximum, nodes, &spec)
        };
        assert_eq!(fits(&large, &[node(needed)]).expect("not refused"), None);
        assert_eq!(fits(&large, &[]).expect("not refused"), None);
        // Clusters that scale add a larger node.
        let note = fits(&large, &[node(needed - 1)]).expect("not refused");
        let note = note.expect("a note");
        assert!(note.contains("no running node has"), "{note}");
        // What the ResourceManager itself never grants is refused.
        let refused = fits(&maximum(1), &[node(needed)]).expect_err("above the maximum");
        assert_eq!(refused.exit, ExitCode::Refused);
    }
}
