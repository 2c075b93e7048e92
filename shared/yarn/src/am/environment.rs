//! What YARN tells an ApplicationMaster about itself, by environment variables (`ApplicationConstants`).

use std::path::PathBuf;

use heddle_hadoop::configuration::Environment;

use crate::ids::{ApplicationAttemptId, ContainerId, IdError};

/// The variables of the ApplicationMaster's container, and of any other container except for the last two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmEnvironment {
    /// `CONTAINER_ID`. The attempt is in it; there is no variable for the attempt.
    pub container: ContainerId,
    /// `NM_HOST`: this node as the cluster names it.
    pub node_host: String,
    /// `NM_HTTP_PORT`: the port of the NodeManager's web server.
    pub node_http_port: Option<u16>,
    /// `HADOOP_TOKEN_FILE_LOCATION`: the credentials file.
    pub token_file: PathBuf,
    /// `LOG_DIRS`: where files are kept and shown as logs.
    pub log_dirs: Vec<PathBuf>,
    /// `APPLICATION_WEB_PROXY_BASE`: the path under which YARN's proxy shows our pages.
    pub web_proxy_base: Option<String>,
    /// `APP_SUBMIT_TIME_ENV`, ms since 1970.
    pub submit_time_ms: Option<i64>,
}

/// This process was not started by a NodeManager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmEnvironmentError {
    /// A variable is missing.
    #[error("the variable {0} is not set: is this a container of YARN?")]
    Missing(&'static str),
    /// `CONTAINER_ID` is none.
    #[error("CONTAINER_ID is wrong")]
    ContainerId(#[from] IdError),
}

impl AmEnvironment {
    /// Reads the variables.
    ///
    /// # Errors
    /// A variable is missing or wrong.
    pub fn of(environment: &Environment) -> Result<Self, AmEnvironmentError> {
        let get = |name: &'static str| {
            environment.variable(name).ok_or(AmEnvironmentError::Missing(name))
        };
        let optional = |name: &'static str| environment.variable(name).map(str::to_owned);
        Ok(Self {
            container: get("CONTAINER_ID")?.parse()?,
            node_host: get("NM_HOST")?.to_owned(),
            node_http_port: optional("NM_HTTP_PORT").and_then(|port| port.parse().ok()),
            token_file: get("HADOOP_TOKEN_FILE_LOCATION")?.into(),
            log_dirs: environment
                .variable("LOG_DIRS")
                .unwrap_or("")
                .split(',')
                .filter(|dir| !dir.is_empty())
                .map(PathBuf::from)
                .collect(),
            web_proxy_base: optional("APPLICATION_WEB_PROXY_BASE"),
            submit_time_ms: optional("APP_SUBMIT_TIME_ENV").and_then(|time| time.parse().ok()),
        })
    }

    /// `host:port` of the NodeManager's web server; empty where the port is not known.
    pub fn node_http_address(&self) -> String {
        self.node_http_port.map_or_else(String::new, |port| format!("{}:{port}", self.node_host))
    }

    /// The attempt that this container runs, if it is an ApplicationMaster's.
    pub fn attempt(&self) -> ApplicationAttemptId {
        self.container.attempt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attempt_is_in_the_container_id() {
        let environment = Environment::empty()
            .with_variable("CONTAINER_ID", "container_e03_1700000000000_0005_02_000001")
            .with_variable("NM_HOST", "nm1")
            .with_variable("NM_HTTP_PORT", "8042")
            .with_variable("HADOOP_TOKEN_FILE_LOCATION", "/c/container_tokens")
            .with_variable("LOG_DIRS", "/a,/b");
        let read = AmEnvironment::of(&environment).unwrap();
        assert_eq!(
            (read.attempt().attempt, read.log_dirs.len(), read.submit_time_ms),
            (2, 2, None)
        );
        assert_eq!(read.node_http_address(), "nm1:8042");
        assert_eq!(
            AmEnvironment::of(&Environment::empty()),
            Err(AmEnvironmentError::Missing("CONTAINER_ID"))
        );
    }
}
