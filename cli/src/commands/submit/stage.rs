//! The staging directory of an application: everything its ApplicationMaster and containers are given.

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_am::run_dir::RunFile;
use heddle_am::staging::{CONF_DIR, HOME_DIR, PROGRAM, StagedFile, YARN_FILE, YarnFile};
use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::Origin;
use heddle_protocol::handshake::Secret;
use heddle_protocol::spec::{JobSpec, Location};
use heddle_yarn::ApplicationId;
use tokio::task::JoinSet;

use super::upload::{self, Upload, Uploads};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::site::Site;

/// Name of the file with the job's secret (64 hexadecimal digits) in the staging directory: by it the same user
/// commands the job from another shell.
pub const SECRET_FILE: &str = "secret";

/// What was staged.
pub struct Staged {
    /// What the ApplicationMaster's container gets, by name there.
    pub am: BTreeMap<String, StagedFile>,
}

/// What the job is, besides what is uploaded.
pub struct Content<'a> {
    /// The application.
    pub application: ApplicationId,
    /// The staging directory.
    pub staging: &'a Location,
    /// Run and options.
    pub run: &'a RunFile,
    /// The job, with all its places on the cluster.
    pub spec: &'a JobSpec,
    /// Its secret.
    pub secret: &'a Secret,
}

/// Uploads everything, all files at once.
///
/// # Errors
/// What cannot be written, and why. The staging directory may hold a part; the caller removes it.
pub async fn stage(
    site: &Arc<Site>,
    content: &Content<'_>,
    uploads: &Uploads,
) -> Result<Staged, Failure> {
    let home = site.home()?;
    let id = content.application.to_string();
    let own = [HOME_DIR, "staging", &id];
    tokio::try_join!(
        site.make_dirs(&home, &[HOME_DIR, "bin"]),
        site.make_dirs(&home, &own),
        site.make_dirs(&home, &[HOME_DIR, "reports"]),
    )?;
    let staging = content.staging;
    let folders = [
        (CONF_DIR, true),
        ("files", !uploads.files.is_empty()),
        ("am", true),
    ];
    for (folder, _) in folders.iter().filter(|(_, wanted)| *wanted) {
        site.make_dirs(staging, &[*folder]).await?;
    }
    if let Some(first) = uploads.data.first() {
        let dir = first.to.to_string();
        let name = dir.rsplit('/').nth(1).unwrap_or_default().to_owned();
        site.make_dirs(&home, &[HOME_DIR, "data", &name]).await?;
    }

    let mut shared: JoinSet<Result<(String, StagedFile), Failure>> = JoinSet::new();
    program(site, uploads, &mut shared);
    data(site, uploads, &mut shared);
    files(site, content, uploads, &mut shared);
    let conf = core_site(&site.configuration).into_bytes();
    small(
        site,
        content,
        &format!("{CONF_DIR}/core-site.xml"),
        conf,
        &mut shared,
    );
    let mut resources = collect(shared).await?;
    let yarn = content.spec;
    for file in &yarn.yarn.archives {
        if let Some(staged) = resources.get_mut(&file.name) {
            staged.archive = true;
        }
    }

    let file = YarnFile {
        application: id,
        user: site.user.short_name().to_owned(),
        staging: staging.url(),
        reports: site
            .reports(site.user.short_name(), content.application)?
            .url(),
        max_attempts: yarn.yarn.max_attempts,
        resources: resources.clone(),
        env: yarn.yarn.env.clone(),
    };
    let json = |what: &str, bytes: Result<Vec<u8>, serde_json::Error>| {
        bytes
            .map_err(|error| Failure::caused(Exit::Internal, format!("{what} has no form"), &error))
    };
    let mut own = JoinSet::new();
    let run = json("run.json", serde_json::to_vec_pretty(content.run))?;
    small(site, content, "run.json", run, &mut own);
    small(site, content, "spec.json", content.spec.to_json(), &mut own);
    let file = json(YARN_FILE, serde_json::to_vec_pretty(&file))?;
    small(site, content, YARN_FILE, file, &mut own);
    let secret = content.secret.to_hex().into_bytes();
    small(site, content, SECRET_FILE, secret, &mut own);
    resources.append(&mut collect(own).await?);
    // It is in the container's credentials.
    resources.remove(SECRET_FILE);
    Ok(Staged { am: resources })
}

type Sending = JoinSet<Result<(String, StagedFile), Failure>>;

async fn collect(mut sending: Sending) -> Result<BTreeMap<String, StagedFile>, Failure> {
    let mut all = BTreeMap::new();
    while let Some(sent) = sending.join_next().await {
        let (name, file) = sent.map_err(|error| {
            Failure::caused(Exit::Internal, "an upload ended without a result", &error)
        })??;
        // Local data has no name in work directories.
        if !name.is_empty() {
            all.insert(name, file);
        }
    }
    Ok(all)
}

