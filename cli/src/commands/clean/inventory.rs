//! What ended jobs of the user may have left below `~/.heddle`, and what the ResourceManager reports of their
//! applications. Reads only.

use std::collections::{BTreeMap, btree_map};
use std::path::Path;

use heddle_am::staging::{CONF_DIR, HOME_DIR, YARN_FILE};
use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::{Environment, FileSource, RmService};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::Location;
use heddle_storage::{Entry, EntryKind, Storage, StorageError, StorePath, read_small};
use heddle_yarn::client::ApplicationFilter;
use heddle_yarn::{ApplicationId, ApplicationReport, ClientError};

use super::decision::{
    Age, ApplicationLiveness, ClusterInventory, ReportFound, SharedFound, StagingFound,
};
use crate::cluster::{
    APPLICATION_TYPE, ClusterContext, client_failure, if_present, path_of, storage_failure,
};
use crate::failure::{CommandFailure, OrFail};
use crate::program_dir::RECORD_SUFFIX;
use crate::waiting::{self, HDFS};

/// Limit of a file that is read. The largest specs name some thousand files.
const BYTES_MAX: usize = 16 << 20;
/// Files of a staging directory that name uploaded data and the program.
const NAMING_FILES: [&str; 2] = ["spec.json", YARN_FILE];

/// A folder below `~/.heddle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeFolder {
    /// Files of applications that have not ended, and leftovers.
    Staging,
    /// Reports of applications.
    Reports,
    /// Uploaded data.
    Data,
    /// Programs.
    Bin,
}

impl HomeFolder {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Staging => "staging",
            Self::Reports => "reports",
            Self::Data => "data",
            Self::Bin => "bin",
        }
    }

    /// The word for its entries.
    pub fn entry_word(self) -> &'static str {
        match self {
            Self::Staging => "staging",
            Self::Reports => "report",
            Self::Data => "data",
            Self::Bin => "program",
        }
    }

    /// Where it is.
    ///
    /// # Errors
    /// The user's name is not valid in a path.
    pub fn place(self, cluster: &ClusterContext) -> Result<Location, CommandFailure> {
        Ok(cluster.home()?.join(HOME_DIR).join(self.name()))
    }

    /// Whether Heddle gives such names in the folder; other entries are never touched.
    fn is_ours(self, entry: &Entry) -> bool {
        let (name, kind) = (entry.name(), entry.kind);
        match self {
            Self::Staging | Self::Reports => {
                kind == EntryKind::Dir && name.parse::<ApplicationId>().is_ok()
            }
            Self::Data => kind == EntryKind::Dir && is_hash(final_name(name)),
            Self::Bin => {
                let hash = program_name(final_name(name)).strip_prefix("heddle-");
                kind == EntryKind::File && hash.is_some_and(is_hash)
            }
        }
    }
}

