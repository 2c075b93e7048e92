//! The logs of an application: from the NodeManagers while these have them, from beside the report when they are
//! kept there, and for the rest the command that asks the cluster's own store.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_am::report::logs::{TAIL_BYTES_MAX, tails};
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view::{JobView, Placement};
use heddle_storage::{chain, read_small};
use heddle_yarn::{ApplicationId, ContainerId, NodeReport, NodeState};

use super::Application;
use crate::cluster::path_of;
use crate::failure::{CommandFailure, CommandResult};
use crate::job::LogQuery;
use crate::output;
use crate::rm_web;

/// Poll interval of followed logs.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// What is searched for in a new tail to find where the last one ended.
const SEAM_BYTES: usize = 4096;

/// Files that the NodeManager writes itself: how a process was started, not its output. (What went wrong there is in
/// prelaunch.err.)
const OF_THE_NODE: [&str; 3] = ["directory.info", "launch_container.sh", "prelaunch.out"];

/// A container whose logs are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogSource {
    /// `trainer-0-1`, `am-1`; the container's id where its slot is not known.
    name: String,
    placement: Placement,
    failed: bool,
}

/// Prints the logs of an application.
///
/// # Errors
/// The cluster does not respond, or the application is another user's.
pub async fn print(application: &mut Application, wanted: &LogQuery) -> CommandResult {
    let mut printed = Printed::default();
    loop {
        // Read before the poll, so that output up to the end is printed.
        let ended = application.is_over();
        let (sources, denied) = sources(application, wanted).await?;
        let mut missing = Vec::new();
        for source in &sources {
            let logs = match logs(application, source).await {
                Ok(logs) => logs,
                Err(reason) => {
                    missing.push((source, reason));
                    continue;
                }
            };
            let logs = logs.into_iter().filter(|(file, _)| !OF_THE_NODE.contains(&&**file));
            for (file, content) in logs {
                printed.print(&format!("{}/{file}", source.name), content, wanted.json)?;
            }
        }
        let is_last = ended || !wanted.follow;
        let none_known = sources.is_empty() && wanted.slot.is_empty();
        if printed.tails.is_empty()
            && (denied.is_some() || (is_last && (none_known || !missing.is_empty())))
            && let Some(mut failure) = of_another_user(application)
        {
            failure
                .causes
                .extend(denied.into_iter().chain(missing.into_iter().map(|(_, why)| why)));
            return Err(failure);
        }
        if is_last {
            elsewhere(application.id(), &sources, &missing, wanted);
            return Ok(ExitCode::Ok);
        }
        tokio::time::sleep(FOLLOW_EVERY).await;
        let _same_as_before = application.refresh().await;
    }
}

/// Why nothing was read of an application of another user: its owner and the users of yarn.view-acl alone see its logs.
fn of_another_user(application: &Application) -> Option<CommandFailure> {
    if application.is_own() {
        return None;
    }
    let id = application.id();
    // The report for a user without view access names no user.
    let owner = match application.report.user.as_str() {
        "" => "another user",
        owner => owner,
    };
    let fact = format!("cannot read the logs of {id} of {owner}");
    Some(CommandFailure::new(ExitCode::Denied, fact).next(format!(
        "{owner} may name you in yarn.view-acl; if the cluster aggregates logs: yarn logs -applicationId {id} -appOwner USER"
    )))
}

/// Prints where the remaining logs may be.
fn elsewhere(
    id: ApplicationId,
    sources: &[LogSource],
    missing: &[(&LogSource, String)],
    wanted: &LogQuery,
) {
    if sources.is_empty() {
        eprintln!("no container of {id} is known; all that the cluster keeps:");
        eprintln!("yarn logs -applicationId {id}");
    }
    if missing.is_empty() || wanted.json {
        return;
    }
    for (source, reason) in missing {
        eprintln!("{}: {reason}", source.name);
    }
    eprintln!("if the cluster aggregates logs:");
    for (source, _) in missing {
        let container = &source.placement.container;
        eprintln!("yarn logs -applicationId {id} -containerId {container}  # {}", source.name);
    }
}

