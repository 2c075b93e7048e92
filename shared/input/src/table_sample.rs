//! The beginning of a file as columns or as features, before there is a job.

use heddle_columns::{Cell, FileColumn, SampledColumn, ValueKind};
use heddle_protocol::job_spec::DataFormat;
use heddle_protocol::job_spec::columns::Header;

use crate::batch::Batch;
use crate::columns::header_of;
use crate::formats::{Splitter, field_names, words};
use crate::lines::{BYTE_ORDER_MARK, LineError, is_blank, line_of, refusal};
use crate::record_format::{Labels, RecordFormat};

/// Why the beginning of a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{line}:{error}")]
pub struct SampleError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong in it.
    pub error: LineError,
}

/// A record of a table of text.
#[derive(Clone, Debug)]
struct TextRow {
    line: usize,
    fields: Vec<Vec<u8>>,
    /// Bytes of the line, from 1, at which the fields begin.
    places: Vec<usize>,
}

/// The beginning of a table of text.
#[derive(Clone, Debug)]
pub struct TextTable {
    /// Whether its first line has the names of columns.
    pub has_header: bool,
    /// The character between fields.
    pub delimiter: u8,
    names: Vec<String>,
    rows: Vec<TextRow>,
}

impl TextTable {
    /// Reads `text`. `is_whole`: its last line is not cut. Unless `delimiter` is `stated`, the first
    /// lines may show another.
    ///
    /// # Errors
    /// A line is malformed, or has another number of fields than the first one.
    pub fn read(
        text: &[u8],
        is_whole: bool,
        header: Header,
        delimiter: u8,
        stated: bool,
    ) -> Result<Self, SampleError> {
        check_text(text)?;
        let mut lines = whole_lines(text, is_whole).peekable();
        let first = lines.peek().copied().unwrap_or(Line { number: 1, text: b"" });
        let delimiter = if stated { delimiter } else { likely_delimiter(text, delimiter) };
        let at = |line: usize| move |error| SampleError { line, error };
        let header = header_of(first.text, delimiter, header).map_err(at(first.number))?;
        let has_header = header != Header::None;
        let names = field_names(first.text, delimiter, has_header).map_err(at(first.number))?;
        let mut splitter = Splitter::new(delimiter);
        let mut rows = Vec::new();
        for Line { number, text } in lines.skip(usize::from(has_header)) {
            let count = splitter.split(text).map_err(at(number))?;
            if count != names.len() {
                let what = format!("{count} fields, expected {}", names.len());
                return Err(at(number)(LineError { column: 1, what }));
            }
            let fields = (0..count).map(|place| splitter.field(text, place).to_vec()).collect();
            let places = (0..count).map(|place| splitter.column(place)).collect();
            rows.push(TextRow { line: number, fields, places });
        }
        Ok(Self { has_header, delimiter, names, rows })
    }

    /// Its columns.
    #[must_use]
    pub fn columns(&self) -> Vec<SampledColumn<'_>> {
        let column = |(place, name): (usize, &String)| SampledColumn {
            column: FileColumn { name: name.clone(), kind: ValueKind::AnyText },
            values: self.rows.iter().map(|row| Cell::Text(&row.fields[place])).collect(),
        };
        self.names.iter().enumerate().map(column).collect()
    }

    /// Records that were read.
    #[must_use]
    pub fn records(&self) -> usize {
        self.rows.len()
    }

    /// What is wrong with a field, and where it is.
    ///
    /// # Panics
    /// There is not such a record or column.
    #[must_use]
    pub fn error(&self, record: usize, column: usize, what: String) -> SampleError {
        let row = &self.rows[record];
        SampleError { line: row.line, error: LineError { column: row.places[column], what } }
    }
}

/// The character that cuts the first two lines into the same number of fields, above one: `usual` if it does, else that with the
/// most fields.
fn likely_delimiter(text: &[u8], usual: u8) -> u8 {
    let fields = |delimiter: u8| {
        let mut splitter = Splitter::new(delimiter);
        let mut counts =
            whole_lines(text, true).take(2).map(|line| splitter.split(line.text).unwrap_or(0));
        let first = counts.next().unwrap_or(0);
        if counts.all(|count| count == first) { first } else { 0 }
    };
    if fields(usual) > 1 {
        return usual;
    }
    let others = [b'|', b'\t', b';'].into_iter().max_by_key(|other| fields(*other));
    others.filter(|other| fields(*other) > 1).unwrap_or(usual)
}

