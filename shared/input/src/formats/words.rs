//! Parses one line of text into one row of a batch.
//!
//! A record is `label[:weight] [qid:number] feature feature …`, a feature being `index:value` (libsvm) or
//! `index` alone (dummy, the value is 1). A weight is a finite number of at least 0, and 1 if it is left out. Accepted around it: spaces and tabs, also at the end; a
//! carriage return before the line feed; blank lines; `#` and everything after it. Labels of two classes are −1, 0
//! and 1 (also `+1` and `-1.0`); −1 becomes 0. Rejected: labels that the algorithm does not accept, indices below the
//! base, above the number of features, or not rising within a line, and values that are not finite.
//! Records to be scored may lack the label, see [`Labels`].

use std::fmt;

use heddle_protocol::spec::limits::ANY_FEATURES;
use heddle_protocol::spec::position::position_of_key;
use heddle_protocol::spec::{DataFormat, JobSpec, LabelRange};

use super::number;
use crate::batch::Batch;
use crate::lines::task_bytes::BYTE_ORDER_MARK;

/// The format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFormat {
    /// With values or without.
    pub format: DataFormat,
    /// The lowest index in the text, 0 or 1.
    pub index_base: u32,
    /// Indices are below `features` after subtraction of the base; at most 2³² − 1. [`ANY_FEATURES`]: indices are u64 keys
    /// as they are written, in any order, and a batch has their positions.
    pub features: u64,
    /// Whether records begin with a label.
    pub labels: Labels,
}

/// Whether records begin with a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Every record does, within this range: training and evaluation.
    Within(LabelRange),
    /// Every record does, and any number is accepted.
    Required,
    /// A record may lack it: its first word is a feature (libsvm: with a colon, so that a label has no weight) or `?`. Any
    /// number is accepted. A missing label is NaN in the batch.
    Optional,
    /// No record has one: every word is a feature. All labels are NaN in the batch.
    Absent,
}

/// Why a line is not a record, with the position in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// Byte of the line, from 1.
    pub column: usize,
    /// The text found there and what was expected.
    pub what: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.column, self.what)
    }
}

impl RecordFormat {
    /// Of the data of a job whose feature indices have this bound.
    #[must_use]
    pub fn of(spec: &JobSpec, features: u64) -> Self {
        let labels = Labels::Within(spec.model.labels());
        Self { format: spec.data.format, index_base: spec.data.index_base, features, labels }
    }

    /// Of the data of a job before an algorithm bounds its indices: those of a custom one are any.
    #[must_use]
    pub fn before_training(spec: &JobSpec) -> Self {
        let features = if spec.model.features == 0 { ANY_FEATURES } else { spec.model.features };
        Self::of(spec, features)
    }

    /// Parses the line at the start of `text` into `batch`. Returns its length with the line feed, and whether it has a
    /// record (otherwise it is blank or a comment).
    ///
    /// # Errors
    /// The line is malformed; the batch is unchanged.
    ///
    /// # Panics
    /// If `text` has no line feed.
    #[inline]
    pub fn read_line(&self, text: &[u8], batch: &mut Batch) -> Result<(usize, bool), LineError> {
        // Monomorphic in the format: the branch is taken once per line, not once per feature.
        let read = match (self.format, self.features == ANY_FEATURES) {
            (DataFormat::Libsvm, false) => self.read::<true, false>(text, batch),
            (DataFormat::Libsvm, true) => self.read::<true, true>(text, batch),
            (DataFormat::Dummy, false) => self.read::<false, false>(text, batch),
            (DataFormat::Dummy, true) => self.read::<false, true>(text, batch),
        };
        read.map_err(|error| {
            batch.drop_unended();
            named(text, error)
        })
    }

