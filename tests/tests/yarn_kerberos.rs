//! Jobs on a Kerberised Hadoop: logins by ticket cache, keytab and token file, and what a failed login reports.

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Options, Realm, Shared};
use heddle_tests::secured_job::SecuredJob;

/// One cluster for all tests of this file.
fn cluster() -> Result<(&'static Cluster, &'static Realm)> {
    static CLUSTER: Shared = Shared::new();
    let options = || Options {
        kerberos: true,
        nodemanagers: 2,
        // Localisation over encrypted connections is slow on a busy machine.
        am_expiry_ms: 30_000,
        ..Options::default()
    };
    let cluster = CLUSTER.get(options)?;
    Ok((cluster, cluster.realm().context("no realm")?))
}

#[test]
fn a_job_by_ticket_cache_trains_the_bytes_of_a_local_run() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::new(cluster, "cache")?;
    let cache = realm.cache("alice");
    let ended = job.heddle(&["submit", "job.toml"], &[("KRB5CCNAME", &cache)])?;
    ensure!(ended.code == Some(0), "{}\n{}", ended.stdout, ended.stderr);
    job.same_as_local()
}

/// The exit code, and that each text is part of what the command prints.
fn fails_with(
    job: &SecuredJob<'_>,
    variables: &[(&str, &str)],
    flags: &[&str],
    texts: &[&str],
) -> Result<()> {
    let ended = job.heddle(&[&["list", "--yarn"], flags].concat(), variables)?;
    ensure!(ended.code == Some(5), "{ended:?}");
    for text in texts {
        ensure!(ended.stderr.contains(text), "no {text:?} in {}", ended.stderr);
    }
    Ok(())
}

#[test]
fn a_keytab_logs_in_without_a_ticket() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::without_data(cluster)?;
    let keytab = realm.keytab("alice").display().to_string();
    for flags in [&["--keytab", &keytab][..], &["--keytab", &keytab, "--principal", "alice"]] {
        let ended = job.heddle(&[&["list", "--yarn"], flags].concat(), &[])?;
        ensure!(ended.code == Some(0), "{ended:?}");
    }
    Ok(())
}

#[test]
fn a_failed_login_is_exit_5_with_its_cause() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::without_data(cluster)?;
    let file = |name: &str| job.path().join(name).display().to_string();
    fails_with(&job, &[], &[], &["no Kerberos ticket in the cache FILE:", "kinit"])?;
    let corrupt = file("corrupt");
    for bytes in [&b"\x05\x09xxxx"[..], b"text", b"\x05"] {
        std::fs::write(&corrupt, bytes)?;
        fails_with(&job, &[("KRB5CCNAME", &corrupt)], &[], &["is corrupt", "kdestroy"])?;
    }
    let ended = format!("FILE:{}", file("ended"));
    realm.kinit("alice", &realm.keytab("alice"), &ended, &["-l", "1s"])?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    fails_with(&job, &[("KRB5CCNAME", &ended)], &[], &["has ended", "kinit"])?;
    let missing = file("no.keytab");
    fails_with(&job, &[], &["--keytab", &missing], &["cannot read the keytab", "No such file"])?;
    fails_with(&job, &[], &["--keytab", &corrupt], &["is not a keytab"])?;
    let bobs = realm.keytab("bob").display().to_string();
    let flags = ["--keytab", &bobs, "--principal", "alice"];
    fails_with(&job, &[], &flags, &["has no key of alice (it has bob@TEST.LOCAL)"])?;
    let malformed = file("krb5.conf");
    std::fs::write(&malformed, "[libdefaults\nx")?;
    let cache = realm.cache("alice");
    let tickets = ("KRB5CCNAME", cache.as_str());
    fails_with(&job, &[tickets, ("KRB5_CONFIG", &malformed)], &[], &["krb5.conf"])?;
    fails_with(&job, &[tickets, ("HADOOP_TOKEN_FILE_LOCATION", &missing)], &[], &["token file"])
}
