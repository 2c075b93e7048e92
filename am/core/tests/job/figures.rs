//! Figures that processes count: heartbeats carry what changed, and the ApplicationMaster merges all containers of the attempt.

use heddle_protocol::ids::Member;
use heddle_protocol::job_spec::Consistency;
use heddle_protocol::process_figures::ProcessFigure::{self, *};

use crate::harness::{Job, spec};

fn beat<const N: usize>(job: &mut Job, member: Member, changed: [(ProcessFigure, u64); N]) {
    job.now += 1_000;
    job.beat(member, |beat| *beat.figures = changed.into_iter().collect());
}

fn slot_figure(job: &Job, member: Member, figure: ProcessFigure) -> Option<u64> {
    let view = job.core.view();
    let slot = view.slots.iter().find(|slot| slot.slot == member.slot).expect("a slot");
    slot.figures.known(figure)
}

#[test]
fn a_heartbeat_changes_the_figures_that_it_has() {
    let mut job = Job::started(spec(Consistency::Asp), 4, 0);
    let (pserver, trainer) = (job.pserver(0), job.trainer(0));
    beat(&mut job, pserver, [(ResidentBytes, 100), (SavedBytes, 7), (Pushes, 50)]);
    assert_eq!(job.core.view().figures.known(SavedBytes), Some(7));
    assert_eq!(job.core.view().figures.known(ResidentBytes), None, "of the slot");
    beat(&mut job, pserver, [(FramesRefused, 0), (Pushes, 80)]);
    assert_eq!(job.core.view().figures.known(SavedBytes), Some(7));
    let of_slot = [ResidentBytes, FramesRefused].map(|it| slot_figure(&job, pserver, it));
    assert_eq!(of_slot, [Some(100), Some(0)]);
    let view = job.core.view();
    let slot = view.slots.iter().find(|slot| slot.slot == pserver.slot).expect("a slot");
    assert_eq!((slot.total, slot.per_second), (80, 30.0));
    assert_eq!(slot_figure(&job, trainer, FramesRefused), None);
}

#[test]
fn figures_of_lost_containers_count_by_their_rule() {
    let mut job = Job::started(spec(Consistency::Asp), 4, 0);
    let [first, second] = [job.pserver(0), job.pserver(1)];
    beat(&mut job, first, [(SavedBytes, 7), (PullGapMax, 9)]);
    beat(&mut job, second, [(SavedBytes, 3), (PullGapMax, 4)]);
    job.kill(first);
    let all = || [SavedBytes, PullGapMax].map(|figure| job.core.view().figures.get(figure));
    assert_eq!(all(), [10, 9]);
}
