//! What `yarn-conf/single-node` promises to a person: it starts, prints where it is, runs a job, and stops.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::Net;
use heddle_tests::local::program;

fn run(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output()?;
    ensure!(status.success(), "{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr));
    Ok(String::from_utf8(stdout)?)
}

/// Stops the cluster however the test ends.
struct Stop<'a>(&'a Path, &'a Path);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let _checked_by_the_test = Command::new(self.0).arg(self.1).status();
    }
}

#[test]
fn start_prints_the_address_and_stop_ends_the_cluster() -> Result<()> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../yarn-conf/single-node");
    let dir = tempfile::tempdir()?;
    let stop_script = scripts.join("stop.sh");
    let net = Net::take()?;
    let stop = Stop(&stop_script, dir.path());
    let start = |dir: &Path| {
        let mut command = Command::new(scripts.join("start.sh"));
        command.arg(dir).env("NET", &net.prefix).env("HADOOP_USER_NAME", "alice");
        command
    };
    let said = run(&mut start(dir.path()))?;
    let conf = said
        .lines()
        .find_map(|line| line.strip_prefix("HADOOP_CONF_DIR="))
        .context("a configuration")?;
    ensure!(
        said.contains(&format!("http://{}.1:8088/", net.prefix))
            && said.contains(&format!("http://{}.1:9870/", net.prefix)),
        "{said}"
    );
    ensure!(
        !start(dir.path()).status()?.success(),
        "a second start in the same directory is refused"
    );

    let mut hello = Command::new(program("hello-yarn")?);
    hello
        .args(["submit", "--containers", "2", "--", "true"])
        .env("HADOOP_CONF_DIR", conf)
        .env("HADOOP_USER_NAME", "alice");
    ensure!(run(&mut hello)?.starts_with("application_"), "the application's id");

    drop(stop);
    let said = run(&mut start(dir.path()))?;
    ensure!(said.contains("HADOOP_CONF_DIR="), "it starts again on the same directory");
    run(Command::new(&stop_script).arg(dir.path()))?;
    Ok(())
}
