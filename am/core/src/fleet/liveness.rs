//! Liveness: which containers are alive, and which are given up.
//!
//! **The first signal counts.** The cluster reports a process that ended. When a control connection closes, the port of
//! its pserver is probed at once: refused means gone, within milliseconds. In every other case only silence decides, after
//! `dead_ms`. A trainer's report that it cannot reach a pserver starts the same probe; the report alone never marks a
//! pserver as lost. YARN alone takes ten minutes to report a lost node. A trainer, which has no port, is given up when its
//! connection closed and its NodeManager does not answer either.
//!
//! **Probes explain silence.** A pserver that is silent for `suspect_ms` is probed each second. The probe is a handshake:
//! an open connection proves nothing about a stopped process, whose kernel accepts. The answer goes into the warning and
//! into the cause of the loss (the control path is cut, the process stands still, the machine is out of reach). It
//! changes no decision: a pserver that is alive and cannot be led holds up the job as a dead one does.
//!
//! A container that is given up is stopped, its connection closed, and its incarnation refused from then on. If it lives
//! after all (its node was cut off), it is a stale process that can do no harm.

use heddle_protocol::ids::{Member, Role};
use heddle_protocol::view::WarningCode;

use super::progress;
use super::restart_policy::{Cause, FailureClass};
use super::slots::{RegisteredContainer, SlotStatus};
use super::{Fleet, Loss};
use crate::action::{Action, ConnectionId, ContainerName};
use crate::config::Limits;
use crate::context::Context;
use crate::context::deadlines::Purpose;
use crate::event::Probe;
use crate::time::MonotonicMs;

/// A suspected pserver is probed this often.
const PROBE_EVERY_MS: u64 = 1_000;

impl Fleet {
    /// A control connection is closed.
    pub(crate) fn closed(&mut self, connection: ConnectionId, ctx: &mut Context) {
        self.ended_connections.remove(&connection);
        let Some(member) = self.slots.at(connection) else {
            return;
        };
        self.slots.connections.remove(&connection);
        if let Some(holder) = self.slots.holder_mut(member.slot) {
            holder.link.closes(ctx.now());
        }
        self.probe(member, ctx);
    }

    /// Probes the port of a pserver, unless a probe is under way. Trainers have no port.
    pub(crate) fn probe(&mut self, member: Member, ctx: &mut Context) {
        let holder = self.slots.holder_mut(member.slot);
        let Some(holder) = holder.filter(|holder| holder.member == member) else {
            return;
        };
        if let (false, Some(endpoint)) =
            (holder.probe.is_under_way, holder.endpoints.first().copied())
        {
            holder.probe.is_under_way = true;
            ctx.push(Action::ProbePort { member, endpoint });
        }
    }

    /// The node of a container is unreachable or is killing it.
    pub(crate) fn node_unreachable(
        &mut self,
        container: &ContainerName,
        cause: &str,
        ctx: &mut Context,
    ) -> Option<Loss> {
        let info = self.slots.containers.get_mut(container)?;
        let Some(member) = info.member else {
            // A container of an earlier attempt: it is not waited for any more, and still accepted if it registers.
            info.given_up = true;
            return None;
        };
        let node = info.node.clone();
        let away = self.slots.member(member).is_some_and(|holder| !holder.link.is_connected());
        if !away || self.slots.container(member.slot) != Some(container) {
            return None;
        }
        match member.slot.role {
            Role::Trainer => {
                let cause = format!("is gone: {cause}");
                Some(Loss::new(member.slot, &cause, FailureClass::None, &node))
            }
            // The loss of a live pserver costs all trainers their work since the last checkpoint: its port decides.
            Role::Pserver => {
                self.probe(member, ctx);
                None
            }
        }
    }

