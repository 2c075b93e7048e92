//! The beginning of the training data, by which a job is checked and its automatic values are decided.

use heddle_columns::FileColumn;
use heddle_protocol::manifest::InputFile;

/// The beginning of the training data.
#[derive(Debug)]
pub enum Head {
    /// Of files of text.
    Text(TextHead),
    /// Of files with types.
    Table {
        /// The columns of the first file.
        columns: Vec<FileColumn>,
        /// The first file.
        file: InputFile,
        /// Records of all training data, about.
        records: u64,
    },
}

/// The beginning of text.
#[derive(Debug, Default)]
pub struct TextHead {
    /// URL of the file that it was read from.
    pub file: String,
    /// Text, unpacked; the last line may be cut.
    pub text: Vec<u8>,
    /// Whether it is all of the file, so that the last line is whole.
    pub is_whole: bool,
    /// Bytes of all data by the bytes that the text was read from.
    pub share: f64,
}
