//! The start of a process on a secured cluster: where it and the libraries in it find tokens and tickets.
//!
//! The environment of the process changes here, before its first thread. hdfs-native reads the environment: it finds the
//! tokens of the session and those that are fetched later, and no ticket. Our own login keeps the original names as
//! properties of the process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use heddle_hadoop::configuration::Environment;
use heddle_hadoop::kerberos::NO_TICKETS;
use heddle_hadoop::sasl::SecurityPolicy;
use heddle_hadoop::token::{Credentials, ProcessTokens};
use heddle_hadoop::{Configuration, gssapi};

const TOKEN_FILE: &str = "HADOOP_TOKEN_FILE_LOCATION";
const TICKETS: &str = "KRB5CCNAME";
const KEYTAB: &str = "KRB5KEYTAB";
const PRINCIPAL: &str = "KRB5PRINCIPAL";
const PROXY_USER: &str = "HADOOP_PROXY_USER";

/// The flags of the command line that state a login.
#[derive(Clone, Copy, Debug)]
pub struct LoginFlags<'a> {
    /// `--principal`.
    pub principal: Option<&'a str>,
    /// `--keytab`.
    pub keytab: Option<&'a Path>,
    /// `--proxy-user`.
    pub proxy_user: Option<&'a str>,
    /// Whether this process is in a container of a job, whose token file is its own.
    pub is_in_container: bool,
}

/// The keytab that a job file or the site's defaults state (`yarn.keytab`, `yarn.principal`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedKeytab {
    /// `yarn.keytab`.
    pub path: PathBuf,
    /// `yarn.principal`.
    pub principal: Option<String>,
}

/// Prepares the process: the user to act as, and the login if Hadoop's configuration requires security. Problems are left
/// to the first login, which reports them.
///
/// `stated` is called on a secured cluster where neither flag nor variable names a keytab.
pub fn prepare(flags: &LoginFlags<'_>, stated: impl FnOnce() -> Option<StatedKeytab>) {
    let LoginFlags { principal, keytab, proxy_user, is_in_container } = *flags;
    if let Some(user) = proxy_user {
        set_variables(vec![(PROXY_USER, user.to_owned())]);
    }
    let environment = Environment::of_process();
    let Ok(configuration) = Configuration::load(environment.clone()) else {
        return;
    };
    if !SecurityPolicy::of(&configuration).is_ok_and(|policy| policy.required) {
        return;
    }
    let cache = environment.variable(TICKETS).unwrap_or_default();
    let mut properties = BTreeMap::from([(TICKETS.to_owned(), cache.to_owned())]);
    let names_one = keytab.is_some() || environment.stated(KEYTAB).is_some();
    let stated = if names_one || is_in_container { None } else { stated() };
    let (keytab, principal) = match &stated {
        Some(stated) => (Some(&*stated.path), stated.principal.as_deref()),
        None => (keytab, principal),
    };
    if let Some(keytab) = keytab {
        properties.insert(KEYTAB.to_owned(), keytab.display().to_string());
    }
    if let Some(principal) = principal {
        properties.insert(PRINCIPAL.to_owned(), principal.to_owned());
    }
    Environment::set_process_properties(properties);
    let mut variables = vec![(TICKETS, NO_TICKETS.to_owned())];
    // Unreadable tokens stay where they are named, so that the login reports them.
    let own = environment.variable(TOKEN_FILE).filter(|_| is_in_container);
    let process = match own.map(|file| ProcessTokens::install_at(Path::new(file))) {
        Some(Ok(process)) => Some(process),
        // A file that cannot be replaced is left to its owner.
        // The user of a keytab need not be the owner of the session's tokens.
        Some(Err(_)) | None => match keytab {
            Some(_) => Some(Credentials::new()),
            None => Credentials::of_environment(&configuration).ok(),
        }
        .and_then(|session| ProcessTokens::install(session).ok()),
    };
    if let Some(process) = process {
        variables.push((TOKEN_FILE, process.path().to_owned()));
    }
    set_variables(variables);
}

fn set_variables(variables: Vec<(&str, String)>) {
    if let Err(error) = gssapi::set_variables(variables) {
        eprintln!("warning: cannot prepare the login: {error}");
    }
}
