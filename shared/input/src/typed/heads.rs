//! What was read of the heads of files.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use heddle_protocol::manifest::InputFile;

use crate::error::ReadError;

/// The heads of files that were read last: the tasks of a file need the same.
#[derive(Debug)]
pub(crate) struct FileHeads<T>(Mutex<VecDeque<(InputFile, Arc<T>)>>);

/// Heads that are kept.
const HEADS_MAX: usize = 16;

impl<T> Default for FileHeads<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> FileHeads<T> {
    /// The head of a file, which is read unless it is known.
    pub(crate) async fn get_or_read(
        &self,
        file: &InputFile,
        read: impl Future<Output = Result<T, ReadError>>,
    ) -> Result<Arc<T>, ReadError> {
        if let Some(head) = self.get(file) {
            return Ok(head);
        }
        let head = Arc::new(read.await?);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.truncate(HEADS_MAX - 1);
        known.push_front((file.clone(), Arc::clone(&head)));
        Ok(head)
    }

    fn get(&self, file: &InputFile) -> Option<Arc<T>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(other, _)| other == file).map(|(_, head)| Arc::clone(head))
    }
}
