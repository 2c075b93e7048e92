//! The control connection of a container, and the probe of its data port.
//!
//! ```text
//!           no line for liveness.suspect
//!   Open ◀──────────────────────────────▶ Silent
//!    │                a line                │
//!    └──────────────▶ Closed ◀──────────────┘        another connection registers: Open
//! ```

use crate::action::ConnectionId;
use crate::event::Probe;
use crate::time::MonotonicMs;

/// The control connection of a registered container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlLink {
    /// Lines come.
    Open(ConnectionId),
    /// No line came for `liveness.suspect`.
    Silent(ConnectionId),
    /// It is closed, and no other one has come. `is_silent`: no line came for `liveness.suspect`.
    Closed { at: MonotonicMs, is_silent: bool },
}

impl ControlLink {
    /// The connection, while there is one.
    pub(crate) fn connection(self) -> Option<ConnectionId> {
        match self {
            Self::Open(connection) | Self::Silent(connection) => Some(connection),
            Self::Closed { .. } => None,
        }
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(self) -> bool {
        self.connection().is_some()
    }

    /// Whether no line came for `liveness.suspect`.
    pub(crate) fn is_silent(self) -> bool {
        matches!(self, Self::Silent(_) | Self::Closed { is_silent: true, .. })
    }

    /// When it closed.
    pub(crate) fn closed_at(self) -> Option<MonotonicMs> {
        match self {
            Self::Open(_) | Self::Silent(_) => None,
            Self::Closed { at, .. } => Some(at),
        }
    }

    pub(super) fn line_came(&mut self) {
        *self = match *self {
            Self::Open(connection) | Self::Silent(connection) => Self::Open(connection),
            Self::Closed { at, .. } => Self::Closed { at, is_silent: false },
        };
    }

    /// Returns whether it was not silent before.
    pub(super) fn falls_silent(&mut self) -> bool {
        let is_news = !self.is_silent();
        *self = match *self {
            Self::Open(connection) | Self::Silent(connection) => Self::Silent(connection),
            Self::Closed { at, .. } => Self::Closed { at, is_silent: true },
        };
        is_news
    }

    pub(super) fn closes(&mut self, now: MonotonicMs) {
        *self = Self::Closed { at: now, is_silent: self.is_silent() };
    }
}

/// The probe of a pserver's data port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortProbe {
    pub(super) is_under_way: bool,
    /// The last outcome since the last line of the container.
    pub(super) outcome: Option<Probe>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_news_once_and_survives_the_connection() {
        let mut link = ControlLink::Open(ConnectionId(7));
        assert!(link.falls_silent() && !link.falls_silent());
        assert_eq!(
            (link, link.connection()),
            (ControlLink::Silent(ConnectionId(7)), Some(ConnectionId(7)))
        );
        link.line_came();
        assert_eq!(link, ControlLink::Open(ConnectionId(7)));
        assert!(link.falls_silent(), "it is silent again");
        link.closes(MonotonicMs(5));
        assert!(link.is_silent() && !link.is_connected() && !link.falls_silent());
        assert_eq!(link.closed_at(), Some(MonotonicMs(5)));
    }

    #[test]
    fn a_closed_link_falls_silent_too() {
        let mut link = ControlLink::Open(ConnectionId(7));
        link.closes(MonotonicMs(5));
        assert!(!link.is_silent() && link.falls_silent() && link.is_silent());
    }
}