    #[inline]
    fn read<const VALUES: bool, const ANY: bool>(
        &self,
        text: &[u8],
        batch: &mut Batch,
    ) -> Result<(usize, bool), LineError> {
        let mut at = skip_spaces(text, 0);
        if let Some(end) = line_end(text, at) {
            return Ok((end, false));
        }
        let first = at;
        let (label, weight, len) = self.label::<VALUES>(text, at)?;
        at += len;
        // Indices of the text plus one, so that 0 precedes the first index of base 0.
        let mut lowest = u64::from(self.index_base);
        let highest = if ANY { u64::MAX } else { self.features + lowest };
        loop {
            if let Some((index, value, len)) = usual::<VALUES>(&text[at..])
                && (ANY || (lowest..highest).contains(&index))
            {
                lowest = self.push::<ANY>(index, value, batch);
                at += len;
                continue;
            }
            // Without a label the first feature needs no blank before it.
            let separated = matches!(text[at], b' ' | b'\t') || at == first;
            at = skip_spaces(text, at);
            if text[at] <= b'#'
                && let Some(end) = line_end(text, at)
            {
                self.end_row(label, weight, batch);
                return Ok((end, true));
            }
            let index = match ANY {
                true => number::whole_u64(&text[at..]),
                false => number::whole(&text[at..]).map(|(index, len)| (u64::from(index), len)),
            };
            let Some((index, len)) = index.filter(|_| separated) else {
                if separated && text[at..].starts_with(b"qid:") {
                    let (_, len) = number::whole(&text[at + 4..])
                        .ok_or_else(|| wrong(text, at + 4, "a whole number after qid:"))?;
                    at += 4 + len;
                    continue;
                }
                let expected = if ANY { "an index of at most 2^64 - 1" } else { "an index" };
                return Err(wrong(text, at, expected));
            };
            if !ANY && (index < lowest || index >= highest) {
                return Err(self.bad_index(index, lowest, at));
            }
            at += len;
            let value = if VALUES {
                let (value, len) = read_value(text, at)?;
                at += len;
                value
            } else {
                1.0
            };
            lowest = self.push::<ANY>(index, value, batch);
        }
    }

    /// Appends a feature; returns the lowest index that may follow.
    #[inline(always)]
    fn push<const ANY: bool>(&self, index: u64, value: f32, batch: &mut Batch) -> u64 {
        batch.values.push(value);
        if ANY {
            batch.positions.push(position_of_key(index));
            return 0;
        }
        // Below the highest index, which is below 2³².
        batch.indices.push(index as u32 - self.index_base);
        index + 1
    }

    /// Parses the label and its weight, if there is one; returns their length too.
    #[inline]
    fn label<const VALUES: bool>(
        &self,
        text: &[u8],
        at: usize,
    ) -> Result<(f32, Option<f32>, usize), LineError> {
        let read = match self.labels {
            Labels::Within(range) => read_label(&text[at..], range),
            Labels::Required => read_label(&text[at..], LabelRange::Number),
            Labels::Optional => read_optional_label(&text[at..], VALUES),
            Labels::Absent => Ok((f32::NAN, 0)),
        };
        let (label, len) = read.map_err(|what| LineError { column: at + 1, what })?;
        if len == 0 || text[at + len] != b':' {
            return Ok((label, None, len));
        }
        let (weight, more) = read_weight(text, at + len)?;
        Ok((label, Some(weight), len + more))
    }

    #[inline]
    fn end_row(&self, label: f32, weight: Option<f32>, batch: &mut Batch) {
        match self.labels {
            Labels::Within(LabelRange::TwoClasses) => batch.end_row(label),
            Labels::Within(LabelRange::Classes(_) | LabelRange::Number)
            | Labels::Required
            | Labels::Optional
            | Labels::Absent => batch.end_row_as_written(label),
        }
        if let Some(weight) = weight {
            batch.weigh(batch.rows() - 1, weight);
        }
    }

    #[cold]
    fn bad_index(&self, index: u64, lowest: u64, at: usize) -> LineError {
        let base = u64::from(self.index_base);
        let what = if index < base {
            format!("index {index}, but indices start at {base} (data.index-base)")
        } else if index >= self.features + base {
            format!(
                "index {index} is above the highest, {} (model.features is {}, data.index-base {base})",
                self.features + base - 1,
                self.features
            )
        } else {
            format!("index {index} after index {}: indices must rise within a line", lowest - 1)
        };
        LineError { column: at + 1, what }
    }
}

/// Parses the usual form of a feature: one blank, an index of up to eight digits, and in libsvm a colon and a
/// value of up to seven digits, which may have a sign and a point. Returns index, value and length; `None` for any other
/// form, which the general parser handles.
#[inline(always)]
fn usual<const VALUES: bool>(text: &[u8]) -> Option<(u64, f32, usize)> {
    // One check of the length covers all that follows; the masks let the compiler omit further bounds checks.
    let word = text.first_chunk::<32>()?;
    if word[0] != b' ' {
        return None;
    }
    if !VALUES {
        let (index, count) = number::eight_digits(*word[1..].first_chunk()?);
        let ends = matches!(word[(1 + count) & 15], b' ' | b'\n');
        return (count > 0 && ends).then_some((index, 1.0, 1 + count));
    }
    let (index, count) = number::leading_digits::<9>(word[1..].first_chunk()?, 0);
    if !(1..=8).contains(&count) || word[(1 + count) & 15] != b':' {
        return None;
    }
    let index = u64::from(index);
    let (digit, end) = (word[(2 + count) & 15].wrapping_sub(b'0'), word[(3 + count) & 15]);
    if digit <= 9 && matches!(end, b' ' | b'\n') {
        return Some((index, f32::from(digit), 3 + count));
    }
    let negative = word[(2 + count) & 15] == b'-';
    let start = 2 + (count & 15) + usize::from(negative);
    let (value, len) = number::short(word[start..].first_chunk()?)?;
    let value = if negative { -value } else { value };
    matches!(word[(start + len) & 31], b' ' | b'\n').then_some((index, value, start + len))
}