fn program(site: &Arc<Site>, uploads: &Uploads, sending: &mut Sending) {
    let (program, to) = &uploads.program;
    let upload = Upload {
        from: program.path.clone(),
        bytes: program.bytes,
        to: to.clone(),
    };
    let site = Arc::clone(site);
    sending.spawn(async move {
        let (mut staged, _sent) = upload::send_once(&site, &upload).await?;
        staged.shared = true;
        Ok((PROGRAM.to_owned(), staged))
    });
}

fn data(site: &Arc<Site>, uploads: &Uploads, sending: &mut Sending) {
    for upload in uploads.data.clone() {
        let site = Arc::clone(site);
        sending.spawn(async move {
            let (staged, _sent) = upload::send_once(&site, &upload).await?;
            Ok((String::new(), staged))
        });
    }
}

/// Local files are sent to the staging directory, those of the cluster used where they are.
fn files(site: &Arc<Site>, content: &Content<'_>, uploads: &Uploads, sending: &mut Sending) {
    for (name, from, _) in uploads.files.clone() {
        let to = content.staging.join("files").join(&name);
        let site = Arc::clone(site);
        sending.spawn(async move { Ok((name, upload::send(&site, &from, &to).await?)) });
    }
    let yarn = &content.spec.yarn;
    for file in yarn.files.iter().chain(&yarn.archives).cloned() {
        if file.from.as_local().is_none() {
            let site = Arc::clone(site);
            sending.spawn(async move { Ok((file.name, upload::stat(&site, &file.from).await?)) });
        }
    }
}

fn small(
    site: &Arc<Site>,
    content: &Content<'_>,
    name: &str,
    bytes: Vec<u8>,
    sending: &mut Sending,
) {
    let to = content.staging.join(name);
    let (site, name) = (Arc::clone(site), name.to_owned());
    sending.spawn(async move { Ok((name, upload::put(&site, bytes, &to).await?)) });
}

/// What the submitter's configuration says besides Hadoop's defaults, variables replaced, as one file; final, since
/// the defaults of HDFS and YARN are read after core-site.xml and would replace what it says of theirs. Values of
/// keys that speak of secrets stay here.
fn core_site(configuration: &Configuration) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<configuration>\n");
    for key in configuration.keys() {
        let Some(explained) = configuration.explain(key) else {
            continue;
        };
        let default = matches!(explained.setting.origin, Origin::Default(_));
        let Ok(value) = explained.value else { continue };
        if default || is_secret(key) || value.chars().any(|c| c.is_control() && !c.is_whitespace())
        {
            continue;
        }
        let (key, value) = (escaped(key), escaped(&value));
        text.push_str(&format!(
            "  <property><name>{key}</name><value>{value}</value><final>true</final></property>\n"
        ));
    }
    text.push_str("</configuration>\n");
    text
}

/// Whether a key's value is nobody's business, by its name.
fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    [
        "password",
        "passwd",
        "secret",
        "credential",
        "private.key",
        "access.key",
    ]
    .iter()
    .any(|word| key.contains(word))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_hadoop::configuration::Environment;

    use super::*;

    #[test]
    fn the_configuration_goes_without_defaults_and_without_secrets() {
        let mut configuration = Configuration::with_defaults(Environment::empty());
        configuration.set("fs.defaultFS", "hdfs://a&b", "test");
        configuration.set("my.dir", "${fs.defaultFS}/x", "test");
        configuration.set("ssl.server.keystore.password", "canary", "test");
        let text = core_site(&configuration);
        assert!(
            text.contains("<name>fs.defaultFS</name><value>hdfs://a&amp;b</value>"),
            "{text}"
        );
        assert!(text.contains("<value>hdfs://a&amp;b/x</value>"), "{text}");
        assert!(!text.contains("canary"), "{text}");
        assert_eq!(text.matches("<property>").count(), 2, "{text}");
    }

    #[test]
    fn defaults_that_are_read_later_do_not_replace_what_was_shipped() {
        let dir = tempfile::tempdir().unwrap();
        let mut configuration = Configuration::with_defaults(Environment::empty());
        configuration.set("yarn.resourcemanager.hostname", "rm", "test");
        let path = dir.path().join("core-site.xml");
        std::fs::write(path, core_site(&configuration)).unwrap();
        let conf = dir.path().to_str().unwrap();
        let there = Environment::empty().with_variable("HADOOP_CONF_DIR", conf);
        let there = Configuration::load(there).unwrap();
        let scheduler = there.get("yarn.resourcemanager.scheduler.address");
        assert_eq!(scheduler.unwrap().as_deref(), Some("rm:8030"));
    }
}
