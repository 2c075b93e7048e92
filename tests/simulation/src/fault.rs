//! What can go wrong in a simulated job, and lists of it as they are written for a replay.

use std::fmt;
use std::str::FromStr;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A trainer's process dies.
    KillTrainer,
    /// A pserver's process dies.
    KillPserver,
    /// The ApplicationMaster dies; containers live on.
    KillAm,
    /// The ApplicationMaster dies and all containers with it.
    KillAll,
    /// The cluster gives a trainer up whose process goes on.
    LoseTrainer,
    /// The cluster gives a pserver up whose process goes on.
    LosePserver,
    /// A data connection breaks.
    BreakData,
    /// A control connection breaks.
    BreakControl,
    /// An operator asks for a checkpoint.
    Cut,
    /// A process stands still for a while.
    Pause,
    /// A process does nothing for a while, or without end, but send heartbeats.
    Hang,
    /// The cluster announces the preemption of a container.
    Preempt,
    /// The cluster announces that a node leaves.
    NodeLeaves,
    /// An operator asks for another number of trainers.
    Scale,
    /// The ResourceManager does not answer for a while.
    Silence,
    /// A process ends with a bad exit code.
    Crash,
    /// The next processes of a slot end soon after their start.
    CrashLoop,
    /// The processes of a slot need more memory than the spec gives; the cluster ends them for it.
    OutOfMemory,
    /// The cluster starts another ApplicationMaster while the one before lives on.
    TwoAms,
    /// The ApplicationMaster stands still for a while.
    PauseAm,
    /// The wall clock of the ApplicationMaster's node is set.
    WallJumps,
    /// The monotonic clock of the ApplicationMaster leaps, as after a sleep of its machine.
    ClockLeaps,
    /// A control connection is slow in one direction.
    LagControl,
    /// A data connection is slow in one direction.
    LagData,
    /// Nothing comes through between a container and the ApplicationMaster, in one direction or both.
    CutOffControl,
    /// Nothing comes through between a trainer and a pserver, in one direction or both; nor between a primary and a backup.
    CutOffData,
    /// No probe of a port is answered for a while.
    SilentProbes,
    /// The next calls to the storage fail.
    CallFails,
    /// The next calls to the storage have unknown outcomes.
    CallUnknown,
    /// The storage does not answer for a while.
    StorageDown,
    /// The journal cannot be written any more.
    JournalFails,
    /// A file of a checkpoint is damaged.
    Corrupt,
    /// A bit changes in the memory of a backup.
    FlipCopy,
    /// The next asks are answered with two containers each.
    GrantsTwice,
    /// The next containers cannot be started.
    LaunchesFail,
    /// The next processes stand still for a while after their start.
    StartsSlow,
    /// The ends of the next containers are reported twice.
    CompletionsTwice,
    /// The ends of the next containers are never reported.
    CompletionsLost,
    /// The next calls to the storage find no room or quota.
    NoRoom,
    /// The calls to the storage that are under way get no answer for a while.
    CallHangs,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 40] = [
        Self::KillTrainer,
        Self::KillPserver,
        Self::KillAm,
        Self::KillAll,
        Self::LoseTrainer,
        Self::LosePserver,
        Self::BreakData,
        Self::BreakControl,
        Self::Cut,
        Self::Pause,
        Self::Hang,
        Self::Preempt,
        Self::NodeLeaves,
        Self::Scale,
        Self::Silence,
        Self::Crash,
        Self::CrashLoop,
        Self::OutOfMemory,
        Self::TwoAms,
        Self::PauseAm,
        Self::WallJumps,
        Self::ClockLeaps,
        Self::LagControl,
        Self::LagData,
        Self::CutOffControl,
        Self::CutOffData,
        Self::SilentProbes,
        Self::CallFails,
        Self::CallUnknown,
        Self::StorageDown,
        Self::JournalFails,
        Self::Corrupt,
        Self::FlipCopy,
        Self::GrantsTwice,
        Self::LaunchesFail,
        Self::StartsSlow,
        Self::CompletionsTwice,
        Self::CompletionsLost,
        Self::NoRoom,
        Self::CallHangs,
    ];
}

impl Fault {
    /// Whether it keeps, delays or loses what processes tell each other, and does nothing else.
    #[must_use]
    pub fn is_network(self) -> bool {
        matches!(
            self,
            Self::BreakData
                | Self::BreakControl
                | Self::LagControl
                | Self::LagData
                | Self::CutOffControl
                | Self::CutOffData
        )
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|fault| format!("{fault:?}") == name);
        named.ok_or_else(|| format!("no fault is named {name:?}"))
    }
}

/// Faults, each right before an event of the run, in order: `120:KillAm,300:BreakData`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule(pub Vec<(u64, Fault)>);

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (at, fault)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{at}:{fault:?}")?;
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let one = |part: &str| {
            let (at, fault) =
                part.split_once(':').ok_or_else(|| format!("{part:?} is not EVENT:FAULT"))?;
            let at = at.parse().map_err(|_| format!("{at:?} is not the number of an event"))?;
            Ok((at, fault.parse()?))
        };
        let parts = text.split(',').filter(|part| !part.is_empty());
        parts.map(one).collect::<Result<_, _>>().map(Self)
    }
}
