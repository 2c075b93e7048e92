//! Logs, metrics and the phases of recoveries.
