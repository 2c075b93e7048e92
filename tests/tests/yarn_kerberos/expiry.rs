//! Tokens that end within minutes: a job that is saved before, and one with a keytab that outlives them.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use heddle_hadoop::token::{Credentials, DelegationIdentifier, Identifier, token_kind};
use heddle_protocol::ids::Slot;
use heddle_tests::hadoop::{Cluster, Daemon, Realm, Shared, wait_until};
use heddle_tests::local::Ended;
use heddle_tests::secured_job::SecuredJob;
use heddle_tests::secured_submission::SecuredSubmission;
use heddle_tests::yarn_job::Process;

use super::{SLOW, options, others};

/// One cluster for these tests.
fn cluster() -> Result<(&'static Cluster, &'static Realm)> {
    static CLUSTER: Shared = Shared::new();
    let cluster = CLUSTER.get(|| options(token_lifetimes()))?;
    Ok((cluster, cluster.realm().context("no realm")?))
}

/// Tokens that are renewed for a minute and last three: HDFS clients use them for two.
fn token_lifetimes() -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for (file, prefix) in
        [("hdfs-site.xml", "dfs.namenode"), ("yarn-site.xml", "yarn.resourcemanager")]
    {
        for (name, ms) in [("renew-interval", "60000"), ("max-lifetime", "180000")] {
            let key = format!("{prefix}.delegation.token.{name}");
            all.push((file.to_owned(), key, ms.to_owned()));
        }
    }
    // The audit log names the token of each call.
    let tracking = "dfs.namenode.audit.log.token.tracking.id";
    all.push(("hdfs-site.xml".to_owned(), tracking.to_owned(), "true".to_owned()));
    all
}

/// The tokens by which calls below a directory of HDFS came, by the NameNode's audit log.
fn audited_tokens(cluster: &Cluster, dir: &str) -> Result<BTreeSet<String>> {
    let log = std::fs::read_to_string(cluster.dir().join("nn1.log"))?;
    let calls = log.lines().filter(|line| {
        line.contains("FSNamesystem.audit") && line.contains("auth:TOKEN") && line.contains(dir)
    });
    let id = |line: &str| {
        let (_, rest) = line.split_once("trackingId=")?;
        rest.split_whitespace().next().map(str::to_owned)
    };
    Ok(calls.filter_map(id).collect())
}

#[test]
#[ignore = "nightly: waits two minutes for the ends of tokens"]
fn a_job_ends_saved_before_its_tokens_do_and_continues() -> Result<()> {
    let (cluster, _) = cluster()?;
    let _daemons = DAEMONS.read().unwrap_or_else(PoisonError::into_inner);
    let job = SecuredJob::of_passes(cluster, "tokens", 40)?;
    let begun = Instant::now();
    let mut first = job.submit(&[], SLOW)?;
    let ended = first.ended(Duration::from_secs(200))?;
    ensure!(ended.code == Some(5), "{ended:?}");
    ensure!(begun.elapsed() < Duration::from_secs(180), "after its tokens: {:?}", begun.elapsed());
    let all = format!("{}{}", ended.stdout, ended.stderr);
    for text in ["HDFS tokens end at", "ended after a checkpoint; submit it again to continue"] {
        ensure!(all.contains(text), "no {text:?} in {all}");
    }
    job.hurry()?;
    let ended = job.submit(&[], "")?.ended(Duration::from_secs(120))?;
    ensure!(ended.code == Some(0), "{ended:?}");
    ensure!(
        ended.stdout.contains("\"resumed_from\":{"),
        "it started from the beginning: {}",
        ended.stdout
    );
    job.same_as_local()
}

