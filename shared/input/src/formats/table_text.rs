//! Tables of text: CSV and TSV (RFC 4180). A line is a record, so a line feed within quotes is refused. Fields may be quoted; a
//! quote within quotes is written twice. The first line of each file may have the names of its columns, which may stand in
//! another order in each file.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use heddle_columns::{Cell, Encoder, nearest_columns};

use super::label;
use crate::batch::{Batch, FeaturesOfRow};
use crate::lines::{LineError, LineFormat, is_blank, line_of, text_of_records};
use crate::record_format::{Labels, RecordFormat};
use crate::table_format::{FileFields, TableFormat};

/// Finds the places of the columns among these names.
fn find_fields(
    table: &TableFormat,
    names: &[String],
    labels: Labels,
) -> Result<FileFields, String> {
    let find = |name: &str| names.iter().position(|other| other == name);
    let expect = |name: &str| {
        let nearest = || nearest_columns(name, names.iter().map(String::as_str));
        find(name).ok_or_else(|| format!("the file has no column {name:?}; {}", nearest()))
    };
    let label =
        labels.column(&table.schema, |name| find(name).is_some()).map(expect).transpose()?;
    let weight = labels.weight_column(&table.schema).map(expect).transpose()?;
    let columns = table.schema.columns.iter().map(|column| expect(&column.name));
    let columns = columns.collect::<Result<_, _>>()?;
    Ok(FileFields { count: names.len(), label, weight, columns })
}

/// The names of the columns of a file that begins with this text: its first line has them, or they are counted.
pub(crate) fn field_names(
    text: &[u8],
    delimiter: u8,
    has_header: bool,
) -> Result<Vec<String>, LineError> {
    let line = line_of(text_of_records(text));
    let mut splitter = Splitter::new(delimiter);
    let fields = splitter.split(line)?;
    let name = |place: usize| {
        if has_header {
            return String::from_utf8_lossy(splitter.field(line, place)).trim().to_owned();
        }
        format!("_c{place}")
    };
    Ok((0..fields).map(name).collect())
}

/// Splits a line into fields.
#[derive(Debug)]
pub(crate) struct Splitter {
    delimiter: u8,
    /// Where fields begin in the line, or in `unquoted`, and what follows the last one.
    starts: Vec<u32>,
    is_quoted: bool,
    unquoted: Vec<u8>,
}

impl Splitter {
    pub(crate) fn new(delimiter: u8) -> Self {
        Self { delimiter, starts: Vec::new(), is_quoted: false, unquoted: Vec::new() }
    }

    /// Splits `line`, which may end in a line feed. Returns the number of fields.
    #[inline]
    pub(crate) fn split(&mut self, line: &[u8]) -> Result<usize, LineError> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.starts.clear();
        self.starts.push(0);
        self.is_quoted = memchr::memchr(b'"', line).is_some();
        if self.is_quoted {
            return self.split_quoted(line);
        }
        // A line is shorter than 2³² bytes.
        let starts = &mut self.starts;
        each_place(line, self.delimiter, |end| starts.push(end as u32 + 1));
        starts.push(line.len() as u32 + 1);
        Ok(self.starts.len() - 1)
    }

    #[cold]
    fn split_quoted(&mut self, line: &[u8]) -> Result<usize, LineError> {
        self.unquoted.clear();
        let mut at = 0;
        loop {
            let is_quoted = line.get(at) == Some(&b'"');
            if is_quoted {
                at = self.unquote(line, at + 1)?;
            }
            let end = place_of(self.delimiter, line, at).unwrap_or(line.len());
            let rest = &line[at..end];
            if is_quoted && !rest.trim_ascii().is_empty() {
                let what = "a quote within quotes that is not doubled: in Spark, write CSV with \
                            .option(\"escape\", \"\\\"\")";
                return Err(LineError { column: at, what: what.to_owned() });
            }
            self.unquoted.extend_from_slice(rest);
            self.starts.push(self.unquoted.len() as u32);
            if end == line.len() {
                return Ok(self.starts.len() - 1);
            }
            at = end + 1;
        }
    }

    /// Copies text within quotes, from `at` on. Returns the place after the quote that ends it.
    fn unquote(&mut self, line: &[u8], mut at: usize) -> Result<usize, LineError> {
        while let Some(quote) = place_of(b'"', line, at) {
            if line.get(quote + 1) != Some(&b'"') {
                self.unquoted.extend_from_slice(&line[at..quote]);
                return Ok(quote + 1);
            }
            self.unquoted.extend_from_slice(&line[at..=quote]);
            at = quote + 2;
        }
        let what = "a quote that is not closed: fields with line feeds are not read";
        Err(LineError { column: line.len() + 1, what: what.to_owned() })
    }

    /// The fields of the line that was split.
    #[inline]
    fn fields<'l>(&'l self, line: &'l [u8]) -> LineFields<'l> {
        let (text, gap) = if self.is_quoted { (&self.unquoted[..], 0) } else { (line, 1) };
        LineFields { text, starts: &self.starts, gap }
    }

    pub(crate) fn field<'l>(&'l self, line: &'l [u8], place: usize) -> &'l [u8] {
        self.fields(line).get(place)
    }

    /// The column of a field in the line, from 1, as far as it is known.
    pub(crate) fn column(&self, place: usize) -> usize {
        if self.is_quoted { 1 } else { self.starts[place] as usize + 1 }
    }
}

