//! Configuration as Hadoop reads it, with the origin of every value.
//!
//! [`Configuration::load`] finds the files by the environment and reads them over the built-in defaults in Hadoop's
//! order: core, HDFS, YARN, each with the defaults before the site's file. Values are stored as written and expanded on
//! access. [`Configuration::explain`] returns the origin of a value and the values that it replaced.
//!
//! Golden files from Hadoop's own class test this module (`tests/golden/configuration`).
//! It does not fetch includes over the network, read DTDs, or reload changed files.

mod defaults;
mod deprecated;
mod environment;
mod expand;
mod locate;
mod mount_table;
mod origin;
mod servers;
mod values;
mod xml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use environment::{Environment, StatedValue};
pub use expand::ExpandError;
pub use locate::{ConfigDirectory, FileSystem, config_directories};
pub use mount_table::{DefaultFileSystem, HdfsPath, MountError, MountTable, check_hdfs_class};
pub use origin::{Explanation, Note, PropertyError, PropertyOrigin, PropertySetting};
pub use servers::{NameService, RmService, ServersError};
pub use values::{TimeUnit, ValueProblem};
pub use xml::{DEPTH_MAX, FILE_BYTES_MAX, FileSource, INCLUDES_MAX, XmlError, XmlProblem};

use crate::address::HostPort;
use deprecated::present_name;

/// Keys and values with their origins.
#[derive(Clone, Debug)]
pub struct Configuration {
    environment: Environment,
    properties: BTreeMap<String, Property>,
    notes: Vec<Note>,
}

#[derive(Clone, Debug, Default)]
struct Property {
    /// `None` when a file only made the key final.
    setting: Option<PropertySetting>,
    /// Values that `setting` replaced, the latest first.
    hidden: Vec<PropertySetting>,
    /// Where it was made final.
    sealed: Option<PropertyOrigin>,
    /// Values that were rejected because the key was final.
    refused: Vec<PropertySetting>,
}

impl Configuration {
    /// Reads the files that the environment names, over the built-in defaults; the environment's values override them. A
    /// missing file is a [`Note`] and not an error, so a configuration may consist of defaults only.
    ///
    /// # Errors
    /// A file exists and cannot be read or parsed.
    pub fn load(environment: Environment) -> Result<Self, XmlError> {
        let mut configuration = Self::empty(environment);
        for (defaults, name, site, is_yarn) in [
            (defaults::CORE, "core-default.xml", "core-site.xml", false),
            (defaults::HDFS, "hdfs-default.xml", "hdfs-site.xml", false),
            (defaults::YARN, "yarn-default.xml", "yarn-site.xml", true),
            (&[], "", "resource-types.xml", true),
        ] {
            configuration.add_defaults(defaults, name);
            let looked_in = config_directories(&configuration.environment, is_yarn);
            configuration.add_first(site, looked_in)?;
        }
        for StatedValue { key, value, from } in configuration.environment.values().to_vec() {
            configuration.set(&key, value, &from);
        }
        Ok(configuration)
    }

    /// A configuration of the built-in defaults only.
    pub fn with_defaults(environment: Environment) -> Self {
        let mut configuration = Self::empty(environment);
        configuration.add_defaults(defaults::CORE, "core-default.xml");
        configuration.add_defaults(defaults::HDFS, "hdfs-default.xml");
        configuration.add_defaults(defaults::YARN, "yarn-default.xml");
        configuration
    }

    /// A configuration without any value, defaults included.
    pub fn empty(environment: Environment) -> Self {
        Self { environment, properties: BTreeMap::new(), notes: Vec::new() }
    }

    /// Reads one more file over the present values; `Ok(false)` when it does not exist.
    ///
    /// # Errors
    /// The file cannot be read or parsed. The configuration is then unchanged.
    pub fn add_file(&mut self, path: &Path) -> Result<bool, XmlError> {
        self.add_file_of(&FileSystem, path)
    }

    /// [`Configuration::add_file`] with another source of files.
    ///
    /// # Errors
    /// The file cannot be read or parsed. The configuration is then unchanged.
    pub fn add_file_of(&mut self, files: &dyn FileSource, path: &Path) -> Result<bool, XmlError> {
        let Some(entries) = xml::read_file(files, path)? else {
            return Ok(false);
        };
        for entry in entries {
            let origin = PropertyOrigin::File { path: entry.file, line: entry.line };
            self.put(&entry.name, entry.value, entry.is_final, origin);
        }
        self.notes.push(Note::Read(path.to_owned()));
        Ok(true)
    }

