//! Facts that the ResourceManager serves only over HTTP: its allocation steps, and how much of a queue
//! ApplicationMasters may use. They improve the output and are optional: a missing answer is not an error.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use heddle_hadoop::configuration::RmService;
use heddle_protocol::url;
use heddle_yarn::{ApplicationId, Memory, Resources, VCores};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::cluster::ClusterContext;

/// The multiples in which YARN grants resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationSteps {
    /// Of memory, MiB; at least 1.
    pub memory_mib: u64,
    /// Of vcores; at least 1.
    pub vcores: u32,
}

impl AllocationSteps {
    /// The resources that YARN grants for a request.
    #[must_use]
    pub fn rounded(self, asked: &Resources) -> Resources {
        let memory = asked.memory.as_mib().max(1);
        let vcores = asked.vcores.0.max(1);
        Resources {
            memory: Memory::mib(memory.next_multiple_of(self.memory_mib.max(1))),
            vcores: VCores(vcores.next_multiple_of(self.vcores.max(1))),
            others: asked.others.clone(),
        }
    }
}

/// Limit for all requests together: the id of an application is printed within a second.
const LIMIT: Duration = Duration::from_millis(500);
/// The scheduler's answer for thousands of queues has some MB.
const BYTES_MAX: usize = 32 << 20;

/// The ResourceManager's answer about a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAnswer {
    /// The allocation steps.
    pub steps: Option<AllocationSteps>,
    /// MiB that ApplicationMasters of the queue may use, and do.
    pub am_mib: Option<(u64, u64)>,
}

/// Reads the facts about the queue with that name or path.
pub async fn ask(cluster: &ClusterContext, queue: &str) -> QueueAnswer {
    tokio::time::timeout(LIMIT, query(cluster, queue)).await.unwrap_or_default()
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

async fn query(cluster: &ClusterContext, queue: &str) -> QueueAnswer {
    let addresses = RmService::Web.addresses(&cluster.configuration);
    for address in addresses.unwrap_or_default() {
        let address = address.to_string();
        let number = async |key: &str| number(&get(&address, &format!("/conf?name={key}")).await?);
        let (memory, vcores, scheduler) = tokio::join!(
            number("yarn.scheduler.minimum-allocation-mb"),
            number("yarn.scheduler.minimum-allocation-vcores"),
            get(&address, "/ws/v1/cluster/scheduler"),
        );
        let steps = memory.map(|memory_mib| AllocationSteps {
            memory_mib: memory_mib.max(1),
            vcores: vcores.and_then(|n| u32::try_from(n).ok()).unwrap_or(1).max(1),
        });
        let am_mib = scheduler.as_ref().and_then(|found| am_share(found, queue));
        if steps.is_some() || am_mib.is_some() {
            return QueueAnswer { steps, am_mib };
        }
    }
    QueueAnswer::default()
}

/// The value in the answer to `/conf?name=…`.
fn number(answer: &Value) -> Option<u64> {
    answer["property"]["value"].as_str()?.trim().parse().ok()
}

/// `AMResourceLimit` and `usedAMResource` of a leaf queue of the CapacityScheduler.
fn am_share(answer: &Value, name: &str) -> Option<(u64, u64)> {
    fn find<'v>(queue: &'v Value, name: &str, depth: u32) -> Option<&'v Value> {
        if queue["queueName"] == name || queue["queuePath"] == name {
            return Some(queue);
        }
        let below = queue["queues"]["queue"].as_array()?;
        let deeper = depth.checked_sub(1)?;
        below.iter().find_map(|queue| find(queue, name, deeper))
    }
    let queue = find(&answer["scheduler"]["schedulerInfo"], name, 32)?;
    let limit = queue["AMResourceLimit"]["memory"].as_u64()?;
    Some((limit, queue["usedAMResource"]["memory"].as_u64().unwrap_or(0)))
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
        let leaf = json!({
            "queueName": "ml", "queuePath": "root.a.ml",
            "AMResourceLimit": { "memory": 4096 }, "usedAMResource": { "memory": 320 },
        });
        let answer = json!({ "scheduler": { "schedulerInfo": {
            "queueName": "root", "queues": { "queue": [{ "queueName": "a", "queues": { "queue": [leaf] } }] },
        }}});
        assert_eq!(am_share(&answer, "ml"), Some((4096, 320)));
        assert_eq!(am_share(&answer, "root.a.ml"), Some((4096, 320)));
        assert_eq!(am_share(&answer, "a"), None);
        assert_eq!(am_share(&json!([1, 2]), "ml"), None);
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