/// Parses a colon and the weight of a record at `at`; returns the weight and their length.
fn read_weight(text: &[u8], at: usize) -> Result<(f32, usize), LineError> {
    let expected = "a weight after the label (a finite number of at least 0)";
    match number::decimal(&text[at + 1..]) {
        Some((weight, len)) if weight >= 0.0 && ends_word(&text[at + 1 + len..]) => {
            // Also "-0".
            Ok((weight.abs(), 1 + len))
        }
        _ => Err(wrong(text, at + 1, expected)),
    }
}

/// Parses a colon and a value at `at`; returns the value and their length.
#[inline]
fn read_value(text: &[u8], at: usize) -> Result<(f32, usize), LineError> {
    if text[at] != b':' {
        let expected =
            "':' and a value after the index (indices alone are data.format = \"dummy\")";
        return Err(wrong(text, at, expected));
    }
    let (value, len) =
        number::decimal(&text[at + 1..]).ok_or_else(|| wrong(text, at + 1, "a finite number"))?;
    Ok((value, 1 + len))
}

/// Names what is found by its cause, if it is a byte order mark.
#[cold]
fn named(text: &[u8], error: LineError) -> LineError {
    if !text[error.column - 1..].starts_with(BYTE_ORDER_MARK) {
        return error;
    }
    let what = "a byte order mark within the file, where files were joined: remove it";
    LineError { what: what.to_owned(), ..error }
}

#[inline]
fn skip_spaces(text: &[u8], mut at: usize) -> usize {
    while matches!(text[at], b' ' | b'\t') {
        at += 1;
    }
    at
}

/// The position after the line feed, if only a line end or a comment follows at `at`.
#[inline]
fn line_end(text: &[u8], at: usize) -> Option<usize> {
    match text[at] {
        b'\n' => Some(at + 1),
        b'\r' if text.get(at + 1) == Some(&b'\n') => Some(at + 2),
        b'#' => text[at..].iter().position(|byte| *byte == b'\n').map(|feed| at + feed + 1),
        _ => None,
    }
}

/// Parses a label of this range; returns it and its length.
#[inline]
fn read_label(text: &[u8], range: LabelRange) -> Result<(f32, usize), String> {
    match text {
        // 0 and 1 are in every range: there are at least two classes.
        [b'1', b' ' | b'\n', ..] => return Ok((1.0, 1)),
        [b'0', b' ' | b'\n', ..] => return Ok((0.0, 1)),
        _ => {}
    }
    match range {
        LabelRange::TwoClasses => read_sign(text),
        LabelRange::Classes(classes) => read_class(text, classes),
        LabelRange::Number => whole_word(text).ok_or_else(|| no_label(text)),
    }
}

/// Parses a label that is a number; returns it and its length.
fn whole_word(text: &[u8]) -> Option<(f32, usize)> {
    let (label, len) = number::decimal(text)?;
    (ends_word(&text[len..]) || text[len] == b':').then_some((label, len))
}

fn ends_word(text: &[u8]) -> bool {
    matches!(text.first(), None | Some(b' ' | b'\t' | b'\r' | b'\n' | b'#'))
}

#[cold]
fn no_label(text: &[u8]) -> String {
    format!("expected a label, found {}", found(text))
}

/// Parses the label of a class, from 0 on.
fn read_class(text: &[u8], classes: u32) -> Result<(f32, usize), String> {
    let (label, len) = whole_word(text).ok_or_else(|| no_label(text))?;
    if label.fract() == 0.0 && (0.0..classes as f32).contains(&label) {
        // Also "-0".
        Ok((label.abs(), len))
    } else {
        Err(format!(
            "label {label}, but labels are whole numbers from 0 to {} (model.classes is {classes})",
            classes - 1
        ))
    }
}

