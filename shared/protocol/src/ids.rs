//! Ids: small typed numbers that all messages, log lines and files share.
//!
//! Ids are types of their own so that a shard cannot be passed where a task is meant. All of them
//! serialise as plain numbers (or short strings) and print in the form that users write.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number that follows this one.
            ///
            /// # Panics
            /// When the number is the highest of its type, which no job reaches by counting.
            #[must_use]
            pub fn next(self) -> Self {
                let next = self.0.checked_add(1);
                Self(next.expect("ids are counted up one by one and never exhausted"))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number_id!(
    /// A slice of the whole model; the unit of placement, checkpoint and recovery. From 0, fixed for the job.
    ShardId(u32),
    ""
);
/// BSP: the shard that counts records and losses. All shards apply the same steps, so one is enough.
pub const RECORD_COUNTER: ShardId = ShardId(0);
number_id!(
    /// A named parameter of the model, numbered in the order of the spec from 0.
    TableId(u16),
    ""
);
number_id!(
    /// A piece of the input: a run of records of one file. From 0 in the order of the input plan.
    TaskId(u32),
    ""
);
number_id!(
    /// A logical worker of a BSP job with its own fixed sequence of minibatches. From 0.
    Lane(u32),
    ""
);
number_id!(
    /// The ordinal of a phase of the job: a pass over the training data, a measurement before the
    /// first pass, an evaluation. From 0; which kind it is follows from the spec.
    PhaseNo(u32),
    ""
);
number_id!(
    /// One minibatch. ASP: of a task, from 0. BSP: the job step of the phase, from 0, which all lanes share.
    Step(u64),
    ""
);
number_id!(
    /// The n-th push frame of a step to one shard, from 0.
    Part(u32),
    ""
);
number_id!(
    /// One filling of a slot by a container; counted up for each new container of the slot, from 1.
    Incarnation(u32),
    ""
);
number_id!(
    /// The n-th start of the job's ApplicationMaster, from 1. Containers accept commands of the highest they have seen.
    Attempt(u32),
    ""
);
number_id!(
    /// The n-th time a task was handed out within an epoch and phase, from 1.
    TaskAttempt(u32),
    ""
);
number_id!(
    /// Number of a claim on a checkpoint directory: 1 + the highest there. The fencing token of everything durable.
    Generation(u32),
    "g"
);
number_id!(
    /// Fencing number of a shard's primary within an epoch: 1 when the epoch begins, raised when the primary changes.
    Term(u64),
    ""
);
number_id!(
    /// Orders the views of a shard within an epoch and term; raised with each change of the in-sync set or of the backups.
    ViewVersion(u64),
    ""
);

number_id!(
    /// A save of the model. From 1 over the job; 0 is the one at its end.
    SaveNo(u32),
    ""
);

/// Only a rollback raises it. Data frames carry it and shards refuse any other.
///
/// Ordered by generation, then count, so that epochs of a later claim are always higher.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch {
    /// The claim under which the rollback was ordered.
    pub generation: Generation,
    /// Rollbacks under that claim so far; 0 is the start of the generation.
    pub count: u32,
}

impl Epoch {
    /// The first epoch of a generation.
    #[must_use]
    pub fn first(generation: Generation) -> Self {
        Self { generation, count: 0 }
    }

    /// The epoch after one more rollback.
    #[must_use]
    pub fn next(self) -> Self {
        Self { generation: self.generation, count: self.count.saturating_add(1) }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.count)
    }
}

/// Names one attempt to take a cut: never used twice, not even by a later attempt of the ApplicationMaster.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct CutId {
    /// The claim under which the cut was ordered.
    pub generation: Generation,
    /// Counted up within the generation; 0 is never a cut and means "none yet".
    pub number: u32,
}

impl fmt::Display for CutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-c{}", self.generation, self.number)
    }
}

/// Fencing number of a lane (BSP): counts how often the ApplicationMaster gave the lane to a trainer.
///
/// Counted up within a phase, and ordered by generation first, so that a number of a later ApplicationMaster is above
/// all numbers of earlier ones. A shard that was queried with one number refuses pushes and `Done`s of lower ones.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct HandOut {
    /// The claim under which the lane was given.
    pub generation: Generation,
    /// Counted up over all lanes of the phase, from 1; 0 is never given.
    pub count: u32,
}

impl fmt::Display for HandOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-h{}", self.generation, self.count)
    }
}

/// Fencing number of the trainer that writes a model: counts how often the ApplicationMaster elected one.
///
/// Ordered by generation first, so that a number of a later ApplicationMaster is above all numbers of earlier ones. Only
/// what is written under the last one is published.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct SaveLease {
    /// The claim under which the trainer was elected.
    pub generation: Generation,
    /// Counted up over all elections of the generation, from 1; 0 is never given.
    pub count: u32,
}

impl fmt::Display for SaveLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-s{}", self.generation, self.count)
    }
}

/// One execution of a job.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RunId(pub Uuid);

impl RunId {
    /// The first eight hexadecimal digits, which users type.
    #[must_use]
    pub fn short(&self) -> String {
        self.0.simple().to_string()[..8].to_owned()
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The role of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Role {
    /// Holds shards.
    Pserver = 1,
    /// Reads data, pulls values, pushes gradients.
    Trainer = 2,
}

impl Role {
    /// The role behind its byte on the wire.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Pserver),
            2 => Some(Self::Trainer),
            _ => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pserver => "pserver",
            Self::Trainer => "trainer",
        })
    }
}

/// A place in the job that one container at a time fills. Written `pserver-3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Its role.
    pub role: Role,
    /// From 0 within the role.
    pub index: u32,
}

impl Slot {
    /// The n-th pserver's place.
    #[must_use]
    pub fn pserver(index: u32) -> Self {
        Self { role: Role::Pserver, index }
    }

    /// The n-th trainer's place.
    #[must_use]
    pub fn trainer(index: u32) -> Self {
        Self { role: Role::Trainer, index }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.role, self.index)
    }
}

/// Why a text is not the name of a slot.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected a slot like pserver-0 or trainer-3, got {0:?}")]
pub struct SlotError(String);

impl FromStr for Slot {
    type Err = SlotError;

    fn from_str(text: &str) -> Result<Self, SlotError> {
        let wrong = || SlotError(text.chars().take(64).collect());
        let (role, index) = text.rsplit_once('-').ok_or_else(wrong)?;
        let role = match role {
            "pserver" => Role::Pserver,
            "trainer" => Role::Trainer,
            _ => return Err(wrong()),
        };
        let index = index.parse().map_err(|_| wrong())?;
        Ok(Self { role, index })
    }
}

impl Serialize for Slot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Slot {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// One container in its slot: the identity that each connection proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The place.
    pub slot: Slot,
    /// The number of its filling.
    pub incarnation: Incarnation,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_read_back_what_they_print() {
        for slot in [Slot::pserver(0), Slot::trainer(4_294_967_295)] {
            assert_eq!(slot.to_string().parse(), Ok(slot));
        }
        for wrong in ["", "pserver", "pserver-", "worker-1", "trainer--1", "trainer-4294967296"] {
            assert!(wrong.parse::<Slot>().is_err(), "{wrong:?} was taken");
        }
    }

    #[test]
    fn epochs_of_a_later_generation_are_higher() {
        let late = Epoch { generation: Generation(1), count: 9 };
        assert!(Epoch::first(Generation(2)) > late);
        assert_eq!(late.next().to_string(), "g1.10");
    }
}
