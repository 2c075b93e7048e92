//! What another user of the cluster can do with a job: by commands, by REST, at the ApplicationMaster's port, on HDFS.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Daemon, Realm, wait_until};
use heddle_tests::secured_job::SecuredJob;
use heddle_tests::secured_submission::SecuredSubmission;

use super::{SLOW, cluster};

/// Bob neither sees nor changes a job of alice's that runs.
pub fn gain_nothing(
    cluster: &Cluster,
    realm: &Realm,
    job: &SecuredJob<'_>,
    submitted: &SecuredSubmission<'_>,
) -> Result<()> {
    let id = submitted.id.as_str();
    wait_until("all containers run", Duration::from_secs(60), || {
        ensure!(submitted.processes().len() == 5, "{:?}", submitted.processes());
        Ok(())
    })?;
    let (before, cache) = (submitted.processes(), realm.cache("bob"));
    let tickets = [("KRB5CCNAME", cache.as_str())];
    changes_nothing(job, submitted, &tickets)?;
    for arguments in [&["report", id][..], &["checkpoint", "ls", id]] {
        let ended = job.heddle(arguments, &tickets)?;
        let is_refused = matches!(ended.code, Some(5 | 7)) && ended.stdout.is_empty();
        ensure!(is_refused, "{arguments:?}: {ended:?}");
    }
    for arguments in [&["status", id][..], &["status", id, "--json"], &["logs", id]] {
        let ended = job.heddle(arguments, &tickets)?;
        let all = format!("{}{}", ended.stdout, ended.stderr);
        for part in ["pserver-0", "trainer-0", "training loss", "\"slots\""] {
            ensure!(!all.contains(part), "{arguments:?} shows {part}: {all}");
        }
        if arguments[0] == "logs" {
            let refused = ended.code == Some(5) && all.contains("cannot read the logs of");
            ensure!(refused, "{ended:?}");
        }
    }
    let listed = job.heddle(&["list", "--yarn"], &tickets)?;
    ensure!(listed.code == Some(0) && !listed.stdout.contains(id), "{listed:?}");
    let of_rm = cluster.rm_get(&format!("/ws/v1/cluster/apps/{id}?user.name=bob"))?;
    ensure!(of_rm["app"]["amContainerLogs"].is_null(), "{of_rm}");
    let staging = format!("/user/alice/.heddle/staging/{id}");
    for place in [format!("{staging}/secret"), format!("{staging}/spec.json")] {
        let read = cluster.dfs_output("bob", &["-cat", &place])?;
        let error = String::from_utf8_lossy(&read.stderr);
        ensure!(!read.status.success() && error.contains("Permission denied"), "{place}: {error}");
    }
    at_the_port(cluster, &staging)?;
    through_the_proxy(cluster, id)?;
    ensure!(submitted.processes() == before, "{:?} and not {before:?}", submitted.processes());
    Ok(())
}

#[test]
fn strangers_gain_nothing_of_a_job_that_runs() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "private", 60)?;
    let mut submitted = job.submit(&[], SLOW)?;
    gain_nothing(cluster, realm, &job, &submitted)?;
    job.hurry()?;
    let ended = submitted.ended(Duration::from_secs(120))?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

/// Bob may view a job of alice's (`yarn.view-acl`), and nothing more.
#[test]
fn a_viewer_sees_a_job_and_no_more() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "viewed", 60)?;
    let sets = ["--set", "yarn.view-acl=bob", "--set", "run.chaos=true"];
    let mut submitted = job.submit(&sets, SLOW)?;
    let id = submitted.id.clone();
    wait_until("all containers run", Duration::from_secs(60), || {
        ensure!(submitted.processes().len() == 5, "{:?}", submitted.processes());
        Ok(())
    })?;
    let cache = realm.cache("bob");
    let tickets = [("KRB5CCNAME", cache.as_str())];
    let status = job.heddle(&["status", &id], &tickets)?;
    ensure!(status.code == Some(0) && status.stdout.contains("/proxy/"), "{status:?}");
    let staging = format!("/user/alice/.heddle/staging/{id}");
    for path in ["/", "/api/v1/job"] {
        let page = page(cluster, &staging, path, "bob")?;
        ensure!(page.starts_with("HTTP/1.0 200") && page.contains("pserver-0"), "{page}");
        let page = self::page(cluster, &staging, path, "carol")?;
        ensure!(page.starts_with("HTTP/1.0 403"), "{page}");
    }
    changes_nothing(&job, &submitted, &tickets)?;
    let read = cluster.dfs_output("bob", &["-cat", &format!("{staging}/secret")])?;
    ensure!(!read.status.success(), "bob reads the secret");
    job.hurry()?;
    let ended = submitted.ended(Duration::from_secs(120))?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

/// Commands that change a job are refused.
fn changes_nothing(
    job: &SecuredJob<'_>,
    submitted: &SecuredSubmission<'_>,
    tickets: &[(&str, &str)],
) -> Result<()> {
    let (before, id) = (submitted.processes(), submitted.id.as_str());
    for arguments in [
        &["kill", id][..],
        &["kill", id, "--checkpoint"],
        &["scale", id, "trainers", "1"],
        &["checkpoint", "now", id],
        &["move", id, "default"],
        &["chaos", id, "--for", "5s"],
    ] {
        let ended = job.heddle(arguments, tickets)?;
        ensure!(ended.code == Some(5), "{arguments:?}: {ended:?}");
    }
    ensure!(submitted.processes() == before, "{:?} and not {before:?}", submitted.processes());
    Ok(())
}

/// The pages at the ApplicationMaster's port are for their owner. On one machine every client is on the proxy's host, so
/// it can name users.
fn at_the_port(cluster: &Cluster, staging: &str) -> Result<()> {
    for path in ["/", "/api/v1/job", "/api/v1/events"] {
        let own = page(cluster, staging, path, "alice")?;
        let other = page(cluster, staging, path, "bob")?;
        ensure!(own.starts_with("HTTP/1.0 200"), "{path}: {own}");
        ensure!(other.starts_with("HTTP/1.0 403"), "{path}: {other}");
        ensure!(!other.contains("pserver-0"), "{path}: {other}");
    }
    Ok(())
}

/// The ResourceManager's proxy names its users itself. Here each of them is the static user of Hadoop's pages, whatever the
/// request claims; it may not view the job.
fn through_the_proxy(cluster: &Cluster, id: &str) -> Result<()> {
    let rm = cluster.host(Daemon::ResourceManager(1));
    for user in ["bob", "alice"] {
        let query = format!("proxyapproved=true&user.name={user}");
        let page = match cluster.browse(&format!("http://{rm}:8088/proxy/{id}/?{query}")) {
            Ok(page) => page,
            Err(error) => format!("{error:#}"),
        };
        ensure!(page.contains("403") && !page.contains("pserver-0"), "{user}: {page}");
    }
    Ok(())
}

/// A page of the first attempt, as the proxy requests it for a user.
pub fn page(cluster: &Cluster, staging: &str, path: &str, user: &str) -> Result<String> {
    let file = cluster.dfs("alice", &["-cat", &format!("{staging}/am/000001.json")])?;
    let file: serde_json::Value = serde_json::from_slice(&file)?;
    let address: SocketAddr = file["address"].as_str().context("an address")?.parse()?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let cookie = format!("Cookie: proxy-user={user}");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n{cookie}\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}
