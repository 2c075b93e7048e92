//! The built binary as users and scripts see it: text, streams, exit codes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const JOB: &str = "name = \"ctr\"\n\n[data]\ntrain = \"train.libsvm\"\n\n[model]\nfeatures = 10\n";

/// A folder with a job file, in which commands run with a home of their own.
struct Bench(TempDir);

impl Bench {
    fn new(job: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("job.toml"), job).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env_remove("RUST_LOG")
            .env_remove("HADOOP_CONF_DIR")
            .env_remove("YARN_CONF_DIR")
            .env_remove("HADOOP_HOME")
            .env("XDG_STATE_HOME", self.path().join("state"));
        command
    }

    fn heddle(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The command fails with that exit code; nothing on stdout; stderr.
    fn refused(&self, arguments: &[&str], exit: i32) -> String {
        let output = self.heddle(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?} wrote data");
        stderr
    }

    /// The command succeeds; stdout.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.heddle(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn help_names_every_command_and_hides_the_containers() {
    let help = Bench::new(JOB).ok(&["--help"]);
    for command in [
        "run",
        "submit",
        "attach",
        "status",
        "list",
        "clean",
        "logs",
        "kill",
        "move",
        "scale",
        "predict",
        "export",
        "config",
        "data",
        "checkpoint",
        "completions",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} in {help}");
    }
    for hidden in ["am", "pserver", "trainer", "prune"] {
        assert!(!help.contains(&format!("\n  {hidden} ")), "{hidden} in {help}");
    }
}

#[test]
fn command_without_a_function_is_unknown() {
    let bench = Bench::new(JOB);
    for command in [&["doctor"][..], &["checkpoint", "move"]] {
        let stderr = bench.refused(command, 2);
        assert!(stderr.contains("unrecognized subcommand"), "{stderr}");
    }
}

#[test]
fn without_a_cluster_commands_that_need_one_name_the_next_step() {
    let bench = Bench::new(JOB);
    for command in [
        &["submit", "job.toml", "--queue", "ml", "--tags", "a,b"][..],
        &["submit", "job.toml", "--dry-run", "--json"],
        &["attach", "application_1700000000000_0001"],
        &["status", "application_1700000000000_0001"],
        &["kill", "application_1700000000000_0001"],
        &["move", "application_1700000000000_0001", "other"],
        &["clean", "--yarn"],
        &["logs", "application_1700000000000_0001"],
        &["scale", "application_1700000000000_0001", "trainers", "3"],
        &["checkpoint", "now", "application_1700000000000_0001"],
        &["list", "--yarn"],
    ] {
        let stderr = bench.refused(command, 7);
        assert!(stderr.contains("HADOOP_CONF_DIR"), "{stderr}");
    }
}

/// Servers of a cluster that hangs: connections come about, and nothing is answered.
struct SilentCluster {
    namenode: TcpListener,
    resourcemanager: TcpListener,
}

impl SilentCluster {
    /// Written as Hadoop's configuration into `dir`.
    fn start(dir: &Path) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let cluster = Self { namenode: listen(), resourcemanager: listen() };
        let rm = cluster.resourcemanager.local_addr().unwrap();
        let file = |name: &str, properties: &[(&str, String)]| {
            let mut xml = "<configuration>".to_owned();
            for (key, value) in properties {
                xml.push_str(&format!(
                    "<property><name>{key}</name><value>{value}</value></property>"
                ));
            }
            std::fs::write(dir.join(name), xml + "</configuration>").unwrap();
        };
        file("core-site.xml", &[("fs.defaultFS", cluster.url(""))]);
        let addresses = ["address", "webapp.address"]
            .map(|key| (format!("yarn.resourcemanager.{key}"), rm.to_string()));
        let addresses: Vec<_> =
            addresses.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        file("yarn-site.xml", &addresses);
        cluster
    }

    fn url(&self, path: &str) -> String {
        format!("hdfs://{}{path}", self.namenode.local_addr().unwrap())
    }
}