/// All containers that are known: of the ApplicationMaster's view or its report, and those that the
/// ResourceManager counts, which has the nodes' web addresses. Also why the ResourceManager lists none, if it refuses.
async fn sources(
    application: &Application,
    wanted: &LogQuery,
) -> Result<(Vec<LogSource>, Option<String>), CommandFailure> {
    let view = match application.is_over() {
        true => application.last_report_soon().await?.map(|report| report.view),
        false => application.view().await.ok(),
    };
    let mut sources: BTreeMap<String, LogSource> = BTreeMap::new();
    for source in view.iter().flat_map(of_view) {
        sources.insert(source.placement.container.clone(), source);
    }
    let client = &application.cluster.client;
    // For an ended container the ResourceManager's RPC does not return the node; its web server does for an
    // ApplicationMaster's, and a node that still runs is found by its name.
    let (masters, nodes) = tokio::join!(
        rm_web::masters(&application.cluster, application.id()),
        client.nodes(&[NodeState::Running, NodeState::Unhealthy, NodeState::Decommissioning]),
    );
    let nodes = nodes.unwrap_or_default();
    let (attempts, denied) = match client.attempts(application.id()).await {
        Ok(attempts) => (attempts, None),
        Err(error) => (Vec::new(), Some(chain(&error))),
    };
    for attempt in attempts {
        for container in client.containers(attempt.id).await.unwrap_or_default() {
            let id = container.id.to_string();
            let node_http = host_of(&container.log_url).unwrap_or_default().to_owned();
            let source = sources.entry(id.clone()).or_insert_with(|| LogSource {
                name: name_of(container.id),
                placement: Placement { container: id, ..Placement::default() },
                failed: false,
            });
            if source.placement.node_http.is_empty() {
                source.placement.node_http = node_http;
            }
            if let (Some(node), true) = (container.node, source.placement.node.is_empty()) {
                source.placement.node = node.host;
            }
        }
        // The ApplicationMaster's own, also when it is over.
        if let Some(container) = attempt.container {
            let id = container.to_string();
            let source = sources.entry(id.clone()).or_insert_with(|| LogSource {
                name: name_of(container),
                placement: Placement {
                    container: id,
                    node: attempt.host.clone(),
                    ..Placement::default()
                },
                failed: false,
            });
            if source.placement.node_http.is_empty() {
                source.placement.node_http =
                    masters.get(&source.placement.container).cloned().unwrap_or_default();
            }
        }
    }
    for source in sources.values_mut() {
        if source.placement.node_http.is_empty() {
            let node = node_of(&nodes, &source.placement.node);
            source.placement.node_http = node.unwrap_or_default();
        }
    }
    let mut sources: Vec<LogSource> =
        sources.into_values().filter(|source| source.name.starts_with(&wanted.slot)).collect();
    sources.sort_by_key(|source| (wanted.failed_first && !source.failed, source.name.clone()));
    Ok((sources, denied))
}

/// The web server of the only NodeManager of that host.
fn node_of(nodes: &[NodeReport], host: &str) -> Option<String> {
    let mut here = nodes.iter().filter(|node| !host.is_empty() && node.id.host == host);
    let only = here.next()?;
    here.next().is_none().then(|| only.http_address.clone())
}

/// `am-2` for the first container of attempt 2, which is its ApplicationMaster's; else the id.
fn name_of(container: ContainerId) -> String {
    match container.number() {
        1 => format!("am-{}", container.attempt.attempt),
        _ => container.to_string(),
    }
}

fn of_view(view: &JobView) -> Vec<LogSource> {
    let running = view.slots.iter().filter_map(|slot| {
        let placement = slot.placement.clone()?;
        Some(LogSource {
            name: format!("{}-{}", slot.slot, slot.incarnation),
            placement,
            failed: false,
        })
    });
    let ended = view.history.ended.iter().filter_map(|ended| {
        let placement = ended.placement.clone()?;
        Some(LogSource {
            name: format!("{}-{}", ended.slot, ended.incarnation),
            placement,
            failed: true,
        })
    });
    let attempts = view.history.attempts.iter().map(|attempt| LogSource {
        name: format!("am-{}", attempt.attempt),
        placement: attempt.placement.clone(),
        failed: false,
    });
    running.chain(ended).chain(attempts).collect()
}

