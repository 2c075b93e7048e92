//! Commands that pservers pass on to the shards of each data thread.

use std::time::Duration;

use heddle_protocol::control::ShardCommand;

use super::{ShardSet, ShardSetError};
use crate::effect::ShardEffect;

impl ShardSet {
    /// Carries out a command.
    ///
    /// # Errors
    /// Another epoch.
    pub fn command(
        &mut self,
        command: &ShardCommand,
        now: Duration,
        out: &mut Vec<ShardEffect>,
    ) -> Result<(), ShardSetError> {
        match command {
            ShardCommand::Members { trainers } => self.members(trainers, out),
            ShardCommand::Views(command) => return self.views(command, now, out),
            ShardCommand::HandOver(command) => return self.hand_over(command, now, out),
            ShardCommand::CutEnd(end) => self.cut_end(*end, out),
        }
        Ok(())
    }
}
