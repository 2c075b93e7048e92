//! Whether the cluster and the queue have the memory of all of the job's containers together.

use heddle_am::report::format;
use heddle_protocol::exit_code::ExitCode;
use heddle_protocol::job_spec::JobSpec;
use heddle_yarn::{AllocationSteps, NodeReport};

use super::hosts;
use super::plan::RolePlan;
use crate::failure::CommandFailure;

/// Compares what the job needs at once with the limit of its queue, and with the capacity of all running nodes, used or not.
/// Only a note for what the job has at its start: the ResourceManager may choose another queue, and an operator or an autoscaler
/// may add nodes. Bounds that the queue cannot hold at all are a mistake in the job file.
///
/// # Errors
/// The queue cannot hold the least size of a job whose pservers may change their number.
pub fn check(
    roles: &[RolePlan; 3],
    steps: AllocationSteps,
    nodes: &[NodeReport],
    most_mib: Option<u64>,
    spec: &JobSpec,
) -> Result<Option<String>, CommandFailure> {
    let usable = nodes.iter().filter(|node| hosts::has_label(node, spec));
    let has_mib =
        usable.fold(0u64, |sum, node| sum.saturating_add(node.capability.memory.as_mib()));
    let sum = |count: fn(&RolePlan) -> u32| {
        roles.iter().fold(0u64, |sum, role| {
            let one = steps.rounded(&role.asked).memory.as_mib();
            sum.saturating_add(one.saturating_mul(u64::from(count(role))))
        })
    };
    let (needs_mib, grows_to_mib) = (sum(|role| role.min), sum(|role| role.max));
    let queue = &spec.yarn.queue;
    let size = |mib: u64| format::size(mib.saturating_mul(1 << 20));
    let is_elastic = spec.pservers.least() < spec.pservers.most();
    let least_mib = sum(|role| role.least);
    if let Some(most) = most_mib.filter(|most| is_elastic && least_mib > *most) {
        let fact = format!(
            "pservers.min = {}, trainers.min = {}: in queue {queue:?} the job's least size takes {}, and the \
             queue can have at the most {}",
            spec.pservers.least(),
            spec.trainers.min,
            size(least_mib),
            size(most)
        );
        let next =
            "lower pservers.min, trainers.min or their memory, or name another queue (yarn.queue)";
        return Err(CommandFailure::new(ExitCode::Refused, fact).next(next));
    }
    let (place, holder, has_mib) = match most_mib {
        _ if !nodes.is_empty() && needs_mib > has_mib => {
            ("on this cluster".to_owned(), "all running nodes together have", has_mib)
        }
        Some(most) if needs_mib > most => {
            (format!("in queue {queue:?}"), "the queue can have at the most", most)
        }
        Some(most) if is_elastic && grows_to_mib > most => {
            return Ok(Some(format!(
                "the job cannot grow to all of its containers in queue {queue:?}: they take {}, and the \
                 queue can have at the most {} (pservers.max, trainers.max)",
                size(grows_to_mib),
                size(most),
            )));
        }
        _ => return Ok(None),
    };
    Ok(Some(format!(
        "the job cannot begin {place}: it needs {} at once, and {holder} {}; it would wait for \
         yarn.allocation-timeout = {} and end with exit code 75. Lower pservers.count, \
         trainers.min or their memory",
        size(needs_mib),
        size(has_mib),
        spec.yarn.allocation_timeout
    )))
}

#[cfg(test)]
pub mod tests {
    use heddle_protocol::job_spec;
    use heddle_yarn::proto;

    use super::super::plan::roles;
    use super::*;

    /// A node with this much memory and eight vcores.
    pub fn node(mib: i64) -> NodeReport {
        let message = proto::NodeReportProto {
            node_id: Some(proto::NodeIdProto { host: Some("n1".to_owned()), port: Some(8041) }),
            capability: Some(proto::ResourceProto {
                memory: Some(mib),
                virtual_cores: Some(8),
                ..Default::default()
            }),
            ..Default::default()
        };
        NodeReport::try_from(&message).expect("a node")
    }

    #[test]
    fn job_beyond_the_limit_of_its_queue_is_a_note_with_both_sums() {
        let spec = job_spec::job::sample();
        let steps = AllocationSteps { memory_mib: 1, vcores: 1 };
        let all = roles(&spec);
        let needs: u64 =
            all.iter().map(|role| role.asked.memory.as_mib() * u64::from(role.min)).sum();
        let nodes = [node(i64::try_from(needs).expect("small"))];
        let note =
            |most: Option<u64>| check(&all, steps, &nodes, most, &spec).expect("only a note");
        assert_eq!((note(None), note(Some(needs))), (None, None));
        let note = note(Some(needs - 1)).expect("a note");
        let size = |mib: u64| format::size(mib << 20);
        for words in [
            format!(
                "cannot begin in queue {:?}: it needs {} at once",
                spec.yarn.queue,
                size(needs)
            ),
            format!("the queue can have at the most {}", size(needs - 1)),
        ] {
            assert!(note.contains(&words), "{words} in {note}");
        }
    }

    #[test]
    fn queue_that_cannot_hold_the_least_size_is_refused() {
        let mut spec = job_spec::job::sample();
        (spec.pservers.min, spec.pservers.max) = (Some(1), Some(spec.pservers.count + 4));
        let steps = AllocationSteps { memory_mib: 1, vcores: 1 };
        let all = roles(&spec);
        let sum = |count: fn(&RolePlan) -> u32| {
            all.iter().map(|role| role.asked.memory.as_mib() * u64::from(count(role))).sum::<u64>()
        };
        let (least, most) = (sum(|role| role.least), sum(|role| role.max));
        let nodes = [node(i64::try_from(most).expect("small"))];
        let check = |limit: u64| check(&all, steps, &nodes, Some(limit), &spec);
        assert_eq!(check(most).expect("not refused"), None);
        let note = check(most - 1).expect("not refused").expect("a note");
        assert!(note.starts_with("the job cannot grow to all of its containers"), "{note}");
        assert!(check(least).expect("not refused").is_some(), "it would wait");
        let refused = check(least - 1).expect_err("it never fits");
        assert_eq!(refused.exit, ExitCode::Refused);
        assert!(refused.in_words().contains("pservers.min = 1, trainers.min = "));
    }
}
