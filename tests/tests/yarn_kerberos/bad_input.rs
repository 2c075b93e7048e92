//! The table of bad input: a command with each row fails with the row's exit code, its cause and the next step, in a text that no
//! other row has.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use heddle_tests::hadoop::{Cluster, Realm};
use heddle_tests::local::Ended;
use heddle_tests::secured_job::SecuredJob;

use super::{bad_sites, cluster, failed_logins};

/// The rows, with their exit codes.
const ROWS: [(&str, i32); 44] = [
    ("no ticket", 5),
    ("ticket that has ended", 5),
    ("corrupt cache", 5),
    ("library missing", 5),
    ("keytab missing", 5),
    ("keytab unreadable", 5),
    ("not a keytab", 5),
    ("keytab without the principal", 5),
    ("stale key", 5),
    ("principal unknown", 5),
    ("principal expired", 5),
    ("principal locked", 5),
    ("clock skew, by the KDC's word", 5),
    ("ticket not yet valid", 5),
    ("clock skew or stale key of the server", 5),
    ("no KDC listens", 5),
    ("no KDC answers", 5),
    ("realm unknown", 5),
    ("krb5.conf malformed", 5),
    ("another principal of the ResourceManager", 5),
    ("another principal of the NameNode", 5),
    ("principal of the server unknown", 5),
    ("security not enabled", 5),
    ("SIMPLE offered by the ResourceManager", 5),
    ("SIMPLE offered by the NameNode", 5),
    ("no common protection", 5),
    ("impersonation refused", 5),
    ("token file missing", 5),
    ("token file truncated", 5),
    ("token file without the needed kind", 5),
    ("token unknown to the server", 5),
    ("token that has ended", 5),
    ("token of another renewer", 5),
    ("yarn.resourcemanager.principal unset", 5),
    ("unknown key of the site", 7),
    ("key that a site cannot set", 7),
    ("final key overridden", 7),
    ("file of the site writable by others", 7),
    ("submit.staging not on HDFS", 7),
    ("no mount point", 7),
    ("mount point of a refused kind", 7),
    ("unknown property", 7),
    ("no program for this machine", 10),
    ("cache directory of others", 10),
];

/// Failed commands of alice, and what each row printed.
pub struct BadInput<'c> {
    pub realm: &'c Realm,
    pub job: SecuredJob<'c>,
    /// Row by text.
    texts: RefCell<BTreeMap<String, &'static str>>,
}

impl<'c> BadInput<'c> {
    pub fn new(cluster: &'c Cluster, realm: &'c Realm) -> Result<Self> {
        let job = SecuredJob::of_passes(cluster, "bad-input", 1)?;
        let text = std::fs::read_to_string(job.path().join("job.toml"))?;
        let own = text.replace("\"secured\"", "\"bad-input\"");
        std::fs::write(job.path().join("job.toml"), own)?;
        Ok(Self { realm, job, texts: RefCell::default() })
    }

    /// A path in the local folder.
    pub fn file(&self, name: &str) -> String {
        self.job.path().join(name).display().to_string()
    }

    /// `heddle list --yarn` fails as the row demands, with these words.
    pub fn list(
        &self,
        row: &'static str,
        variables: &[(&str, &str)],
        flags: &[&str],
        words: &[&str],
    ) -> Result<()> {
        let arguments = [&["list", "--yarn"], flags].concat();
        self.refused(row, &self.job.heddle(&arguments, variables)?, words)
    }

    /// `heddle submit` with a ticket fails as the row demands, with these words.
    pub fn submit(
        &self,
        row: &'static str,
        variables: &[(&str, &str)],
        flags: &[&str],
        words: &[&str],
    ) -> Result<()> {
        let cache = self.realm.cache("alice");
        let variables = [&[("KRB5CCNAME", cache.as_str())], variables].concat();
        let arguments = [&["submit", "job.toml"], flags].concat();
        self.refused(row, &self.job.heddle(&arguments, &variables)?, words)
    }

