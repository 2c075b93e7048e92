//! The fleet: the containers of the job.
//!
//! Slots, registration, liveness, restart policy, membership, drains, preemption and scaling. The fleet asks for
//! containers, stops them and sends commands to them. What follows from a loss for work, checkpoints and stage is not
//! decided here: handlers return facts ([`Loss`], [`Lost`]) that the dispatcher in `core` routes.

mod blameless;
pub(crate) mod data_path;
mod extra_trainers;
mod idle_trainers;
pub(crate) mod link;
pub(crate) mod liveness;
pub(crate) mod membership;
pub(crate) mod oom_retry;
mod outage_matrix;
pub(crate) mod preemption;
mod progress;
pub(crate) mod registration;
mod reservations;
mod restart_policy;
pub(crate) mod scale;
mod shard_holders;
#[cfg(test)]
mod slot_edges;
pub(crate) mod slots;
pub(crate) mod slow_nodes;
pub(crate) mod storage_wait;
pub(crate) mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_protocol::control::{Command, HeartbeatStats, ShardCommand, Welcome};
use heddle_protocol::ids::{Generation, Incarnation, Member, Role, Slot};
use heddle_protocol::process_figures::{ProcessFigure, ProcessFigures};
use heddle_protocol::view::StorageWaitView;

use crate::action::{Action, ConnectionId, ContainerName, ContainerOrder};
use crate::config::Config;
use crate::context::Context;
use crate::record::Record;
use crate::time::MonotonicMs;
use crate::work::locality::LocalityIndex;
use data_path::DataPath;
use extra_trainers::ExtraTrainers;
use idle_trainers::IdleTrainers;
use membership::JoinBatching;
use restart_policy::{Cause, FailureClass, FailureHistory};
use scale::{JobSize, WantedSize};
use slots::{ContainerInfo, RegisteredContainer, SlotEntry, SlotStatus, Slots};
use slow_nodes::SlowNodes;
use storage_wait::StorageWait;
use totals::work_figure;

/// A container that must be given up, and why. [`Fleet::lose`] does it.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    slot: Slot,
    cause: Cause,
    class: FailureClass,
    /// The container's node; empty if the failure is not counted against a node.
    node: String,
}

impl Loss {
    fn new(slot: Slot, cause: &str, class: FailureClass, node: &str) -> Self {
        Self { slot, cause: Cause::plain(cause), class, node: node.to_owned() }
    }
}

/// A registered container has left the job.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub member: Member,
    /// The cause in one line, to follow the slot's name.
    pub cause: String,
    /// Trainer: it was a member of the job.
    pub joined: bool,
    /// It had handed back its work before: nothing has to be recovered.
    pub drained: bool,
    /// The last sign of life.
    pub last_seen: MonotonicMs,
}

/// What came of giving a container up.
#[derive(Clone, Debug)]
pub(crate) enum LossOutcome {
    /// Nothing follows: no registered container was in the slot, or the job is ending.
    NothingFollows,
    /// The restart policy ends the job with this error. With what the container was, if it was registered.
    CrashLoop(String, Option<Lost>),
    Lost(Lost),
}

/// All slots and containers of the job.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    slots: Slots,
    wanted: WantedSize,
    spares: JobSize,
    extra: ExtraTrainers,
    idle: IdleTrainers,
    failures: FailureHistory,
    /// Grows with each phase that ends and each checkpoint that is committed: the restart policy counts kills since then.
    progress: u64,
    /// Containers of an earlier attempt may still register.
    adopting: bool,
    /// What the cluster last reported about containers that do not come.
    cluster_message: String,
    /// Nodes that will be gone soon, and when the cluster reported it.
    departing_nodes: BTreeMap<String, MonotonicMs>,
    /// Whether a node with containers of the job was reported to be gone soon.
    any_departing: bool,
    /// Containers that the cluster may preempt.
    preempted: BTreeSet<ContainerName>,
    join_batching: JoinBatching,
    /// The members of the job as the pservers were last sent them.
    members: Arc<Command>,
    locality: Arc<LocalityIndex>,
    data_path: DataPath,
    slow_nodes: SlowNodes,
    /// Until when the driver last stood still.
    stood_still: Option<MonotonicMs>,
    storage_wait: StorageWait,
    /// Connections of containers whose end the cluster has reported. Only the reason of the end is still taken from them.
    ended_connections: BTreeMap<ConnectionId, Slot>,
    /// Steps of all trainers, including those that are gone.
    steps: u64,
    figures_of_lost: ProcessFigures,
    /// The first command to every container.
    welcome: Arc<Command>,
}

