//! A simulated pserver: the real [`ShardSet`]s, one for each data thread, and in place of files a store in memory.
//!
//! Its coordinator follows the rules of `heddle-pserver`: what concerns all data threads is reported when the last of
//! them has answered, and a cut is armed before anything of it is reported.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_client::machine::RequestFrame;
use heddle_protocol::control::{
    Base, BeginPhase, Command, LoadShards, PserverCommand, PserverReport, PserverState, Report,
    ShardCommand, ShardReport, ShardState, TakeCut,
};
use heddle_protocol::failure::{ErrorClass, Failure};
use heddle_protocol::frame::Header;
use heddle_protocol::ids::{CutId, Epoch, Member, PhaseNo, ShardId, Step, ViewVersion};
use heddle_protocol::manifest::{Md5, ShardFile};
use heddle_shard::{
    Conn, Flow, Frame, LocalReport, Peer, ReplicationLimits, Shard, ShardEffect, ShardSet,
    SnapshotHead, StreamEntry,
};
use uuid::Uuid;

use super::job::Job;
use super::known_clocks::KnownClocks;
use super::store::Durable;

/// A shard's file in the simulated store.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The cut it was saved for.
    pub cut: CutId,
    /// Which shard.
    pub shard: ShardId,
    /// All sections, in their order.
    pub sections: Vec<Vec<f32>>,
    /// The dedup state and the rows of sparse tables.
    pub head: SnapshotHead,
}

impl Saved {
    /// A sum over what a file of this content holds: equal for equal content, whatever the file's name.
    fn sum(&self) -> Md5 {
        let mut sum = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        self.sections.iter().flatten().for_each(|value| add(&value.to_le_bytes()));
        self.head.sparse_rows.iter().for_each(|rows| add(&rows.to_le_bytes()));
        add(&self.head.dedup_state);
        let mut md5 = [0; 16];
        md5[..8].copy_from_slice(&sum.to_le_bytes());
        Md5(md5)
    }
}

/// Work that takes time.
#[derive(Clone, Debug)]
pub enum Labour {
    /// Write the next section of a snapshot, or after the last one its once-only memory.
    Save {
        /// The cut.
        cut: CutId,
        /// The epoch it was ordered in.
        epoch: Epoch,
        /// The shard.
        shard: ShardId,
        /// Sections written so far.
        sections: Vec<Vec<f32>>,
    },
    /// Make a shard of zeros for a refill.
    Empty {
        /// For this epoch.
        epoch: Epoch,
        /// The number of the refill.
        order: ViewVersion,
        /// The shard.
        shard: ShardId,
        /// The data thread that asks.
        thread: usize,
    },
    /// Read a shard.
    Load {
        /// For this epoch.
        epoch: Epoch,
        /// The shard.
        shard: ShardId,
        /// Its copies, in the order in which they are tried; none: initial values.
        files: Option<Vec<Uuid>>,
    },
}

/// An order to a data thread.
#[derive(Clone, Debug)]
pub struct ToThread {
    /// Id of the answer; `None` if no process waits for it.
    ask: Option<u64>,
    command: ThreadCommand,
}

#[derive(Clone, Debug)]
enum ThreadCommand {
    Hold(Arc<LoadShards>, Vec<ShardId>),
    Install(Epoch, Box<Installed>),
    Begin(BeginPhase),
    Cut(Arc<TakeCut>),
    Shards(Arc<ShardCommand>),
}

/// The content of a file, of which a data thread makes a shard: shards themselves cannot be copied.
#[derive(Clone, Debug)]
struct Installed {
    shard: ShardId,
    saved: Option<Arc<Saved>>,
}

/// What a pserver wants done.
#[derive(Debug)]
pub enum Output {
    /// Tell the ApplicationMaster.
    Report(Box<Report>),
    /// Put this at the end of a data connection's replies.
    Reply(usize, Conn, ShardEffect),
    /// Close a data connection unread.
    Close(usize, Conn),
    /// Let a data thread know of this some time, in order.
    Thread(usize, ToThread),
    /// Backups are to be connected to, or entries to be sent.
    Replicate,
    /// Do this some time.
    Labour(Labour),
    /// End.
    Exit,
}

/// A command to all data threads that not all have answered.
struct Asked {
    threads: usize,
    report: Option<Report>,
    cut: Option<CutId>,
}

