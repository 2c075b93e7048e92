//! HDFS behind [`Storage`], by hdfs-native and with what it lacks around it.
//!
//! - **Configuration** is read by `heddle-hadoop` (variables, `final`, includes) and handed over
//!   resolved; hdfs-native reads no file itself.
//! - **Every call has a deadline**: the client has none of its own, and a NameNode that hangs would
//!   hang its caller for ever. A changing call that is late has an unknown outcome.
//! - **Calls run as tasks of one runtime** that lives as long as the process: connections and lease
//!   renewals must outlive their callers' runtimes, and a panic inside the client ends one call.
//! - **Files never stay open**: a writer that fails or is dropped deletes its file, since nobody else
//!   could close it before its lease expires.
//! - Parents are never made, nothing is overwritten, modes are explicit.
//!
//! Not here: block locations, delegation tokens and quotas, which hdfs-native does not know.

mod error;
mod stream;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hdfs_native::client::FileStatus;
use hdfs_native::{Client, ClientBuilder, HdfsError, WriteOptions};
use heddle_hadoop::configuration::Environment;
use heddle_hadoop::token::Credentials;
use heddle_hadoop::{Configuration, User};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Op, Reason, StorageError, WriteError};
use crate::path::StorePath;
use crate::store::{Entry, Kind, Mode, Reader, Storage, Writer};
use error::{read_error, write_error};
use stream::{HdfsReader, HdfsWriter};

/// How long one call may take. Longer than a NameNode's fail-over, shorter than a checkpoint's patience.
const CALL: Duration = Duration::from_secs(60);
/// hdfs-native asks a NameNode for a closed file for 15 s by itself, and the last packets take their time.
const CLOSE: Duration = Duration::from_secs(120);
/// Port of a NameNode where the URL names none.
const DEFAULT_PORT: u16 = 8020;

/// One HDFS.
#[derive(Debug, Clone)]
pub struct HdfsStorage {
    client: Arc<Client>,
    /// `hdfs://…` without path, for messages.
    url: String,
    options: WriteOptionsOf,
    calls: Calls,
}

/// What the configuration says about new files; the server's defaults where it says nothing.
#[derive(Debug, Clone, Copy, Default)]
struct WriteOptionsOf {
    replication: Option<u32>,
    block_size: Option<u64>,
}

/// Where calls run.
#[derive(Debug, Clone)]
struct Calls {
    runtime: Handle,
}

/// Why a call gave no result.
enum Failed {
    Hdfs(HdfsError),
    /// No answer in time.
    Late,
    /// The client panicked.
    Panic,
}

impl Calls {
    /// The runtime of this process, made at the first use.
    fn get() -> std::io::Result<Self> {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        static MAKING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if RUNTIME.get().is_none() {
            // One thread computes CRCs and moves packets of one stream at some 800 MB/s; two serve a
            // node's network.
            let runtime = Builder::new_multi_thread()
                .worker_threads(2)
                .thread_name("hdfs-io")
                .enable_all()
                .build()?;
            let _was_empty = RUNTIME.set(runtime);
        }
        let runtime = RUNTIME
            .get()
            .expect("set just now, under the lock")
            .handle()
            .clone();
        Ok(Self { runtime })
    }

    async fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, HdfsError>> + Send + 'static,
    ) -> Result<T, Failed> {
        let task = self
            .runtime
            .spawn(async move { tokio::time::timeout(limit, call).await });
        match task.await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(error))) => Err(Failed::Hdfs(error)),
            Ok(Err(_)) => Err(Failed::Late),
            Err(_) => Err(Failed::Panic),
        }
    }
}

impl Failed {
    fn read(self, op: Op, place: &str) -> StorageError {
        match self {
            Self::Hdfs(error) => read_error(op, place, error),
            Self::Late => {
                StorageError::new(op, place, Reason::Unavailable).because("no answer in time")
            }
            Self::Panic => {
                StorageError::new(op, place, Reason::Other).because("the HDFS client panicked")
            }
        }
    }

    fn write(self, op: Op, place: &str) -> WriteError {
        match self {
            Self::Hdfs(error) => write_error(op, place, error),
            other => WriteError::Unknown(other.read(op, place)),
        }
    }
}

