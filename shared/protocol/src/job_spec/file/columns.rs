//! The keys of `[data]` about tables with columns.

use super::super::columns::{
    ColumnRule, ColumnScale, ColumnUsage, Cross, Header, MissingCategory, MissingNumber,
    NumberUsage, Transform,
};
use super::key::Key;
use super::parameters::fields_of;
use super::raw::{Raw, RawValue};
use super::scalar::{choice, list_of, real_of, text_of};
use super::take::Take;

/// Most rules, crosses, names of a rule and bounds of buckets.
const ITEMS_MAX: usize = 10_000;

/// `true`, `false` or `"auto"`.
pub(in crate::job_spec) fn header(raw: &Raw) -> Result<Header, String> {
    match &raw.value {
        RawValue::Bool(true) => Ok(Header::First),
        RawValue::Bool(false) => Ok(Header::None),
        RawValue::Text(text) if text == "auto" => Ok(Header::Auto),
        _ => Err(format!("expected true, false or \"auto\", not {}", raw.kind())),
    }
}

/// A character, or `"auto"`: the format's.
pub(in crate::job_spec) fn delimiter(raw: &Raw) -> Result<Option<char>, String> {
    let mut text = text_of(raw)?.chars();
    match (text.next(), text.next()) {
        (Some('"' | '\n' | '\r'), None) => Err("expected another character".to_owned()),
        (Some(one), None) if one.is_ascii() => Ok(Some(one)),
        _ if text_of(raw)? == "auto" => Ok(None),
        _ => Err("expected one character of ASCII, such as \";\", or \"auto\"".to_owned()),
    }
}

/// Texts.
pub(in crate::job_spec) fn texts(raw: &Raw) -> Result<Vec<String>, String> {
    few(raw)?.iter().map(|item| text_of(item).map(str::to_owned)).collect()
}

/// What becomes of the columns: `[[data.columns]]`.
pub(in crate::job_spec) fn rules(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<Vec<ColumnRule>> {
    sections(take, key, rule)
}

/// The crosses: `[[data.cross]]`.
pub(in crate::job_spec) fn crosses(take: &mut Take<'_>, key: &'static Key) -> Option<Vec<Cross>> {
    sections(take, key, cross)
}

fn sections<T>(
    take: &mut Take<'_>,
    key: &'static Key,
    read: fn(&Raw) -> Result<T, String>,
) -> Option<Vec<T>> {
    if !take.given(key) {
        take.absent(key);
        return Some(Vec::new());
    }
    take.with(key, |raw| {
        let items = few(raw).map_err(|_| format!("expected [[{}]] sections", key.path))?;
        let numbered = |(n, item): (usize, &Raw)| {
            read(item).map_err(|what| format!("number {}: {what}", n + 1))
        };
        items.iter().enumerate().map(numbered).collect()
    })
}

fn few(raw: &Raw) -> Result<&[Raw], String> {
    match list_of(raw)? {
        items if items.len() > ITEMS_MAX => {
            Err(format!("{} items, at most {ITEMS_MAX}", items.len()))
        }
        items => Ok(items),
    }
}

fn rule(raw: &Raw) -> Result<ColumnRule, String> {
    const FIELDS: &[&str] =
        &["names", "as", "missing", "scale", "transform", "separator", "values"];
    let fields = fields_of(raw, FIELDS)?;
    let within = |field: &'static str| move |what: String| format!("{field}: {what}");
    let names = fields.get("names").ok_or("has no names, such as names = [\"price\"]")?;
    let names = texts(names).map_err(within("names"))?;
    if names.is_empty() || names.iter().any(String::is_empty) {
        return Err("names: expected the names of columns".to_owned());
    }
    let usage = fields.get("as").ok_or("has no as, such as as = \"number\"")?;
    const WORDS: &[(&str, &str)] = &[
        ("number", "missing scale transform"),
        ("category", "missing"),
        ("list", "separator"),
        ("vector", "values"),
        ("ignore", ""),
    ];
    let allowed = choice(usage, WORDS, &[]).map_err(within("as"))?;
    let word = text_of(usage)?;
    let fits = |field: &&str| matches!(*field, "names" | "as") || allowed.contains(*field);
    if let Some(field) = fields.keys().map(String::as_str).find(|field| !fits(field)) {
        return Err(format!("{field}: is not for as = {word:?}"));
    }
    let text = |field: &'static str| {
        fields
            .get(field)
            .map(|raw| text_of(raw).map(str::to_owned))
            .transpose()
            .map_err(within(field))
    };
    let usage = match word {
        "number" => {
            let missing =
                chosen(fields.get("missing"), MISSING_NUMBERS).map_err(within("missing"))?;
            let scale = chosen(fields.get("scale"), SCALES).map_err(within("scale"))?;
            let transform = fields.get("transform").map(transform).transpose();
            let transform = transform.map_err(within("transform"))?.unwrap_or_default();
            let is_bucket = matches!(transform, Transform::Buckets(_));
            if is_bucket && missing == MissingNumber::Mean {
                return Err("missing: \"mean\" is not for buckets".to_owned());
            }
            ColumnUsage::Number(NumberUsage { missing, scale, transform })
        }
        "category" => {
            let missing = chosen(fields.get("missing"), MISSING_CATEGORIES);
            ColumnUsage::Category { missing: missing.map_err(within("missing"))? }
        }
        "list" => match text("separator")? {
            Some(empty) if empty.is_empty() => {
                return Err("separator: expected a text that is not empty".to_owned());
            }
            separator => ColumnUsage::List { separator },
        },
        "vector" => ColumnUsage::Vector { values: text("values")? },
        _ => ColumnUsage::Ignore,
    };
    Ok(ColumnRule { names, usage })
}

