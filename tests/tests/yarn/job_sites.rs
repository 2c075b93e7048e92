//! Jobs on a cluster as sites configure theirs: two ResourceManagers, mapping rules with queues that are created when a
//! job comes, a default queue that no user may use, node labels, GPUs, nodes that are taken out of service.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::MutexGuard;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use heddle_protocol::ids::Role;
use heddle_protocol::view::SlotState;
use heddle_tests::hadoop::{Cluster, Daemon, Options, Shared, wait_until};
use heddle_tests::hdfs_job::Shape;
use heddle_tests::local::program;
use heddle_tests::logs::RM_LOST;
use heddle_tests::yarn_job::{Counting, Submitted, Watch, YarnJob, settled};

const LIMIT: Duration = Duration::from_secs(180);
/// Two racks.
const RACKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/hadoop/racks.sh");
const SHAPE: Shape = Shape { passes: 2, every: "20 steps", local_data: false };

/// The cluster of this file, for one test at a time. As on CDP, `root.default` takes no jobs, and users are mapped to leaves
/// below `root.users` that do not exist until their first job.
fn cluster() -> Result<(&'static Cluster, MutexGuard<'static, ()>)> {
    static CLUSTER: Shared = Shared::new();
    let options = || {
        let property = |file: &str, key: &str, value: &str| {
            (format!("{file}.xml"), key.to_owned(), value.to_owned())
        };
        let scheduler = |key: &str, value: &str| {
            let key = format!("yarn.scheduler.capacity.{key}");
            property("capacity-scheduler", &key, value)
        };
        let labels = "yarn.node-labels";
        Options {
            // Each block is on one node, so that data locality shows.
            datanodes: 4,
            nodemanagers: 4,
            resourcemanagers: 2,
            gpus_per_node: 2,
            am_expiry_ms: 30_000,
            properties: vec![
                scheduler("root.queues", "default,users,closed,private,lab"),
                scheduler("root.acl_submit_applications", " "),
                scheduler("root.default.capacity", "10"),
                scheduler("root.default.state", "STOPPED"),
                scheduler("root.default.acl_submit_applications", "*"),
                scheduler("root.users.capacity", "50"),
                scheduler("root.users.maximum-capacity", "100"),
                scheduler("root.users.acl_submit_applications", "*"),
                scheduler("root.users.auto-create-child-queue.enabled", "true"),
                scheduler("root.users.leaf-queue-template.capacity", "50"),
                scheduler("root.users.leaf-queue-template.maximum-capacity", "100"),
                scheduler("root.users.leaf-queue-template.user-limit-factor", "100"),
                scheduler("root.closed.capacity", "5"),
                scheduler("root.closed.state", "STOPPED"),
                scheduler("root.closed.acl_submit_applications", "*"),
                scheduler("root.private.capacity", "5"),
                scheduler("root.private.acl_submit_applications", "bob"),
                scheduler("root.lab.capacity", "30"),
                scheduler("root.lab.maximum-capacity", "100"),
                scheduler("root.lab.user-limit-factor", "100"),
                scheduler("root.lab.acl_submit_applications", "*"),
                scheduler("root.accessible-node-labels.gold.capacity", "100"),
                scheduler("root.lab.accessible-node-labels", "gold"),
                scheduler("root.lab.accessible-node-labels.gold.capacity", "100"),
                scheduler("queue-mappings", "u:%user:root.users.%user"),
                property("yarn-site", &format!("{labels}.enabled"), "true"),
                property(
                    "yarn-site",
                    &format!("{labels}.fs-store.root-dir"),
                    "file://@DIR@/labels",
                ),
                property("hdfs-site", "dfs.replication", "1"),
                property("client-hdfs-site", "dfs.replication", "1"),
                property("core-site", "hadoop.caller.context.enabled", "true"),
                property("core-site", "net.topology.script.file.name", RACKS),
            ],
            ..Options::default()
        }
    };
    CLUSTER.alone(options)
}