impl HdfsStorage {
    /// The storage of an authority (`host:port`, a name service, or empty for `fs.defaultFS`), by the
    /// configuration of this process. One client per authority and process, since leases are renewed
    /// per client.
    ///
    /// # Errors
    /// When the configuration cannot be read or names no such storage.
    pub fn connect(authority: &str) -> Result<Arc<Self>, StorageError> {
        static CONNECTED: Mutex<BTreeMap<String, Arc<HdfsStorage>>> = Mutex::new(BTreeMap::new());
        let mut connected = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(storage) = connected.get(authority) {
            return Ok(Arc::clone(storage));
        }
        let place = format!("hdfs://{authority}/");
        let configuration = Configuration::load(Environment::of_process())
            .map_err(|error| StorageError::new(Op::Open, &place, Reason::Other).because(error))?;
        let storage = Arc::new(Self::new(authority, &configuration)?);
        connected.insert(authority.to_owned(), Arc::clone(&storage));
        Ok(storage)
    }

    /// The same by a given configuration, with a client of its own.
    ///
    /// # Errors
    /// `Unsupported` when no authority is given and `fs.defaultFS` names none; `Denied` when the
    /// cluster is secured and the token file cannot be read; what hdfs-native says.
    pub fn new(authority: &str, configuration: &Configuration) -> Result<Self, StorageError> {
        let failed = |reason| StorageError::new(Op::Open, format!("hdfs://{authority}/"), reason);
        let url = url_of(authority, configuration).map_err(failed)?;
        let secured = configuration
            .trimmed("hadoop.security.authentication")
            .map_err(|error| failed(Reason::Other).because(error))?
            .is_some_and(|how| !how.eq_ignore_ascii_case("simple"));
        if secured {
            // hdfs-native takes an unreadable token file for none, and panics at a truncated one.
            Credentials::of_environment(configuration)
                .map_err(|error| failed(Reason::Denied).because(error))?;
        }
        let user = User::resolve(configuration.environment(), secured)
            .map_err(|error| failed(Reason::Denied).because(error))?;
        // A key whose value cannot be resolved is nothing that hdfs-native could use either.
        let resolved = configuration
            .keys()
            .filter_map(|key| Some((key.to_owned(), configuration.get(key).ok()??)));
        let calls = Calls::get().map_err(|error| failed(Reason::Other).because(error))?;
        let builder = ClientBuilder::new()
            .with_url(&url)
            // A directory that is none: all there is to know is handed over.
            .with_config_dir("/dev/null")
            .with_config(resolved.collect::<Vec<_>>())
            .with_io_runtime(calls.runtime.clone());
        let builder = if secured {
            builder
        } else {
            builder.with_user(user.short_name())
        };
        // Looks up accounts and, for some configurations, names; panics are its way to say no to some.
        let client = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.build()))
            .map_err(|_| failed(Reason::Other).because("the HDFS client panicked"))?
            .map_err(|error| read_error(Op::Open, &url, error))?;
        let number = |key: &str| {
            configuration
                .size(key, 0)
                .ok()
                .and_then(|n| u64::try_from(n).ok())
                .filter(|n| *n > 0)
        };
        let options = WriteOptionsOf {
            replication: number("dfs.replication").and_then(|n| u32::try_from(n).ok()),
            block_size: number("dfs.blocksize"),
        };
        Ok(Self {
            client: Arc::new(client),
            url,
            options,
            calls,
        })
    }

    /// Runs a reading call.
    async fn read<T, F>(
        &self,
        op: Op,
        path: &StorePath,
        call: impl FnOnce(Arc<Client>, String) -> F,
    ) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, HdfsError>> + Send + 'static,
    {
        let call = call(Arc::clone(&self.client), path.as_str().to_owned());
        self.calls
            .run(CALL, call)
            .await
            .map_err(|failed| failed.read(op, &self.show(path)))
    }

    /// Runs a changing call.
    async fn change<T, F>(
        &self,
        op: Op,
        path: &StorePath,
        call: impl FnOnce(Arc<Client>, String) -> F,
    ) -> Result<T, WriteError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, HdfsError>> + Send + 'static,
    {
        let call = call(Arc::clone(&self.client), path.as_str().to_owned());
        self.calls
            .run(CALL, call)
            .await
            .map_err(|failed| failed.write(op, &self.show(path)))
    }

    async fn status(&self, op: Op, path: &StorePath) -> Result<FileStatus, StorageError> {
        self.read(op, path, |client, path| async move {
            client.get_file_info(&path).await
        })
        .await
    }

    async fn delete(&self, path: &StorePath, wanted: Kind) -> Result<(), WriteError> {
        let status = self
            .status(Op::Delete, path)
            .await
            .map_err(WriteError::NotDone)?;
        let refuse = |reason| {
            Err(WriteError::NotDone(StorageError::new(
                Op::Delete,
                self.show(path),
                reason,
            )))
        };
        match (wanted, status.isdir) {
            (Kind::File, true) => return refuse(Reason::IsADirectory),
            (Kind::Dir, false) => return refuse(Reason::NotADirectory),
            _ => {}
        }
        let recursive = wanted == Kind::Dir;
        let deleted = self
            .change(Op::Delete, path, move |client, path| async move {
                client.delete(&path, recursive).await
            })
            .await?;
        if deleted {
            Ok(())
        } else {
            refuse(Reason::NotFound)
        }
    }
}