const MISSING_NUMBERS: &[(&str, MissingNumber)] = &[
    ("auto", MissingNumber::Auto),
    ("zero", MissingNumber::Zero),
    ("mean", MissingNumber::Mean),
    ("indicator", MissingNumber::Indicator),
    ("bad", MissingNumber::Bad),
];
const MISSING_CATEGORIES: &[(&str, MissingCategory)] =
    &[("none", MissingCategory::None), ("own", MissingCategory::Own)];
const SCALES: &[(&str, ColumnScale)] = &[
    ("auto", ColumnScale::Standard),
    ("standard", ColumnScale::Standard),
    ("none", ColumnScale::None),
];

fn chosen<T: Copy + Default>(raw: Option<&Raw>, words: &[(&str, T)]) -> Result<T, String> {
    raw.map_or(Ok(T::default()), |raw| choice(raw, words, &[]))
}

fn transform(raw: &Raw) -> Result<Transform, String> {
    const EXPECTED: &str = "expected \"none\", \"log1p\" or { buckets = [0, 10, 100] }";
    match &raw.value {
        RawValue::Text(text) if text == "none" => Ok(Transform::None),
        RawValue::Text(text) if text == "log1p" => Ok(Transform::Log1p),
        RawValue::Table(_) => {
            let bounds = fields_of(raw, &["buckets"])?.get("buckets").ok_or(EXPECTED)?;
            let bounds: Vec<f64> = few(bounds)?.iter().map(real_of).collect::<Result<_, _>>()?;
            if bounds.is_empty() || !bounds.is_sorted_by(|a, b| a < b) {
                return Err("buckets: expected rising bounds".to_owned());
            }
            Ok(Transform::Buckets(bounds))
        }
        _ => Err(EXPECTED.to_owned()),
    }
}

fn cross(raw: &Raw) -> Result<Cross, String> {
    let fields = fields_of(raw, &["columns"])?;
    let columns = fields.get("columns").map_or(Ok(Vec::new()), texts)?;
    let columns: [String; 2] = columns
        .try_into()
        .map_err(|_| "expected two columns, such as columns = [\"site\", \"hour\"]".to_owned())?;
    if columns[0] == columns[1] {
        return Err(format!("columns: {:?} twice", columns[0]));
    }
    Ok(Cross { columns })
}
