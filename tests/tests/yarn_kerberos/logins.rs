//! Logins that succeed: by ticket caches of each type, by `heddle` and by the examples; and what the Key Distribution Center
//! is asked for meanwhile.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Daemon, Realm};
use heddle_tests::local::{Ended, program};
use heddle_tests::secured_job::SecuredJob;

use super::cluster;

/// A run on this machine whose data, checkpoints and model are on HDFS, and the commands that read them: its processes have
/// tokens and no ticket.
#[test]
fn a_local_run_uses_a_secured_hdfs() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "local-run", 1)?;
    let cache = realm.cache("alice");
    let succeeds = |arguments: &[&str]| -> Result<Ended> {
        let ended = job.heddle(arguments, &[("KRB5CCNAME", &cache)])?;
        ensure!(ended.code == Some(0), "{arguments:?}: {ended:?}");
        Ok(ended)
    };
    succeeds(&["run", "job.toml"])?;
    job.same_as_local()?;
    let place = "hdfs:///user/alice/local-run";
    succeeds(&[
        "export",
        &format!("{place}/ckpt"),
        &job.path().join("exported").display().to_string(),
    ])?;
    ensure!(job.path().join("exported/MODEL.json").exists(), "no model");
    let data = "data/train-000.libsvm";
    let there = succeeds(&["predict", &format!("{place}/model"), &format!("{place}/{data}")])?;
    let here = succeeds(&["predict", "model", data])?;
    ensure!(there.stdout == here.stdout && there.stdout.lines().count() == 300, "{there:?}");
    Ok(())
}

/// The checks of a submission read and write HDFS by tokens, which a NameNode would keep for a day.
#[test]
fn a_command_cancels_the_tokens_that_it_fetched() -> Result<()> {
    const PRINCIPAL: &str = "alice/checking";
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "checked", 1)?;
    let keytab = job.path().join("checking.keytab");
    realm.administer(&format!(
        "addprinc -randkey {PRINCIPAL}\nktadd -k {} {PRINCIPAL}\n",
        keytab.display()
    ))?;
    let cache = format!("FILE:{}", job.path().join("checking").display());
    realm.kinit(PRINCIPAL, &keytab, &cache, &[])?;
    let audited = |command: &str| -> Result<usize> {
        let log = std::fs::read_to_string(cluster.dir().join("nn1.log"))?;
        // The ResourceManager cancels that of the job later.
        let own = format!("ugi={PRINCIPAL}@");
        let calls = log.lines().filter(|line| line.contains("FSNamesystem.audit"));
        let calls = calls.filter(|line| line.contains("allowed=true") && line.contains(&own));
        Ok(calls.filter(|line| line.contains(&format!("cmd={command}"))).count())
    };
    for arguments in [&["submit", "job.toml", "--dry-run"][..], &["submit", "job.toml"]] {
        let ended = job.heddle(arguments, &[("KRB5CCNAME", &cache)])?;
        ensure!(ended.code == Some(0), "{arguments:?}: {ended:?}");
        // The second command leaves its token to the job.
        let counts = (audited("getDelegationToken")?, audited("cancelDelegationToken")?);
        let expected = if arguments.len() == 3 { (1, 1) } else { (2, 1) };
        ensure!(counts == expected, "{arguments:?}: {counts:?} and not {expected:?}");
    }
    Ok(())
}

/// Bob's ticket, and the home, the tokens and the job of alice.
#[test]
#[ignore = "nightly: a job of a minute"]
fn a_user_submits_for_another_one() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "for-another", 1)?;
    let cache = realm.cache("bob");
    let tickets = ("KRB5CCNAME", cache.as_str());
    let arguments = ["submit", "job.toml", "--json", "--proxy-user", "alice"];
    let ended = job.heddle(&arguments, &[tickets])?;
    ensure!(ended.code == Some(0), "{ended:?}");
    job.same_as_local()?;
    let listed =
        job.heddle(&["list", "--yarn", "--json"], &[tickets, ("HADOOP_PROXY_USER", "alice")])?;
    ensure!(listed.code == Some(0), "{listed:?}");
    let line = ended.stdout.lines().find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        line["application"].as_str().map(str::to_owned)
    });
    let id = line.with_context(|| format!("no application in {}", ended.stdout))?;
    ensure!(listed.stdout.contains(&id), "no {id} in {}", listed.stdout);
    let report = cluster.rm_get(&format!("/ws/v1/cluster/apps/{id}?user.name=alice"))?;
    ensure!(report["app"]["user"] == "alice", "{report}");
    Ok(())
}

