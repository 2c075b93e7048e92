//! Setting tracing up, once per process.
//!
//! Two places: stderr, for whoever started the process (a container's stderr is a file of its own),
//! and a file in the log directory that is bounded in size (see [`crate::rotate`]), so that a job of
//! weeks fills no disk. `RUST_LOG` or an explicit filter chooses what is told; INFO tells the story.

use std::io::IsTerminal;
use std::path::PathBuf;

use tracing::Subscriber;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::rotate::{Bounds, RotatingFile};

/// How an event is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A line for people: time, level, spans, message, fields.
    #[default]
    Human,
    /// A JSON object a line.
    Json,
}

/// Where and how a process logs.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// `am`, `pserver`, `trainer`, `heddle`: the file is `<process>.log`.
    pub process: &'static str,
    /// Folder of the log file, which must exist; nothing: no file.
    pub dir: Option<PathBuf>,
    /// Of both places.
    pub format: Format,
    /// What is told on stderr when `RUST_LOG` is not set, such as `warn` or `info,heddle_am=debug`.
    /// Empty: nothing. The file tells at least `info`.
    pub stderr: &'static str,
    /// Of the file.
    pub bounds: Bounds,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log file cannot be opened.
    #[error("log file {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// `RUST_LOG` is no filter.
    #[error("RUST_LOG")]
    Filter(#[source] tracing_subscriber::filter::FromEnvError),
    /// Somebody set it up before.
    #[error("logging was set up before")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Sets tracing up for this process.
///
/// # Errors
/// The file cannot be opened, `RUST_LOG` is no filter, or this was called before.
pub fn init(setup: &Setup) -> Result<(), LogError> {
    let filter = |default: &str| match std::env::var_os("RUST_LOG") {
        Some(value) if !value.is_empty() => EnvFilter::try_from_default_env(),
        _ => Ok(EnvFilter::new(default)),
    };
    let stderr = if setup.stderr.is_empty() {
        None
    } else {
        let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let layer = layer(std::io::stderr, setup.format, colours);
        Some(layer.with_filter(filter(setup.stderr).map_err(LogError::Filter)?))
    };
    let file = match &setup.dir {
        None => None,
        Some(dir) => {
            let path = dir.join(format!("{}.log", setup.process));
            let file = RotatingFile::open(&path, setup.bounds)
                .map_err(|source| LogError::File { path, source })?;
            let layer = layer(file, setup.format, false);
            Some(layer.with_filter(filter("info").map_err(LogError::Filter)?))
        }
    };
    tracing_subscriber::registry().with(stderr).with(file).try_init().map_err(LogError::Twice)
}

fn layer<S, W>(writer: W, format: Format, colours: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    match format {
        Format::Human => {
            fmt::layer().with_writer(writer).with_ansi(colours).with_target(false).boxed()
        }
        Format::Json => fmt::layer().json().with_writer(writer).boxed(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn an_event_reaches_the_file_in_either_format() {
        let dir = tempfile::tempdir().unwrap();
        for (format, name) in [(Format::Human, "human"), (Format::Json, "json")] {
            let path = dir.path().join(name);
            let file = RotatingFile::open(&path, Bounds::default()).unwrap();
            let subscriber = tracing_subscriber::registry().with(layer(file, format, true));
            tracing::subscriber::with_default(subscriber, || {
                tracing::info!(shard = 3, "shard saved");
            });
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains("shard saved") && text.ends_with('\n'), "{text}");
            if format == Format::Json {
                let event: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(event["fields"]["shard"], 3);
            }
        }
    }
}
