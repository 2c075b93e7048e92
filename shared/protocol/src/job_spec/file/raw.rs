//! Values as written, each with the place it was written at.

use std::collections::BTreeMap;
use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::origin::{KeyOverride, Origin};
use super::problem::Problem;

/// Longest job file that is read. The largest sensible one lists a few thousand data files.
pub const JOB_FILE_BYTES_MAX: usize = 1 << 20;

/// Deepest nesting of lists and tables; the keys need four.
const DEPTH_MAX: usize = 16;

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    pub(super) value: RawValue,
    pub(super) origin: Origin,
}

/// A value as written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RawValue {
    Text(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
    List(Vec<Raw>),
    Table(BTreeMap<String, Raw>),
    /// Dates, and integers beyond 128 bits: nothing here takes them. With their text.
    Other(String),
}

impl Raw {
    /// A word for the kind of value, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            RawValue::Text(_) => "a text",
            RawValue::Integer(_) => "a whole number",
            RawValue::Float(_) => "a number",
            RawValue::Bool(_) => "true or false",
            RawValue::List(_) => "a list",
            RawValue::Table(_) => "a table",
            RawValue::Other(_) => "a date or an oversized number",
        }
    }
}

impl fmt::Display for Raw {
    /// As it would stand in a job file, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            // Debug quotes and escapes as TOML's basic strings do, for every text in practice.
            RawValue::Text(text) => write!(f, "{text:?}"),
            RawValue::Integer(n) => write!(f, "{n}"),
            RawValue::Float(n) if n.is_nan() => f.write_str("nan"),
            // Debug keeps the point of whole numbers: 1.0, not 1.
            RawValue::Float(n) => write!(f, "{n:?}"),
            RawValue::Bool(b) => write!(f, "{b}"),
            RawValue::List(items) => {
                f.write_str("[")?;
                for (n, item) in items.iter().enumerate() {
                    let comma = if n > 0 { ", " } else { "" };
                    write!(f, "{comma}{item}")?;
                }
                f.write_str("]")
            }
            RawValue::Table(fields) if fields.is_empty() => f.write_str("{}"),
            RawValue::Table(fields) => {
                f.write_str("{ ")?;
                for (n, (name, value)) in fields.iter().enumerate() {
                    let comma = if n > 0 { ", " } else { "" };
                    let bare = !name.is_empty()
                        && name
                            .bytes()
                            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
                    if bare {
                        write!(f, "{comma}{name} = {value}")?;
                    } else {
                        write!(f, "{comma}{name:?} = {value}")?;
                    }
                }
                f.write_str(" }")
            }
            RawValue::Other(text) => f.write_str(text),
        }
    }
}

/// Reads the text of a job file into a table.
///
/// # Errors
/// The text is too long or no TOML; the problem names the line.
pub(super) fn parse_file(file: &str, text: &str) -> Result<BTreeMap<String, Raw>, Problem> {
    parse_text(file, text, |line| Origin::File { file: file.to_owned(), line })
}

/// Reads the text of the site's defaults into a table.
///
/// # Errors
/// As [`parse_file`].
pub(super) fn parse_site(file: &str, text: &str) -> Result<BTreeMap<String, Raw>, Problem> {
    parse_text(file, text, |line| Origin::Site { file: file.to_owned(), line })
}

fn parse_text(
    file: &str,
    text: &str,
    origin: impl Fn(usize) -> Origin,
) -> Result<BTreeMap<String, Raw>, Problem> {
    let problem = |place: String, what: String| Problem {
        place,
        key: String::new(),
        value: String::new(),
        what,
    };
    if text.len() > JOB_FILE_BYTES_MAX {
        let what =
            format!("{} bytes long; the file may have at most {JOB_FILE_BYTES_MAX}", text.len());
        return Err(problem(file.to_owned(), what));
    }
    let lines = Lines::of(text);
    let at = |offset: usize| origin(lines.line(offset));
    match DeTable::parse(text) {
        Ok(table) => Ok(convert_table(table.get_ref(), &at, 0)),
        Err(error) => {
            let place = match error.span() {
                Some(span) => at(span.start).to_string(),
                None => file.to_owned(),
            };
            Err(problem(place, format!("not TOML: {}", error.message())))
        }
    }
}

/// Splits `trainers.max=8` into the key's parts and the value.
///
/// The value is TOML where it reads as such, and otherwise the bare text: `--set name=ctr`.
///
/// # Errors
/// There is no `=` or no key before it.
pub(super) fn parse_set(set: &KeyOverride) -> Result<(Vec<String>, Raw), Problem> {
    let origin = Origin::Set { text: set.text.clone(), from: set.from.clone() };
    let (key, text) = set.text.split_once('=').unwrap_or(("", ""));
    let parts: Vec<String> = key.split('.').map(|part| part.trim().to_owned()).collect();
    if parts.iter().any(String::is_empty) || parts.len() > DEPTH_MAX {
        return Err(Problem {
            place: origin.to_string(),
            key: String::new(),
            value: String::new(),
            what: "expected key=value, such as --set trainers.max=8".to_owned(),
        });
    }
    let text = text.trim();
    let at = |_: usize| origin.clone();
    let bare = || Raw { value: RawValue::Text(text.to_owned()), origin: origin.clone() };
    let raw = match DeValue::parse(text) {
        // `2 passes` or `a b` may begin with a value; only a text that is one as a whole counts.
        Ok(value) if text.len() <= JOB_FILE_BYTES_MAX => match convert(&value, &at, 0) {
            Raw { value: RawValue::Other(_), .. } => bare(),
            raw => raw,
        },
        _ => bare(),
    };
    Ok((parts, raw))
}