    /// Sets a value that overrides all files, final values too. `setter` is shown as its origin.
    pub fn set(&mut self, key: &str, value: impl Into<String>, setter: &str) {
        let property = self.properties.entry(present_name(java_key(key)).to_owned()).or_default();
        property.replace(PropertySetting {
            raw: value.into(),
            origin: PropertyOrigin::Override(setter.into()),
        });
    }

    /// The expanded value; `Ok(None)` when the key has none.
    ///
    /// # Errors
    /// The variables of the value form a cycle.
    pub fn get(&self, key: &str) -> Result<Option<String>, PropertyError> {
        self.with(key, |text| Ok(text.to_owned()))
    }

    /// The trimmed value; `Ok(None)` when the key has no value or only white space.
    ///
    /// # Errors
    /// The variables of the value form a cycle.
    pub fn trimmed(&self, key: &str) -> Result<Option<String>, PropertyError> {
        let value = self.with(key, |text| Ok(xml::java_trim(text).to_owned()))?;
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// `true` or `false`; the default for other text, as in Hadoop.
    ///
    /// # Errors
    /// The variables of the value form a cycle.
    pub fn boolean(&self, key: &str, default: bool) -> Result<bool, PropertyError> {
        Ok(self.with(key, |text| Ok(values::boolean(text)))?.flatten().unwrap_or(default))
    }

    /// An integer, decimal or `0x…`.
    ///
    /// # Errors
    /// The value is not an integer of 64 bits.
    pub fn integer(&self, key: &str, default: i64) -> Result<i64, PropertyError> {
        Ok(self.with(key, values::integer)?.unwrap_or(default))
    }

    /// A decimal number.
    ///
    /// # Errors
    /// The value is not a number.
    pub fn decimal(&self, key: &str, default: f64) -> Result<f64, PropertyError> {
        let parse = |text: &str| xml::java_trim(text).parse().map_err(|_| ValueProblem::Decimal);
        Ok(self.with(key, parse)?.unwrap_or(default))
    }

    /// A duration; `unit` applies when the value has none.
    ///
    /// # Errors
    /// The value is not a time, or is negative.
    pub fn duration(
        &self,
        key: &str,
        unit: TimeUnit,
        default: Duration,
    ) -> Result<Duration, PropertyError> {
        Ok(self.with(key, |text| values::duration(text, unit))?.unwrap_or(default))
    }

    /// A size in bytes; `64m` is 64 MiB.
    ///
    /// # Errors
    /// The value is not a size of at most 63 bits.
    pub fn size(&self, key: &str, default: i64) -> Result<i64, PropertyError> {
        Ok(self.with(key, values::size)?.unwrap_or(default))
    }

    /// The trimmed, non-empty elements of a comma-separated list.
    ///
    /// # Errors
    /// The variables of the value form a cycle.
    pub fn list(&self, key: &str) -> Result<Vec<String>, PropertyError> {
        Ok(self.with(key, |text| Ok(values::list(text)))?.unwrap_or_default())
    }

    /// An address; `Ok(None)` when the key has no value.
    ///
    /// # Errors
    /// The value is neither `host:port` nor, with a default port, a host.
    pub fn address(
        &self,
        key: &str,
        default_port: Option<u16>,
    ) -> Result<Option<HostPort>, PropertyError> {
        let parse = |text: &str| match xml::java_trim(text) {
            "" => Ok(None),
            text => {
                HostPort::parse(text, default_port).map(Some).map_err(|_| ValueProblem::Address)
            }
        };
        Ok(self.with(key, parse)?.flatten())
    }

    /// The value of a key with its history; `None` when it has no value.
    pub fn explain(&self, key: &str) -> Option<Explanation> {
        let key = present_name(java_key(key));
        let property = self.properties.get(key)?;
        let setting = property.setting.clone()?;
        let value = self.get(key).map(Option::unwrap_or_default);
        Some(Explanation {
            key: key.to_owned(),
            value,
            setting,
            hidden: property.hidden.clone(),
            sealed: property.sealed.clone(),
            refused: property.refused.clone(),
        })
    }

    /// Whether a file or the program sets the key. If not, its value is the built-in default of one Hadoop release, which
    /// may differ from the server's.
    pub fn is_stated(&self, key: &str) -> bool {
        let property = self.properties.get(present_name(java_key(key)));
        property
            .and_then(|property| property.setting.as_ref())
            .is_some_and(|setting| !matches!(setting.origin, PropertyOrigin::Default(_)))
    }

    /// All keys that have a value, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.properties
            .iter()
            .filter(|(_, property)| property.setting.is_some())
            .map(|(key, _)| key.as_str())
    }

