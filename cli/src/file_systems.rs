//! Which HDFS stores the files of users' jobs, and which HDFS URL a location of a job file or of the command line stands for.
//!
//! Servers and containers only get `hdfs://` URLs with an authority. The files of a user's jobs are below `submit.staging`, else
//! below the home directory on `fs.defaultFS` if that is HDFS or a mount table of viewfs, else on the only name service.
//! This module makes no calls.

use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::{
    DefaultFileSystem, Environment, HdfsPath, MountError, MountTable, check_hdfs_class,
};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::{JobSpec, Location};

use crate::failure::{CommandFailure, OrFail};

/// The key of the directory for the files of users' jobs.
pub const STAGING: &str = "submit.staging";
/// Stands for the user's name in its value.
const USER: &str = "{user}";

/// Where the home directories of users are.
#[derive(Clone, Debug)]
pub struct Homes {
    rule: Result<HomeRule, CommandFailure>,
}

#[derive(Clone, Debug)]
enum HomeRule {
    /// The value of `submit.staging`.
    Stated(String),
    /// Below this directory.
    Below(Location),
}

impl Homes {
    /// The rule of a configuration; `stated` is the value of `submit.staging`. A configuration without a rule is reported
    /// by the first use: not every command needs files.
    #[must_use]
    pub fn of(configuration: &Configuration, stated: Option<String>) -> Self {
        let rule = match stated {
            Some(stated) => Ok(HomeRule::Stated(stated)),
            None => below(configuration).map(HomeRule::Below),
        };
        Self { rule: rule.and_then(|rule| served_by_hdfs(configuration).map(|()| rule)) }
    }

    /// The home directory of a user.
    ///
    /// # Errors
    /// Exit code 7 if the configuration names no HDFS for it, 5 if the user's name is not valid in a path.
    pub fn of_user(
        &self,
        configuration: &Configuration,
        user: &str,
    ) -> Result<Location, CommandFailure> {
        if user.is_empty() || user.contains(['/', '\0']) || user == ".." {
            return Err(CommandFailure::new(
                ExitCode::Denied,
                format!("{user:?} is not a valid user name"),
            ));
        }
        let (home, key) = match self.rule.clone()? {
            HomeRule::Stated(text) => (text.replace(USER, user).parse(), Some(text)),
            HomeRule::Below(parent) => (Ok(parent.join(user)), None),
        };
        let home: Location = home.map_err(|error| not_hdfs(&key, &error.to_string()))?;
        if home.as_local().is_some() {
            return Err(not_hdfs(&key, "it is a path of this machine"));
        }
        let home = resolve(configuration, &home)?;
        if !home.authority().is_empty() {
            return Ok(home);
        }
        match DefaultFileSystem::of(configuration) {
            Ok(DefaultFileSystem::Hdfs(authority)) => at(&authority, home.path()),
            _ => Err(not_hdfs(&key, "fs.defaultFS does not name the HDFS of hdfs:///")),
        }
    }
}

/// The failure of a home that is not on HDFS; `stated` is the value of `submit.staging`.
fn not_hdfs(stated: &Option<String>, cause: &str) -> CommandFailure {
    let shown = stated.as_deref().unwrap_or_default();
    let fact = format!(
        "{STAGING} must be a directory on HDFS, such as hdfs://ns1/user/{USER} (got {shown})"
    );
    let mut failure = CommandFailure::new(ExitCode::Input, fact);
    failure.causes.push(cause.to_owned());
    failure.next("set it in heddle-defaults.toml or in the job file")
}

/// The parent of the home directories without `submit.staging`.
fn below(configuration: &Configuration) -> Result<Location, CommandFailure> {
    const FACT: &str = "cannot use Hadoop's configuration";
    let default = DefaultFileSystem::of(configuration).or_fail(ExitCode::Input, FACT)?;
    let prefix =
        configuration.trimmed("dfs.user.home.dir.prefix").or_fail(ExitCode::Input, FACT)?;
    let prefix = prefix.unwrap_or_else(|| "/user".to_owned());
    let url = match default {
        DefaultFileSystem::Hdfs(authority) => format!("hdfs://{authority}{prefix}"),
        DefaultFileSystem::ViewFs(table) => {
            let found = MountTable::of(configuration, &table).map_err(|e| not_mounted(&e))?;
            format!("viewfs://{table}{}", found.home_parent())
        }
        DefaultFileSystem::Other(text) => {
            let services = configuration.list("dfs.nameservices").or_fail(ExitCode::Input, FACT)?;
            match services.as_slice() {
                [only] => format!("hdfs://{only}{prefix}"),
                others => return Err(no_staging(&text, others)),
            }
        }
        other => return Err(no_staging(&format!("{other:?}"), &[])),
    };
    url.parse().or_fail(ExitCode::Input, format_args!("{url:?} is not a valid path"))
}

