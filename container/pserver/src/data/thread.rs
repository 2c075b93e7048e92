//! The state of a data thread: its shards, its connections, and the commands that change them.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, TrySendError};
use heddle_channel::PeerTimeout;
use heddle_fail_points::fail_point;
use heddle_protocol::control::SparseTableSize;
use heddle_protocol::exit_code::ContainerExitCode;
use heddle_protocol::handshake::{Mechanism, Secret};
use heddle_protocol::ids::{Member, RunId};
use heddle_shard::{Conn, ReplicationLimits, ShardEffect, ShardSet};
use tokio::sync::Notify;

use super::handshake::Expected;
use super::peer_streams::PeerStreams;
use super::reply_buffer::ReplyBuffer;
use super::step_times::PushTimes;
use crate::message::{
    CoordinatorInput, DataAnswer, DataCommand, DataReport, ThreadCounters, ThreadState,
};

/// Arguments of a data thread.
pub(crate) struct DataThreadSetup {
    /// From 0.
    pub(crate) index: usize,
    /// Bound, and not registered with this thread's event loop yet.
    pub(crate) listener: std::net::TcpListener,
    pub(crate) run: RunId,
    /// The pserver's own container.
    pub(crate) member: Member,
    pub(crate) secret: Secret,
    /// How connections are secured, at least.
    pub(crate) mechanism: Mechanism,
    pub(crate) timeout: PeerTimeout,
    pub(crate) commands: Receiver<DataCommand>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) reports: Sender<CoordinatorInput>,
    pub(crate) counters: Arc<ThreadCounters>,
}

/// The state that all tasks of the thread share. It is borrowed for one frame or command at a time, and never across an
/// await.
pub(super) struct DataThread {
    pub(super) index: usize,
    run: RunId,
    secret: Secret,
    mechanism: Mechanism,
    pub(super) shards: RefCell<ShardSet>,
    connections: RefCell<BTreeMap<Conn, Rc<TrainerConnection>>>,
    effects: RefCell<Vec<ShardEffect>>,
    reports: Sender<CoordinatorInput>,
    counters: Arc<ThreadCounters>,
    /// Some connection has a frame that the shards did not take.
    pub(super) blocked: Cell<bool>,
    started: Instant,
    /// Refills were published.
    fills: Cell<bool>,
    /// Streams to backups; none without replicas.
    pub(super) streams: PeerStreams,
    pub(super) times: PushTimes,
}

/// The part of a connection that other tasks of the thread use.
#[derive(Default)]
pub(super) struct TrainerConnection {
    pub(super) replies: RefCell<ReplyBuffer>,
    /// To be closed, without reading the rest of it.
    pub(super) closed: Cell<bool>,
    /// Another task has changed something for this connection.
    pub(super) wake: Notify,
}

impl DataThread {
    pub(super) fn new(setup: &DataThreadSetup) -> Self {
        Self {
            index: setup.index,
            run: setup.run,
            secret: setup.secret.clone(),
            mechanism: setup.mechanism,
            shards: RefCell::new(ShardSet::new(setup.member, setup.index as u32)),
            connections: RefCell::default(),
            effects: RefCell::default(),
            reports: setup.reports.clone(),
            counters: Arc::clone(&setup.counters),
            blocked: Cell::new(false),
            started: Instant::now(),
            fills: Cell::new(false),
            streams: PeerStreams::new(setup.member, setup.timeout),
            times: PushTimes::new(),
        }
    }

