//! `heddle controller` on a secured cluster: a service user by keytab, jobs of two users, and what each of the three can read.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use heddle_tests::controller::{Controller, make_folder};
use heddle_tests::hadoop::wait_until;
use heddle_tests::secured_job::SecuredJob;

use super::{SERVICE, SLOW, cluster};

const LIMIT: Duration = Duration::from_secs(120);
const DIR: &str = "/controller";

#[test]
fn jobs_of_two_users_that_cannot_read_each_other_are_sized() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let keytab = realm.keytab(SERVICE).display().to_string();
    realm.administer(&format!("addprinc -randkey {SERVICE}\nktadd -k {keytab} {SERVICE}\n"))?;
    let dir = make_folder(cluster, "nn", SERVICE, DIR)?;
    let job = SecuredJob::of_passes(cluster, "sized", 8)?;
    let login = ["--keytab", &keytab, "--principal", SERVICE];
    let place = ["--dir", &dir];
    let mut command = job.command()?;
    command.args(login);
    let controller = Controller::start(command, &dir, job.path().join("controller.log"))?;

    // Bob's copy of the job, by encrypted connections.
    let data = job.path().join("data").display().to_string();
    cluster.dfs("bob", &["-mkdir", "/user/bob/sized"])?;
    cluster.dfs("bob", &["-put", &data, "/user/bob/sized"])?;
    let elastic = [
        "run.elastic=controller",
        "controller.dir=hdfs:///controller",
        "trainers.min=1",
        "trainers.max=4",
    ];
    let elastic: Vec<&str> = elastic.iter().flat_map(|key| ["--set", key]).collect();
    let of_bob = [
        "data.train=hdfs:///user/bob/sized/data/*.libsvm",
        "checkpoint.dir=hdfs:///user/bob/sized/ckpt",
        "output.model=hdfs:///user/bob/sized/model",
        "network.protection=on",
    ];
    let of_bob: Vec<&str> = of_bob.iter().flat_map(|key| ["--set", key]).collect();
    let mut one = job.submit(&elastic, SLOW)?;
    let tickets = realm.cache("bob");
    let tickets = [("KRB5CCNAME", tickets.as_str())];
    let mut two = job.submit_with(&tickets, &[&elastic[..], &of_bob].concat(), SLOW)?;

    let status = || -> Result<serde_json::Value> {
        let status = [&["controller", "status", "--json"], &place[..], &login].concat();
        let status = job.heddle(&status, &[])?;
        ensure!(status.code == Some(0), "{status:?}");
        Ok(serde_json::from_str(&status.stdout)?)
    };
    wait_until("both have grown", LIMIT, || {
        let status = status()?;
        let jobs = status["jobs"].as_array().context("no jobs")?;
        let all = jobs.iter().filter(|job| job["wanted"]["trainers"] == 4).count();
        ensure!(all == 2, "{status} {}", controller.log());
        Ok(())
    })?;
    let grant = format!("{DIR}/grants/{}.json", one.id);
    let listed = cluster.dfs("nn", &["-ls", &grant])?;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    ensure!(listed.starts_with("-rw-r-----") && listed.contains("alice sizer"), "{listed}");
    for refused in
        [&["-cat", &grant][..], &["-ls", "/controller/grants"], &["-ls", "/controller/private"]]
    {
        let read = cluster.dfs_output("bob", refused)?;
        let error = String::from_utf8_lossy(&read.stderr);
        ensure!(!read.status.success() && error.contains("Permission denied"), "{error}");
    }
    job.hurry()?;
    for submitted in [&mut one, &mut two] {
        let ended = submitted.ended(LIMIT)?;
        ensure!(ended.code == Some(0), "{ended:?}");
    }
    drop(controller);
    job.same_as_local()
}
