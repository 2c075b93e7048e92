//! Who lives, who does not, and what follows.
//!
//! **First signal wins.** A process that ended is told by the cluster; one whose control connection closes
//! has its port tried at once: refused means gone, in milliseconds; anything else means that only silence
//! can tell, and silence is waited out (`dead_ms`). What a trainer says of a pserver that it cannot reach starts
//! the same probe: nobody is declared dead on hearsay. YARN alone takes ten minutes to report a lost node; a trainer,
//! which has no port, is given up when its connection closed and its NodeManager does not answer either.
//!
//! A container that is given up is stopped, its connection closed, and its incarnation refused from then on: if it
//! lives after all (its node was cut off), it is a zombie that can do no harm.

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::ids::{Member, Role, Slot};
use heddle_protocol::view;

use crate::action::{Action, ConnectionId, ContainerId};
use crate::context::deadlines::Purpose;
use crate::core::{Core, JobStage};
use crate::event::{Exit, Probe};
use crate::fleet::restart_policy::{self, Cause, FailureClass};
use crate::fleet::slots::SlotStatus;
use crate::time::MonotonicMs;
use crate::work::phases::Work;

impl Core {
    /// A failure of a container whose slot was given up before its end was known.
    pub(crate) fn note_failure_only(
        &mut self,
        member: Member,
        exit: &Exit,
        text: &str,
        node: &str,
    ) {
        let (now, slots) = (self.now.mono, self.slots.entries.len());
        let cause = Cause::new(exit, text).detail;
        self.failure_history.note(
            now,
            member,
            node,
            restart_policy::classify(exit),
            self.progress,
            &cause,
        );
        if let Some(error) =
            self.failure_history.crash_loop(now, self.progress, slots, &self.config.limits)
        {
            self.fail(ExitCode::JobFailed, error);
        }
    }

    pub(crate) fn closed(&mut self, connection: ConnectionId) {
        self.last_words.remove(&connection);
        let Some(member) = self.slots.at(connection) else {
            return;
        };
        self.slots.connections.remove(&connection);
        let now = self.now.mono;
        if let Some(holder) = self.slots.holder_mut(member.slot) {
            holder.connection = None;
            holder.closed = Some(now);
        }
        self.probe(member);
    }

    /// Tries the port of a pserver, unless that is under way. Trainers have none.
    pub(crate) fn probe(&mut self, member: Member) {
        let Some(holder) =
            self.slots.holder_mut(member.slot).filter(|holder| holder.member == member)
        else {
            return;
        };
        if let (false, Some(endpoint)) = (holder.probing, holder.endpoints.first().copied()) {
            holder.probing = true;
            self.out.push(Action::ProbePort { member, endpoint });
        }
    }

    /// The node of a container that does not speak does not vouch for it.
    pub(crate) fn vanished(&mut self, container: &ContainerId, cause: &str) {
        let Some(life) = self.slots.containers.get_mut(container) else {
            return;
        };
        let Some(member) = life.member else {
            // One of an earlier attempt. Nobody waits for it any more; if it comes after all, it is welcome.
            life.given_up = true;
            return;
        };
        let node = life.node.clone();
        let away = self.slots.member(member).is_some_and(|holder| holder.connection.is_none());
        if !away || self.slots.container(member.slot) != Some(container) {
            return;
        }
        match member.slot.role {
            Role::Trainer => {
                self.lose(member.slot, &format!("is gone: {cause}"), FailureClass::None, &node);
            }
            // To lose one that lives costs everybody their work since the last checkpoint: its port tells.
            Role::Pserver => self.probe(member),
        }
    }

    pub(crate) fn probed(&mut self, member: Member, outcome: Probe) {
        let Some(holder) =
            self.slots.holder_mut(member.slot).filter(|holder| holder.member == member)
        else {
            return;
        };
        holder.probing = false;
        let node = self.slots.node(member.slot).unwrap_or_default().to_owned();
        match outcome {
            // A kill, until the cluster reports the cause.
            Probe::Refused => self.lose_for(
                member.slot,
                &Cause {
                    words: "does not listen any more: its process is gone".to_owned(),
                    detail: "ended without a word; its port refused connections".to_owned(),
                },
                FailureClass::Killed,
                &node,
            ),
            // It is there, or nobody knows: silence will tell.
            Probe::Open | Probe::Silent => {}
        }
    }

