//! Each way to log in, at each protection of RPC: the commands for a job, and the bytes of its model.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Realm, wait_until};
use heddle_tests::local::{Ended, program};
use heddle_tests::secured_job::SecuredJob;

use super::cluster;

/// Values of `hadoop.rpc.protection`. The servers offer all of them; what a client selects goes to its containers.
const PROTECTIONS: [&str; 3] = ["authentication", "integrity", "privacy"];

/// A user's shell: variables, by which all commands log in.
struct Shell<'a> {
    job: &'a SecuredJob<'a>,
    name: &'static str,
    variables: Vec<(&'static str, String)>,
}

impl<'a> Shell<'a> {
    /// Three shells: with a token file that is made now, with a ticket cache, and with a keytab that the site's file names.
    fn all(
        job: &'a SecuredJob<'a>,
        cluster: &Cluster,
        realm: &Realm,
        conf: &str,
    ) -> Result<[Self; 3]> {
        let shell = |name, key, value: String| {
            let conf = ("HADOOP_CONF_DIR", conf.to_owned());
            let none = ("KRB5CCNAME", format!("FILE:{}/none", job.path().display()));
            Self { job, name, variables: vec![conf, none, (key, value)] }
        };
        let tokens = fetched_tokens(job, cluster, realm)?;
        let site = tempfile::tempdir_in(job.path())?.keep();
        let text = format!("[yarn]\nkeytab = \"{}\"\n", realm.keytab("alice").display());
        std::fs::write(site.join("heddle-defaults.toml"), text)?;
        Ok([
            shell("token-file", "HADOOP_TOKEN_FILE_LOCATION", tokens),
            shell("ticket-cache", "KRB5CCNAME", realm.cache("alice")),
            shell("keytab", "HEDDLE_CONF_DIR", site.display().to_string()),
        ])
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        self.variables.iter().map(|(key, value)| (*key, value.as_str())).collect()
    }

    fn succeeds(&self, arguments: &[&str]) -> Result<Ended> {
        let ended = self.job.heddle(arguments, &self.variables())?;
        ensure!(ended.code == Some(0), "{}: {arguments:?}: {ended:?}", self.name);
        Ok(ended)
    }

    /// Submits the job, lists it, shows it, saves it, kills it, and submits it again; returns its model's name.
    fn trains(&self, protection: &str) -> Result<String> {
        let model = format!("model-{protection}-{}", self.name);
        let places = [
            format!("checkpoint.dir={}/ckpt-{protection}-{}", self.job.place(), self.name),
            format!("output.model={}/{model}", self.job.place()),
        ];
        let sets: Vec<&str> = places.iter().flat_map(|place| ["--set", place]).collect();
        let mut submitted = self.job.submit_with(&self.variables(), &sets, SLOW)?;
        let id = submitted.id.clone();
        wait_until("the job trains", Duration::from_secs(60), || {
            let status = self.succeeds(&["status", &id, "--json"])?;
            let status: serde_json::Value = serde_json::from_str(&status.stdout)?;
            ensure!(status["view"]["checkpoints_taken"].as_u64() >= Some(1), "{status}");
            Ok(())
        })?;
        let listed = self.succeeds(&["list", "--yarn"])?;
        ensure!(listed.stdout.contains(&id), "no {id} in {}", listed.stdout);
        self.succeeds(&["checkpoint", "now", &id])?;
        self.succeeds(&["kill", &id])?;
        let killed = submitted.ended(Duration::from_secs(60))?;
        ensure!(killed.code != Some(0), "it was not killed: {killed:?}");
        let again = self.succeeds(&[&["submit", "job.toml", "--json"], &sets[..]].concat())?;
        let resumed = again.stdout.contains("\"resumed_from\":{");
        ensure!(resumed, "it started from the beginning: {}", again.stdout);
        Ok(model)
    }
}

