//! The values of a job file that have fields of their own: optimizers and custom tables.

use std::collections::BTreeMap;

use super::super::limits::{COLS_MAX, ROWS_MAX};
use super::super::table::{Optimizer, TableSpec, dense_table};
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
pub(in crate::spec) fn optimizer(raw: &Raw, add_allowed: bool) -> Result<Optimizer, String> {
    let RawValue::Table(fields) = &raw.value else {
        let example = "{ kind = \"sgd\", rate = 0.1 }";
        return Err(format!("expected a table such as {example}, not {}", raw.kind()));
    };
    let field = |name: &str, default: f64| match fields.get(name) {
        Some(raw) => real_of(raw).map_err(|what| format!("{name}: {what}")),
        None => Ok(default),
    };
    // Left out, it is the default's, so that `--set model.optimizer.alpha=0.5` needs no second key.
    let kind = fields.get("kind").map_or(Ok("ftrl"), text_of)?;
    match kind {
        "sgd" => {
            fields_of(raw, &["kind", "rate"])?;
            if !fields.contains_key("rate") {
                return Err("kind \"sgd\" needs the field rate, such as rate = 0.1".to_owned());
            }
            Ok(Optimizer::Sgd { rate: field("rate", 0.0)? })
        }
        "ftrl" => {
            fields_of(raw, &["kind", "alpha", "beta", "l1", "l2"])?;
            Ok(Optimizer::Ftrl {
                alpha: field("alpha", 0.1)?,
                beta: field("beta", 1.0)?,
                l1: field("l1", 0.0)?,
                l2: field("l2", 0.0)?,
            })
        }
        "add" if add_allowed => {
            fields_of(raw, &["kind"])?;
            Ok(Optimizer::Add)
        }
        "momentum" | "adagrad" | "adam" => Err(format!("kind \"{kind}\" is not available yet")),
        _ if add_allowed => Err("expected kind \"sgd\", \"ftrl\" or \"add\"".to_owned()),
        _ => Err("expected kind \"sgd\" or \"ftrl\"".to_owned()),
    }
}

/// The tables of a custom algorithm; those that name no optimizer have `default`.
pub(super) fn tables(raw: &Raw, default: Optimizer) -> Result<Vec<TableSpec>, String> {
    let items = list_of(raw).map_err(|_| "expected [[model.table]] sections".to_owned())?;
    if items.len() > 1024 {
        return Err(format!("{} tables, at most 1024", items.len()));
    }
    let mut tables = Vec::new();
    for (id, item) in (0u16..).zip(items) {
        tables.push(table(id, item, default)?);
    }
    Ok(tables)
}

fn table(id: u16, raw: &Raw, default: Optimizer) -> Result<TableSpec, String> {
    let fields = fields_of(raw, &["name", "rows", "cols", "kind", "optimizer", "l2"])?;
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
    match fields.get("kind").map(text_of).transpose()? {
        None | Some("dense") => {}
        Some("sparse") => return Err(within("kind \"sparse\" is not available yet".to_owned())),
        Some(_) => return Err(within("kind: expected \"dense\"".to_owned())),
    }
    let optimizer = match fields.get("optimizer") {
        Some(raw) => optimizer(raw, true).map_err(|what| within(format!("optimizer: {what}")))?,
        None => default,
    };
    let l2 = match fields.get("l2") {
        Some(raw) => real_of(raw).map_err(|what| within(format!("l2: {what}")))?,
        None => 0.0,
    };
    let rows = count("rows", None, ROWS_MAX)?;
    let cols = count("cols", Some(1), u64::from(COLS_MAX))? as u32;
    Ok(TableSpec { l2, ..dense_table(id, name, rows, cols, optimizer) })
}
