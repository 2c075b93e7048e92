//! What reads the rows of a piece.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use heddle_columns::typed::RowBlock;

use crate::error::ReadError;
use crate::storage_wait::ReaderWait;

/// Rows of a file, and the number of the first one, as [`BlockSource::place_of`] takes it.
#[derive(Debug)]
pub(crate) struct FileBlock {
    pub(crate) block: RowBlock,
    pub(crate) first_row: u64,
}

/// Reads the needed leaves of a piece, some rows at a time.
#[async_trait]
pub(crate) trait BlockSource: Debug + Send {
    /// The next rows, until the piece ends.
    async fn next_block(&mut self) -> Result<Option<FileBlock>, ReadError>;

    /// The place of a row of the last blocks, for messages.
    fn place_of(&self, row: u64) -> String;

    /// Records all further reads in `wait`.
    fn watch(&mut self, wait: &Arc<ReaderWait>);
}
