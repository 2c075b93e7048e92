//! The staging directory of an application: all files for its ApplicationMaster and containers.

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
use crate::cluster::{ClusterContext, SECRET_FILE};
use crate::failure::CommandFailure;

/// Data files that are sent in parallel. Each mostly waits for acknowledgements and buffers one or two MiB.
const UPLOADS_AT_ONCE: usize = 16;

/// The staged files.
pub struct StagedFiles {
    /// Files of the ApplicationMaster's container, by their names there.
    pub am: BTreeMap<String, StagedFile>,
}

/// The content of the staging directory besides uploads.
pub struct StagingContent<'a> {
    /// The application.
    pub application: ApplicationId,
    /// The staging directory.
    pub staging: &'a Location,
    /// Run and options.
    pub run: &'a RunFile,
    /// The job, with all its locations on the cluster.
    pub spec: &'a JobSpec,
    /// Its secret.
    pub secret: &'a Secret,
}

/// Uploads all files in parallel.
///
/// # Errors
/// The file that cannot be written. The staging directory may contain a part; the caller removes it.
pub async fn stage(
    cluster: &Arc<ClusterContext>,
    content: &StagingContent<'_>,
    uploads: &Uploads,
) -> Result<StagedFiles, CommandFailure> {
    make_dirs(cluster, content, uploads).await?;
    let kept = cluster.reports(cluster.user.short_name(), content.application)?;
    let mut sending: Uploading = JoinSet::new();
    program(cluster, uploads, &mut sending);
    data(cluster, uploads, &mut sending);
    files(cluster, content, uploads, &mut sending);
    let conf = shipped::core_site(&cluster.configuration).into_bytes();
    small(cluster, content, &format!("{CONF_DIR}/core-site.xml"), conf, &mut sending);
    let run = encoded("run.json", serde_json::to_vec_pretty(content.run))?;
    small(cluster, content, "run.json", run, &mut sending);
    small(cluster, content, "spec.json", content.spec.to_json(), &mut sending);
    let secret = content.secret.to_hex().into_bytes();
    small(cluster, content, SECRET_FILE, secret, &mut sending);
    // The request is kept with the report, so that a client that attaches later prints the same end.
    let (to, spec) = (kept.join("spec.json"), content.spec.to_json());
    let of_report = Arc::clone(cluster);
    sending.spawn(async move { Ok((String::new(), upload::put(&of_report, spec, &to).await?)) });

    let mut all = collect(sending).await?;
    // The secret is in the container's credentials.
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
        application: content.application.to_string(),
        user: cluster.user.short_name().to_owned(),
        staging: content.staging.url(),
        reports: kept.url(),
        max_attempts: yarn.max_attempts,
        resources: resources.map(|(name, file)| (name.clone(), file.clone())).collect(),
        env: yarn.env.clone(),
    };
    let file = encoded(YARN_FILE, serde_json::to_vec_pretty(&file))?;
    let place = content.staging.join(YARN_FILE);
    all.insert(YARN_FILE.to_owned(), upload::put(cluster, file, &place).await?);
    Ok(StagedFiles { am: all })
}

/// Creates the directories of the application and those that all jobs of the user share.
async fn make_dirs(
    cluster: &ClusterContext,
    content: &StagingContent<'_>,
    uploads: &Uploads,
) -> Result<(), CommandFailure> {
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
    tokio::try_join!(
        cluster.make_dirs(content.staging, &[CONF_DIR]),
        cluster.make_dirs(content.staging, &["files"]),
        cluster.make_dirs(content.staging, &["am"]),
    )?;
    Ok(())
}

fn encoded(
    what: &str,
    bytes: Result<Vec<u8>, serde_json::Error>,
) -> Result<Vec<u8>, CommandFailure> {
    bytes.map_err(|error| {
        CommandFailure::caused(ExitCode::Internal, format!("cannot encode {what}"), &error)
    })
}

/// The name of the folder that contains a location.
fn folder_of(place: &Location) -> String {
    let path = place.path();
    path.rsplit('/').nth(1).unwrap_or_default().to_owned()
}

type Uploading = JoinSet<Result<(String, StagedFile), CommandFailure>>;

async fn collect(mut sending: Uploading) -> Result<BTreeMap<String, StagedFile>, CommandFailure> {
    let mut all = BTreeMap::new();
    while let Some(sent) = sending.join_next().await {
        let (name, file) = sent.map_err(|error| {
            CommandFailure::caused(ExitCode::Internal, "an upload task failed", &error)
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
            // The semaphore is never closed; without a permit there would be one more upload in parallel.
            let _permit = gate.acquire().await;
            let (staged, _sent) = upload::send_once(&cluster, &upload).await?;
            Ok((String::new(), staged))
        });
    }
}

/// Local files are sent to the staging directory; files of the cluster are used in place.
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

/// The name in the staging directory of a file that containers get as `name`. It has the extension of the local file: a
/// NodeManager chooses by the extension how to unpack an archive, and leaves an unknown one packed.
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
    fn archive_keeps_its_extension_in_staging() {
        let staged = |name, from| staged_name(name, Path::new(from));
        assert_eq!(staged("kit", "/home/u/tools.tar.gz"), "kit-tools.tar.gz");
        assert_eq!(staged("tools.zip", "/home/u/tools.zip"), "tools.zip");
    }
}