    /// The files that were read, not found, or ignored because another one of the same name is used.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The source of variables.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// An error about the value of `key`, for parsers outside this module.
    pub fn value_error(&self, key: &str, problem: ValueProblem) -> PropertyError {
        let key = present_name(java_key(key));
        let setting = self.properties.get(key).and_then(|property| property.setting.as_ref());
        PropertyError {
            key: key.to_owned(),
            value: setting.map(|setting| setting.raw.clone()).unwrap_or_default(),
            origin: setting.map_or_else(
                || PropertyOrigin::Override("not set".into()),
                |setting| setting.origin.clone(),
            ),
            problem,
        }
    }

    /// Expands and parses the value.
    fn with<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, ValueProblem>,
    ) -> Result<Option<T>, PropertyError> {
        let key = present_name(java_key(key));
        let Some(setting) = self.properties.get(key).and_then(|property| property.setting.as_ref())
        else {
            return Ok(None);
        };
        let error = |value: &str, problem| PropertyError {
            key: key.to_owned(),
            value: value.to_owned(),
            origin: setting.origin.clone(),
            problem,
        };
        let value = expand::expand(&setting.raw, &|name| self.variable(name))
            .map_err(|cause| error(&setting.raw, ValueProblem::Expand(cause)))?;
        read(&value).map(Some).map_err(|problem| error(&value, problem))
    }

    /// A variable's value: an environment variable or system property, else the unexpanded value of another key.
    fn variable(&self, name: &str) -> Option<String> {
        let environment = match name.strip_prefix("env.").filter(|rest| !rest.is_empty()) {
            Some(rest) => expand::environment(rest, &|name| {
                self.environment.variable(name).map(str::to_owned)
            }),
            None => self.environment.property(name).map(str::to_owned),
        };
        environment.or_else(|| {
            let property = self.properties.get(present_name(java_key(name)))?;
            Some(property.setting.as_ref()?.raw.clone())
        })
    }

    fn add_defaults(&mut self, table: &[(&str, &str)], file: &'static str) {
        for (key, value) in table {
            self.put(key, Some((*value).to_owned()), false, PropertyOrigin::Default(file));
        }
    }

    /// Adds the first file of this name, as a class path does.
    fn add_first(
        &mut self,
        file: &'static str,
        looked_in: Vec<ConfigDirectory>,
    ) -> Result<(), XmlError> {
        let mut used: Option<PathBuf> = None;
        for candidate in &looked_in {
            let path = candidate.directory.join(file);
            match &used {
                None if self.add_file(&path)? => used = Some(path),
                None => {}
                Some(used) => {
                    let (first, second) = (std::fs::read(used), std::fs::read(&path));
                    if let (Ok(first), Ok(second)) = (first, second)
                        && first != second
                    {
                        self.notes.push(Note::Differs { used: used.clone(), ignored: path });
                    }
                }
            }
        }
        if used.is_none() {
            self.notes.push(Note::Missing { file, looked_in });
        }
        Ok(())
    }

    /// Adds one property of a file, as `Configuration.loadProperty` does.
    fn put(&mut self, name: &str, value: Option<String>, is_final: bool, origin: PropertyOrigin) {
        let property = self.properties.entry(present_name(name).to_owned()).or_default();
        if let Some(raw) = value {
            let setting = PropertySetting { raw, origin: origin.clone() };
            if property.sealed.is_some() {
                property.refused.push(setting);
            } else {
                property.replace(setting);
            }
        }
        if is_final && property.sealed.is_none() {
            property.sealed = Some(origin);
        }
    }
}

impl Property {
    fn replace(&mut self, setting: PropertySetting) {
        if let Some(old) = self.setting.replace(setting) {
            self.hidden.insert(0, old);
        }
    }
}

/// Look-ups trim the key.
fn java_key(key: &str) -> &str {
    xml::java_trim(key)
}

#[cfg(test)]
mod tests;