/// What the ResourceManagers' logs hold.
fn rm_logs(cluster: &Cluster) -> String {
    let log = |n| {
        let rm = Daemon::ResourceManager(n);
        std::fs::read_to_string(cluster.dir().join(format!("{rm}.log"))).unwrap_or_default()
    };
    log(1) + &log(2)
}

#[test]
fn job_runs_in_the_queue_that_mapping_rules_create() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let job = YarnJob::bsp(cluster, "mapped", SHAPE)?;
    let dry = job.submit_and_wait(&["--dry-run"])?;
    ensure!(dry.code == Some(0), "{dry:?}");
    let mut submitted = job.submit(&[], "")?;
    submitted.ends_well(LIMIT)?;
    let report = submitted.report()?;
    ensure!(report.queue.rsplit('.').next() == Some("alice"), "{report:?}");
    job.same_as_local(SHAPE)?;
    // The audit log names the job: its submission, and its ApplicationMaster where that is logged.
    let context = format!("CALLERCONTEXT=heddle_{}", submitted.id);
    ensure!(rm_logs(cluster).contains(&context), "no {context}");
    Ok(())
}

#[test]
fn queue_errors_have_the_text_of_the_resourcemanager() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let job = YarnJob::bsp(cluster, "queues", SHAPE)?;
    for (queue, code, words) in [
        ("closed", 75, &["the cluster refused the job", "closed"][..]),
        ("nowhere", 4, &["the cluster refused the job", "nowhere"]),
        ("private", 5, &["the cluster refused the job", "alice"]),
    ] {
        let ended = job.submit_and_wait(&["--queue", queue])?;
        ensure!(ended.code == Some(code), "{queue}: {ended:?}");
        for word in words {
            ensure!(ended.stderr.contains(word), "{word:?}: {ended:?}");
        }
        println!("{queue}: {}", ended.stderr);
    }
    ensure!(job.heddle_names("staging")?.is_empty(), "nothing is left");
    ensure!(job.names("")? == ["data"], "{:?}", job.names("")?);
    override_queues(cluster, true)?;
    let ended = job.submit_and_wait(&["--queue", "closed"]);
    let ended = ended.and_then(|ended| override_queues(cluster, false).map(|()| ended))?;
    ensure!(ended.code == Some(0) && ended.stderr.contains("it is stopped"), "{ended:?}");
    job.same_as_local(SHAPE)
}

/// Whether mapping rules replace a queue that a job names.
fn override_queues(cluster: &Cluster, are_replaced: bool) -> Result<()> {
    let file = cluster.dir().join("conf/capacity-scheduler.xml");
    let key = "yarn.scheduler.capacity.queue-mappings-override.enable";
    let text = std::fs::read_to_string(&file)?;
    let property =
        |value: bool| format!("<property><name>{key}</name><value>{value}</value></property>");
    let text = text.replace(&property(!are_replaced), "");
    let end = "</configuration>";
    std::fs::write(&file, text.replace(end, &format!("{}{end}", property(are_replaced))))?;
    cluster.rmadmin(&["-refreshQueues"])
}

