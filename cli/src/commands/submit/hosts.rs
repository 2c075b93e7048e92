//! Whether a cluster has enough hosts for the backups of a job (`pservers.replicas`): the copies of a shard are on different ones.
//!
//! Fewer are an error, although a cluster that scales may start more: each shard would run without the backups that the job
//! file states. Nodes that leave later are another matter, for which the ApplicationMaster raises a warning.

use std::collections::BTreeSet;

use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::JobSpec;
use heddle_yarn::{NodeReport, Resources};

use crate::failure::CommandFailure;

/// Whether a container of this size fits on an empty node: memory and resources with names. Vcores are not compared, since
/// schedulers may ignore them.
pub fn holds(node: &NodeReport, asked: &Resources) -> bool {
    let has = &node.capability;
    let others = asked.others.iter().all(|(name, amount)| {
        has.others.get(name).is_some_and(|there| there.value >= amount.value)
    });
    has.memory >= asked.memory && others
}

/// Whether a job may use a node: without a label each, since the queue's own label is not known here.
pub fn has_label(node: &NodeReport, spec: &JobSpec) -> bool {
    let label = spec.yarn.node_label.as_deref();
    label.is_none_or(|label| node.labels.iter().any(|its| its == label))
}

/// Checks that `pservers.replicas` + 1 hosts can hold a pserver. `nodes`: those that run.
///
/// # Errors
/// Exit code 4, naming the hosts that can.
pub fn for_backups(
    spec: &JobSpec,
    pserver: &Resources,
    nodes: &[NodeReport],
) -> Result<(), CommandFailure> {
    let replicas = spec.pservers.replicas;
    let usable = nodes.iter().filter(|node| has_label(node, spec) && holds(node, pserver));
    let hosts: BTreeSet<&str> = usable.map(|node| &*node.id.host).collect();
    let needed = replicas as usize + 1;
    if replicas == 0 || hosts.len() >= needed {
        return Ok(());
    }
    let running: BTreeSet<&str> = nodes.iter().map(|node| &*node.id.host).collect();
    let found = match hosts.len() {
        0 => "none".to_owned(),
        some => format!("{some} ({})", Vec::from_iter(hosts).join(", ")),
    };
    let of_label = spec.yarn.node_label.as_ref();
    let of_label = of_label.map_or_else(String::new, |label| format!(" of label {label:?}"));
    let fact = format!(
        "pservers.replicas = {replicas} needs {needed} hosts, since the copies of a shard are on different ones; of {} running hosts \
         {found} can hold a pserver of {pserver}{of_label}",
        running.len()
    );
    Err(CommandFailure::new(ExitCode::Refused, fact)
        .next("lower pservers.replicas or pservers.memory, or wait until more nodes run"))
}

#[cfg(test)]
mod tests {
    use heddle_protocol::job_spec::job::sample;
    use heddle_yarn::{Memory, VCores, proto};

    use super::*;

    fn node(host: &str, port: i32, mib: i64, label: &str) -> NodeReport {
        let message = proto::NodeReportProto {
            node_id: Some(proto::NodeIdProto { host: Some(host.to_owned()), port: Some(port) }),
            capability: Some(proto::ResourceProto {
                memory: Some(mib),
                virtual_cores: Some(8),
                ..Default::default()
            }),
            node_labels: vec![label.to_owned()],
            ..Default::default()
        };
        NodeReport::try_from(&message).expect("a node")
    }

    #[test]
    fn hosts_below_replicas_plus_one_are_refused_by_name() {
        let mut spec = sample();
        let asked = Resources::new(Memory::mib(1024), VCores(1));
        let nodes = [
            node("n1", 1, 2048, "gold"),
            // Two NodeManagers of one host are one host.
            node("n1", 2, 2048, "gold"),
            node("n2", 1, 1024, ""),
            node("small", 1, 1023, "gold"),
        ];
        let check = |spec: &JobSpec, nodes| for_backups(spec, &asked, nodes).map_err(|it| it.fact);
        assert_eq!(check(&spec, &[]), Ok(()), "without replicas any number will do");
        spec.pservers.replicas = 1;
        assert_eq!(check(&spec, &nodes), Ok(()));
        let fact = check(&spec, &nodes[..2]).expect_err("one host");
        assert!(fact.contains("needs 2 hosts") && fact.contains("1 (n1) can hold"), "{fact}");
        let fact = check(&spec, &[]).expect_err("no host");
        assert!(fact.contains("of 0 running hosts none can hold"), "{fact}");
        spec.pservers.replicas = 2;
        let fact = check(&spec, &nodes).expect_err("two hosts");
        assert!(fact.contains("of 3 running hosts 2 (n1, n2) can hold"), "{fact}");
        spec.pservers.replicas = 1;
        spec.yarn.node_label = Some("gold".to_owned());
        let fact = check(&spec, &nodes).expect_err("one host has the label and the memory");
        assert!(fact.contains("1 (n1) can hold") && fact.contains("of label \"gold\""), "{fact}");
        let refused = for_backups(&spec, &asked, &nodes).expect_err("as before");
        assert_eq!(refused.exit, ExitCode::Refused);
    }
}