    /// What a peer must prove.
    pub(super) fn expected(&self) -> Expected<'_> {
        Expected { run: self.run, secret: &self.secret, mechanism: self.mechanism }
    }

    /// Adds the task of a connection.
    pub(super) fn add(&self, conn: Conn, connection: Rc<TrainerConnection>) {
        self.connections.borrow_mut().insert(conn, connection);
    }

    /// Removes a closed connection.
    pub(super) fn remove(&self, conn: Conn) {
        self.connections.borrow_mut().remove(&conn);
        self.with_shards(None, |shards, _, out| shards.disconnect(conn, out));
    }

    /// Runs `act` on the shards and performs its effects. `own` is the connection that is being served, which writes its
    /// replies itself.
    pub(super) fn with_shards<T>(
        &self,
        own: Option<Conn>,
        act: impl FnOnce(&mut ShardSet, Duration, &mut Vec<ShardEffect>) -> T,
    ) -> T {
        let mut effects = self.effects.take();
        let now = self.started.elapsed();
        let mut shards = self.shards.borrow_mut();
        shards.advance(now);
        let result = act(&mut shards, now, &mut effects);
        drop(shards);
        for effect in effects.drain(..) {
            self.perform(own, effect);
        }
        self.effects.replace(effects);
        result
    }

    /// The shards, at the time of now.
    pub(super) fn shards_now(&self) -> RefMut<'_, ShardSet> {
        let mut shards = self.shards.borrow_mut();
        shards.advance(self.started.elapsed());
        shards
    }

    fn perform(&self, own: Option<Conn>, effect: ShardEffect) {
        let to = |conn: Conn, act: &dyn Fn(&TrainerConnection)| {
            if let Some(connection) = self.connections.borrow().get(&conn) {
                act(connection);
                if own != Some(conn) {
                    connection.wake.notify_one();
                }
            }
        };
        match effect {
            ShardEffect::Reply { conn, header } => {
                to(conn, &|connection| connection.replies.borrow_mut().push(&header))
            }
            ShardEffect::Values { conn, header, rows } => to(conn, &|connection| {
                connection.replies.borrow_mut().push_values(header, rows.clone())
            }),
            ShardEffect::Replicate => self.streams.wake(),
            ShardEffect::Settled { ask } => {
                self.report(DataReport::Answered(DataAnswer { ask, result: Ok(()) }));
            }
            ShardEffect::Close { conn } => to(conn, &|connection| connection.closed.set(true)),
            ShardEffect::CannotServe { shard } => {
                tracing::error!(%shard, "copy_does_not_fit");
                std::process::exit(ContainerExitCode::Failed.number());
            }
            ShardEffect::Report(report) => {
                let epoch = self.shards.borrow().epoch();
                self.report(DataReport::Report { epoch, report });
            }
            ShardEffect::Local(report) => {
                let (thread, epoch) = (self.index, self.shards.borrow().epoch());
                self.report(DataReport::Local { thread, epoch, report });
            }
        }
    }

    /// Aborts a cut that has held frames for too long. Called after every command too: a saver that requests piece after
    /// piece keeps the queue full for minutes.
    pub(super) fn tick(&self) {
        let deadline = self.shards.borrow().deadline();
        if deadline.is_some_and(|deadline| deadline <= self.started.elapsed()) {
            self.with_shards(None, |shards, now, out| shards.tick(now, out));
            self.unblock();
        }
    }

    fn report(&self, report: DataReport) {
        match self.reports.try_send(CoordinatorInput::Data(report)) {
            // The coordinator has ended, and the process is about to end.
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            // The job would wait for the lost report without a limit. A container that ended is replaced.
            Err(TrySendError::Full(_)) => {
                let thread = self.index;
                tracing::error!(thread, "coordinator_queue_full");
                std::process::exit(ContainerExitCode::Failed.number());
            }
        }
    }

    /// Blocked connections may try again.
    pub(super) fn unblock(&self) {
        if self.blocked.replace(false) {
            for connection in self.connections.borrow().values() {
                connection.wake.notify_one();
            }
        }
    }

    fn limit_replication(&self, limits: ReplicationLimits) {
        self.shards.borrow_mut().set_replication_limits(limits);
    }

    pub(super) fn command(&self, command: DataCommand) {
        match command {
            DataCommand::Replication(limits) => self.limit_replication(limits),
            DataCommand::LoadShards { command, shards: own } => {
                let missing =
                    self.with_shards(None, |shards, _, out| shards.load(&command, &own, out));
                let epoch = command.epoch;
                self.report(DataReport::Held { thread: self.index, epoch, missing });
            }
            DataCommand::Install { epoch, shard } => {
                let id = shard.id();
                let result =
                    self.with_shards(None, |shards, _, out| shards.install(epoch, *shard, out));
                self.report(DataReport::Installed { epoch, shard: id, result });
            }
            DataCommand::InstallEmpty { epoch, order, shard } => {
                self.shards.borrow_mut().install_empty(epoch, order, *shard);
            }
            DataCommand::Begin { ask, command } => {
                let phase = command.phase.no;
                let result = self.with_shards(None, |shards, _, out| shards.begin(command, out));
                fail_point!("phase-begun", phase = phase, thread = self.index);
                // With replicas it is answered when the backups have begun it as well.
                if result.is_err() || self.shards.borrow_mut().settle(ask) {
                    self.report(DataReport::Answered(DataAnswer { ask, result }));
                }
            }
            DataCommand::Cut { ask, command } => {
                let result =
                    self.with_shards(None, |shards, now, out| shards.cut(&command, now, out));
                self.report(DataReport::Answered(DataAnswer { ask, result }));
            }
            DataCommand::Shards(command) => {
                let act =
                    |shards: &mut ShardSet, now, out: &mut _| shards.command(&command, now, out);
                if let Err(error) = self.with_shards(None, act) {
                    tracing::info!(%error, "stale_command_ignored");
                }
            }
            DataCommand::SaveHead { shard, cut, reply } => {
                let _gone = reply.try_send(self.shards.borrow_mut().snapshot_head(shard, cut));
            }
            DataCommand::Save { shard, cut, section, at, mut buffer, reply } => {
                let result = self.with_shards(None, |shards, _, out| {
                    let result = shards.save(shard, cut, section, at, &mut buffer);
                    shards.pump(out);
                    result
                });
                // The saver has room for the pieces that it requested. If it has failed, the piece is not needed.
                let _gone = reply.try_send(result.map(|()| buffer));
            }
            DataCommand::State { reply } => self.send_state(&reply),
            DataCommand::Hang { ms } => {
                tracing::warn!(ms, "hung_by_order");
                std::thread::sleep(Duration::from_millis(ms));
            }
            DataCommand::Drop => self.drop_connections(),
        }
        self.unblock();
        self.publish();
    }

    fn send_state(&self, reply: &Sender<ThreadState>) {
        let shards = self.shards.borrow();
        let (epoch, cut) = (shards.epoch(), shards.highest_cut());
        let _late = reply.try_send(ThreadState { epoch, cut, shards: shards.states() });
    }

    /// Closes all connections of trainers.
    fn drop_connections(&self) {
        tracing::warn!("connections_dropped_by_order");
        for connection in self.connections.borrow().values() {
            connection.closed.set(true);
            connection.wake.notify_one();
        }
    }

    /// Notes that the thread runs.
    pub(super) fn turn(&self) {
        self.counters.turn();
    }

    /// Updates the counters for heartbeats.
    pub(super) fn publish(&self) {
        let shards = self.shards.borrow();
        self.counters.publish(&shards.figures(), shards.position());
        self.counters.publish_lag(shards.replication_lag(self.started.elapsed()));
        let fills = shards.fills();
        if self.fills.replace(!fills.is_empty()) || !fills.is_empty() {
            self.counters.publish_fills(fills);
        }
        // All shards have the same tables, so that a job without sparse ones pays for a look at one shard.
        if shards.shards().next().is_some_and(|shard| !shard.sparse_tables().is_empty()) {
            let mut sparse = Vec::new();
            let all = shards.shards();
            all.for_each(|shard| SparseTableSize::add(&mut sparse, &shard.sparse_tables()));
            self.counters.publish_sparse(sparse);
        }
    }
}
