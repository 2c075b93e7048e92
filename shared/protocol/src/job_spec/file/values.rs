//! Values of the job file with a form of their own.

use std::collections::BTreeMap;

use heddle_optimizer::{Optimizer, Schedule};

use super::super::algorithm::{AlgorithmKind, LossFunction};
use super::super::limits::{
    ANY_FEATURES, BANDWIDTH_MIN, INIT_ROUNDS, INIT_ROUNDS_MAX, ROWS_MAX, SLOTS_MAX, STALENESS,
    STALENESS_MAX, TOLERANCE,
};
use super::super::memory_retry::MemoryRetry;
use super::super::options::{
    BadRecords, Consistency, DataFormat, LabelScaling, ModelFormat, TaskSize,
};
use super::super::table::TableSpec;
use super::super::value::{Bytes, BytesPerSecond};
use super::key::Key;
use super::origin::Origin;
use super::parameters::{self, fields_of};
use super::raw::{Raw, RawValue};
use super::scalar::{has_unit, list_of, parse, real_of, text_of};
use super::take::Take;

/// 0, 1, or `auto` by the format.
pub(in crate::job_spec) fn index_base(
    take: &mut Take<'_>,
    key: &'static Key,
    format: Option<DataFormat>,
) -> Option<u32> {
    let base = take.with(key, |raw| match &raw.value {
        RawValue::Text(text) if text == "auto" => {
            Ok(format.unwrap_or(DataFormat::Libsvm).index_base())
        }
        RawValue::Integer(n @ (0 | 1)) => Ok(*n as u32),
        _ => Err("expected 0, 1 or \"auto\"".to_owned()),
    })?;
    take.resolved(key, &base.to_string());
    Some(base)
}

/// Bytes of a task, or `auto`.
pub(in crate::job_spec) fn task_size(raw: &Raw) -> Result<TaskSize, String> {
    match text_of(raw)? {
        "auto" => Ok(TaskSize::Auto),
        size => match size.parse() {
            Ok(size) if size != Bytes(0) => Ok(TaskSize::Bytes(size)),
            _ => Err("expected \"auto\" or a size above 0 such as \"16MiB\"".to_owned()),
        },
    }
}

/// Bytes of a trainer's cache, or `auto`.
pub(in crate::job_spec) fn cache_size(raw: &Raw) -> Result<Option<Bytes>, String> {
    match task_size(raw)? {
        TaskSize::Auto => Ok(None),
        TaskSize::Bytes(size) => Ok(Some(size)),
    }
}

/// `false`: labels as they are.
pub(in crate::job_spec) fn no_scaling(raw: &Raw) -> Result<LabelScaling, String> {
    match raw.value {
        RawValue::Bool(false) => Ok(LabelScaling::Off),
        _ => Err("expected false".to_owned()),
    }
}

/// `pservers.min` and `pservers.max`: the number with which the job starts, unless given.
pub(in crate::job_spec) fn bound_of_pservers(
    take: &mut Take<'_>,
    key: &'static Key,
    count: Option<u32>,
) -> Option<Option<u32>> {
    if take.given(key) {
        let bound = take.number(key, 1, SLOTS_MAX)?;
        return Some(Some(bound).filter(|bound| Some(*bound) != count));
    }
    take.absent(key);
    if let Some(count) = count {
        take.resolved(key, &count.to_string());
    }
    Some(None)
}

/// Staleness of SSP; the other kinds of consistency have none.
pub(in crate::job_spec) fn staleness(
    take: &mut Take<'_>,
    key: &'static Key,
    consistency: Option<Consistency>,
) -> Option<Option<u32>> {
    match consistency {
        Some(Consistency::Ssp) if take.given(key) => take.number(key, 0, STALENESS_MAX).map(Some),
        Some(Consistency::Ssp) => {
            take.absent(key);
            take.resolved(key, &STALENESS.to_string());
            Some(Some(STALENESS))
        }
        _ if !take.given(key) => {
            take.absent(key);
            Some(None)
        }
        // The consistency itself is wrong, which has been noted.
        None => None,
        Some(Consistency::Bsp | Consistency::Asp) => {
            take.with(key, |_| Err("is for training.consistency = \"ssp\" alone".to_owned()))
        }
    }
}

