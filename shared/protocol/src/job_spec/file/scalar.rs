//! Plain values of a job file: texts, lists, numbers.

use std::str::FromStr;

use super::super::value::{Bytes, ValueError};
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
        RawValue::Float(_) => Err(format!("expected a finite number (got {raw})")),
        RawValue::Integer(n) => Ok(n as f64),
        _ => Err(format!("expected a number, not {}", raw.kind())),
    }
}

/// A number of at least 0.
pub(in crate::job_spec) fn at_least_0(raw: &Raw) -> Result<f64, String> {
    match real_of(raw)? {
        n if n >= 0.0 => Ok(n),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// A text that parses.
pub(super) fn parse<T: FromStr<Err = ValueError>>(raw: &Raw) -> Result<T, String> {
    match &raw.value {
        RawValue::Text(text) => text.parse().map_err(|error: ValueError| error.to_string()),
        // A bare number of bytes is a size too; other types state what they expect.
        RawValue::Integer(n) => {
            n.to_string().parse().map_err(|error: ValueError| error.to_string())
        }
        _ => Err(format!("expected a text in quotes, not {}", raw.kind())),
    }
}

/// Refuses a size below its least value if it is a number alone, whose unit is rarely that of bytes. The check of the whole job
/// refuses the others.
pub(super) fn has_unit(raw: &Raw, size: Bytes, min: Bytes) -> Result<(), String> {
    let text = raw.to_string();
    match size >= min || text.contains(|c: char| c.is_ascii_alphabetic()) {
        true => Ok(()),
        false => Err(format!("is {} bytes; give a unit, such as 512MiB", size.0)),
    }
}

/// `true` or `false`.
pub(in crate::job_spec) fn boolean(raw: &Raw) -> Result<bool, String> {
    match raw.value {
        RawValue::Bool(b) => Ok(b),
        _ => Err(format!("expected true or false, not {}", raw.kind())),
    }
}

/// One of some words; `later` are words that are not available yet.
pub(in crate::job_spec) fn choice<T: Copy>(
    raw: &Raw,
    choices: &[(&str, T)],
    later: &[&str],
) -> Result<T, String> {
    let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
    let text =
        text_of(raw).map_err(|_| format!("expected {}, not {}", names.join(" or "), raw.kind()))?;
    match choices.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None if later.contains(&text) => Err("is not available yet".to_owned()),
        None => Err(format!("expected {}", names.join(" or "))),
    }
}

/// Takes a whole number within bounds.
pub(super) fn whole<T: TryFrom<i128> + Into<u64>>(
    min: T,
    max: T,
) -> impl FnOnce(&Raw) -> Result<T, String> {
    let (min, max): (u64, u64) = (min.into(), max.into());
    move |raw| {
        let expected = || format!("expected a whole number from {min} to {max}");
        match raw.value {
            RawValue::Integer(n) if (i128::from(min)..=i128::from(max)).contains(&n) => {
                T::try_from(n).map_err(|_| expected())
            }
            _ => Err(expected()),
        }
    }
}