impl Fleet {
    pub(crate) fn new(config: &Config, locality: Arc<LocalityIndex>) -> Self {
        let spec = &config.spec;
        let welcome = Welcome {
            run: config.run,
            spec: (*config.spec).clone(),
            plan: config.plan_file.clone(),
            heartbeat_ms: config.limits.heartbeat_ms,
            orphan_ms: config.limits.orphan_ms,
        };
        Self {
            slots: Slots::new(&spec.pservers, &spec.trainers, Generation(1)),
            wanted: WantedSize::at_start(spec),
            spares: JobSize { trainers: spec.trainers.spares, pservers: spec.pservers.spares },
            extra: ExtraTrainers::new(&spec.trainers),
            idle: IdleTrainers::default(),
            failures: FailureHistory::default(),
            progress: 0,
            adopting: false,
            cluster_message: String::new(),
            departing_nodes: BTreeMap::new(),
            any_departing: false,
            preempted: BTreeSet::new(),
            join_batching: JoinBatching::default(),
            members: ShardCommand::Members { trainers: Vec::new() }.into(),
            locality,
            data_path: DataPath::default(),
            slow_nodes: SlowNodes::default(),
            stood_still: None,
            storage_wait: StorageWait::default(),
            ended_connections: BTreeMap::new(),
            steps: 0,
            figures_of_lost: ProcessFigures::default(),
            welcome: Arc::new(Command::Welcome(Box::new(welcome))),
        }
    }

    /// The attempt has claimed its generation: no container is known yet.
    pub(crate) fn begin(&mut self, journal: &[Record], ctx: &Context) {
        let config = ctx.config();
        let spec = &config.spec;
        self.slots = Slots::new(&spec.pservers, &spec.trainers, ctx.generation());
        self.wanted = WantedSize::after(journal, ctx);
        self.set_wanted();
    }

    /// Containers that an earlier attempt left may register.
    pub(crate) fn adopt(&mut self, containers: impl IntoIterator<Item = (ContainerName, String)>) {
        self.adopting = true;
        for (container, node) in containers {
            self.slots.containers.insert(container, ContainerInfo::on(node));
        }
    }

    /// Containers of an earlier attempt that have not registered are not taken in any more.
    pub(crate) fn stop_adopting(&mut self, ctx: &mut Context) {
        self.adopting = false;
        let unidentified = self.slots.containers.iter().filter(|(_, info)| info.member.is_none());
        let unidentified: Vec<ContainerName> = unidentified.map(|(id, _)| id.clone()).collect();
        for container in unidentified {
            self.stop_container(&container, 0, ctx);
        }
    }

    /// Whether this container of an earlier attempt may still register.
    pub(crate) fn may_register(&self, container: &ContainerName) -> bool {
        let info = self.slots.containers.get(container);
        info.is_some_and(|info| info.member.is_none() && !info.given_up)
    }

    /// Whether the job has this slot.
    pub(crate) fn has_slot(&self, slot: Slot) -> bool {
        self.slots.entries.contains_key(&slot)
    }