#[test]
fn job_and_commands_follow_a_failover_of_the_resourcemanager() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let shape = Shape { passes: 18, ..SHAPE };
    let job = YarnJob::bsp(cluster, "failover", shape)?;
    let slow = "step-computed=return(sleep=250,while={slow})";
    let mut submitted = job.submit(&[], slow)?.expecting(RM_LOST);
    let watch = Watch::in_a_step(&mut submitted, 1)?;
    let am = submitted.am(1)?;
    for process in &watch.processes {
        // A NodeManager appends the variable of a launch context to its own, and glibc does not accept "4:4" as a number.
        let variables = std::fs::read(format!("/proc/{}/environ", process.pid))?;
        let mut all = variables.split(|byte| *byte == 0);
        ensure!(all.any(|it| it == b"MALLOC_ARENA_MAX=4"), "{process:?}");
    }
    let (dead, other) = (Daemon::ResourceManager(1), 2);
    cluster.kill(dead)?;
    // A command that comes now waits, and reports that.
    let list = job
        .command()?
        .args(["list", "--yarn", "--rm-wait", "120s"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // And one without flags: as long as an election with ZooKeeper takes.
    let during = YarnJob::bsp(cluster, "during-failover", SHAPE)?;
    let submission = during
        .submit_command(&[])?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    std::thread::sleep(Duration::from_secs(40));
    cluster.activate(other)?;
    let listed = list.wait_with_output()?;
    let (out, err) =
        (String::from_utf8_lossy(&listed.stdout), String::from_utf8_lossy(&listed.stderr));
    ensure!(listed.status.success() && out.contains(&submitted.id), "{out}{err}");
    ensure!(
        err.contains("waiting for the ResourceManager") && err.contains("at most 120 s"),
        "{err}"
    );

    let ended = submission.wait_with_output()?;
    ensure!(ended.status.success(), "{ended:?}");
    during.same_as_local(SHAPE)?;

    watch.untouched(&mut submitted)?;
    wait_until("the attempt is registered with the other one", LIMIT, || {
        let report = submitted.report()?;
        ensure!(report.port > 0, "{report:?}");
        Ok(())
    })?;
    ensure!(submitted.am(1)? == am, "the same ApplicationMaster");
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    let report = submitted.report()?;
    ensure!(report.attempt.is_some_and(|attempt| attempt.attempt == 1), "{report:?}");
    job.same_as_local(shape)?;
    submitted.wait_gone(LIMIT)?;

    // The other tests find both.
    cluster.restart(dead)?;
    cluster.wait_ready()
}

/// What a command on another site of this cluster prints and returns; `more` are properties of its core-site.xml.
fn on_a_site(
    job: &YarnJob<'_>,
    more: &[(&str, &str)],
    mut command: Command,
) -> Result<(Option<i32>, String)> {
    let conf = job.path().join("conf-of-the-site");
    let properties: Vec<_> =
        more.iter().map(|(key, value)| ("core-site.xml", *key, *value)).collect();
    job.cluster().conf_dir_with(&conf, &properties)?;
    let output = command.env("HADOOP_CONF_DIR", conf).stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn job_runs_where_viewfs_is_the_default_file_system() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let job = YarnJob::bsp(cluster, "viewed", SHAPE)?;
    let (user, data) =
        (format!("{}/user", cluster.hdfs()), format!("{}{}", cluster.hdfs(), job.root));
    let table = |key: &str| format!("fs.viewfs.mounttable.cdp.{key}");
    let (users, mounted, nfly) =
        (table("link./user"), table("link./mounted"), table("linkNfly../ads"));
    let site = [
        ("fs.defaultFS", "viewfs://cdp"),
        (users.as_str(), user.as_str()),
        (mounted.as_str(), data.as_str()),
        (nfly.as_str(), user.as_str()),
    ];
    let set = |key: &str, path: &str| format!("{key}={path}");
    for (settings, more, words) in [
        (set("data.train", "viewfs:///lost/*"), None, "no mount point of viewfs://cdp covers it"),
        (
            set("data.train", "viewfs:///ads/x"),
            None,
            "links of the kind linkNfly are not supported",
        ),
        (
            set("checkpoint.dir", "viewfs:///user/alice/c"),
            Some(("fs.hdfs.impl", "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme")),
            "ViewFileSystemOverloadScheme is not supported",
        ),
        (set("submit.staging", "viewfs:///tmp/{user}"), None, "/tmp/alice: no mount point"),
    ] {
        let command = job.submit_command(&["--set", &settings])?;
        let site: Vec<_> = site.into_iter().chain(more).collect();
        let (code, text) = on_a_site(&job, &site, command)?;
        ensure!(code == Some(7) && text.contains(words), "{settings}: {code:?} {text}");
    }
    let train = set("data.train", "viewfs:///mounted/data/*.libsvm");
    // A file from another mount point, and the default folders of the job below the home.
    cluster.dfs("alice", &["-touchz", "/user/alice/viewed/extra"])?;
    let files = set("yarn.files", "[\"viewfs://cdp/mounted/extra\"]");
    let command = job.submit_command(&["--set", &train, "--set", &files])?;
    let (code, text) = on_a_site(&job, &site, command)?;
    ensure!(code == Some(0), "{text}");
    job.same_as_local(SHAPE)?;
    let mut command = job.command()?;
    command.args(["checkpoint", "ls", "viewfs:///mounted/ckpt"]);
    let (code, text) = on_a_site(&job, &site, command)?;
    ensure!(code == Some(0) && text.contains("g1-c"), "{text}");
    Ok(())
}

#[test]
#[ignore = "nightly: a job of a minute"]
fn commands_work_where_the_default_is_a_cloud_store() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let job = YarnJob::bsp(cluster, "cloudy", SHAPE)?;
    let site = [("fs.defaultFS", "abfs://box@store.dfs.core.windows.net")];
    let staging = format!("submit.staging={}/user/{{user}}", cluster.hdfs());
    for (arguments, words) in [
        (&[][..], "submit.staging = \"hdfs://ns1/user/{user}\""),
        (&["--set", "submit.staging=s3a://box/{user}"], "expected a directory on HDFS"),
    ] {
        let (code, text) = on_a_site(&job, &site, job.submit_command(arguments)?)?;
        ensure!(code == Some(7) && text.contains(words), "{code:?} {text}");
    }
    let mut command = job.submit_command(&["--detach", "--set", &staging])?;
    command.args(job.shell("step-computed=return(sleep=200,while={slow})", "")?);
    let (code, text) = on_a_site(&job, &site, command)?;
    ensure!(code == Some(0) && text.contains("other commands find"), "{text}");
    let id = text.split_whitespace().find(|word| word.starts_with("application_"));
    let id = id.context("an application")?.to_owned();
    let mut submitted = job.attach(&id)?;
    submitted.wait_for("it trains", LIMIT, settled)?;
    // Without a file system they do what the ResourceManager, the nodes and the pages allow.
    for (arguments, words) in [
        (&["list", "--yarn"][..], &[id.as_str(), "running"][..]),
        (&["status", &id], &["running", "submit.staging", "report, kept logs and secret"]),
        (&["logs", &id, "am"], &["submit.staging", "am.log"]),
        (&["kill", &id], &["submit.staging", "has ended"]),
    ] {
        let mut command = job.command()?;
        command.args(arguments);
        let (code, text) = on_a_site(&job, &site, command)?;
        println!("{arguments:?}: {text}");
        ensure!(code == Some(0), "{arguments:?}: {code:?} {text}");
        for word in words {
            ensure!(text.contains(word), "{arguments:?}: no {word}: {text}");
        }
    }
    submitted.wait_gone(LIMIT)?;
    // The same job again, to its end.
    job.hurry()?;
    let command = job.submit_command(&["--set", &staging])?;
    let (code, text) = on_a_site(&job, &site, command)?;
    ensure!(code == Some(0), "{text}");
    job.same_as_local(SHAPE)
}

