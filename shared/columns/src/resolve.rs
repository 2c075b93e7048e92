//! What becomes of each column of a file, by the rules of a job.

use std::collections::{BTreeMap, BTreeSet};

use globset::{GlobBuilder, GlobMatcher};
use heddle_protocol::job_spec::columns::{
    ColumnRule, ColumnUsage, Cross, FeatureColumn, MissingNumber, Schema, Transform,
};

use crate::key;
use crate::nearest::nearest_columns;

/// A column of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileColumn {
    /// Its name.
    pub name: String,
    /// What its values are.
    pub kind: ValueKind,
}

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Text, which may stand for anything: CSV and TSV.
    AnyText,
    /// A type of a file with types, by its name there, and whether it can be a number, a category, a list, a vector.
    Typed {
        /// As the format names it.
        name: &'static str,
        /// It can be read as a number.
        is_number: bool,
        /// It can be read as a category: texts, whole numbers, Booleans.
        is_category: bool,
        /// A list of texts or whole numbers.
        is_list: bool,
        /// A list of whole numbers, of numbers, or Spark's vector.
        is_vector: bool,
    },
}

impl ValueKind {
    /// The name of the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AnyText => "text",
            Self::Typed { name, .. } => name,
        }
    }
}

/// The keys of `[data]` that name columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// `data.label`.
    pub label: String,
    /// `data.weight`.
    pub weight: Option<String>,
    /// `data.id`.
    pub id: Vec<String>,
    /// `data.null`.
    pub null: Vec<String>,
}

/// Why columns and rules do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A named column is not in the file.
    #[error("{key} names the column {name:?}, which is not in the file; {nearest}")]
    NoSuchColumn {
        /// The key of the job file.
        key: &'static str,
        /// The name.
        name: String,
        /// The names in the file that are like it.
        nearest: String,
    },
    /// Two columns have one name.
    #[error("two columns are named {0:?}")]
    Twice(String),
    /// Columns without a rule.
    #[error(
        "no rule of data.columns names {0}; state what they are, or end with a rule for names = [\"*\"], such as as = \"ignore\"; `heddle data sample` proposes rules"
    )]
    Unnamed(String),
    /// A glob cannot be read.
    #[error("data.columns: names: {name:?}: {what}")]
    Glob {
        /// The glob.
        name: String,
        /// Why not.
        what: String,
    },
    /// The type of a column does not fit its rule.
    #[error("the column {name:?} is {kind}, which cannot be read as {usage}")]
    Type {
        /// The column.
        name: String,
        /// Its type in the file.
        kind: &'static str,
        /// `as` of its rule.
        usage: &'static str,
    },
    /// A cross of a column without features.
    #[error("data.cross: the column {0:?} has no features")]
    Cross(String),
    /// All columns are left out.
    #[error("no column has features")]
    NoFeatures,
    /// Two features meet at one index.
    #[error(
        "the columns {first:?} and {second:?} have the same index of {features} features; choose a larger model.features, or \"any\""
    )]
    Meet {
        /// A column.
        first: String,
        /// Another one.
        second: String,
        /// `model.features`.
        features: u64,
    },
}

/// Finds what becomes of each column. The first rule that names a column holds for it.
///
/// # Errors
/// Rules and columns do not fit.
pub fn resolve(
    columns: &[FileColumn],
    roles: &Roles,
    rules: &[ColumnRule],
    cross: &[Cross],
) -> Result<Schema, SchemaError> {
    let mut names = BTreeSet::new();
    if let Some(twice) = columns.iter().find(|column| !names.insert(column.name.as_str())) {
        return Err(SchemaError::Twice(twice.name.clone()));
    }
    let exists = |key, name: &str| {
        if names.contains(name) {
            return Ok(());
        }
        Err(no_such_column(key, name, &names))
    };
    // Clusters need not have a label.
    let label = Some(&roles.label).filter(|label| !label.is_empty());
    label.iter().try_for_each(|label| exists("data.label", label))?;
    roles.weight.iter().try_for_each(|weight| exists("data.weight", weight))?;
    roles.id.iter().try_for_each(|id| exists("data.id", id))?;
    let rules = rules.iter().map(NamedRule::new).collect::<Result<Vec<_>, _>>()?;
    for rule in &rules {
        rule.exact.iter().try_for_each(|name| exists("data.columns", name))?;
        if let ColumnUsage::Vector { values: Some(values) } = rule.usage {
            exists("data.columns: values", values)?;
        }
    }
    let is_values = |name: &str| {
        rules.iter().any(|rule| {
            matches!(rule.usage, ColumnUsage::Vector { values: Some(values) } if values == name)
        })
    };
    let has_role = |name: &String| {
        *name == roles.label || roles.weight.as_ref() == Some(name) || roles.id.contains(name)
    };
    let (mut found, mut unnamed) = (Vec::new(), BTreeSet::new());
    for column in columns.iter().filter(|column| !has_role(&column.name)) {
        let name = column.name.as_str();
        match rules.iter().find(|rule| rule.names(name)) {
            None if is_values(name) => {}
            None => drop(unnamed.insert(name)),
            Some(NamedRule { usage: ColumnUsage::Ignore, .. }) => {}
            Some(rule) => {
                check_kind(column, rule.usage)?;
                found.push(FeatureColumn { name: name.to_owned(), usage: rule.usage.clone() });
            }
        }
    }
    if !unnamed.is_empty() {
        return Err(SchemaError::Unnamed(quoted(&unnamed)));
    }
    if found.is_empty() {
        return Err(SchemaError::NoFeatures);
    }
    // Sums of features round by their order, so that it must not depend on the file.
    found.sort_by(|a: &FeatureColumn, b| a.name.cmp(&b.name));
    let place = |name: &String| {
        exists("data.cross", name)?;
        let place = found.iter().position(|column| column.name == *name);
        place.ok_or_else(|| SchemaError::Cross(name.clone()))
    };
    let pair = |cross: &Cross| {
        let [first, second] = &cross.columns;
        Ok([place(first)?, place(second)?])
    };
    let cross = cross.iter().map(pair).collect::<Result<_, _>>()?;
    let Roles { label, weight, id, null } = roles.clone();
    Ok(Schema { label, weight, id, columns: found, cross, null })
}

