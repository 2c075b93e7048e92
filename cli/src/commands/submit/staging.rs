//! The staging directory of an application: everything its ApplicationMaster and containers are given.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use heddle_am::run_dir::RunFile;
use heddle_am::staging::{CONF_DIR, HOME_DIR, PROGRAM, StagedFile, YARN_FILE, YarnFile};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::handshake::Secret;
use heddle_protocol::spec::{JobSpec, Location};
use heddle_yarn::ApplicationId;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::shipped;
use super::upload::{self, Upload, Uploads};
use crate::cluster::ClusterContext;
use crate::failure::Failure;

/// Name of the file with the job's secret (64 hexadecimal digits) in the staging directory: by it the same user
/// commands the job from another shell.
pub const SECRET_FILE: &str = "secret";

/// Data files that are sent at once: each waits mostly for acknowledgements, and holds a MiB or two.
const UPLOADS_AT_ONCE: usize = 16;

/// What was staged.
pub struct StagedFiles {
    /// What the ApplicationMaster's container gets, by name there.
    pub am: BTreeMap<String, StagedFile>,
}

/// What the job is, besides what is uploaded.
pub struct StagingContent<'a> {
    /// The application.
    pub application: ApplicationId,
    /// The staging directory.
    pub staging: &'a Location,
    /// Run and options.
    pub run: &'a RunFile,
    /// The job, with all its places on the cluster.
    pub spec: &'a JobSpec,
    /// Its secret.
    pub secret: &'a Secret,
}

/// Uploads everything, all files at once.
///
/// # Errors
/// What cannot be written, and why. The staging directory may hold a part; the caller removes it.
pub async fn stage(
    cluster: &Arc<ClusterContext>,
    content: &StagingContent<'_>,
    uploads: &Uploads,
) -> Result<StagedFiles, Failure> {
    let home = cluster.home()?;
    let id = content.application.to_string();
    let own = [HOME_DIR, "staging", &id];
    let reports = [HOME_DIR, "reports", &id];
    let data_name = uploads.data.first().map(|first| folder_of(&first.to));
    let data_dir: Vec<&str> = match &data_name {
        Some(name) => vec![HOME_DIR, "data", name],
        None => vec![HOME_DIR],
    };
    tokio::try_join!(
        cluster.make_dirs(&home, &[HOME_DIR, "bin"]),
        cluster.make_dirs(&home, &own),
        cluster.make_dirs(&home, &reports),
        cluster.make_dirs(&home, &data_dir),
    )?;
    let staging = content.staging;
    tokio::try_join!(
        cluster.make_dirs(staging, &[CONF_DIR]),
        cluster.make_dirs(staging, &["files"]),
        cluster.make_dirs(staging, &["am"]),
    )?;

    let mut shared: JoinSet<Result<(String, StagedFile), Failure>> = JoinSet::new();
    program(cluster, uploads, &mut shared);
    data(cluster, uploads, &mut shared);
    files(cluster, content, uploads, &mut shared);
    let conf = shipped::core_site(&cluster.configuration).into_bytes();
    small(cluster, content, &format!("{CONF_DIR}/core-site.xml"), conf, &mut shared);
    let json = |what: &str, bytes: Result<Vec<u8>, serde_json::Error>| {
        bytes.map_err(|error| {
            Failure::caused(ExitCode::Internal, format!("{what} has no form"), &error)
        })
    };
    let run = json("run.json", serde_json::to_vec_pretty(content.run))?;
    small(cluster, content, "run.json", run, &mut shared);
    small(cluster, content, "spec.json", content.spec.to_json(), &mut shared);
    let secret = content.secret.to_hex().into_bytes();
    small(cluster, content, SECRET_FILE, secret, &mut shared);
    // What was asked for stays with the report: whoever attaches later is told the same end.
    let kept = cluster.reports(cluster.user.short_name(), content.application)?;
    let (to, spec) = (kept.join("spec.json"), content.spec.to_json());
    let of_report = Arc::clone(cluster);
    shared.spawn(async move { Ok((String::new(), upload::put(&of_report, spec, &to).await?)) });

    let mut all = collect(shared).await?;
    // It is in the container's credentials.
    all.remove(SECRET_FILE);
    let yarn = &content.spec.yarn;
    for file in &yarn.archives {
        if let Some(staged) = all.get_mut(&file.name) {
            staged.archive = true;
        }
    }
    let for_am = |name: &str| name == "run.json" || name == "spec.json";
    let resources = all.iter().filter(|(name, _)| !for_am(name));
    let file = YarnFile {
        application: id,
        user: cluster.user.short_name().to_owned(),
        staging: staging.url(),
        reports: kept.url(),
        max_attempts: yarn.max_attempts,
        resources: resources.map(|(name, file)| (name.clone(), file.clone())).collect(),
        env: yarn.env.clone(),
    };
    let file = json(YARN_FILE, serde_json::to_vec_pretty(&file))?;
    let place = staging.join(YARN_FILE);
    all.insert(YARN_FILE.to_owned(), upload::put(cluster, file, &place).await?);
    Ok(StagedFiles { am: all })
}

