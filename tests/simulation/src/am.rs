//! A simulated ApplicationMaster: the real [`Core`], and in place of its driver's IO what a run of this simulation
//! remembers ([`Durable`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_am_core::{
    Action, Config, ConnectionId, ContainerName, Core, Event, MonotonicMs, Now, ReceivedReports,
    StartupState, SurvivingContainer,
};
use heddle_protocol::control::{Command, CommandEnvelope, Report, ReportEnvelope};
use heddle_protocol::ids::{Attempt, Generation, Member, Role, Slot};
use heddle_protocol::view::{SlotState, SlotView};

use super::standstill::Standstill;
use super::store::Durable;

/// Simulated time starts here on the wall, so that a clock that is set back stays positive.
const WALL_START_MS: i64 = 1_700_000_000_000;

/// One attempt of the ApplicationMaster.
pub struct Am {
    /// Its decisions.
    pub core: Core,
    /// Which attempt it is.
    pub attempt: Attempt,
    /// Its claim.
    pub generation: Generation,
    /// When the ResourceManager last answered it.
    pub cluster_heard_ms: u64,
    /// It stands still.
    pub pause: Standstill,
    /// How far its clocks are ahead of simulated time: the wall's, which may be behind, and its own.
    pub wall_offset_ms: i64,
    /// See above; never lowered.
    mono_offset_ms: u64,
    /// Since when it stands still, until its next event.
    paused_since_ms: Option<u64>,
    /// How far its clock has leapt since its last event.
    leapt_ms: u64,
    sessions: BTreeMap<ConnectionId, Session>,
    /// Which reports were taken in.
    received: ReceivedReports,
}

/// A control connection.
struct Session {
    /// The peer.
    member: Member,
    registered: bool,
    /// Nothing goes down it any more; what has been sent up may still be read.
    disconnected: bool,
}

impl Am {
    /// Claims the lineage and starts. `looks_deep`: whether damaged files are noticed now or when they are read.
    pub fn start(
        config: Arc<Config>,
        durable: &mut Durable,
        kept: Vec<SurvivingContainer>,
        now_ms: u64,
        looks_deep: bool,
    ) -> (Self, Vec<Action>) {
        durable.generation += 1;
        let generation = Generation(durable.generation);
        let attempt = Attempt(durable.generation);
        let (base, damaged) = match looks_deep {
            true => durable.newest_whole(None),
            false => (durable.checkpoints.last().cloned(), Vec::new()),
        };
        let mut am = Self {
            core: Core::new(config),
            attempt,
            generation,
            cluster_heard_ms: now_ms,
            pause: Standstill::default(),
            wall_offset_ms: 0,
            mono_offset_ms: 0,
            paused_since_ms: None,
            leapt_ms: 0,
            sessions: BTreeMap::new(),
            received: ReceivedReports::default(),
        };
        let recovered = StartupState {
            attempt,
            generation,
            journal: durable.journal.clone(),
            damaged,
            base,
            checkpoints: durable.checkpoints.clone(),
            kept,
            unfinished: Vec::new(),
        };
        let actions = am.on(Event::Startup(Box::new(recovered)), now_ms);
        (am, actions)
    }

    /// It stands still from now on.
    pub fn pause(&mut self, pause: Standstill, now_ms: u64) {
        self.pause = pause;
        self.paused_since_ms.get_or_insert(now_ms);
    }

    /// Its own clock leaps.
    pub fn leap(&mut self, ms: u64) {
        self.mono_offset_ms += ms;
        self.leapt_ms += ms;
    }