#[test]
fn no_command_waits_in_silence() {
    let bench = Bench::new(JOB);
    std::fs::write(bench.path().join("train.libsvm"), "1 1:1\n").unwrap();
    let cluster = SilentCluster::start(bench.path());
    let [dir, checkpoint] = ["/ckpt", "/ckpt/g1-c1"].map(|path| cluster.url(path));
    let app = "application_1700000000000_0001";
    let commands = [
        &["submit", "job.toml"][..],
        &["submit", "job.toml", "--dry-run"],
        &["attach", app],
        &["status", app],
        &["status", app, "--json"],
        &["report", app],
        &["kill", app],
        &["logs", app],
        &["scale", app, "trainers", "3"],
        &["checkpoint", "now", app],
        &["checkpoint", "ls", app],
        &["list", "--yarn"],
        &["clean", "--yarn"],
        &["move", app, "other"],
        &["checkpoint", "ls", &dir],
        &["checkpoint", "verify", &dir],
        &["checkpoint", "rm", &checkpoint],
        &["export", &dir, "out"],
        &["export", &checkpoint, "out"],
        &["predict", &dir, "train.libsvm"],
    ];
    // In parallel: each prints its first line after some seconds.
    let started: Vec<_> = commands
        .iter()
        .map(|arguments| {
            let mut command = bench.command(arguments);
            command.env("HADOOP_CONF_DIR", bench.path());
            let child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
            (arguments, child.unwrap())
        })
        .collect();
    for (arguments, mut child) in started {
        let mut first = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        // A command that prints nothing ends with an error after its longest wait, which is not this line.
        stderr.read_line(&mut first).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(first.starts_with("waiting for "), "{arguments:?}: {first}");
    }
}

#[test]
fn malformed_application_id_is_rejected_without_a_cluster() {
    let bench = Bench::new(JOB);
    for command in [
        &["status", "application_x"][..],
        &["attach", "application_x"],
        &["attach", "1a2b3c4d"],
        &["scale", "application_1_1", "nodes", "3"],
        &["submit", "job.toml", "--env", "novalue"],
        &["submit", "job.toml", "--on-interrupt", "ignore"],
        &["submit", "job.toml", "--wait-timeout", "10"],
    ] {
        bench.refused(command, 2);
    }
}

#[test]
fn a_wrong_command_line_is_exit_2_with_a_hint() {
    let bench = Bench::new(JOB);
    assert!(bench.refused(&["stattus"], 2).contains("status"));
    bench.refused(&[], 2);
    bench.refused(&["run", "job.toml", "--resume", "--fresh"], 2);
    for command in [
        &["run", "job.toml"][..],
        &["submit", "job.toml"],
        &["config", "show", "job.toml"],
        &["bench", "train"],
    ] {
        let stderr = bench.refused(&[command, &["--set", "trainers.max"]].concat(), 2);
        assert!(stderr.contains("expected KEY=VALUE"), "{stderr}");
    }
    for set in ["trainers.most=3", "trainers.max=many", "=3"] {
        bench.refused(&["config", "show", "job.toml", "--set", set], 7);
    }
}

#[test]
fn config_show_prints_value_origin_and_resolution() {
    let bench = Bench::new(JOB);
    let shown = bench.ok(&["config", "show", "job.toml", "--set", "training.lanes=8"]);
    let line = |key: &str| {
        let found = shown.lines().find(|line| line.starts_with(&format!("{key} ")));
        found.unwrap_or_else(|| panic!("{key} in {shown}")).to_owned()
    };
    assert!(line("data.train").contains("→ /"), "{shown}");
    assert!(line("data.train").ends_with("(job.toml:4)"), "{shown}");
    assert!(line("training.lanes").ends_with("(--set training.lanes=8)"));
    assert!(line("training.batch").ends_with("(default)"));
    assert!(line("output.model").contains("/out/ctr-<run>/model"));
    let unknown = "effective batch: by the number of records, when the job starts\n";
    assert!(shown.ends_with(unknown), "the data is not there: {shown}");
    let set =
        ["config", "show", "job.toml", "--set", "training.lanes=8", "--set", "training.batch=256"];
    let shown = bench.ok(&set);
    assert!(shown.ends_with("effective batch: 2048 rows an update (8 lanes × 256)\n"));
}