/// Hosts of a job's processes, ApplicationMaster included.
fn nodes(submitted: &Submitted<'_>) -> Vec<Daemon> {
    let all = submitted.processes();
    all.iter().map(|process| process.node).collect()
}

#[test]
#[ignore = "nightly: a job of minutes"]
fn job_leaves_a_node_that_is_taken_out_of_service() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let shape = Shape { passes: 18, ..SHAPE };
    let job = YarnJob::bsp(cluster, "decommissioned", shape)?;
    let slow = "step-computed=return(sleep=250,while={slow})";
    let mut submitted = job.submit(&[], slow)?.expecting(&["node_leaves"]);
    let watch = Watch::in_a_step(&mut submitted, 1)?;
    let am = submitted.am(1)?.node;
    let leaving = watch
        .processes
        .iter()
        .find(|process| process.slot.is_some() && process.node != am)
        .context("a node without the ApplicationMaster")?
        .node;
    let Daemon::NodeManager(n) = leaving else {
        anyhow::bail!("{leaving}");
    };
    cluster.decommission(Some(n), 300)?;
    let view = submitted.wait_for("the node is left", LIMIT, |view| {
        settled(view)
            && view.slots.iter().all(|place| {
                place.state == SlotState::Running && place.host != cluster.host(leaving)
            })
    })?;
    println!("left {leaving}: {:?}", view.history.ended);
    wait_until("no process is left there", LIMIT, || {
        let nodes = nodes(&submitted);
        ensure!(!nodes.contains(&leaving), "{nodes:?}");
        Ok(())
    })?;
    let causes: Vec<&str> = view.history.ended.iter().map(|ended| ended.cause.as_str()).collect();
    ensure!(!causes.is_empty(), "{view:#?}");
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(shape)?;

    cluster.decommission(None, 1)?;
    // It ends by itself once the ResourceManager has released it.
    let _ended_already = cluster.kill(leaving);
    cluster.restart(leaving)?;
    cluster.wait_ready()
}

