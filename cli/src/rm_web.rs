//! Facts that the ResourceManager serves only over HTTP: its allocation steps, the largest priority, the limit of a queue, and how
//! much of it ApplicationMasters may use. They improve the output and are optional: a missing answer is not an error.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use heddle_hadoop::configuration::RmService;
use heddle_protocol::url;
use heddle_yarn::{AllocationSteps, ApplicationId};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::cluster::ClusterContext;

/// Limit for all requests together: the id of an application is printed within a second.
const LIMIT: Duration = Duration::from_millis(500);
/// The key of the largest priority, to which the CapacityScheduler lowers others (`YarnConfiguration`).
pub const PRIORITY_MAX: &str = "yarn.cluster.max-application-priority";
/// The scheduler's answer for thousands of queues has some MB.
const BYTES_MAX: usize = 32 << 20;

/// The ResourceManager's answer about a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAnswer {
    /// The allocation steps.
    pub steps: Option<AllocationSteps>,
    /// MiB that ApplicationMasters of the queue may use, and do.
    pub am_mib: Option<(u64, u64)>,
    /// MiB that the queue can have at the most.
    pub most_mib: Option<u64>,
    /// The largest priority of an application.
    pub priority_max: Option<u64>,
}

/// Reads the facts about the queue with that name or path, for containers with this node label.
pub async fn ask(cluster: &ClusterContext, queue: &str, label: Option<&str>) -> QueueAnswer {
    tokio::time::timeout(LIMIT, query(cluster, queue, label)).await.unwrap_or_default()
}

/// Limit for a request that has no other source.
const MASTERS_TIMEOUT: Duration = Duration::from_secs(15);

/// The `host:port` of the NodeManagers' web servers that run, or ran, the ApplicationMasters of an application, by
/// container id. (`RMWebServices.getAppAttempts`, `AppAttemptInfo.nodeHttpAddress`)
pub async fn masters(
    cluster: &ClusterContext,
    application: ApplicationId,
) -> BTreeMap<String, String> {
    let name = &cluster.user.effective;
    let user = match url::is_user(name) {
        true => format!("?user.name={name}"),
        false => String::new(),
    };
    let asked = async {
        let addresses = RmService::Web.addresses(&cluster.configuration);
        for address in addresses.unwrap_or_default() {
            // A cluster without security accepts the name; it shows containers to users with view access.
            let path = format!("/ws/v1/cluster/apps/{application}/appattempts{user}");
            if let Some(answer) = get(&address.to_string(), &path).await {
                return nodes_of_attempts(&answer);
            }
        }
        BTreeMap::new()
    };
    tokio::time::timeout(MASTERS_TIMEOUT, asked).await.unwrap_or_default()
}

fn nodes_of_attempts(answer: &Value) -> BTreeMap<String, String> {
    let attempts = answer["appAttempts"]["appAttempt"].as_array();
    let node = |attempt: &Value| {
        let container = attempt["containerId"].as_str()?;
        let address = attempt["nodeHttpAddress"].as_str()?;
        (address.contains(':') && !address.contains('/'))
            .then(|| (container.to_owned(), address.to_owned()))
    };
    attempts.into_iter().flatten().filter_map(node).collect()
}

async fn query(cluster: &ClusterContext, queue: &str, label: Option<&str>) -> QueueAnswer {
    let addresses = RmService::Web.addresses(&cluster.configuration);
    for address in addresses.unwrap_or_default() {
        let address = address.to_string();
        let number = async |key: &str| number(&get(&address, &format!("/conf?name={key}")).await?);
        let (memory, vcores, priority_max, scheduler) = tokio::join!(
            number("yarn.scheduler.minimum-allocation-mb"),
            number("yarn.scheduler.minimum-allocation-vcores"),
            number(PRIORITY_MAX),
            get(&address, "/ws/v1/cluster/scheduler"),
        );
        let steps = memory.map(|memory_mib| AllocationSteps {
            memory_mib: memory_mib.max(1),
            vcores: vcores.and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1),
        });
        let path = scheduler.as_ref().map(|found| path_of(found, queue)).unwrap_or_default();
        let (am_mib, most_mib) = (am_share(&path), most_mib(&path, label.unwrap_or_default()));
        if steps.is_some() || am_mib.is_some() {
            return QueueAnswer { steps, am_mib, most_mib, priority_max };
        }
    }
    QueueAnswer::default()
}

/// The value in the answer to `/conf?name=…`.
fn number(answer: &Value) -> Option<u64> {
    answer["property"]["value"].as_str()?.trim().parse().ok()
}

