//! The login to the file system of aggregated logs, so that a submission carries its token.
//!
//! NodeManagers write the logs of an application as its user, by the tokens of its containers. The directory may be on another file
//! system than the files of the job.

use heddle_hadoop::Configuration;
use heddle_protocol::job_spec::Location;
use heddle_storage::Reason;

use crate::cluster::{ClusterContext, path_of};
use crate::waiting::{self, HDFS};

const DIRECTORY: &str = "yarn.nodemanager.remote-app-log-dir";

/// Logs in to the file system of the directory. Returns a note if that fails: the job runs, and its logs stay on the nodes.
pub async fn log_in(cluster: &ClusterContext) -> Option<String> {
    let stated = directory(&cluster.configuration).filter(|_| cluster.secured)?;
    let failed = |cause: String| {
        format!("logs of the job may stay on the nodes: cannot use {DIRECTORY} = {stated}: {cause}")
    };
    let place = match cluster.whole(&stated) {
        Ok(place) => place,
        Err(failure) => return Some(failed(failure.fact)),
    };
    let (storage, path) = match (cluster.storage_of(&place), path_of(&place)) {
        (Ok(storage), Ok(path)) => (storage, path),
        (Err(failure), _) | (_, Err(failure)) => return Some(failed(failure.fact)),
    };
    match waiting::on(HDFS, storage.stat(&path)).await {
        // The directory is the cluster's: it may be closed to users, and is made by the first NodeManager.
        Ok(_) => None,
        Err(error) if error.is_not_found() || error.reason == Reason::Denied => None,
        Err(error) => Some(failed(error.to_string())),
    }
}

/// The directory, if logs are aggregated to HDFS.
fn directory(configuration: &Configuration) -> Option<Location> {
    let aggregates = configuration.boolean("yarn.log-aggregation-enable", false);
    if !aggregates.unwrap_or(false) {
        return None;
    }
    let stated = configuration.trimmed(DIRECTORY).ok().flatten()?;
    // Without a scheme it is on `fs.defaultFS`.
    let url = match stated.starts_with('/') {
        true => format!("hdfs://{stated}"),
        false => stated,
    };
    url.parse::<Location>().ok().filter(|location| location.as_local().is_none())
}

#[cfg(test)]
mod tests {
    use heddle_hadoop::configuration::Environment;

    use super::*;

    #[test]
    fn only_a_directory_on_hdfs_that_is_used_needs_a_login() {
        let directory = |enabled: &str, dir: &str| {
            let mut configuration = Configuration::empty(Environment::empty());
            configuration.set("yarn.log-aggregation-enable", enabled, "test");
            configuration.set(DIRECTORY, dir, "test");
            directory(&configuration).map(|location| location.to_string())
        };
        assert_eq!(directory("true", "hdfs://far/logs").as_deref(), Some("hdfs://far/logs"));
        assert_eq!(directory("true", "/tmp/logs").as_deref(), Some("hdfs:///tmp/logs"));
        assert_eq!(directory("false", "/tmp/logs"), None);
        assert_eq!(directory("true", "s3a://box/logs"), None);
    }
}