fn no_such_column(key: &'static str, name: &str, names: &BTreeSet<&str>) -> SchemaError {
    let nearest = nearest_columns(name, names.iter().copied());
    SchemaError::NoSuchColumn { key, name: name.to_owned(), nearest }
}

/// Checks that numbers have indices of their own where keys are folded into `features` features.
///
/// # Errors
/// Two meet.
pub fn check_folded(schema: &Schema, features: u64) -> Result<(), SchemaError> {
    let mut taken: BTreeMap<u32, &str> = BTreeMap::new();
    for column in &schema.columns {
        let ColumnUsage::Number(number) = &column.usage else { continue };
        if matches!(number.transform, Transform::Buckets(_)) {
            continue;
        }
        let seed = key::seed(&column.name);
        let indicator = number.missing() == MissingNumber::Indicator;
        let keys = [Some(seed), indicator.then(|| key::of_missing(seed))];
        for key in keys.into_iter().flatten() {
            if let Some(first) = taken.insert(key::folded(key, features), &column.name) {
                let (first, second) = (first.to_owned(), column.name.clone());
                return Err(SchemaError::Meet { first, second, features });
            }
        }
    }
    Ok(())
}

/// A rule with its names as they are looked for.
struct NamedRule<'r> {
    exact: Vec<&'r str>,
    globs: Vec<GlobMatcher>,
    usage: &'r ColumnUsage,
}

impl<'r> NamedRule<'r> {
    fn new(rule: &'r ColumnRule) -> Result<Self, SchemaError> {
        let is_glob = |name: &&String| name.contains(['*', '?', '[', '{']);
        let (globs, exact): (Vec<&String>, Vec<&String>) = rule.names.iter().partition(is_glob);
        let glob = |name: &String| {
            let glob = GlobBuilder::new(name).literal_separator(false).build();
            let failed = |error: globset::Error| SchemaError::Glob {
                name: name.clone(),
                what: error.kind().to_string(),
            };
            glob.map(|glob| glob.compile_matcher()).map_err(failed)
        };
        let globs = globs.into_iter().map(glob).collect::<Result<_, _>>()?;
        let exact = exact.into_iter().map(String::as_str).collect();
        Ok(Self { exact, globs, usage: &rule.usage })
    }

    fn names(&self, name: &str) -> bool {
        self.exact.contains(&name) || self.globs.iter().any(|glob| glob.is_match(name))
    }
}

/// Checks that the values of a column can be read as its rule states.
///
/// # Errors
/// They cannot: [`SchemaError::Type`].
pub fn check_kind(column: &FileColumn, usage: &ColumnUsage) -> Result<(), SchemaError> {
    let wrong = |usage| {
        let (name, kind) = (column.name.clone(), column.kind.name());
        Err(SchemaError::Type { name, kind, usage })
    };
    let (word, fits) = match (usage, column.kind) {
        (ColumnUsage::Vector { .. }, ValueKind::AnyText) => return wrong("a vector"),
        (ColumnUsage::List { separator: None }, ValueKind::AnyText) => {
            return wrong("a list without a separator, such as separator = \"|\"");
        }
        (_, ValueKind::AnyText) | (ColumnUsage::Ignore, _) => return Ok(()),
        (ColumnUsage::Number(_), ValueKind::Typed { is_number, .. }) => ("a number", is_number),
        (ColumnUsage::Category { .. }, ValueKind::Typed { is_category, .. }) => {
            ("a category", is_category)
        }
        (ColumnUsage::List { .. }, ValueKind::Typed { is_list, .. }) => ("a list", is_list),
        (ColumnUsage::Vector { .. }, ValueKind::Typed { is_vector, .. }) => ("a vector", is_vector),
    };
    if fits { Ok(()) } else { wrong(word) }
}

