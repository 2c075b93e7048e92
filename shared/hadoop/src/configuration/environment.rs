//! Environment variables and Java system properties of a process.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Properties that the program has set for its process, see [`Environment::set_process_properties`].
static PROCESS_PROPERTIES: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Values of the program's command line, see [`Environment::set_process_values`].
static PROCESS_VALUES: OnceLock<Vec<StatedValue>> = OnceLock::new();

/// A value that overrides all files, as `-D key=value` does for Hadoop's own commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedValue {
    /// The key.
    pub key: String,
    /// The value, before the expansion of variables.
    pub value: String,
    /// Where it was stated, for messages.
    pub from: String,
}

/// What a configuration takes from its process: environment variables, and system properties as in Java.
///
/// It is a value and not a global, so tests and services can set their own.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    properties: BTreeMap<String, String>,
    values: Vec<StatedValue>,
}

impl Environment {
    /// No variables, no properties.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The environment of this process. Variables that are not UTF-8 are left out.
    ///
    /// Values in configuration files use a few of Java's system properties: `user.name` (the system's user, not
    /// `HADOOP_USER_NAME`), `user.home`, `user.dir`, `java.io.tmpdir`. Only these are set.
    pub fn of_process() -> Self {
        let variables: BTreeMap<_, _> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let mut properties = BTreeMap::from([("java.io.tmpdir".to_owned(), "/tmp".to_owned())]);
        if let Some(account) = account_of_process() {
            properties.insert("user.name".to_owned(), account.name);
            properties.insert("user.home".to_owned(), account.home);
        }
        if let Some(directory) =
            std::env::current_dir().ok().and_then(|path| path.into_os_string().into_string().ok())
        {
            properties.insert("user.dir".to_owned(), directory);
        }
        properties.extend(
            PROCESS_PROPERTIES.get().into_iter().flatten().map(|(n, v)| (n.clone(), v.clone())),
        );
        let values = PROCESS_VALUES.get().cloned().unwrap_or_default();
        Self { variables, properties, values }
    }

    /// Sets values that override the files of each [`Configuration`](super::Configuration) of this process. Only the first
    /// call has an effect.
    pub fn set_process_values(values: Vec<StatedValue>) {
        let _set_before = PROCESS_VALUES.set(values);
    }

    /// Values that override the files, the later winning.
    pub fn values(&self) -> &[StatedValue] {
        &self.values
    }

    /// Adds a value that overrides the files.
    #[must_use]
    pub fn with_value(mut self, value: StatedValue) -> Self {
        self.values.push(value);
        self
    }

    /// Sets properties for all later [`Environment::of_process`], as `-Dname=value` does for a Java program. Only the
    /// first call has an effect.
    pub fn set_process_properties(properties: BTreeMap<String, String>) {
        let _set_before = PROCESS_PROPERTIES.set(properties);
    }

    /// A property, else the environment variable, of this name; not an empty one.
    pub fn stated(&self, name: &str) -> Option<&str> {
        let value = self.property(name).or_else(|| self.variable(name));
        value.filter(|value| !value.is_empty())
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn with_variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Sets a system property, as `-Dname=value` does for Java.
    #[must_use]
    pub fn with_property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(name.into(), value.into());
        self
    }

    /// An environment variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// A system property.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties.get(name).map(String::as_str)
    }
}

/// The account of this process.
struct Account {
    name: String,
    home: String,
}

/// The account of the real user id, as Java's `user.name`. `None` when the system has no entry for it.
fn account_of_process() -> Option<Account> {
    let account = nix::unistd::User::from_uid(nix::unistd::getuid()).ok()??;
    Some(Account { name: account.name, home: account.dir.to_string_lossy().into_owned() })
}
