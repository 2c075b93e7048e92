//! The program file, as NodeManagers get it: from this machine's path, or from HDFS.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use bytes::BytesMut;
use hdfs_native::{ClientBuilder, WriteOptions};
use heddle_hadoop::Configuration;
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::identity::Identity;
use heddle_hadoop::token::{Credentials, token_kind};
use heddle_yarn::{ApplicationId, LocalResource, ResourceKind, Visibility};
use tokio::io::AsyncReadExt;

/// Bytes of a write.
const CHUNK: usize = 1 << 20;

/// This program's file on HDFS, in a directory of its own below the user's home. `user` is the user of the application.
pub struct Uploaded {
    hdfs: hdfs_native::Client,
    directory: String,
    /// For NodeManagers.
    pub resource: LocalResource,
    /// The session's tokens, by which NodeManagers copy it; none without security.
    pub tokens: Credentials,
}

impl Uploaded {
    /// Copies this program to the default file system.
    pub async fn new(user: &str, application: ApplicationId) -> Result<Self> {
        let configuration = Configuration::load(Environment::of_process())?;
        let default_fs = configuration.trimmed("fs.defaultFS")?.context("no fs.defaultFS")?;
        let identity = Identity::resolve(&configuration)?;
        let tokens = identity.credentials;
        // hdfs-native would send the user's Kerberos ticket to the server.
        ensure!(
            !identity.policy.required
                || tokens.of_kind(token_kind::HDFS_DELEGATION).next().is_some(),
            "on a secured cluster this needs a token of HDFS in HADOOP_TOKEN_FILE_LOCATION"
        );
        // Reads HADOOP_CONF_DIR and the token file too.
        let hdfs = ClientBuilder::new().with_url(&default_fs).with_user(user).build()?;
        let directory = format!("/user/{user}/.hello-yarn/{application}");
        // Only the user may read it: the NodeManager copies it as the user.
        hdfs.mkdirs(&directory, 0o700, true).await?;
        let path = format!("{directory}/hello-yarn");
        let mut to = hdfs.create(&path, WriteOptions::default().permission(0o700)).await?;
        let mut from = tokio::fs::File::open(std::env::current_exe()?).await?;
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            if from.read_buf(&mut chunk).await? == 0 {
                break;
            }
            to.write_bytes(chunk.freeze()).await?;
        }
        to.close().await?;
        // Read after the close, which changes the time. A NodeManager refuses a file with another time.
        let status = hdfs.get_file_info(&path).await?;
        let resource = LocalResource {
            url: format!("{}{path}", default_fs.trim_end_matches('/')).parse()?,
            size: i64::try_from(status.length)?,
            timestamp_ms: i64::try_from(status.modification_time)?,
            kind: ResourceKind::File,
            visibility: Visibility::Application,
        };
        Ok(Self { hdfs, directory, resource, tokens })
    }

    /// Removes the directory.
    pub async fn remove(self) -> Result<()> {
        self.hdfs.delete(&self.directory, true).await?;
        Ok(())
    }
}

/// This program's file, for NodeManagers that see the path, as on one machine.
pub fn in_place() -> Result<LocalResource> {
    let path: PathBuf = std::env::current_exe()?.canonicalize()?;
    let metadata = path.metadata()?;
    let modified = metadata.modified()?.duration_since(UNIX_EPOCH)?;
    Ok(LocalResource {
        url: format!("file://{}", path.display()).parse()?,
        size: i64::try_from(metadata.len())?,
        timestamp_ms: i64::try_from(modified.as_millis())?,
        kind: ResourceKind::File,
        visibility: Visibility::Application,
    })
}
