//! The values of a job file that have fields of their own: optimizers and custom tables.

use std::collections::BTreeMap;

use super::super::limits::{COLS_MAX, ROWS_MAX};
use heddle_optimizer::{
    GradientKind, Initialiser, KINDS, Optimizer, OptimizerKind, SCHEDULE_KINDS, Schedule,
};

use super::super::table::{TableKind, TableSpec, dense_table};
use super::raw::{Raw, RawValue};
use super::scalar::{list_of, real_of, text_of};

/// The fields of an inline table, each of which must be among `known`.
pub(super) fn fields_of<'r>(
    raw: &'r Raw,
    known: &[&str],
) -> Result<&'r BTreeMap<String, Raw>, String> {
    let RawValue::Table(fields) = &raw.value else {
        return Err(format!("expected a table in braces, not {}", raw.kind()));
    };
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => {
            let name: String = name.chars().take(100).collect();
            Err(format!("unknown field \"{name}\"; here are {}", known.join(", ")))
        }
        None => Ok(fields),
    }
}

/// An optimizer; `add` is allowed for tables alone.
pub(in crate::job_spec) fn optimizer(raw: &Raw, add_allowed: bool) -> Result<Optimizer, String> {
    let RawValue::Table(fields) = &raw.value else {
        let example = "{ kind = \"sgd\", rate = 0.1 }";
        return Err(format!("expected a table such as {example}, not {}", raw.kind()));
    };
    // Left out, it is the default's, so that `--set model.optimizer.alpha=0.5` needs no second key.
    let name = fields.get("kind").map_or(Ok("ftrl"), text_of)?;
    let trains = |kind: &&OptimizerKind| add_allowed || kind.gradient.is_some();
    let Some(kind) = KINDS.iter().copied().filter(trains).find(|kind| kind.name == name) else {
        let names: Vec<_> =
            KINDS.iter().copied().filter(trains).map(|kind| format!("\"{}\"", kind.name)).collect();
        let (last, others) = names.split_last().expect("there are rules");
        return Err(format!("kind: expected {} or {last}", others.join(", ")));
    };
    let gradient = match fields.get("gradient").map(text_of).transpose()? {
        None => None,
        Some("sum") => Some(GradientKind::Sum),
        Some("mean") => Some(GradientKind::Mean),
        Some(_) => return Err("gradient: expected \"sum\" or \"mean\"".to_owned()),
    };
    let mut parameters = BTreeMap::new();
    for (name, raw) in
        fields.iter().filter(|(name, _)| !matches!(name.as_str(), "kind" | "gradient"))
    {
        // An unknown name is reported as such, whatever its value.
        let known = kind.parameters.iter().any(|parameter| parameter.name == name);
        let value =
            if known { real_of(raw).map_err(|what| format!("{name}: {what}"))? } else { 0.0 };
        parameters.insert(name.clone(), value);
    }
    Optimizer::new(kind, &parameters, gradient)
}

/// A schedule of the rate.
pub(in crate::job_spec) fn schedule(raw: &Raw) -> Result<Schedule, String> {
    let fields = fields_of(raw, &["kind", "steps", "factor", "warmup"])?;
    let name = fields.get("kind").map_or(Ok("constant"), text_of)?;
    let Some(&(_, kind, factor)) = SCHEDULE_KINDS.iter().find(|(known, ..)| *known == name) else {
        let names: Vec<_> = SCHEDULE_KINDS.iter().map(|(name, ..)| format!("\"{name}\"")).collect();
        return Err(format!("kind: expected one of {}", names.join(", ")));
    };
    let steps_of = |field: &str| match fields.get(field) {
        None => Ok(0),
        Some(Raw { value: RawValue::Integer(n), .. }) if (0..=STEPS_MAX).contains(n) => {
            Ok(*n as u64)
        }
        Some(_) => Err(format!("{field}: expected a whole number from 0 to {STEPS_MAX}")),
    };
    let factor = match fields.get("factor") {
        Some(raw) => real_of(raw).map_err(|what| format!("factor: {what}"))?,
        None => factor,
    };
    let schedule =
        Schedule { kind, steps: steps_of("steps")?, factor, warmup: steps_of("warmup")? };
    schedule.check().map(|()| schedule)
}

