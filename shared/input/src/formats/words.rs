//! Lines of words: libsvm and dummy text.
//!
//! A record is `label[:weight] [qid:number] feature feature …`, a feature being `index:value` (libsvm) or
//! `index` alone (dummy, the value is 1). A weight is a finite number of at least 0, and 1 if it is left out. Accepted around it: spaces and tabs, also at the end; a
//! carriage return before the line feed; blank lines; `#` and everything after it. Labels of two classes are −1, 0
//! and 1 (also `+1` and `-1.0`); −1 becomes 0. Rejected: labels that the algorithm does not accept, indices below the
//! base, above the number of features, or not rising within a line, and values that are not finite.
//! Records to be scored may lack the label, see [`Labels`](crate::Labels).

use std::ops::Range;

use heddle_protocol::job_spec::limits::ANY_FEATURES;
use heddle_protocol::job_spec::position::position_of_key;

use super::{label, number};
use crate::batch::Batch;
use crate::lines::{LineError, LineFormat, line_end, skip_spaces, wrong};
use crate::record_format::RecordFormat;

/// The parser of lines in this format, libsvm (`VALUES`) or dummy.
#[must_use]
pub fn words<const VALUES: bool>(format: RecordFormat) -> Box<dyn LineFormat> {
    if format.features == ANY_FEATURES {
        Box::new(Words::<VALUES, true>(format))
    } else {
        Box::new(Words::<VALUES, false>(format))
    }
}

/// Monomorphic in the format: a branch on it is taken for a line, not for a feature.
#[derive(Debug)]
struct Words<const VALUES: bool, const ANY: bool>(RecordFormat);

impl<const VALUES: bool, const ANY: bool> LineFormat for Words<VALUES, ANY> {
    #[inline]
    fn parse(&mut self, text: &[u8], batch: &mut Batch) -> Result<(usize, bool), LineError> {
        let mut at = skip_spaces(text, 0);
        if let Some(end) = line_end(text, at) {
            return Ok((end, false));
        }
        let first = at;
        let (label, weight, len) = label::read::<VALUES>(self.0.labels, text, at)?;
        at += len;
        // Indices of the text plus one, so that 0 precedes the first index of base 0.
        let mut lowest = u64::from(self.0.index_base);
        let highest = if ANY { u64::MAX } else { self.0.features + lowest };
        loop {
            (at, lowest) = self.usual_features(text, at, lowest..highest, batch);
            // Without a label the first feature needs no blank before it.
            let separated = matches!(text[at], b' ' | b'\t') || at == first;
            at = skip_spaces(text, at);
            if text[at] <= b'#'
                && let Some(end) = line_end(text, at)
            {
                label::end_row(self.0.labels, label, weight, batch);
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
            lowest = self.push(index, value, batch);
        }
    }
}

impl<const VALUES: bool, const ANY: bool> Words<VALUES, ANY> {
    /// Reads features of the usual form, with indices in a range. Returns where other text begins, and the lowest index that may
    /// follow. Not inlined: the cases of the general parser would take registers from this loop.
    #[inline(never)]
    fn usual_features(
        &self,
        text: &[u8],
        mut at: usize,
        mut indices: Range<u64>,
        batch: &mut Batch,
    ) -> (usize, u64) {
        while let Some((index, value, len)) = usual::<VALUES>(&text[at..])
            && (ANY || indices.contains(&index))
        {
            indices.start = self.push(index, value, batch);
            at += len;
        }
        (at, indices.start)
    }

    /// Appends a feature; returns the lowest index that may follow.
    #[inline(always)]
    fn push(&self, index: u64, value: f32, batch: &mut Batch) -> u64 {
        batch.values.push(value);
        if ANY {
            batch.positions.push(position_of_key(index));
            return 0;
        }
        // Below the highest index, which is below 2³².
        batch.indices.push(index as u32 - self.0.index_base);
        index + 1
    }

