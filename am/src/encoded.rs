//! Commands as JSON, each encoded once for all containers that receive it.
//!
//! A command for all containers of a job is one value in the core's actions ([`std::sync::Arc`]). Its bytes are made for
//! the first connection and shared by the queues of the others, so a thousand registrations at once, or a map of
//! thousands of shards for thousands of trainers, take the memory of one.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use heddle_protocol::control::{Command, LINE_BYTES_MAX};

/// Most shared commands whose bytes are cached. The core's actions mix a few (epoch and places with lanes, members with a
/// cut).
const KEPT: usize = 4;

/// Why a command cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncodeError {
    /// JSON cannot represent it. All commands of the protocol have a JSON form.
    #[error("cannot encode the command as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Longer than a container accepts.
    #[error("the command must fit a control line of {LINE_BYTES_MAX} bytes (got {0})")]
    TooLong(usize),
}

/// The bytes of the commands that were sent last.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    kept: VecDeque<(Arc<Command>, Bytes)>,
}

impl Encoded {
    /// The command as JSON.
    pub(crate) fn get(&mut self, command: &Arc<Command>) -> Result<Bytes, EncodeError> {
        if let Some((_, bytes)) = self.kept.iter().find(|(kept, _)| Arc::ptr_eq(kept, command)) {
            return Ok(bytes.clone());
        }
        let bytes = Bytes::from(command.to_json()?);
        if bytes.len() >= LINE_BYTES_MAX {
            return Err(EncodeError::TooLong(bytes.len()));
        }
        // A command for a single container has no second owner, so there is nothing to share.
        if Arc::strong_count(command) > 1 {
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back((Arc::clone(command), bytes.clone()));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Arc<Command> {
        let reason = "superseded".to_owned();
        Arc::new(Command::Refused { reason })
    }

    #[test]
    fn a_shared_command_is_encoded_once() {
        let mut encoded = Encoded::default();
        let command = refused();
        let copies = [Arc::clone(&command), Arc::clone(&command)];
        let bytes = copies.each_ref().map(|copy| encoded.get(copy).expect("JSON"));
        assert_eq!(bytes[0].as_ptr(), bytes[1].as_ptr());
        let _other = encoded.get(&refused()).expect("JSON");
        assert_eq!(encoded.kept.len(), 1, "what only one container gets is not kept");
    }

    #[test]
    fn only_the_latest_are_kept() {
        let mut encoded = Encoded::default();
        let commands: Vec<_> = (0..10).map(|_| refused()).collect();
        for command in &commands {
            let _bytes = encoded.get(&Arc::clone(command)).expect("JSON");
        }
        assert!(encoded.kept.len() <= KEPT);
    }

    #[test]
    fn a_command_beyond_the_limit_of_a_line_is_an_error() {
        let reason = "x".repeat(LINE_BYTES_MAX);
        let error =
            Encoded::default().get(&Arc::new(Command::Refused { reason })).expect_err("too long");
        assert!(error.to_string().contains("control line"), "{error}");
    }
}
