//! Who the caller is.

/// The user that a server is told about on connections without other proof.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    /// On whose behalf calls are made.
    pub effective: String,
    /// Who makes them, when that is another (`HADOOP_PROXY_USER`): a proxy user in Hadoop's sense.
    pub real: Option<String>,
}

impl User {
    /// A user who acts for itself.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            effective: name.into(),
            real: None,
        }
    }
}