/// What to do with records that cannot be read.
pub(in crate::job_spec) fn bad_records(raw: &Raw) -> Result<BadRecords, String> {
    match text_of(raw)? {
        "fail" => Ok(BadRecords::Fail),
        "quarantine" => Ok(BadRecords::Quarantine),
        text => {
            match text.strip_prefix("skip:").map(str::parse) {
                Some(Ok(n)) => Ok(BadRecords::Skip(n)),
                _ => Err("expected \"fail\", \"skip:N\" with a whole number N, or \"quarantine\""
                    .to_owned()),
            }
        }
    }
}

/// Weights of classes by their label; −1 is the class 0.
pub(in crate::job_spec) fn class_weights(raw: &Raw) -> Result<Vec<(u32, f64)>, String> {
    let RawValue::Table(fields) = &raw.value else {
        return Err("expected a table such as { \"1\" = 3.0 }".to_owned());
    };
    let mut weights = BTreeMap::new();
    for (label, raw) in fields {
        let class = match label.as_str() {
            "-1" => 0,
            "+1" => 1,
            label => label.parse().map_err(|_| format!("{label:?} is not the label of a class"))?,
        };
        let weight = real_of(raw).map_err(|what| format!("{label:?}: {what}"))?;
        if weights.insert(class, weight).is_some() {
            return Err(format!("{label:?}: the class has two weights"));
        }
    }
    Ok(weights.into_iter().collect())
}

/// A loss, or `auto`; which of them an algorithm has is checked later.
pub(in crate::job_spec) fn loss(raw: &Raw) -> Result<Option<LossFunction>, String> {
    match text_of(raw)? {
        "auto" => Ok(None),
        name => match LossFunction::of_name(name) {
            Some(loss) if !matches!(loss, LossFunction::Softmax | LossFunction::Distance) => {
                Ok(Some(loss))
            }
            _ => {
                Err("expected \"auto\", \"logistic\", \"squared\", \"hinge\" or \"squared-hinge\""
                    .to_owned())
            }
        },
    }
}

/// Rounds of k-means; other algorithms have none.
pub(in crate::job_spec) fn init_rounds(
    take: &mut Take<'_>,
    key: &'static Key,
    algorithm: Option<AlgorithmKind>,
) -> Option<u32> {
    if take.given(key) {
        return take.number(key, 1, INIT_ROUNDS_MAX);
    }
    take.absent(key);
    if algorithm != Some(AlgorithmKind::Kmeans) {
        return Some(0);
    }
    take.resolved(key, &INIT_ROUNDS.to_string());
    Some(INIT_ROUNDS)
}

/// Tolerance of k-means; other algorithms have none.
pub(in crate::job_spec) fn tolerance(
    take: &mut Take<'_>,
    key: &'static Key,
    algorithm: Option<AlgorithmKind>,
) -> Option<f64> {
    if take.given(key) {
        return take.real(key);
    }
    take.absent(key);
    if algorithm != Some(AlgorithmKind::Kmeans) {
        return Some(0.0);
    }
    take.resolved(key, &TOLERANCE.to_string());
    Some(TOLERANCE)
}

/// Number of features or "any", which custom algorithms need not give.
pub(in crate::job_spec) fn features(
    take: &mut Take<'_>,
    key: &'static Key,
    algorithm: Option<AlgorithmKind>,
) -> Option<u64> {
    if take.given(key) || algorithm != Some(AlgorithmKind::Custom) {
        take.with(key, |raw| match &raw.value {
            RawValue::Text(text) if text == "any" => Ok(ANY_FEATURES),
            RawValue::Integer(n) if (1..i128::from(ROWS_MAX)).contains(n) => Ok(*n as u64),
            _ => Err(format!("expected \"any\" or a whole number from 1 to {}", ROWS_MAX - 1)),
        })
    } else {
        take.absent(key);
        Some(0)
    }
}

/// The tables of a custom algorithm; those without an optimizer have this one.
pub(in crate::job_spec) fn tables(
    take: &mut Take<'_>,
    key: &'static Key,
    optimizer: Option<Optimizer>,
    schedule: Option<Schedule>,
) -> Option<Vec<TableSpec>> {
    match (optimizer, schedule) {
        (Some(optimizer), Some(schedule)) if take.given(key) => {
            take.with(key, |raw| parameters::tables(raw, optimizer, schedule))
        }
        _ => {
            take.absent(key);
            Some(Vec::new())
        }
    }
}