    #[cold]
    fn bad_index(&self, index: u64, lowest: u64, at: usize) -> LineError {
        let base = u64::from(self.0.index_base);
        let what = if index < base {
            format!("index {index}, but indices start at {base} (data.index-base)")
        } else if index >= self.0.features + base {
            format!(
                "index {index} is above the highest, {} (model.features is {}, data.index-base {base})",
                self.0.features + base - 1,
                self.0.features
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

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::{DataFormat, LabelRange};
    use proptest::prelude::*;

    use super::*;
    use crate::record_format::Labels;

    const LIBSVM: RecordFormat = RecordFormat {
        format: DataFormat::Libsvm,
        index_base: 1,
        features: 100,
        labels: Labels::Within(LabelRange::TwoClasses),
        table: None,
    };
    const DUMMY: RecordFormat = RecordFormat {
        format: DataFormat::Dummy,
        index_base: 0,
        features: 100,
        labels: Labels::Within(LabelRange::TwoClasses),
        table: None,
    };

    fn read_line(
        format: RecordFormat,
        text: &[u8],
        batch: &mut Batch,
    ) -> Result<(usize, bool), LineError> {
        let is_libsvm = format.format == DataFormat::Libsvm;
        let mut lines = if is_libsvm { words::<true>(format) } else { words::<false>(format) };
        lines.read_line(text, batch)
    }

    type Row = (f32, Vec<(u32, f32)>);

    fn row(format: RecordFormat, line: &str) -> Result<Option<Row>, String> {
        let mut batch = Batch::default();
        let text = format!("{line}\n");
        let read = read_line(format.clone(), text.as_bytes(), &mut batch);
        // With more text behind it the fast path reads the last features too.
        let (mut again, followed) = (Batch::default(), format!("{text}{:64}\n", ""));
        assert_eq!(read_line(format, followed.as_bytes(), &mut again), read);
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
            assert_eq!(
                parsed(optional.clone(), line),
                ("none".to_owned(), features.clone()),
                "{line:?}"
            );
        }
        for (line, label) in [("1 3:1 5:.5", "1"), ("-1 3:1 5:.5", "-1"), ("7 3:1 5:.5", "7")] {
            assert_eq!(
                parsed(optional.clone(), line),
                (label.to_owned(), features.clone()),
                "{line:?}"
            );
        }
        assert_eq!(parsed(optional.clone(), "?"), ("none".to_owned(), vec![]));
        for line in ["x 3:1", "3 :1", "3:1,5:1", "?? 3:1"] {
            assert!(row(optional.clone(), line).is_err(), "{line:?}");
        }

        let dummy = RecordFormat { labels: Labels::Optional, ..DUMMY };
        assert_eq!(parsed(dummy.clone(), "? 3 5"), ("none".to_owned(), vec![(3, 1.0), (5, 1.0)]));
        assert_eq!(parsed(dummy.clone(), "3 5"), ("3".to_owned(), vec![(5, 1.0)]));
        let absent = RecordFormat { labels: Labels::Absent, ..DUMMY };
        assert_eq!(parsed(absent.clone(), "3 5"), ("none".to_owned(), vec![(3, 1.0), (5, 1.0)]));
    }

    #[test]
    fn label_may_have_a_weight() {
        let weights = |format: RecordFormat, lines: &[&str]| {
            let mut batch = Batch::default();
            for line in lines {
                let text = format!("{line}\n");
                read_line(format.clone(), text.as_bytes(), &mut batch).expect("a record");
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
            if let Ok((len, _)) = read_line(LIBSVM, &text, &mut batch) {
                prop_assert_eq!(text[len - 1], b'\n');
            }
            let _ = read_line(DUMMY, &text, &mut batch);
        }

        #[test]
        fn any_near_miss_is_a_row_or_an_error(
            line in "[-+]?[0-9]{0,2}[ \t]?([0-9]{0,4}[:,#]?[-+0-9.e]{0,6}[ \r]?){0,8}\n",
        ) {
            let mut batch = Batch::default();
            if read_line(LIBSVM, line.as_bytes(), &mut batch).is_ok() {
                prop_assert!(batch.indices.iter().all(|index| *index < 100));
                prop_assert!(batch.values.iter().all(|value| value.is_finite()));
            }
        }
    }
}