/// Shards on their way to a state.
struct Hold {
    base: Option<Base>,
    threads: BTreeSet<usize>,
    missing: BTreeSet<ShardId>,
    from_memory: u32,
    from_storage: u32,
    /// Local recovery: the states of loaded shards.
    loaded: Option<Vec<ShardState>>,
    outcome: Option<Report>,
}

/// The highest cut received; reports of it that came before all threads had it.
struct Cut {
    cut: CutId,
    early: Option<Vec<(Epoch, ShardReport)>>,
    /// No file of it is left.
    initial: bool,
    /// Copies to save beside the shards that it serves.
    copies: BTreeSet<ShardId>,
}

/// The shards that a data thread serves as primary.
fn served(host: &ShardSet) -> BTreeSet<ShardId> {
    let is_primary = |state: &ShardState| state.replica.primary;
    host.states().iter().filter(|state| is_primary(state)).map(|state| state.shard).collect()
}

/// One pserver's process.
pub struct Pserver {
    /// The shards, by data thread.
    pub hosts: Vec<ShardSet>,
    /// SSP with backups: what the threads may know of clocks.
    pub clocks: Vec<KnownClocks>,
    /// Data ports, by data thread.
    pub endpoints: Vec<SocketAddr>,
    job: Arc<Job>,
    epoch: Epoch,
    owners: BTreeMap<ShardId, usize>,
    hold: Option<Hold>,
    asked: BTreeMap<u64, Asked>,
    asks: u64,
    cut: Option<Cut>,
    /// Snapshots of backups that are not being saved.
    copies: BTreeMap<ShardId, (CutId, Epoch)>,
    /// Copies whose next file is not what the snapshot was: a bit of the memory changed.
    pub flips: u32,
    /// What [`Pserver::deadline`] has found since something last happened to the process.
    deadline: Cell<Option<Option<u64>>>,
}

impl Pserver {
    /// A process that has just started, with these data ports.
    #[must_use]
    pub fn new(job: Arc<Job>, own: Member, endpoints: Vec<SocketAddr>) -> Self {
        let lag = Duration::from_millis(job.spec().liveness.lag.0);
        let limits = ReplicationLimits { lag, ..ReplicationLimits::default() };
        let host = |thread| {
            let mut host = ShardSet::new(own, thread);
            host.set_replication_limits(limits);
            host
        };
        Self {
            hosts: (0..endpoints.len() as u32).map(host).collect(),
            clocks: endpoints.iter().map(|_| KnownClocks::default()).collect(),
            endpoints,
            job,
            epoch: Epoch::default(),
            owners: BTreeMap::new(),
            hold: None,
            asked: BTreeMap::new(),
            asks: 0,
            cut: None,
            copies: BTreeMap::new(),
            flips: 0,
            deadline: Cell::default(),
        }
    }

    /// The data thread behind a port.
    #[must_use]
    pub fn thread_at(&self, endpoint: SocketAddr) -> Option<usize> {
        self.endpoints.iter().position(|own| *own == endpoint)
    }

    /// Its registration.
    #[must_use]
    pub fn held(&self) -> Option<PserverState> {
        // In the middle of a rollback they differ; the lower one asks for another.
        let epoch = self.hosts.iter().map(ShardSet::epoch).min()?;
        let highest = self.hosts.iter().map(ShardSet::highest_cut).max()?;
        let mut states: Vec<_> = self.hosts.iter().flat_map(ShardSet::states).collect();
        states.sort_by_key(|state| state.shard);
        (epoch != Epoch::default()).then(|| PserverState::new(epoch, highest, states))
    }

    /// The last epoch that it received.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The lowest position of its shards.
    #[must_use]
    pub fn position(&self) -> Option<(PhaseNo, Step)> {
        self.hosts.iter().filter_map(ShardSet::position).min()
    }

