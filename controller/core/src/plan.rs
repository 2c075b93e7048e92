//! One round: the rules in their order, and what they came to.

use crate::cluster::ClusterState;
use crate::decision::{ScalingDecision, ScalingPlan, ScalingReason, WaitingJob};
use crate::job::{ElasticJob, NodeContainers};
use crate::round::{PlacedContainers, Round};
use crate::{asked, excess, fairness, growth, idle_gpus, minimums, overload};

/// Decides the sizes of jobs. `jobs`: in any order, each id once. `now_ms`: of the clock of all times in the jobs but
/// [`ElasticJob::submitted_ms`].
///
/// The same input gives the same plan, whatever its order. A job without sizes keeps what it has.
#[must_use]
pub fn plan(cluster: &ClusterState, jobs: &[ElasticJob], now_ms: u64) -> ScalingPlan {
    let mut round = Round::new(cluster, jobs, now_ms);
    excess::cut(&mut round);
    asked::place(&mut round);
    minimums::serve(&mut round);
    overload::relieve(&mut round);
    growth::grow(&mut round);
    idle_gpus::free(&mut round);
    fairness::exchange(&mut round);
    outcome(round)
}

fn outcome(round: Round) -> ScalingPlan {
    let mut plan = ScalingPlan::default();
    // What is in `containers` more than in `others`.
    let more = |containers: &PlacedContainers, others: &PlacedContainers| {
        let more = containers.iter().filter_map(|(place, counts)| {
            let counts = counts.minus(others.get(place).copied().unwrap_or_default());
            let node = round.nodes[place.node].name.clone();
            (!counts.is_empty()).then_some(NodeContainers { node, counts })
        });
        let mut more: Vec<NodeContainers> = more.collect();
        more.sort_by(|a, b| a.node.cmp(&b.node));
        more
    };
    for job in &round.jobs {
        let (from, to, id) = (job.spec.wanted, job.size, job.spec.id.clone());
        if let Some(reason) = job.reason.clone().filter(|_| from != to) {
            let leave = more(&job.before, &job.containers);
            let has_grown = matches!(reason, ScalingReason::FreeRoom { .. });
            let room = if has_grown { more(&job.containers, &job.before) } else { Vec::new() };
            plan.decisions.push(ScalingDecision { job: id.clone(), from, to, reason, leave, room });
        }
        if let Some(reason) = job.waiting.clone() {
            plan.waiting.push(WaitingJob { job: id, reason });
        }
    }
    plan
}
