//! Control connections, from both ends.

use heddle_agent::machine as agent;
use heddle_am_core::{ConnectionId, ContainerName};
use heddle_protocol::control::{CommandEnvelope, Report, ReportEnvelope};
use heddle_protocol::ids::Attempt;

use super::super::bursts::Moment;
use super::log::Brief;
use super::trouble::AM;
use super::{Control, Item, Wire, World};

impl World {
    pub(super) fn open_control(&mut self, number: u64) -> Result<(), String> {
        let events = self.events;
        let Some(container) = self.containers.get_mut(&number) else {
            return Ok(());
        };
        let cut_off =
            self.trouble.cuts_off(number, AM, events) || self.trouble.cuts_off(AM, number, events);
        let attempt = container.address;
        let Some(am) = self.ams.get_mut(&attempt).filter(|_| !cut_off) else {
            let outputs = container.agent.on(agent::Input::Failed, self.now_ms);
            return self.agent_wants(number, outputs);
        };
        self.numbers += 1;
        let control = self.numbers;
        container.control = Some(control);
        am.opened(ConnectionId(control), container.member);
        self.controls.insert(control, Control { container: number, attempt });
        let outputs = container.agent.on(agent::Input::Opened, self.now_ms);
        self.connects(number, None);
        self.agent_wants(number, outputs)
    }

    /// A container finds the cluster's present attempt.
    pub(super) fn look_up(&mut self, number: u64) -> Result<(), String> {
        let (Some(leader), Some(container)) = (self.leader, self.containers.get_mut(&number))
        else {
            return Ok(());
        };
        if leader <= container.address {
            return Ok(());
        }
        container.address = leader;
        let found = agent::Input::Found(Attempt(leader));
        let outputs = container.agent.on(found, self.now_ms);
        self.agent_wants(number, outputs)
    }

    pub(super) fn line_up(&mut self, control: u64, line: ReportEnvelope) -> Result<(), String> {
        let Some(link) = self.controls.get(&control) else {
            return Ok(());
        };
        let attempt = link.attempt;
        let Some(am) = self.ams.get_mut(&attempt) else {
            return Ok(());
        };
        let number = link.container;
        let container = ContainerName(number.to_string());
        let connection = ConnectionId(control);
        let registers = matches!(line.report, Report::Register(_));
        let (event, confirm) = am.line(connection, &container, line)?;
        if let Some(event) = event {
            self.am_event(attempt, event)?;
        }
        if registers && !self.registered.insert(number) {
            self.moment(Moment::RegistersAgain, Some(number));
        }
        let down = |world: &Self| world.ams.get(&attempt)?.down(connection, None);
        if confirm && let Some(down) = down(self) {
            self.push(Wire::ControlDown(control), Item::Down(Box::new(down)));
        }
        Ok(())
    }

    pub(super) fn line_down(
        &mut self,
        control: u64,
        down: Box<CommandEnvelope>,
    ) -> Result<(), String> {
        let Some(number) = self.controls.get(&control).map(|c| c.container) else {
            return Ok(());
        };
        let Some(container) =
            self.containers.get_mut(&number).filter(|c| c.control == Some(control))
        else {
            return Ok(());
        };
        if let Some(command) = &down.command {
            let what = format_args!("{} receives {}", container.member, Brief(command));
            self.log.note(self.events, self.now_ms, what);
        }
        let outputs = container.agent.on(agent::Input::Line(down), self.now_ms);
        self.agent_wants(number, outputs)
    }

    pub(super) fn control_ended_at_am(&mut self, control: u64) -> Result<(), String> {
        let Some(attempt) = self.controls.get(&control).map(|link| link.attempt) else {
            return Ok(());
        };
        let am = self.ams.get_mut(&attempt);
        match am.and_then(|am| am.closed(ConnectionId(control))) {
            Some(event) => self.am_event(attempt, event),
            None => Ok(()),
        }
    }

    pub(super) fn control_ended_at_container(&mut self, control: u64) -> Result<(), String> {
        let Some(number) = self.controls.get(&control).map(|link| link.container) else {
            return Ok(());
        };
        self.wires.remove(&Wire::ControlDown(control));
        let Some(container) =
            self.containers.get_mut(&number).filter(|c| c.control == Some(control))
        else {
            return Ok(());
        };
        container.control = None;
        let outputs = container.agent.on(agent::Input::Closed, self.now_ms);
        self.cut_short(Wire::ControlUp(control));
        self.agent_wants(number, outputs)
    }

    /// Both ends see the end some time, with part of what was on the way.
    pub(super) fn break_control(&mut self, control: u64) {
        self.cut_short(Wire::ControlUp(control));
        self.cut_short(Wire::ControlDown(control));
    }
}