/// The tokens in a container's file, and what must never be among them.
fn tokens_of(process: &Process) -> Result<Vec<DelegationIdentifier>> {
    let environment = std::fs::read(format!("/proc/{}/environ", process.pid))?;
    let environment = String::from_utf8_lossy(&environment);
    let variable = |name: &str| {
        let found = environment.split('\0').find_map(|one| one.strip_prefix(name));
        found.with_context(|| format!("no {name} in {process:?}"))
    };
    ensure!(variable("KRB5CCNAME=")?.starts_with("MEMORY:"), "a container has a ticket cache");
    let file = Path::new(variable("HADOOP_TOKEN_FILE_LOCATION=")?).to_owned();
    ensure!(file.metadata()?.permissions().mode() & 0o777 == 0o600, "{} is open", file.display());
    let folder = file.parent().context("no folder")?;
    ensure!(!folder.join("heddle.keytab").exists(), "{} has the keytab", folder.display());
    let credentials = Credentials::read_file(&file)?;
    for kind in [token_kind::RM_DELEGATION, token_kind::AMRM] {
        ensure!(credentials.of_kind(kind).next().is_none(), "{kind} in {}", file.display());
    }
    let identifiers = credentials.of_kind(token_kind::HDFS_DELEGATION).map(Identifier::of);
    identifiers
        .map(|identifier| match identifier? {
            Identifier::Delegation(identifier) => Ok(identifier),
            other => anyhow::bail!("{other:?}"),
        })
        .collect()
}

/// The test that needs the daemons reads this; the one that ends them writes.
static DAEMONS: RwLock<()> = RwLock::new(());

/// Where `heddle install` puts programs.
const PROGRAMS: &str = "hdfs:///apps/heddle";

/// Installs the program as the superuser of HDFS.
fn install(job: &SecuredJob<'_>, realm: &Realm, flags: &[&str]) -> Result<Ended> {
    let cache = realm.cache("nn");
    let arguments = [&["install", "--dir", PROGRAMS, "--json"], flags].concat();
    job.heddle(&arguments, &[("KRB5CCNAME", &cache)])
}

#[test]
#[ignore = "nightly: ten minutes, most of them waits for the ends of tokens"]
fn a_job_with_a_keytab_outlives_its_first_tokens() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "keytab", 200)?;
    let installed = install(&job, realm, &[])?;
    ensure!(installed.code == Some(0), "{installed:?}");
    // Tickets of half a minute: with longer ones tokens are fetched while the KDC is away.
    let keytab = realm.keytab("alice-job").display().to_string();
    realm.administer(&format!(
        "addprinc -randkey -maxlife \"30 seconds\" alice/job\nktadd -k {keytab} alice/job\n"
    ))?;
    let keytab = format!("yarn.keytab={keytab}");
    let programs = format!("submit.binary-dir={PROGRAMS}");
    let begun = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
    let mut submitted = job.submit(&["--set", &keytab, "--set", &programs], SLOW)?;
    others::gain_nothing(cluster, realm, &job, &submitted)?;
    // The tokens of the submission are dead.
    std::thread::sleep(Duration::from_secs(190).saturating_sub(begun.0.elapsed()));
    let cache = realm.cache("alice");
    let status = job.heddle(&["status", &submitted.id], &[("KRB5CCNAME", &cache)])?;
    ensure!(status.stdout.contains("HDFS tokens until"), "{status:?}");
    let oldest_ms = i64::try_from((begun.1 + Duration::from_secs(60)).as_millis())?;
    have_newer_tokens(&submitted, oldest_ms)?;
    for slot in [Slot::pserver(0), Slot::trainer(1)] {
        let process = submitted.process(slot)?;
        nix::sys::signal::kill(process.pid, nix::sys::signal::Signal::SIGKILL)?;
        wait_until("the replacement runs", Duration::from_secs(60), || {
            let replacement = submitted.process(slot)?;
            ensure!(replacement.incarnation > process.incarnation, "{replacement:?}");
            Ok(())
        })?;
    }
    let daemons = DAEMONS.write().unwrap_or_else(PoisonError::into_inner);
    moves_to_a_new_node(cluster, &submitted)?;
    for daemon in [Daemon::ResourceManager(1), Daemon::NameNode(1)] {
        cluster.kill(daemon)?;
        cluster.restart(daemon)?;
        cluster.wait_ready()?;
    }
    survives_an_absent_kdc(&job, realm, &submitted)?;
    drop(daemons);
    have_newer_tokens(&submitted, oldest_ms + 180_000)?;
    // That of the submission, and several that the ApplicationMasters fetched.
    let used = audited_tokens(cluster, "/user/alice/keytab/")?;
    ensure!(used.len() >= 3, "{used:?}");
    job.hurry()?;
    let ended = submitted.ended(Duration::from_secs(120))?;
    ensure!(ended.code == Some(0), "{ended:?}");
    for text in ["submit.binary-dir", "restarted only on"] {
        ensure!(!ended.stderr.contains(text), "{text:?} in {}", ended.stderr);
    }
    job.same_as_local()
}