/// Names in quotes, a few of many.
fn quoted(names: &BTreeSet<&str>) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} others"),
    }
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::columns::{MissingCategory, NumberUsage};

    use super::*;

    fn columns(names: &str) -> Vec<FileColumn> {
        let column = |name: &str| FileColumn { name: name.to_owned(), kind: ValueKind::AnyText };
        names.split(' ').map(column).collect()
    }

    fn rule(names: &str, usage: ColumnUsage) -> ColumnRule {
        ColumnRule { names: names.split(' ').map(str::to_owned).collect(), usage }
    }

    fn number() -> ColumnUsage {
        ColumnUsage::Number(NumberUsage::default())
    }

    fn category() -> ColumnUsage {
        ColumnUsage::Category { missing: MissingCategory::None }
    }

    fn roles() -> Roles {
        Roles { label: "y".to_owned(), id: vec!["user".to_owned()], ..Roles::default() }
    }

    #[test]
    fn first_rule_that_names_a_column_holds() {
        let rules =
            [rule("h_1 site", category()), rule("h_*", number()), rule("*", ColumnUsage::Ignore)];
        let file = columns("h_2 y user h_1 other site");
        let cross = [Cross { columns: ["site".to_owned(), "h_2".to_owned()] }];
        let schema = resolve(&file, &roles(), &rules, &cross).expect("it fits");
        let found: Vec<_> = schema.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(found, ["h_1", "h_2", "site"]);
        assert_eq!((&schema.columns[0].usage, &schema.columns[1].usage), (&category(), &number()));
        assert_eq!(schema.cross, [[2, 1]]);
    }

    #[test]
    fn clusters_need_no_label() {
        let roles = Roles { label: String::new(), ..roles() };
        let schema = resolve(&columns("user a"), &roles, &[rule("*", number())], &[]);
        let schema = schema.expect("it fits");
        assert_eq!((schema.label.as_str(), schema.columns.len()), ("", 1));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let of = |file: &str, rules: &[ColumnRule], cross: &[Cross]| {
            resolve(&columns(file), &roles(), rules, cross).expect_err("it does not").to_string()
        };
        let error = of("a user", &[], &[]);
        assert_eq!(
            error,
            "data.label names the column \"y\", which is not in the file; its columns are \"a\", \"user\""
        );
        assert!(of("y y", &[], &[]).contains("two columns are named \"y\""));
        assert!(
            of("y user a b", &[rule("a", number())], &[])
                .starts_with("no rule of data.columns names \"b\";")
        );
        assert!(
            of("y user a", &[rule("b", number())], &[])
                .contains("data.columns names the column \"b\"")
        );
        assert!(of("y user a", &[rule("[", number())], &[]).contains("names: \"[\": unclosed"));
        assert_eq!(
            of("y user a", &[rule("*", ColumnUsage::Ignore)], &[]),
            "no column has features"
        );
        let vector = rule("a", ColumnUsage::Vector { values: None });
        assert_eq!(
            of("y user a", &[vector], &[]),
            "the column \"a\" is text, which cannot be read as a vector"
        );
        let list =
            |separator: Option<&str>| ColumnUsage::List { separator: separator.map(str::to_owned) };
        assert!(of("y user a", &[rule("a", list(None))], &[]).contains("without a separator"));
        let listed = [rule("a", list(Some("|")))];
        assert!(resolve(&columns("y user a"), &roles(), &listed, &[]).is_ok());
        let cross = [Cross { columns: ["a".to_owned(), "user".to_owned()] }];
        assert!(
            of("y user a", &[rule("a", number())], &cross).contains("\"user\" has no features")
        );
    }

    #[test]
    fn types_of_files_are_checked() {
        let kind = ValueKind::Typed {
            name: "DOUBLE",
            is_number: true,
            is_category: false,
            is_list: false,
            is_vector: false,
        };
        let file: Vec<_> =
            columns("y user a").into_iter().map(|c| FileColumn { kind, ..c }).collect();
        assert!(resolve(&file, &roles(), &[rule("a", number())], &[]).is_ok());
        let error = resolve(&file, &roles(), &[rule("a", category())], &[]).expect_err("a double");
        assert_eq!(
            error.to_string(),
            "the column \"a\" is DOUBLE, which cannot be read as a category"
        );
    }

    #[test]
    fn numbers_that_meet_are_named() {
        let file = columns("y user a b");
        let schema = resolve(&file, &roles(), &[rule("*", number())], &[]).expect("it fits");
        assert_eq!(check_folded(&schema, 1 << 30), Ok(()));
        let error = check_folded(&schema, 1).expect_err("there is one index").to_string();
        assert!(error.starts_with("the columns \"a\" and \"b\" have the same index of 1 features"));
    }
}