/// Puts an override into the table, replacing what is there and making tables on the way.
pub(super) fn overlay(table: &mut BTreeMap<String, Raw>, parts: &[String], raw: Raw) {
    let Some((first, rest)) = parts.split_first() else {
        return;
    };
    if rest.is_empty() {
        table.insert(first.clone(), raw);
        return;
    }
    let inner = table.entry(first.clone()).or_insert_with(|| Raw {
        value: RawValue::Table(BTreeMap::new()),
        origin: raw.origin.clone(),
    });
    if !matches!(inner.value, RawValue::Table(_)) {
        inner.value = RawValue::Table(BTreeMap::new());
    }
    if let RawValue::Table(fields) = &mut inner.value {
        overlay(fields, rest, raw);
    }
}

fn convert_table(
    table: &DeTable<'_>,
    at: &dyn Fn(usize) -> Origin,
    depth: usize,
) -> BTreeMap<String, Raw> {
    let field = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        (name.clone().into_owned(), convert(value, at, depth + 1))
    };
    table.iter().map(field).collect()
}

fn convert(value: &Spanned<DeValue<'_>>, at: &dyn Fn(usize) -> Origin, depth: usize) -> Raw {
    let origin = at(value.span().start);
    let value = match value.get_ref() {
        // The parser has a limit of its own; this one keeps our recursion short whatever it is.
        _ if depth > DEPTH_MAX => RawValue::Other("…".to_owned()),
        DeValue::String(text) => RawValue::Text(text.clone().into_owned()),
        DeValue::Integer(number) => {
            match i128::from_str_radix(&number.as_str().replace('_', ""), number.radix()) {
                Ok(n) => RawValue::Integer(n),
                Err(_) => RawValue::Other(number.to_string()),
            }
        }
        DeValue::Float(number) => match number.as_str().replace('_', "").parse() {
            Ok(n) => RawValue::Float(n),
            Err(_) => RawValue::Other(number.to_string()),
        },
        DeValue::Boolean(b) => RawValue::Bool(*b),
        DeValue::Datetime(date) => RawValue::Other(date.to_string()),
        DeValue::Array(items) => {
            RawValue::List(items.iter().map(|item| convert(item, at, depth + 1)).collect())
        }
        DeValue::Table(table) => RawValue::Table(convert_table(table, at, depth)),
    };
    Raw { value, origin }
}

/// Where the lines of a text begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at + 1).collect())
    }

    /// The line of a byte offset, from 1.
    fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|&start| start <= offset) + 1
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn set(text: &str) -> String {
        parse_set(&KeyOverride::set(text)).unwrap().1.to_string()
    }

    #[test]
    fn values_know_their_line() {
        let table = parse_file("job.toml", "name = \"a\"\n\n[data]\npasses = 3\n").unwrap();
        let RawValue::Table(data) = &table["data"].value else { panic!("a table") };
        assert_eq!(data["passes"].origin.to_string(), "job.toml:4");
    }

    #[test]
    fn broken_toml_names_the_line() {
        let problem = parse_file("job.toml", "name = \"a\"\nx = = 3\n").unwrap_err();
        assert!(problem.to_string().starts_with("job.toml:2: not TOML: "), "{problem}");
    }

    #[test]
    fn overrides_take_bare_words() {
        assert_eq!(set("a.b=8"), "8");
        assert_eq!(set("a=ctr"), "\"ctr\"");
        assert_eq!(set("a=2 passes"), "\"2 passes\"");
        assert_eq!(set("a=hdfs:///x"), "\"hdfs:///x\"");
        assert_eq!(set("a=2026-01-01"), "\"2026-01-01\"");
        assert_eq!(set("a=[\"x\", 1]"), "[\"x\", 1]");
        assert_eq!(set("a={ kind = \"sgd\" }"), "{ kind = \"sgd\" }");
        assert_eq!(set("a="), "\"\"");
        for wrong in ["novalue", "=1"] {
            assert!(parse_set(&KeyOverride::set(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_override_reaches_into_a_table() {
        let mut table = parse_file("f", "[model]\noptimizer = { kind = \"ftrl\" }\n").unwrap();
        let set = KeyOverride::set("model.optimizer.alpha=0.5");
        let (parts, raw) = parse_set(&set).unwrap();
        overlay(&mut table, &parts, raw);
        assert_eq!(table["model"].to_string(), "{ optimizer = { alpha = 0.5, kind = \"ftrl\" } }");
    }
}