/// The fields of a line.
#[derive(Clone, Copy)]
struct LineFields<'l> {
    text: &'l [u8],
    starts: &'l [u32],
    /// Bytes between two fields.
    gap: u32,
}

impl<'l> LineFields<'l> {
    #[inline]
    fn get(self, place: usize) -> &'l [u8] {
        &self.text[self.starts[place] as usize..(self.starts[place + 1] - self.gap) as usize]
    }
}

/// The first place of a byte from `at` on. Fields are short: `memchr` takes twice the time.
#[inline]
fn place_of(byte: u8, line: &[u8], at: usize) -> Option<usize> {
    Some(at + line[at..].iter().position(|other| *other == byte)?)
}

/// Calls `found` with each place of a byte. Fields are short: a search for each delimiter takes twice the time.
#[inline]
fn each_place(text: &[u8], byte: u8, mut found: impl FnMut(usize)) {
    let (blocks, rest) = text.as_chunks::<64>();
    for (block, bytes) in blocks.iter().enumerate() {
        let (eights, _) = bytes.as_chunks::<8>();
        let bits = eights.iter().rev().fold(0, |bits, eight| bits << 8 | equal_bytes(*eight, byte));
        each_bit(bits, |bit| found(block * 64 + bit));
    }
    let start = text.len() - rest.len();
    let (eights, rest) = rest.as_chunks::<8>();
    for (place, eight) in eights.iter().enumerate() {
        each_bit(equal_bytes(*eight, byte), |bit| found(start + place * 8 + bit));
    }
    let start = text.len() - rest.len();
    let places = rest.iter().enumerate().filter(|(_, other)| **other == byte);
    places.for_each(|(place, _)| found(start + place));
}

