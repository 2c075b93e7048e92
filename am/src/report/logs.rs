//! Fetches the last bytes of the logs of failed containers from their NodeManagers, and stores them beside the report.
//!
//! ```text
//! GET /ws/v1/node/containers/<container>/logs                          names, as JSON (Hadoop 2.9 and later)
//! GET /ws/v1/node/containers/<container>/logs/<file>?size=-1048576     the last MiB, framed
//! GET /ws/v1/node/containerlogs/<container>/<file>                     the same of older NodeManagers, all of it, bare
//! ```
//!
//! No failure here fails the job: a node may be lost, use TLS, or have deleted its logs. The report names what is
//! missing. Source: `NMWebServices`, `ContainerLogsInfo`, `LogToolUtils`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use heddle_protocol::url;
use heddle_storage::{Mode, Storage, StorePath, chain, make_dirs, publish_small};

use super::fetch::{self, FetchError, Keep};
use super::{ContainerSummary, JobReport};

/// Most bytes kept of each file.
pub const TAIL_BYTES_MAX: usize = 1 << 20;
/// Files of one container: its output, its own rotated logs, and the NodeManager's.
const FILES_MAX: usize = 8;
/// Most containers whose logs are copied, newest first. More would delay the end and rarely add information.
const CONTAINERS_MAX: usize = 20;
/// Timeout of one request: the first page of a NodeManager takes seconds on a busy machine.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Names of a container's logs, JSON.
const LISTING_BYTES_MAX: usize = 1 << 20;
/// Most bytes of the head and foot that a NodeManager adds to a tail.
const FRAME_BYTES_MAX: usize = 8 * 1024;
/// Files to request if the NodeManager lists none.
const USUAL: [&str; 2] = ["stderr", "stdout"];

/// The kept logs of one container, or the reason why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The container.
    pub end: ContainerSummary,
    /// Names and lengths of the files kept.
    pub files: Vec<(String, usize)>,
    /// Why logs are missing; empty if all were fetched.
    pub problem: String,
}

/// Stores the logs of failed containers, newest first, under `<dir>/logs/<slot>-<incarnation>/`, mode 0600.
/// Starts no further container after `limit`, and takes some seconds more at most. `user` is the application's user,
/// for clusters without security.
pub async fn keep(
    storage: &dyn Storage,
    dir: &StorePath,
    report: &JobReport,
    user: &str,
    limit: Duration,
) -> Vec<Kept> {
    let begun = Instant::now();
    let mut all = Vec::new();
    for (end, placement) in report.failed().take(CONTAINERS_MAX) {
        if begun.elapsed() >= limit {
            break;
        }
        let (files, problem) = match tails(&placement.node_http, &placement.container, user).await {
            Ok(tails) => save(storage, dir, end, tails).await,
            Err(problem) => (Vec::new(), problem),
        };
        all.push(Kept { end: end.clone(), files, problem });
    }
    all
}

async fn save(
    storage: &dyn Storage,
    dir: &StorePath,
    end: &ContainerSummary,
    tails: Vec<(String, Vec<u8>)>,
) -> (Vec<(String, usize)>, String) {
    let mut files = Vec::new();
    let name = format!("{}-{}", end.slot, end.incarnation);
    let place = match dir.join("logs").and_then(|logs| logs.join(&name)) {
        Ok(place) => place,
        Err(error) => return (files, error.to_string()),
    };
    if let Err(error) = make_dirs(storage, &place, Mode::DIR).await {
        return (files, chain(&error));
    }
    for (name, tail) in tails {
        let bytes = tail.len();
        let Ok(path) = place.join(&name) else {
            continue;
        };
        match publish_small(storage, &path, tail.into()).await {
            Ok(()) => files.push((name, bytes)),
            // An earlier attempt has stored them.
            Err(error) if error.error().is_exists() => files.push((name, bytes)),
            Err(error) => return (files, chain(&error)),
        }
    }
    (files, String::new())
}