/// The URL to connect to.
fn url_of(authority: &str, configuration: &Configuration) -> Result<String, Reason> {
    if authority.is_empty() {
        let default = configuration
            .trimmed("fs.defaultFS")
            .ok()
            .flatten()
            .unwrap_or_default();
        let authority = default.strip_prefix("hdfs://").unwrap_or_default();
        let authority = authority.split('/').next().unwrap_or_default();
        if authority.is_empty() {
            let what =
                "fs.defaultFS names no HDFS; write hdfs://host:port/… or set HADOOP_CONF_DIR";
            return Err(Reason::Unsupported(what.to_owned()));
        }
        return url_of(authority, configuration);
    }
    let is_service = configuration
        .get(&format!("dfs.ha.namenodes.{authority}"))
        .ok()
        .flatten()
        .is_some();
    let has_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(if is_service || has_port {
        format!("hdfs://{authority}")
    } else {
        format!("hdfs://{authority}:{DEFAULT_PORT}")
    })
}

fn entry(path: StorePath, status: &FileStatus) -> Entry {
    Entry {
        path,
        kind: if status.isdir { Kind::Dir } else { Kind::File },
        bytes: if status.isdir {
            0
        } else {
            status.length as u64
        },
        modified_ms: status.modification_time,
    }
}

#[async_trait]
impl Storage for HdfsStorage {
    fn show(&self, path: &StorePath) -> String {
        format!("{}{path}", self.url)
    }

    async fn create(&self, path: &StorePath, mode: Mode) -> Result<Box<dyn Writer>, WriteError> {
        let options = WriteOptions {
            block_size: self.options.block_size,
            replication: self.options.replication,
            permission: mode.0,
            overwrite: false,
            create_parent: false,
        };
        let writer = self
            .change(Op::Create, path, |client, path| async move {
                client.create(&path, options).await
            })
            .await?;
        Ok(Box::new(HdfsWriter::new(
            self.clone(),
            path.clone(),
            writer,
        )))
    }

    async fn open(&self, path: &StorePath, offset: u64) -> Result<Box<dyn Reader>, StorageError> {
        let reader = self
            .read(Op::Open, path, |client, path| async move {
                client.read(&path).await
            })
            .await?;
        Ok(Box::new(HdfsReader::start(
            &self.calls.runtime,
            reader,
            offset,
            self.show(path),
        )))
    }

    async fn read_range(
        &self,
        path: &StorePath,
        offset: u64,
        len: usize,
    ) -> Result<Bytes, StorageError> {
        let reader = self
            .read(Op::Open, path, |client, path| async move {
                client.read(&path).await
            })
            .await?;
        // Beyond the end hdfs-native panics.
        let (found, expected) = (
            reader.file_length() as u64,
            offset.saturating_add(len as u64),
        );
        if expected > found {
            return Err(StorageError::new(
                Op::Read,
                self.show(path),
                Reason::Short { expected, found },
            ));
        }
        let from =
            usize::try_from(offset).expect("not beyond the end of a file whose length is a usize");
        let read = self
            .read(Op::Read, path, |_, _| async move {
                reader.read_range(from, len).await
            })
            .await?;
        if read.len() != len {
            return Err(
                StorageError::new(Op::Read, self.show(path), Reason::Unavailable)
                    .because(format!("{} of {len} bytes came", read.len())),
            );
        }
        Ok(read)
    }

    async fn stat(&self, path: &StorePath) -> Result<Entry, StorageError> {
        let status = self.status(Op::Stat, path).await?;
        Ok(entry(path.clone(), &status))
    }

