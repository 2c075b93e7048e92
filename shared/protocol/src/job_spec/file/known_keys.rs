//! Sections become dotted keys; a key that no table of a section has is a problem.

use std::collections::BTreeMap;

use super::keys::{self, GROUPS};
use super::problem::Problem;
use super::raw::{Raw, RawValue};

/// Flattens the sections into dotted keys; unknown ones become problems.
pub(super) fn known_keys(
    table: BTreeMap<String, Raw>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<&'static str, Raw> {
    let mut given = BTreeMap::new();
    let mut take = |path: &str, raw: Raw, problems: &mut Vec<Problem>| match keys::find(path) {
        Some(key) => {
            given.insert(key.path, raw);
        }
        None => problems.push(unknown(path, &raw)),
    };
    for (name, raw) in table {
        let section = GROUPS.iter().any(|group| group.name == name && !name.is_empty());
        match raw.value {
            RawValue::Table(fields) if section => {
                for (field, raw) in fields {
                    take(&format!("{name}.{field}"), raw, problems);
                }
            }
            _ if section => problems.push(Problem {
                place: raw.origin.to_string(),
                key: name.clone(),
                value: raw.to_string(),
                what: format!("expected the section [{name}]"),
            }),
            // An unknown section: the place of its first key, and its name.
            value => take(&name, Raw { value, origin: raw.origin }, problems),
        }
    }
    given
}

fn unknown(path: &str, raw: &Raw) -> Problem {
    let section = |name: &str| {
        GROUPS
            .iter()
            .map(|group| group.name)
            .filter(|group| strsim::damerau_levenshtein(name, group) <= 2 && !group.is_empty())
            .min_by_key(|group| strsim::damerau_levenshtein(name, group))
    };
    let meant = match raw.value {
        RawValue::Table(_) => section(path).map(|section| format!("[{section}]")),
        _ => keys::nearest(path).map(str::to_owned),
    };
    let what = match meant {
        Some(meant) => format!("unknown key; did you mean {meant}?"),
        None => "unknown key; `heddle config template` lists all".to_owned(),
    };
    // Names come from the file and may be of any length.
    let key: String = path.chars().take(100).collect();
    Problem { place: raw.origin.to_string(), key, value: String::new(), what }
}
