//! The label at the start of a record, and its weight.

use heddle_protocol::job_spec::LabelRange;

use super::number;
use crate::batch::Batch;
use crate::lines::{LineError, found, wrong};
use crate::record_format::Labels;

/// Parses the label at `at` and its weight, if there is one; returns their length too. `VALUES`: features have values, so that
/// a record may begin with one.
#[inline]
pub(super) fn read<const VALUES: bool>(
    labels: Labels,
    text: &[u8],
    at: usize,
) -> Result<(f32, Option<f32>, usize), LineError> {
    let read = match labels {
        Labels::Within(range) => read_label(&text[at..], range),
        Labels::Required => read_label(&text[at..], LabelRange::Number),
        Labels::Optional => read_optional_label(&text[at..], VALUES),
        Labels::Absent => Ok((f32::NAN, 0)),
    };
    let (label, len) = read.map_err(|what| LineError { column: at + 1, what })?;
    if len == 0 || text[at + len] != b':' {
        return Ok((label, None, len));
    }
    let weight_at = at + len + 1;
    let (weight, more) =
        read_weight(&text[weight_at..]).ok_or_else(|| wrong(text, weight_at, WEIGHT))?;
    Ok((label, Some(weight), len + 1 + more))
}

/// Ends the row whose features were appended since the last one.
#[inline]
pub(crate) fn end_row(labels: Labels, label: f32, weight: Option<f32>, batch: &mut Batch) {
    match labels {
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

/// The label in a field of a table, which may be empty where a label may be missing.
pub(super) fn of_field(labels: Labels, field: &[u8]) -> Result<f32, String> {
    let range = match labels {
        Labels::Absent => return Ok(f32::NAN),
        Labels::Optional if field.is_empty() || field == b"?" => return Ok(f32::NAN),
        Labels::Within(range) => range,
        Labels::Optional | Labels::Required => LabelRange::Number,
    };
    // 0 and 1 are in every range.
    let text = match field.trim_ascii() {
        b"0" | b"false" => return Ok(0.0),
        b"1" | b"true" => return Ok(1.0),
        text => text,
    };
    as_line(text, |line| {
        let (label, len) = read_label(line, range)?;
        if len == text.len() { Ok(label) } else { Err(no_label(line)) }
    })
}

/// The label in a column of numbers, as it would be read of its text.
pub(crate) fn of_number(labels: Labels, number: Option<f64>) -> Result<f32, String> {
    match (labels, number) {
        (Labels::Absent, _) | (Labels::Optional, None) => Ok(f32::NAN),
        (_, Some(0.0)) => Ok(0.0),
        (_, Some(1.0)) => Ok(1.0),
        (_, Some(number)) => of_field(labels, number.to_string().as_bytes()),
        (_, None) => Err("expected a label, found no value".to_owned()),
    }
}

/// The weight in a column of numbers.
pub(crate) fn weight_of_number(number: Option<f64>) -> Result<f32, String> {
    let weight =
        number.map(|number| number as f32).filter(|number| number.is_finite() && *number >= 0.0);
    weight.map(f32::abs).ok_or_else(|| {
        let found = number.map_or_else(|| "no value".to_owned(), |number| number.to_string());
        format!("expected {WEIGHT}, found {found}")
    })
}

/// The weight in a field of a table.
pub(super) fn weight_of_field(field: &[u8]) -> Result<f32, String> {
    let field = field.trim_ascii();
    as_line(field, |line| {
        let whole = read_weight(line).filter(|(_, len)| *len == field.len());
        whole.map(|(weight, _)| weight).ok_or_else(|| wrong(line, 0, WEIGHT).what)
    })
}

/// Reads the field as the end of a line, without an allocation for the usual ones.
fn as_line<T>(field: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
    let mut short = [b'\n'; 40];
    if let Some(start) = short.get_mut(..field.len()).filter(|_| field.len() < 40) {
        start.copy_from_slice(field);
        return read(&short[..=field.len()]);
    }
    read(&[field, b"\n"].concat())
}

const WEIGHT: &str = "a weight after the label (a finite number of at least 0)";

/// Parses a weight; returns it and its length.
fn read_weight(text: &[u8]) -> Option<(f32, usize)> {
    let (weight, len) = number::decimal(text)?;
    // Also "-0".
    (weight >= 0.0 && ends_word(&text[len..])).then_some((weight.abs(), len))
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