    /// The command failed with the exit code of its row and these words.
    pub fn refused(&self, row: &'static str, ended: &Ended, words: &[&str]) -> Result<()> {
        let (_, exit) = ROWS.iter().find(|(name, _)| *name == row).context("a row of the table")?;
        ensure!(ended.code == Some(*exit), "{row}: expected {exit} and {words:?}: {ended:?}");
        for word in words {
            ensure!(ended.stderr.contains(word), "{row}: no {word:?} in {}", ended.stderr);
        }
        // Two rows must differ in more than the names of their files.
        let text = ended.stderr.replace(&self.job.path().display().to_string(), "DIR");
        let text: String = text.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        match self.texts.borrow_mut().insert(text, row) {
            Some(other) if other != row => {
                anyhow::bail!("{row} and {other} have one text: {}", ended.stderr)
            }
            _ => Ok(()),
        }
    }

    /// A ticket for tickets alone, in a new cache.
    pub fn fresh_cache(&self, name: &str) -> Result<String> {
        let cache = format!("FILE:{}", self.file(name));
        self.realm.kinit("alice", &self.realm.keytab("alice"), &cache, &[])?;
        Ok(cache)
    }

    /// krb5.conf with another text for one of its own.
    pub fn krb5(&self, name: &str, from: &str, to: &str) -> Result<String> {
        let text = std::fs::read_to_string(self.realm.configuration())?;
        ensure!(text.contains(from), "no {from:?} in {text}");
        let path = self.file(name);
        std::fs::write(&path, text.replace(from, to))?;
        Ok(path)
    }

    /// A site's defaults file, for `HEDDLE_CONF_DIR`.
    pub fn site(&self, text: &str) -> Result<String> {
        let dir = tempfile::tempdir_in(self.job.path())?.keep();
        std::fs::write(Path::new(&dir).join("heddle-defaults.toml"), text)?;
        Ok(dir.display().to_string())
    }

    /// Each row of the table has been seen.
    pub fn are_complete(&self) -> Result<()> {
        let seen: BTreeSet<_> = self.texts.borrow().values().copied().collect();
        let missing: Vec<_> = ROWS.iter().filter(|(row, _)| !seen.contains(row)).collect();
        ensure!(missing.is_empty(), "not tested: {missing:?}");
        Ok(())
    }
}

/// What a submission would leave: outputs of the job, and applications of its name. Other tests submit meanwhile.
fn left(cluster: &Cluster) -> Result<String> {
    let listed = cluster.dfs("alice", &["-ls", "-C", "/user/alice/bad-input"])?;
    let applications =
        cluster.rm_get("/ws/v1/cluster/apps?user.name=alice&applicationTypes=HEDDLE")?;
    let applications = applications["apps"]["app"].as_array().cloned().unwrap_or_default();
    let own = applications.iter().filter(|app| app["name"] == "bad-input").count();
    Ok(format!("{own} applications, {}", String::from_utf8_lossy(&listed)))
}

#[test]
fn each_bad_input_has_a_text_of_its_own() -> Result<()> {
    let (cluster, realm) = cluster()?;
    let table = BadInput::new(cluster, realm)?;
    let before = left(cluster)?;
    let sections: [(&str, &dyn Fn() -> Result<()>); 13] = [
        ("ticket caches", &|| failed_logins::ticket_caches(&table)),
        ("keytabs", &|| failed_logins::keytabs(&table)),
        ("realms", &|| failed_logins::realms(&table)),
        ("clocks", &|| failed_logins::clocks(&table)),
        ("other servers", &|| failed_logins::other_servers(&table)),
        ("false ResourceManagers", &|| failed_logins::false_resource_managers(&table)),
        ("false NameNodes", &|| failed_logins::false_namenodes(&table)),
        ("protections", &|| failed_logins::protections(&table, cluster)),
        ("tokens", &|| failed_logins::tokens(&table)),
        ("site's file", &|| bad_sites::defaults_files(&table)),
        ("properties", &|| bad_sites::properties(&table)),
        ("file systems", &|| bad_sites::file_systems(&table, cluster)),
        ("jar", &|| bad_sites::jars(&table)),
    ];
    for (name, section) in sections {
        section().context(name)?;
    }
    table.are_complete()?;
    ensure!(left(cluster)? == before, "something is left: {} and not {before}", left(cluster)?);
    Ok(())
}