    /// One event. As the driver, it reports its own standstill first.
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        let paused_ms = self.paused_since_ms.take().map_or(0, |since| now_ms - since);
        let ms = paused_ms + std::mem::take(&mut self.leapt_ms);
        let mut actions = match ms {
            0 => Vec::new(),
            ms => self.enter(Event::StoodStill { ms }, now_ms),
        };
        actions.extend(self.enter(event, now_ms));
        actions
    }

    fn enter(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        let registering = match &event {
            Event::Registered { connection, registration } => {
                Some((*connection, registration.member))
            }
            _ => None,
        };
        let wall_ms = WALL_START_MS + now_ms as i64 + self.wall_offset_ms;
        let actions = self.core.on(
            event,
            Now { mono: MonotonicMs(now_ms + self.mono_offset_ms), wall_ms: wall_ms.max(0) as u64 },
        );
        // As the driver: a refused registration changes nothing.
        if let Some((connection, member)) = registering
            && self.core.listens_on(connection)
        {
            self.received.registered(member, connection);
        }
        actions
    }

    /// A report that its container will never repeat was taken in by the core, unless the container is out of the job.
    ///
    /// # Errors
    /// It came on a connection that the core does not listen on any more, and the core listens on another one.
    fn check_taken(&self, connection: ConnectionId, member: Member) -> Result<(), String> {
        let listens = |(other, session): (&ConnectionId, &Session)| {
            session.member == member && self.core.listens_on(*other)
        };
        match self.core.listens_on(connection) || !self.sessions.iter().any(listens) {
            true => Ok(()),
            false => Err(format!(
                "a report of {member} is confirmed that came on a connection which was replaced"
            )),
        }
    }

    /// When its core wants to be called, in simulated time.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let deadline = self.core.next_deadline()?;
        Some(deadline.0.saturating_sub(self.mono_offset_ms))
    }

    /// A container has proven its identity.
    pub fn opened(&mut self, connection: ConnectionId, member: Member) {
        let session = Session { member, registered: false, disconnected: false };
        self.sessions.insert(connection, session);
    }

    /// A line of a container: its event for the core, and whether the sender waits for a confirmation.
    ///
    /// # Errors
    /// As [`Am::check_taken`].
    pub fn line(
        &mut self,
        connection: ConnectionId,
        container: &ContainerName,
        line: ReportEnvelope,
    ) -> Result<(Option<Event>, bool), String> {
        let Some(session) = self.sessions.get_mut(&connection) else {
            return Ok((None, false));
        };
        let of = session.member;
        if let Report::Register(mut registration) = line.report {
            session.registered = true;
            registration.container = Some(container.0.clone());
            return Ok((Some(Event::Registered { connection, registration }), false));
        }
        if !session.registered || !self.received.takes(of, connection, line.seq) {
            return Ok((None, false));
        }
        if line.seq > 0 {
            self.check_taken(connection, of)?;
        }
        let confirm = matches!(line.report, Report::Heartbeat(_));
        Ok((Some(Event::Report { connection, report: Box::new(line.report) }), confirm))
    }

    /// A control connection ended.
    pub fn closed(&mut self, connection: ConnectionId) -> Option<Event> {
        let session = self.sessions.remove(&connection)?;
        session.registered.then_some(Event::Closed { connection })
    }

    /// The core is done with a control connection.
    pub fn disconnects(&mut self, connection: ConnectionId) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.disconnected = true;
        }
    }

    /// How many of these containers have a connection on which they registered.
    #[must_use]
    pub fn connected(&self, of: impl Fn(Member) -> bool) -> usize {
        let registered = |session: &&Session| session.registered && !session.disconnected;
        let sessions = self.sessions.values().filter(registered);
        let members: BTreeSet<Member> = sessions.map(|session| session.member).collect();
        members.into_iter().filter(|member| of(*member)).count()
    }

    /// Slots in which its core has a registered pserver.
    #[must_use]
    pub fn pservers_there(&self) -> BTreeSet<Slot> {
        let is_there = |slot: &SlotView| {
            let registered =
                matches!(slot.state, SlotState::Running | SlotState::Suspect | SlotState::Draining);
            registered && slot.slot.role == Role::Pserver
        };
        self.core.view().slots.iter().filter(|slot| is_there(slot)).map(|slot| slot.slot).collect()
    }

    /// Slots whose container its core has ordered to hand back its work.
    #[must_use]
    pub fn draining(&self) -> BTreeSet<Slot> {
        let slots = self.core.view().slots;
        let drains = slots.iter().filter(|slot| slot.state == SlotState::Draining);
        drains.map(|slot| slot.slot).collect()
    }

    /// What goes down a connection, if it is still there.
    pub fn down(
        &self,
        connection: ConnectionId,
        command: Option<Command>,
    ) -> Option<CommandEnvelope> {
        let session = self.sessions.get(&connection)?;
        (!session.disconnected).then(|| CommandEnvelope {
            attempt: self.attempt,
            acknowledged: self.received.highest(session.member),
            command,
        })
    }
}