    /// All slots of the job.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (Slot, &SlotEntry)> {
        self.slots.entries.iter().map(|(slot, entry)| (*slot, entry))
    }

    /// The registered container in a slot.
    pub(crate) fn holder(&self, slot: Slot) -> Option<&RegisteredContainer> {
        self.slots.holder(slot)
    }

    /// The registered container that is exactly this member.
    pub(crate) fn member(&self, member: Member) -> Option<&RegisteredContainer> {
        self.slots.member(member)
    }

    /// All registered containers of a role, by slot.
    pub(crate) fn holders(&self, role: Role) -> impl Iterator<Item = &RegisteredContainer> {
        self.slots.holders(role)
    }

    /// How many containers of a role are registered.
    pub(crate) fn held(&self, role: Role) -> usize {
        self.slots.held(role)
    }

    /// The member at the other end of a connection; `None` if it has been replaced or given up.
    pub(crate) fn at(&self, connection: ConnectionId) -> Option<Member> {
        self.slots.at(connection)
    }

    /// The node of the container in a slot, as far as known.
    pub(crate) fn node(&self, slot: Slot) -> Option<&str> {
        self.slots.node(slot)
    }

    /// Whether every container has ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.containers.is_empty()
    }

    /// The slot of a connection whose container has ended, as the cluster reported.
    pub(crate) fn ended_slot(&self, connection: ConnectionId) -> Option<Slot> {
        self.ended_connections.get(&connection).copied()
    }

    /// Slots of the registered containers of a role.
    pub(crate) fn registered_slots(&self, role: Role) -> Vec<Slot> {
        self.slots.holders(role).map(|holder| holder.member.slot).collect()
    }

    /// Trainers that are members of the job.
    pub(crate) fn joined(&self) -> BTreeSet<Member> {
        let joined = self.slots.holders(Role::Trainer).filter(|holder| holder.joined);
        joined.map(|holder| holder.member).collect()
    }

    /// Trainers that can be given work.
    pub(crate) fn workers(&self) -> BTreeSet<Member> {
        self.joined().into_iter().filter(|member| self.is_worker(*member)).collect()
    }

    /// Whether a trainer can be given work.
    pub(crate) fn is_worker(&self, member: Member) -> bool {
        let able = |holder: &RegisteredContainer| holder.joined && holder.draining.is_none();
        self.slots.member(member).is_some_and(able)
    }

    /// The trainer to write a model: the first with the lowest rank among those that are connected and not draining.
    pub(crate) fn exporter<R: Ord>(&self, rank: impl Fn(Member) -> R) -> Option<Member> {
        let able =
            |holder: &&RegisteredContainer| holder.link.is_connected() && holder.draining.is_none();
        let members = self.slots.holders(Role::Trainer).filter(able).map(|holder| holder.member);
        members.min_by_key(|member| rank(*member))
    }

    /// What the cluster last reported about containers that do not come.
    pub(crate) fn cluster_message(&self) -> &str {
        &self.cluster_message
    }

    pub(crate) fn set_cluster_message(&mut self, text: String) {
        self.cluster_message = text;
    }

    /// Steps of all trainers together.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    fn beats(&self, role: Role) -> impl Iterator<Item = &HeartbeatStats> {
        self.slots.holders(role).map(|holder| &holder.heartbeat)
    }

    /// The present wait of trainers for storage.
    pub(crate) fn storage_wait(&self) -> Option<StorageWaitView> {
        self.storage_wait.view()
    }

    /// A phase has ended or a checkpoint is committed.
    pub(crate) fn made_progress(&mut self) {
        self.progress += 1;
    }

    /// A slot may have to be asked for: the pause of an empty one is over, another pserver has its shards, or the job has begun, so
    /// that trainers that it does not need to begin can be asked for.
    pub(crate) fn look_at_slots(&mut self) {
        self.slots.changed = true;
    }

    /// The driver stood still for this time: containers were not silent meanwhile.
    pub(crate) fn forgive_silence(&mut self, late_ms: u64, ctx: &Context) {
        self.slots.forgive(late_ms, ctx.now());
        self.note_standstill(ctx.now());
    }

    /// Sends a command to the registered container of a slot, if it is connected. One that is not gets what holds when it
    /// registers again.
    pub(crate) fn send(&self, slot: Slot, command: impl Into<Arc<Command>>, ctx: &mut Context) {
        if let Some(holder) = self.slots.holder(slot)
            && let Some(connection) = holder.link.connection()
        {
            let member = Some(holder.member);
            ctx.push(Action::Send { connection, member, command: command.into() });
        }
    }

    /// Sends a command to the registered containers of a role.
    pub(crate) fn send_to_all(
        &self,
        role: Role,
        command: impl Into<Arc<Command>>,
        ctx: &mut Context,
    ) {
        let command = command.into();
        for slot in self.registered_slots(role) {
            self.send(slot, Arc::clone(&command), ctx);
        }
    }

    /// A trainer that an earlier attempt had made a member stays one.
    pub(crate) fn stays_member(&mut self, member: Member) {
        if let Some(holder) = self.slots.holder_mut(member.slot)
            && holder.member == member
        {
            holder.joined = true;
        }
    }

    /// A container has sent a line.
    pub(crate) fn seen(&mut self, slot: Slot, ctx: &Context) {
        if let Some(holder) = self.slots.holder_mut(slot) {
            holder.last_seen = ctx.now();
            holder.link.line_came();
            holder.probe.outcome = None;
        }
    }

    /// Takes in a heartbeat. Its figures are those that changed.
    pub(crate) fn heartbeat(
        &mut self,
        member: Member,
        mut beat: HeartbeatStats,
        ctx: &mut Context,
    ) {
        let now = ctx.now();
        self.storage_wait_reported(member.slot, beat.input_wait.as_ref(), ctx);
        if member.slot.role == Role::Trainer {
            self.note_unreachable(member, &beat, ctx);
        }
        self.check_progress(member.slot, &beat, ctx);
        let Some(holder) = self.slots.holder_mut(member.slot) else {
            return;
        };
        let span_ms = now.since(holder.heartbeat_at);
        let before = *holder.heartbeat.figures;
        holder.heartbeat.figures.update(&beat.figures);
        std::mem::swap(&mut holder.heartbeat.figures, &mut beat.figures);
        let more = |of: ProcessFigure| beat.figures.get(of).saturating_sub(before.get(of));
        let work = more(work_figure(member.slot.role));
        self.steps = self.steps.saturating_add(more(ProcessFigure::Steps));
        if span_ms > 0 {
            holder.per_second = work as f64 * 1000.0 / span_ms as f64;
        }
        holder.heartbeat = beat;
        holder.heartbeat_at = now;
    }

    /// Gives a container up: its slot asks again, it is stopped, and its incarnation is refused from then on.
    pub(crate) fn lose(
        &mut self,
        loss: Loss,
        job_is_ending: bool,
        ctx: &mut Context,
    ) -> LossOutcome {
        let Loss { slot, cause, class, node } = loss;
        let now = ctx.now();
        let holder = self.slots.holder(slot).cloned();
        let had_container = self.slots.container(slot).is_some();
        let incarnation =
            self.slots.entries.get(&slot).map_or(Incarnation(0), |entry| entry.incarnation);
        let member = Member { slot, incarnation };
        self.failures.note(now, member, &node, class, self.progress, &cause.detail);
        let wait_ms = self.failures.delay_ms(now, self.progress, slot);
        if let Some(container) = self.slots.vacate(slot, now + wait_ms) {
            self.stop_container(&container, 0, ctx);
            if let Some(info) = self.slots.containers.get_mut(&container) {
                info.given_up = true;
            }
        }
        self.storage_wait_over(slot, ctx);
        // What it had done counts, at the job's end too.
        if let Some(holder) = &holder {
            self.figures_of_lost.merge_lost(&holder.heartbeat.figures);
        }
        if job_is_ending {
            return LossOutcome::NothingFollows;
        }
        let drained =
            holder.as_ref().is_some_and(|holder| holder.draining.is_some() && !holder.joined);
        if (holder.is_some() || had_container) && !drained {
            let cause = cause.words.clone();
            ctx.notice(heddle_protocol::view::JobEvent::Lost { slot, incarnation, cause });
        }
        let error = self.crash_loop(ctx);
        let Some(holder) = holder else {
            return error
                .map_or(LossOutcome::NothingFollows, |error| LossOutcome::CrashLoop(error, None));
        };
        if let Some(connection) = holder.link.connection()
            && !self.ended_connections.contains_key(&connection)
        {
            ctx.push(Action::Disconnect { connection });
        }
        let last_seen = holder.link.closed_at().unwrap_or(
            if holder.link.is_connected() && now.since(holder.last_seen) < ctx.limits().suspect_ms {
                now
            } else {
                holder.last_seen
            },
        );
        let (member, joined) = (holder.member, holder.joined);
        let lost = Lost { member, cause: cause.words, joined, drained, last_seen };
        match error {
            Some(error) => LossOutcome::CrashLoop(error, Some(lost)),
            None => LossOutcome::Lost(lost),
        }
    }

    /// The error that ends the job, if the restart policy allows no further failure.
    fn crash_loop(&mut self, ctx: &Context) -> Option<String> {
        let slots = self.slots.entries.len();
        self.failures.crash_loop(ctx.now(), self.progress, slots, ctx.limits())
    }

    /// Stops a container that the cluster has not reported as ended.
    fn stop_container(&mut self, container: &ContainerName, grace_ms: u64, ctx: &mut Context) {
        if let Some(info) = self.slots.containers.get_mut(container) {
            info.ours = true;
            let container = container.clone();
            ctx.order(match info.member {
                Some(member) => ContainerOrder::Stop { container, member, grace_ms },
                None => ContainerOrder::Release(container),
            });
        }
    }

    /// Ends all containers and asks.
    pub(crate) fn stop_all(&mut self, grace_ms: u64, ctx: &mut Context) {
        let containers: Vec<ContainerName> = self.slots.containers.keys().cloned().collect();
        for container in containers {
            self.stop_container(&container, grace_ms, ctx);
        }
        for (slot, entry) in &mut self.slots.entries {
            entry.wanted = false;
            if let SlotStatus::Asked = entry.status {
                entry.status = SlotStatus::Empty { not_before: ctx.now() };
                let member = Member { slot: *slot, incarnation: entry.incarnation };
                ctx.order(ContainerOrder::CancelAsk(member));
            }
        }
    }
}
