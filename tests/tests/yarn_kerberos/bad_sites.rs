//! Rows of the table of bad input: the site's defaults, properties, file systems (exit code 7), and the jar (exit code 10).

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use heddle_tests::hadoop::{Cluster, RunJar, javas, launcher_jar};
use heddle_tests::local::Ended;
use heddle_tests::secured_job::copy_with;

use super::bad_input::BadInput;

const SITE: &str = "HEDDLE_CONF_DIR";

pub fn defaults_files(table: &BadInput<'_>) -> Result<()> {
    let unknown = table.site("[yarn]\nquue = \"x\"\n")?;
    let words = ["heddle-defaults.toml:2", "yarn.quue", "did you mean"];
    table.submit("unknown key of the site", &[(SITE, &unknown)], &[], &words)?;
    let forbidden = table.site("[model]\nl2 = 1.0\n")?;
    let words = ["heddle-defaults.toml:2", "model.l2", "a site cannot set this key"];
    table.submit("key that a site cannot set", &[(SITE, &forbidden)], &[], &words)?;
    let is_final = table.site("final = [\"yarn.queue\"]\n[yarn]\nqueue = \"default\"\n")?;
    let words = ["--set yarn.queue=x", "is final", "heddle-defaults.toml:1"];
    let flags = ["--set", "yarn.queue=x"];
    table.submit("final key overridden", &[(SITE, &is_final)], &flags, &words)?;
    let open = table.site("[yarn]\n")?;
    let file = Path::new(&open).join("heddle-defaults.toml");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o666))?;
    let words = ["every user can write", "chmod"];
    table.submit("file of the site writable by others", &[(SITE, &open)], &[], &words)
}

pub fn properties(table: &BadInput<'_>) -> Result<()> {
    let file = table.file("job.conf");
    std::fs::write(&file, "yarn.priority=1\n\nangel.ps.number 3\n")?;
    let words = ["job.conf:3: angel.ps.number is neither a key of a job nor of Hadoop"];
    table.submit("unknown property", &[], &["--properties-file", &file], &words)
}

/// Configurations of other sites over the same cluster.
pub fn file_systems(table: &BadInput<'_>, cluster: &Cluster) -> Result<()> {
    let flags = ["--set", "submit.staging=s3a://box/{user}"];
    let words = ["submit.staging = \"s3a://box", "expected a directory on HDFS"];
    table.submit("submit.staging not on HDFS", &[], &flags, &words)?;
    let user = format!("{}/user", cluster.hdfs());
    let mounts = table.job.conf("core-site.xml", "fs.defaultFS", Some("viewfs://cdp"))?;
    let key = |name: &str| format!("fs.viewfs.mounttable.cdp.{name}");
    let links = [(key("link./user"), &user), (key("linkNfly../ads"), &user)];
    let links: Vec<_> = links.iter().map(|(key, url)| (key.as_str(), url.as_str())).collect();
    copy_with(mounts.as_ref(), mounts.as_ref(), "core-site.xml", &links)?;
    let site = [("HADOOP_CONF_DIR", mounts.as_str())];
    let flags = ["--set", "data.train=viewfs:///lost/*"];
    let words = ["/lost", "no mount point of viewfs://cdp covers it", "use a path below"];
    table.submit("no mount point", &site, &flags, &words)?;
    let flags = ["--set", "data.train=viewfs:///ads/x"];
    let words = ["links of the kind linkNfly are not supported", "use the hdfs:// URL"];
    table.submit("mount point of a refused kind", &site, &flags, &words)
}

/// `yarn jar heddle.jar submit job.toml` through Hadoop's own RunJar.
pub fn jars(table: &BadInput<'_>) -> Result<()> {
    let (run_jar, folder) = (RunJar::prepare()?, table.job.path().join("jar"));
    for name in ["tmp", "home/.cache/heddle"] {
        std::fs::create_dir_all(folder.join(name))?;
    }
    // A program that is a jar too, and that cannot be executed where it is.
    let jar = folder.join("heddle.jar");
    let mut bytes = std::fs::read("/bin/echo")?;
    bytes.extend(std::fs::read(launcher_jar(&folder)?)?);
    std::fs::write(&jar, &bytes)?;
    std::fs::set_permissions(&jar, std::fs::Permissions::from_mode(0o644))?;
    let yarn_jar = || -> Result<Ended> {
        let java = &javas()[0];
        let conf = table.job.conf_dir();
        let mut command: Command = run_jar.command(java, &conf, &[], &folder.join("tmp"), &jar);
        let output = command
            .args(["submit", "job.toml"])
            .current_dir(table.job.path())
            .env("HOME", folder.join("home"))
            .env_remove("XDG_CACHE_HOME")
            .env_remove("HEDDLE_BINARY")
            .output()?;
        ensure!(output.stdout.is_empty(), "{output:?}");
        Ok(Ended {
            code: output.status.code(),
            stdout: String::new(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    };
    let cache = folder.join("home/.cache/heddle");
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o777))?;
    let words = ["cannot start heddle", "other users can change the cache directory", "remove it"];
    table.refused("cache directory of others", &yarn_jar()?, &words)?;
    // Another machine in the header of the ELF file.
    bytes[18] = 243;
    std::fs::write(&jar, bytes)?;
    let words = ["cannot start heddle", "is not for this machine"];
    table.refused("no program for this machine", &yarn_jar()?, &words)
}