/// The name of the folder that a place is in.
fn folder_of(place: &Location) -> String {
    let path = place.path();
    path.rsplit('/').nth(1).unwrap_or_default().to_owned()
}

type Uploading = JoinSet<Result<(String, StagedFile), Failure>>;

async fn collect(mut sending: Uploading) -> Result<BTreeMap<String, StagedFile>, Failure> {
    let mut all = BTreeMap::new();
    while let Some(sent) = sending.join_next().await {
        let (name, file) = sent.map_err(|error| {
            Failure::caused(ExitCode::Internal, "an upload ended without a result", &error)
        })??;
        // Local data has no name in work directories.
        if !name.is_empty() {
            all.insert(name, file);
        }
    }
    Ok(all)
}

fn program(cluster: &Arc<ClusterContext>, uploads: &Uploads, sending: &mut Uploading) {
    let (program, to) = &uploads.program;
    let upload = Upload { from: program.path.clone(), bytes: program.bytes, to: to.clone() };
    let cluster = Arc::clone(cluster);
    sending.spawn(async move {
        let (mut staged, _sent) = upload::send_once(&cluster, &upload).await?;
        staged.shared = true;
        Ok((PROGRAM.to_owned(), staged))
    });
}

fn data(cluster: &Arc<ClusterContext>, uploads: &Uploads, sending: &mut Uploading) {
    let gate = Arc::new(Semaphore::new(UPLOADS_AT_ONCE));
    for upload in uploads.data.clone() {
        let (cluster, gate) = (Arc::clone(cluster), Arc::clone(&gate));
        sending.spawn(async move {
            // Closed by nobody; without a permit it would merely be one more at once.
            let _permit = gate.acquire().await;
            let (staged, _sent) = upload::send_once(&cluster, &upload).await?;
            Ok((String::new(), staged))
        });
    }
}

/// Local files are sent to the staging directory, those of the cluster used where they are.
fn files(
    cluster: &Arc<ClusterContext>,
    content: &StagingContent<'_>,
    uploads: &Uploads,
    sending: &mut Uploading,
) {
    for (name, from, _) in uploads.files.clone() {
        let to = content.staging.join("files").join(&staged_name(&name, &from));
        let cluster = Arc::clone(cluster);
        sending.spawn(async move { Ok((name, upload::send(&cluster, &from, &to).await?)) });
    }
    let yarn = &content.spec.yarn;
    for file in yarn.files.iter().chain(&yarn.archives).cloned() {
        if file.from.as_local().is_none() {
            let cluster = Arc::clone(cluster);
            sending
                .spawn(async move { Ok((file.name, upload::stat(&cluster, &file.from).await?)) });
        }
    }
}

/// The name in the staging directory of a file that containers get as `name`. It ends as the local file does: a
/// NodeManager knows by the ending how to unpack an archive, and leaves one that it does not know packed.
fn staged_name(name: &str, from: &Path) -> String {
    let file = from.file_name().unwrap_or_default().to_string_lossy();
    match name == file {
        true => name.to_owned(),
        false => format!("{name}-{file}"),
    }
}

fn small(
    cluster: &Arc<ClusterContext>,
    content: &StagingContent<'_>,
    name: &str,
    bytes: Vec<u8>,
    sending: &mut Uploading,
) {
    let to = content.staging.join(name);
    let (cluster, name) = (Arc::clone(cluster), name.to_owned());
    sending.spawn(async move { Ok((name, upload::put(&cluster, bytes, &to).await?)) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_keeps_its_ending_in_staging() {
        let staged = |name, from| staged_name(name, Path::new(from));
        assert_eq!(staged("kit", "/home/u/tools.tar.gz"), "kit-tools.tar.gz");
        assert_eq!(staged("tools.zip", "/home/u/tools.zip"), "tools.zip");
    }
}