#[test]
fn labelled_job_runs_on_the_nodes_with_its_label_alone() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let gold = Daemon::NodeManager(4);
    cluster.rmadmin(&["-addToClusterNodeLabels", "gold(exclusive=true)"])?;
    let labelled = format!("{}:8041=gold", cluster.host(gold));
    cluster.rmadmin(&["-replaceLabelsOnNode", &labelled])?;
    let job = YarnJob::bsp(cluster, "labelled", SHAPE)?;
    let arguments = ["--queue", "lab", "--set", "yarn.node-label=gold"];
    let mut submitted = job.submit(&arguments, "step-computed=return(sleep=60,while={slow})")?;
    submitted.wait_for("it trains", LIMIT, settled)?;
    let nodes = nodes(&submitted);
    ensure!(nodes.len() == 5 && nodes.iter().all(|node| *node == gold), "{nodes:?}");
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(SHAPE)?;
    let free = format!("{}:8041=", cluster.host(gold));
    cluster.rmadmin(&["-replaceLabelsOnNode", &free])
}

#[test]
fn trainers_have_the_gpus_that_they_ask_for() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let job = YarnJob::bsp(cluster, "gpus", SHAPE)?;
    let gpus = "trainers.resources={ \"yarn.io/gpu\" = 2 }";
    let mut submitted =
        job.submit(&["--set", gpus], "step-computed=return(sleep=60,while={slow})")?;
    let view = submitted.wait_for("it trains", LIMIT, settled)?;
    let mut hosts = Vec::new();
    for place in &view.slots {
        let placement = place.placement.as_ref().context("a placement")?;
        let report = submitted.container(placement.container.parse()?)?;
        let has = report.resources.others.get("yarn.io/gpu");
        let expected = match place.slot.role {
            Role::Trainer => 2,
            Role::Pserver => 0,
        };
        ensure!(has.map_or(0, |amount| amount.value) == expected, "{}: {report:?}", place.slot);
        if place.slot.role == Role::Trainer {
            hosts.push(place.host.clone());
        }
    }
    hosts.sort();
    hosts.dedup();
    ensure!(hosts.len() == 2, "a node has two, for one trainer: {hosts:?}");
    job.hurry()?;
    submitted.ends_well(LIMIT)?;
    job.same_as_local(SHAPE)
}

/// The program starts only if its secret is in a private file, and in nothing else that it can see.
const NEEDS_SECRET: &str = "secret=$(cat \"$API_KEY_FILE\") && test ${#secret} = 16 && \
     test \"$(stat -c %a \"$API_KEY_FILE\")\" = 600 && ! env | grep -qF \"$secret\" && \
     ! grep -rqsF \"$secret\" launch_container.sh conf && exec kit/bin/count";