fn is_hash(text: &str) -> bool {
    text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `x` of `x`, and of the name `.x.<random>` that uploads and removals in progress have.
pub fn final_name(name: &str) -> &str {
    let hidden = name.strip_prefix('.').and_then(|name| name.rsplit_once('.'));
    match hidden {
        Some((name, random)) if is_hash(random) => name,
        _ => name,
    }
}

/// The program of a program or of its record.
fn program_name(name: &str) -> &str {
    name.strip_suffix(RECORD_SUFFIX).unwrap_or(name)
}

/// An entry below `~/.heddle`.
#[derive(Clone, Debug)]
pub struct HomeEntry {
    /// Its folder.
    pub folder: HomeFolder,
    /// Itself.
    pub entry: Entry,
    /// Its bytes with all that is in it; 0 of an entry that is too young to be removed.
    pub bytes: u64,
    /// The newest change of anything in it, ms since 1970.
    pub modified_ms: u64,
}

/// The entries, and the facts about them that the decision needs, in the same order.
pub struct HomeInventory {
    /// Staging directories.
    pub staging: Vec<HomeEntry>,
    /// Reports.
    pub reports: Vec<HomeEntry>,
    /// Uploaded data and programs.
    pub shared: Vec<HomeEntry>,
    /// The facts.
    pub facts: ClusterInventory,
}

/// Reads all of it. `age` spares the sizes of what is too young.
///
/// # Errors
/// File system or ResourceManager do not respond; then nothing may be removed.
pub async fn read(cluster: &ClusterContext, age: Age) -> Result<HomeInventory, CommandFailure> {
    // Before the applications: one that is submitted meanwhile is at least known.
    let staging = entries(cluster, HomeFolder::Staging, age).await?;
    let reports = entries(cluster, HomeFolder::Reports, age).await?;
    let mut shared = entries(cluster, HomeFolder::Data, age).await?;
    shared.extend(entries(cluster, HomeFolder::Bin, age).await?);

    let mut facts =
        ClusterInventory { liveness: applications(cluster).await?, ..Default::default() };
    for found in staging.iter().chain(&reports) {
        let Ok(id) = found.entry.name().parse() else { continue };
        if let btree_map::Entry::Vacant(unlisted) = facts.liveness.entry(id) {
            unlisted.insert(ask(cluster, id).await?);
        }
    }
    for found in &staging {
        let Ok(application) = found.entry.name().parse() else { continue };
        let liveness = facts.liveness.get(&application);
        let is_unknown = liveness == Some(&ApplicationLiveness::Unknown);
        let has_ended = matches!(liveness, Some(ApplicationLiveness::Ended(_)));
        facts.staging.push(StagingFound {
            application,
            modified_ms: found.modified_ms,
            of_this_cluster: is_unknown && is_of_cluster(cluster, &found.entry).await?,
            names: match has_ended {
                true => None,
                false => names(cluster, &found.entry).await?,
            },
        });
    }
    for found in &reports {
        let Ok(application) = found.entry.name().parse() else { continue };
        facts.reports.push(ReportFound { application, modified_ms: found.modified_ms });
    }
    facts.shared = shared
        .iter()
        .map(|found| SharedFound {
            // The record of a program stays with it.
            name: program_name(found.entry.name()).to_owned(),
            modified_ms: found.modified_ms,
        })
        .collect();
    Ok(HomeInventory { staging, reports, shared, facts })
}

/// The names of the staging directories.
///
/// # Errors
/// The file system does not respond.
pub async fn staged(cluster: &ClusterContext) -> Result<Vec<String>, CommandFailure> {
    let place = HomeFolder::Staging.place(cluster)?;
    let listed = list(cluster, &path_of(&place)?).await?;
    Ok(listed.iter().map(|entry| entry.name().to_owned()).collect())
}

async fn entries(
    cluster: &ClusterContext,
    folder: HomeFolder,
    age: Age,
) -> Result<Vec<HomeEntry>, CommandFailure> {
    let listed = list(cluster, &path_of(&folder.place(cluster)?)?).await?;
    let mut found = Vec::new();
    for entry in listed.into_iter().filter(|entry| folder.is_ours(entry)) {
        let mut bytes = entry.bytes;
        let mut modified_ms = entry.modified_ms;
        if entry.kind == EntryKind::Dir && age.is_reached(modified_ms) {
            let measured = waiting::on(HDFS, measure(&*cluster.storage()?, &entry.path)).await;
            let fact = unread(cluster, &entry.path);
            let measured = measured.or_fail_with(storage_failure, fact)?;
            bytes = measured.0;
            modified_ms = modified_ms.max(measured.1);
        }
        found.push(HomeEntry { folder, entry, bytes, modified_ms });
    }
    Ok(found)
}

/// Bytes of all files below a directory, and the newest change.
async fn measure(storage: &dyn Storage, dir: &StorePath) -> Result<(u64, u64), StorageError> {
    let (mut bytes, mut modified_ms) = (0u64, 0);
    let mut open = vec![dir.clone()];
    while let Some(dir) = open.pop() {
        let listed = match storage.list(&dir).await {
            Ok(listed) => listed,
            // Its application has ended at the moment.
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error),
        };
        for entry in listed {
            bytes = bytes.saturating_add(entry.bytes);
            modified_ms = modified_ms.max(entry.modified_ms);
            if entry.kind == EntryKind::Dir {
                open.push(entry.path);
            }
        }
    }
    Ok((bytes, modified_ms))
}

async fn list(cluster: &ClusterContext, dir: &StorePath) -> Result<Vec<Entry>, CommandFailure> {
    let listed = waiting::on(HDFS, cluster.storage()?.list(dir)).await;
    Ok(if_present(listed, unread(cluster, dir))?.unwrap_or_default())
}

fn unread(cluster: &ClusterContext, path: &StorePath) -> String {
    format!("cannot read {}", cluster.show(path))
}

/// The user's applications.
async fn applications(
    cluster: &ClusterContext,
) -> Result<BTreeMap<ApplicationId, ApplicationLiveness>, CommandFailure> {
    let filter = ApplicationFilter {
        kinds: vec![APPLICATION_TYPE.to_owned()],
        users: vec![cluster.user.short_name().to_owned()],
        ..ApplicationFilter::default()
    };
    let known = cluster.client.applications(&filter).await;
    let known = known.or_fail_with(client_failure, "cannot list applications")?;
    Ok(known.iter().map(|report| (report.id, liveness(report))).collect())
}