/// All containers have tokens that were issued after that time.
fn have_newer_tokens(submitted: &SecuredSubmission<'_>, oldest_ms: i64) -> Result<()> {
    for slot in [Slot::pserver(0), Slot::pserver(1), Slot::trainer(0), Slot::trainer(1)] {
        let tokens = tokens_of(&submitted.process(slot)?)?;
        ensure!(!tokens.is_empty(), "{slot} has no tokens");
        for token in tokens {
            ensure!(token.issue_date_ms > oldest_ms, "{slot} has {token:?}");
        }
    }
    Ok(())
}

/// The ApplicationMaster dies with all nodes that have files of the job; the next attempt and all containers start on a
/// node that has none.
fn moves_to_a_new_node(cluster: &Cluster, submitted: &SecuredSubmission<'_>) -> Result<()> {
    let new = Daemon::NodeManager(3);
    cluster.restart(new)?;
    cluster.wait_ready()?;
    let am = submitted.application_master()?;
    ensure!(am.attempt()? == 1 && am.node != new, "{am:?}");
    for node in [1, 2] {
        cluster.kill(Daemon::NodeManager(node))?;
    }
    nix::sys::signal::kill(am.pid, nix::sys::signal::Signal::SIGKILL)?;
    wait_until("the job runs on the new node", Duration::from_secs(120), || {
        let am = submitted.application_master()?;
        ensure!(am.attempt()? == 2 && am.node == new, "{am:?}");
        for slot in [Slot::pserver(0), Slot::pserver(1), Slot::trainer(0), Slot::trainer(1)] {
            let process = submitted.process(slot)?;
            ensure!(process.node == new, "{process:?}");
        }
        Ok(())
    })?;
    let folder = submitted.application_master()?.folder()?;
    let keytab = folder.join("heddle.keytab").metadata()?;
    ensure!(keytab.is_file() && keytab.permissions().mode() & 0o777 == 0o600, "{keytab:?}");
    for node in [1, 2] {
        cluster.restart(Daemon::NodeManager(node))?;
    }
    cluster.wait_ready()
}

/// The tokens' interval ends while no others can be fetched. HDFS clients use them for another minute; after that the job
/// would end.
fn survives_an_absent_kdc(
    job: &SecuredJob<'_>,
    realm: &Realm,
    submitted: &SecuredSubmission<'_>,
) -> Result<()> {
    let cache = realm.cache("alice");
    let credentials = || -> Result<serde_json::Value> {
        let ended = job.heddle(&["status", &submitted.id, "--json"], &[("KRB5CCNAME", &cache)])?;
        let view: serde_json::Value = serde_json::from_str(&ended.stdout)?;
        let view = &view["view"];
        // The view of a job that has ended stays as it was.
        let ended = ["finished", "failed", "stopped"].iter().any(|state| view["state"] == *state);
        ensure!(!ended, "the job has ended: {}", view["message"]);
        Ok(view["credentials"].clone())
    };
    let until = || credentials()?["until_ms"].as_u64().context("no time");
    let before = wait_until("the job shows its tokens", Duration::from_secs(20), until)?;
    let until_ms = wait_until("other tokens are fetched", Duration::from_secs(80), || {
        let until_ms = until()?;
        ensure!(until_ms != before, "none after those of {before}");
        Ok(until_ms)
    })?;
    realm.stop_server()?;
    // The words are those of the KDC's absence, and not of the ticket that has ended meanwhile.
    wait_until("fetching tokens fails", Duration::from_secs(80), || {
        let credentials = credentials()?;
        let error = credentials["error"].as_str().unwrap_or_default();
        ensure!(error.contains("contact any KDC"), "{credentials}");
        Ok(())
    })?;
    let until = UNIX_EPOCH + Duration::from_millis(until_ms) + Duration::from_secs(5);
    std::thread::sleep(until.duration_since(SystemTime::now()).unwrap_or_default());
    realm.start_server()?;
    // Failed fetches are 5 s apart at the most, plus the time that each takes.
    wait_until("new tokens are everywhere", Duration::from_secs(60), || {
        let credentials = credentials()?;
        let arrived = credentials["is_refreshed"] == true
            && credentials["error"].is_null()
            && credentials["pending_containers"] == 0;
        ensure!(arrived, "{credentials}");
        Ok(())
    })
}
