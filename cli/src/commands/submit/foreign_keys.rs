//! Keys of Spark and MapReduce that users type from memory, and the keys that stand for them.
//!
//! Such a key is refused with the one to use. It is not translated: its unit or its meaning may differ
//! (`spark.executor.memory` does not contain the overhead, `trainers.memory` neither, but `mapreduce.map.memory.mb` does).

/// Key or prefix of another tool, and what to use.
const KEYS: &[(&str, &str)] = &[
    ("spark.app.name", "name"),
    ("spark.driver.cores", "am.vcores"),
    ("spark.driver.memory", "am.memory"),
    ("spark.dynamicAllocation.maxExecutors", "trainers.max"),
    ("spark.dynamicAllocation.minExecutors", "trainers.min"),
    ("spark.executor.cores", "trainers.vcores"),
    ("spark.executor.instances", "trainers.max"),
    ("spark.executor.memory", "trainers.memory"),
    ("spark.executor.memoryOverhead", "yarn.memory-overhead"),
    ("spark.executor.resource.", "trainers.resources"),
    ("spark.executorEnv.", "yarn.env.NAME"),
    ("spark.archives", "yarn.archives"),
    ("spark.files", "yarn.files"),
    ("spark.hadoop.", "the key without the prefix spark.hadoop"),
    ("spark.kerberos.keytab", "yarn.keytab"),
    ("spark.kerberos.principal", "yarn.principal"),
    ("spark.yarn.am.cores", "am.vcores"),
    ("spark.yarn.am.memory", "am.memory"),
    ("spark.yarn.am.nodeLabelExpression", "yarn.node-label"),
    ("spark.yarn.appMasterEnv.", "yarn.env.NAME"),
    ("spark.yarn.dist.archives", "yarn.archives"),
    ("spark.yarn.dist.files", "yarn.files"),
    ("spark.yarn.executor.memoryOverhead", "yarn.memory-overhead"),
    ("spark.yarn.executor.nodeLabelExpression", "yarn.node-label"),
    ("spark.yarn.keytab", "yarn.keytab"),
    ("spark.yarn.maxAppAttempts", "yarn.max-attempts"),
    ("spark.yarn.principal", "yarn.principal"),
    ("spark.yarn.priority", "yarn.priority"),
    ("spark.yarn.queue", "yarn.queue"),
    ("spark.yarn.tags", "yarn.tags"),
    ("mapreduce.am.max-attempts", "yarn.max-attempts"),
    ("mapreduce.job.acl-modify-job", "yarn.modify-acl"),
    ("mapreduce.job.acl-view-job", "yarn.view-acl"),
    ("mapreduce.job.name", "name"),
    ("mapreduce.job.node-label-expression", "yarn.node-label"),
    ("mapreduce.job.priority", "yarn.priority"),
    ("mapreduce.job.queuename", "yarn.queue"),
    ("mapreduce.job.tags", "yarn.tags"),
];

/// Why a key of another tool is refused, with the key to use; `None` for a key of no such tool.
#[must_use]
pub fn refusal(key: &str) -> Option<String> {
    let tool = match key.split('.').next() {
        Some("spark") => "Spark",
        Some("mapreduce") => "MapReduce",
        _ => return None,
    };
    let stands_for = |(known, _): &&(&str, &str)| match known.ends_with('.') {
        true => key.starts_with(known),
        false => key == *known,
    };
    Some(match KEYS.iter().find(stands_for) {
        Some((_, own)) => format!("is a key of {tool}; use {own}"),
        None => format!("is a key of {tool} without a counterpart here; remove it"),
    })
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::file::keys::find;

    use super::*;

    #[test]
    fn keys_of_other_tools_lead_to_keys_that_exist() {
        for (_, own) in KEYS {
            let is_flag = own.starts_with("--") || own.starts_with("the key");
            let key = own.strip_suffix(".NAME").unwrap_or(own);
            assert!(is_flag || find(key).is_some(), "{own}");
        }
        let refused = |key| refusal(key).expect("refused");
        assert_eq!(refused("spark.executor.memory"), "is a key of Spark; use trainers.memory");
        assert_eq!(refused("spark.executorEnv.LANG"), "is a key of Spark; use yarn.env.NAME");
        assert!(refused("spark.sql.shuffle.partitions").contains("without a counterpart"));
        assert_eq!(refusal("yarn.queue"), None);
    }
}
