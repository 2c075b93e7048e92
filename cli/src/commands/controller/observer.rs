//! What a round reads and sends: calls to the ResourceManager, to HDFS and to ApplicationMasters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heddle_controller::dir::ControllerDir;
use heddle_controller::grants::{GrantFiles, GrantReader};
use heddle_controller::rounds::{GrantedJob, Observation, PlannerInput, Rounds};
use heddle_controller::seen_job::SeenJob;
use heddle_protocol::control::ResizeOrder;
use heddle_protocol::grant::ControllerGrant;
use heddle_protocol::handshake::{PROTOCOL_VERSION, Secret};
use heddle_protocol::view::JobView;
use heddle_yarn::client::{ApplicationFilter, ApplicationState};
use heddle_yarn::{AllocationSteps, NodeState};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::am_client::{Am, AmKey};
use crate::cluster::{APPLICATION_TYPE, ClusterContext, client_failure, storage_failure};
use crate::failure::{CommandFailure, OrFail};
use crate::rm_web;

/// How long ApplicationMasters have for an answer.
const AM_LIMIT: Duration = Duration::from_millis(1_900);
/// Connections to ApplicationMasters at a time.
const CONNECTIONS: usize = 256;
/// The root of all queues.
const ROOT: &str = "root";

/// Reads the cluster and the jobs, round by round.
pub struct Observer {
    pub cluster: Arc<ClusterContext>,
    pub dir: ControllerDir,
    pub rounds: Rounds,
    grants: GrantReader,
    /// In force, once the ResourceManager has responded.
    steps: Option<AllocationSteps>,
    started: Instant,
}

/// What a round has found.
pub struct RoundData {
    pub read: Observation,
    pub jobs: Vec<GrantedJob>,
    pub input: PlannerInput,
    /// Lines about what cannot be planned with.
    pub problems: Vec<String>,
}

impl Observer {
    pub fn new(cluster: Arc<ClusterContext>, dir: ControllerDir) -> Self {
        let (rounds, grants) = (Rounds::default(), GrantReader::default());
        Self { cluster, dir, rounds, grants, steps: None, started: Instant::now() }
    }

    /// Time of the monotonic clock, ms.
    pub fn now_ms(&self) -> u64 {
        self.clock()()
    }