#[test]
fn automatic_values_follow_the_data() {
    let bench = Bench::new(JOB);
    let data = "1 1:1 7:0.5\n".repeat(40_000);
    let path = bench.path().join("data.libsvm");
    std::fs::write(&path, data).unwrap();
    let set = format!("data.train={}", path.display());
    let shown = bench.ok(&["config", "show", "job.toml", "--set", &set]);
    for (key, value, reason) in [
        // 40,000 / 64 = 625 rows a step, over 4 lanes: 156, and the power of two below.
        ("training.batch", "128", "about 40000 records, 4 lanes"),
        ("model.standardise", "true", "20.0 % of the cells are present"),
        ("data.passes", "12", "about 40000 records, standardised"),
        ("model.l2", "0.000025", "1 / 40000"),
        ("training.keep", "last", "there is no test data"),
    ] {
        let line = shown.lines().find(|line| line.starts_with(&format!("{key} "))).unwrap();
        assert!(line.contains(&format!("\"auto\" → {value} ")) && line.contains(reason), "{line}");
    }
    assert!(shown.ends_with("effective batch: 512 rows an update (4 lanes × 128)\n"), "{shown}");
}

#[test]
fn config_show_as_json_is_an_object_a_line() {
    let bench = Bench::new(JOB);
    let shown = bench.ok(&["config", "show", "job.toml", "--json", "--set", "training.batch=256"]);
    let lines: Vec<serde_json::Value> =
        shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["key"] == "name" && line["origin"] == "job.toml:1"));
    assert_eq!(lines.last().unwrap()["effective_batch"], 1024);
}

#[test]
fn the_template_is_a_job_file() {
    let bench = Bench::new("");
    let template = bench.ok(&["config", "template"]);
    std::fs::write(bench.path().join("job.toml"), template).unwrap();
    bench.ok(&["config", "show", "job.toml"]);
}

#[test]
fn dry_run_prints_the_plan_and_does_nothing() {
    let bench = Bench::new(JOB);
    std::fs::write(bench.path().join("train.libsvm"), "1 1:1\n0 2:1\n").unwrap();
    let plan = bench.ok(&["run", "job.toml", "--dry-run"]);
    assert!(plan.contains("2 pservers, 1 to 2 trainers"), "{plan}");
    assert!(plan.contains("12 B in 1 file, "), "{plan}");
    assert!(plan.contains("model.standardise") && plan.contains("all values 0 or 1"), "{plan}");
    assert!(!bench.path().join("state").exists() && !bench.path().join("out").exists());
}

#[test]
fn a_bad_job_file_is_exit_7_with_every_fault_in_its_place() {
    for (job, message) in [
        ("name = ", "error: job.toml:1: not TOML"),
        (
            "[trainers]\nmx = 1\n",
            "error: job.toml:2: trainers.mx: unknown key; did you mean trainers.max?",
        ),
        (
            "[trainers]\nmax = \"1\"\n",
            "error: job.toml:2: trainers.max = \"1\": expected a whole number from 1 to 4096",
        ),
        (
            "[training]\nthrottle = 1\n",
            "error: job.toml:2: training.throttle = 1: is not available yet",
        ),
        (
            "name = 1\n",
            "error: job.toml:1: name = 1: expected a text in quotes, not a whole number",
        ),
        ("", "error: job.toml: name: is missing"),
    ] {
        let bench = Bench::new(job);
        for command in [&["run", "job.toml"][..], &["config", "show", "job.toml"]] {
            let stderr = bench.refused(command, 7);
            assert!(stderr.contains(message), "{message} in {stderr}");
        }
        assert!(!bench.path().join("state").exists(), "nothing partial is left");
    }
}

#[test]
fn impossible_combinations_are_exit_7_with_both_numbers() {
    let bench = Bench::new(JOB);
    for (sets, message) in [
        (
            &["trainers.min=5"][..],
            "--set trainers.min=5: trainers.min = 5: is 5, must not be above trainers.max = 2",
        ),
        (&["pservers.spares=3"], "must be at most pservers.count = 2"),
        (&["trainers.spares=3"], "must be at most trainers.max = 2"),
        (&["trainers.extra=3"], "must be at most trainers.max = 2"),
        (&["pservers.vcores=8"], "must be at least pservers.count × pservers.vcores = 16"),
        (&["training.early-stop=2"], "data.test is not set"),
        (&["model.features=1000000000"], "pservers.memory"),
    ] {
        let mut command = vec!["run", "job.toml"];
        for set in sets {
            command.extend(["--set", set]);
        }
        let stderr = bench.refused(&command, 7);
        assert!(stderr.contains(message), "{message} in {stderr}");
    }
}

