//! What a command line, a site and other tools' flags come to, without a cluster.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const JOB: &str = "name = \"ctr\"\n\n[data]\ntrain = \"train.libsvm\"\n\n[model]\nfeatures = 10\n";

/// A folder with a job file, and a folder `site` for the site's defaults.
struct Bench(TempDir);

impl Bench {
    fn new(site: &str) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        std::fs::write(bench.0.path().join("job.toml"), JOB).unwrap();
        std::fs::create_dir(bench.0.path().join("site")).unwrap();
        std::fs::write(bench.site(), site).unwrap();
        bench
    }

    fn site(&self) -> PathBuf {
        self.0.path().join("site/heddle-defaults.toml")
    }

    fn heddle(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
        for variable in ["HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_HOME", "RUST_LOG"] {
            command.env_remove(variable);
        }
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env("XDG_STATE_HOME", self.0.path().join("state"))
            .env("HEDDLE_CONF_DIR", "site");
        command
    }

    /// The JSON lines of a command that succeeds.
    fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.heddle(&[arguments, &["--json"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Value and origin of a key, as `config show` prints them.
    fn shown(&self, arguments: &[&str], key: &str) -> (String, String) {
        let lines = self.lines(&[&["config", "show"], arguments].concat());
        let line = lines.iter().find(|line| line["key"] == key);
        let line = line.unwrap_or_else(|| panic!("{key} in {lines:#?}"));
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        (text("value"), text("origin"))
    }

    /// The message of a command that fails with that exit code.
    fn refused(&self, arguments: &[&str], exit: i32) -> String {
        let output = self.heddle(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?} wrote data");
        stderr
    }
}

#[test]
fn site_defaults_stand_between_defaults_and_the_job_file() {
    let site = "final = [\"yarn.queue\"]\n[yarn]\nqueue = \"ml\"\npriority = 3\n\
        [run]\nwork-dir = \"runs\"\n[trainers]\nmemory = \"256MiB\"\n";
    let bench = Bench::new(site);
    let at = |line: u32| {
        let file = bench.0.path().canonicalize().unwrap().join("site/heddle-defaults.toml");
        format!("{}:{line}", file.display())
    };
    assert_eq!(bench.shown(&["job.toml"], "yarn.queue"), ("\"ml\"".to_owned(), at(3)));
    let (value, origin) = bench.shown(&["job.toml", "--set", "yarn.priority=5"], "yarn.priority");
    assert_eq!((value.as_str(), origin.as_str()), ("5", "--set yarn.priority=5"));
    let shown = bench.lines(&["config", "show", "job.toml"]);
    let work_dir = shown.iter().find(|line| line["key"] == "run.work-dir").unwrap();
    let resolved = bench.0.path().canonicalize().unwrap().join("site/runs");
    assert_eq!(work_dir["resolved"], resolved.display().to_string());

    let own = bench.lines(&["config", "show"]);
    let keys: Vec<_> = own.iter().map(|line| line["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["trainers.memory", "run.work-dir", "yarn.queue", "yarn.priority", "final"]);
    assert_eq!(own[0]["origin"], at(8));

    let digest = || bench.lines(&["config", "show", "job.toml"]).pop().unwrap()["digest"].clone();
    let before = digest();
    std::fs::write(bench.site(), site.replace("256MiB", "1GiB")).unwrap();
    assert_eq!(digest(), before, "a site's values are not part of the job");
}

#[test]
fn wrong_site_defaults_are_exit_7_with_the_place() {
    let mut texts = BTreeSet::new();
    for (site, arguments, words) in [
        ("[yarn]\nquue = \"x\"\n", &[][..], &["toml:2", "yarn.quue", "did you mean"][..]),
        ("[model]\nl2 = 1.0\n", &[], &["toml:2", "model.l2", "a site cannot set this key"]),
        (
            "final = [\"yarn.queue\"]\n[yarn]\nqueue = \"ml\"\n",
            &["--set", "yarn.queue=x"],
            &["--set yarn.queue=x", "is final", "toml:1"],
        ),
    ] {
        let bench = Bench::new(site);
        for command in [&["config", "show", "job.toml"][..], &["run", "job.toml", "--dry-run"]] {
            let stderr = bench.refused(&[command, arguments].concat(), 7);
            for word in words {
                assert!(stderr.contains(word), "{word} in {stderr}");
            }
            texts.insert(stderr.replace(&bench.0.path().display().to_string(), ""));
        }
    }
    let bench = Bench::new("[yarn]\n");
    let all_write = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(bench.site(), all_write).unwrap();
    let stderr = bench.refused(&["run", "job.toml", "--dry-run"], 7);
    assert!(stderr.contains("every user can write"), "{stderr}");
    texts.insert(stderr);
    assert_eq!(texts.len(), 4, "{texts:#?}");
}

#[test]
fn flags_of_other_tools_become_keys() {
    let bench = Bench::new("");
    let file = bench.0.path().join("job.conf");
    std::fs::write(&file, "# defaults\nyarn.priority 4\ntrainers.max = 3\nfs.x: 1\n").unwrap();
    let line = [
        "job.toml",
        "--submit",
        "--properties-file",
        "job.conf",
        "--conf",
        "yarn.queue=ml",
        "-Dyarn.env.LANG=C",
        "-D",
        "dfs.replication=2",
        "--num-executors",
        "7",
        "--executor-memory",
        "2g",
        "--executor-cores",
        "3",
        "--num-ps",
        "4",
        "--ps-memory",
        "1g",
        "--driver-memory",
        "512m",
        "--master",
        "yarn",
        "--deploy-mode",
        "cluster",
        "--set",
        "pservers.count=5",
    ];
    for (key, value, origin) in [
        ("yarn.priority", "4", "job.conf:2"),
        ("trainers.max", "7", "--num-workers 7"),
        ("yarn.queue", "\"ml\"", "--conf yarn.queue=ml"),
        ("yarn.env", "{ LANG = \"C\" }", "--conf yarn.env.LANG=C"),
        ("trainers.memory", "\"2g\"", "--worker-memory 2g"),
        ("trainers.vcores", "3", "--worker-cores 3"),
        ("pservers.memory", "\"1g\"", "--ps-memory 1g"),
        ("am.memory", "\"512m\"", "--am-memory 512m"),
        ("pservers.count", "5", "--set pservers.count=5"),
        ("dfs.replication", "2", "--conf dfs.replication=2"),
        ("fs.x", "1", "job.conf:4"),
    ] {
        assert_eq!(bench.shown(&line, key), (value.to_owned(), origin.to_owned()), "{key}");
    }
    let stderr = bench.refused(&["config", "show", "job.toml", "--queue", "ml"], 2);
    assert!(stderr.contains("add --submit"), "{stderr}");
}

#[test]
fn refused_properties_name_the_place_and_the_key_to_use() {
    let bench = Bench::new("");
    let show = ["config", "show", "job.toml", "--submit"];
    let conf = |text: &str| bench.refused(&[&show[..], &["--conf", text]].concat(), 7);
    let stderr = conf("spark.executor.memory=4g");
    assert!(stderr.contains("spark.executor.memory is a key of Spark; use trainers.memory"));
    assert!(conf("mapreduce.job.queuename=x").contains("use yarn.queue"));
    assert!(conf("yarn.quue=x").contains("did you mean yarn.queue?"));
    assert!(conf("angel.ps.number=3").contains("neither a key of a job nor of Hadoop"));
    assert!(conf("trainers.max=many").contains("--conf trainers.max=many: trainers.max = "));
    std::fs::write(bench.0.path().join("job.conf"), "yarn.queue=x\n\nangel.x 1\nspark.y 2\n")
        .unwrap();
    let stderr = bench.refused(&[&show[..], &["--properties-file", "job.conf"]].concat(), 7);
    assert!(stderr.contains("job.conf:3: angel.x is neither"), "{stderr}");
    assert!(stderr.contains("job.conf:4: spark.y is a key of Spark"), "{stderr}");
    std::fs::write(bench.0.path().join("job.conf"), "a=\\\n 1\n").unwrap();
    let stderr = bench.refused(&[&show[..], &["--properties-file", "job.conf"]].concat(), 7);
    assert!(stderr.contains("job.conf:1: a value must be on one line"), "{stderr}");
    // The same in front of a submission, which has no cluster here.
    let submit = ["submit", "job.toml", "--properties-file", "none.conf"];
    let stderr = bench.refused(&submit, 7);
    assert!(stderr.contains("cannot read --properties-file none.conf"), "{stderr}");
    for (flag, value, words) in [
        ("--master", "local[2]", "`heddle run` trains on this machine"),
        ("--deploy-mode", "client", "always runs on the cluster"),
        ("--executor-memory", "4096", "with its unit"),
        ("--conf", "novalue", "expected KEY=VALUE"),
    ] {
        let stderr = bench.refused(&["submit", "job.toml", flag, value], 2);
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn a_site_sets_the_wait_for_a_resourcemanager() {
    let bench = Bench::new("[submit]\nrm-wait = \"12s\"\n");
    let conf = bench.0.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    // A port that no process listens on.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let property = format!(
        "<configuration><property><name>yarn.resourcemanager.address</name><value>{closed}</value></property></configuration>"
    );
    std::fs::write(conf.join("yarn-site.xml"), property).unwrap();
    let output = bench.command(&["list", "--yarn"]).env("HADOOP_CONF_DIR", &conf).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{stderr}");
    // A wait of more than two seconds is reported. The last pause does not begin where it would end too late.
    assert!(stderr.contains("at most 12 s (--rm-wait)"), "{stderr}");
}