#[test]
fn caches_in_directories_and_keyrings_serve() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::without_data(cluster)?;
    let folder = job.path().join("caches");
    std::fs::create_dir(&folder)?;
    let directory = format!("DIR:{}", folder.display());
    let keyring = format!("KEYRING:user:heddle-{}", std::process::id());
    for cache in [&directory, &keyring] {
        realm.kinit("alice", &realm.keytab("alice"), cache, &[])?;
        let listed = job.heddle(&["list", "--yarn"], &[("KRB5CCNAME", cache)]);
        if cache == &keyring {
            realm.destroy(cache)?;
        }
        let listed = listed?;
        ensure!(listed.code == Some(0), "{cache}: {listed:?}");
    }
    Ok(())
}

/// An example of the crates, by the ticket cache of alice.
fn example(cluster: &Cluster, realm: &Realm, name: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program(name)?)
        .args(arguments)
        .env("HADOOP_CONF_DIR", cluster.conf_dir())
        .env("KRB5_CONFIG", realm.configuration())
        .env("KRB5CCNAME", realm.cache("alice"))
        .env_remove("HADOOP_TOKEN_FILE_LOCATION")
        .env_remove("HADOOP_USER_NAME")
        .output()?;
    ensure!(output.status.success(), "{name} {arguments:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn the_examples_of_the_crates_log_in() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let rm = format!("{}:8032", cluster.host(Daemon::ResourceManager(1)));
    let protocol = "org.apache.hadoop.yarn.api.ApplicationClientProtocolPB";
    // 200 connections at once, each with a login of its own.
    let probed =
        example(cluster, realm, "examples/probe", &[&rm, protocol, "getNewApplication", "200"])?;
    ensure!(probed.contains("200 of 200"), "{probed}");
    cluster.dfs("alice", &["-mkdir", "-p", "/user/alice/examples"])?;
    cluster.dfs("alice", &["-touchz", "/user/alice/examples/empty"])?;
    example(cluster, realm, "examples/blocks", &["/user/alice/examples/empty"])?;
    let id = example(cluster, realm, "hello-yarn", &["submit", "--containers", "1", "--", "true"])?;
    let report = cluster.rm_get(&format!("/ws/v1/cluster/apps/{}?user.name=alice", id.trim()))?;
    ensure!(report["app"]["finalStatus"] == "SUCCEEDED", "{report}");
    ensure!(report["app"]["user"] == "alice", "{report}");
    Ok(())
}

/// The tickets are those of a principal of its own, whose requests can be told from those of other tests. They may be
/// forwarded, and are not.
#[test]
fn only_a_submission_asks_the_kdc() -> Result<()> {
    const PRINCIPAL: &str = "alice/audited";
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "audited", 1)?;
    let keytab = job.path().join("audited.keytab");
    realm.administer(&format!(
        "addprinc -randkey {PRINCIPAL}\nktadd -k {} {PRINCIPAL}\n",
        keytab.display()
    ))?;
    let cache = format!("FILE:{}", job.path().join("audited").display());
    realm.kinit(PRINCIPAL, &keytab, &cache, &["-f"])?;
    let requests = || -> Result<Vec<String>> {
        let own = format!("{PRINCIPAL}@");
        let all = realm.requests()?;
        Ok(all.into_iter().filter(|line| line.contains("TGS_REQ") && line.contains(&own)).collect())
    };
    let mut submitted = job.submit_with(&[("KRB5CCNAME", &cache)], &[], "")?;
    let at_submission = requests()?;
    for service in ["nn/localhost", "rm/localhost"] {
        let to_it = at_submission.iter().filter(|line| line.contains(&format!("for {service}@")));
        ensure!(to_it.count() == 1, "{service}: {at_submission:?}");
    }
    ensure!(!at_submission.iter().any(|line| line.contains("for krbtgt/")), "{at_submission:?}");
    let ended = submitted.ended(Duration::from_secs(120))?;
    ensure!(ended.code == Some(0), "{ended:?}");
    ensure!(requests()? == at_submission, "later: {:?}", requests()?);
    job.same_as_local()
}