/// Bytes a second, or the empty text for no limit.
pub(in crate::job_spec) fn bandwidth(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<Option<Bytes>> {
    take.with(key, |raw| match &raw.value {
        RawValue::Text(text) if text.is_empty() => Ok(None),
        _ => {
            let BytesPerSecond(rate) = parse(raw)?;
            has_unit(raw, rate, BANDWIDTH_MIN).map(|()| Some(rate))
        }
    })
}

/// Formats of the model. Text is for linear models, so that the default of others has none.
pub(in crate::job_spec) fn formats(
    take: &mut Take<'_>,
    key: &'static Key,
    algorithm: Option<AlgorithmKind>,
) -> Option<Vec<ModelFormat>> {
    let is_given = take.given(key);
    let formats = take.with(key, |raw| {
        list_of(raw)?
            .iter()
            .map(|item| match text_of(item)? {
                "safetensors" => Ok(ModelFormat::Safetensors),
                "text" => Ok(ModelFormat::Text),
                "npy" => Err("\"npy\" is not available yet".to_owned()),
                _ => Err("expected a list of \"safetensors\" and \"text\"".to_owned()),
            })
            .collect::<Result<Vec<_>, _>>()
    });
    if algorithm.is_some_and(|kind| !kind.is_linear()) && !is_given {
        take.resolved(key, "[\"safetensors\"]");
        return Some(vec![ModelFormat::Safetensors]);
    }
    formats
}

/// Tags of an application, in lower case.
pub(in crate::job_spec) fn tags(raw: &Raw) -> Result<Vec<String>, String> {
    let lower = |item: &Raw| text_of(item).map(str::to_ascii_lowercase);
    list_of(raw)?.iter().map(lower).collect()
}

/// A label, or the empty text for none.
pub(in crate::job_spec) fn node_label(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<Option<String>> {
    Some(Some(take.text(key)?).filter(|label| !label.is_empty()))
}

/// A principal, or the empty text for none.
pub(in crate::job_spec) fn principal(
    take: &mut Take<'_>,
    key: &'static Key,
) -> Option<Option<String>> {
    Some(Some(take.text(key)?).filter(|principal| !principal.is_empty()))
}

/// What is left out is as in the default, so that `--set yarn.memory-retry.times=0` is enough.
pub(in crate::job_spec) fn memory_retry(raw: &Raw) -> Result<MemoryRetry, String> {
    let fields = fields_of(raw, &["factor", "times"])?;
    let default = MemoryRetry::default();
    Ok(MemoryRetry {
        factor: match fields.get("factor") {
            Some(raw) => real_of(raw).map_err(|what| format!("factor: {what}"))?,
            None => default.factor,
        },
        times: match fields.get("times").map(|raw| &raw.value) {
            None => default.times,
            Some(RawValue::Integer(n @ 0..=10)) => *n as u32,
            Some(_) => return Err("times: expected a whole number from 0 to 10".to_owned()),
        },
    })
}

pub(in crate::job_spec) fn env(raw: &Raw) -> Result<BTreeMap<String, String>, String> {
    let RawValue::Table(fields) = &raw.value else {
        return Err("expected a table such as { OMP_NUM_THREADS = \"1\" }".to_owned());
    };
    let text = |(name, raw): (&String, &Raw)| {
        // `--env N=1` gives the text after the sign, whatever TOML would make of it.
        let typed = match &raw.origin {
            Origin::Set { text: set, .. } => {
                set.split_once('=').filter(|(key, _)| key.trim().ends_with(&format!(".{name}")))
            }
            Origin::File { .. } | Origin::Site { .. } | Origin::Default => None,
        };
        let value = match (&raw.value, typed) {
            (_, Some((_, typed))) => typed.to_owned(),
            (RawValue::Text(text), None) => text.clone(),
            (RawValue::Integer(_) | RawValue::Bool(_), None) => raw.to_string(),
            _ => {
                let kind = raw.kind();
                return Err(format!("{name:?}: expected a text in quotes, not {kind}"));
            }
        };
        Ok((name.clone(), value))
    };
    fields.iter().map(text).collect()
}

/// Names of other resources with how many of each; none of it is none at all.
pub(in crate::job_spec) fn resources(raw: &Raw) -> Result<BTreeMap<String, u64>, String> {
    let RawValue::Table(fields) = &raw.value else {
        return Err("expected a table such as { \"yarn.io/gpu\" = 1 }".to_owned());
    };
    let mut resources = BTreeMap::new();
    for (name, raw) in fields {
        match raw.value {
            RawValue::Integer(0) => {}
            RawValue::Integer(n) if (1..=i128::from(i64::MAX)).contains(&n) => {
                resources.insert(name.clone(), n as u64);
            }
            _ => return Err(format!("{name:?}: expected a whole number of at least 0")),
        }
    }
    Ok(resources)
}
