//! A simulated ApplicationMaster: the real [`Core`], and in place of its driver's IO what a run of this simulation
//! remembers ([`Durable`]).

use std::collections::{BTreeMap, BTreeSet};

use heddle_am_core::{
    Action, Config, ConnectionId, ContainerId, Core, Event, Heard, Kept, Mono, Now, Recovered,
};
use heddle_protocol::control::{Command, Down, Up, UpLine};
use heddle_protocol::ids::{Attempt, Generation, Member};

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
    /// It stands still before this event.
    pub paused_until: u64,
    /// How far its clocks are ahead of simulated time: the wall's, which may be behind, and its own.
    pub wall_offset_ms: i64,
    /// See above; never lowered.
    pub mono_offset_ms: u64,
    /// Control connections: who is at the other end, as far as proven, and whether it has registered.
    sessions: BTreeMap<ConnectionId, (Member, bool)>,
    /// Which reports were taken in.
    heard: Heard,
}

impl Am {
    /// Claims the lineage and starts. `looks_deep`: whether damaged files are noticed now or when they are read.
    pub fn start(
        config: Config,
        durable: &mut Durable,
        kept: Vec<Kept>,
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
            paused_until: 0,
            wall_offset_ms: 0,
            mono_offset_ms: 0,
            sessions: BTreeMap::new(),
            heard: Heard::default(),
        };
        let recovered = Recovered {
            attempt,
            generation,
            journal: durable.journal.clone(),
            damaged,
            base,
            checkpoints: durable.checkpoints.clone(),
            kept,
        };
        let actions = am.on(Event::Recovered(Box::new(recovered)), now_ms);
        (am, actions)
    }

    /// One event.
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        let wall_ms = WALL_START_MS + now_ms as i64 + self.wall_offset_ms;
        self.core.on(
            event,
            Now { mono: Mono(now_ms + self.mono_offset_ms), wall_ms: wall_ms.max(0) as u64 },
        )
    }

    /// When its core wants to be called, in simulated time.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let deadline = self.core.next_deadline()?;
        Some(deadline.0.saturating_sub(self.mono_offset_ms))
    }

    /// A container has proven who it is.
    pub fn opened(&mut self, connection: ConnectionId, member: Member) {
        self.sessions.insert(connection, (member, false));
    }

    /// A line of a container: what the core is told of it, and whether the sender waits for a confirmation.
    pub fn line(
        &mut self,
        connection: ConnectionId,
        container: &ContainerId,
        line: UpLine,
    ) -> (Option<Event>, bool) {
        let Some((member, registered)) = self.sessions.get_mut(&connection) else {
            return (None, false);
        };
        if let Up::Register { member, pid, host, container: _, endpoints, held, busy } = line.report
        {
            *registered = true;
            self.heard.registered(member, connection);
            let container = Some(container.clone());
            return (
                Some(Event::Registered {
                    connection,
                    member,
                    container,
                    pid,
                    host,
                    endpoints,
                    held,
                    busy,
                }),
                false,
            );
        }
        if !*registered || !self.heard.takes(*member, connection, line.seq) {
            return (None, false);
        }
        let confirm = matches!(line.report, Up::Heartbeat(_));
        (Some(Event::Report { connection, report: Box::new(line.report) }), confirm)
    }

    /// A control connection ended.
    pub fn closed(&mut self, connection: ConnectionId) -> Option<Event> {
        let (_, registered) = self.sessions.remove(&connection)?;
        registered.then_some(Event::Closed { connection })
    }

    /// How many of these containers have a connection on which they registered.
    #[must_use]
    pub fn connected(&self, of: impl Fn(Member) -> bool) -> usize {
        let registered = self.sessions.values().filter(|(_, registered)| *registered);
        let members: BTreeSet<Member> = registered.map(|(member, _)| *member).collect();
        members.into_iter().filter(|member| of(*member)).count()
    }

    /// What goes down a connection, if it is still there.
    pub fn down(&self, connection: ConnectionId, command: Option<Command>) -> Option<Down> {
        let (member, _) = self.sessions.get(&connection)?;
        Some(Down { attempt: self.attempt, heard: self.heard.highest(*member), command })
    }
}