/// An application that the list lacks: of another type, user, or one that the ResourceManager does not have.
async fn ask(
    cluster: &ClusterContext,
    id: ApplicationId,
) -> Result<ApplicationLiveness, CommandFailure> {
    match cluster.client.report(id).await {
        Ok(report) => Ok(liveness(&report)),
        Err(ClientError::NotFound(_)) => Ok(ApplicationLiveness::Unknown),
        Err(error) => Err(client_failure(&format!("cannot ask for the state of {id}"), &error)),
    }
}

fn liveness(report: &ApplicationReport) -> ApplicationLiveness {
    match report.state.is_some_and(|state| state.is_final()) {
        true => ApplicationLiveness::Ended(u64::try_from(report.finish_time_ms).unwrap_or(0)),
        false => ApplicationLiveness::Live,
    }
}

/// The texts that name uploads; `None` while they are not complete.
async fn names(cluster: &ClusterContext, dir: &Entry) -> Result<Option<String>, CommandFailure> {
    let mut names = String::new();
    for file in NAMING_FILES {
        let Some(text) = read_text(cluster, dir, file).await? else {
            return Ok(None);
        };
        names.push_str(&text);
    }
    Ok(Some(names))
}

/// Whether the configuration that an application shipped names the ResourceManager that this command asks.
async fn is_of_cluster(cluster: &ClusterContext, dir: &Entry) -> Result<bool, CommandFailure> {
    let text = read_text(cluster, dir, &format!("{CONF_DIR}/core-site.xml")).await?;
    Ok(text.is_some_and(|text| names_rm(text, &cluster.resource_managers)))
}

fn names_rm(core_site: String, servers: &[heddle_hadoop::HostPort]) -> bool {
    struct OneFile(String);
    impl FileSource for OneFile {
        fn read(&self, _: &Path) -> std::io::Result<Option<Vec<u8>>> {
            Ok(Some(self.0.clone().into_bytes()))
        }
    }
    let mut shipped = Configuration::with_defaults(Environment::empty());
    let read = shipped.add_file_of(&OneFile(core_site), Path::new("core-site.xml"));
    read.is_ok() && RmService::Client.addresses(&shipped).is_ok_and(|found| found == servers)
}

async fn read_text(
    cluster: &ClusterContext,
    dir: &Entry,
    name: &str,
) -> Result<Option<String>, CommandFailure> {
    let path = StorePath::parse(&format!("{}/{name}", dir.path.as_str()))
        .or_fail(ExitCode::Input, cluster.show(&dir.path))?;
    let storage = cluster.storage()?;
    let read = waiting::on(HDFS, read_small(&*storage, &path, BYTES_MAX)).await;
    let bytes = if_present(read, unread(cluster, &path))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::HostPort;

    use super::*;

    fn entry(folder: HomeFolder, name: &str, kind: EntryKind) -> Entry {
        let path = format!("/user/alice/.heddle/{}/{name}", folder.name());
        Entry { path: StorePath::parse(&path).expect("absolute"), kind, bytes: 1, modified_ms: 0 }
    }

    #[test]
    fn only_names_of_heddle_are_candidates() {
        let (dir, file) = (EntryKind::Dir, EntryKind::File);
        let hash = "0123456789abcdef0123456789abcdef";
        let cases = [
            (HomeFolder::Staging, "application_1_0001", dir, true),
            (HomeFolder::Staging, "application_1_0001", file, false),
            (HomeFolder::Reports, "notes", dir, false),
            (HomeFolder::Data, hash, dir, true),
            (HomeFolder::Data, &format!(".{hash}.{hash}"), dir, true),
            (HomeFolder::Data, "mine", dir, false),
            (HomeFolder::Bin, &format!("heddle-{hash}"), file, true),
            (HomeFolder::Bin, &format!(".heddle-{hash}.{hash}"), file, true),
            (HomeFolder::Bin, &format!("heddle-{hash}.json"), file, true),
            (HomeFolder::Bin, &format!(".heddle-{hash}.json.{hash}"), file, true),
            (HomeFolder::Bin, "heddle-mine.json", file, false),
            (HomeFolder::Bin, &format!(".heddle-{hash}.old"), file, false),
            (HomeFolder::Bin, "heddle-mine", file, false),
        ];
        for (folder, name, kind, ours) in cases {
            assert_eq!(folder.is_ours(&entry(folder, name, kind)), ours, "{folder:?} {name}");
        }
    }

    #[test]
    fn shipped_configuration_names_its_resourcemanager() {
        let site = |host: &str| {
            format!(
                "<configuration><property><name>yarn.resourcemanager.hostname</name>\
                 <value>{host}</value></property></configuration>"
            )
        };
        let ours = [HostPort::new("rm1", 8032)];
        assert!(names_rm(site("rm1"), &ours));
        assert!(!names_rm(site("rm2"), &ours));
        assert!(!names_rm("<configuration>".to_owned(), &ours));
        assert!(!names_rm("<configuration/>".to_owned(), &ours));
    }
}