/// The queue with that name or path, behind those that hold it, the root first; empty if it is not listed.
/// (`CapacitySchedulerInfo`, `FairSchedulerInfo`)
fn path_of<'v>(answer: &'v Value, name: &str) -> Vec<&'v Value> {
    fn find<'v>(queue: &'v Value, name: &str, depth: u32) -> Option<Vec<&'v Value>> {
        if queue["queueName"] == name || queue["queuePath"] == name {
            return Some(vec![queue]);
        }
        let below = ["queues", "childQueues"].map(|below| queue[below]["queue"].as_array());
        let deeper = depth.checked_sub(1)?;
        let mut below = below.into_iter().flatten().flatten();
        let mut path = below.find_map(|queue| find(queue, name, deeper))?;
        path.insert(0, queue);
        Some(path)
    }
    let scheduler = &answer["scheduler"]["schedulerInfo"];
    let root = scheduler.get("rootQueue").unwrap_or(scheduler);
    find(root, name, 32).unwrap_or_default()
}

/// `AMResourceLimit` and `usedAMResource` of a leaf queue of the CapacityScheduler.
fn am_share(path: &[&Value]) -> Option<(u64, u64)> {
    let queue = path.last()?;
    let limit = queue["AMResourceLimit"]["memory"].as_u64()?;
    Some((limit, queue["usedAMResource"]["memory"].as_u64().unwrap_or(0)))
}

/// The lowest limit of a queue and those that hold it: `effectiveMaxResource` of the partition of the CapacityScheduler,
/// `maxResources` of the FairScheduler.
fn most_mib(path: &[&Value], label: &str) -> Option<u64> {
    let limit = |queue: &&Value| {
        let partitions = queue["capacities"]["queueCapacitiesByPartition"].as_array();
        let of_label = partitions.into_iter().flatten().find(|of| of["partitionName"] == label);
        let most = of_label.map_or(&queue["maxResources"], |of| &of["effectiveMaxResource"]);
        most["memory"].as_u64().filter(|mib| *mib > 0)
    };
    path.iter().filter_map(limit).min()
}

async fn get(address: &str, path: &str) -> Option<Value> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(async move {
        // Its end shows in the request that waits for it.
        let _ended = connection.await;
    });
    let request = Request::get(path)
        .header(hyper::header::HOST, address)
        .header(hyper::header::ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .ok()?;
    let response = sender.send_request(request).await.ok()?;
    if response.status() != StatusCode::OK {
        return None;
    }
    let body = Limited::new(response.into_body(), BYTES_MAX);
    serde_json::from_slice(&body.collect().await.ok()?.to_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn queue_share_is_found_by_name_and_by_path() {
        let partition = |name: &str, mib: u64| {
            json!(
                { "partitionName": name, "effectiveMaxResource": { "memory": mib, "vCores": 8 } }
            )
        };
        let most = |partitions: [Value; 2]| json!({ "queueCapacitiesByPartition": partitions });
        let leaf = json!({
            "queueName": "ml", "queuePath": "root.a.ml",
            "AMResourceLimit": { "memory": 4096 }, "usedAMResource": { "memory": 320 },
            "capacities": most([partition("", 8192), partition("gpu", 0)]),
        });
        let answer = json!({ "scheduler": { "schedulerInfo": {
            "queueName": "root", "queues": { "queue": [{
                "queueName": "a", "queues": { "queue": [leaf] },
                "capacities": most([partition("", 6144), partition("gpu", 2048)]),
            }] },
        }}});
        let share = |name: &str| am_share(&path_of(&answer, name));
        assert_eq!(share("ml"), Some((4096, 320)));
        assert_eq!(share("root.a.ml"), Some((4096, 320)));
        assert_eq!(share("a"), None);
        assert_eq!(am_share(&path_of(&json!([1, 2]), "ml")), None);
        let most = |name: &str, label: &str| most_mib(&path_of(&answer, name), label);
        assert_eq!(
            (most("ml", ""), most("ml", "gpu"), most("ml", "x")),
            (Some(6144), Some(2048), None)
        );
        assert_eq!((most("nope", ""), most("root", "")), (None, None));
        let fair = json!({ "scheduler": { "schedulerInfo": { "rootQueue": {
            "queueName": "root", "maxResources": { "memory": 9000 }, "childQueues": { "queue": [
                { "queueName": "root.ml", "maxResources": { "memory": 1200 } },
            ]},
        }}}});
        assert_eq!(most_mib(&path_of(&fair, "root.ml"), ""), Some(1200));
    }

    #[test]
    fn node_of_each_applicationmaster_is_found() {
        let answer = json!({ "appAttempts": { "appAttempt": [
            { "id": 1, "containerId": "container_1_0001_01_000001", "nodeHttpAddress": "n1:8042" },
            { "id": 2, "containerId": "container_1_0001_02_000001", "nodeHttpAddress": "" },
        ]}});
        let found = nodes_of_attempts(&answer);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("container_1_0001_01_000001".to_owned(), "n1:8042".to_owned())]
        );
        assert!(nodes_of_attempts(&json!({})).is_empty());
    }

    #[test]
    fn number_is_read_from_the_configuration_servlet() {
        let answer = json!({ "property": { "key": "k", "value": "64" } });
        assert_eq!(number(&answer), Some(64));
        assert_eq!(number(&json!({})), None);
    }
}