/// Names and last bytes of a container's log files, at most [`TAIL_BYTES_MAX`] of each; those without content are left
/// out. `node_http` is `host:port` of its NodeManager's web server, `user` the application's.
///
/// # Errors
/// The reason as text.
pub async fn tails(
    node_http: &str,
    container: &str,
    user: &str,
) -> Result<Vec<(String, Vec<u8>)>, String> {
    if !url::is_authority(node_http) || !url::is_container(container) {
        return Err("the web server of its node is not known".to_owned());
    }
    // A cluster without security trusts the name; a secured one ignores it.
    let name = if url::is_user(user) { format!("user.name={user}") } else { String::new() };
    let base = format!("http://{node_http}/ws/v1/node");
    let listing = format!("{base}/containers/{container}/logs?{name}");
    let reason = |error: FetchError| chain(&error);
    let listed = fetch::get(&listing, Keep::Start(LISTING_BYTES_MAX), REQUEST_LIMIT)
        .await
        .map_err(reason)?;
    let names = match listed.status {
        200 => names(&listed.body),
        404 => USUAL.map(str::to_owned).to_vec(),
        status => {
            return Err(format!("the NodeManager answered with HTTP status {status}"));
        }
    };
    let mut tails = Vec::new();
    for file in names {
        let of_new =
            format!("{base}/containers/{container}/logs/{file}?size=-{TAIL_BYTES_MAX}&{name}");
        let of_old = format!("{base}/containerlogs/{container}/{file}?{name}");
        for url in [of_new, of_old] {
            let keep = Keep::End(TAIL_BYTES_MAX + FRAME_BYTES_MAX);
            let answer = fetch::get(&url, keep, REQUEST_LIMIT).await.map_err(reason)?;
            if answer.status != 200 {
                continue;
            }
            let tail = last(unframed(&answer.body, &file));
            if !tail.is_empty() {
                tails.push((file.clone(), tail.to_vec()));
            }
            break;
        }
    }
    Ok(tails)
}