    /// When [`Pserver::tick`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.deadline.get().unwrap_or_else(|| {
            let deadlines = self.hosts.iter().filter_map(ShardSet::deadline);
            let deadline = deadlines.min().map(|deadline| deadline.as_millis() as u64);
            self.deadline.set(Some(deadline));
            deadline
        })
    }

    /// Carries out a command of the ApplicationMaster.
    ///
    /// # Errors
    /// A command that a sound ApplicationMaster never gives.
    pub fn command(
        &mut self,
        command: Command,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        match command {
            Command::Pserver(PserverCommand::LoadShards(command)) => {
                self.hold(command, now_ms, out)
            }
            Command::Pserver(PserverCommand::Begin(command)) => {
                let report = Report::Pserver(PserverReport::Begun {
                    epoch: command.epoch,
                    phase: command.phase.no,
                });
                self.ask(report, None, ThreadCommand::Begin(command), now_ms, out);
            }
            Command::Pserver(PserverCommand::Cut(command)) => {
                let (cut, epoch, initial) = (command.cut, command.epoch, command.initial);
                if self.cut.as_ref().is_none_or(|own| own.cut < cut) {
                    let (early, copies) = (Some(Vec::new()), BTreeSet::new());
                    self.cut = Some(Cut { cut, early, initial, copies });
                }
                if let Some(own) = self.cut.as_mut().filter(|own| own.cut == cut) {
                    own.copies.extend(&command.copies);
                }
                self.save_copies(out);
                let command = ThreadCommand::Cut(Arc::new(command));
                let report = Report::Pserver(PserverReport::CutArmed { cut, epoch });
                self.ask(report, Some(cut), command, now_ms, out);
            }
            Command::Shards(command) => {
                if let ShardCommand::CutEnd(end) = command {
                    self.cut.take_if(|own| own.cut == end.cut);
                }
                self.broadcast(None, &ThreadCommand::Shards(Arc::new(command)), now_ms, out);
            }
            Command::Stop { .. } => out.push(Output::Exit),
            Command::Welcome(_) | Command::Refused { .. } => {}
            other => return Err(format!("a pserver received {other:?}")),
        }
        Ok(())
    }

    fn hold(&mut self, command: LoadShards, now_ms: u64, out: &mut Vec<Output>) {
        let epoch = command.epoch;
        if epoch <= self.epoch {
            let outcome = self.hold.as_ref().and_then(|hold| hold.outcome.clone());
            let known = outcome.filter(|_| epoch == self.epoch);
            return out.extend(known.map(Box::new).map(Output::Report));
        }
        self.epoch = epoch;
        self.cut = None;
        self.copies.clear();
        let mut shards = command.shards.clone();
        shards.sort_unstable();
        shards.dedup();
        let threads = self.hosts.len();
        self.owners = shards.iter().copied().zip((0..threads).cycle()).collect();
        self.hold = Some(Hold {
            missing: shards.iter().copied().collect(),
            base: command.base.clone(),
            threads: (0..threads).collect(),
            from_memory: 0,
            from_storage: 0,
            loaded: command.lost.is_some().then(Vec::new),
            outcome: None,
        });
        let command = Arc::new(command);
        for thread in 0..threads {
            let owned = self.owners.iter().filter(|(_, owner)| **owner == thread);
            let shards = owned.map(|(shard, _)| *shard).collect();
            let command = ThreadCommand::Hold(Arc::clone(&command), shards);
            self.tell(thread, ToThread { ask: None, command }, now_ms, out);
        }
    }

    /// With one data thread there is nothing to be overtaken by.
    fn tell(&mut self, thread: usize, command: ToThread, now_ms: u64, out: &mut Vec<Output>) {
        match self.hosts.len() {
            1 => self.thread_obeys(thread, command, now_ms, out),
            _ => out.push(Output::Thread(thread, command)),
        }
    }

    fn broadcast(
        &mut self,
        ask: Option<u64>,
        command: &ThreadCommand,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) {
        for thread in 0..self.hosts.len() {
            let command = command.clone();
            self.tell(thread, ToThread { ask, command }, now_ms, out);
        }
    }

    fn ask(
        &mut self,
        report: Report,
        cut: Option<CutId>,
        command: ThreadCommand,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) {
        self.asks += 1;
        let asked = Asked { threads: self.hosts.len(), report: Some(report), cut };
        self.asked.insert(self.asks, asked);
        self.broadcast(Some(self.asks), &command, now_ms, out);
    }

    /// A data thread carries out an order of the coordinator.
    pub fn thread_obeys(
        &mut self,
        thread: usize,
        command: ToThread,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) {
        let ToThread { ask, command } = command;
        let mut effects = Vec::new();
        let host = &mut self.hosts[thread];
        let clocks = &mut self.clocks[thread];
        let done;
        match command {
            ThreadCommand::Hold(load, shards) => {
                clocks.begin(load.epoch, load.phase.no);
                let missing = host.load(&load, &shards, &mut effects);
                effects.extend((!load.views.is_empty()).then_some(ShardEffect::Replicate));
                self.carry_out(thread, effects, out);
                // One of an earlier epoch that a later one has overtaken has no answer.
                if let Ok(missing) = missing
                    && load.epoch == self.epoch
                {
                    self.thread_held(thread, &shards, missing, out);
                }
                return;
            }
            ThreadCommand::Install(epoch, content) => {
                let Installed { shard, saved } = *content;
                let loaded = load(&self.job, shard, saved.as_deref());
                let installed = loaded.and_then(|loaded| {
                    let states = self.hold.as_mut().and_then(|hold| hold.loaded.as_mut());
                    if let Some(states) = states.filter(|_| epoch == self.epoch) {
                        states.extend(loaded.loaded_state());
                    }
                    let installed = host.install(epoch, loaded, &mut effects);
                    installed.map_err(|error| error.to_string())
                });
                self.carry_out(thread, effects, out);
                if epoch == self.epoch {
                    match installed {
                        Ok(()) => self.installed(shard, out),
                        Err(error) => self.hold_failed(ErrorClass::Corrupt, error, out),
                    }
                }
                return;
            }
            ThreadCommand::Begin(begin) => {
                done = host.begin(begin, &mut effects).is_ok();
                if done {
                    clocks.begin(begin.epoch, begin.phase.no);
                }
                if done && ask.is_some_and(|ask| !host.settle(ask)) {
                    // Answered when the backups have begun too.
                    return self.carry_out(thread, effects, out);
                }
            }
            ThreadCommand::Shards(command) => {
                let now = Duration::from_millis(now_ms);
                let before = served(host);
                done = host.command(&command, now, &mut effects).is_ok();
                match &*command {
                    ShardCommand::Members { trainers } => clocks.members(trainers),
                    ShardCommand::Views(_) => {
                        if !served(host).is_subset(&before) {
                            clocks.promoted();
                        }
                        effects.push(ShardEffect::Replicate);
                    }
                    ShardCommand::HandOver(_) | ShardCommand::CutEnd(_) => {}
                }
            }
            ThreadCommand::Cut(command) => {
                let now = Duration::from_millis(now_ms);
                done = host.cut(&command, now, &mut effects).is_ok();
            }
        }
        self.carry_out(thread, effects, out);
        if let Some(ask) = ask {
            self.answered(ask, done, out);
        }
    }

    fn answered(&mut self, ask: u64, done: bool, out: &mut Vec<Output>) {
        let Some(asked) = self.asked.get_mut(&ask) else {
            return;
        };
        asked.threads -= 1;
        if !done {
            // It came too late.
            asked.report = None;
        }
        if asked.threads > 0 {
            return;
        }
        let Some(Asked { report, cut, .. }) = self.asked.remove(&ask) else {
            return;
        };
        out.extend(report.map(Box::new).map(Output::Report));
        if let Some(own) = self.cut.as_mut().filter(|own| Some(own.cut) == cut) {
            for (epoch, report) in own.early.take().unwrap_or_default() {
                self.report(epoch, report, out);
            }
        }
    }

    fn thread_held(
        &mut self,
        thread: usize,
        shards: &[ShardId],
        missing: Vec<ShardId>,
        out: &mut Vec<Output>,
    ) {
        let Some(hold) = &mut self.hold else { return };
        hold.threads.remove(&thread);
        for shard in shards.iter().filter(|shard| !missing.contains(shard)) {
            hold.missing.remove(shard);
            hold.from_memory += 1;
        }
        for shard in missing {
            let files = match &hold.base {
                Some(base) if base.initial => None,
                Some(base) => match base.files.get(&shard) {
                    Some(file) => Some(file.files().iter().map(|file| file.uuid).collect()),
                    None => {
                        let error = format!("the checkpoint names no file of shard {shard}");
                        return self.hold_failed(ErrorClass::Unreachable, error, out);
                    }
                },
                None => None,
            };
            let epoch = self.epoch;
            out.push(Output::Labour(Labour::Load { epoch, shard, files }));
        }
        self.holding(out);
    }

    fn installed(&mut self, shard: ShardId, out: &mut Vec<Output>) {
        if let Some(hold) = &mut self.hold {
            hold.missing.remove(&shard);
            hold.from_storage += u32::from(hold.base.is_some());
        }
        self.holding(out);
    }

    fn holding(&mut self, out: &mut Vec<Output>) {
        let Some(hold) = &mut self.hold else { return };
        if hold.outcome.is_some() || !hold.missing.is_empty() || !hold.threads.is_empty() {
            return;
        }
        let report = Report::Pserver(PserverReport::ShardsReady {
            epoch: self.epoch,
            from_memory: hold.from_memory,
            from_storage: hold.from_storage,
            loaded: hold.loaded.clone().unwrap_or_default(),
        });
        hold.outcome = Some(report.clone());
        out.push(Output::Report(Box::new(report)));
    }

    fn hold_failed(&mut self, class: ErrorClass, error: String, out: &mut Vec<Output>) {
        let epoch = self.epoch;
        let Some(hold) = self.hold.as_mut().filter(|hold| hold.outcome.is_none()) else {
            return;
        };
        let report = Report::Pserver(PserverReport::LoadFailed {
            epoch,
            failure: Failure::new(class, error),
        });
        hold.outcome = Some(report.clone());
        out.push(Output::Report(Box::new(report)));
    }

    /// Finishes a piece of work.
    ///
    /// # Errors
    /// A file that is not there, though nothing was done to it.
    pub fn labour(
        &mut self,
        labour: Labour,
        uuid: Uuid,
        durable: &mut Durable,
        is_down: bool,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        self.deadline.set(None);
        match labour {
            Labour::Save { cut, epoch, shard, sections } => {
                if is_down {
                    let failure =
                        Failure::new(ErrorClass::Unreachable, "the storage does not answer");
                    out.push(Output::Report(Box::new(Report::Pserver(
                        PserverReport::SaveFailed { cut, epoch, shard, failure },
                    ))));
                    return Ok(());
                }
                self.save((cut, epoch, shard), sections, uuid, durable, out);
            }
            Labour::Empty { epoch, order, shard, thread } => {
                let empty = Shard::new(&self.job.shard(shard));
                self.hosts[thread].install_empty(epoch, order, empty);
            }
            Labour::Load { epoch, shard, files } => {
                let Some(&thread) = self.owners.get(&shard).filter(|_| epoch == self.epoch) else {
                    return Ok(());
                };
                let good = |file: &Uuid| !durable.damaged.contains(file);
                let passed = files.iter().flatten().take_while(|file| !good(file)).count();
                let file = files.as_ref().and_then(|files| files.get(passed).or(files.last()));
                let saved = match file.copied() {
                    None => None,
                    Some(_) if is_down => {
                        let error = "the storage does not answer".to_owned();
                        self.hold_failed(ErrorClass::Unreachable, error, out);
                        return Ok(());
                    }
                    Some(uuid) if durable.damaged.contains(&uuid) => {
                        self.hold_failed(
                            ErrorClass::Corrupt,
                            format!("file {uuid} is damaged"),
                            out,
                        );
                        return Ok(());
                    }
                    Some(uuid) => Some(Arc::clone(
                        durable
                            .files
                            .get(&uuid)
                            .ok_or_else(|| format!("file {uuid} is not there"))?,
                    )),
                };
                if passed > 0 {
                    let passed = vec!["a copy is damaged".to_owned(); passed];
                    out.push(Output::Report(Box::new(Report::Pserver(
                        PserverReport::CopiesPassedOver { epoch, shard, passed },
                    ))));
                }
                let content = Box::new(Installed { shard, saved });
                let command = ThreadCommand::Install(epoch, content);
                self.tell(thread, ToThread { ask: None, command }, now_ms, out);
            }
        }
        Ok(())
    }

    /// Writes the next section; after the last the file is whole. A cut that is over meanwhile has nothing to save.
    fn save(
        &mut self,
        (cut, epoch, shard): (CutId, Epoch, ShardId),
        mut sections: Vec<Vec<f32>>,
        uuid: Uuid,
        durable: &mut Durable,
        out: &mut Vec<Output>,
    ) {
        let Some(&thread) = self.owners.get(&shard) else {
            return;
        };
        let host = &mut self.hosts[thread];
        let Ok(head) = host.snapshot_head(shard, cut) else {
            host.pump(&mut Vec::new());
            if self.cut.as_ref().is_some_and(|own| own.cut == cut) {
                let failure = Failure::new(ErrorClass::Unreachable, "its snapshot was dropped");
                out.push(Output::Report(Box::new(Report::Pserver(PserverReport::SaveFailed {
                    cut,
                    epoch,
                    shard,
                    failure,
                }))));
            }
            return;
        };
        let layout = self.job.shard(shard).sections(&head.sparse_rows);
        let mut effects = Vec::new();
        if let Some(section) = layout.get(sections.len()) {
            let mut values = vec![0.0; section.values()];
            if host.save(shard, cut, sections.len(), 0, &mut values).is_ok() {
                sections.push(values);
                out.push(Output::Labour(Labour::Save { cut, epoch, shard, sections }));
            }
        } else {
            let saved = Saved { cut, shard, sections, head };
            let mut md5 = saved.sum();
            // The memory of a copy alone has changed bits, so that there is an equal file to compare it with.
            let serves =
                host.states().iter().any(|state| state.shard == shard && state.replica.primary);
            if self.flips > 0 && !serves {
                self.flips -= 1;
                md5.0[0] ^= 1;
                durable.damaged.insert(uuid);
            }
            let file = ShardFile {
                shard,
                uuid,
                file: ShardFile::name(shard, uuid),
                md5,
                bytes: saved.head.dedup_state.len() as u64,
                at_ms: 0,
                sha256: None,
                copies: Vec::new(),
            };
            if self.cut.as_ref().is_some_and(|own| own.cut == cut && own.initial) {
                // What it would have written is what `load` makes again. An order that comes late, to a cut that was given up, may
                // find changed values: none of these are committed.
                if saved.sections.iter().flatten().any(|value| value.to_bits() != 0) {
                    durable.changed_before.insert(cut);
                }
            } else {
                durable.files.insert(uuid, Arc::new(saved));
            }
            out.push(Output::Report(Box::new(Report::Pserver(PserverReport::Saved {
                cut,
                epoch,
                file,
                tables: Vec::new(),
            }))));
        }
        host.pump(&mut effects);
        self.carry_out(thread, effects, out);
    }

    /// It is this time.
    pub fn advance(&mut self, now_ms: u64) {
        self.deadline.set(None);
        for host in &mut self.hosts {
            host.advance(Duration::from_millis(now_ms));
        }
    }

    /// A trainer connects to a data thread.
    ///
    /// # Errors
    /// It is not one of the job's any more.
    pub fn connect(
        &mut self,
        thread: usize,
        member: Member,
        out: &mut Vec<Output>,
    ) -> Result<Conn, ()> {
        self.deadline.set(None);
        let mut effects = Vec::new();
        let conn = self.hosts[thread].connect(member, &mut effects);
        self.carry_out(thread, effects, out);
        conn.map_err(|_| ())
    }

    /// A data connection is closed.
    pub fn disconnect(&mut self, thread: usize, conn: Conn, out: &mut Vec<Output>) {
        let mut effects = Vec::new();
        self.hosts[thread].disconnect(conn, &mut effects);
        self.carry_out(thread, effects, out);
    }

    /// A frame arrived. False: it has to be handed in again later.
    pub fn frame(
        &mut self,
        thread: usize,
        conn: Conn,
        frame: &RequestFrame,
        out: &mut Vec<Output>,
    ) -> bool {
        let mut effects = Vec::new();
        let (keys, values) = (frame.payload.key_words(), frame.payload.values());
        let frame = Frame { conn, header: frame.header, keys, values };
        let flow = self.hosts[thread].on_frame(&frame, &mut effects);
        self.carry_out(thread, effects, out);
        matches!(flow, Flow::Taken)
    }

    /// A primary's entry arrived, or, with it, the change that follows. False: it has to be handed in again later.
    pub fn peer_frame(
        &mut self,
        thread: usize,
        conn: Conn,
        head: &Header,
        change: Option<&StreamEntry>,
        out: &mut Vec<Output>,
    ) -> bool {
        let frame = match change {
            None => Frame { conn, header: *head, keys: &[], values: &[] },
            Some(entry) => Frame { conn, ..entry.change.frame() },
        };
        let mut effects = Vec::new();
        let flow = self.hosts[thread].on_frame(&frame, &mut effects);
        self.carry_out(thread, effects, out);
        matches!(flow, Flow::Taken)
    }

    /// The number of the last change of a thread's copy.
    pub fn copy_position(&self, thread: usize, shard: ShardId) -> Option<u64> {
        let states = self.hosts[thread].states();
        Some(states.iter().find(|state| state.shard == shard)?.replica.number)
    }

    /// A backup's answer to an entry arrived.
    pub fn peer_reply(
        &mut self,
        thread: usize,
        peer: Peer,
        header: &Header,
        now_ms: u64,
        out: &mut Vec<Output>,
    ) {
        let mut effects = Vec::new();
        let now = Duration::from_millis(now_ms);
        self.hosts[thread].on_peer_reply(peer, header, now, &mut effects);
        self.carry_out(thread, effects, out);
    }

    /// Time has passed.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        for thread in 0..self.hosts.len() {
            let mut effects = Vec::new();
            self.hosts[thread].tick(Duration::from_millis(now_ms), &mut effects);
            self.carry_out(thread, effects, out);
        }
    }

    fn carry_out(&mut self, thread: usize, effects: Vec<ShardEffect>, out: &mut Vec<Output>) {
        let epoch = self.hosts[thread].epoch();
        for effect in effects {
            match effect {
                ShardEffect::Reply { conn, .. } | ShardEffect::Values { conn, .. } => {
                    out.push(Output::Reply(thread, conn, effect))
                }
                ShardEffect::Close { conn } => out.push(Output::Close(thread, conn)),
                ShardEffect::Report(report) => self.report(epoch, report, out),
                ShardEffect::Local(report) => self.local_report(thread, epoch, report, out),
                ShardEffect::Replicate => out.push(Output::Replicate),
                ShardEffect::CannotServe { shard } => {
                    panic!("a change of shard {shard} did not fit its copy")
                }
                ShardEffect::Settled { ask } => self.answered(ask, true, out),
            }
        }
    }

    /// Saves the copies that were ordered and are snapped, each once.
    fn save_copies(&mut self, out: &mut Vec<Output>) {
        let Some(own) = &self.cut else { return };
        let due = |shard: &ShardId, (cut, _): &mut (CutId, Epoch)| {
            *cut == own.cut && own.copies.contains(shard)
        };
        for (shard, (cut, epoch)) in self.copies.extract_if(.., due) {
            out.push(Output::Labour(Labour::Save { cut, epoch, shard, sections: Vec::new() }));
        }
    }

    fn report(&mut self, epoch: Epoch, report: ShardReport, out: &mut Vec<Output>) {
        // All must have received a cut before any reports its progress.
        let own = self.cut.as_mut().filter(|own| report.cut() == Some(own.cut));
        let is_own = own.is_some();
        if let Some(early) = own.and_then(|own| own.early.as_mut()) {
            return early.push((epoch, report));
        }
        out.push(Output::Report(Box::new(Report::Shard { epoch, report: report.clone() })));
        if let ShardReport::SnapshotTaken { shard, cut, step: _ } = report
            && is_own
        {
            out.push(Output::Labour(Labour::Save { cut, epoch, shard, sections: Vec::new() }));
        }
    }

    fn local_report(
        &mut self,
        thread: usize,
        epoch: Epoch,
        report: LocalReport,
        out: &mut Vec<Output>,
    ) {
        match report {
            LocalReport::FillOrdered { shard, order } => {
                // A thread that has not heard of the next epoch may still report.
                if epoch == self.epoch {
                    self.owners.insert(shard, thread);
                    out.push(Output::Labour(Labour::Empty { epoch, order, shard, thread }));
                }
            }
            LocalReport::CopyLeft { shard } => {
                if epoch == self.epoch && self.owners.get(&shard) == Some(&thread) {
                    self.owners.remove(&shard);
                }
            }
            LocalReport::CopySnapped { shard, cut, step: _ } => {
                self.copies.insert(shard, (cut, epoch));
                self.save_copies(out);
            }
            LocalReport::TableFull { shard, .. } => {
                let text = format!("shard {shard} has a full table");
                let failure = Failure::new(ErrorClass::Training, text);
                out.push(Output::Report(Box::new(Report::Fatal { failure })));
            }
        }
    }
}

/// A shard with the content of a file, or its initial values.
fn load(job: &Job, id: ShardId, saved: Option<&Saved>) -> Result<Shard, String> {
    let mut shard = Shard::new(&job.shard(id));
    if let Some(saved) = saved {
        for (section, values) in saved.sections.iter().enumerate() {
            let into = shard.section_mut(section).ok_or("a section too many")?;
            into.get_mut(..values.len()).ok_or("a section too long")?.copy_from_slice(values);
        }
        let loaded = shard.load_head(&saved.head);
        loaded.map_err(|error| error.to_string())?;
    }
    Ok(shard)
}
