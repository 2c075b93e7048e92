//! Taking `[submit]`, `[yarn]` and `trainers.resources`.

use std::collections::BTreeMap;

use super::super::yarn::{MemoryRetry, SubmitSpec, YarnSpec};
use super::parameters::fields_of;
use super::raw::{Origin, Raw, RawValue};
use super::scalar::{list_of, real_of, text_of};
use super::take::Take;

pub(super) fn submit(take: &mut Take<'_>) -> Option<SubmitSpec> {
    let upload_limit = take.parse("submit.upload-limit");
    let binary = take.local_path("submit.binary");
    Some(SubmitSpec { upload_limit: upload_limit?, binary: binary? })
}

pub(super) fn yarn(take: &mut Take<'_>) -> Option<YarnSpec> {
    let queue = take.text("yarn.queue");
    let priority = take.number("yarn.priority", 0, i32::MAX as u32);
    let tags = take.with("yarn.tags", |raw| {
        let lower = |item: &Raw| text_of(item).map(str::to_ascii_lowercase);
        list_of(raw)?.iter().map(lower).collect()
    });
    let node_label = take.text("yarn.node-label");
    let max_attempts = take.number("yarn.max-attempts", 1, 100);
    let allocation_timeout = take.parse("yarn.allocation-timeout");
    let replacement_timeout = take.parse("yarn.replacement-timeout");
    let memory_overhead = take.parse("yarn.memory-overhead");
    let memory_retry = take.with("yarn.memory-retry", memory_retry);
    let view_acl = take.text("yarn.view-acl");
    let modify_acl = take.text("yarn.modify-acl");
    let files = take.files("yarn.files");
    let archives = take.files("yarn.archives");
    let env = take.with("yarn.env", env);
    Some(YarnSpec {
        queue: queue?,
        priority: priority?,
        tags: tags?,
        node_label: node_label.map(|label| Some(label).filter(|label| !label.is_empty()))?,
        max_attempts: max_attempts?,
        allocation_timeout: allocation_timeout?,
        replacement_timeout: replacement_timeout?,
        memory_overhead: memory_overhead?,
        view_acl: view_acl?,
        modify_acl: modify_acl?,
        files: files?,
        archives: archives?,
        env: env?,
        memory_retry: memory_retry?,
    })
}

/// What is left out is as in the default, so that `--set yarn.memory-retry.times=0` is enough.
fn memory_retry(raw: &Raw) -> Result<MemoryRetry, String> {
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

fn env(raw: &Raw) -> Result<BTreeMap<String, String>, String> {
    let RawValue::Table(fields) = &raw.value else {
        return Err("expected a table such as { OMP_NUM_THREADS = \"1\" }".to_owned());
    };
    let text = |(name, raw): (&String, &Raw)| {
        // `--env N=1` gives the text after the sign, whatever TOML would make of it.
        let typed = match &raw.origin {
            Origin::Set(set) => {
                set.split_once('=').filter(|(key, _)| key.trim().ends_with(&format!(".{name}")))
            }
            Origin::File { .. } | Origin::Default => None,
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
pub(super) fn resources(raw: &Raw) -> Result<BTreeMap<String, u64>, String> {
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
