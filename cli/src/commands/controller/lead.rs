//! The controller's loop: waits for the lead, then makes a round every two seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_am::wall_clock::wall_ms;
use heddle_controller::decision_log::{DecisionLog, LoggedDecision};
use heddle_controller::dir::ControllerDir;
use heddle_controller::lease::{self, HeldLease, LeaderLease, LeaseError, LeaseWatch, RENEW_MS};
use heddle_controller::rounds::ROUND_MS;
use heddle_controller::status::{ControllerStatus, JobStatus};
use heddle_controller_core::{ContainerCounts, ScalingDecision, ScalingPlan, plan};
use heddle_fail_points::fail_point;
use heddle_protocol::control::ResizeOrder;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::view::SetBy;
use heddle_storage::{Mode, chain, replace_small};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::observer::{Observer, RoundData, order};
use super::place::Place;
use crate::cluster::ClusterContext;
use crate::failure::CommandResult;
use crate::output;
use crate::stop_signals::StopSignals;

/// Leads, and waits for the lead, until a signal ends the process.
pub async fn lead(place: &Place, json: bool) -> CommandResult {
    heddle_fail_points::setup(&[]);
    let mut signals = StopSignals::register()?;
    let cluster = Arc::new(ClusterContext::load()?);
    cluster.reach().await?;
    let dir = place.open(&cluster).await?;
    let mut observer = Observer::new(cluster, dir);
    loop {
        let held = tokio::select! {
            held = take_lead(&observer) => held,
            _ = signals.next() => return Ok(ExitCode::Ok),
        };
        output::note(&format!("leads: {}", held.lease().text()));
        let mut leader = Leader::new(held, &observer, json);
        tokio::select! {
            superseded = leader.rounds(&mut observer) => output::note(&superseded),
            _ = signals.next() => {
                leader.resign().await;
                return Ok(ExitCode::Ok);
            }
        }
    }
}

/// Waits until the lead is free, and takes it.
async fn take_lead(observer: &Observer) -> HeldLease {
    let mut watch = LeaseWatch::default();
    let mut said = String::new();
    loop {
        let now_ms = observer.now_ms();
        let taken = async {
            let lease = lease::read(&observer.dir).await?;
            let Some(generation) = watch.next_generation(lease.as_ref(), now_ms) else {
                say(&mut said, lease.map(|lease| format!("waits: {} leads", lease.text())));
                return Ok(None);
            };
            let host = nix::unistd::gethostname().unwrap_or_default();
            let (host, pid) = (host.to_string_lossy().into_owned(), std::process::id());
            let lease = LeaderLease { generation, host, pid, counter: 0, is_resigned: false };
            HeldLease::take(&observer.dir, lease).await
        };
        match taken.await {
            Ok(Some(held)) => return held,
            Ok(None) => {}
            Err(error) => say(&mut said, Some(format!("cannot read the lease: {error}"))),
        }
        tokio::time::sleep(Duration::from_millis(RENEW_MS)).await;
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
    fn new(held: HeldLease, observer: &Observer, json: bool) -> Self {
        let lease = held.lease().clone();
        let (renewed, lead) = watch::channel(Lead::Held(observer.now_ms()));
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
        let _late = tokio::time::timeout(Duration::from_secs(5), both).await;
    }

    /// Makes rounds until another controller leads; returns that in words.
    async fn rounds(&mut self, observer: &mut Observer) -> String {
        let mut ticks = interval(Duration::from_millis(ROUND_MS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Lead::Lost(by) = &*self.lead.borrow() {
                return format!("does not lead any more: {by}");
            }
            let mut problems = Vec::new();
            match observer.look().await {
                Ok(found) => self.round(observer, found, &mut problems).await,
                Err(failure) => problems.push(failure.in_words()),
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
        observer.remove_lapsed(&found.read).await;
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
        let mut orders = BTreeMap::new();
        for job in &found.input.jobs {
            let seen = observer.rounds.seen(&job.id);
            let is_new = seen
                .is_some_and(|seen| seen.set_by != SetBy::Operator && seen.generation < generation);
            if is_new && job.fixed.is_none() {
                orders.insert(job.id.clone(), resize(job.wanted));
            }
        }
        let decided: BTreeMap<&str, &ScalingDecision> =
            plan.decisions.iter().map(|decision| (&*decision.job, decision)).collect();
        orders.extend(plan.decisions.iter().map(|one| (one.job.clone(), resize(one.to))));
        if orders.is_empty() {
            return;
        }
        if !self.may_order(observer.now_ms()) {
            problems.push("the lease could not be renewed: gives no orders".to_owned());
            return;
        }
        fail_point!("controller-planned");
        let mut lines = Vec::new();
        for (job, answer) in order(&found.jobs, &orders).await {
            let Some(decision) = decided.get(&*job) else {
                if let Err(why) = answer {
                    problems.push(format!("{job}: {why}"));
                }
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

    fn may_order(&self, now_ms: u64) -> bool {
        match &*self.lead.borrow() {
            Lead::Held(renewed_ms) => lease::may_order(*renewed_ms, now_ms),
            Lead::Lost(_) => false,
        }
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
        match held.renew(&dir).await {
            Ok(()) => {
                said.clear();
                renewed.send_replace(Lead::Held(now_ms));
            }
            Err(error @ LeaseError::Superseded(_)) => {
                renewed.send_replace(Lead::Lost(error.to_string()));
                return;
            }
            Err(error) => say(&mut said, Some(format!("cannot renew the lease: {error}"))),
        }
    }
}
