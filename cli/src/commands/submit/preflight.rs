//! What can be known before anything is written: that the cluster has what is asked for and the files are
//! there. (Data and outputs are looked at as for a local run.) A fault found here costs nothing and leaves nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use heddle_am::report::words;
use heddle_protocol::spec::JobSpec;
use heddle_yarn::client::{NewApplication, Queue, QueueAcls, QueueState};
use heddle_yarn::resource::ResourceError;
use heddle_yarn::{NodeReport, NodeState, ResourceTypes, Resources};

use super::plan::{QueueView, Role, Steps, roles};
use super::rm_web;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::site::{Site, client_failure};

/// What the cluster says to a job.
pub struct Cleared {
    /// The id that it may be submitted under.
    pub new: NewApplication,
    /// The kinds of containers.
    pub roles: [Role; 3],
    /// How the cluster rounds.
    pub steps: Steps,
    /// The queue.
    pub queue: QueueView,
    /// What is worth saying.
    pub notes: Vec<String>,
}

/// Refuses outputs on this machine, where no container writes.
///
/// # Errors
/// Exit 7 with the key.
pub fn outputs_are_shared(spec: &JobSpec) -> Result<(), Failure> {
    for (key, place) in [
        ("checkpoint.dir", &spec.checkpoint.dir),
        ("output.model", &spec.output.model),
    ] {
        if place.as_local().is_some() {
            return Err(Failure::new(
                Exit::Input,
                format!("{key} = {place} is on this machine, where the job's containers cannot write"),
            )
            .next(format!(
                "give a place on HDFS, such as --set {key}=hdfs:///user/…, or leave the key out for one below your home there"
            )));
        }
    }
    Ok(())
}

/// The program of `trainers.command` is shipped as a file when it is named by a path.
///
/// # Errors
/// Exit 7 when it is not there or not executable.
pub fn trainer_program(spec: &mut JobSpec) -> Result<(), Failure> {
    let Some(program) = spec.trainers.command.first_mut() else {
        return Ok(());
    };
    if !program.contains('/') {
        return Ok(());
    }
    let path = Path::new(&*program);
    let executable = |path: &Path| {
        path.metadata()
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let wrong = |what: &str| Failure::new(Exit::Input, format!("trainers.command: {what}"));
    if !executable(path) {
        return Err(wrong(&format!("{program} is not there or not executable")));
    }
    let file = heddle_protocol::spec::FileSpec::parse(program, Path::new("/"))
        .map_err(|error| wrong(&error))?;
    let name = format!("./{}", file.name);
    if !spec.yarn.files.contains(&file) {
        spec.yarn.files.push(file);
    }
    *program = name;
    spec.check()
        .map_err(|error| Failure::caused(Exit::Input, "trainers.command", &error))
}

/// Asks the ResourceManager for an id, and everything about queue and resources that decides whether the job can run.
///
/// # Errors
/// Exit 4 when the cluster cannot grant it, 5 when the queue is not ours to use, 6 when nobody answers.
pub async fn cluster(site: &Site, spec: &JobSpec) -> Result<Cleared, Failure> {
    let client = &site.client;
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
    let (asked, told) = tokio::join!(asked, rm_web::ask(site, name));
    let (new, types, queue, acls, nodes) =
        asked.map_err(|error| client_failure("the ResourceManager does not serve", &error))?;
    let roles = roles(spec);
    let queue = queue_is_open(name, queue, &acls, &site.user.effective)?;
    for role in &roles {
        fits(role, &types, &new.maximum, &nodes, spec)?;
    }
    let steps = told.steps.unwrap_or_else(|| steps(site));
    let mut notes = Vec::new();
    let am = steps.rounded(&roles[0].asked).memory.as_mib();
    if let Some((limit, used)) = told.am_mib
        && used.saturating_add(am) > limit
    {
        notes.push(format!(
            "yarn.queue = {name:?} lets ApplicationMasters use {limit} MiB, of which {used} are in use, and this one takes {am}: \
             the job may wait until others have ended (yarn.scheduler.capacity.maximum-am-resource-percent)"
        ));
    }
    if nodes.is_empty() {
        notes.push("no node of the cluster runs just now; the job will wait for one".to_owned());
    }
    Ok(Cleared {
        new,
        roles,
        steps,
        queue,
        notes,
    })
}

fn queue_is_open(
    name: &str,
    queue: Option<Queue>,
    acls: &[QueueAcls],
    user: &str,
) -> Result<QueueView, Failure> {
    let refused =
        |exit: Exit, what: &str| Failure::new(exit, format!("yarn.queue = {name:?}: {what}"));
    let Some(queue) = queue.filter(|queue| !queue.name.is_empty()) else {
        let known: Vec<&str> = acls
            .iter()
            .filter(|acl| acl.submit)
            .map(|acl| &*acl.queue)
            .collect();
        return Err(refused(Exit::Refused, "the cluster has no such queue")
            .next(format!("queues that take your jobs: {}", known.join(", "))));
    };
    if !queue.children.is_empty() {
        let below: Vec<&str> = queue.children.iter().map(|child| &*child.name).collect();
        return Err(refused(
            Exit::Refused,
            "has queues below it and takes no jobs itself",
        )
        .next(format!("below it are {}", below.join(", "))));
    }
    match queue.state {
        QueueState::Running => {}
        QueueState::Stopped => return Err(refused(Exit::Refused, "is stopped")),
        QueueState::Draining => return Err(refused(Exit::Refused, "takes no new jobs (draining)")),
    }
    let ours = |acl: &&QueueAcls| {
        acl.queue == queue.name || acl.queue.ends_with(&format!(".{}", queue.name))
    };
    let mut about = acls.iter().filter(ours).peekable();
    if about.peek().is_some() && !about.any(|acl| acl.submit) {
        return Err(refused(
            Exit::Denied,
            &format!("{user} may not submit there"),
        ));
    }
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(QueueView {
        name: queue.name.clone(),
        free_mib: u64::try_from(queue.memory_mib[0])
            .ok()
            .filter(|free| *free > 0),
        running: count(queue.applications_running),
        waiting: count(queue.applications_pending),
    })
}

/// Refuses what would wait for ever: more than any container may have, or than any node has.
fn fits(
    role: &Role,
    types: &ResourceTypes,
    maximum: &Resources,
    nodes: &[NodeReport],
    spec: &JobSpec,
) -> Result<(), Failure> {
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
                "yarn.memory-overhead comes on top of memory; the limit is yarn.scheduler.maximum-allocation-* of the cluster",
            ),
        };
        Failure::new(Exit::Refused, format!("{what}: {error}")).next(next)
    })?;
    let label = spec.yarn.node_label.as_deref();
    let labelled: Vec<&NodeReport> = nodes
        .iter()
        .filter(|node| label.is_none_or(|label| node.labels.iter().any(|its| its == label)))
        .collect();
    if let (Some(label), true, false) = (label, labelled.is_empty(), nodes.is_empty()) {
        let fact = format!("yarn.node-label = {label:?}: no running node has it");
        return Err(Failure::new(Exit::Refused, fact));
    }
    let holds = |node: &&&NodeReport| {
        let has = &node.capability;
        let others = asked.others.iter().all(|(name, amount)| {
            has.others
                .get(name)
                .is_some_and(|there| there.value >= amount.value)
        });
        has.memory >= asked.memory && others
    };
    if nodes.is_empty() || labelled.iter().any(|node| holds(&node)) {
        return Ok(());
    }
    let most = labelled
        .iter()
        .map(|node| node.capability.memory.as_mib())
        .max();
    Err(Failure::new(
        Exit::Refused,
        format!(
            "{key}: no node has {asked}; the largest of {} running nodes has {} for containers",
            labelled.len(),
            words::size(most.unwrap_or(0) << 20)
        ),
    )
    .next(format!(
        "lower {key}.memory or what {key}.resources asks for"
    )))
}