#[test]
fn a_job_file_that_is_not_there_or_not_text_is_exit_7() {
    let bench = Bench::new(JOB);
    let stderr = bench.refused(&["run", "nothing.toml"], 7);
    assert!(
        stderr.contains("cannot read the job file nothing.toml") && stderr.contains("next: "),
        "{stderr}"
    );
    std::fs::write(bench.path().join("job.toml"), b"name = \"a\"\n\xff\n").unwrap();
    assert!(bench.refused(&["run", "job.toml"], 7).contains("job.toml:2: not valid UTF-8"));
}

#[test]
fn an_error_as_json_has_the_same_content() {
    let bench = Bench::new("name = 1\n");
    let stderr = bench.refused(&["run", "job.toml", "--json"], 7);
    let error: serde_json::Value = serde_json::from_str(stderr.trim()).unwrap();
    assert_eq!(error["exit_code"], 7);
    assert!(error["error"].as_str().unwrap().contains("job.toml:1: name = 1"));
}

#[test]
fn an_unwritable_work_dir_is_exit_7_and_named() {
    let bench = Bench::new(JOB);
    std::fs::write(bench.path().join("train.libsvm"), "1 1:1\n").unwrap();
    std::fs::write(bench.path().join("file"), "").unwrap();
    let stderr = bench.refused(&["run", "job.toml", "--work-dir", "file"], 7);
    assert!(stderr.contains("/file/runs/") && stderr.contains("--work-dir"), "{stderr}");
}

#[test]
fn invalid_options_are_rejected_before_any_file_is_created() {
    let bench = Bench::new(JOB);
    std::fs::write(bench.path().join("train.libsvm"), "1 1:1\n").unwrap();
    std::fs::write(bench.path().join("empty.libsvm"), "").unwrap();
    std::fs::create_dir(bench.path().join("old")).unwrap();
    std::fs::write(bench.path().join("old/MODEL.json"), "{}").unwrap();
    for (set, message) in [
        ("data.train=nothing.libsvm", "data.train = "),
        ("data.train=*.parquet", "data.train = "),
        ("data.train=empty.libsvm", "data.train: the files have no byte of data"),
        ("data.test=nothing.libsvm", "data.test = "),
        ("checkpoint.dir=train.libsvm/ck", "train.libsvm is not a folder"),
        ("output.model=train.libsvm", "output.model = "),
        ("output.model=old", "holds a model already"),
        ("trainers.command=[\"./none\"]", "none is not there or not executable"),
        ("trainers.command=[\"no-such-program-anywhere\"]", "not there or not executable"),
        ("network.ports=7000-7001", "network.ports: 2 ports, at least 3 are needed"),
    ] {
        let stderr = bench.refused(&["run", "job.toml", "--set", set], 7);
        assert!(stderr.contains(message), "{set}: {stderr}");
    }
    assert!(!bench.path().join("state").exists() && !bench.path().join("out").exists());
}

#[test]
fn without_runs_list_is_empty_and_names_lead_nowhere() {
    let bench = Bench::new(JOB);
    assert_eq!(bench.ok(&["list"]), "");
    assert_eq!(bench.ok(&["list", "--json"]), "");
    assert!(bench.refused(&["status"], 7).contains("no runs in"));
    assert!(bench.refused(&["kill", "1a2b"], 7).contains("no run \"1a2b\""));
    assert!(bench.refused(&["logs", "1a2b"], 7).contains("heddle list"));
}

#[test]
fn folder_without_checkpoints_is_exit_7() {
    let bench = Bench::new(JOB);
    std::fs::create_dir(bench.path().join("dir")).unwrap();
    std::fs::write(bench.path().join("dir/precious"), "x").unwrap();
    for command in [&["checkpoint", "ls", "./dir"][..], &["checkpoint", "rm", "./dir", "g1-c1"]] {
        bench.refused(command, 7);
    }
    assert!(bench.path().join("dir/precious").exists());
    bench.refused(&["checkpoint", "rm", "./dir", "first"], 2);
}

#[test]
fn containers_are_not_started_by_hand() {
    let bench = Bench::new(JOB);
    for container in ["pserver", "trainer"] {
        let stderr = bench.refused(&[container], 2);
        assert!(stderr.contains("a Heddle job starts this command"), "{stderr}");
    }
}

#[test]
fn completions_are_printed_for_a_shell() {
    assert!(Bench::new(JOB).ok(&["completions", "bash"]).contains("_heddle"));
}
