//! Configuration as Hadoop reads it, with the origin of every value.
//!
//! [`Configuration::load`] finds the files by the environment and reads them over the built-in defaults in Hadoop's
//! order: core, HDFS, YARN, each the defaults first and the site's file after. Values are kept as written and expanded
//! when asked for. [`Configuration::explain`] tells where a value comes from and what it hides.
//!
//! A golden set made by Hadoop's own class holds this module (`tests/golden/configuration`).
//! What it does not do: fetch includes over the network, read DTDs, reload files that change.

mod defaults;
mod deprecated;
mod environment;
mod expand;
mod locate;
mod origin;
mod servers;
mod values;
mod xml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use environment::Environment;
pub use expand::ExpandError;
pub use locate::{ConfigDirectory, FileSystem, config_directories};
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
    /// Absent when a file only made the key final.
    setting: Option<PropertySetting>,
    /// Values that `setting` replaced, the latest first.
    hidden: Vec<PropertySetting>,
    /// Where it was made final.
    sealed: Option<PropertyOrigin>,
    /// Values that were refused because the key was final.
    refused: Vec<PropertySetting>,
}

impl Configuration {
    /// The files that the environment names, over the built-in defaults. Files that are not there are noted, not
    /// missed: a configuration of defaults only is one.
    ///
    /// # Errors
    /// When a file is there and cannot be read or parsed.
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
        Ok(configuration)
    }

    /// The built-in defaults alone.
    pub fn with_defaults(environment: Environment) -> Self {
        let mut configuration = Self::empty(environment);
        configuration.add_defaults(defaults::CORE, "core-default.xml");
        configuration.add_defaults(defaults::HDFS, "hdfs-default.xml");
        configuration.add_defaults(defaults::YARN, "yarn-default.xml");
        configuration
    }

    /// Nothing at all, not even defaults.
    pub fn empty(environment: Environment) -> Self {
        Self { environment, properties: BTreeMap::new(), notes: Vec::new() }
    }

    /// Reads one more file over what is there; `Ok(false)` when it does not exist.
    ///
    /// # Errors
    /// When it cannot be read or parsed; nothing of it then counts.
    pub fn add_file(&mut self, path: &Path) -> Result<bool, XmlError> {
        self.add_file_of(&FileSystem, path)
    }

    /// The same with the files from somewhere else.
    ///
    /// # Errors
    /// When it cannot be read or parsed; nothing of it then counts.
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

    /// Sets a value from outside any file; it wins over all files, final ones too. `who` is shown as its origin.
    pub fn set(&mut self, key: &str, value: impl Into<String>, who: &str) {
        let property = self.properties.entry(present_name(java_key(key)).to_owned()).or_default();
        property.replace(PropertySetting {
            raw: value.into(),
            origin: PropertyOrigin::Override(who.into()),
        });
    }

    /// The value, expanded. `Ok(None)` when the key has none.
    ///
    /// # Errors
    /// When its variables go in a circle.
    pub fn get(&self, key: &str) -> Result<Option<String>, PropertyError> {
        self.with(key, |text| Ok(text.to_owned()))
    }

    /// The value without blanks around it; `Ok(None)` when the key has none or only blanks.
    ///
    /// # Errors
    /// When its variables go in a circle.
    pub fn trimmed(&self, key: &str) -> Result<Option<String>, PropertyError> {
        let value = self.with(key, |text| Ok(xml::java_trim(text).to_owned()))?;
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// `true` or `false`; the default for anything else, as Hadoop has it.
    ///
    /// # Errors
    /// When its variables go in a circle.
    pub fn boolean(&self, key: &str, default: bool) -> Result<bool, PropertyError> {
        Ok(self.with(key, |text| Ok(values::boolean(text)))?.flatten().unwrap_or(default))
    }

    /// A whole number, decimal or `0x…`.
    ///
    /// # Errors
    /// When the value is none of 64 bits.
    pub fn integer(&self, key: &str, default: i64) -> Result<i64, PropertyError> {
        Ok(self.with(key, values::integer)?.unwrap_or(default))
    }

    /// A decimal number.
    ///
    /// # Errors
    /// When the value is none.
    pub fn decimal(&self, key: &str, default: f64) -> Result<f64, PropertyError> {
        let parse = |text: &str| xml::java_trim(text).parse().map_err(|_| ValueProblem::Decimal);
        Ok(self.with(key, parse)?.unwrap_or(default))
    }

    /// A span of time; `unit` counts when the value names none.
    ///
    /// # Errors
    /// When the value is no time, or below zero.
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
    /// When the value is no size of 63 bits.
    pub fn size(&self, key: &str, default: i64) -> Result<i64, PropertyError> {
        Ok(self.with(key, values::size)?.unwrap_or(default))
    }

    /// The trimmed, non-empty elements of a comma list.
    ///
    /// # Errors
    /// When its variables go in a circle.
    pub fn list(&self, key: &str) -> Result<Vec<String>, PropertyError> {
        Ok(self.with(key, |text| Ok(values::list(text)))?.unwrap_or_default())
    }

    /// An address; `Ok(None)` when the key has no value.
    ///
    /// # Errors
    /// When the value is no `host:port`, nor a host where there is a default port.
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

    /// What is known of a key; `None` when it has no value.
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

    /// Whether a file or the program states the key. False: the value, if there is one, is the built-in default, which
    /// is that of one release and not necessarily the server's.
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

    /// Which files were read, which were not found, which disagree.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Where variables come from.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The error for a value of `key` that a caller cannot use, for readers of its own.
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

    /// Expands the value and reads it.
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

    /// A variable's value: environment or system property first, then another key as written.
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

    /// Adds the first file of that name, as a class path would.
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

    /// One entry of a file, as `Configuration.loadProperty` takes it.
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

/// Keys are trimmed when they are asked for.
fn java_key(key: &str) -> &str {
    xml::java_trim(key)
}

#[cfg(test)]
mod tests;