/// The cluster's steps as far as our configuration knows them; the ResourceManager does not tell.
fn steps(site: &Site) -> Steps {
    let number = |key: &str, default: i64| {
        let value = site.configuration.integer(key, default).unwrap_or(default);
        u64::try_from(value).unwrap_or(1).max(1)
    };
    Steps {
        memory_mib: number("yarn.scheduler.minimum-allocation-mb", 1024),
        vcores: u32::try_from(number("yarn.scheduler.minimum-allocation-vcores", 1)).unwrap_or(1),
    }
}

/// The files and archives of this machine, by their names in work directories.
///
/// # Errors
/// Exit 7 when one is no file that can be read.
pub fn local_files(spec: &JobSpec) -> Result<Vec<(String, PathBuf, u64)>, Failure> {
    let mut local = Vec::new();
    let files = spec.yarn.files.iter().map(|file| ("yarn.files", file));
    let archives = spec
        .yarn
        .archives
        .iter()
        .map(|file| ("yarn.archives", file));
    for (key, file) in files.chain(archives) {
        let Some(path) = file.from.as_local() else {
            continue;
        };
        let wrong = |error: &dyn std::error::Error| {
            Failure::caused(Exit::Input, format!("{key}: {}", path.display()), error)
        };
        let opened = std::fs::File::open(path).map_err(|error| wrong(&error))?;
        let metadata = opened.metadata().map_err(|error| wrong(&error))?;
        if !metadata.is_file() {
            let fact = format!("{key}: {} is not a file", path.display());
            return Err(Failure::new(Exit::Input, fact)
                .next("pack a folder into an archive and give it as yarn.archives"));
        }
        local.push((file.name.clone(), path.to_owned(), metadata.len()));
    }
    Ok(local)
}
