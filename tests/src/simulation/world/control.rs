//! Control connections, from both ends.

use heddle_agent::machine as agent;
use heddle_am_core::{ConnectionId, ContainerId};
use heddle_protocol::control::UpLine;

use super::{Control, Item, Wire, World};

impl World {
    pub(super) fn open_control(&mut self, number: u64) -> Result<(), String> {
        if self.am.is_some() {
            self.connects(number, None);
        }
        let Some(container) = self.containers.get_mut(&number) else {
            return Ok(());
        };
        let Some(am) = &mut self.am else {
            let outputs = container.agent.on(agent::Input::Failed, self.now_ms);
            return self.agent_wants(number, outputs);
        };
        self.numbers += 1;
        let control = self.numbers;
        container.control = Some(control);
        am.opened(ConnectionId(control), container.member);
        self.controls.insert(
            control,
            Control {
                container: number,
                attempt: am.attempt.0,
            },
        );
        let outputs = container.agent.on(agent::Input::Opened, self.now_ms);
        self.agent_wants(number, outputs)
    }

    pub(super) fn line_up(&mut self, control: u64, line: UpLine) -> Result<(), String> {
        let (Some(am), Some(link)) = (&mut self.am, self.controls.get(&control)) else {
            return Ok(());
        };
        if link.attempt != am.attempt.0 {
            return Ok(());
        }
        let container = ContainerId(link.container.to_string());
        let connection = ConnectionId(control);
        let (event, confirm) = am.line(connection, &container, line);
        if let Some(event) = event {
            self.am_event(event)?;
        }
        if confirm && let Some(down) = self.am.as_ref().and_then(|am| am.down(connection, None)) {
            self.push(Wire::ControlDown(control), Item::Down(Box::new(down)));
        }
        Ok(())
    }

    pub(super) fn control_ended_at_am(&mut self, control: u64) -> Result<(), String> {
        let current = self.controls.get(&control).map(|link| link.attempt)
            == self.am.as_ref().map(|am| am.attempt.0);
        let event = self
            .am
            .as_mut()
            .filter(|_| current)
            .and_then(|am| am.closed(ConnectionId(control)));
        match event {
            Some(event) => self.am_event(event),
            None => Ok(()),
        }
    }

    pub(super) fn control_ended_at_container(&mut self, control: u64) -> Result<(), String> {
        let Some(number) = self.controls.get(&control).map(|link| link.container) else {
            return Ok(());
        };
        self.wires.remove(&Wire::ControlDown(control));
        let Some(container) = self
            .containers
            .get_mut(&number)
            .filter(|c| c.control == Some(control))
        else {
            return Ok(());
        };
        container.control = None;
        let outputs = container.agent.on(agent::Input::Closed, self.now_ms);
        self.agent_wants(number, outputs)
    }

    /// Both ends see the end some time, with part of what was on the way.
    pub(super) fn break_control(&mut self, control: u64) -> Result<(), String> {
        self.cut_short(Wire::ControlUp(control));
        self.cut_short(Wire::ControlDown(control));
        Ok(())
    }
}