/// Parses a label of two classes: −1, 0 or 1.
#[inline]
fn read_sign(text: &[u8]) -> Result<(f32, usize), String> {
    match text {
        [b'+', b'1', b' ', ..] => return Ok((1.0, 2)),
        [b'-', b'1', b' ', ..] => return Ok((-1.0, 2)),
        _ => {}
    }
    let (label, len) = whole_word(text).ok_or_else(|| no_label(text))?;
    if label == 1.0 || label == -1.0 {
        Ok((label, len))
    } else if label == 0.0 {
        // Also "-0".
        Ok((0.0, len))
    } else {
        Err(format!("label {label}, but the labels of two classes are 0 and 1, or -1 and +1"))
    }
}

/// Parses the label of a record to be scored; returns it and its length. NaN and 0 if the record begins with a feature.
fn read_optional_label(text: &[u8], values: bool) -> Result<(f32, usize), String> {
    let end = text
        .iter()
        .position(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | b'#'))
        .unwrap_or(text.len());
    let word = &text[..end];
    if word == b"?" {
        return Ok((f32::NAN, 1));
    }
    if values && word.contains(&b':') {
        return Ok((f32::NAN, 0));
    }
    match number::decimal(text) {
        Some((label, len)) if len == end || word[len] == b':' => Ok((label, len)),
        _ => Err(format!("expected a label, '?' or a feature, found {}", found(text))),
    }
}

#[cold]
fn wrong(text: &[u8], at: usize, expected: &str) -> LineError {
    LineError { column: at + 1, what: format!("expected {expected}, found {}", found(&text[at..])) }
}

