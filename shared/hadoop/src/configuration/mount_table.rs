//! Mount tables of viewfs: which directory of HDFS a path of `viewfs://table/…` stands for.
//!
//! Servers and tokens only know `hdfs://` URLs, so a client resolves a viewfs URL before it uses it. Links, `linkFallback` and
//! `homedir` are supported. Links to several directories (`linkNfly`, `linkMerge`), `linkMergeSlash` and `linkRegex` are errors
//! that name the kind, and so is `ViewFileSystemOverloadScheme`, which applies a mount table to `hdfs://` URLs.
//!
//! Source: `org.apache.hadoop.fs.viewfs.{Constants, InodeTree, ConfigUtil}`. This module makes no calls: it does not merge
//! listings of the fallback with those of links, and does not read mount tables from files other than the configuration.

use std::collections::BTreeMap;

use super::{Configuration, PropertyError};

/// Start of the keys of all mount tables.
const TABLES: &str = "fs.viewfs.mounttable.";
/// Names the table of `viewfs:///` where `fs.defaultFS` names none.
const DEFAULT_TABLE: &str = "fs.viewfs.mounttable.default.name.key";
/// The class of `hdfs://` URLs.
const HDFS_CLASS: &str = "fs.hdfs.impl";
/// Classes that apply a mount table to `hdfs://` URLs.
const OVERLOADING: [&str; 2] = ["ViewFileSystemOverloadScheme", "ViewDistributedFileSystem"];
/// Kinds of links that stand for several directories. The longer names first, since one begins with another.
const REFUSED_KINDS: [&str; 4] = ["linkMergeSlash", "linkMerge", "linkNfly", "linkRegex"];

/// What `fs.defaultFS` names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DefaultFileSystem {
    /// An HDFS; its authority (`host:port` or a name service, not empty).
    Hdfs(String),
    /// The mount table of this name.
    ViewFs(String),
    /// Another file system; the value of the key.
    Other(String),
}

impl DefaultFileSystem {
    /// The default file system of a configuration.
    ///
    /// # Errors
    /// The value of `fs.defaultFS` does not parse.
    pub fn of(configuration: &Configuration) -> Result<Self, PropertyError> {
        let text = configuration.trimmed("fs.defaultFS")?.unwrap_or_default();
        let authority = |rest: &str| rest.split('/').next().unwrap_or_default().to_owned();
        Ok(match text.split_once("://") {
            Some(("hdfs", rest)) if !authority(rest).is_empty() => Self::Hdfs(authority(rest)),
            Some(("viewfs", rest)) => Self::ViewFs(table_name(configuration, &authority(rest))?),
            _ => Self::Other(text),
        })
    }
}

/// The name of the table of a URL's authority.
fn table_name(configuration: &Configuration, authority: &str) -> Result<String, PropertyError> {
    if !authority.is_empty() {
        return Ok(authority.to_owned());
    }
    Ok(configuration.trimmed(DEFAULT_TABLE)?.unwrap_or_else(|| "default".to_owned()))
}

/// A directory of HDFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HdfsPath {
    /// `host:port` or a name service; not empty.
    pub authority: String,
    /// Starts with `/`; without a slash at the end, except for the root.
    pub path: String,
}

