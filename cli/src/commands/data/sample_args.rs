//! The arguments of `heddle data sample`.

use clap::builder::PossibleValuesParser;
use heddle_protocol::job_spec::DataFormat;
use heddle_protocol::job_spec::columns::Header;

#[derive(Debug, clap::Args)]
pub struct SampleArgs {
    /// A file, a folder, a glob or a URL, as data.train of a job file; the beginning of its first file is read
    #[arg(value_name = "DATA")]
    pub data: String,
    /// Show this many records
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
    /// The format of the data [default: by the file's name, such as .csv or .csv.gz]
    #[arg(long, value_parser = PossibleValuesParser::new(DataFormat::names()))]
    pub format: Option<String>,
    /// Tables: the column of the label [default: guessed]
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
    /// Tables: the character between fields [default: by the format and the first line]
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter)]
    pub delimiter: Option<char>,
    /// Tables: whether the first line has the names of the columns
    #[arg(long, default_value = "auto", value_parser = ["auto", "true", "false"])]
    header: String,
}

impl SampleArgs {
    /// `--header`, as the key of a job file.
    pub fn header(&self) -> Header {
        match self.header.as_str() {
            "true" => Header::First,
            "false" => Header::None,
            _ => Header::Auto,
        }
    }
}

/// A character between fields; `\t` is a tab.
fn delimiter(text: &str) -> Result<char, String> {
    match (text, text.as_bytes()) {
        ("\\t", _) => Ok('\t'),
        (_, [byte]) if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => {
            Ok(char::from(*byte))
        }
        _ => Err("expected one character of ASCII, such as ; or \\t".to_owned()),
    }
}
