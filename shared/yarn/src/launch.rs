//! The launch context of a container: command, environment, files, tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::proto;
use crate::shell::{self, QuoteError};

/// A launch context (`ContainerLaunchContext`).
///
/// ```
/// use heddle_yarn::LaunchContext;
/// # fn main() -> Result<(), heddle_yarn::shell::QuoteError> {
/// let context = LaunchContext::new(&["date", "+%s"])?.env("TZ", "UTC")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchContext {
    command: Vec<String>,
    environment: BTreeMap<String, String>,
    resources: BTreeMap<String, LocalResource>,
    acls: BTreeMap<Access, String>,
    tokens: Option<Tokens>,
    tokens_conf: Option<Bytes>,
    retry: Option<RetryContext>,
}

/// The bytes of a credentials file, which are secrets.
#[derive(Clone, PartialEq, Eq)]
struct Tokens(Bytes);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{} bytes]", self.0.len())
    }
}

/// The permission of an ACL (`ApplicationAccessType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// View reports, logs and pages.
    View,
    /// Kill, move and update the application.
    Modify,
}

impl LaunchContext {
    /// A context that runs `argv`, byte for byte, with its output in the files `stdout` and `stderr` of the log directory.
    /// A localised program is `./<link name>`.
    ///
    /// # Errors
    /// See [`shell::command`].
    pub fn new(argv: &[impl AsRef<str>]) -> Result<Self, QuoteError> {
        Ok(Self::raw(shell::command(argv)?))
    }

    /// A context that runs a shell command inside double quotes, after the NodeManager's replacements (`<LOG_DIR>`,
    /// `{{NAME}}`, …). Redirect its output, or it is lost.
    pub fn raw(command: impl Into<String>) -> Self {
        Self { command: vec![command.into()], ..Self::default() }
    }

    /// Adds a variable with exactly this value.
    ///
    /// It cannot change the variables that the NodeManager sets: CONTAINER_ID, NM_HOST, LOCAL_DIRS, HOME, PWD and others.
    ///
    /// # Errors
    /// bash rejects the name, or the value has a NUL.
    pub fn env(self, name: impl Into<String>, value: &str) -> Result<Self, QuoteError> {
        let name = name.into();
        let value = shell::environment_value(&name, value)?;
        self.env_raw(name, value)
    }

    /// Adds a variable whose value the shell expands inside double quotes, such as `$PWD/lib` or `{{JAVA_HOME}}/bin`.
    ///
    /// # Errors
    /// bash rejects the name.
    pub fn env_raw(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, QuoteError> {
        let name = name.into();
        shell::environment_name(&name)?;
        self.environment.insert(name, value.into());
        Ok(self)
    }

    /// Adds a file that appears as `link` in the working directory; `link` may have directories.
    pub fn file(mut self, link: impl Into<String>, resource: LocalResource) -> Self {
        self.resources.insert(link.into(), resource);
        self
    }

    /// Grants an access to users besides the owner: `"user1,user2 group1"`, or `"*"` for all. It is effective in the
    /// ApplicationMaster's context.
    pub fn acl(mut self, access: Access, users_and_groups: impl Into<String>) -> Self {
        self.acls.insert(access, users_and_groups.into());
        self
    }

    /// Sets the credentials file (`Credentials.writeTokenStorageToStream`), which the process finds by
    /// `HADOOP_TOKEN_FILE_LOCATION`. **Never add the ApplicationMaster's own token**: its holder can act as the
    /// ApplicationMaster.
    pub fn tokens(mut self, file: impl Into<Bytes>) -> Self {
        self.tokens = Some(Tokens(file.into()));
        self
    }

    /// Sets the configuration with which the ResourceManager renews the tokens, in place of its own
    /// ([`renewal_configuration`](heddle_hadoop::token::renewal_configuration)). It is needed for name services that the
    /// ResourceManager's configuration lacks, and only for the ApplicationMaster.
    pub fn tokens_conf(mut self, configuration: impl Into<Bytes>) -> Self {
        self.tokens_conf = Some(configuration.into());
        self
    }

    /// Lets the NodeManager restart the command. It does not report the restarts to the ApplicationMaster, so do not use
    /// this for stateful processes.
    pub fn retry(mut self, retry: RetryContext) -> Self {
        self.retry = Some(retry);
        self
    }
}

impl From<&LaunchContext> for proto::ContainerLaunchContextProto {
    fn from(context: &LaunchContext) -> Self {
        let pair = |(key, value): (&String, &String)| proto::StringStringMapProto {
            key: Some(key.clone()),
            value: Some(value.clone()),
        };
        Self {
            local_resources: context
                .resources
                .iter()
                .map(|(link, resource)| proto::StringLocalResourceMapProto {
                    key: Some(link.clone()),
                    value: Some(resource.into()),
                })
                .collect(),
            tokens: context.tokens.as_ref().map(|tokens| tokens.0.clone()),
            tokens_conf: context.tokens_conf.clone(),
            service_data: Vec::new(),
            environment: context.environment.iter().map(pair).collect(),
            command: context.command.clone(),
            application_ac_ls: context
                .acls
                .iter()
                .map(|(access, acl)| proto::ApplicationAclMapProto {
                    access_type: Some(match access {
                        Access::View => proto::ApplicationAccessTypeProto::AppaccessViewApp.into(),
                        Access::Modify => {
                            proto::ApplicationAccessTypeProto::AppaccessModifyApp.into()
                        }
                    }),
                    acl: Some(acl.clone()),
                })
                .collect(),
            container_retry_context: context.retry.as_ref().map(Into::into),
        }
    }
}

/// When a NodeManager restarts a command (`ContainerRetryContext`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryContext {
    /// Exit statuses that cause a restart; `None` for all but 0.
    pub statuses: Option<Vec<i32>>,
    /// Most restarts; -1 for no limit.
    pub retries_max: i32,
    /// Pause before each restart, ms.
    pub interval_ms: i32,
    /// Age above which failures do not count, ms; -1 for no limit.
    pub validity_ms: i64,
}