/// `nm:8042` of `http://nm:8042/node/containerlogs/…`.
fn host_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://").unwrap_or(("", url.trim_start_matches('/')));
    rest.split('/').next().filter(|host| host.contains(':'))
}

/// Files of one container with their last bytes: those kept beside the report, else those of its node. Or why there
/// are none.
async fn logs(
    application: &Application,
    source: &LogSource,
) -> Result<Vec<(String, Vec<u8>)>, String> {
    let kept = application.with_files(kept(application, source)).await;
    let kept = kept.and_then(Result::ok).unwrap_or_default();
    if !kept.is_empty() {
        return Ok(kept);
    }
    let user = &application.report.user;
    let Placement { node_http, container, .. } = &source.placement;
    let files = tails(node_http, container, user).await?;
    if files.is_empty() {
        return Err(format!("{node_http} has no log of it that is not empty"));
    }
    Ok(files)
}

async fn kept(
    application: &Application,
    source: &LogSource,
) -> Result<Vec<(String, Vec<u8>)>, CommandFailure> {
    let folder = application.reports()?.join("logs").join(&source.name);
    let storage = application.cluster.storage_of(&folder)?;
    let mut files = Vec::new();
    // A folder that is not there keeps nothing.
    for entry in storage.list(&path_of(&folder)?).await.unwrap_or_default() {
        if let Ok(bytes) = read_small(&*storage, &entry.path, TAIL_BYTES_MAX + 1).await {
            files.push((entry.name().to_owned(), bytes.to_vec()));
        }
    }
    Ok(files)
}

/// What was printed of each file, and which came last.
#[derive(Default)]
struct Printed {
    tails: BTreeMap<String, Vec<u8>>,
    last: String,
}

impl Printed {
    fn print(&mut self, name: &str, content: Vec<u8>, json: bool) -> Result<(), CommandFailure> {
        let empty = Vec::new();
        let before = self.tails.get(name).unwrap_or(&empty);
        let new = news(before, &content);
        if new.is_empty() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(new);
        if json {
            for line in text.lines() {
                output::json(&serde_json::json!({ "file": name, "line": line }))?;
            }
        } else {
            if self.last != name {
                output::line(&format!("==> {name} <=="))?;
                name.clone_into(&mut self.last);
            }
            output::log_text(text.trim_end_matches('\n'))?;
        }
        self.tails.insert(name.to_owned(), content);
        Ok(())
    }
}

/// What a tail has that the one before had not. A longer file begins with the one before; of one above the limit
/// the end of the one before is looked for. All of it where that is not found: the file was rotated or ran ahead.
fn news<'n>(before: &[u8], now: &'n [u8]) -> &'n [u8] {
    if let Some(new) = now.strip_prefix(before) {
        return new;
    }
    let seam = &before[before.len().saturating_sub(SEAM_BYTES)..];
    match now.windows(seam.len()).rposition(|window| window == seam) {
        Some(at) => &now[at + seam.len()..],
        None => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_printed() {
        assert_eq!(news(b"", b"ab"), b"ab");
        assert_eq!(news(b"ab", b"abc"), b"c");
        assert_eq!(news(b"abcd", b"cdabcdef"), b"ef");
        assert_eq!(news(b"abc", b"xyz"), b"xyz");
        assert_eq!(news(b"ab", b"ab"), b"");
    }

    #[test]
    fn the_nodes_address_is_taken_from_the_page_of_its_logs() {
        let url = "http://n1:8042/node/containerlogs/container_1_0001_01_000002/alice";
        assert_eq!(host_of(url), Some("n1:8042"));
        assert_eq!(host_of("//n1:8042/node"), Some("n1:8042"));
        assert_eq!(host_of("N/A"), None);
    }
}