/// Why a path of viewfs has no directory of HDFS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// A value does not parse.
    #[error(transparent)]
    Value(#[from] PropertyError),
    /// The configuration has no link of that table.
    #[error(
        "the mount table of viewfs://{0} has no link: fs.viewfs.mounttable.{0}.link.<path> is not set"
    )]
    NoTable(String),
    /// A link is of a kind that stands for several directories.
    #[error("{key}: links of the kind {kind} are not supported (supported: link, linkFallback)")]
    Kind {
        /// The key of the link.
        key: String,
        /// Its kind.
        kind: &'static str,
    },
    /// A link does not lead to HDFS.
    #[error("{key} must be an hdfs:// URL with a name service or a host (got \"{value}\")")]
    Target {
        /// The key of the link.
        key: String,
        /// Its value.
        value: String,
    },
    /// Two links, one below the other.
    #[error("{key}: {path} is below the mount point {above}, and mount points do not nest")]
    Nested {
        /// The key of the lower link.
        key: String,
        /// Its mount point.
        path: String,
        /// The upper mount point.
        above: String,
    },
    /// A mount point is not an absolute path.
    #[error("{0}: a mount point must be an absolute path below the root")]
    MountPoint(String),
    /// No link covers the path, and there is no fallback.
    #[error(
        "viewfs://{table}{path}: no mount point of viewfs://{table} covers it (mount points: {links})"
    )]
    NotMounted {
        /// The table.
        table: String,
        /// The path.
        path: String,
        /// The mount points, as text.
        links: String,
    },
    /// A pattern stands where the mount table is searched.
    #[error(
        "viewfs://{table}{path}: a pattern must be below a mount point of viewfs://{table} (mount points: {links})"
    )]
    Pattern {
        /// The table.
        table: String,
        /// The path.
        path: String,
        /// The mount points, as text.
        links: String,
    },
    /// A mount table applies to `hdfs://` URLs.
    #[error("fs.hdfs.impl = {0} is not supported: it applies a mount table to hdfs:// URLs")]
    Overload(String),
}

/// A link's target: as configured, or why it cannot be used.
#[derive(Clone, Debug)]
struct Link {
    key: String,
    target: Result<HdfsPath, MountError>,
}

/// The links of one mount table.
#[derive(Clone, Debug)]
pub struct MountTable {
    name: String,
    /// By the names of the mount point from the root down; none of them is a prefix of another.
    links: BTreeMap<Vec<String>, Link>,
    fallback: Option<Link>,
    home_parent: String,
}

impl MountTable {
    /// The table of a URL's authority; the empty one is that of `fs.defaultFS` if it is viewfs, else the default table.
    ///
    /// # Errors
    /// The table has no link, a link that holds for all paths is of a kind that is not supported, or mount points nest.
    pub fn of(configuration: &Configuration, authority: &str) -> Result<Self, MountError> {
        let name = match DefaultFileSystem::of(configuration)? {
            DefaultFileSystem::ViewFs(table) if authority.is_empty() => table,
            _ => table_name(configuration, authority)?,
        };
        let prefix = format!("{TABLES}{name}.");
        let home = configuration.trimmed(&format!("{prefix}homedir"))?;
        let mut table = Self {
            links: BTreeMap::new(),
            fallback: None,
            home_parent: home.unwrap_or_else(|| "/user".to_owned()),
            name,
        };
        for key in configuration.keys() {
            if let Some(entry) = key.strip_prefix(&prefix) {
                table.add(configuration, key, entry)?;
            }
        }
        if table.links.is_empty() && table.fallback.is_none() {
            return Err(MountError::NoTable(table.name));
        }
        table.check_nesting()?;
        Ok(table)
    }

    /// The parent of users' home directories, a path of this table.
    #[must_use]
    pub fn home_parent(&self) -> &str {
        &self.home_parent
    }

    /// The directory or file of HDFS that a path stands for. The path may be a pattern below a mount point.
    ///
    /// # Errors
    /// No link covers the path, or the link that covers it cannot be used.
    pub fn resolve(&self, path: &str) -> Result<HdfsPath, MountError> {
        let names = names(path);
        for depth in 1..=names.len() {
            if names[depth - 1].contains(['*', '?', '[', '{']) {
                return Err(MountError::Pattern {
                    table: self.name.clone(),
                    path: path.to_owned(),
                    links: self.mount_points(),
                });
            }
            if let Some(link) = self.links.get(&names[..depth]) {
                return joined(link, &names[depth..]);
            }
            let is_above_a_link = self
                .links
                .range(names[..depth].to_vec()..)
                .next()
                .is_some_and(|(at, _)| at.starts_with(&names[..depth]));
            if !is_above_a_link {
                break;
            }
        }
        match &self.fallback {
            Some(link) => joined(link, &names),
            None => Err(MountError::NotMounted {
                table: self.name.clone(),
                path: path.to_owned(),
                links: self.mount_points(),
            }),
        }
    }