/// The failure of a cluster on which the directory for jobs is unknown.
fn no_staging(default: &str, services: &[String]) -> CommandFailure {
    let services = match services {
        [] => "dfs.nameservices names none".to_owned(),
        many => format!("dfs.nameservices names {}", many.join(", ")),
    };
    CommandFailure::new(
        ExitCode::Input,
        format!(
            "cannot choose the HDFS for the files of jobs: fs.defaultFS = {default:?} is not HDFS, \
             and {services}"
        ),
    )
    .next(format!(
        "set {STAGING} = \"hdfs://ns1/user/{USER}\" in heddle-defaults.toml or in the job file, or \
         HADOOP_CONF_DIR to the folder with the configuration of the cluster"
    ))
}

/// The failure of a location that no mount point serves.
fn not_mounted(error: &MountError) -> CommandFailure {
    let failure = CommandFailure::new(ExitCode::Input, error);
    match error {
        MountError::Overload(_) => {
            failure.next("set HADOOP_CONF_DIR to a configuration without it")
        }
        MountError::Kind { .. } => failure.next("use the hdfs:// URL of one of its directories"),
        _ => failure.next("use a path below a mount point, or the hdfs:// URL of the directory"),
    }
}

/// Checks that `hdfs://` URLs are served by HDFS itself.
fn served_by_hdfs(configuration: &Configuration) -> Result<(), CommandFailure> {
    check_hdfs_class(configuration).map_err(|error| not_mounted(&error))
}

/// The location on HDFS of a location that a mount table serves: of viewfs, or without an authority where `fs.defaultFS` is viewfs.
/// Others do not change.
///
/// # Errors
/// Exit code 7 if no mount point covers it, or one that cannot be used.
pub fn resolve(
    configuration: &Configuration,
    location: &Location,
) -> Result<Location, CommandFailure> {
    let failed = |error: MountError| not_mounted(&error);
    if location.as_local().is_some() {
        return Ok(location.clone());
    }
    served_by_hdfs(configuration)?;
    let authority = match (location.scheme(), location.authority()) {
        ("viewfs", authority) => authority.to_owned(),
        (_, "") => match DefaultFileSystem::of(configuration).map_err(|e| failed(e.into()))? {
            DefaultFileSystem::ViewFs(table) => table,
            _ => return Ok(location.clone()),
        },
        _ => return Ok(location.clone()),
    };
    let table = MountTable::of(configuration, &authority).map_err(failed)?;
    let HdfsPath { authority, path } = table.resolve(location.path()).map_err(failed)?;
    at(&authority, &path)
}

/// A location on an HDFS.
///
/// # Errors
/// Never for paths of locations.
pub fn at(authority: &str, path: &str) -> Result<Location, CommandFailure> {
    format!("hdfs://{authority}{path}")
        .parse()
        .or_fail(ExitCode::Input, format_args!("{path:?} is not a valid path"))
}

/// Whether a mount table may serve a location.
fn needs_a_table(location: &Location) -> bool {
    location.scheme() == "viewfs"
        || (location.scheme() == "hdfs" && location.authority().is_empty())
}

/// All locations of a job that may be on HDFS.
pub fn locations(spec: &mut JobSpec) -> impl Iterator<Item = &mut Location> {
    let data = spec.data.train.iter_mut().chain(&mut spec.data.test);
    let outputs = [&mut spec.checkpoint.dir, &mut spec.output.model];
    let files = spec.yarn.files.iter_mut().chain(&mut spec.yarn.archives);
    let files = files.map(|file| &mut file.from);
    let outputs = outputs.into_iter().chain(&mut spec.checkpoint.mirrors);
    let others = [&mut spec.submit.binary_dir, &mut spec.controller.dir].into_iter().flatten();
    data.chain(outputs).chain(files).chain(&mut spec.model.init).chain(others)
}

fn configuration() -> Result<Configuration, CommandFailure> {
    Configuration::load(Environment::of_process())
        .or_fail(ExitCode::Input, "cannot read Hadoop's configuration")
}

/// Resolves the locations of a job that a mount table serves. Reads Hadoop's configuration only if there are any.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_job(spec: &mut JobSpec) -> Result<(), CommandFailure> {
    let mut open: Vec<&mut Location> = locations(spec).filter(|at| needs_a_table(at)).collect();
    if open.is_empty() {
        return Ok(());
    }
    let configuration = configuration()?;
    for location in &mut open {
        **location = resolve(&configuration, location)?;
    }
    Ok(())
}