/// Reads the beginning of a file of libsvm or "dummy" text. Labels are as written, indices from 0.
///
/// # Errors
/// A line is malformed.
pub fn sample_words(format: DataFormat, text: &[u8], is_whole: bool) -> Result<Batch, SampleError> {
    let features = u64::from(u32::MAX);
    let (index_base, labels) = (format.index_base(), Labels::Required);
    let record = RecordFormat { format, index_base, features, labels, table: None };
    let mut lines = match format {
        DataFormat::Dummy => words::<false>(record),
        _ => words::<true>(record),
    };
    let mut batch = Batch::default();
    check_text(text)?;
    for Line { number: line, text } in whole_lines(text, is_whole) {
        let text = [text.strip_suffix(b"\n").unwrap_or(text), b"\n"].concat();
        lines.read_line(&text, &mut batch).map_err(|error| SampleError { line, error })?;
    }
    Ok(batch)
}

/// Refuses a file that is not text, by its first bytes.
fn check_text(text: &[u8]) -> Result<(), SampleError> {
    let error = |what| SampleError { line: 1, error: LineError { column: 1, what } };
    refusal(text, None).map_or(Ok(()), |what| Err(error(what)))
}

/// A line with its number, from 1.
#[derive(Clone, Copy, Debug)]
struct Line<'t> {
    number: usize,
    text: &'t [u8],
}

/// Lines that are not blank. The last one is left out if it is cut.
fn whole_lines(text: &[u8], is_whole: bool) -> impl Iterator<Item = Line<'_>> {
    let mut rest = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let next = move || {
        let line = line_of(rest);
        rest = &rest[line.len()..];
        (line.ends_with(b"\n") || is_whole && !line.is_empty()).then_some(line)
    };
    let numbered = std::iter::from_fn(next).zip(1..).map(|(text, number)| Line { number, text });
    numbered.filter(|line| !is_blank(line.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, is_whole: bool) -> Result<TextTable, String> {
        let read = TextTable::read(text.as_bytes(), is_whole, Header::Auto, b',', false);
        read.map_err(|error| error.to_string())
    }

    fn shown(text: &str, is_whole: bool) -> String {
        let table = read(text, is_whole).expect("it is read");
        let field = |field: &Vec<u8>| String::from_utf8_lossy(field).into_owned();
        let row = |row: &TextRow| row.fields.iter().map(field).collect::<Vec<_>>().join("|");
        let rows: Vec<_> = table.rows.iter().map(row).collect();
        format!("{} = {}", table.names.join("|"), rows.join(" / "))
    }

    #[test]
    fn records_are_whole_lines() {
        assert_eq!(shown("a,b\n1,2\n\n3,4\n5,", false), "a|b = 1|2 / 3|4");
        assert_eq!(shown("a,b\n1,2\n\n3,4\n5,", true), "a|b = 1|2 / 3|4 / 5|");
        assert_eq!(shown("a\tb\n1\t2\n\t\n", true), "a|b = 1|2 / |");
        assert_eq!(shown("\u{feff}a,\"b,c\"\r\n\"1\"\"\",2\r\n", true), "a|b,c = 1\"|2");
        assert_eq!(shown("1,2\n3,4\n", true), "_c0|_c1 = 1|2 / 3|4");
        assert_eq!(shown("a;b\n1;2\n", true), "a|b = 1|2");
        assert_eq!(shown("a;b\n1,5;2\n", true), "a|b = 1,5|2");
        assert_eq!(shown("a;b,c\n1,2\n", true), "a;b|c = 1|2");
        assert_eq!(shown("", true), " = ");
        assert_eq!(shown("a,b", false), " = ");
    }

    #[test]
    fn malformed_lines_have_a_place() {
        assert_eq!(read("a,b\n\n1\n", true).expect_err("one"), "3:1: 1 fields, expected 2");
        let error = read("a,b\n1,\"x\n", true).expect_err("not closed");
        assert!(error.starts_with("2:5: a quote that is not closed"), "{error}");
        let error = read("a\0,\0b\0\n\0", true).expect_err("UTF-16");
        assert!(error.starts_with("1:1: this is UTF-16"), "{error}");
        let table = read("a,b\n12,x\n", true).expect("it is read");
        assert_eq!(table.error(0, 1, "odd".to_owned()).to_string(), "2:4: odd");
    }

    #[test]
    fn words_are_read_with_labels_as_written() {
        let batch = sample_words(DataFormat::Libsvm, b"-1 1:2 7:0.5\n# x\n3 2:1", true);
        let batch = batch.expect("it is read");
        assert_eq!((&batch.labels[..], &batch.indices[..]), (&[-1.0, 3.0][..], &[0, 6, 1][..]));
        let error = sample_words(DataFormat::Libsvm, b"1 1:2\n1 1:x\n", true).expect_err("x");
        assert!(error.to_string().starts_with("2:5: "), "{error}");
    }
}
