//! Parsers of values: numbers, times, sizes, lists.
//!
//! Source: `Configuration.getInt`, `getTimeDuration`, `getLongBytes`, `StringUtils.getTrimmedStringCollection`.

use std::time::Duration;

use super::xml::java_trim;

/// Why a value does not parse. The text continues a sentence that begins with the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueProblem {
    /// Not an integer of 64 bits, decimal or `0x…`.
    #[error("must be an integer")]
    Number,
    /// Not a decimal number.
    #[error("must be a number")]
    Decimal,
    /// Not a number with an optional unit.
    #[error("must be a time with a unit of ns, us, ms, s, m, h, d")]
    Duration,
    /// Negative, where only a duration makes sense.
    #[error("must not be negative")]
    Negative,
    /// Not a number with an optional binary prefix.
    #[error("must be a size with a prefix of k, m, g, t, p, e")]
    Size,
    /// Not `host:port`.
    #[error("must be host:port")]
    Address,
    /// Not one of the listed words.
    #[error("must be one of {0}")]
    Word(&'static str),
    /// The variables in it cannot be replaced.
    #[error("cannot be expanded: {0}")]
    Expand(super::expand::ExpandError),
}

/// The unit of a time that is written without one. Each key of Hadoop has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Milliseconds, for most keys that end in `ms`, and some that do not.
    Millis,
    /// Seconds.
    Seconds,
}

/// An integer; `0x` and `-0x` begin hexadecimal ones.
pub(super) fn integer(text: &str) -> Result<i64, ValueProblem> {
    let text = java_trim(text);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => i64::from_str_radix(&format!("{sign}{digits}"), 16),
        None => text.parse(),
    }
    .map_err(|_| ValueProblem::Number)
}

/// A time in nanoseconds, which may be negative.
fn nanos(text: &str, unit: TimeUnit) -> Result<i128, ValueProblem> {
    let text = java_trim(text).to_lowercase();
    // The order matters: `ms` ends in `s`.
    let units = [
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
        ("d", 86_400_000_000_000),
    ];
    let bare = match unit {
        TimeUnit::Millis => 1_000_000,
        TimeUnit::Seconds => 1_000_000_000,
    };
    let found =
        units.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (digits, factor) = found.unwrap_or((&text, bare));
    let count: i64 = digits.parse().map_err(|_| ValueProblem::Duration)?;
    Ok(i128::from(count) * factor)
}

/// A duration; `unit` applies when the text has none.
pub(super) fn duration(text: &str, unit: TimeUnit) -> Result<Duration, ValueProblem> {
    let nanos = u128::try_from(nanos(text, unit)?).map_err(|_| ValueProblem::Negative)?;
    // i64::MAX days exceed what a Duration represents.
    let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
    Ok(Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).expect("below a billion")))
}

/// A number of bytes with a binary prefix: `64m` is 64 MiB.
pub(super) fn size(text: &str) -> Result<i64, ValueProblem> {
    let text = java_trim(text);
    let (digits, shift) = match text.chars().last().map(|last| last.to_ascii_lowercase()) {
        Some('k') => (&text[..text.len() - 1], 10),
        Some('m') => (&text[..text.len() - 1], 20),
        Some('g') => (&text[..text.len() - 1], 30),
        Some('t') => (&text[..text.len() - 1], 40),
        Some('p') => (&text[..text.len() - 1], 50),
        Some('e') => (&text[..text.len() - 1], 60),
        _ => (text, 0),
    };
    let count: i64 = digits.parse().map_err(|_| ValueProblem::Size)?;
    count.checked_mul(1 << shift).ok_or(ValueProblem::Size)
}

/// `true` or `false` in any case. `None` for other text, for which Hadoop takes the default.
pub(super) fn boolean(text: &str) -> Option<bool> {
    let text = java_trim(text);
    if text.eq_ignore_ascii_case("true") {
        Some(true)
    } else if text.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

/// The trimmed, non-empty elements of a comma list.
pub(super) fn list(text: &str) -> Vec<String> {
    text.split(',').map(java_trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_time_without_unit_takes_the_keys_unit() {
        assert_eq!(duration("5", TimeUnit::Seconds), Ok(Duration::from_secs(5)));
        assert_eq!(duration(" 5 ", TimeUnit::Millis), Ok(Duration::from_millis(5)));
        assert_eq!(duration("5S", TimeUnit::Millis), Ok(Duration::from_secs(5)));
        assert_eq!(duration("-1", TimeUnit::Millis), Err(ValueProblem::Negative));
        assert_eq!(duration("5 s", TimeUnit::Millis), Err(ValueProblem::Duration));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in "[-+0-9xkmgtpehdnus. é]{0,24}") {
            let _ = (integer(&text), duration(&text, TimeUnit::Millis), size(&text));
            let _ = (boolean(&text), list(&text));
        }
    }
}
