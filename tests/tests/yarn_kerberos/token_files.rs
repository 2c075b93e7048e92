//! Processes that have tokens and no ticket: jobs of a session with a token file, and a trainer of the user's own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_hadoop::token::{Credentials, token_kind};
use heddle_tests::hadoop::wait_until;
use heddle_tests::local::{heddle, program};
use heddle_tests::secured_job::{SecuredJob, copy_with};
use heddle_tests::secured_submission::SecuredSubmission;

use super::protections::fetched_tokens;
use super::{SLOW, cluster};

/// The example of a trainer, with data that is uploaded: its containers log in to HDFS by their token files alone.
#[test]
fn a_custom_trainer_has_the_scores_of_a_local_run() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::without_data(cluster)?;
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/custom-trainer/job.toml");
    let command = format!("trainers.command=[\"{}\"]", program("custom-trainer")?.display());
    let sets = ["data.passes=2", &command].map(|set| ["--set", set]).concat();
    let scores = |output: &str| -> Result<String> {
        let line = output.lines().find(|line| line.starts_with("test  log-loss 0."));
        Ok(line.with_context(|| format!("no scores in {output}"))?.to_owned())
    };
    let cache = realm.cache("alice");
    let arguments = [&["submit", example], &sets[..]].concat();
    let there = job.heddle(&arguments, &[("KRB5CCNAME", &cache)])?;
    ensure!(there.code == Some(0), "{there:?}");
    let here = heddle(job.path(), &[&["run", example], &sets[..]].concat())?;
    ensure!(here.code == Some(0), "{here:?}");
    ensure!(scores(&there.stdout)? == scores(&here.stdout)?, "{there:?} and not {here:?}");
    Ok(())
}

/// The ResourceManager renews the token of a name service that only the submitter's configuration has, by the keys that the
/// submission carries. Its second NameNode does not listen.
#[test]
#[ignore = "nightly: two jobs"]
fn a_job_reads_a_name_service_that_the_resourcemanager_lacks() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "foreign", 1)?;
    let conf = job.conf("hdfs-site.xml", "dfs.nameservices", Some("far"))?;
    let url = cluster.hdfs();
    let server = url.strip_prefix("hdfs://").context("a NameNode")?;
    let closed = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider";
    let keys = [
        ("dfs.ha.namenodes.far", "a,b"),
        ("dfs.namenode.rpc-address.far.a", server),
        ("dfs.namenode.rpc-address.far.b", &closed),
        ("dfs.client.failover.proxy.provider.far", provider),
    ];
    copy_with(conf.as_ref(), conf.as_ref(), "hdfs-site.xml", &keys)?;
    // One token for each of its names, since a client takes one for both.
    let file = fetched_tokens(&job, cluster, realm)?;
    let mut tokens = Credentials::read_file(file.as_ref())?;
    let other = Credentials::read_file(fetched_tokens(&job, cluster, realm)?.as_ref())?;
    let other = other.of_kind(token_kind::HDFS_DELEGATION).next().context("a token")?;
    tokens.add(other.clone().with_service("ha-hdfs:far"));
    let file = job.path().join("far.tokens");
    tokens.write_file(&file)?;
    let file = file.display().to_string();
    let variables = [("HADOOP_TOKEN_FILE_LOCATION", file.as_str()), ("HADOOP_CONF_DIR", &conf)];
    let train = "data.train=hdfs://far/user/alice/foreign/data/*.libsvm";
    let ended = job.heddle(&["submit", "job.toml", "--set", train], &variables)?;
    ensure!(ended.code == Some(0), "{ended:?}");
    let log = std::fs::read_to_string(cluster.dir().join("rm1.log"))?;
    let renewed = log.lines().filter(|line| line.contains("Renewed delegation-token"));
    ensure!(
        renewed.filter(|line| line.contains("Service: ha-hdfs:far")).count() == 1,
        "not renewed"
    );
    job.same_as_local()
}

/// A copy of the tokens that an ApplicationMaster has: of HDFS and of the ResourceManager, as the launcher of a scheduler
/// has them.
pub fn token_file(session: &SecuredJob<'_>, launcher: &SecuredSubmission<'_>) -> Result<String> {
    wait_until("the launcher runs", Duration::from_secs(60), || launcher.application_master())?;
    let pid = launcher.application_master()?.pid;
    let environment = std::fs::read(format!("/proc/{pid}/environ"))?;
    let environment = String::from_utf8_lossy(&environment);
    let name = "HADOOP_TOKEN_FILE_LOCATION=";
    let given = environment.split('\0').find_map(|variable| variable.strip_prefix(name));
    let tokens = session.path().join("tokens").display().to_string();
    std::fs::copy(given.context("no token file")?, &tokens)?;
    Ok(tokens)
}

/// The session is the ApplicationMaster of a job that runs: it has tokens of HDFS and of the ResourceManager, as the
/// launcher of a scheduler has. The jobs do not cancel them.
#[test]
#[ignore = "nightly: three jobs"]
fn three_jobs_in_a_row_use_one_token_file() -> Result<()> {
    let (cluster, _) = cluster()?;
    let session = SecuredJob::of_passes(cluster, "session", 60)?;
    let mut launcher = session.submit(&[], SLOW)?;
    three_jobs(&token_file(&session, &launcher)?, "by-tokens")?;
    session.hurry()?;
    let ended = launcher.ended(Duration::from_secs(120))?;
    ensure!(ended.code == Some(0), "{ended:?}");
    session.same_as_local()
}

/// Runs three jobs of a session with this token file.
fn three_jobs(tokens: &str, folder: &str) -> Result<()> {
    let (cluster, _) = cluster()?;
    let name = "HADOOP_TOKEN_FILE_LOCATION";
    let credentials = Credentials::read_file(tokens.as_ref())?;
    for kind in [token_kind::RM_DELEGATION, token_kind::HDFS_DELEGATION] {
        ensure!(credentials.of_kind(kind).count() == 1, "{kind} in {credentials:?}");
    }

    let job = SecuredJob::of_passes(cluster, folder, 1)?;
    for n in 0..3 {
        let outputs = [
            format!("checkpoint.dir=hdfs:///user/alice/{folder}/ckpt-{n}"),
            format!("output.model=hdfs:///user/alice/{folder}/model-{n}"),
        ];
        let sets = match n {
            // The last one has the folders of its job file.
            2 => Vec::new(),
            _ => outputs.iter().flat_map(|set| ["--set", set]).collect(),
        };
        let arguments = [&["submit", "job.toml"], &sets[..]].concat();
        let ended = job.heddle(&arguments, &[(name, tokens)])?;
        ensure!(ended.code == Some(0), "job {n}: {ended:?}");
    }
    job.same_as_local()?;
    let listed = job.heddle(&["list", "--yarn", "--json"], &[(name, tokens)])?;
    ensure!(listed.code == Some(0) && listed.stdout.contains("finished"), "{listed:?}");
    Ok(())
}
