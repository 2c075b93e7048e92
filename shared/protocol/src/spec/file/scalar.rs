//! Plain values of a job file: texts, lists, numbers.

use super::origin::Origin;
use super::raw::{Raw, RawValue};

/// The text of a value, where it must be one.
pub(super) fn text_of(raw: &Raw) -> Result<&str, String> {
    match &raw.value {
        RawValue::Text(text) => Ok(text),
        _ => Err(format!("expected a text in quotes, not {}", raw.kind())),
    }
}

/// The items of a list; from the command line a single value is a list of one.
pub(super) fn list_of(raw: &Raw) -> Result<&[Raw], String> {
    match &raw.value {
        RawValue::List(items) => Ok(items),
        RawValue::Text(_) if matches!(raw.origin, Origin::Set { .. }) => {
            Ok(std::slice::from_ref(raw))
        }
        _ => Err(format!("expected a list, not {}", raw.kind())),
    }
}

/// A number with or without a point.
pub(super) fn real_of(raw: &Raw) -> Result<f64, String> {
    match raw.value {
        RawValue::Float(n) if n.is_finite() => Ok(n),
        RawValue::Integer(n) => Ok(n as f64),
        _ => Err(format!("expected a number, not {}", raw.kind())),
    }
}