/// The start of `text`, shortened, for a message.
fn found(text: &[u8]) -> String {
    let word: Vec<u8> =
        text.iter().copied().take_while(|byte| !byte.is_ascii_whitespace()).take(24).collect();
    if word.is_empty() {
        return "the end of the word or line".to_owned();
    }
    format!("{:?}", String::from_utf8_lossy(&word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIBSVM: RecordFormat = RecordFormat {
        format: DataFormat::Libsvm,
        index_base: 1,
        features: 100,
        labels: Labels::Within(LabelRange::TwoClasses),
    };
    const DUMMY: RecordFormat = RecordFormat {
        format: DataFormat::Dummy,
        index_base: 0,
        features: 100,
        labels: Labels::Within(LabelRange::TwoClasses),
    };

    type Row = (f32, Vec<(u32, f32)>);

    fn row(format: RecordFormat, line: &str) -> Result<Option<Row>, String> {
        let mut batch = Batch::default();
        let text = format!("{line}\n");
        let read = format.read_line(text.as_bytes(), &mut batch);
        // With more text behind it the fast path reads the last features too.
        let (mut again, followed) = (Batch::default(), format!("{text}{:64}\n", ""));
        assert_eq!(format.read_line(followed.as_bytes(), &mut again), read);
        assert_eq!(format!("{again:?}"), format!("{batch:?}"));
        match read {
            Err(error) => {
                assert_eq!(batch, Batch::default(), "left something behind");
                Err(error.to_string())
            }
            Ok((len, record)) => {
                assert_eq!(len, text.len());
                let (indices, values) =
                    (batch.indices.iter().copied(), batch.values.iter().copied());
                Ok(record.then(|| (batch.labels[0], indices.zip(values).collect())))
            }
        }
    }

    #[test]
    fn accepted_lines() {
        let one = |label: f32| Ok(Some((label, vec![(0, 0.5), (99, -2.0)])));
        for line in [
            "1 1:0.5 100:-2",
            "+1 1:.5 100:-2.0",
            "1.0\t1:5e-1\t100:-2e0",
            "  1   1:0.5  100:-2   ",
            "1 1:0.5 100:-2\r",
            "1 qid:7 1:0.5 100:-2",
            "1 1:0.5 100:-2 # a comment 3:4",
            "1 1:0.5 100:-2#note",
        ] {
            assert_eq!(row(LIBSVM, line), one(1.0), "{line:?}");
        }
        for line in ["0 1:0.5 100:-2", "-1 1:0.5 100:-2", "-1.0 1:0.5 100:-2"] {
            assert_eq!(row(LIBSVM, line), one(0.0), "{line:?}");
        }
        assert_eq!(row(LIBSVM, "1"), Ok(Some((1.0, vec![]))));
        assert_eq!(row(LIBSVM, "-1\r"), Ok(Some((0.0, vec![]))));
        assert_eq!(row(DUMMY, "-1 0 7 99"), Ok(Some((0.0, vec![(0, 1.0), (7, 1.0), (99, 1.0)]))));
        for line in ["", "   ", "\r", "# all of it", "\t# x"] {
            assert_eq!(row(LIBSVM, line), Ok(None), "{line:?}");
        }
    }

    #[test]
    fn rejected_lines_name_the_column() {
        for (line, error) in [
            ("2 1:1", "1: label 2, but the labels of two classes are 0 and 1, or -1 and +1"),
            ("x 1:1", "1: expected a label, found \"x\""),
            ("x:1", "1: expected a label, found \"x:1\""),
            ("3:1 5:1", "1: label 3, but the labels of two classes are 0 and 1, or -1 and +1"),
            (
                "1:-2 5:1",
                "3: expected a weight after the label (a finite number of at least 0), found \"-2\"",
            ),
            (
                "1:nan 5:1",
                "3: expected a weight after the label (a finite number of at least 0), found \"nan\"",
            ),
            (
                "1:inf",
                "3: expected a weight after the label (a finite number of at least 0), found \"inf\"",
            ),
            (
                "-1:1e99 5:1",
                "4: expected a weight after the label (a finite number of at least 0), found \"1e99\"",
            ),
            (
                "1: 5:1",
                "3: expected a weight after the label (a finite number of at least 0), found the end of the word or line",
            ),
            (
                "1:2x 5:1",
                "3: expected a weight after the label (a finite number of at least 0), found \"2x\"",
            ),
            (
                "1:2:3 5:1",
                "3: expected a weight after the label (a finite number of at least 0), found \"2:3\"",
            ),
            ("nan 1:1", "1: expected a label, found \"nan\""),
            ("1 0:1", "3: index 0, but indices start at 1 (data.index-base)"),
            (
                "1 101:1",
                "3: index 101 is above the highest, 100 (model.features is 100, data.index-base 1)",
            ),
            ("1 5:1 4:1", "7: index 4 after index 5: indices must rise within a line"),
            ("1 5:1 5:1", "7: index 5 after index 5: indices must rise within a line"),
            ("1 5:nan", "5: expected a finite number, found \"nan\""),
            ("1 5:inf", "5: expected a finite number, found \"inf\""),
            ("1 5:1e99", "5: expected a finite number, found \"1e99\""),
            ("1 5:", "5: expected a finite number, found the end of the word or line"),
            (
                "1 5",
                "4: expected ':' and a value after the index (indices alone are data.format = \"dummy\"), \
                 found the end of the word or line",
            ),
            ("1 5:1x", "6: expected an index, found \"x\""),
            ("1 5:1,6:1", "6: expected an index, found \",6:1\""),
            ("1 -5:1", "3: expected an index, found \"-5:1\""),
            ("1 99999999999:1", "3: expected an index, found \"99999999999:1\""),
            ("1 qid:x 1:1", "7: expected a whole number after qid:, found \"x\""),
            ("1 5:1 \r 6:1", "7: expected an index, found the end of the word or line"),
        ] {
            assert_eq!(row(LIBSVM, line), Err(error.to_owned()), "{line:?}");
        }
        assert_eq!(row(DUMMY, "1 5:1"), Err("4: expected an index, found \":1\"".to_owned()));
        assert!(row(DUMMY, "1 100").is_err());
    }

    #[test]
    fn labels_outside_of_the_range_are_rejected() {
        let with = |range, line: &str| {
            let labels = Labels::Within(range);
            row(RecordFormat { labels, ..LIBSVM }, line).map(|row| row.expect("a record").0)
        };
        let classes = LabelRange::Classes(3);
        for (line, label) in [("0 1:1", 0.0), ("2\t1:1", 2.0), ("2.0 1:1", 2.0), ("-0", 0.0)] {
            assert_eq!(with(classes, line), Ok(label), "{line:?}");
        }
        for label in ["3", "-1", "1.5", "1e9"] {
            let text = with(classes, &format!("{label} 1:1")).expect_err("out of range");
            assert!(text.ends_with("labels are whole numbers from 0 to 2 (model.classes is 3)"));
        }
        for (line, label) in [("-3.25 1:1", -3.25), ("1e9\r", 1e9), ("0 1:1", 0.0)] {
            assert_eq!(with(LabelRange::Number, line), Ok(label), "{line:?}");
        }
        for label in ["nan", "inf", "1e99", "x", "x:1", "1,5"] {
            let text = with(LabelRange::Number, &format!("{label} 1:1")).expect_err("no number");
            assert!(text.starts_with("1: expected a label, found "), "{text}");
        }
    }

    #[test]
    fn records_to_be_scored_may_lack_the_label() {
        let parsed = |format: RecordFormat, line: &str| {
            let (label, features) = row(format, line).expect("taken").expect("a record");
            let label = if label.is_nan() { "none".to_owned() } else { label.to_string() };
            (label, features)
        };
        let optional = RecordFormat { labels: Labels::Optional, ..LIBSVM };
        let features = vec![(2, 1.0), (4, 0.5)];
        for line in ["3:1 5:.5", "  3:1 5:.5", "? 3:1 5:.5", "qid:7 3:1 5:.5"] {
            assert_eq!(parsed(optional, line), ("none".to_owned(), features.clone()), "{line:?}");
        }
        for (line, label) in [("1 3:1 5:.5", "1"), ("-1 3:1 5:.5", "-1"), ("7 3:1 5:.5", "7")] {
            assert_eq!(parsed(optional, line), (label.to_owned(), features.clone()), "{line:?}");
        }
        assert_eq!(parsed(optional, "?"), ("none".to_owned(), vec![]));
        for line in ["x 3:1", "3 :1", "3:1,5:1", "?? 3:1"] {
            assert!(row(optional, line).is_err(), "{line:?}");
        }

        let dummy = RecordFormat { labels: Labels::Optional, ..DUMMY };
        assert_eq!(parsed(dummy, "? 3 5"), ("none".to_owned(), vec![(3, 1.0), (5, 1.0)]));
        assert_eq!(parsed(dummy, "3 5"), ("3".to_owned(), vec![(5, 1.0)]));
        let absent = RecordFormat { labels: Labels::Absent, ..DUMMY };
        assert_eq!(parsed(absent, "3 5"), ("none".to_owned(), vec![(3, 1.0), (5, 1.0)]));
    }

    #[test]
    fn label_may_have_a_weight() {
        let weights = |format: RecordFormat, lines: &[&str]| {
            let mut batch = Batch::default();
            for line in lines {
                let text = format!("{line}\n");
                format.read_line(text.as_bytes(), &mut batch).expect("a record");
            }
            (
                batch.labels.clone(),
                (0..lines.len()).map(|row| batch.weight(row)).collect::<Vec<_>>(),
            )
        };
        let (labels, weights_of) = weights(
            LIBSVM,
            &["1:2.5 3:1", "0 3:1", "-1:0 3:1", "+1:3e-2", "1:-0\t3:1 # x", "1 3:1"],
        );
        assert_eq!(labels, [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(weights_of, [Some(2.5), Some(1.0), Some(0.0), Some(0.03), Some(0.0), None]);
        assert_eq!(weights(LIBSVM, &["1 3:1", "0 4:1"]).1, [None, None]);
        assert_eq!(weights(DUMMY, &["1:4 3 5"]), (vec![1.0], vec![Some(4.0)]));
        let optional = RecordFormat { labels: Labels::Optional, ..DUMMY };
        assert_eq!(weights(optional, &["1:4 3 5"]).1, [Some(4.0)]);
        let required = RecordFormat { labels: Labels::Required, ..LIBSVM };
        assert_eq!(weights(required, &["7:4 3:1"]), (vec![7.0], vec![Some(4.0)]));
        let number = Labels::Within(LabelRange::Number);
        let (labels, weights_of) =
            weights(RecordFormat { labels: number, ..LIBSVM }, &["-3.25:0.5 1:1"]);
        assert_eq!((labels, weights_of), (vec![-3.25], vec![Some(0.5)]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_row_or_an_error(
            mut text in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            text.push(b'\n');
            let mut batch = Batch::default();
            if let Ok((len, _)) = LIBSVM.read_line(&text, &mut batch) {
                prop_assert_eq!(text[len - 1], b'\n');
            }
            let _ = DUMMY.read_line(&text, &mut batch);
        }

        #[test]
        fn any_near_miss_is_a_row_or_an_error(
            line in "[-+]?[0-9]{0,2}[ \t]?([0-9]{0,4}[:,#]?[-+0-9.e]{0,6}[ \r]?){0,8}\n",
        ) {
            let mut batch = Batch::default();
            if LIBSVM.read_line(line.as_bytes(), &mut batch).is_ok() {
                prop_assert!(batch.indices.iter().all(|index| *index < 100));
                prop_assert!(batch.values.iter().all(|value| value.is_finite()));
            }
        }
    }
}