/// The URL of a URL from the command line, resolved like [`resolve_job`]. Texts that are not locations are returned as they are.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_url(text: &str) -> Result<String, CommandFailure> {
    match text.parse::<Location>() {
        Ok(location) if needs_a_table(&location) => {
            Ok(resolve(&configuration()?, &location)?.url())
        }
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn configuration(pairs: &[(&str, &str)]) -> Configuration {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        configuration
    }

    fn home(pairs: &[(&str, &str)], stated: Option<&str>) -> Result<String, CommandFailure> {
        let configuration = configuration(pairs);
        let homes = Homes::of(&configuration, stated.map(str::to_owned));
        homes.of_user(&configuration, "alice").map(|home| home.url())
    }

    const VIEW: [(&str, &str); 3] = [
        ("fs.defaultFS", "viewfs://cdp"),
        ("fs.viewfs.mounttable.cdp.link./user", "hdfs://ns1/users"),
        ("fs.viewfs.mounttable.cdp.link./data", "hdfs://ns2:9000/d"),
    ];
    const CLOUD: (&str, &str) = ("fs.defaultFS", "abfs://box@store");

    #[test]
    fn the_home_is_on_the_default_hdfs_or_the_only_name_service() {
        for (pairs, expected) in [
            (&[("fs.defaultFS", "hdfs://nn:9000/")][..], "hdfs://nn:9000/user/alice"),
            (
                &[("fs.defaultFS", "hdfs://a"), ("dfs.user.home.dir.prefix", "/h")],
                "hdfs://a/h/alice",
            ),
            (&VIEW, "hdfs://ns1/users/alice"),
            (&[CLOUD, ("dfs.nameservices", " ns7 ")], "hdfs://ns7/user/alice"),
        ] {
            assert_eq!(home(pairs, None).unwrap(), expected);
        }
    }

    #[test]
    fn a_home_that_cannot_be_chosen_is_exit_7_with_the_key() {
        let two = [CLOUD, ("dfs.nameservices", "a,b")];
        for pairs in [&[CLOUD][..], &two, &[("fs.defaultFS", "file:///")]] {
            let failure = home(pairs, None).unwrap_err();
            assert_eq!(failure.exit, ExitCode::Input);
            assert!(failure.next.contains("submit.staging"), "{failure:?}");
        }
        let failure = home(&two, None).unwrap_err();
        assert!(failure.fact.contains("\"abfs://box@store\" is not HDFS"), "{failure:?}");
        assert!(failure.fact.contains("names a, b"), "{failure:?}");
        let view = [VIEW[0], VIEW[2]];
        let failure = home(&view, None).unwrap_err();
        assert!(failure.fact.contains("viewfs://cdp/user/alice: no mount point"), "{failure:?}");
    }

    #[test]
    fn submit_staging_precedes_the_default() {
        let cloud = &[CLOUD, ("dfs.nameservices", "a,b")][..];
        let stated = |pairs, text| home(pairs, Some(text));
        assert_eq!(stated(cloud, "hdfs://b/jobs/{user}/h").unwrap(), "hdfs://b/jobs/alice/h");
        assert_eq!(stated(&VIEW, "viewfs:///data/{user}").unwrap(), "hdfs://ns2:9000/d/alice");
        for text in ["/tmp/{user}", "s3a://b/{user}", "hdfs:///user/{user}"] {
            let failure = stated(cloud, text).unwrap_err();
            assert_eq!(failure.exit, ExitCode::Input);
            assert!(
                failure.fact.contains("submit.staging must be a directory on HDFS"),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn locations_of_a_mount_table_become_those_of_hdfs() {
        let view = configuration(&VIEW);
        let resolved = |text: &str| resolve(&view, &text.parse().unwrap()).map(|at| at.url());
        for (text, expected) in [
            ("viewfs:///data/a/*.gz", "hdfs://ns2:9000/d/a/*.gz"),
            ("viewfs://cdp/user/bob", "hdfs://ns1/users/bob"),
            ("hdfs:///data/a", "hdfs://ns2:9000/d/a"),
            ("hdfs://ns9/data/a", "hdfs://ns9/data/a"),
            ("/data/a", "file:///data/a"),
        ] {
            assert_eq!(resolved(text).unwrap(), expected);
        }
        for (text, words) in [
            ("viewfs:///logs/x", "no mount point of viewfs://cdp covers it"),
            ("viewfs://other/x", "the mount table of viewfs://other has no link"),
        ] {
            let failure = resolved(text).unwrap_err();
            assert_eq!(failure.exit, ExitCode::Input);
            assert!(failure.fact.contains(words), "{failure:?}");
        }
        let class = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme";
        let over = configuration(&[("fs.defaultFS", "hdfs://a"), ("fs.hdfs.impl", class)]);
        let failure = resolve(&over, &"hdfs://a/x".parse().unwrap()).unwrap_err();
        assert!(failure.fact.contains("ViewFileSystemOverloadScheme"), "{failure:?}");
    }
}
