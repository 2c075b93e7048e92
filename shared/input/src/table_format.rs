//! How the columns of a table are read as text.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use heddle_avro::AvroHeader;
use heddle_columns::Encoder;
use heddle_parquet::Footer;
use heddle_protocol::job_spec::columns::Schema;
use heddle_protocol::manifest::InputFile;

use crate::typed::FileHeads;

/// The columns of a job's or a model's tables, and how they are written as text. All readers of a process share it.
#[derive(Debug)]
pub struct TableFormat {
    pub(crate) schema: Schema,
    pub(crate) encoder: Encoder,
    pub(crate) has_header: bool,
    pub(crate) delimiter: u8,
    /// The training file whose columns the job has, once it is known.
    pub(crate) first_file: OnceLock<InputFile>,
    /// The fields of files whose first line was read for a task that does not begin with it.
    pub(crate) fields: Mutex<BTreeMap<String, Arc<FileFields>>>,
    /// Parquet: the ends of files that were read last.
    pub(crate) footers: FileHeads<Footer>,
    /// Avro: the beginnings.
    pub(crate) headers: FileHeads<AvroHeader>,
}

/// The places of a job's columns among the fields of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFields {
    pub(crate) count: usize,
    pub(crate) label: Option<usize>,
    pub(crate) weight: Option<usize>,
    /// For each column of the schema.
    pub(crate) columns: Vec<usize>,
}

impl TableFormat {
    /// Of text with these columns. `encoder`: of the schema.
    #[must_use]
    pub fn new(schema: Schema, encoder: Encoder, has_header: bool, delimiter: u8) -> Self {
        Self {
            schema,
            encoder,
            has_header,
            delimiter,
            first_file: OnceLock::new(),
            fields: Mutex::default(),
            footers: FileHeads::default(),
            headers: FileHeads::default(),
        }
    }
}
