//! The controller's loop: waits for the lead, then makes a round every two seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use heddle_am::wall_clock::wall_ms;
use heddle_controller::decision_log::{DecisionLog, LoggedDecision};
use heddle_controller::dir::ControllerDir;
use heddle_controller::lease::{self, HeldLease, LeaderLease, LeaseError, LeaseWatch, RENEW_MS};
use heddle_controller::rounds::ROUND_MS;
use heddle_controller::seen_job::SeenJob;
use heddle_controller::status::{ControllerStatus, JobStatus};
use heddle_controller_core::{
    ContainerCounts, ElasticJob, FixedSize, ScalingDecision, ScalingPlan, plan,
};
use heddle_fail_points::fail_point;
use heddle_protocol::control::ResizeOrder;
use heddle_protocol::exit_code::ExitCode;
use heddle_storage::{Mode, chain, replace_small};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::observer::{Observer, RoundData, order};
use super::place::Place;
use crate::cluster::ClusterContext;
use crate::failure::CommandResult;
use crate::output;
use crate::stop_signals::StopSignals;

/// How long the reading of a round may take: a server that hangs would keep the leader silent about it.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// How often a standby reads the lease: it leads at most two of these after ten seconds without a renewal.
const WATCH_EVERY: Duration = Duration::from_millis(500);
/// How long a renewal of the lease may take.
const RENEW_LIMIT: Duration = Duration::from_secs(7);
/// How long the last round, and giving up the lead, may take.
const RESIGN_LIMIT: Duration = Duration::from_secs(5);

/// Leads, and waits for the lead, until a signal ends the process.
pub async fn lead(place: &Place, json: bool) -> CommandResult {
    heddle_fail_points::setup(&[]);
    let mut signals = StopSignals::register()?;
    let cluster = Arc::new(ClusterContext::load()?);
    cluster.reach().await?;
    let dir = place.open(&cluster).await?;
    let mut observer = Observer::new(cluster, dir);
    loop {
        let (held, since_ms) = tokio::select! {
            taken = take_lead(&observer) => taken,
            _ = signals.next() => return Ok(ExitCode::Ok),
        };
        output::note(&format!("leads: {}", held.lease().text()));
        let mut leader = Leader::new(held, since_ms, &observer, json);
        let stop = Notify::new();
        let ended = {
            let mut rounds = pin!(leader.rounds(&mut observer, &stop));
            tokio::select! {
                ended = &mut rounds => ended,
                _ = signals.next() => {
                    stop.notify_one();
                    timeout(RESIGN_LIMIT, rounds).await.unwrap_or(RoundsEnd::Stopped)
                }
            }
        };
        match ended {
            RoundsEnd::Superseded(by) => output::note(&format!("does not lead any more: {by}")),
            RoundsEnd::Stopped => {
                leader.resign().await;
                return Ok(ExitCode::Ok);
            }
        }
    }
}

/// Why the rounds of a leader end.
enum RoundsEnd {
    /// Another controller leads, in words.
    Superseded(String),
    /// A signal ends the process: the round has been finished and logged.
    Stopped,
}