/// Names of log files in a NodeManager's listing. Its JSON has another shape for one entry than for several, and
/// between versions, so every `fileName` in it counts.
fn names(listing: &[u8]) -> Vec<String> {
    fn gather(value: &serde_json::Value, found: &mut BTreeSet<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (key, value) in fields {
                    match value {
                        serde_json::Value::String(name) if key == "fileName" && is_log(name) => {
                            found.insert(name.clone());
                        }
                        other => gather(other, found),
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|one| gather(one, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    // The parser refuses nesting beyond 128, so the recursion ends.
    if let Ok(value) = serde_json::from_slice(listing) {
        gather(&value, &mut found);
    }
    let mut names: Vec<_> = found.into_iter().collect();
    // The output of the process is more useful than the NodeManager's launch log.
    names.sort_by_key(|name| USUAL.iter().position(|usual| usual == name).unwrap_or(USUAL.len()));
    names.truncate(FILES_MAX);
    names
}

/// Whether a name from a NodeManager is a valid file name, here and in a URL.
fn is_log(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// The content without the head and foot that newer NodeManagers write around it.
fn unframed<'a>(body: &'a [u8], file: &str) -> &'a [u8] {
    let Some(contents) = find(&body[..body.len().min(FRAME_BYTES_MAX)], b"\nLogContents:\n")
        .filter(|_| body.starts_with(b"Container: "))
    else {
        return body;
    };
    let content = &body[contents + b"\nLogContents:\n".len()..];
    let foot = format!("End of LogType:{file}");
    let at = content.windows(foot.len()).rposition(|window| window == foot.as_bytes());
    at.map_or(content, |at| &content[..at])
}

fn last(content: &[u8]) -> &[u8] {
    &content[content.len().saturating_sub(TAIL_BYTES_MAX)..]
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use heddle_storage::LocalStorage;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::samples::finished;
    use super::*;

    #[test]
    fn file_names_are_found_in_every_form_of_the_listing() {
        let several = br#"[{"containerLogInfo":[
            {"fileName":"pserver.log","fileSize":"9"},{"fileName":"stderr","fileSize":"1"}],
            "logAggregationType":"LOCAL","containerId":"c","nodeId":"n:1"}]"#;
        assert_eq!(names(several), ["stderr", "pserver.log"]);
        let one = br#"{"containerLogsInfo":{"containerLogInfo":{"fileName":"stdout"}}}"#;
        assert_eq!(names(one), ["stdout"]);
        let hostile = br#"[{"fileName":"../../etc/passwd"},{"fileName":".."},
            {"fileName":"a/b"},{"fileName":"a?b"},{"fileName":7}]"#;
        assert!(names(hostile).is_empty());
        assert!(names(b"<html>").is_empty());
        let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(names(nested.as_bytes()).is_empty());
    }

    const FRAMED: &str = "Container: container_1_0005_01_000002 on n1_45454\n\
        LogAggregationType: LOCAL\n\
        ==========\nLogType:stderr\nLogLastModifiedTime:Tue Nov 14\nLogLength:12\nLogContents:\n\
        last words!\n\
        End of LogType:stderr.This log file belongs to a running container\n*******\n\n";

    #[test]
    fn frame_of_the_nodemanager_is_removed() {
        assert_eq!(unframed(FRAMED.as_bytes(), "stderr"), b"last words!\n");
        assert_eq!(unframed(b"bare\nLogContents:\nx", "stderr"), b"bare\nLogContents:\nx");
        assert_eq!(unframed(b"", "stderr"), b"");
    }

    /// A NodeManager that sends these answers in order, and returns the requests that it received.
    async fn node(answers: Vec<(u16, String)>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = tokio::spawn(async move {
            let mut asked = Vec::new();
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).await.unwrap();
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                asked.push(head.lines().next().unwrap().to_owned());
                let answer =
                    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            asked
        });
        (address, asked)
    }

    #[tokio::test]
    async fn last_bytes_of_a_failed_container_are_kept() {
        let listing = r#"[{"containerLogInfo":[{"fileName":"stderr"},{"fileName":"stdout"}]}]"#;
        let (address, asked) = node(vec![
            (200, listing.into()),
            (200, FRAMED.into()),
            (404, String::new()),
            (200, "x".repeat(3 * TAIL_BYTES_MAX) + "end"),
        ])
        .await;
        let mut report = finished();
        for end in &mut report.containers {
            end.placement.as_mut().unwrap().node_http.clone_from(&address);
        }
        let dir = tempfile::tempdir().unwrap();
        let place = StorePath::parse(dir.path().to_str().unwrap()).unwrap();
        let kept = keep(&LocalStorage, &place, &report, "alice", Duration::from_secs(10)).await;
        assert_eq!(kept.len(), 1, "only what failed: {kept:?}");
        assert_eq!(kept[0].problem, "");
        assert_eq!(
            kept[0].files,
            [("stderr".to_owned(), 12), ("stdout".to_owned(), TAIL_BYTES_MAX)]
        );
        let read =
            |name: &str| std::fs::read_to_string(dir.path().join("logs/pserver-0-1").join(name));
        assert_eq!(read("stderr").unwrap(), "last words!\n");
        assert!(read("stdout").unwrap().ends_with("xxend"));
        let container = "container_1700000000000_0005_01_000002";
        assert_eq!(
            asked.await.unwrap(),
            [
                format!("GET /ws/v1/node/containers/{container}/logs?user.name=alice HTTP/1.1"),
                format!(
                    "GET /ws/v1/node/containers/{container}/logs/stderr?size=-1048576&user.name=alice HTTP/1.1"
                ),
                format!(
                    "GET /ws/v1/node/containers/{container}/logs/stdout?size=-1048576&user.name=alice HTTP/1.1"
                ),
                format!(
                    "GET /ws/v1/node/containerlogs/{container}/stdout?user.name=alice HTTP/1.1"
                ),
            ]
        );
    }

    #[tokio::test]
    async fn unreachable_node_is_named_as_the_problem() {
        let mut report = finished();
        for end in &mut report.containers {
            end.placement.as_mut().unwrap().node_http = "127.0.0.1:1".into();
        }
        let dir = tempfile::tempdir().unwrap();
        let place = StorePath::parse(dir.path().to_str().unwrap()).unwrap();
        let kept = keep(&LocalStorage, &place, &report, "alice", Duration::from_secs(10)).await;
        assert!(kept[0].problem.starts_with("cannot connect"), "{kept:?}");
        for hostile in ["", "evil/..", "a@b:1"] {
            let found = tails(hostile, "container_1", "alice").await;
            assert_eq!(found.unwrap_err(), "the web server of its node is not known");
        }
    }
}
