//! The staging directory of an application: all files for its ApplicationMaster and containers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use heddle_am::carried_files::CARRIED_BYTES_MAX;
use heddle_am::run_dir::{RUN_FILE, SPEC_FILE};
use heddle_am::staging::{
    CONF_DIR, HOME_DIR, KEYTAB, PROGRAM, STAGED_SECRET, StagedFile, StagedVisibility, YARN_FILE,
    YarnFile,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::Location;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use super::checked::CheckedJob;
use super::shipped;
use super::upload::{self, ProgramSource, Uploads};
use crate::cluster::ClusterContext;
use crate::failure::{CommandFailure, OrFail};

/// Data files that are sent in parallel. Each mostly waits for acknowledgements and buffers one or two MiB.
const UPLOADS_AT_ONCE: usize = 16;

/// The staged files.
pub struct StagedFiles {
    /// Files that the NodeManager fetches for the ApplicationMaster's container, by their names there.
    pub am: BTreeMap<String, StagedFile>,
    /// Files that travel in its credentials instead. An attempt then needs no token of the user to start.
    pub carried: CarriedFiles,
}

/// Contents by the names of files in the ApplicationMaster's work directory.
pub type CarriedFiles = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// Uploads all files in parallel.
///
/// # Errors
/// The file that cannot be written. The staging directory may contain a part; the caller removes it.
pub async fn stage(
    cluster: &Arc<ClusterContext>,
    job: &CheckedJob,
) -> Result<StagedFiles, CommandFailure> {
    make_dirs(cluster, job).await?;
    let uploads = &job.plan.uploads;
    let kept = cluster.reports(cluster.user.short_name(), job.application)?;
    let mut sending: Uploading = JoinSet::new();
    program(uploads, &mut sending);
    data(cluster, uploads, &mut sending);
    files(cluster, job, &mut sending);
    let conf = (
        format!("{CONF_DIR}/core-site.xml"),
        shipped::core_site(&cluster.configuration).into_bytes(),
    );
    let run = encoded(RUN_FILE, serde_json::to_vec_pretty(&job.run))?;
    let spec = job.spec.to_json();
    let of_am = [(RUN_FILE.to_owned(), run), (SPEC_FILE.to_owned(), spec.clone())];
    for (name, bytes) in of_am.iter().chain([&conf]) {
        small(cluster, job, name, bytes.clone(), &mut sending);
    }
    let secret = job.secret.to_hex().as_bytes().to_vec();
    small(cluster, job, STAGED_SECRET, secret, &mut sending);
    // The request is kept with the report, so that a client that attaches later prints the same end.
    let to = kept.join(SPEC_FILE);
    let of_report = Arc::clone(cluster);
    sending.spawn(async move { Ok((String::new(), upload::put(&of_report, spec, &to).await?)) });

    let mut all = collect(sending).await?;
    // The secret is in the container's credentials.
    all.remove(STAGED_SECRET);
    for file in &job.spec.yarn.archives {
        if let Some(staged) = all.get_mut(&file.name) {
            staged.archive = true;
        }
    }
    let for_am = |name: &str| name == RUN_FILE || name == SPEC_FILE;
    let resources = all.iter().filter(|(name, _)| !for_am(name));
    let resources = resources.map(|(name, file)| (name.clone(), file.clone())).collect();
    let file = yarn_file(cluster, job, kept.url(), resources);
    let file = encoded(YARN_FILE, serde_json::to_vec_pretty(&file))?;
    let place = job.staging.join(YARN_FILE);
    all.insert(YARN_FILE.to_owned(), upload::put(cluster, file.clone(), &place).await?);
    let of_am = of_am.into_iter().chain([conf, (YARN_FILE.to_owned(), file)]);
    if let Some(carried) = carried(job, of_am) {
        all.retain(|name, _| name == PROGRAM);
        return Ok(StagedFiles { am: all, carried });
    }
    if let Some(keytab) = &job.keytab {
        let place = job.staging.join(KEYTAB);
        // After the list of what all containers get.
        let staged = upload::put(cluster, keytab.content.to_vec(), &place).await?;
        all.insert(KEYTAB.to_owned(), staged);
    }
    Ok(StagedFiles { am: all, carried: CarriedFiles::new() })
}

/// The files that travel in the credentials of the ApplicationMaster; `None` unless a new attempt could then start
/// without a token of the user, and log in by itself.
fn carried(
    job: &CheckedJob,
    files: impl Iterator<Item = (String, Vec<u8>)>,
) -> Option<CarriedFiles> {
    let keytab = job.keytab.as_ref().filter(|_| job.plan.uploads.has_public_program())?;
    let mut all: CarriedFiles = files.map(|(name, bytes)| (name, Zeroizing::new(bytes))).collect();
    all.insert(KEYTAB.to_owned(), keytab.content.clone());
    let bytes: usize = all.values().map(|content| content.len()).sum();
    (bytes <= CARRIED_BYTES_MAX).then_some(all)
}

fn yarn_file(
    cluster: &ClusterContext,
    job: &CheckedJob,
    reports: String,
    resources: BTreeMap<String, StagedFile>,
) -> YarnFile {
    let yarn = &job.spec.yarn;
    YarnFile {
        application: job.application.to_string(),
        user: cluster.user.short_name().to_owned(),
        staging: job.staging.url(),
        reports,
        max_attempts: yarn.max_attempts,
        resources,
        env: yarn.env.clone(),
        keytab_principal: job.keytab.as_ref().map(|keytab| keytab.principal.clone()),
    }
}

/// Creates the directories of the application and those that all jobs of the user share.
async fn make_dirs(cluster: &ClusterContext, job: &CheckedJob) -> Result<(), CommandFailure> {
    let home = cluster.home()?;
    let uploads = &job.plan.uploads;
    let id = job.application.to_string();
    let own = [HOME_DIR, "staging", &id];
    let reports = [HOME_DIR, "reports", &id];
    let data_name = uploads.data.first().map(|first| folder_of(&first.to));
    let data_dir: Vec<&str> = match &data_name {
        Some(name) => vec![HOME_DIR, "data", name],
        None => vec![HOME_DIR],
    };
    let own_programs: &[&str] = match uploads.installed_program() {
        Some(_) => &[HOME_DIR],
        None => &[HOME_DIR, "bin"],
    };
    tokio::try_join!(
        cluster.make_dirs(&home, own_programs),
        cluster.make_dirs(&home, &own),
        cluster.make_dirs(&home, &reports),
        cluster.make_dirs(&home, &data_dir),
    )?;
    tokio::try_join!(
        cluster.make_dirs(&job.staging, &[CONF_DIR]),
        cluster.make_dirs(&job.staging, &["files"]),
        cluster.make_dirs(&job.staging, &["am"]),
    )?;
    Ok(())
}

fn encoded(
    what: &str,
    bytes: Result<Vec<u8>, serde_json::Error>,
) -> Result<Vec<u8>, CommandFailure> {
    bytes.or_fail(ExitCode::Internal, format_args!("cannot encode {what}"))
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
        let (name, file) = sent.or_fail(ExitCode::Internal, "an upload task failed")??;
        // Local data has no name in work directories.
        if !name.is_empty() {
            all.insert(name, file);
        }
    }
    Ok(all)
}

fn program(uploads: &Uploads, sending: &mut Uploading) {
    let (program, source) = (uploads.program.clone(), uploads.source.clone());
    sending.spawn(async move {
        let staged = match source {
            ProgramSource::Installed(staged) => staged,
            ProgramSource::Own(dir) => {
                let (entry, _sent) = dir.store(&program).await?;
                dir.staged(&program, &entry, StagedVisibility::Private)
            }
        };
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
fn files(cluster: &Arc<ClusterContext>, job: &CheckedJob, sending: &mut Uploading) {
    for (name, from, _) in job.plan.uploads.files.clone() {
        let to = job.staging.join("files").join(&staged_name(&name, &from));
        let cluster = Arc::clone(cluster);
        sending.spawn(async move { Ok((name, upload::send(&cluster, &from, &to).await?)) });
    }
    let yarn = &job.spec.yarn;
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
    job: &CheckedJob,
    name: &str,
    bytes: Vec<u8>,
    sending: &mut Uploading,
) {
    let to = job.staging.join(name);
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
