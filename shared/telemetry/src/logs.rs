//! Initialises tracing, once per process.
//!
//! Events go to stderr (a container's stderr is a file of its own) and to a file of bounded size in the log directory (see
//! [`crate::rotate`]), so that a job of weeks does not fill the disk. `RUST_LOG` or the filter in [`Setup`] selects events.

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

/// Form of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A line of text: time, level, spans, message, fields.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

/// Destinations and format of a process's log.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// `am`, `pserver`, `trainer`, `heddle`: the file is `<process>.log`.
    pub process: &'static str,
    /// Folder of the log file, which must exist; `None` for no file.
    pub dir: Option<PathBuf>,
    /// Format of both destinations.
    pub format: Format,
    /// Filter of stderr if `RUST_LOG` is not set, such as `warn` or `info,heddle_am=debug`. Empty: no events. The file
    /// receives at least `info`.
    pub stderr: &'static str,
    /// Limits of the file.
    pub bounds: Bounds,
}

/// Why logging cannot be initialised.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log file cannot be opened.
    #[error("cannot open log file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// `RUST_LOG` is not a filter.
    #[error("RUST_LOG is not a valid filter")]
    Filter(#[source] tracing_subscriber::filter::FromEnvError),
    /// Logging was initialised before.
    #[error("logging is already initialised")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Initialises tracing for this process.
///
/// # Errors
/// The file cannot be opened, `RUST_LOG` is not a filter, or this function was called before.
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
    fn event_reaches_the_file_in_both_formats() {
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