    /// Gives up who has been silent for too long, suspects who has for a while.
    pub(crate) fn look_for_the_silent(&mut self) {
        let (now, limits) = (self.now.mono, self.config.limits.clone());
        let mut next: Option<MonotonicMs> = None;
        let mut lost: Vec<(Slot, String, FailureClass)> = Vec::new();
        let mut suspects = Vec::new();
        for (slot, entry) in &mut self.slots.entries {
            let deadline = match &mut entry.place {
                SlotStatus::Empty { .. } | SlotStatus::Asked => continue,
                SlotStatus::Starting { since, .. } => {
                    let deadline = *since + limits.registration_ms;
                    if deadline <= now {
                        lost.push((
                            *slot,
                            "did not register in time".to_owned(),
                            FailureClass::Failure,
                        ));
                    }
                    deadline
                }
                SlotStatus::Held(holder) => {
                    let dead = holder.heard + limits.dead_ms;
                    let drained = holder
                        .draining
                        .map_or(MonotonicMs(u64::MAX), |since| since + limits.grace_ms);
                    if dead <= now {
                        lost.push((
                            *slot,
                            format!("was not heard for {} s", limits.dead_ms / 1000),
                            FailureClass::None,
                        ));
                    } else if drained <= now {
                        lost.push((
                            *slot,
                            "did not hand back its work in time".to_owned(),
                            FailureClass::None,
                        ));
                    }
                    let suspect = holder.heard + limits.suspect_ms;
                    if suspect <= now && !holder.suspect {
                        holder.suspect = true;
                        suspects.push(holder.member);
                    }
                    let silent = if suspect > now { suspect } else { dead };
                    silent.min(drained)
                }
            };
            if deadline > now {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
        }
        if let Some(next) = next {
            self.deadlines.at_latest(Purpose::Liveness, next);
        }
        for member in suspects {
            self.warn(format!("{} was not heard for {} s", member.slot, limits.suspect_ms / 1000));
            self.probe(member);
        }
        for (slot, cause, class) in lost {
            self.lose(slot, &cause, class, "");
        }
    }

    /// A slot's container is gone or given up: whatever it held is taken from it, and the slot asks again.
    pub(crate) fn lose(&mut self, slot: Slot, cause: &str, class: FailureClass, node: &str) {
        self.lose_for(slot, &Cause::plain(cause), class, node);
    }

    /// As [`Core::lose`], with what the container said last.
    pub(crate) fn lose_for(&mut self, slot: Slot, cause: &Cause, class: FailureClass, node: &str) {
        let Cause { words: cause, detail } = cause;
        let now = self.now.mono;
        let holder = self.slots.holder(slot).cloned();
        let container = self.slots.container(slot).cloned();
        let incarnation =
            self.slots.entries.get(&slot).map(|entry| entry.incarnation).unwrap_or_default();
        let member = Member { slot, incarnation };
        self.failure_history.note(now, member, node, class, self.progress, detail);
        let wait_ms = self.failure_history.delay_ms(now, self.progress, slot);
        if let Some(container) = self.slots.vacate(slot, now + wait_ms) {
            self.stop_container(&container, 0);
            if let Some(life) = self.slots.containers.get_mut(&container) {
                life.given_up = true;
            }
        }
        self.input_read(slot);
        // What it had done counts however it went, at the job's end too.
        if let (Role::Trainer, Some(holder)) = (slot.role, &holder) {
            self.rows_before = self.rows_before.saturating_add(holder.beat.trained_rows());
        }
        if matches!(self.stage, JobStage::Stopping(_)) {
            return;
        }
        let drained =
            holder.as_ref().is_some_and(|holder| holder.draining.is_some() && !holder.joined);
        if (holder.is_some() || container.is_some()) && !drained {
            self.notice(view::Event::Lost { slot, incarnation, cause: cause.to_owned() });
        }
        let slots = self.slots.entries.len();
        if let Some(error) =
            self.failure_history.crash_loop(now, self.progress, slots, &self.config.limits)
        {
            return self.fail(ExitCode::JobFailed, error);
        }
        let Some(holder) = holder else { return };
        if let Some(connection) = holder.connection
            && !self.last_words.contains_key(&connection)
        {
            self.out.push(Action::Disconnect { connection });
        }
        let matters = match self.stage {
            JobStage::Takeover(_)
            | JobStage::AwaitingCommit { .. }
            | JobStage::FindingCheckpoint { .. }
            | JobStage::Restoring(_) => true,
            JobStage::Idle(_) | JobStage::Beginning { .. } | JobStage::Working => self.started,
            JobStage::New | JobStage::Exporting(_) | JobStage::Stopping(_) | JobStage::Over => {
                false
            }
        };
        if !drained && matters {
            let sign = holder.closed.unwrap_or(
                if holder.connection.is_some()
                    && now.since(holder.heard) < self.config.limits.suspect_ms
                {
                    now
                } else {
                    holder.heard
                },
            );
            self.open_recovery(slot, format!("{slot} {cause}"), sign);
        }
        match slot.role {
            Role::Pserver => self.pserver_lost(slot, cause),
            Role::Trainer => self.trainer_gone(holder.member, holder.joined),
        }
    }

    /// A trainer is out of the job: pservers fence it, its work moves, the open cut goes on without it.
    pub(crate) fn trainer_gone(&mut self, member: Member, joined: bool) {
        self.leave_cut(member);
        self.phase.stepping.remove(&member);
        if let Work::Queue(queue) = &mut self.phase.work {
            queue.release(member);
        }
        if joined {
            self.send_members();
            self.share_lanes();
            self.feed();
        }
        self.exporter_gone(member);
        if let JobStage::Takeover(takeover) = &mut self.stage {
            takeover.gone(member.slot);
        }
    }

    /// Stops a container that the cluster has not reported as ended.
    pub(crate) fn stop_container(&mut self, container: &ContainerId, grace_ms: u64) {
        if let Some(life) = self.slots.containers.get_mut(container) {
            life.ours = true;
            if let Some(member) = life.member {
                self.out.push(Action::Stop { container: container.clone(), member, grace_ms });
            } else {
                self.out.push(Action::Release { container: container.clone() });
            }
        }
    }
}