    /// A probe has ended.
    pub(crate) fn probed(
        &mut self,
        member: Member,
        outcome: Probe,
        ctx: &mut Context,
    ) -> Option<Loss> {
        let holder = self.slots.holder_mut(member.slot);
        let holder = holder.filter(|holder| holder.member == member)?;
        holder.probe.is_under_way = false;
        let is_news = holder.probe.outcome.replace(outcome) != Some(outcome);
        if let (true, true, Some(words)) =
            (holder.link.is_silent(), is_news, silence_words(outcome))
        {
            ctx.warn(
                WarningCode::SilenceExplained,
                format!(
                    "{member_slot} on {host} {words}",
                    member_slot = member.slot,
                    host = holder.host
                ),
            );
        }
        match outcome {
            // Counts as a kill until the cluster reports the cause.
            Probe::Refused => Some(Loss {
                slot: member.slot,
                cause: Cause {
                    words: "does not listen any more: its process is gone".to_owned(),
                    detail: "ended without a report; its port refused connections".to_owned(),
                },
                class: FailureClass::Killed,
                node: self.slots.node(member.slot).unwrap_or_default().to_owned(),
            }),
            // The process exists, or its state is unknown: silence decides.
            Probe::Answered | Probe::NoAnswer | Probe::Silent => None,
        }
    }

    /// Suspects the containers that were silent for a while. Returns those that were silent for too long.
    pub(crate) fn check_liveness(&mut self, ctx: &mut Context) -> Vec<Loss> {
        let (now, limits) = (ctx.now(), ctx.limits().clone());
        let mut next: Option<MonotonicMs> = None;
        let (mut lost, mut suspects) = (Vec::new(), Vec::new());
        for (slot, entry) in &mut self.slots.entries {
            let deadline = match &mut entry.status {
                SlotStatus::Empty { .. } | SlotStatus::Asked => continue,
                SlotStatus::Starting { since, .. } => {
                    let deadline = *since + limits.registration_ms;
                    if deadline <= now {
                        let class = FailureClass::Failure;
                        lost.push(Loss::new(*slot, "did not register in time", class, ""));
                    }
                    deadline
                }
                SlotStatus::Held(holder) => {
                    if let Some(cause) = silent_for_too_long(holder, now, &limits) {
                        lost.push(Loss::new(*slot, &cause, FailureClass::None, ""));
                    }
                    lost.extend(
                        progress::loss_of(holder)
                            .filter(|_| holder.last_seen + limits.dead_ms > now),
                    );
                    let suspect = holder.last_seen + limits.suspect_ms;
                    if suspect <= now && holder.last_seen + limits.dead_ms > now {
                        suspects.push((holder.member, holder.link.falls_silent()));
                    }
                    let dead = holder.last_seen + limits.dead_ms;
                    let silent =
                        if suspect > now { suspect } else { dead.min(now + PROBE_EVERY_MS) };
                    silent.min(drained_by(holder, &limits))
                }
            };
            if deadline > now {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
        }
        if let Some(next) = next {
            ctx.set_deadline_at_latest(Purpose::Liveness, next);
        }
        for (member, is_news) in suspects {
            if is_news {
                let silent = seconds(limits.suspect_ms);
                ctx.warn(
                    WarningCode::ContainerSilent,
                    format!("{} was not heard for {silent}", member.slot),
                );
            }
            self.probe(member, ctx);
        }
        lost
    }
}

/// What a probe's outcome proves of a process that is silent, to follow its name.
fn silence_words(outcome: Probe) -> Option<&'static str> {
    match outcome {
        Probe::Refused => None,
        Probe::Answered => Some(
            "answers on its data port: the path to the ApplicationMaster is cut, or its control thread hangs",
        ),
        Probe::NoAnswer => {
            Some("stands still: its port accepts connections and its process does not answer")
        }
        Probe::Silent => Some("is out of reach: its data port does not accept connections"),
    }
}

/// A time in words, in whole seconds where it is.
fn seconds(ms: u64) -> String {
    format!("{} s", ms as f64 / 1000.0)
}

/// When a trainer must have handed back its work.
fn drained_by(holder: &RegisteredContainer, limits: &Limits) -> MonotonicMs {
    holder.draining.map_or(MonotonicMs(u64::MAX), |since| since + limits.grace_ms)
}

/// The cause of giving a container up, if it was silent or draining for too long.
fn silent_for_too_long(
    holder: &RegisteredContainer,
    now: MonotonicMs,
    limits: &Limits,
) -> Option<String> {
    if holder.last_seen + limits.dead_ms <= now {
        let silent = seconds(limits.dead_ms);
        let probed = holder.probe.outcome.and_then(silence_words);
        let why = probed.map_or_else(String::new, |words| format!(" and {words}"));
        return Some(format!("was not heard for {silent}{why}"));
    }
    let drained = drained_by(holder, limits) <= now;
    drained.then(|| "did not hand back its work in time".to_owned())
}
