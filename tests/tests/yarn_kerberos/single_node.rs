//! What `KERBEROS=1 yarn-conf/single-node/start.sh` promises to a person.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::Net;
use heddle_tests::local::program;

/// Stops the cluster however the test ends.
struct Stop<'a>(&'a Path, &'a Path);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let _best_effort = Command::new(self.0).arg(self.1).status();
    }
}

#[test]
#[ignore = "nightly: a cluster of its own"]
fn one_command_starts_a_secured_cluster_for_people() -> Result<()> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../yarn-conf/single-node");
    let (dir, net) = (tempfile::tempdir()?, Net::take()?);
    let stop_script = scripts.join("stop.sh");
    let stop = Stop(&stop_script, dir.path());
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let started = Command::new(scripts.join("start.sh"))
        .arg(dir.path())
        .env("NET", &net.prefix)
        .env("NODES", "1")
        .env("KERBEROS", "1")
        .env("KDC_PORT", port.to_string())
        .output()?;
    let text = String::from_utf8(started.stdout)?;
    ensure!(started.status.success(), "{text}{}", String::from_utf8_lossy(&started.stderr));
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.split_once(name));
        let word = line.and_then(|(_, rest)| rest.split([' ', ';']).next());
        word.map(str::to_owned).with_context(|| format!("no {name} in {text}"))
    };
    let conf = value("HADOOP_CONF_DIR=")?;
    let krb5 = value("KRB5_CONFIG=")?;
    // The lines that it prints, as a person types them.
    let script = format!(
        "export HADOOP_CONF_DIR={conf} KRB5_CONFIG={krb5} KRB5CCNAME=FILE:{0}/cc\n\
         {1} list --yarn && exit 90\n\
         kinit -k -t {0}/kdc/alice.keytab alice || exit 91\n\
         {1} list --yarn || exit 92\n\
         {2} submit --containers 1 -- true || exit 93\n",
        dir.path().display(),
        program("heddle")?.display(),
        program("hello-yarn")?.display(),
    );
    let ran = Command::new("bash").arg("-c").arg(&script).output()?;
    let all = [&ran.stdout[..], &ran.stderr].concat();
    let all = String::from_utf8_lossy(&all);
    ensure!(ran.status.success(), "{}: {all}", ran.status);
    ensure!(all.contains("no Kerberos ticket") && all.contains("application_"), "{all}");
    drop(stop);
    let left = Command::new("pgrep").arg("-f").arg(dir.path()).output()?;
    ensure!(left.stdout.is_empty(), "left: {}", String::from_utf8_lossy(&left.stdout));
    Ok(())
}
