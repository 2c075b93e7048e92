//! Jobs on a Kerberised Hadoop: logins by ticket cache, keytab and token file, and what a failed login reports.

mod bad_input;
mod bad_sites;
mod controller;
mod expiry;
mod failed_logins;
mod logins;
mod others;
mod protections;
mod secrets;
mod single_node;
mod token_files;

use anyhow::{Context, Result, ensure};
use heddle_tests::controller::group_of;
use heddle_tests::hadoop::{Cluster, Options, Realm, Shared};
use heddle_tests::local::Ended;
use heddle_tests::secured_job::SecuredJob;

/// One cluster for all tests but those that wait for the ends of tokens.
fn cluster() -> Result<(&'static Cluster, &'static Realm)> {
    static CLUSTER: Shared = Shared::new();
    let cluster = CLUSTER.get(|| options(Vec::new()))?;
    Ok((cluster, cluster.realm().context("no realm")?))
}

/// A secured cluster of two nodes, with more properties.
fn options(more: Vec<(String, String, String)>) -> Options {
    Options {
        kerberos: true,
        nodemanagers: 2,
        // Localisation over encrypted connections is slow on a busy machine.
        am_expiry_ms: 30_000,
        properties: [access_lists(), proxy_users(), vec![group_of(SERVICE)], more].concat(),
        ..Options::default()
    }
}

/// Clients restrict their pages as the ResourceManager restricts applications.
fn access_lists() -> Vec<(String, String, String)> {
    let set = |key: &str, value: &str| {
        ("client-yarn-site.xml".to_owned(), key.to_owned(), value.to_owned())
    };
    vec![set("yarn.acl.enable", "true"), set("yarn.admin.acl", "root")]
}

/// Bob may act for alice.
fn proxy_users() -> Vec<(String, String, String)> {
    let values = [("users", "alice"), ("hosts", "*")];
    let set = |(name, value): (&str, &str)| {
        ("core-site.xml".to_owned(), format!("hadoop.proxyuser.bob.{name}"), value.to_owned())
    };
    values.map(set).into()
}

/// The service user of the controller.
const SERVICE: &str = "sizer";

/// Steps of most of a second, until the job is to hurry. A job outlives what its test does meanwhile on a slow machine: 60
/// passes would take a quarter of an hour.
const SLOW: &str = "step-computed=return(sleep=400,while={slow})";

#[test]
fn a_job_by_ticket_cache_trains_the_bytes_of_a_local_run() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::new(cluster, "cache")?;
    let cache = realm.cache("alice");
    let short = format!("FILE:{}", job.path().join("short").display());
    realm.kinit("alice", &realm.keytab("alice"), &short, &["-l", "2m"])?;
    let dry = job.heddle(&["submit", "job.toml", "--dry-run"], &[("KRB5CCNAME", &short)])?;
    ensure!(dry.code == Some(0), "{dry:?}");
    for text in
        ["the Kerberos ticket ends in", "HDFS_DELEGATION_TOKEN for", "RM_DELEGATION_TOKEN for"]
    {
        ensure!(dry.stdout.contains(text), "no {text:?} in {}", dry.stdout);
    }
    let ended = job.heddle(&["submit", "job.toml"], &[("KRB5CCNAME", &cache)])?;
    ensure!(ended.code == Some(0), "{}\n{}", ended.stdout, ended.stderr);
    ensure!(!ended.stderr.contains("ticket ends in"), "{}", ended.stderr);
    job.same_as_local()
}

