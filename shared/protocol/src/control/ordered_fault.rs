//! Faults that an operator orders in a running job (`heddle chaos`), to show that it survives them.
//!
//! Only a job with `run.chaos` takes such orders. One session at a time may give them: an ApplicationMaster refuses the
//! orders of another until the first one has ended or given no sign for [`SESSION_LAPSES_MS`].

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::Slot;

/// A session that ended without a word blocks others for this long, ms. A session gives a sign every ten seconds.
pub const SESSION_LAPSES_MS: u64 = 60_000;
/// Longest duration of a fault, ms: beyond it a session would be over before its fault is.
pub const FAULT_MS_MAX: u64 = 600_000;
/// Highest factor by which a trainer or a saver is slowed.
pub const SLOW_FACTOR_MAX: u32 = 1_000;

/// A fault that a process brings upon itself, or the command upon a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "fault")]
pub enum OrderedFault {
    /// It ends by SIGKILL.
    Kill,
    /// It stops by SIGSTOP and continues by SIGCONT.
    Pause {
        /// How long it stands still, ms.
        ms: u64,
    },
    /// One of its threads sleeps while its heartbeats are sent: a data thread of a pserver, the training loop of a trainer.
    Hang {
        /// How long the thread sleeps, ms.
        ms: u64,
    },
    /// A trainer takes `factor` times as long to compute.
    Slow {
        /// At least 2.
        factor: u32,
        /// How long it is slow, ms.
        ms: u64,
    },
    /// It closes its control connection, a pserver also those of its data threads.
    Drop,
    /// The savers of a pserver take `factor` times as long to write.
    SlowDisk {
        /// At least 2.
        factor: u32,
        /// How long they are slow, ms.
        ms: u64,
    },
    /// A byte of a file of the newest checkpoint changes. The command does it, no process.
    Corrupt {
        /// Chooses the file.
        draw: u32,
    },
    /// A trainer neither reads nor writes on its connections to a pserver, and opens none.
    Cut {
        /// The number of the pserver.
        pserver: u32,
        /// How long the path is cut, ms.
        ms: u64,
    },
}

impl OrderedFault {
    /// How long the fault lasts, ms; 0 for one that is over at once.
    #[must_use]
    pub fn lasts_ms(self) -> u64 {
        match self {
            Self::Kill | Self::Drop | Self::Corrupt { .. } => 0,
            Self::Pause { ms }
            | Self::Hang { ms }
            | Self::Slow { ms, .. }
            | Self::SlowDisk { ms, .. }
            | Self::Cut { ms, .. } => ms,
        }
    }

    /// Whether the numbers are within their bounds.
    #[must_use]
    pub fn is_valid(self) -> bool {
        let factor = match self {
            Self::Slow { factor, .. } | Self::SlowDisk { factor, .. } => {
                (2..=SLOW_FACTOR_MAX).contains(&factor)
            }
            Self::Kill
            | Self::Pause { .. }
            | Self::Hang { .. }
            | Self::Drop
            | Self::Corrupt { .. }
            | Self::Cut { .. } => true,
        };
        factor && self.lasts_ms() <= FAULT_MS_MAX
    }
}

impl fmt::Display for OrderedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ms: u64| ms as f64 / 1e3;
        match *self {
            Self::Kill => f.write_str("kill"),
            Self::Pause { ms } => write!(f, "pause of {} s", seconds(ms)),
            Self::Hang { ms } => write!(f, "hang of {} s", seconds(ms)),
            Self::Slow { factor, ms } => write!(f, "slow by {factor} for {} s", seconds(ms)),
            Self::Drop => f.write_str("drop"),
            Self::SlowDisk { factor, ms } => {
                write!(f, "slow-disk by {factor} for {} s", seconds(ms))
            }
            Self::Corrupt { .. } => f.write_str("corrupt"),
            Self::Cut { pserver, ms } => {
                write!(f, "cut from {} for {} s", Slot::pserver(pserver), seconds(ms))
            }
        }
    }
}

/// What a fault is for. Written `am`, `checkpoint` or as a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultTarget {
    /// The ApplicationMaster. It takes [`OrderedFault::Kill`] and [`OrderedFault::Pause`].
    Am,
    /// The newest checkpoint, for [`OrderedFault::Corrupt`].
    Checkpoint,
    /// The container in this slot.
    Slot(Slot),
}

impl fmt::Display for FaultTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Am => f.write_str("am"),
            Self::Checkpoint => f.write_str("checkpoint"),
            Self::Slot(slot) => slot.fmt(f),
        }
    }
}

impl FromStr for FaultTarget {
    type Err = crate::ids::SlotError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "am" => Ok(Self::Am),
            "checkpoint" => Ok(Self::Checkpoint),
            slot => slot.parse().map(Self::Slot),
        }
    }
}

impl Serialize for FaultTarget {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FaultTarget {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// An order of a chaos session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChaosOrder {
    /// The session, which draws its own number.
    pub session: Uuid,
    /// What it orders.
    pub step: ChaosStep,
}

/// What a session orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "step")]
pub enum ChaosStep {
    /// The session begins, or goes on: a sign of life.
    Hold,
    /// A fault.
    Inject {
        /// The process.
        target: FaultTarget,
        /// The fault.
        #[serde(flatten)]
        fault: OrderedFault,
    },
    /// The session has ended.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_json() {
        let faults = [
            OrderedFault::Kill,
            OrderedFault::Pause { ms: 5 },
            OrderedFault::Hang { ms: 6 },
            OrderedFault::Slow { factor: 100, ms: 7 },
            OrderedFault::Drop,
            OrderedFault::SlowDisk { factor: 10, ms: 8 },
            OrderedFault::Corrupt { draw: 9 },
            OrderedFault::Cut { pserver: 1, ms: 10 },
        ];
        let targets =
            [FaultTarget::Am, FaultTarget::Checkpoint, FaultTarget::Slot(Slot::trainer(3))];
        let steps = faults.into_iter().zip(targets.into_iter().cycle());
        let steps = steps.map(|(fault, target)| ChaosStep::Inject { target, fault });
        for step in steps.chain([ChaosStep::Hold, ChaosStep::End]) {
            let order = ChaosOrder { session: Uuid::from_u128(9), step };
            let json = serde_json::to_string(&order).expect("JSON");
            assert_eq!(
                serde_json::from_str::<ChaosOrder>(&json).expect("an order"),
                order,
                "{json}"
            );
        }
    }

    #[test]
    fn bounds_of_faults_are_checked() {
        for (fault, valid) in [
            (OrderedFault::Slow { factor: 1, ms: 1 }, false),
            (OrderedFault::Slow { factor: SLOW_FACTOR_MAX + 1, ms: 1 }, false),
            (OrderedFault::Slow { factor: 2, ms: FAULT_MS_MAX }, true),
            (OrderedFault::SlowDisk { factor: 1, ms: 1 }, false),
            (OrderedFault::Pause { ms: FAULT_MS_MAX + 1 }, false),
            (OrderedFault::Kill, true),
        ] {
            assert_eq!(fault.is_valid(), valid, "{fault}");
        }
    }
}