    fn mount_points(&self) -> String {
        let all: Vec<String> = self.links.keys().map(|names| shown(names)).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }

    /// Adds the entry of a key; `entry` is the key without the table's name.
    fn add(
        &mut self,
        configuration: &Configuration,
        key: &str,
        entry: &str,
    ) -> Result<(), MountError> {
        let refused = REFUSED_KINDS.into_iter().find(|kind| entry.starts_with(kind));
        if let Some(kind) = refused {
            let error = MountError::Kind { key: key.to_owned(), kind };
            // The settings of a link stand between its kind and its mount point.
            let at = entry.find("./").filter(|_| kind == "linkMerge" || kind == "linkNfly");
            let Some(at) = at else {
                return Err(error);
            };
            let link = Link { key: key.to_owned(), target: Err(error) };
            self.links.insert(names(&entry[at + 1..]), link);
            return Ok(());
        }
        if entry != "linkFallback" && !entry.starts_with("link.") {
            return Ok(());
        }
        let value = configuration.trimmed(key)?.unwrap_or_default();
        let target = target(&value)
            .ok_or_else(|| MountError::Target { key: key.to_owned(), value: value.clone() });
        let link = Link { key: key.to_owned(), target };
        match entry.strip_prefix("link.") {
            None => self.fallback = Some(link),
            Some(path) if path.starts_with('/') && !names(path).is_empty() => {
                self.links.insert(names(path), link);
            }
            Some(_) => return Err(MountError::MountPoint(key.to_owned())),
        }
        Ok(())
    }

    fn check_nesting(&self) -> Result<(), MountError> {
        let keys: Vec<_> = self.links.iter().collect();
        // Sorted by names, so a mount point stands right before the first one below it.
        for pair in keys.windows(2) {
            if pair[1].0.starts_with(pair[0].0) {
                return Err(MountError::Nested {
                    key: pair[1].1.key.clone(),
                    path: shown(pair[1].0),
                    above: shown(pair[0].0),
                });
            }
        }
        Ok(())
    }
}

/// Checks that `hdfs://` URLs are served by HDFS itself.
///
/// # Errors
/// `fs.hdfs.impl` applies a mount table to them.
pub fn check_hdfs_class(configuration: &Configuration) -> Result<(), MountError> {
    match configuration.trimmed(HDFS_CLASS)? {
        Some(class) if OVERLOADING.iter().any(|name| class.ends_with(name)) => {
            Err(MountError::Overload(class))
        }
        _ => Ok(()),
    }
}