/// Most steps of a schedule: their number stays exact as an f64.
const STEPS_MAX: i128 = 1 << 53;

/// How the rows of a table begin.
fn initialiser(raw: &Raw) -> Result<Initialiser, String> {
    const EXPECTED: &str = "expected \"zero\", { constant = 0.5 }, \
                            { uniform = [-0.1, 0.1] } or { normal = [0, 0.05] }";
    if let RawValue::Text(word) = &raw.value {
        return if word == "zero" { Ok(Initialiser::Zero) } else { Err(EXPECTED.to_owned()) };
    }
    let RawValue::Table(fields) = &raw.value else {
        return Err(EXPECTED.to_owned());
    };
    let mut given = fields.iter();
    let (Some((kind, raw)), None) = (given.next(), given.next()) else {
        return Err(EXPECTED.to_owned());
    };
    let two = || match list_of(raw)? {
        [first, second] => Ok((real_of(first)?, real_of(second)?)),
        _ => Err(EXPECTED.to_owned()),
    };
    let initialiser = match kind.as_str() {
        "constant" => Initialiser::Constant(real_of(raw)?),
        "uniform" => two().map(|(low, high)| Initialiser::Uniform(low, high))?,
        "normal" => two().map(|(mean, sd)| Initialiser::Normal(mean, sd))?,
        _ => return Err(EXPECTED.to_owned()),
    };
    initialiser.check().map(|()| initialiser)
}

/// The tables of a custom algorithm; those that name no optimizer have `default`.
pub(super) fn tables(
    raw: &Raw,
    default: Optimizer,
    schedule: Schedule,
) -> Result<Vec<TableSpec>, String> {
    let items = list_of(raw).map_err(|_| "expected [[model.table]] sections".to_owned())?;
    if items.len() > 1024 {
        return Err(format!("{} tables, at most 1024", items.len()));
    }
    let mut tables = Vec::new();
    for (id, item) in (0u16..).zip(items) {
        tables.push(TableSpec { schedule, ..table(id, item, default)? });
    }
    Ok(tables)
}

fn table(id: u16, raw: &Raw, default: Optimizer) -> Result<TableSpec, String> {
    let fields = fields_of(raw, &["name", "rows", "cols", "kind", "optimizer", "l2", "init"])?;
    let Some(name) = fields.get("name") else {
        return Err(format!("table {id} has no name"));
    };
    let name = text_of(name)?;
    let within = |what: String| format!("table \"{name}\": {what}");
    let count = |field: &str, absent: Option<u64>, max: u64| match fields.get(field) {
        Some(Raw { value: RawValue::Integer(n), .. }) if (1..=i128::from(max)).contains(n) => {
            Ok(*n as u64)
        }
        None if absent.is_some() => Ok(absent.unwrap_or(1)),
        _ => Err(within(format!("{field}: expected a whole number from 1 to {max}"))),
    };
    let kind = match fields.get("kind").map(text_of).transpose()? {
        None | Some("dense") => TableKind::Dense,
        Some("sparse") if fields.contains_key("rows") => {
            return Err(within("rows: a sparse table has the rows that are pushed".to_owned()));
        }
        Some("sparse") => TableKind::Sparse,
        Some(_) => return Err(within("kind: expected \"dense\" or \"sparse\"".to_owned())),
    };
    let optimizer = match fields.get("optimizer") {
        Some(raw) => optimizer(raw, true).map_err(|what| within(format!("optimizer: {what}")))?,
        None => default,
    };
    let l2 = match fields.get("l2") {
        Some(raw) => real_of(raw).map_err(|what| within(format!("l2: {what}")))?,
        None => 0.0,
    };
    let rows = match kind {
        TableKind::Dense => count("rows", None, ROWS_MAX)?,
        TableKind::Sparse => 0,
    };
    let cols = count("cols", Some(1), u64::from(COLS_MAX))? as u32;
    let init = match fields.get("init") {
        Some(raw) => initialiser(raw).map_err(|what| within(format!("init: {what}")))?,
        None => Initialiser::Zero,
    };
    Ok(TableSpec { kind, l2, init, ..dense_table(id, name, rows, cols, optimizer) })
}
