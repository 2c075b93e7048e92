//! The environment variables that YARN sets for an ApplicationMaster (`ApplicationConstants`).

use std::path::PathBuf;

use heddle_hadoop::configuration::Environment;

use crate::ids::{ApplicationAttemptId, ContainerId, IdError};

/// The variables of the ApplicationMaster's container. Other containers have all but the last two.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AmEnvironment {
    /// `CONTAINER_ID`. It contains the attempt, which has no variable of its own.
    pub container: ContainerId,
    /// `NM_HOST`: this node as the cluster names it.
    pub node_host: String,
    /// `NM_HTTP_PORT`: the port of the NodeManager's web server.
    pub node_http_port: Option<u16>,
    /// `HADOOP_TOKEN_FILE_LOCATION`: the credentials file.
    pub token_file: PathBuf,
    /// `LOG_DIRS`: directories whose files YARN serves as logs.
    pub log_dirs: Vec<PathBuf>,
    /// `APPLICATION_WEB_PROXY_BASE`: the path of the application's pages in YARN's proxy.
    pub web_proxy_base: Option<String>,
    /// `APP_SUBMIT_TIME_ENV`, ms since 1970.
    pub submit_time_ms: Option<i64>,
}

/// The process was not started by a NodeManager.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmEnvironmentError {
    /// A variable is missing.
    #[error("the variable {0} is not set; run this process in a container of YARN")]
    Missing(&'static str),
    /// `CONTAINER_ID` does not parse.
    #[error("cannot parse CONTAINER_ID")]
    ContainerId(#[from] IdError),
}

impl AmEnvironment {
    /// Reads the variables.
    ///
    /// # Errors
    /// A variable is missing or does not parse.
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

    /// `host:port` of the NodeManager's web server; empty if the port is unknown.
    pub fn node_http_address(&self) -> String {
        self.node_http_port.map_or_else(String::new, |port| format!("{}:{port}", self.node_host))
    }

    /// The attempt of this container.
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