#[test]
fn an_installed_program_serves_all_users() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "installed", 1)?;
    let alice = realm.cache("alice");
    let (place, small) = ("hdfs:///apps/small", ["--binary", "/bin/true"]);
    let program = |user: &str, flags: &[&str]| {
        let cache = realm.cache(user);
        job.heddle(&[&["install", "--json"], &small[..], flags].concat(), &[("KRB5CCNAME", &cache)])
    };
    let ends = |ended: Ended, code: i32, text: &str| -> Result<Ended> {
        ensure!(ended.code == Some(code), "{ended:?}");
        ensure!(format!("{}{}", ended.stdout, ended.stderr).contains(text), "{text:?}: {ended:?}");
        Ok(ended)
    };
    ends(program("nn", &["--dir", "/apps"])?, 7, "must be a directory on HDFS")?;
    ends(program("nn", &[])?, 7, "submit.binary-dir is not set")?;
    ends(program("alice", &["--dir", place])?, 5, "administrator of HDFS")?;
    ends(program("nn", &["--dir", place, "--dry-run"])?, 0, "\"installed\":false")?;
    cluster.dfs("nn", &["-mkdir", "-p", "/open"])?;
    cluster.dfs("nn", &["-chmod", "777", "/open"])?;
    ends(program("nn", &["--dir", "hdfs:///open", "--dry-run"])?, 7, "chmod o-w")?;

    let submit = |flags: &[&str]| {
        let keys = [format!("submit.binary-dir={place}"), "submit.binary=/bin/true".to_owned()];
        let all = ["submit", "job.toml", "--dry-run", "--set", &keys[0], "--set", &keys[1]];
        job.heddle(&[&all, flags].concat(), &[("KRB5CCNAME", &alice)])
    };
    ends(submit(&[])?, 0, "it does not have heddle-")?;
    let installed = ends(program("nn", &["--dir", place])?, 0, "\"installed\":true")?;
    let installed: serde_json::Value = serde_json::from_str(&installed.stdout)?;
    ends(program("nn", &["--dir", place])?, 0, "\"present\":true")?;
    let used = ends(submit(&[])?, 0, "installed)")?;
    ensure!(!used.stdout.contains("warning: submit.binary-dir"), "{used:?}");
    ends(submit(&["--set", "submit.binary-dir=/apps"])?, 7, "submit.binary-dir")?;

    // Other bytes of equal length under its name.
    let other = job.path().join("other");
    let mut bytes = std::fs::read("/bin/true")?;
    bytes.reverse();
    std::fs::write(&other, bytes)?;
    let name = installed["program"].as_str().context("a program")?.to_owned();
    let other = other.display().to_string();
    cluster.dfs("nn", &["-put", "-f", &other, &name])?;
    ends(submit(&[])?, 0, "the recorded digest does not fit heddle-")?;
    ends(program("nn", &["--dir", place])?, 0, "\"installed\":true")?;
    ends(submit(&[])?, 0, "installed)")?;
    cluster.dfs("nn", &["-chmod", "700", "/apps/small"])?;
    ends(submit(&[])?, 0, "not every user can enter")?;
    ends(program("nn", &["--dir", place])?, 7, "chmod o+x").map(drop)
}

#[test]
fn a_keytab_logs_in_without_a_ticket() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "by-keytab", 1)?;
    let keytab = realm.keytab("alice").display().to_string();
    let stated = format!("yarn.keytab={keytab}");
    for arguments in [
        &["list", "--yarn", "--keytab", &keytab][..],
        &["list", "--yarn", "--keytab", &keytab, "--principal", "alice"],
        &["submit", "job.toml", "--dry-run", "--set", &stated],
    ] {
        let ended = job.heddle(arguments, &[])?;
        ensure!(ended.code == Some(0), "{arguments:?}: {ended:?}");
    }
    let conf = tempfile::tempdir_in(job.path())?;
    let site = format!("[yarn]\nkeytab = \"{keytab}\"\nprincipal = \"alice\"\n");
    std::fs::write(conf.path().join("heddle-defaults.toml"), site)?;
    let conf = conf.path().display().to_string();
    let by_site = [("HEDDLE_CONF_DIR", conf.as_str())];
    let ended = job.heddle(&["list", "--yarn"], &by_site)?;
    ensure!(ended.code == Some(0), "{ended:?}");
    // The command line names another user.
    let bobs = realm.keytab("bob").display().to_string();
    let ended = job.heddle(&["submit", "job.toml", "--dry-run", "--keytab", &bobs], &by_site)?;
    ensure!(ended.code == Some(5) && ended.stderr.contains("bob"), "{ended:?}");
    Ok(())
}