/// A bit for each of eight bytes that equals another byte, the lowest for the first.
#[inline]
fn equal_bytes(bytes: [u8; 8], byte: u8) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let other = u64::from_le_bytes(bytes) ^ u64::from_le_bytes([byte; 8]);
    // The highest bit of each byte that is 0; sums stay within their byte.
    let zeros = !(((other & LOW) + LOW) | other | LOW);
    // Moves bit 8 i to 56 + i.
    (zeros >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

#[inline]
fn each_bit(mut bits: u64, mut found: impl FnMut(usize)) {
    while bits != 0 {
        found(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// The parser of the lines of a table.
pub(super) fn table_lines(format: RecordFormat) -> Box<dyn LineFormat> {
    let table = format.table();
    let (encoder, splitter) = (table.encoder.clone(), Splitter::new(table.delimiter));
    Box::new(TableLines { format, table, encoder, splitter, fields: None })
}

/// The lines of a table.
#[derive(Debug)]
struct TableLines {
    format: RecordFormat,
    table: Arc<TableFormat>,
    encoder: Encoder,
    splitter: Splitter,
    /// Found by the first line.
    fields: Option<Arc<FileFields>>,
}

impl TableLines {
    /// Finds the fields by the first line of a file.
    fn begin(&mut self, line: &[u8]) -> Result<(), LineError> {
        let names = field_names(line, self.table.delimiter, self.table.has_header)?;
        let found = find_fields(&self.table, &names, self.format.labels);
        self.fields = Some(Arc::new(found.map_err(|what| LineError { column: 1, what })?));
        Ok(())
    }

    /// The fields of files whose first line was read.
    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Arc<FileFields>>> {
        self.table.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the features of a record.
    fn record(
        &mut self,
        line: &[u8],
        fields: &FileFields,
        batch: &mut Batch,
    ) -> Result<(), LineError> {
        let found = self.splitter.split(line)?;
        if found != fields.count {
            let what = format!("{found} fields, expected {}", fields.count);
            return Err(LineError { column: 1, what });
        }
        let at = |splitter: &Splitter, place, what: String| LineError {
            column: splitter.column(place),
            what,
        };
        let label = match fields.label {
            None => f32::NAN,
            Some(place) => label::of_field(self.format.labels, self.splitter.field(line, place))
                .map_err(|what| at(&self.splitter, place, what))?,
        };
        let weight = fields.weight.map(|place| {
            label::weight_of_field(self.splitter.field(line, place))
                .map_err(|what| at(&self.splitter, place, what))
        });
        let weight = weight.transpose()?;
        let mut sink = FeaturesOfRow::new(batch, self.format.features, &self.encoder);
        let texts = self.splitter.fields(line);
        for (column, place) in fields.columns.iter().enumerate() {
            let cell = Cell::Text(texts.get(*place));
            if let Err(error) = self.encoder.cell(column, cell, &mut sink) {
                self.encoder.drop_record();
                return Err(at(&self.splitter, *place, error.to_string()));
            }
        }
        self.encoder.end_record(&mut sink);
        label::end_row(self.format.labels, label, weight, batch);
        Ok(())
    }
}

impl LineFormat for TableLines {
    fn parse(&mut self, text: &[u8], batch: &mut Batch) -> Result<(usize, bool), LineError> {
        let line = line_of(text);
        if is_blank(line) {
            return Ok((line.len(), false));
        }
        if self.fields.is_none() {
            self.begin(line)?;
            if self.table.has_header {
                return Ok((line.len(), false));
            }
        }
        // Taken out while the buffers beside them change.
        let fields = self.fields.take();
        let read = fields.iter().try_for_each(|fields| self.record(line, fields, batch));
        self.fields = fields;
        read.map(|()| (line.len(), true))
    }

    fn lacks_first_line(&mut self, file: &str) -> bool {
        let known = self.known().get(file).cloned();
        self.fields = known;
        self.fields.is_none()
    }

    fn take_first_line(&mut self, file: &str, line: &[u8]) -> Result<(), LineError> {
        self.begin(line)?;
        let fields = self.fields.clone();
        self.known().extend(fields.map(|fields| (file.to_owned(), fields)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::DataFormat;
    use heddle_protocol::job_spec::columns::{ColumnUsage, FeatureColumn, MissingCategory};
    use heddle_protocol::job_spec::limits::ANY_FEATURES;

    use super::*;

    fn names(text: &str, delimiter: u8, has_header: bool) -> Vec<String> {
        field_names(text.as_bytes(), delimiter, has_header).expect("it is a line")
    }

    #[test]
    fn names_are_those_of_the_first_line_that_is_not_blank() {
        assert_eq!(names("\tprice\ty\n0\t1\t2\n", b'\t', true), ["", "price", "y"]);
        assert_eq!(names("\n \r\na,\"b,c\" ,d\r\n", b',', true), ["a", "b,c", "d"]);
        assert_eq!(names("1,2,3\n", b',', false), ["_c0", "_c1", "_c2"]);
        assert_eq!(names("a\n", b',', true), ["a"]);
    }

    proptest::proptest! {
        #[test]
        fn each_place_is_found(text in proptest::collection::vec(43_u8..46, 0..200)) {
            let (mut places, expected) = (Vec::new(), memchr::memchr_iter(b',', &text));
            each_place(&text, b',', |place| places.push(place));
            proptest::prop_assert_eq!(places, expected.collect::<Vec<_>>());
        }

        #[test]
        fn equal_bytes_have_a_bit(bytes: [u8; 8], byte: u8) {
            let expected = (0..8).fold(0, |bits, at| bits | u64::from(bytes[at] == byte) << at);
            proptest::prop_assert_eq!(equal_bytes(bytes, byte), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn quoted_fields_are_those_that_were_written(
            fields in proptest::collection::vec(("[ab,\"\\\\ ]{0,6}", proptest::bool::ANY), 1..6),
        ) {
            let written = fields.iter().map(|(field, is_quoted)| {
                let needs_quotes = *is_quoted || field.contains(['"', ',']);
                let quoted = || format!("\"{}\"", field.replace('"', "\"\""));
                if needs_quotes { quoted() } else { field.clone() }
            });
            let line = written.collect::<Vec<_>>().join(",");
            let mut splitter = Splitter::new(b',');
            let count = splitter.split(line.as_bytes()).expect("it is well-formed");
            proptest::prop_assert_eq!(count, fields.len());
            for (place, (field, _)) in fields.iter().enumerate() {
                proptest::prop_assert_eq!(splitter.field(line.as_bytes(), place), field.as_bytes());
            }
        }
    }

    #[test]
    fn quotes_that_are_not_doubled_are_named() {
        for (line, column) in [
            (r#"1,"say \"so\"""#, 9),
            (r#""\"so\" twice",1"#, 3),
            (r#"1,"\"",5,"b, c""#, 10),
            ("\"a\"b,1", 3),
        ] {
            let error = Splitter::new(b',').split(line.as_bytes()).expect_err("it is malformed");
            assert_eq!(error.column, column, "{line}");
            assert!(error.what.starts_with("a quote within quotes that is not doubled"), "{line}");
        }
    }

    /// Reads text with the columns `y` (label) and `c` (category). Returns the labels, and what is malformed.
    fn read(text: &str, delimiter: u8, has_header: bool) -> (Vec<f32>, Vec<String>) {
        let usage = ColumnUsage::Category { missing: MissingCategory::None };
        let name = |own: &str, place: &str| (if has_header { own } else { place }).to_owned();
        let schema = heddle_protocol::job_spec::columns::Schema {
            label: name("y", "_c0"),
            columns: vec![FeatureColumn { name: name("c", "_c1"), usage }],
            null: vec![String::new()],
            ..Default::default()
        };
        let encoder = Encoder::unscaled(&schema);
        let table = Arc::new(TableFormat::new(schema, encoder, has_header, delimiter));
        let labels = Labels::Within(heddle_protocol::job_spec::LabelRange::TwoClasses);
        let (format, features) = (DataFormat::Csv, ANY_FEATURES);
        let format = RecordFormat { format, index_base: 0, features, labels, table: Some(table) };
        let (mut lines, mut batch) = (table_lines(format), Batch::default());
        let (mut at, mut bad) = (0, Vec::new());
        while at < text.len() {
            let rest = &text.as_bytes()[at..];
            match lines.read_line(rest, &mut batch) {
                Ok((len, _)) => at += len,
                Err(error) => {
                    bad.push(error.to_string());
                    at += line_of(rest).len();
                }
            }
        }
        (batch.labels, bad)
    }

    proptest::proptest! {
        #[test]
        fn damaged_tables_are_records_or_errors(
            text in "([01],?|[a\"\t\n\r ]|\\PC){0,40}",
            is_tabs: bool,
            has_header: bool,
        ) {
            let text = format!("{text}\n");
            let (labels, bad) = read(&text, if is_tabs { b'\t' } else { b',' }, has_header);
            proptest::prop_assert!(labels.len() + bad.len() <= text.matches('\n').count());
        }
    }

    #[test]
    fn blank_lines_are_no_records_and_empty_fields_are() {
        let (labels, bad) = read("\n\ny\tc\n1\ta\n\n \n0\t\n\t\n", b'\t', true);
        assert_eq!(labels, [1.0, 0.0]);
        assert_eq!(bad, ["1: expected a label, found the end of the word or line"]);
        let (labels, bad) = read("1,a\n0,\"b\n0,b,c\n1,\"x,\"\"y\"\n", b',', false);
        assert_eq!(labels, [1.0, 1.0]);
        assert_eq!(bad.len(), 2, "{bad:?}");
        assert!(bad[0].contains("a quote that is not closed"), "{bad:?}");
        assert_eq!(bad[1], "1: 3 fields, expected 2");
    }
}