/// Waits until the lead is free, and takes it. Returns from when on it is held.
async fn take_lead(observer: &Observer) -> (HeldLease, u64) {
    let mut watch = LeaseWatch::default();
    let mut said = String::new();
    loop {
        let began_ms = observer.now_ms();
        let taken = async {
            let lease = lease::read(&observer.dir).await?;
            let read_ms = began_ms..observer.now_ms();
            let Some(generation) = watch.next_generation(lease.as_ref(), read_ms) else {
                say(&mut said, lease.map(|lease| format!("waits: {} leads", lease.text())));
                return Ok(None);
            };
            let host = nix::unistd::gethostname().unwrap_or_default();
            let (host, pid) = (host.to_string_lossy().into_owned(), std::process::id());
            let lease = LeaderLease { generation, host, pid, counter: 0, is_resigned: false };
            let since_ms = observer.now_ms();
            let held = HeldLease::take(&observer.dir, lease).await?;
            Ok(held.map(|held| (held, since_ms)))
        };
        match taken.await {
            Ok(Some(taken)) => return taken,
            Ok(None) => {}
            Err::<_, LeaseError>(error) => {
                say(&mut said, Some(format!("cannot read the lease: {error}")));
            }
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// Prints a line unless it was the last one.
fn say(said: &mut String, line: Option<String>) {
    if let Some(line) = line.filter(|line| line != said) {
        output::note(&line);
        *said = line;
    }
}

/// The lease of the leader, as its renewals stand.
#[derive(Clone, Debug)]
enum Lead {
    /// Renewed at this time of the observer's clock.
    Held(u64),
    /// Another controller leads.
    Lost(String),
}

struct Leader {
    lease: LeaderLease,
    lead: watch::Receiver<Lead>,
    /// Ends the renewals.
    resign: mpsc::Sender<()>,
    renewals: JoinHandle<()>,
    log: DecisionLog,
    last_changes: BTreeMap<String, String>,
    problems: BTreeSet<String>,
    json: bool,
}

impl Leader {
    fn new(held: HeldLease, since_ms: u64, observer: &Observer, json: bool) -> Self {
        let lease = held.lease().clone();
        let (renewed, lead) = watch::channel(Lead::Held(since_ms));
        let (resign, resigned) = mpsc::channel(1);
        let clock = observer.clock();
        let renewals = renew(held, observer.dir.clone(), clock, renewed, resigned);
        Self {
            log: DecisionLog::new(lease.generation),
            lease,
            lead,
            resign,
            renewals: tokio::spawn(renewals),
            last_changes: BTreeMap::new(),
            problems: BTreeSet::new(),
            json,
        }
    }

    /// Gives the lead up, so that another controller need not wait.
    async fn resign(self) {
        let _ended = self.resign.send(()).await;
        let both = async {
            let _resigned = self.renewals.await;
            let _durable = self.log.close().await;
        };
        let _late = timeout(RESIGN_LIMIT, both).await;
    }

    /// Makes rounds until another controller leads, or `stop` is notified.
    async fn rounds(&mut self, observer: &mut Observer, stop: &Notify) -> RoundsEnd {
        let mut ticks = interval(Duration::from_millis(ROUND_MS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.notified() => return RoundsEnd::Stopped,
            }
            if let Lead::Lost(by) = &*self.lead.borrow() {
                return RoundsEnd::Superseded(by.clone());
            }
            let mut problems = Vec::new();
            match timeout(LOOK_LIMIT, observer.look()).await {
                Ok(Ok(found)) => self.round(observer, found, &mut problems).await,
                Ok(Err(failure)) => problems.push(failure.in_words()),
                Err(_) => problems.push(format!(
                    "cannot read the cluster's state and the grants: no answer within {} s",
                    LOOK_LIMIT.as_secs()
                )),
            }
            let problems: BTreeSet<String> = problems.into_iter().collect();
            problems.difference(&self.problems).for_each(|line| output::note(line));
            self.problems = problems;
        }
    }

    async fn round(
        &mut self,
        observer: &mut Observer,
        found: RoundData,
        problems: &mut Vec<String>,
    ) {
        problems.extend(found.problems.iter().cloned());
        let nodes = found.input.cluster.nodes.len();
        let mut plan_now = ScalingPlan::default();
        if observer.rounds.has_all_nodes(nodes) {
            plan_now = plan(&found.input.cluster, &found.input.jobs, observer.now_ms());
            self.order(observer, &found, &plan_now, problems).await;
        } else {
            problems.push(format!(
                "the ResourceManager lists {nodes} nodes, far fewer than before: waits until their number stands"
            ));
        }
        observer.remove_lapsed(&found).await;
        let users: BTreeMap<&str, &str> =
            found.jobs.iter().map(|job| (&*job.grant.application, &*job.report.user)).collect();
        self.last_changes.retain(|job, _| users.contains_key(&**job));
        let jobs = found.input.jobs.iter().map(|job| {
            let user = users.get(&*job.id).copied().unwrap_or_default();
            let last = self.last_changes.get(&job.id).map_or("", String::as_str);
            JobStatus::new(job, user, &plan_now, last)
        });
        let status = ControllerStatus {
            leader: self.lease.clone(),
            at_ms: wall_ms(),
            nodes,
            jobs: jobs.collect(),
            problems: problems.clone(),
        };
        let json = serde_json::to_vec(&status).expect("plain fields are JSON");
        let dir = &observer.dir;
        let written = replace_small(dir.storage(), &dir.status(), Mode::FILE, json.into()).await;
        if let Err(error) = written {
            problems.push(format!("cannot write the status: {}", chain(error.error())));
        }
    }

    /// Sends the decisions, and the present numbers to jobs that do not know this leader yet: then they refuse earlier ones.
    async fn order(
        &mut self,
        observer: &mut Observer,
        found: &RoundData,
        plan: &ScalingPlan,
        problems: &mut Vec<String>,
    ) {
        let generation = self.lease.generation;
        let resize = |to: ContainerCounts| ResizeOrder {
            generation,
            trainers: to.trainers,
            pservers: to.pservers,
        };
        let jobs = found.input.jobs.iter();
        let new = jobs.filter(|job| is_new(observer.rounds.seen(&job.id), job, generation));
        let mut orders: BTreeMap<String, ResizeOrder> =
            new.map(|job| (job.id.clone(), resize(job.wanted))).collect();
        let decided: BTreeMap<&str, &ScalingDecision> =
            plan.decisions.iter().map(|decision| (&*decision.job, decision)).collect();
        orders.extend(plan.decisions.iter().map(|one| (one.job.clone(), resize(one.to))));
        if orders.is_empty() {
            return;
        }
        if !may_order(&self.lead, observer.now_ms()) {
            problems.push("the lease could not be renewed: gives no orders".to_owned());
            return;
        }
        fail_point!("controller-planned");
        let mut lines = Vec::new();
        let pinned = found.input.jobs.iter().filter(|job| job.fixed == Some(FixedSize::Pinned));
        let pinned: BTreeSet<&str> = pinned.map(|job| &*job.id).collect();
        let (lead, clock) = (self.lead.clone(), observer.clock());
        let may_order = move || may_order(&lead, clock());
        for (job, answer) in order(&found.jobs, &orders, may_order).await {
            let Some(decision) = decided.get(&*job) else {
                let why = answer.err().filter(|_| !pinned.contains(&*job));
                problems.extend(why.map(|why| format!("{job}: {why}")));
                continue;
            };
            let refused = answer.err().unwrap_or_default();
            let text = decision.to_string();
            if refused.is_empty() {
                let now_ms = observer.now_ms();
                observer.rounds.ordered(decision, now_ms);
                self.last_changes.insert(job, text.clone());
            } else {
                problems.push(format!("{job}: {refused}"));
            }
            let decision = (*decision).clone();
            lines.push(LoggedDecision { at_ms: wall_ms(), generation, decision, text, refused });
        }
        for line in &lines {
            let printed = if self.json {
                output::json(line)
            } else if line.refused.is_empty() {
                output::line(&line.text)
            } else {
                output::line(&format!("{}; refused: {}", line.text, line.refused))
            };
            if printed.is_err() {
                break;
            }
        }
        if let Err(error) = self.log.write(&observer.dir, &lines).await {
            problems.push(format!("cannot log decisions: {}", chain(&error)));
        }
    }
}

/// Whether a job is to learn the generation of this leader. A pinned job refuses the order that it gets, and remembers the
/// generation for when an operator gives its size back.
fn is_new(seen: Option<&SeenJob>, job: &ElasticJob, generation: u64) -> bool {
    seen.is_some_and(|seen| seen.generation < generation)
        && matches!(job.fixed, None | Some(FixedSize::Pinned))
}

/// Whether a leader may give orders at this time of the observer's clock.
fn may_order(lead: &watch::Receiver<Lead>, now_ms: u64) -> bool {
    match &*lead.borrow() {
        Lead::Held(renewed_ms) => lease::may_order(*renewed_ms, now_ms),
        Lead::Lost(_) => false,
    }
}

/// Renews the lease until another controller leads, or this one resigns.
async fn renew(
    mut held: HeldLease,
    dir: ControllerDir,
    clock: impl Fn() -> u64,
    renewed: watch::Sender<Lead>,
    mut resigned: mpsc::Receiver<()>,
) {
    let mut said = String::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(RENEW_MS)) => {}
            _ = resigned.recv() => {
                let _lapses = held.resign(&dir).await;
                return;
            }
        }
        let now_ms = clock();
        let why = match timeout(RENEW_LIMIT, held.renew(&dir)).await {
            Ok(Ok(())) => {
                said.clear();
                renewed.send_replace(Lead::Held(now_ms));
                continue;
            }
            Ok(Err(error @ LeaseError::Superseded(_))) => {
                renewed.send_replace(Lead::Lost(error.to_string()));
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("HDFS does not respond within {} s", RENEW_LIMIT.as_secs()),
        };
        say(&mut said, Some(format!("cannot renew the lease: {why}")));
    }
}
