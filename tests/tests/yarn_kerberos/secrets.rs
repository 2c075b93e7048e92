//! Where secrets of a secured job are: in token files, in the keytab's own place, and nowhere else.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_hadoop::token::{Credentials, token_kind};
use heddle_tests::canaries::Canaries;
use heddle_tests::hadoop::{Cluster, wait_until};
use heddle_tests::secured_job::{SecuredJob, copy_with};

use super::others::page;
use super::token_files::token_file;
use super::{SLOW, cluster};

/// What the client's configuration hides: keys that Hadoop calls sensitive (`hadoop.security.sensitive-config-keys`).
const SENSITIVE: [&str; 12] = [
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
    "fs.s3a.encryption.key",
    "fs.s3a.bucket.b.session.key",
    "fs.azure.account.key.store.dfs.core.windows.net",
    "fs.azure.account.oauth2.client.secret",
    "fs.adl.oauth2.refresh.token",
    "fs.gs.auth.service.account.private.key",
    "fs.gs.proxy.password",
    "ssl.server.keystore.pass",
    "yarn.my.password",
    "hadoop.security.credential",
];
const HIDDEN: &str = "canary-of-a-sensitive-key";
const USER_SECRET: &str = "canary-of-a-users-secret";

#[test]
fn secrets_are_in_token_files_and_the_keytab_alone() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let job = SecuredJob::of_passes(cluster, "canaries", 60)?;
    let conf = job.conf("core-site.xml", SENSITIVE[0], Some(HIDDEN))?;
    let hidden = SENSITIVE.map(|key| (key, HIDDEN));
    copy_with(conf.as_ref(), conf.as_ref(), "core-site.xml", &hidden)?;
    let key = job.path().join("key");
    std::fs::write(&key, USER_SECRET)?;
    let sets = [
        format!("yarn.keytab={}", realm.keytab("alice").display()),
        format!("yarn.secrets={{ KEY = \"file:{}\" }}", key.display()),
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let mut submitted = job.submit_with(&[("HADOOP_CONF_DIR", &conf)], &sets, SLOW)?;
    wait_until("all containers run", Duration::from_secs(60), || {
        ensure!(submitted.processes().len() == 5, "{:?}", submitted.processes());
        Ok(())
    })?;
    let staging = format!("/user/alice/.heddle/staging/{}", submitted.id);
    let secret = cluster.dfs("alice", &["-cat", &format!("{staging}/secret")])?;
    let mut secrets = vec![
        ("the job's secret", secret.trim_ascii().to_vec()),
        ("a sensitive key's value", HIDDEN.into()),
        ("a value of yarn.secrets", USER_SECRET.into()),
    ];
    let credentials = Credentials::read_file(token_file(&job, &submitted)?.as_ref())?;
    for (name, kind) in [
        ("the password of the HDFS token", token_kind::HDFS_DELEGATION),
        ("the password of the ResourceManager's token", token_kind::RM_DELEGATION),
        ("the password of the AMRM token", token_kind::AMRM),
    ] {
        let token = credentials.of_kind(kind).next().with_context(|| format!("no {kind}"))?;
        secrets.push((name, token.password().to_vec()));
    }
    // An entry ends with its key and the number of that key in four bytes.
    let keytab = std::fs::read(realm.keytab("alice"))?;
    let key = keytab.len().checked_sub(20).and_then(|from| keytab.get(from..from + 16));
    secrets.push(("a key of the keytab", key.context("a key")?.to_vec()));
    let mut canaries = Canaries::new(secrets)?;

    for n in 1..=2 {
        for part in ["local", "logs"] {
            let dir = cluster.dir().join(format!("nm{n}/{part}"));
            canaries.look_below(&dir, &["container_tokens", ".tokens", "heddle.keytab"]);
        }
    }
    canaries.look_at_processes(&submitted.processes());
    shown(cluster, &job, &submitted.id, &mut canaries)?;
    for path in ["/", "/api/v1/job", "/api/v1/events", "/metrics"] {
        canaries.look_at(path, page(cluster, &staging, path, "alice")?);
    }
    for file in ["*.json", "conf/*", "am/*"] {
        let staged = cluster.dfs("alice", &["-cat", &format!("{staging}/{file}")])?;
        canaries.look_at(&format!("staging/{file}"), staged);
    }
    job.hurry()?;
    let ended = submitted.ended(Duration::from_secs(120))?;
    ensure!(ended.code == Some(0), "{ended:?}");
    canaries.look_at("the output of submit", format!("{}{}", ended.stdout, ended.stderr));
    shown(cluster, &job, &submitted.id, &mut canaries)?;
    canaries.are_nowhere()
}

/// What commands and the ResourceManager print of a job.
fn shown(cluster: &Cluster, job: &SecuredJob<'_>, id: &str, canaries: &mut Canaries) -> Result<()> {
    let realm = cluster.realm().context("no realm")?;
    let cache = realm.cache("alice");
    for arguments in
        [&["status", id][..], &["status", id, "--json"], &["logs", id], &["report", id]]
    {
        let ended = job.heddle(arguments, &[("KRB5CCNAME", &cache)])?;
        canaries.look_at(&format!("{arguments:?}"), format!("{}{}", ended.stdout, ended.stderr));
    }
    let of_rm = cluster.rm_get(&format!("/ws/v1/cluster/apps/{id}?user.name=alice"))?;
    canaries.look_at("REST of the ResourceManager", of_rm.to_string());
    Ok(())
}
