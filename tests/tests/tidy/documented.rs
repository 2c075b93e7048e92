//! Reference pages are made from the code: metrics, exit codes and the keys of the job file.
//!
//! `HEDDLE_WRITE_DOCS=1 cargo test -p heddle-tests --test tidy` writes the pages again.

use std::collections::BTreeSet;
use std::fmt::Write;

use heddle_protocol::job_spec::file::{Fallback, GROUPS};
use heddle_protocol::view::WarningCode;
use syn::{Expr, Item, Lit};

use crate::sources::{self, Source};

/// Compares a page with what it must be, or writes it where the environment says so.
pub fn check(path: &str, expected: &str) {
    let file = sources::root().join(path);
    if std::env::var_os("HEDDLE_WRITE_DOCS").is_some() {
        std::fs::write(&file, expected).unwrap_or_else(|error| panic!("{path}: {error}"));
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    let message =
        "is not up to date; run: HEDDLE_WRITE_DOCS=1 cargo test -p heddle-tests --test tidy";
    assert!(found == expected, "{path} {message}");
}

pub fn check_job_file() {
    let mut page = String::from(
        "# Keys of the job file\n\nMade from the table that the job file is read with; `heddle config template` prints \
         the same as a job file, `heddle config show job.toml` the values of a job and where each comes from. \
         A size has a unit (`64MiB`), a duration too (`30s`, `10min`).\n",
    );
    for group in GROUPS {
        let title = if group.name.is_empty() {
            "Top level".to_owned()
        } else {
            format!("`[{}]`", group.name)
        };
        writeln!(page, "\n## {title}\n").expect("a string takes all text");
        if !group.doc.is_empty() {
            writeln!(page, "{}\n", group.doc).expect("a string takes all text");
        }
        page.push_str("| key | default | meaning |\n| --- | --- | --- |\n");
        for key in group.keys {
            let default = match key.fallback {
                Fallback::Required(example) => format!("required, as `{}`", cell(example)),
                Fallback::Value(value) => format!("`{}`", cell(value)),
                Fallback::Absent(example) => format!("none; example `{}`", cell(example)),
                Fallback::NotYet(value) => format!("`{}`; no other value is accepted", cell(value)),
            };
            writeln!(page, "| `{}` | {default} | {} |", key.path, cell(key.doc))
                .expect("a string takes all text");
        }
    }
    optimizers(&mut page);
    let by_site: Vec<String> = GROUPS
        .iter()
        .flat_map(|group| group.keys)
        .filter(|key| key.by_site)
        .map(|key| format!("`{}`", key.path))
        .collect();
    writeln!(
        page,
        "\n## Keys of the site's defaults\n\n`heddle-defaults.toml` of a site ([operations.md](operations.md#site-defaults)) may \
         set the keys that do not change what a job computes: {}.",
        by_site.join(", ")
    )
    .expect("a string takes all text");
    check("docs/job-file.md", &page);
}

/// The rules that `model.optimizer` can name, from their own table.
fn optimizers(page: &mut String) {
    page.push_str(
        "\n## Optimizers\n\n`model.optimizer = { kind = \"ftrl\", alpha = 0.2 }`: parameters that are left out have their \
         default. `g` is the step's gradient: with `gradient = \"sum\"` the sum over its records plus records · l2 · w, with \
         `\"mean\"` the mean plus l2 · w. `w` is the value.\n\n\
         | kind | parameters | gradient | rule |\n| --- | --- | --- | --- |\n",
    );
    for kind in heddle_optimizer::KINDS {
        let parameters: Vec<String> = kind
            .parameters
            .iter()
            .map(|parameter| {
                let default = parameter.default.map_or("required".to_owned(), |n| n.to_string());
                format!("`{}` ({default}; {})", parameter.name, parameter.bounds.in_words())
            })
            .collect();
        let gradient = kind.gradient.map_or("none", heddle_optimizer::GradientKind::word);
        let row = format!(
            "| `{}` | {} | {gradient} | {} |",
            kind.name,
            parameters.join(", "),
            cell(kind.doc)
        );
        writeln!(page, "{row}").expect("a string takes all text");
    }
    page.push_str(SCHEDULES);
    for (name, kind, factor) in heddle_optimizer::SCHEDULE_KINDS {
        let row = format!("| `{name}` | {factor} | {} |", kind.doc());
        writeln!(page, "{row}").expect("a string takes all text");
    }
}

/// The text above the table of schedules.
const SCHEDULES: &str = "\n## Schedules\n\n`model.schedule = \
    { kind = \"cosine\", steps = 10000, warmup = 100 }` multiplies the rate of optimizers that \
    have one. In the first `warmup` steps the rate rises linearly to its full value. `t` is the \
    number of applied steps after these (bsp: job steps, ssp and asp: steps of all trainers \
    together). The count is saved with each checkpoint.\n\n\
    | kind | default of factor | the rate is |\n| --- | --- | --- |\n";

pub fn check_metrics() {
    let page = format!(
        "# Metrics\n\nThe ApplicationMaster serves these as OpenMetrics text at `/metrics`, which Prometheus \
         reads since version 2.5. Times are in seconds, sizes in bytes. A counter never decreases while an ApplicationMaster runs.\n\n\
         | metric | type | meaning |\n| --- | --- | --- |\n{}",
        heddle_am::api::metrics_reference()
    );
    check("docs/metrics.md", &page);
}

/// The exit codes: every variant of the enum has a row in the operations manual.
pub fn check_exit_codes(sources: &[Source]) {
    let page = std::fs::read_to_string(sources::root().join("docs/operations.md"))
        .expect("the manual is readable");
    let codes: Vec<String> = sources
        .iter()
        .flat_map(|source| &source.syntax.items)
        .filter_map(|item| match item {
            Item::Enum(item) if item.ident == EXIT_CODE => Some(item),
            _ => None,
        })
        .flat_map(|item| &item.variants)
        .filter_map(|variant| match &variant.discriminant.as_ref()?.1 {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(code) => Some(code.base10_digits().to_owned()),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert!(codes.len() > 10, "only {} exit codes were found", codes.len());
    let missing: Vec<&String> =
        codes.iter().filter(|code| !page.contains(&format!("\n| {code} |"))).collect();
    assert!(missing.is_empty(), "docs/operations.md has no row of the exit codes {missing:?}");
}

/// The kinds of warnings: each has a row in the operations manual, and each row is of one.
pub fn check_warnings() {
    let page = std::fs::read_to_string(sources::root().join("docs/operations.md"))
        .expect("the manual is readable");
    let section = page.split("\n### Warnings\n").nth(1).expect("a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let named = |line: &str| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned());
    let rows: Vec<String> = section.lines().filter_map(named).collect();
    let codes: Vec<&str> = WarningCode::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(rows, codes, "the table of warnings in docs/operations.md");
}

/// Names in the pages that look like keys.
const NOT_KEYS: [&str; 7] = [
    "run.json",
    "am.json",
    "model.txt",
    "model.safetensors",
    "run.expecting",
    "yarn.acl",
    "yarn.log-aggregation-enable",
];

/// Each key that README and the pages name is one of the job file. The history names keys of earlier versions.
pub fn check_named_keys() {
    let root = sources::root();
    let docs = std::fs::read_dir(root.join("docs")).expect("a folder");
    let pages = docs.map(|entry| entry.expect("readable").path());
    let others = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"].map(|name| root.join(name));
    let keys: BTreeSet<&str> =
        GROUPS.iter().flat_map(|group| group.keys).map(|key| key.path).collect();
    let mut unknown = Vec::new();
    for page in pages.chain(others).filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = std::fs::read_to_string(&page).expect("a page is readable");
        for name in text.split('`').skip(1).step_by(2).flat_map(names_like_keys) {
            if !keys.contains(name) && !NOT_KEYS.contains(&name) {
                unknown.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "pages name keys that do not exist: {unknown:#?}");
}

/// Words such as `checkpoint.dir` whose first part is a section of the job file.
fn names_like_keys(code: &str) -> impl Iterator<Item = &str> {
    let is_part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase())
            && part.bytes().all(|c| c.is_ascii_lowercase() || c == b'-')
    };
    let is_separator = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-' | '_' | '/');
    code.split(is_separator).filter(move |word| {
        let mut parts = word.split('.');
        let section = parts
            .next()
            .is_some_and(|part| GROUPS.iter().any(|group| !part.is_empty() && group.name == part));
        section && parts.next().is_some_and(is_part) && parts.next().is_none()
    })
}

/// Name of the enum of exit codes.
const EXIT_CODE: &str = "ExitCode";

/// A text as a cell of a table.
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