#[test]
#[ignore = "nightly: a job of a minute"]
fn trainers_run_a_program_of_an_archive_with_a_secret() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    let counting = Counting::new(cluster, "archive", "bsp", 1)?;
    let job = &counting.job;
    let folder = job.path().join("tools/bin");
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(program("counting-trainer")?, folder.join("count"))?;
    let packed = job.path().join("tools.tar.gz");
    let tar = Command::new("tar")
        .arg("-czf")
        .arg(&packed)
        .arg("-C")
        .arg(job.path().join("tools"))
        .arg("bin")
        .status()?;
    ensure!(tar.success(), "{tar}");
    let archives = format!("yarn.archives=[\"{}#kit\"]", packed.display());
    let command = format!("trainers.command={:?}", ["sh", "-c", NEEDS_SECRET]);
    let key = job.path().join("api-key");
    std::fs::write(&key, "canary-of-a-key!")?;
    let secrets = format!("yarn.secrets={{ API_KEY = \"file:{}\" }}", key.display());
    let arguments = ["--set", &archives, "--set", &command, "--set", &secrets];
    let mut submitted = job.submit(&arguments, "")?;
    submitted.ends_well(LIMIT)?;
    for file in ["spec.json", "report.json"] {
        let file = format!("/user/alice/.heddle/reports/{}/{file}", submitted.id);
        let text = cluster.dfs("alice", &["-cat", &file])?;
        ensure!(!String::from_utf8_lossy(&text).contains("canary-of"), "{file}");
    }
    counting.check()
}

/// A counting job whose samples are on enough nodes: HDFS draws the node of each block, and with all blocks on one node
/// three of four trainers would read from another one whatever is dispatched.
fn spread_samples(cluster: &Cluster, run: usize) -> Result<Counting<'_>> {
    const FILES: usize = 8;
    const NODES: usize = 4;
    for attempt in 0..20 {
        let name = format!("locality-{run}-{attempt}");
        let counts = Counting::new(cluster, &name, "asp", 20)?;
        let mut files = BTreeMap::new();
        for file in 0..FILES {
            let blocks = cluster.blocks(&format!("/user/alice/{name}/samples/{file}.dummy"))?;
            let host = blocks.first().and_then(|block| block.hosts.first());
            *files.entry(host.context("a block has a host")?.clone()).or_insert(0) += 1;
        }
        // A trainer computes a quarter of the tasks, which are two files of its node at the most.
        let local: usize = files.values().map(|&files: &usize| files.min(FILES / NODES)).sum();
        if local * 4 >= FILES * 3 {
            return Ok(counts);
        }
        println!("{name}: {files:?}");
    }
    bail!("the blocks are never on three nodes")
}

#[test]
fn tasks_run_on_the_nodes_that_store_their_blocks() -> Result<()> {
    let (cluster, _turn) = cluster()?;
    // YARN grants a node only to an ask that names its rack too. It gives up after some offers of other nodes, so that on a
    // busy machine each trainer may be elsewhere.
    for run in 0..3 {
        match local_grants(cluster, run)? {
            0 => println!("run {run}: no trainer is where its ask names hosts"),
            _ => return Ok(()),
        }
    }
    bail!("no trainer is where its ask names hosts")
}

/// Runs a job whose asks name hosts. Returns how many containers it got there.
fn local_grants(cluster: &Cluster, run: usize) -> Result<usize> {
    let counts = spread_samples(cluster, run)?;
    // A node has two GPUs, so that no two trainers are on one node. The scheduler may place them there otherwise, and
    // then most tasks have no trainer on their node.
    let four = ["trainers.min=4", "trainers.max=4", "trainers.resources={ \"yarn.io/gpu\" = 2 }"];
    let arguments = four.map(|set| ["--set", set]).concat();
    let mut submitted =
        counts.job.submit(&arguments, "step-computed=return(sleep=2,while={slow})")?;
    submitted.ends_well(LIMIT)?;
    counts.check()?;
    let report = counts.job.heddle(&["report", &submitted.id])?;
    let line = report
        .stdout
        .lines()
        .find(|line| line.contains("tasks node-local"))
        .with_context(|| format!("no data locality: {report:?}"))?;
    println!("{line}");
    let numbers: Vec<u64> =
        line.split_whitespace().filter_map(|word| word.replace(',', "").parse().ok()).collect();
    // 8 files and 20 passes. A dispatch that ignores locality reads one task in four from the trainer's node.
    let is_local = matches!(numbers[..], [local, all, ..] if all >= 160 && local * 5 >= all * 2);
    ensure!(is_local, "{line}");
    let (log, id) = (rm_logs(cluster), &submitted.id["application_".len()..]);
    let granted = log.lines().filter(|line| line.contains("NODE_LOCAL") && line.contains(id));
    Ok(granted.count())
}