/// The names of a path from the root down, without empty ones.
fn names(path: &str) -> Vec<String> {
    path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn shown(names: &[String]) -> String {
    format!("/{}", names.join("/"))
}

/// The directory of an `hdfs://authority/path` URL.
fn target(url: &str) -> Option<HdfsPath> {
    let rest = url.strip_prefix("hdfs://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let fits = !authority.is_empty() && !url.contains(',');
    fits.then(|| HdfsPath { authority: authority.to_owned(), path: shown(&names(path)) })
}

/// The path below a link's target.
fn joined(link: &Link, below: &[String]) -> Result<HdfsPath, MountError> {
    let target = link.target.clone()?;
    let all: Vec<String> = names(&target.path).into_iter().chain(below.iter().cloned()).collect();
    Ok(HdfsPath { authority: target.authority, path: shown(&all) })
}

#[cfg(test)]
mod tests {
    use super::super::Environment;
    use super::*;
    use proptest::prelude::*;

    fn configuration(pairs: &[(&str, &str)]) -> Configuration {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        configuration
    }

    /// A table as the page "ViewFs Guide" of Hadoop describes them.
    fn table(more: &[(&str, &str)]) -> Result<MountTable, MountError> {
        let mut configuration = configuration(&[
            ("fs.defaultFS", "viewfs://cdp"),
            ("fs.viewfs.mounttable.cdp.link./user", " hdfs://ns1/user "),
            ("fs.viewfs.mounttable.cdp.link./data/ads", "hdfs://ns2:8020//warehouse/ads/"),
            ("fs.viewfs.mounttable.cdp.link./whole", "hdfs://ns3"),
            ("fs.viewfs.mounttable.cdp.link./cloud", "abfs://box@account/x"),
            ("fs.viewfs.mounttable.other.link./user", "hdfs://elsewhere/user"),
        ]);
        for (key, value) in more {
            configuration.set(&format!("fs.viewfs.mounttable.cdp.{key}"), *value, "test");
        }
        MountTable::of(&configuration, "")
    }

    fn resolved(table: &MountTable, path: &str) -> String {
        match table.resolve(path) {
            Ok(found) => format!("hdfs://{}{}", found.authority, found.path),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn links_lead_to_directories_of_hdfs() {
        let table = table(&[]).expect("a table");
        for (path, url) in [
            ("/user", "hdfs://ns1/user"),
            ("/user/alice/x", "hdfs://ns1/user/alice/x"),
            ("/data/ads/2026/*.libsvm", "hdfs://ns2:8020/warehouse/ads/2026/*.libsvm"),
            ("/whole", "hdfs://ns3/"),
            ("/whole/a", "hdfs://ns3/a"),
        ] {
            assert_eq!(resolved(&table, path), url);
        }
        assert_eq!(table.home_parent(), "/user");
    }

    #[test]
    fn paths_without_a_link_are_errors_that_list_the_mount_points() {
        let table = table(&[]).expect("a table");
        for path in ["/", "/data", "/data/logs", "/userx"] {
            let text = resolved(&table, path);
            assert!(text.contains("no mount point"), "{text}");
            assert!(text.contains("/cloud, /data/ads, /user, /whole"), "{text}");
        }
        let text = resolved(&table, "/data/*/2026");
        assert!(text.contains("a pattern must be below a mount point"), "{text}");
        let text = resolved(&table, "/cloud/x");
        assert!(text.contains("link./cloud must be an hdfs:// URL"), "{text}");
    }

    #[test]
    fn the_fallback_serves_all_other_paths() {
        let table = table(&[("linkFallback", "hdfs://ns4/root"), ("homedir", "/home")]);
        let table = table.expect("a table");
        assert_eq!(resolved(&table, "/data/logs/x"), "hdfs://ns4/root/data/logs/x");
        assert_eq!(resolved(&table, "/"), "hdfs://ns4/root");
        assert_eq!(resolved(&table, "/user/a"), "hdfs://ns1/user/a");
        assert_eq!(table.home_parent(), "/home");
    }

    #[test]
    fn kinds_that_merge_directories_are_refused_by_name() {
        for (key, kind) in [
            ("linkMergeSlash", "linkMergeSlash"),
            ("linkRegex.replaceresolveddstpath:_:-#.^/user/(?<name>\\w+)", "linkRegex"),
        ] {
            let error = table(&[(key, "hdfs://ns1/,hdfs://ns2/")]).expect_err("refused");
            assert!(matches!(&error, MountError::Kind { kind: is, .. } if *is == kind), "{error}");
        }
        for (key, kind) in [
            ("linkNfly../ads", "linkNfly"),
            ("linkNfly.minReplication=2,repairOnRead=true./ads", "linkNfly"),
            ("linkMerge./ads", "linkMerge"),
        ] {
            let table = table(&[(key, "hdfs://ns1/a,hdfs://ns2/a")]).expect("other paths serve");
            assert_eq!(resolved(&table, "/user/x"), "hdfs://ns1/user/x");
            let text = resolved(&table, "/ads/2026");
            assert!(text.contains(&format!("of the kind {kind} ")), "{text}");
        }
    }

    #[test]
    fn a_wrong_table_is_an_error() {
        let nested = table(&[("link./user/alice", "hdfs://ns2/a")]).expect_err("nested");
        assert!(nested.to_string().contains("/user/alice is below the mount point /user"));
        for key in ["link.user", "link./"] {
            assert!(matches!(table(&[(key, "hdfs://a")]), Err(MountError::MountPoint(_))), "{key}");
        }
        let none = MountTable::of(&configuration(&[]), "lost").expect_err("none");
        assert_eq!(none, MountError::NoTable("lost".to_owned()));
    }

    #[test]
    fn the_table_without_a_name_is_the_default_one() {
        let key = "fs.viewfs.mounttable.default.link./a";
        let plain = configuration(&[("fs.defaultFS", "hdfs://nn"), (key, "hdfs://x/a")]);
        let table = MountTable::of(&plain, "").expect("a table");
        assert_eq!(resolved(&table, "/a"), "hdfs://x/a");
        let named = configuration(&[
            (DEFAULT_TABLE, "main"),
            ("fs.viewfs.mounttable.main.link./a", "hdfs://y/a"),
        ]);
        assert_eq!(resolved(&MountTable::of(&named, "").expect("main"), "/a"), "hdfs://y/a");
    }

    #[test]
    fn the_default_file_system_is_of_three_kinds() {
        for (value, expected) in [
            (" hdfs://ns1/x ", DefaultFileSystem::Hdfs("ns1".to_owned())),
            ("hdfs:///", DefaultFileSystem::Other("hdfs:///".to_owned())),
            ("viewfs://cdp/", DefaultFileSystem::ViewFs("cdp".to_owned())),
            ("viewfs:///", DefaultFileSystem::ViewFs("default".to_owned())),
            ("abfs://a@b/", DefaultFileSystem::Other("abfs://a@b/".to_owned())),
        ] {
            let found = DefaultFileSystem::of(&configuration(&[("fs.defaultFS", value)]));
            assert_eq!(found, Ok(expected), "{value}");
        }
    }

    #[test]
    fn mount_tables_for_hdfs_urls_are_refused() {
        assert_eq!(check_hdfs_class(&configuration(&[])), Ok(()));
        let plain = "org.apache.hadoop.hdfs.DistributedFileSystem";
        assert_eq!(check_hdfs_class(&configuration(&[(HDFS_CLASS, plain)])), Ok(()));
        for class in [
            "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
            "org.apache.hadoop.hdfs.ViewDistributedFileSystem",
        ] {
            let refused = check_hdfs_class(&configuration(&[(HDFS_CLASS, class)]));
            assert_eq!(refused, Err(MountError::Overload(class.to_owned())));
        }
    }

    proptest! {
        /// The link that covers a path is the only one that is a prefix of it.
        #[test]
        fn a_path_leads_below_the_one_link_that_covers_it(
            mounts in proptest::collection::btree_set("(/[ab]{1,2}){1,3}", 1..6),
            path in "(/[ab]{1,2}){0,5}",
            has_fallback: bool,
        ) {
            let mut all = configuration(&[("fs.defaultFS", "viewfs://t")]);
            for (n, mount) in mounts.iter().enumerate() {
                all.set(&format!(
                    "fs.viewfs.mounttable.t.link.{mount}"
                ), format!("hdfs://n{n}/r"), "test");
            }
            if has_fallback {
                all.set("fs.viewfs.mounttable.t.linkFallback", "hdfs://rest/f", "test");
            }
            let below = |at: &str, top: &str| at == top || at.starts_with(&format!("{top}/"));
            let nests = mounts.iter().any(|a| mounts.iter().any(|b| a != b && below(a, b)));
            let table = match MountTable::of(&all, "") {
                Err(MountError::Nested { .. }) => { prop_assert!(nests); return Ok(()); }
                other => other.expect("a table"),
            };
            prop_assert!(!nests);
            let covering = mounts.iter().enumerate().find(|(_, mount)| below(&path, mount));
            let expected = match (covering, has_fallback) {
                (Some((n, mount)), _) => Some(format!("hdfs://n{n}/r{}", &path[mount.len()..])),
                (None, true) => Some(format!("hdfs://rest/f{path}")),
                (None, false) => None,
            };
            let found = table.resolve(&path).ok();
            prop_assert_eq!(
                found.map(|it| format!("hdfs://{}{}", it.authority, it.path)),
                expected
            );
        }
    }
}