    async fn list(&self, path: &StorePath) -> Result<Vec<Entry>, StorageError> {
        let children = self
            .read(Op::List, path, |client, path| async move {
                client.list_status(&path, false).await
            })
            .await?;
        // A file lists itself, under its own path.
        if let [only] = &*children
            && !only.isdir
            && only.path.trim_end_matches('/') == path.as_str()
        {
            return Err(StorageError::new(
                Op::List,
                self.show(path),
                Reason::NotADirectory,
            ));
        }
        let mut entries: Vec<_> = children
            .iter()
            .filter_map(|status| {
                Some(entry(
                    path.join(status.path.rsplit('/').next()?).ok()?,
                    status,
                ))
            })
            .collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    async fn mkdir(&self, path: &StorePath, mode: Mode) -> Result<(), WriteError> {
        // The NameNode calls it a success when the directory is there already.
        match self.status(Op::Mkdir, path).await {
            Ok(_) => {
                return Err(WriteError::NotDone(StorageError::new(
                    Op::Mkdir,
                    self.show(path),
                    Reason::Exists,
                )));
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(WriteError::NotDone(error)),
        }
        self.change(Op::Mkdir, path, move |client, path| async move {
            client.mkdirs(&path, mode.0, false).await
        })
        .await
    }

    async fn rename(&self, from: &StorePath, to: &StorePath) -> Result<(), WriteError> {
        let (client, source, target) = (
            Arc::clone(&self.client),
            from.as_str().to_owned(),
            to.as_str().to_owned(),
        );
        let call = async move { client.rename(&source, &target, false).await };
        let place = || format!("{} to {to}", self.show(from));
        self.calls
            .run(CALL, call)
            .await
            .map_err(|failed| failed.write(Op::Rename, &place()))
    }

    async fn delete_file(&self, path: &StorePath) -> Result<(), WriteError> {
        self.delete(path, Kind::File).await
    }

    async fn delete_dir(&self, path: &StorePath) -> Result<(), WriteError> {
        self.delete(path, Kind::Dir).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(pairs: &[(&str, &str)]) -> Configuration {
        let environment = Environment::empty().with_variable("HADOOP_USER_NAME", "alice");
        let mut configuration = Configuration::empty(environment);
        for (key, value) in pairs {
            configuration.set(key, *value, "test");
        }
        configuration
    }

    #[test]
    fn the_namenode_is_found_by_url_default_or_name_service() {
        let plain = configuration(&[("fs.defaultFS", "hdfs://nn.example:9000/")]);
        assert_eq!(url_of("", &plain), Ok("hdfs://nn.example:9000".to_owned()));
        assert_eq!(url_of("other", &plain), Ok("hdfs://other:8020".to_owned()));
        assert_eq!(
            url_of("other:1234", &plain),
            Ok("hdfs://other:1234".to_owned())
        );
        let service = configuration(&[
            ("fs.defaultFS", "hdfs://ns1"),
            ("dfs.ha.namenodes.ns1", "a,b"),
        ]);
        assert_eq!(url_of("", &service), Ok("hdfs://ns1".to_owned()));
    }

    #[test]
    fn without_a_default_the_next_step_is_named() {
        for other in [
            configuration(&[]),
            configuration(&[("fs.defaultFS", "file:///")]),
        ] {
            let Err(Reason::Unsupported(what)) = url_of("", &other) else {
                panic!("refused")
            };
            assert!(what.contains("HADOOP_CONF_DIR"), "{what}");
        }
    }

    #[tokio::test]
    async fn a_namenode_that_is_not_there_is_unavailable() {
        // A port that nobody listens on: taken, and given back.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .expect("bound")
            .local_addr()
            .expect("bound")
            .port();
        let quick = configuration(&[("dfs.client.failover.max.attempts", "1")]);
        let storage = HdfsStorage::new(&format!("127.0.0.1:{port}"), &quick).expect("no call yet");
        let error = storage
            .stat(&StorePath::root())
            .await
            .expect_err("nobody there");
        assert!(error.is_retryable(), "{error}");
        let error = storage
            .create(&StorePath::parse("/x").expect("a path"), Mode::FILE)
            .await
            .expect_err("nobody there");
        assert!(!error.is_unknown(), "nothing was sent: {error}");
    }
}
