//! The nodes on which ApplicationMasters have failed. The ResourceManager's diagnostics have the cause, such as a folder of a full
//! disk, and not always the node.

use std::collections::BTreeMap;

use heddle_yarn::ApplicationState;
use heddle_yarn::client::{AttemptReport, AttemptState};

use super::Application;
use crate::rm_web;

/// The nodes of the attempts of a failed application that failed, with the next step; none where the ResourceManager shows no
/// node.
pub async fn nodes_in_words(application: &Application) -> Option<String> {
    let Application { cluster, report, .. } = application;
    if report.state != Some(ApplicationState::Failed) {
        return None;
    }
    let id = report.id;
    let (attempts, nodes) = tokio::join!(cluster.client.attempts(id), rm_web::masters(cluster, id));
    in_words(&attempts.unwrap_or_default(), &nodes)
}

/// `nodes`: the `host:port` of a NodeManager's web server by container.
fn in_words(attempts: &[AttemptReport], nodes: &BTreeMap<String, String>) -> Option<String> {
    let mut failed_on: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for attempt in attempts.iter().filter(|it| it.state == Some(AttemptState::Failed)) {
        let container = attempt.container.map(|container| container.to_string());
        let address = container.and_then(|container| nodes.get(&container));
        let host = address.and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
        // The host of one that had registered.
        let registered = Some(&*attempt.host).filter(|host| !matches!(*host, "" | "N/A"));
        if let Some(host) = host.or(registered) {
            failed_on.entry(host).or_default().push(attempt.id.attempt.to_string());
        }
    }
    let of_node = |(host, attempts): (&&str, &Vec<String>)| match &**attempts {
        [attempt] => format!("attempt {attempt} on node {host}"),
        several => format!("attempts {} on node {host}", several.join(", ")),
    };
    let failed: Vec<String> = failed_on.iter().map(of_node).collect();
    let nodes: Vec<&str> = failed_on.into_keys().collect();
    (!nodes.is_empty()).then(|| {
        format!(
            "the ApplicationMaster failed: {}\nif the disk is the cause, free it on {}, or set yarn.node-label to other nodes; the cluster's operator can exclude a node (yarn.resourcemanager.nodes.exclude-path)",
            failed.join(", "),
            nodes.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use heddle_yarn::proto::{
        ApplicationAttemptIdProto, ApplicationAttemptReportProto, ApplicationIdProto,
        ContainerIdProto, YarnApplicationAttemptStateProto as State,
    };

    use super::*;

    fn attempt(number: i32, state: State, host: &str) -> AttemptReport {
        let application_id = Some(ApplicationIdProto { id: Some(1), cluster_timestamp: Some(1) });
        let id = ApplicationAttemptIdProto { application_id, attempt_id: Some(number) };
        let container = ContainerIdProto { app_attempt_id: Some(id), id: Some(1) };
        let message = ApplicationAttemptReportProto {
            application_attempt_id: Some(id),
            host: Some(host.to_owned()),
            yarn_application_attempt_state: Some(state.into()),
            am_container_id: Some(container),
            ..Default::default()
        };
        AttemptReport::try_from(&message).expect("it has an id")
    }

    #[test]
    fn failed_attempts_are_named_with_their_nodes() {
        let web = |attempt: i32, address: &str| {
            (format!("container_1_0001_{attempt:02}_000001"), address.to_owned())
        };
        let failed = |number| attempt(number, State::AppAttemptFailed, "N/A");
        let named = |attempts: &[AttemptReport], nodes: &[(String, String)]| {
            let text = in_words(attempts, &nodes.iter().cloned().collect());
            text.map(|text| text.lines().next().unwrap_or_default().to_owned())
        };
        let one = [web(1, "127.95.0.13:8042"), web(2, "127.95.0.13:8042")];
        assert_eq!(
            named(&[failed(1), failed(2)], &one).as_deref(),
            Some("the ApplicationMaster failed: attempts 1, 2 on node 127.95.0.13")
        );
        // The first one had registered, and the web server shows nothing of it.
        let registered = attempt(1, State::AppAttemptFailed, "n1");
        assert_eq!(
            named(&[registered, failed(2)], &[web(2, "n2:8042")]).as_deref(),
            Some("the ApplicationMaster failed: attempt 1 on node n1, attempt 2 on node n2")
        );
        assert_eq!(named(&[failed(1)], &[]), None);
        let ended = attempt(1, State::AppAttemptFinished, "n1");
        assert_eq!(named(&[ended], &[web(1, "n1:8042")]), None);
        let text = in_words(&[failed(1)], &one.into_iter().collect()).unwrap_or_default();
        assert!(text.contains("free it on 127.95.0.13, or set yarn.node-label"), "{text}");
    }
}