    /// The clock of [`Self::now_ms`].
    pub fn clock(&self) -> impl Fn() -> u64 + Clone + use<> {
        let started = self.started;
        move || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Reads everything that a plan needs.
    ///
    /// # Errors
    /// The ResourceManager or HDFS does not respond, or refuses.
    pub async fn look(&mut self) -> Result<RoundData, CommandFailure> {
        let (read, mut problems) = self.read().await?;
        let (jobs, lines) = self.rounds.granted(&read);
        problems.extend(lines);
        let nodes: BTreeMap<&str, String> =
            read.nodes.iter().map(|node| (&*node.http_address, node.id.to_string())).collect();
        for (application, view) in views(&jobs).await {
            let node_of = |http: &str| nodes.get(http).cloned().unwrap_or_default();
            match view.map(|view| SeenJob::from_view(&view, node_of)) {
                Ok(Some(seen)) => {
                    let now_ms = self.now_ms();
                    self.rounds.saw(&application, seen, now_ms);
                }
                Ok(None) => problems.push(format!("{application} does not take part any more")),
                Err(why) => problems.push(format!("{application}: {why}")),
            }
        }
        let steps = self.steps().await;
        let input = self.rounds.input(&read, &jobs, steps, self.now_ms());
        Ok(RoundData { read, jobs, input, problems })
    }

    /// The multiples in which YARN grants; 1 until they are known.
    async fn steps(&mut self) -> AllocationSteps {
        if self.steps.is_none() {
            self.steps = rm_web::ask(&self.cluster, ROOT, None).await.steps;
        }
        self.steps.unwrap_or(AllocationSteps { memory_mib: 1, vcores: 1 })
    }

    async fn read(&mut self) -> Result<(Observation, Vec<String>), CommandFailure> {
        use ApplicationState::{Accepted, New, NewSaving, Running, Submitted};
        let filter = ApplicationFilter {
            kinds: vec![APPLICATION_TYPE.to_owned()],
            states: vec![New, NewSaving, Submitted, Accepted, Running],
            ..ApplicationFilter::default()
        };
        let client = &self.cluster.client;
        let of_cluster = async {
            tokio::try_join!(
                client.applications(&filter),
                client.nodes(&[NodeState::Running]),
                client.queue(ROOT),
            )
        };
        let of_cluster = of_cluster.await;
        let (applications, nodes, queues) =
            of_cluster.or_fail_with(client_failure, "cannot read the cluster's state")?;
        let grants = self.grants.read(&self.dir).await;
        let files = grants.or_fail_with(storage_failure, "cannot read the grants")?;
        let GrantFiles { grants, others: other_files, lines } = files;
        Ok((Observation { applications, nodes, queues, grants, other_files }, lines))
    }

    /// Removes grants of applications that have ended, and other old files beside them; best effort.
    pub async fn remove_lapsed(&mut self, found: &RoundData) {
        let now_ms = self.now_ms();
        for file in self.rounds.lapsed(&found.read, &found.jobs, now_ms) {
            let _again = GrantReader::remove(&self.dir, &file).await;
        }
    }
}

/// The status of each job that has an ApplicationMaster.
async fn views(jobs: &[GrantedJob]) -> Vec<(String, Result<JobView, String>)> {
    let view = |grant: &ControllerGrant, am: Am, secret: Secret| {
        let run = grant.run;
        async move { am.view_with(AmKey::controller(run, &secret)).await }
    };
    each(jobs, view, || true).await
}

/// Sends orders, by application; returns the answer of each job. `may_order`: asked before each is sent.
pub async fn order(
    jobs: &[GrantedJob],
    orders: &BTreeMap<String, ResizeOrder>,
    may_order: impl Fn() -> bool + Clone + Send + 'static,
) -> Vec<(String, Result<(), String>)> {
    let ordered = jobs.iter().filter(|job| orders.contains_key(&job.grant.application));
    let resize = |grant: &ControllerGrant, am: Am, secret: Secret| {
        let (run, order) = (grant.run, orders[&grant.application]);
        async move { am.resize(AmKey::controller(run, &secret), &order).await }
    };
    each(ordered, resize, may_order).await
}

/// Makes a call to the ApplicationMaster of each job, many at a time. `may_call`: asked before each begins.
async fn each<'j, T, C>(
    jobs: impl IntoIterator<Item = &'j GrantedJob>,
    call: impl Fn(&ControllerGrant, Am, Secret) -> C,
    may_call: impl Fn() -> bool + Clone + Send + 'static,
) -> Vec<(String, Result<T, String>)>
where
    T: Send + 'static,
    C: Future<Output = Result<T, CommandFailure>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut calls = JoinSet::new();
    for GrantedJob { report, grant } in jobs {
        let Some(address) = &grant.am else { continue };
        if grant.protocol != PROTOCOL_VERSION || report.state != Some(ApplicationState::Running) {
            continue;
        }
        let application = grant.application.clone();
        let Ok(secret) = Secret::from_hex(&grant.secret) else {
            calls.spawn(async move { (application, Err("its grant has no secret".to_owned())) });
            continue;
        };
        let am = Am {
            addresses: vec![address.address],
            peer: "its ApplicationMaster".to_owned(),
            next: String::new(),
            checkpoint_timeout: Duration::ZERO,
        };
        let call = call(grant, am, secret);
        let (places, may_call) = (Arc::clone(&places), may_call.clone());
        calls.spawn(async move {
            let _place = places.acquire_owned().await;
            if !may_call() {
                return (application, Err("the lease could not be renewed".to_owned()));
            }
            let answer = match tokio::time::timeout(AM_LIMIT, call).await {
                Ok(answer) => answer.map_err(|failure| failure.in_words()),
                Err(_) => Err("it does not respond within 2 s".to_owned()),
            };
            (application, answer)
        });
    }
    calls.join_all().await
}