/// A token file of the example `fetch_tokens`, by the ticket of alice.
pub fn fetched_tokens(job: &SecuredJob<'_>, cluster: &Cluster, realm: &Realm) -> Result<String> {
    let file = job.path().join("fetched.tokens").display().to_string();
    let output = Command::new(program("examples/fetch_tokens")?)
        .arg(&file)
        .env("HADOOP_CONF_DIR", cluster.conf_dir())
        .env("KRB5_CONFIG", realm.configuration())
        .env("KRB5CCNAME", realm.cache("alice"))
        .env_remove("HADOOP_TOKEN_FILE_LOCATION")
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(file)
}

/// Steps of a fifth of a second: the first checkpoint comes soon, and the job lives long enough to be killed.
const SLOW: &str = "step-computed=return(sleep=100,while={slow})";

/// Each login at another protection, and each protection with another login.
#[test]
#[ignore = "nightly: three jobs"]
fn each_login_trains_at_one_protection() -> Result<()> {
    trains("one-protection", |protection, login| protection == login)
}

#[test]
#[ignore = "nightly: nine jobs, one after the other"]
fn each_login_trains_at_each_protection() -> Result<()> {
    trains("each-protection", |_, _| true)
}

/// Trains a job for each pair of these numbers of a protection and a login.
fn trains(name: &str, wanted: impl Fn(usize, usize) -> bool) -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::quick_start(cluster, name, 6)?;
    let mut models = Vec::new();
    for (number, protection) in PROTECTIONS.into_iter().enumerate() {
        let conf = job.conf("core-site.xml", "hadoop.rpc.protection", Some(protection))?;
        let shells = Shell::all(&job, cluster, realm, &conf)?.into_iter().enumerate();
        for (_, shell) in shells.filter(|(login, _)| wanted(number, *login)) {
            let context = || format!("{} at {protection}", shell.name);
            models.push(shell.trains(protection).with_context(context)?);
        }
    }
    job.are_same_as_local(&models)
}

/// The example copies itself to HDFS, and its containers run, with tokens and no ticket; at the strictest protection.
#[test]
fn hello_yarn_uploads_itself_by_a_token_file() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::without_data(cluster)?;
    let tokens = fetched_tokens(&job, cluster, realm)?;
    let conf = job.conf("core-site.xml", "hadoop.rpc.protection", Some("privacy"))?;
    let hello = |with_tokens: bool| -> Result<std::process::Output> {
        let mut command = Command::new(program("hello-yarn")?);
        command
            .args(["submit", "--upload", "--containers", "1", "--", "true"])
            .env("HADOOP_CONF_DIR", &conf)
            .env("KRB5_CONFIG", realm.configuration())
            .env("KRB5CCNAME", format!("FILE:{}/none", job.path().display()))
            .env_remove("HADOOP_TOKEN_FILE_LOCATION")
            .env_remove("HADOOP_USER_NAME");
        if with_tokens {
            command.env("HADOOP_TOKEN_FILE_LOCATION", &tokens);
        } else {
            command.env("KRB5CCNAME", realm.cache("alice"));
        }
        Ok(command.output()?)
    };
    let refused = hello(false)?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && text.contains("needs a token of HDFS"), "{refused:?}");
    let ran = hello(true)?;
    ensure!(ran.status.success(), "{ran:?}");
    let id = String::from_utf8(ran.stdout)?;
    let report = cluster.rm_get(&format!("/ws/v1/cluster/apps/{}?user.name=alice", id.trim()))?;
    ensure!(report["app"]["finalStatus"] == "SUCCEEDED", "{report}");
    ensure!(report["app"]["user"] == "alice", "{report}");
    // It has removed its copy.
    let left =
        cluster.dfs_output("alice", &["-ls", &format!("/user/alice/.hello-yarn/{}", id.trim())])?;
    ensure!(!left.status.success(), "left: {}", String::from_utf8_lossy(&left.stdout));
    Ok(())
}