impl From<&RetryContext> for proto::ContainerRetryContextProto {
    fn from(retry: &RetryContext) -> Self {
        let policy = match retry.statuses {
            Some(_) => proto::ContainerRetryPolicyProto::RetryOnSpecificErrorCodes,
            None => proto::ContainerRetryPolicyProto::RetryOnAllErrors,
        };
        Self {
            retry_policy: Some(policy.into()),
            error_codes: retry.statuses.clone().unwrap_or_default(),
            max_retries: Some(retry.retries_max),
            retry_interval: Some(retry.interval_ms),
            failures_validity_interval: Some(retry.validity_ms),
        }
    }
}

/// A file that the NodeManager localises before the start (`LocalResource`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalResource {
    /// Its address.
    pub url: ResourceUrl,
    /// Bytes, for the choice of a disk; -1 if unknown.
    pub size: i64,
    /// Its modification time, ms since 1970, **exactly** as the file system reports it after the close.
    pub timestamp_ms: i64,
    /// How it is localised.
    pub kind: ResourceKind,
    /// Users and applications that share the copy.
    pub visibility: Visibility,
}

/// How a file is localised (`LocalResourceType`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourceKind {
    /// Linked with mode 0500, so that a program can run.
    File,
    /// Unpacked by its suffix (.zip, .tar.gz, .tgz, .tar, .jar); the link is the directory.
    Archive,
    /// A jar; entries that match the pattern are unpacked.
    Pattern(String),
}

/// Users and applications that share a copy (`LocalResourceVisibility`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// All users of the node. All users must have read access to the file and its directories.
    Public,
    /// All applications of the user, later ones included.
    Private,
    /// This application.
    Application,
}

/// A file's address (`URL`), `scheme://[host[:port]]/path`. Nothing in the path is escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceUrl {
    /// `hdfs`, `file`, ….
    pub scheme: String,
    /// Host or name service; empty for none.
    pub host: String,
    /// `None` for the scheme's default port, or for a name service.
    pub port: Option<u16>,
    /// Absolute path.
    pub path: String,
}

/// The text is not `scheme://host:port/path`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a URL must be scheme://host:port/path (got \"{0}\")")]
pub struct UrlError(String);

impl FromStr for ResourceUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let parse = || {
            let (scheme, rest) = text.split_once("://")?;
            let slash = rest.find('/')?;
            let (authority, path) = rest.split_at(slash);
            let (host, port) = match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port.parse().ok()?)),
                None => (authority, None),
            };
            let url = Self {
                scheme: scheme.to_owned(),
                host: host.to_owned(),
                port,
                path: path.to_owned(),
            };
            (!scheme.is_empty()).then_some(url)
        };
        parse().ok_or_else(|| UrlError(text.to_owned()))
    }
}

impl fmt::Display for ResourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.path)
    }
}

impl From<&LocalResource> for proto::LocalResourceProto {
    fn from(resource: &LocalResource) -> Self {
        let (kind, pattern) = match &resource.kind {
            ResourceKind::File => (proto::LocalResourceTypeProto::File, None),
            ResourceKind::Archive => (proto::LocalResourceTypeProto::Archive, None),
            ResourceKind::Pattern(pattern) => {
                (proto::LocalResourceTypeProto::Pattern, Some(pattern.clone()))
            }
        };
        let visibility = match resource.visibility {
            Visibility::Public => proto::LocalResourceVisibilityProto::Public,
            Visibility::Private => proto::LocalResourceVisibilityProto::Private,
            Visibility::Application => proto::LocalResourceVisibilityProto::Application,
        };
        Self {
            resource: Some((&resource.url).into()),
            size: Some(resource.size),
            timestamp: Some(resource.timestamp_ms),
            r#type: Some(kind.into()),
            visibility: Some(visibility.into()),
            pattern,
        }
    }
}

impl From<&ResourceUrl> for proto::UrlProto {
    fn from(url: &ResourceUrl) -> Self {
        Self {
            scheme: Some(url.scheme.clone()),
            host: Some(url.host.clone()).filter(|host| !host.is_empty()),
            // The default of the field is 0, which Java would write into the address; -1 means none.
            port: Some(url.port.map_or(-1, i32::from)),
            file: Some(url.path.clone()),
            user_info: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_port_has_port_minus_one() {
        for (text, host, port) in [
            ("hdfs://ns/a/b c", Some("ns"), -1),
            ("hdfs://nn:8020/a", Some("nn"), 8020),
            ("file:///a", None, -1),
        ] {
            let url: ResourceUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
            let message = proto::UrlProto::from(&url);
            assert_eq!((message.host.as_deref(), message.port), (host, Some(port)));
        }
        for text in ["/a", "hdfs://nn", "://nn/a", "hdfs://nn:x/a"] {
            assert!(text.parse::<ResourceUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_launch_context_shows_no_secrets() {
        let context = LaunchContext::raw("true").tokens(&b"HDTSsecret"[..]);
        assert!(!format!("{context:?}").contains("secret"));
    }

    #[test]
    fn values_are_quoted_once_and_raw_ones_not_at_all() {
        let context =
            LaunchContext::new(&["a"]).unwrap().env("A", "$x").unwrap().env_raw("B", "$x").unwrap();
        let message = proto::ContainerLaunchContextProto::from(&context);
        let values: Vec<_> =
            message.environment.iter().map(|pair| pair.value().to_owned()).collect();
        assert_eq!(values, ["\\$x", "$x"]);
    }
}
